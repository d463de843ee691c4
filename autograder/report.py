"""One Report: what a check found. Rendered as text, HTML and JSON; nothing else in the house formats results."""
from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

STATUSES = ("passed", "failed", "error", "timeout", "not_started", "not_measured")
MARKS = {"passed": "✓", "failed": "✗", "error": "!", "timeout": "⏱", "not_started": "○", "not_measured": "–"}
WORDS = {"passed": "passed", "failed": "not yet", "error": "could not run", "timeout": "ran out of time",
         "not_started": "not started", "not_measured": "not measured"}
NOT_REACHED = "not reached"
COLOURS = {"passed": "#1a7f4b", "failed": "#b3401e", "error": "#b3401e", "timeout": "#b3401e",
           "not_started": "#5b6470", "not_measured": "#5b6470"}


@dataclass
class Reading:
    """Two ways to read one coded source.

    axes: the source's extents by name. holds, expected: the offset and then the strides of `shape`, in elements.
    """

    axes: dict[str, int]
    shape: list[int]
    holds: list[int]
    expected: list[int]


@dataclass
class Figure:
    """The two-dimensional slice around a wrong cell: what the program holds, and what the contract asks for.

    `reading` is there when both are plain strided readings of one source: the layout is then the evidence.
    """

    what: str
    rows: str
    columns: str
    fixed: str
    holds: list[list[str]]
    expected: list[list[str]]
    at: tuple[int, int]
    reading: Reading | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Figure:
        reading = data.get("reading")
        return cls(**{**data, "at": tuple(data["at"]), "reading": reading and Reading(**reading)})

    @classmethod
    def around(cls, got, want, at: Sequence[int], what: str, label: Callable[[float], str],
               names: Sequence[str] = (), most: int = 6) -> Figure | None:
        """The last two axes through cell `at`, at most `most` cells each way."""
        if got.dim() == 0:
            return None
        names = list(names) or [f"axis {i}" for i in range(got.dim())]
        lead, (row, col) = tuple(at[:-2]), (at[-2] if got.dim() > 1 else 0, at[-1])
        mine, theirs = (t[lead] if t.dim() > 1 else t[None] for t in (got, want))
        top, left = max(0, row - most + 1), max(0, col - most + 1)

        def cells(t):
            return [[label(v) for v in line] for line in t[top:top + most, left:left + most].double().tolist()]

        fixed = ", ".join(f"{n} {i}" for n, i in zip(names, lead, strict=False))
        return cls(what, names[-2] if got.dim() > 1 else "", names[-1], fixed, cells(mine), cells(theirs),
                   (row - top, col - left))


@dataclass
class CaseResult:
    name: str
    status: str
    message: str = ""


@dataclass
class Diagnosis:
    """A named cause: ids of the course map, a title, the sentence for the learner, and the cell that shows it."""

    ids: list[str]
    title: str
    explanation: str
    evidence: str


@dataclass
class Report:
    exercise: str
    session: str
    status: str
    score: float
    points: int
    cases: list[CaseResult] = field(default_factory=list)
    diagnosis: Diagnosis | None = None
    timing: dict | None = None
    figure: Figure | None = None
    note: str = ""

    def public(self) -> dict[str, Any]:
        """The object that `mha check --json` prints for one exercise."""
        whole = asdict(self)
        return {k: whole[k] for k in ("exercise", "session", "status", "score", "points", "cases", "diagnosis",
                                      "timing")}

    def to_dict(self) -> dict[str, Any]:
        """Everything, for storage."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        data = dict(data)
        data["cases"] = [CaseResult(**c) for c in data["cases"]]
        data["diagnosis"] = data["diagnosis"] and Diagnosis(**data["diagnosis"])
        figure = data.get("figure")
        data["figure"] = figure and Figure.from_dict(figure)
        return cls(**data)

    @property
    def headline(self) -> str:
        return f"{self.exercise}: {WORDS[self.status]} ({self.score:g} of {self.points})"

    def to_text(self) -> str:
        """Plain text for a terminal or a log."""
        lines = [f"{MARKS[self.status]} {self.headline}"]
        if self.diagnosis:
            lines += [f"    This is: {', '.join(self.diagnosis.ids)}", f"        {self.diagnosis.explanation}",
                      f"        Seen at: {self.diagnosis.evidence}"]
        lines += [f"    {MARKS[c.status]} {c.name}" + (f"\n        {c.message}" if self._adds(c) else "")
                  for c in self.cases if c.status != "passed" and c.message != NOT_REACHED]
        if self.timing:
            lines.append(f"    {time_line(self.timing)}")
        if self.note:
            lines.append(f"    {self.note}")
        return "\n".join(lines)

    def _adds(self, case: CaseResult) -> bool:
        """Whether a case's message says more than the evidence that is shown already."""
        return bool(case.message) and not (self.diagnosis and case.message == self.diagnosis.evidence)

    def to_html(self) -> str:
        """One self-contained block; its colours hold on light and dark pages."""
        return _html(self)


def time_line(timing: Mapping[str, Any]) -> str:
    """What the clock found, in one line (see timing.Verdict and triton_lab.summary)."""
    if "line" in timing:
        return timing["line"]
    if timing.get("ratio") is None:
        return f"time: not measured ({timing.get('reason', '')})"
    low, high = timing["band"]
    return (f"time: {timing['ratio']:.2f} times the reference, limit {timing['limit']:g}; the reference against "
            f"itself: {low:.2f} to {high:.2f}; {timing['verdict']}"
            + (f", because {timing['reason']}" if timing["reason"] else ""))


_STYLE = ("border:1px solid rgba(127,127,127,.45);border-left:6px solid {colour};border-radius:6px;"
          "padding:.6em .9em;margin:.4em 0;font-family:system-ui,sans-serif;font-size:14px;line-height:1.45;"
          "max-width:62em;overflow-x:auto")


def _html(report: Report) -> str:
    escape = html.escape
    parts = [f'<div class="mha-report" data-status="{report.status}" style="'
             f'{_STYLE.format(colour=COLOURS[report.status])}">',
             f'<div style="font-weight:600">{MARKS[report.status]} {escape(report.headline)}</div>']
    if report.diagnosis:
        parts.append(
            '<div class="mha-diagnosis" style="margin:.5em 0"><div><b>This is: </b>'
            + ", ".join(f"<code>{escape(i)}</code>" for i in report.diagnosis.ids)
            + f'</div><div>{_code(report.diagnosis.explanation)}</div>'
            + f'<div style="margin-top:.3em"><b>Seen at: </b>{escape(report.diagnosis.evidence)}</div></div>')
    if report.figure:
        parts.append(_figure_html(report.figure))
    if report.cases:
        rows = "".join(
            f'<li data-case="{c.status}" style="list-style:none"><span aria-label="{WORDS[c.status]}">'
            f'{MARKS[c.status]}</span> {escape(c.name)}'
            + (f'<div style="opacity:.85;margin-left:1.3em">{escape(c.message)}</div>' if report._adds(c) else "")
            + "</li>" for c in report.cases if c.message != NOT_REACHED)
        parts.append(f'<ul style="margin:.4em 0;padding-left:.2em">{rows}</ul>')
    if report.timing:
        parts.append(f'<div class="mha-time">{escape(time_line(report.timing))}</div>')
    if report.note:
        parts.append(f'<div class="mha-note">{_code(report.note)}</div>')
    return "".join(parts) + "</div>"


def _figure_html(figure: Figure) -> str:
    where = f" at {figure.fixed}" if figure.fixed else ""
    tables = (_table("your program holds", figure.holds, figure, "✗", "rgba(210,80,40,.38)")
              + _table("the contract asks for", figure.expected, figure, "✓", "rgba(30,150,90,.38)"))
    return (f'<figure class="mha-figure" style="margin:.5em 0"><figcaption style="opacity:.85">'
            f'{html.escape(figure.what)}{html.escape(where)}: rows are {html.escape(figure.rows or "the values")}, '
            f'columns are {html.escape(figure.columns)}</figcaption>'
            f'<div style="display:flex;gap:1.5em;flex-wrap:wrap">{tables}</div></figure>')


def _table(title, cells, figure, mark, colour):
    rows = ""
    for i, line in enumerate(cells):
        columns = ""
        for j, text in enumerate(line):
            here = (i, j) == figure.at
            differs = figure.holds[i][j] != figure.expected[i][j]
            style = (f"background:{colour};outline:2px solid currentColor;font-weight:700" if here
                     else f"background:{colour.replace('.38', '.14')}" if differs else "")
            columns += (f'<td{" class=mha-cell" if here else ""} style="border:1px solid rgba(127,127,127,.35);'
                        f'padding:1px 6px;text-align:left;{style}">{mark + " " if here else ""}'
                        f'{html.escape(text)}</td>')
        rows += f"<tr>{columns}</tr>"
    return (f'<table style="border-collapse:collapse;font-family:ui-monospace,monospace;font-size:12px">'
            f'<caption style="text-align:left;font-family:system-ui,sans-serif">{title}</caption>{rows}</table>')


def _code(text: str) -> str:
    pieces = html.escape(text).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(pieces))
