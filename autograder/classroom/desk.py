"""Where reports come from: the store if the program was judged before, the grader if not."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..exercises import find
from ..report import CaseResult, Report
from .store import ReportStore, Stored
from .submissions import Unreadable, content_key, read_submission
from .work import Job, Outcome, do, grading_limits


class NotJudged(Exception):
    """There is no report, and that is not the learner's fault. Nothing may be recorded."""


@dataclass(frozen=True)
class Request:
    """An exercise of one submission: a job for the grader, or the report that needs none."""

    job: Job | None = None
    settled: Report | None = None

    @property
    def fingerprint(self) -> str:
        """The same as long as the report stays the same."""
        return self.job.key if self.job else self.settled.to_text()


def reports_folder(course: Path | str, assignment: str) -> Path:
    return Path(course) / "reports" / assignment


class Desk:
    """Reports of one assignment. walls: as for Grader; official grading asks for "required"."""

    def __init__(self, course: Path | str, assignment: str, walls: str = "required",
                 judge: Callable[[Job], Outcome] = do):
        self.store = ReportStore(reports_folder(course, assignment))
        self.walls, self._judge, self._limits = walls, judge, grading_limits()

    def request(self, name: str, folder: Path | str) -> Request:
        """What has to be done for the exercise `name` of the submission in `folder`. LookupError for another name."""
        exercise = find(name)
        try:
            files = read_submission(Path(folder), exercise.module)
        except Unreadable as why:
            return Request(settled=Report(name, exercise.session, "error", 0, exercise.points,
                                          [CaseResult("the submitted file", "error", str(why))]))
        key = content_key(exercise.module, name, files, self._limits)
        return Request(Job(name, exercise.module, key, files, self.walls, self._limits))

    def known(self, request: Request) -> Stored | None:
        """The report, if there is one already."""
        if request.settled:
            return Stored(request.settled, 0)
        return self.store.get(request.job.exercise, request.job.key)

    def report(self, name: str, folder: Path | str) -> Report:
        """The report, made now if need be. NotJudged, SandboxError or LookupError when there can be none."""
        request = self.request(name, folder)
        if stored := self.known(request):
            return stored.report
        outcome = self._judge(request.job)
        if outcome.stored is None:
            raise NotJudged(outcome.failure)
        self.store.put(name, request.job.key, outcome.stored)
        return outcome.stored.report
