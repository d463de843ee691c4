import pytest
from nbformat.v4 import new_code_cell

from autograder.classroom.predictions import NotRead, ReadPredictions, read_prediction

from .helpers import notebook


@pytest.mark.parametrize("source, value", [
    ('predict("a", 4)', 4),
    ('predict("a", -4.5)', -4.5),
    ('# my guess\npredict("a", (2, 3, 5, 4))', (2, 3, 5, 4)),
    ('predict("a", value="token 0")', "token 0"),
    ('\ufeffpredict("a", [True, False])\r\n', [True, False]),
])
def test_a_literal_is_read(source, value):
    assert read_prediction(source) == value


@pytest.mark.parametrize("source, why", [
    ('predict("a", None)', "nothing was predicted"),
    ('predict("a", 2 * 3)', "not a literal"),
    ('predict("a", __import__("os").system("touch /tmp/ran"))', "not a literal"),
    ('predict("a", rows[0, 7].item())', "not a literal"),
    ('predict("a")', "needs one value"),
    ('predict("a", *[1])', "not a literal"),
    ("print(4)", "no predict"),
    ('predict("a", 1); predict("a", 2)', "several"),
    ('predict("a", ', "not Python"),
    ('%time predict("a", 4)', "not Python"),
    ('predict("a", ' + "(" * 1000 + ")" * 1000 + ")", "not Python"),
    ('predict("a", ' + "-" * 3900 + "1)", "not"),
    ('predict("a", "' + "x" * 5000 + '")', "longer"),
])
def test_the_rest_is_refused_with_a_reason(source, why):
    with pytest.raises(NotRead, match=why):
        read_prediction(source)


def prediction(source, grade_id="predict-a"):
    return new_code_cell(source, metadata={"nbgrader": {"grade": False, "solution": True, "grade_id": grade_id}})


def test_what_was_read_is_shown_escaped_and_other_cells_are_left():
    nb = notebook(prediction('predict("a", "<b>4</b>")'), prediction("x = 4", "other"), new_code_cell("predict"))
    nb, _ = ReadPredictions()(nb, {})
    shown = nb.cells[0].outputs[0].data
    assert shown["text/plain"] == "Your prediction: '<b>4</b>'"
    assert "<b>" not in shown["text/html"]
    assert not nb.cells[1].outputs and not nb.cells[2].outputs
