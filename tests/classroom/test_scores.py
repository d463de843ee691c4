from types import SimpleNamespace

import pytest
from nbformat.v4 import new_output
from nbgrader.utils import compute_checksum

from autograder.classroom import scores as module
from autograder.classroom.scores import SCORES, SaveScores

from .helpers import answer_cell, grade_cell, notebook


class FakeGradebook:
    """Holds the entries of one notebook, and says whether they were saved."""

    def __init__(self, *cells, manual=None):
        names = [c.metadata["nbgrader"]["grade_id"] for c in cells]
        self.grades = [SimpleNamespace(name=n, auto_score="untouched", manual_score=manual, needs_manual_grade=None)
                       for n in names]
        self.comments = [SimpleNamespace(name=n, auto_comment="untouched") for n in names]
        self.commits = 0
        self.db = self

    def __call__(self, db_url):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def find_submission_notebook(self, *_):
        return self

    def commit(self):
        self.commits += 1


@pytest.fixture
def save(monkeypatch):
    """save(cells, scores) gives the gradebook after it."""
    def save(*cells, scores=(), manual=None):
        gradebook = FakeGradebook(*cells, manual=manual)
        monkeypatch.setattr(module, "Gradebook", gradebook)
        of = {"db_url": "", "notebook": "", "assignment": "", "student": ""}
        SaveScores()(notebook(*cells), {"nbgrader": of, SCORES: dict(scores)})
        return gradebook
    return save


@pytest.mark.parametrize("printed", ["3.0", "nan", "-1", "np.float64(0.5)", "full marks"])
def test_no_output_is_believed(save, printed):
    cell = grade_cell(points=3)
    cell.outputs = [new_output("execute_result", data={"text/plain": printed}),
                    new_output("stream", name="stderr", text="a warning")]
    assert save(cell, scores={"identity_heads": 2.0}).grades[0].auto_score == 2.0


def test_a_judged_cell_needs_no_hand_unless_one_was_there(save):
    scores = {"identity_heads": 0.0}
    assert save(grade_cell(), scores=scores).grades[0].needs_manual_grade is False
    touched = save(grade_cell(), scores=scores, manual=1).grades[0]
    assert touched.needs_manual_grade is True and touched.manual_score == 1


def test_a_cell_without_a_report_is_graded_by_hand_not_given_away(save):
    grade = save(grade_cell("my_own_test")).grades[0]
    assert grade.auto_score is None and grade.needs_manual_grade is True


def test_a_written_answer_waits_for_a_hand_whatever_a_report_says(save):
    gradebook = save(answer_cell("Because."), scores={"explain-00": 4.0})
    assert gradebook.grades[0].auto_score is None and gradebook.grades[0].needs_manual_grade is True
    assert gradebook.comments[0].auto_comment is None


def test_an_untouched_answer_is_no_response_and_scores_nothing(save):
    cell = answer_cell()
    cell.metadata["nbgrader"]["checksum"] = compute_checksum(cell)
    gradebook = save(cell)
    assert gradebook.grades[0].auto_score == 0 and gradebook.grades[0].needs_manual_grade is False
    assert gradebook.comments[0].auto_comment == "No response."


def test_a_submission_is_saved_at_once_or_not_at_all(save, monkeypatch):
    assert save(grade_cell(), answer_cell(), scores={"identity_heads": 1.0}).commits == 1
    made = []

    class Lost(FakeGradebook):
        def __init__(self, *cells, manual=None):
            super().__init__(*cells[:1])
            made.append(self)
    monkeypatch.setitem(globals(), "FakeGradebook", Lost)
    with pytest.raises(KeyError):
        save(grade_cell(), answer_cell(), scores={"identity_heads": 1.0})
    assert made[0].commits == 0
