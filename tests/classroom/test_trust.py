import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell
from nbgrader.nbgraderformat import MetadataValidator

from autograder.classroom.trust import Known, annotate, claimed, place_of, settle, tidy

from .helpers import answer_cell, grade_cell, notebook

KNOWN = {k.name: k for k in (
    Known("split_heads", "code", 'check("split_heads")', dict(grade_cell("split_heads", 3).metadata["nbgrader"])),
    Known("explain-01", "markdown", "*Your answer:*", dict(answer_cell(name="explain-01").metadata["nbgrader"])),
)}


def settled(*cells):
    nb = notebook(*cells)
    tidy(nb)
    return nb, settle(nb, KNOWN)


@pytest.mark.parametrize("lie", [
    {"points": 100}, {"solution": True}, {"grade": False}, {"locked": False}, {"schema_version": 1}, {"task": True},
    {"schema_version": None}, {"points": "many"}])
def test_what_a_cell_says_about_itself_does_not_count(lie):
    cell = grade_cell("split_heads", 3)
    cell.metadata["nbgrader"].update(lie)
    nb, notes = settled(cell)
    assert nb.cells[0].metadata["nbgrader"] == KNOWN["split_heads"].metadata
    MetadataValidator().validate_nb(nb)
    assert not notes


@pytest.mark.parametrize("garbage", [7, "x", [], {"grade_id": 7}, {"grade_id": "unknown", "grade": True}, {}])
def test_garbage_and_strangers_lose_their_metadata(garbage):
    cell = new_code_cell("x")
    cell.metadata["nbgrader"] = garbage
    nb, _ = settled(cell)
    assert "nbgrader" not in nb.cells[0].metadata
    MetadataValidator().validate_nb(nb)


def test_of_two_grade_cells_the_first_counts_and_it_is_said():
    first, second = grade_cell("split_heads", 3), grade_cell("split_heads", 3)
    nb, notes = settled(first, second)
    annotate(nb, notes)
    MetadataValidator().validate_nb(nb)
    assert [claimed(c) for c in nb.cells] == [None, "split_heads", None]
    assert "2 times" in nb.cells[0].source


def test_of_two_answers_the_written_one_counts():
    nb, _ = settled(answer_cell(name="explain-01"), answer_cell("Heads own channels.", "explain-01"))
    assert [claimed(c) for c in nb.cells] == [None, "explain-01"]


def test_a_changed_cell_type_is_put_right():
    cell = new_code_cell("Heads own channels.", metadata=answer_cell(name="explain-01").metadata)
    nb, _ = settled(cell)
    assert nb.cells[0].cell_type == "markdown" and nb.cells[0].source == "Heads own channels."
    assert "outputs" not in nb.cells[0]


def test_ids_become_unique_and_notebook_metadata_goes():
    a, b, c = new_code_cell("a"), new_code_cell("b"), new_markdown_cell("c")
    nb = notebook(a, b, c)
    b, c = nb.cells[1:]
    b.id = a.id
    del c["id"]
    c["metadata"] = None
    nb.metadata["widgets"] = {"state": {}}
    nb.nbformat_minor = 4
    tidy(nb)
    assert len({cell.id for cell in nb.cells}) == 3
    assert nb.metadata == {"language_info": {"name": "python"}} and nb.nbformat_minor == 5


def test_of_a_cells_own_metadata_only_the_claim_stays_and_raw_cells_become_text():
    raw = new_raw_cell("<script>alert(1)</script>", metadata={"tags": ['"><script>'], "raw_mimetype": "text/html"})
    nb = notebook(raw, grade_cell("split_heads", 3))
    nb.cells[1].metadata["tags"] = ["x"]
    tidy(nb)
    assert nb.cells[0].cell_type == "markdown" and nb.cells[0].source == "    <script>alert(1)</script>"
    assert nb.cells[0].metadata == {} and set(nb.cells[1].metadata) == {"nbgrader"}


@pytest.mark.parametrize("present, place", [("abcd", 3), ("d", 0), ("bd", 1), ("ad", 1), ("", 0)])
def test_a_missing_cell_goes_below_the_nearest_one_above_it(present, place):
    cells = [new_markdown_cell(name, id=f"cell-{name}") for name in present]
    order = ["cell-a", "cell-b", "cell-c", "split_heads", "cell-d"]
    assert place_of(notebook(*cells), "split_heads", order) == place


def test_without_the_handed_out_notebook_it_goes_to_the_end():
    nb = notebook(new_markdown_cell("a"), new_markdown_cell("b"))
    assert place_of(nb, "split_heads", []) == 2
