"""What a class can do and which mistakes it met: counts, no names."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..report import STATUSES, Report
from .store import write_json


@dataclass
class ExerciseCount:
    """One exercise: how many submissions ended in each status, and how often each named mistake was met."""

    exercise: str
    statuses: dict[str, int] = field(default_factory=dict)
    mistakes: dict[str, int] = field(default_factory=dict)


@dataclass
class ClassReport:
    """Counts for each exercise of an assignment, over `submissions` submissions."""

    assignment: str
    submissions: int
    exercises: list[ExerciseCount]

    @classmethod
    def of(cls, assignment: str, reports: Iterable[Iterable[Report | None]]) -> ClassReport:
        """From the reports of each submission. A report that could not be made (None) is not counted."""
        statuses: dict[str, Counter] = {}
        mistakes: dict[str, Counter] = {}
        submissions = 0
        for of_one in reports:
            submissions += 1
            for report in of_one:
                if report is None:
                    continue
                statuses.setdefault(report.exercise, Counter())[report.status] += 1
                met = report.diagnosis.ids if report.diagnosis else ()
                mistakes.setdefault(report.exercise, Counter()).update([" or ".join(met)] if met else [])
        return cls(assignment, submissions, [
            ExerciseCount(name, {s: counts[s] for s in STATUSES if counts[s]},
                          dict(sorted(mistakes[name].items(), key=lambda m: (-m[1], m[0]))))
            for name, counts in statuses.items()])

    def to_dict(self) -> dict:
        return asdict(self)

    def to_text(self) -> str:
        """A page for the teacher: what to talk about next time."""
        lines = [f"{self.assignment}: {self.submissions} submissions"]
        for e in self.exercises:
            passed = e.statuses.get("passed", 0)
            other = ", ".join(f"{n} {s.replace('_', ' ')}" for s, n in e.statuses.items() if s != "passed")
            lines.append(f"{e.exercise}: {passed} of {sum(e.statuses.values())} passed{other and f' ({other})'}")
            lines += [f"    {count:>3} × {mistake}" for mistake, count in e.mistakes.items()]
        return "\n".join(lines)

    def write(self, folder: Path) -> None:
        """class_report.json and class_report.txt, in `folder`."""
        write_json(folder / "class_report.json", self.to_dict())
        (folder / "class_report.txt").write_text(self.to_text() + "\n", encoding="utf-8")
