"""Scores go from our reports into the gradebook; nothing that a cell printed is read."""
from __future__ import annotations

from nbgrader import utils
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

SCORES = "mha_scores"


class SaveScores(NbGraderPreprocessor):
    """nbgrader's SaveAutoGrades, with the score of a code grade cell taken from `resources["mha_scores"]`.

    A code grade cell that has no score there is left to be graded by hand: nbgrader itself would give an empty one
    full marks. Written answers are treated as nbgrader treats them. A submission is saved whole or not at all, and
    what a grader gave by hand stays.
    """

    def preprocess(self, nb, resources):
        of = resources["nbgrader"]
        with Gradebook(of["db_url"]) as gradebook:
            found = gradebook.find_submission_notebook(of["notebook"], of["assignment"], of["student"])
            grades = {grade.name: grade for grade in found.grades}
            comments = {comment.name: comment for comment in found.comments}
            for cell in nb.cells:
                if utils.is_grade(cell):
                    self._score(cell, grades[cell.metadata.nbgrader.grade_id], resources[SCORES])
                if utils.is_solution(cell) or utils.is_task(cell):
                    comments[cell.metadata.nbgrader.grade_id].auto_comment = self._comment(cell)
            gradebook.db.commit()
        return nb, resources

    def _score(self, cell, grade, scores) -> None:
        if cell.cell_type == "code" and not utils.is_solution(cell):
            grade.auto_score = scores.get(grade.name)
        else:
            grade.auto_score, _ = utils.determine_grade(cell, self.log)
        grade.needs_manual_grade = grade.auto_score is None or grade.manual_score is not None

    def _comment(self, cell) -> str | None:
        untouched = cell.metadata.nbgrader.get("checksum") == utils.compute_checksum(cell)
        return "No response." if untouched and not utils.is_task(cell) else None
