"""What a learner takes away: one page of sessions, mistakes, predictions and figures, in one file without scripts."""
from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from .progress import Progress
from .report import MARKS, WORDS

if TYPE_CHECKING:
    from .exercises import Session

_STYLE = ("body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;"
          "color-scheme:light dark}table{border-collapse:collapse;margin:1em 0}caption{text-align:left;font-weight:600}"
          "th,td{border:1px solid rgba(127,127,127,.45);padding:.25em .6em;text-align:left;vertical-align:top}")


def page(kept: Progress, sessions: Iterable[Session]) -> str:
    """The report of one workspace, as a whole HTML document. All text in it is escaped."""
    sessions = tuple(sessions)
    every = [e for s in sessions for e in s.exercises]
    best = sum(kept.exercise(e.name)["best"] for e in every)
    parts = [
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8"><title>Multi-head attention: my report</title>',
        f"<style>{_STYLE}</style></head><body>", "<h1>Multi-head attention: my report</h1>",
        f"<p>{best:g} of {sum(e.points for e in every)} points. Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
        f"{escape(_environment())}.</p>",
        _table("Sessions", ("session", "exercise", "last check", "points", "checks", "hints"),
               _exercises(kept, sessions)),
        _table("Named mistakes", ("mistake", "met in", "beaten"), _mistakes(kept, every)),
        _table("Predictions", ("prediction", "what I said"), sorted(kept.predictions.items())),
    ]
    parts += [_table(name, ("name", "value"), values.items()) for name, values in sorted(kept.notes.items())]
    return "\n".join([*parts, "</body></html>", ""])


def _exercises(kept: Progress, sessions: Iterable[Session]) -> Iterator[tuple[str, ...]]:
    for session in sessions:
        for exercise in session.exercises:
            entry = kept.exercise(exercise.name)
            yield (f"{session.number} {session.title}", exercise.name, f"{MARKS[entry['status']]} "
                   f"{WORDS[entry['status']]}", f"{entry['best']:g} of {exercise.points}", str(entry["checks"]),
                   str(entry["hints"]))


def _mistakes(kept: Progress, exercises: Iterable) -> Iterator[tuple[str, ...]]:
    for exercise in exercises:
        entry = kept.exercise(exercise.name)
        for id_ in entry["met"]:
            yield id_, exercise.name, "yes" if id_ in entry["beaten"] else "not yet"


def _table(title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    rows = list(rows)
    if not rows:
        return f"<p><b>{escape(title)}</b>: none yet.</p>"
    cells = "".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    heads = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    return f"<table><caption>{escape(title)}</caption><tr>{heads}</tr>{cells}</table>"


def _environment() -> str:
    try:
        torch = f"PyTorch {version('torch')}"
    except PackageNotFoundError:
        torch = "no PyTorch"
    return f"Python {platform.python_version()}, {torch}"
