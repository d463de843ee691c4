"""Scores go from our reports into the gradebook; nothing that a cell printed is read."""
from __future__ import annotations

from nbgrader import utils
from nbgrader.preprocessors import SaveAutoGrades

SCORES = "mha_scores"


class SaveScores(SaveAutoGrades):
    """nbgrader's SaveAutoGrades, with the score of a code grade cell taken from `resources["mha_scores"]`.

    A code grade cell that has no score there is left to be graded by hand: nbgrader itself would give an empty one
    full marks. Written answers are nbgrader's business, unchanged.
    """

    def _add_score(self, cell, resources) -> None:
        if cell.cell_type != "code" or utils.is_solution(cell):
            super()._add_score(cell, resources)
            return
        name = cell.metadata.nbgrader["grade_id"]
        grade = self.gradebook.find_grade(name, self.notebook_id, self.assignment_id, self.student_id)
        grade.auto_score = (resources.get(SCORES) or {}).get(name)
        grade.needs_manual_grade = grade.auto_score is None or grade.manual_score is not None
        self.gradebook.db.commit()
