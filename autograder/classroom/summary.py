"""What a run of `mha grade` shows."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from ..report import MARKS
from .class_report import ClassReport
from .record import Row

HEADERS = ("student", "score", "of")


@dataclass
class Summary:
    """One row a submission. `made` reports are new, the others were there. Seconds of the whole run."""

    assignment: str
    exercises: Sequence[str]
    rows: list[Row]
    made: int
    seconds: float
    report: ClassReport

    @property
    def problems(self) -> list[Row]:
        """The submissions that were not recorded."""
        return [r for r in self.rows if r.problem]

    def table_rows(self) -> list[tuple[str, ...]]:
        """student, score, of, one mark an exercise, seconds, what happened."""
        return [(r.student, f"{r.score:g}", f"{r.max_score:g}",
                 *(MARKS.get(r.statuses.get(e), "") for e in self.exercises), f"{r.seconds:.2f}",
                 r.problem or ("recorded" if r.recorded == "now" else "unchanged")) for r in self.rows]

    def __rich__(self) -> Table:
        recorded = sum(r.recorded == "now" for r in self.rows)
        table = Table(*HEADERS, *self.exercises, "seconds", "", title=self.assignment, caption=(
            f"{len(self.rows)} submissions, {recorded} recorded now, {self.made} new reports, {self.seconds:.1f} s"))
        for row, cells in zip(self.rows, self.table_rows(), strict=True):
            table.add_row(*map(escape, cells), style="red" if row.problem else None)
        return table
