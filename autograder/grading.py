"""The grader: an exercise, a lab folder, a Report. All that a learner's program can do ends in a Report."""
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from . import lab as labs
from .diagnosis import diagnose
from .exercise import Exercise, Trial
from .report import NOT_REACHED, CaseResult, Report
from .sandbox import Limits, Sandbox
from .timing import Timer, enter


class Grader:
    """Warm after the first check. Use as a context manager, or call close().

    walls: "required" refuses to run without a sandbox (SandboxError), "auto" says so and goes on, "off" uses none.
    """

    def __init__(self, walls: str = "auto", limits: Limits | None = None, sandbox: Sandbox | None = None):
        self._sandbox = sandbox or Sandbox(walls, limits)
        self._timer: Timer | None = None

    @property
    def walled(self) -> bool:
        return self._sandbox.walled

    @property
    def walls_description(self) -> str:
        """What stands between learner code and this machine."""
        return self._sandbox.description

    def prepare(self) -> None:
        """Start warming up, without waiting."""
        self._sandbox.prepare()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self._sandbox.close()
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def check(self, exercises: Iterable[Exercise], folder: Path | str) -> list[Report]:
        """One Report an exercise, for the lab in `folder`/mha_lab."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # oracles and replays are tiny: threads would only wait for each other
        try:
            return [self._check(exercise, Path(folder)) for exercise in exercises]
        finally:
            torch.set_num_threads(threads)

    def _check(self, exercise: Exercise, folder: Path) -> Report:
        report = Report(exercise.name, exercise.session, "passed", exercise.points, exercise.points)
        trials: list[Trial] = []
        status, why = "", ""
        lab = None
        try:
            files = labs.read_lab(folder, exercise.module)
            for case in exercise.cases:
                if lab is None:
                    lab = labs.in_worker(self._sandbox, exercise.module, files)
                lab.begin()
                trials.append(exercise.attempt(case, lab))
        except labs.NotStarted as e:
            status, why = "not_started", str(e)
        except labs.Gone as e:
            status, why = e.kind, str(e)
        finally:
            if lab is not None:
                lab.close()
        report = self._conclude(report, exercise, trials, status, why)
        if report.status == "passed" and exercise.timing:
            self._timer = self._timer or Timer("required" if self.walled else "off")
            enter(report, exercise, lambda: self._timer.judge(exercise, files))
        return report

    @staticmethod
    def _conclude(report: Report, exercise: Exercise, trials: list[Trial], status: str, why: str) -> Report:
        report.cases = [CaseResult(t.case.title, "passed" if t.passed else "failed", t.message) for t in trials]
        failing = [t for t in trials if not t.passed]
        if status == "not_started" and trials and any(t.passed for t in trials):
            status = "failed"  # some of it is written
        if status:
            title = exercise.cases[len(trials)].title if len(trials) < len(exercise.cases) else "the program"
            report.cases.append(CaseResult(title, status, why))
            report.cases += [CaseResult(c.title, status, NOT_REACHED) for c in exercise.cases[len(trials) + 1:]]
        if failing and len(trials) == len(exercise.cases) and not any(t.unread for t in trials):
            report.diagnosis = diagnose(exercise, trials)
        if failing:
            named = report.diagnosis and next((t for t in failing if t.message == report.diagnosis.evidence), None)
            report.figure = (named or failing[0]).figure or next((t.figure for t in failing if t.figure), None)
        report.status = status or ("failed" if failing else "passed")
        if report.status != "passed":
            report.score = 0
        return report
