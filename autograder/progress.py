"""What a learner has done, in their own workspace: `.mha/progress.json`. Nothing is written outside a workspace."""
from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from .report import Report


def find_lab(start: Path | str | None = None) -> Path:
    """The nearest folder at or above `start` (the working directory) that holds `mha_lab/`; else LookupError."""
    here = Path(start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "mha_lab").is_dir():
            return folder
    raise LookupError(f"no mha_lab folder in {here} or above it; `mha start DIR` makes a workspace that has one")


class Progress:
    """Best score, last status, hints read, predictions, named mistakes and kept figures of one workspace.

    A lab folder without `.mha` (a released assignment, a teacher's folder) is read, never written.
    """

    def __init__(self, lab: Path | str):
        self._file = Path(lab) / ".mha" / "progress.json"
        self.kept = self._file.parent.is_dir()
        self._data: dict[str, Any] = {"exercises": {}, "predictions": {}, "notes": {}}
        try:
            self._data |= json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except (ValueError, OSError):  # a damaged file is set aside, not overwritten
            self._file.replace(self._file.with_suffix(".damaged.json"))

    def exercise(self, name: str) -> dict[str, Any]:
        """{"status", "best", "checks", "hints", "met": [ids], "beaten": [ids]} of one exercise."""
        empty = {"status": "not_started", "best": 0, "checks": 0, "hints": 0, "met": [], "beaten": []}
        return {**empty, **self._data["exercises"].get(name, {})}

    def record(self, report: Report) -> None:
        """Note a check."""
        entry = self.exercise(report.exercise)
        entry["status"], entry["checks"] = report.status, entry["checks"] + 1
        entry["best"] = max(entry["best"], report.score)
        if report.diagnosis:
            entry["met"] = sorted({*entry["met"], *report.diagnosis.ids})
        if report.status == "passed":
            entry["beaten"] = entry["met"]
        self._store("exercises", report.exercise, entry)

    def next_hint(self, name: str, count: int) -> int:
        """The step (from 1) of the next hint, which is now read. The last one repeats."""
        entry = self.exercise(name)
        entry["hints"] = min(count, entry["hints"] + 1)
        self._store("exercises", name, entry)
        return entry["hints"]

    def predict(self, id_: str, value: Any) -> None:
        """Note a prediction (a plain literal, kept as text)."""
        self._store("predictions", id_, repr(value))

    def prediction(self, id_: str) -> str | None:
        return self._data["predictions"].get(id_)

    @property
    def predictions(self) -> dict[str, str]:
        """All predictions, as text, by id."""
        return dict(self._data["predictions"])

    def note(self, name: str, value: dict[str, str]) -> None:
        """Keep figures or a record, as text by name, for the final report."""
        self._store("notes", name, value)

    @property
    def notes(self) -> dict[str, dict[str, str]]:
        return dict(self._data["notes"])

    def _store(self, part: str, key: str, value: Any) -> None:
        self._data[part][key] = value
        if not self.kept:
            return
        handle, name = tempfile.mkstemp(dir=self._file.parent, suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            json.dump(self._data, f, indent=1, sort_keys=True)
        os.replace(name, self._file)
