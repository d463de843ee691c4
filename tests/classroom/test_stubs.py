import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from autograder.classroom.stubs import KeepStubs

ANSWER = {"nbgrader": {"solution": True, "grade": False, "grade_id": "a", "locked": False}}


def released(cell):
    return KeepStubs().preprocess_cell(cell, {"language": "python"}, 0)[0].source


def test_an_answer_cell_stays_as_the_text_wrote_it():
    assert released(new_code_cell('predict("a", None)', metadata=ANSWER)) == 'predict("a", None)'
    assert released(new_markdown_cell("*Your answer:*", metadata=ANSWER)) == "*Your answer:*"


def test_a_marked_region_is_cut():
    source = "x = 1\n### BEGIN SOLUTION\nx = 2\n### END SOLUTION"
    assert "x = 2" not in released(new_code_cell(source, metadata=ANSWER))


def test_a_region_outside_an_answer_cell_is_refused():
    with pytest.raises(RuntimeError, match="non-solution"):
        released(new_code_cell("### BEGIN SOLUTION\nx = 2\n### END SOLUTION"))
