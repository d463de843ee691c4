"""What people call in JupyterLab: check, hint, solution, progress, predict, keep and export_report.

Each shows a panel and returns None.
"""
from __future__ import annotations

import ast
import atexit
import html
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from IPython.display import HTML, display

from mha_lab.instruments import ProgressMap, show

from .exercises import SESSIONS, select
from .exercises import find as _find
from .final_report import page as _page
from .grading import Grader
from .progress import Progress, find_lab
from .report import MARKS, WORDS, Report
from .sandbox import Limits, SandboxError

__all__ = ["check", "hint", "solution", "progress", "predict", "keep", "export_report"]

_said: set[str] = set()
_BOX = ("border:1px solid rgba(127,127,127,.45);border-radius:6px;padding:.6em .9em;margin:.4em 0;"
        "font-family:system-ui,sans-serif;font-size:14px;line-height:1.45;max-width:62em")


@cache
def _grader() -> Grader:
    limits = Limits(wall=float(os.environ.get("MHA_WALL_SECONDS", Limits.wall)))
    grader = Grader("auto", limits)
    atexit.register(grader.close)
    return grader


def check(*names: str) -> None:
    """Check exercises (or whole sessions) as they stand in `mha_lab/` on disk, and show one panel for each."""
    try:
        lab = find_lab()
        exercises = [e for name in names for e in select(name)]
        if not exercises:
            raise LookupError('name an exercise: check("split_heads")')
        reports = _grader().check(exercises, lab)
    except (LookupError, SandboxError) as e:
        return _say(str(e))
    kept = Progress(lab)
    for exercise, report in zip(exercises, reports, strict=True):
        kept.record(report)
        display(Panel(report, _hint_line(exercise, kept)))
        if (report.timing or {}).get("traffic"):
            from .charts import kernel_chart
            display(kernel_chart(report.timing, exercise.name))
        _look_at_layout(report)
    if os.environ.get("NBGRADER_EXECUTION") == "validate" and any(r.status != "passed" for r in reports):
        raise AssertionError("; ".join(r.headline for r in reports if r.status != "passed"))
    if not _grader().walled and "walls" not in _said:
        _said.add("walls")
        _say(f"Note: {_grader().walls_description}.")


def _look_at_layout(report: Report) -> None:
    """Opens the stride explorer on a failing case whose evidence is how the source was read."""
    reading = report.figure and report.figure.reading
    if report.status != "failed" or not reading:
        return
    from mha_lab.instruments import StrideExplorer

    sides = []
    for offset, *strides in (reading.expected, reading.holds):
        shape, steps = (", ".join(map(str, numbers)) for numbers in (reading.shape, strides))
        sides.append(f"as_strided(({shape}), ({steps}), {offset})")
    try:
        explorer = StrideExplorer(", ".join(map(str, reading.axes.values())), {}, *sides,
                                  names=[name[0] for name in reading.axes],
                                  notes=["Right: how the contract reads the source. Wrong: how your program read it."])
    except ValueError:  # a source too big to draw; the panel above has said what was found
        return
    show(explorer, colour=list(reading.axes).index("token") if "token" in reading.axes else -1)


class Panel:
    """A Report as JupyterLab and a text console show it."""

    def __init__(self, report: Report, below: str = ""):
        self._report, self._below = report, below

    def _repr_html_(self) -> str:
        return self._report.to_html() + (self._below if self._report.status != "passed" else "")

    def __repr__(self) -> str:
        return self._report.to_text()


def _hint_line(exercise, kept: Progress) -> str:
    step = min(kept.exercise(exercise.name)["hints"], len(exercise.hints) - 1)
    return (f'<details class="mha-hint" style="{_BOX}"><summary>Hint {step + 1} of {len(exercise.hints)}</summary>'
            f"{html.escape(exercise.hints[step])}</details>")


def hint(name: str) -> None:
    """Show the next of an exercise's three hints."""
    try:
        exercise, kept = _find(name), Progress(find_lab())
    except LookupError as e:
        return _say(str(e))
    step = kept.next_hint(name, len(exercise.hints))
    _say(exercise.hints[step - 1], f"Hint {step} of {len(exercise.hints)}, {name}")


def solution(name: str) -> None:
    """Show the course's own answer. Off in a released classroom assignment."""
    from .publish import solution_source
    try:
        exercise, kept = _find(name), Progress(find_lab())
    except LookupError as e:
        return _say(str(e))
    if not kept.kept:
        return _say("Solutions are shown in a self-study workspace (`mha start DIR` makes one), "
                    "not in an assignment that is graded.")
    source = html.escape(solution_source(exercise))
    display(HTML(f'<details class="mha-solution" style="{_BOX}"><summary>The course\'s answer to <code>{name}</code>'
                 f"</summary><pre>{source}</pre></details>"))


def progress() -> None:
    """Show every session: exercises, points, and the named mistakes that were met and beaten."""
    try:
        kept = Progress(find_lab())
    except LookupError as e:
        return _say(str(e))
    show(ProgressMap([{"number": session.number, "title": session.title, "exercises": [
        {"name": e.name, "points": e.points, "known": len(e.wrong_ids)}
        | {key: entry[key] for key in ("best", "status", "met", "beaten")}
        | {"mark": MARKS[entry["status"]], "word": WORDS[entry["status"]]}
        for e in session.exercises for entry in [kept.exercise(e.name)]]} for session in SESSIONS]))


def predict(id: str, value: Any) -> None:
    """Commit to a prediction before you look: a plain literal. `None` means that you have not yet."""
    try:
        literal = ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        return _say("A prediction is a plain value: a number, a text, True or False, or a tuple or list of these.")
    if literal is None:
        return _say("Write your prediction in place of None, and run the cell again. Then read on.")
    try:
        kept = Progress(find_lab())
    except LookupError as e:
        return _say(str(e))
    before = kept.prediction(id)
    kept.predict(id, literal)
    changed = f" (before: {before})" if before not in (None, repr(literal)) else ""
    _say(f"Noted: {literal!r}{changed}. Now look.")


def keep(name: str, values: Mapping[str, Any]) -> None:
    """Keep figures that you computed, or a record, for your report: plain values by name."""
    try:
        kept = Progress(find_lab())
    except LookupError as e:
        return _say(str(e))
    kept.note(name, {str(k): f"{v:.6g}" if isinstance(v, float) else str(v) for k, v in values.items()})
    _say(f"Kept for your report: {name}, {len(values)} value{'s' if len(values) != 1 else ''}.")


def export_report(name: str = "my-report.html") -> None:
    """Write what you did into one self-contained page beside your `mha_lab/`.

    Sessions and points, named mistakes met and beaten, predictions, and what `keep` kept.
    """
    try:
        lab = find_lab()
    except LookupError as e:
        return _say(str(e))
    kept = Progress(lab)
    if not kept.kept:
        return _say("A report is written in a self-study workspace (`mha start DIR` makes one): an assignment keeps no "
                    "record of its own.")
    if os.path.basename(name) != name or not name.endswith(".html"):
        return _say(f"A report is one file beside mha_lab/, such as my-report.html, not {name!r}.")
    (lab / name).write_text(_page(kept, SESSIONS), encoding="utf-8")
    _say(f"Written: {lab / name}. It needs no network and no course to be read.")


def _say(text: str, title: str = "") -> None:
    head = f"<b>{html.escape(title)}</b><br>" if title else ""
    display(_Message(f'<div class="mha-message" style="{_BOX}">{head}{html.escape(text)}</div>',
                     f"{title}: {text}" if title else text))


class _Message:
    def __init__(self, markup: str, plain: str):
        self._markup, self._plain = markup, plain

    def _repr_html_(self) -> str:
        return self._markup

    def __repr__(self) -> str:
        return self._plain


if "JPY_PARENT_PID" in os.environ:  # inside a kernel: start the worker while the learner reads
    _grader().prepare()
