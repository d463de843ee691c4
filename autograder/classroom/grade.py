"""Grade a class in two phases: make every missing report, in parallel; then let nbgrader record them."""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from traitlets.config import Config

from ..exercises import find
from ..grading import Grader
from . import work
from .class_report import ClassReport
from .course import Course, one_engine
from .desk import Desk, Request, reports_folder
from .record import Recorder, Row
from .summary import Summary

Asked = dict[str, dict[str, Request]]


@dataclass(frozen=True)
class Progress:
    """One finished report: the `done`th of `total` that had to be made. `failure` says why there is none."""

    done: int
    total: int
    students: tuple[str, ...]
    exercise: str
    status: str
    seconds: float
    failure: str = ""


def grade_assignment(course_dir: Path | str, assignment: str, workers: int | None = None, dask: str | None = None,
                     walls: str = "required", on_report: Callable[[Progress], None] = lambda progress: None,
                     on_record: Callable[[Row], None] = lambda row: None) -> Summary:
    """Grade every submission in `submitted/` and record the scores in the gradebook.

    workers: how many programs run at once (default: one for each processor). dask: a scheduler, in place of them.
    walls: "required" refuses to grade without a sandbox; "auto" and "off" trust the class.
    Killed at any moment, the next call makes only what is missing: a report is kept under the content of the program
    and of the exercise, a recorded submission is recorded again only if something of it changed.

    Raises LookupError for a folder without nbgrader_config.py and for an assignment that was not generated,
    SandboxError when there are no walls as asked. What goes wrong with one submission stands in its row.
    """
    start = time.perf_counter()
    course = Course(course_dir, Config({"ReportCells": {"walls": walls}}))
    cells = [c for c in course.grade_cells(assignment) if _is_exercise(c.name)]
    desk = Desk(course.folder, assignment, walls)
    asked = {student: {cell.name: desk.request(cell.name, course.path("submitted", student, assignment))
                       for cell in cells} for student in course.students(assignment)}
    made, failures = _make_reports(desk, asked, workers, dask, on_report)
    rows = []
    with one_engine():
        recorder = Recorder(course, assignment, cells)
        for student, requests in asked.items():
            lost = next((failures[r.job.key] for r in requests.values() if r.job and r.job.key in failures), "")
            rows.append(recorder.record(student, requests, desk, lost))
            on_record(rows[-1])
    known = [[desk.known(r) for r in requests.values()] for requests in asked.values()]
    report = ClassReport.of(assignment, [[s and s.report for s in of_one] for of_one in known])
    report.write(reports_folder(course.folder, assignment))
    return Summary(assignment, [c.name for c in cells], rows, made, time.perf_counter() - start, report)


def _is_exercise(name: str) -> bool:
    try:
        find(name)
    except LookupError:
        return False
    return True


def _make_reports(desk: Desk, asked: Asked, workers: int | None, dask: str | None,
                  on_report) -> tuple[int, dict[str, str]]:
    """Make what is missing. Returns how many reports were made, and the failures by job key."""
    jobs, owners = {}, {}
    for student, requests in asked.items():
        for request in requests.values():
            if request.job and not desk.known(request):
                jobs.setdefault(request.job.key, request.job)
                owners.setdefault(request.job.key, []).append(student)
    failures: dict[str, str] = {}
    if not jobs:
        return 0, failures
    for done, (job, outcome) in enumerate(_run(list(jobs.values()), desk.walls, workers, dask), 1):
        report = outcome.stored and outcome.stored.report
        if report:
            desk.store.put(job.exercise, job.key, outcome.stored)
        else:
            failures[job.key] = outcome.failure
        on_report(Progress(done, len(jobs), tuple(owners[job.key]), job.exercise, report.status if report else "",
                           outcome.stored.seconds if report else 0, outcome.failure))
    return len(jobs) - len(failures), failures


def _run(jobs: list[work.Job], walls: str, workers: int | None, dask: str | None) -> Iterator:
    if dask:
        return work.dask(jobs, dask)
    Grader(walls).close()  # without walls as asked: says so at once
    return work.local(jobs, workers or os.cpu_count() or 1)

