"""The record phase: nbgrader's own autograde, which finds the reports that the grade phase made."""
from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .course import Course, GradeCell, quiet
from .desk import Desk, Request, reports_folder
from .reports import score_of
from .store import read_json, write_json

_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*(\w+): (.+)$")


@dataclass
class Row:
    """One submission. Scores in points; seconds are those that its reports took to make."""

    student: str
    score: float = 0
    max_score: float = 0
    statuses: dict[str, str] = field(default_factory=dict)
    seconds: float = 0
    recorded: str = ""
    problem: str = ""


class Recorder:
    """Records submissions of one assignment, each only if something of it changed since it was recorded."""

    def __init__(self, course: Course, assignment: str, cells: Sequence[GradeCell]):
        self._course, self._assignment, self._cells = course, assignment, cells
        self._markers = reports_folder(course.folder, assignment) / "recorded"
        self._in_gradebook = course.auto_scores(assignment)

    def record(self, student: str, requests: Mapping[str, Request], desk: Desk, lost: str = "") -> Row:
        """Let nbgrader record one submission. `lost`: why a report is missing; then nothing is recorded."""
        row = Row(student, max_score=sum(c.points for c in self._cells), problem=lost)
        scores = {}
        for cell in self._cells:
            if stored := desk.known(requests[cell.name]):
                score = score_of(stored.report, cell.points)
                if score is not None:  # left to a person
                    scores[cell.name] = score
                row.statuses[cell.name] = stored.report.status
                row.seconds += stored.seconds
        row.score = sum(scores.values())
        if lost:
            return row
        folder = self._course.path("submitted", student, self._assignment)
        marker = self._markers / f"{student}.json"
        state = {"submission": _fingerprint(folder, requests), "scores": scores}
        if read_json(marker) == state and self._is_recorded(student, scores):
            row.recorded = "before"
            return row
        marker.unlink(missing_ok=True)
        row.problem = _unreadable(folder, {c.notebook for c in self._cells}) or self._autograde(student)
        if not row.problem:
            write_json(marker, state)
            row.recorded = "now"
        return row

    def _is_recorded(self, student: str, scores: dict[str, float]) -> bool:
        folder = self._course.path("autograded", student, self._assignment)
        return (all((folder / f"{c.notebook}.ipynb").is_file() for c in self._cells)
                and scores.items() <= self._in_gradebook.get(student, {}).items())

    def _autograde(self, student: str) -> str:
        """Returns what went wrong, or nothing."""
        if glob.escape(student) != student:
            return "nbgrader cannot take a student's name that has * ? or [ in it"
        with quiet():
            result = self._course.api.autograde(self._assignment, student)
        if result["success"]:
            return ""
        raised = [m for line in result.get("log", "").splitlines() if (m := _RAISED.match(line))]
        return f"{raised[-1][1]}: {raised[-1][2]}" if raised else result["error"].strip().splitlines()[-1]


def _fingerprint(folder: Path, requests: Mapping[str, Request]) -> str:
    """Of all that nbgrader records of a submission: its programs' reports, its notebooks, its time."""
    digest = hashlib.sha256(json.dumps({n: r.fingerprint for n, r in requests.items()}).encode())
    for path in sorted([*folder.glob("*.ipynb"), *folder.glob("timestamp.txt")]):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _unreadable(folder: Path, notebooks: set[str]) -> str:
    """Why nbgrader will not read a submission, in words, if that can be told beforehand."""
    for name in sorted(notebooks):
        try:
            json.loads((folder / f"{name}.ipynb").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return f"{name}.ipynb is missing from the submission"
        except json.JSONDecodeError as e:
            return f"{name}.ipynb is not a notebook: no valid JSON at line {e.lineno}, column {e.colno}"
        except (UnicodeDecodeError, RecursionError) as e:
            return f"{name}.ipynb is not a notebook ({type(e).__name__})"
    return ""
