from types import SimpleNamespace

import pytest
from nbformat.v4 import new_output

from autograder.classroom.scores import SCORES, SaveScores

from .helpers import answer_cell, grade_cell


def saved(cell, scores, manual=None):
    """The grade that the gradebook would hold."""
    grade = SimpleNamespace(auto_score="untouched", manual_score=manual, needs_manual_grade=None)
    saver = SaveScores()
    saver.notebook_id = saver.assignment_id = saver.student_id = "x"
    saver.gradebook = SimpleNamespace(find_grade=lambda *a: grade, db=SimpleNamespace(commit=lambda: None))
    saver._add_score(cell, {SCORES: scores})
    return grade


@pytest.mark.parametrize("printed", ["3.0", "nan", "-1", "np.float64(0.5)", "full marks"])
def test_no_output_is_believed(printed):
    cell = grade_cell(points=3)
    cell.outputs = [new_output("execute_result", data={"text/plain": printed}),
                    new_output("stream", name="stderr", text="a warning")]
    assert saved(cell, {"identity_heads": 2.0}).auto_score == 2.0


def test_a_judged_cell_needs_no_hand_unless_one_was_there():
    assert saved(grade_cell(), {"identity_heads": 0.0}).needs_manual_grade is False
    assert saved(grade_cell(), {"identity_heads": 0.0}, manual=1).needs_manual_grade is True


def test_a_cell_without_a_report_is_graded_by_hand_not_given_away():
    grade = saved(grade_cell("my_own_test"), {})
    assert grade.auto_score is None and grade.needs_manual_grade is True


def test_a_written_answer_is_nbgraders_business():
    grade = saved(answer_cell("Because."), {"explain-00": 4.0})
    assert grade.auto_score is None and grade.needs_manual_grade is True
