"""Reports on disk: one small file for each program and exercise, written whole or not at all."""
from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..report import STATUSES, Report

FORMAT = 1


@dataclass(frozen=True)
class Stored:
    """A report, and the seconds that it took to make."""

    report: Report
    seconds: float


class ReportStore:
    """`folder`/<exercise>-<key>.json. A damaged file counts as none and is written again."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def path(self, exercise: str, key: str) -> Path:
        return self.folder / f"{exercise}-{key}.json"

    def get(self, exercise: str, key: str) -> Stored | None:
        try:
            data = json.loads(self.path(exercise, key).read_text(encoding="utf-8"))
            if data["format"] != FORMAT or data["key"] != key:
                return None
            stored = Stored(Report.from_dict(data["report"]), float(data["seconds"]))
            return stored if _sound(stored.report, exercise) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, exercise: str, key: str, stored: Stored) -> None:
        write_json(self.path(exercise, key), {"format": FORMAT, "key": key, "seconds": round(stored.seconds, 4),
                                              "report": stored.report.to_dict()})


def _sound(report: Report, exercise: str) -> bool:
    return (report.exercise == exercise and report.status in STATUSES and 0 <= report.score <= report.points
            and report.points > 0)


def write_json(path: Path, data: Any) -> None:
    """Replace `path` in one step: whoever is killed leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            json.dump(data, f, indent=1)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """The content of a file made by `write_json`, or None."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
