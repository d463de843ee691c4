"""Our grading in place of the kernel: a grade cell is judged from the submitted module, and says what was found."""
from __future__ import annotations

import html

from nbformat.v4 import new_output
from nbgrader import utils
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Enum, default

from ..exercises import find
from ..report import Report
from ..sandbox import SandboxError
from .course import coursedir_of
from .desk import Desk
from .scores import SCORES
from .work import do, wanted_walls

BY_HAND = ("This cell names no exercise of the course, so no program judged it: it is graded by hand. "
           "Nothing in the notebook was run.")


OPEN = "This could not be decided on the grading machine, so nothing is scored yet: it is graded by hand."


class ReportCells(NbGraderPreprocessor):
    """Writes each exercise's report and score under its grade cell. No cell is run and no output is believed.

    The score is also left in the form that nbgrader reads by itself: one execute_result that is a number.
    """

    walls = Enum(("required", "auto", "off"), help=(
        "What to do without a sandbox on this machine: refuse to grade (required), grade in a plain subprocess (auto), "
        "or never use one (off). The environment variable MHA_WALLS sets the default.")).tag(config=True)

    judge = staticmethod(do)

    @default("walls")
    def _walls_default(self):
        return wanted_walls()

    def preprocess(self, nb, resources):
        of = resources["nbgrader"]
        coursedir = coursedir_of(self)
        self._desk = Desk(coursedir.root, of["assignment"], self.walls, self.judge)
        self._folder = coursedir.format_path(coursedir.submitted_directory, of["student"], of["assignment"])
        resources[SCORES] = {}
        return super().preprocess(nb, resources)

    def preprocess_cell(self, cell, resources, cell_index):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if utils.is_grade(cell) and not utils.is_solution(cell):
                self._judge(cell, resources)
        return cell, resources

    def _judge(self, cell, resources) -> None:
        name, points = cell.metadata.nbgrader["grade_id"], float(cell.metadata.nbgrader["points"])
        try:
            find(name)
        except LookupError:
            cell.outputs = [new_output("display_data", data={"text/plain": BY_HAND,
                                                             "text/html": f"<div>{html.escape(BY_HAND)}</div>"})]
            return
        try:
            report = self._desk.report(name, self._folder)
        except SandboxError as e:
            raise SandboxError(f"{e} To grade without walls all the same: MHA_WALLS=off in the environment, or "
                               'c.ReportCells.walls = "off" in nbgrader_config.py.') from None
        score = score_of(report, points)
        cell.outputs = [
            new_output("display_data", data={"text/plain": report.to_text(), "text/html": report.to_html()})]
        if score is None:
            cell.outputs.append(new_output("display_data", data={"text/plain": OPEN,
                                                                 "text/html": f"<div>{html.escape(OPEN)}</div>"}))
            return
        resources[SCORES][name] = score
        said = f"Score: {score:g} of {points:g}"
        cell.outputs.append(
            new_output("execute_result", data={"text/plain": repr(score), "text/html": f"<div>{said}</div>"}))


def score_of(report: Report, points: float) -> float | None:
    """The report's share of a cell's points; None where the machine could not decide: then a person does.

    ValueError unless it lies between none and all of them.
    """
    if report.status == "not_measured":
        return None
    score = float(report.score) / report.points * points
    if not 0 <= score <= points:
        raise ValueError(f"a score of {score} of {points} points for {report.exercise}")
    return score
