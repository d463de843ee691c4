"""Whether the course's own pages may be published: links, figures, alternative texts, provenance, evidence labels.

`mha build` refuses a single text that is not in order (texts.py); this looks at all pages together. It needs no
network: a link that leaves the course is only held to its form.
"""
from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .texts import LABELS

CLASSES = ("paper-extract", "paper-derivative", "reconstruction", "secondary-context")
PROVENANCE = "provenance.json"
FIGURES = (".svg", ".png", ".jpg", ".gif", ".webp")
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)")
_LABEL = re.compile(r"\*\*\[([^\]\n]+)\]\*\*")
_FENCE = re.compile(r"^(```+|~~~+).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_TAUGHT = re.compile(r"^## \d+ · .*$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that stands against publishing. `code` is link, figure, alt, provenance, permission or label."""

    page: str
    line: int
    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.code}: {self.text}"


def problems(root: Path | str, drawn: Iterable[str] = ()) -> list[Problem]:
    """What is wrong with the pages of a course, in order.

    root: the folder that holds `course/`. drawn: names of the figures that `mha build` draws, which are
    reconstructions by construction; any other file in `course/figures/` needs a record in provenance.json:
    {"name.png": {"digest", "source_class", "upstream", "derivative", "permission", "made"}}.
    """
    root = Path(root)
    found, shown = [], set()
    pages = sorted([*(root / "course").glob("*.md"), *root.glob("*.md")])
    for page in pages:
        text = page.read_text(encoding="utf-8")
        prose = _blanked(text)
        found += _links(root, page, prose, shown)
        found += _labels(root, page, prose)
    found += _figures(root, set(drawn), shown)
    return sorted(found)


def _blanked(text: str) -> str:
    """The text with code turned into blanks: what is left is prose, on the same lines."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match[0])
    return _CODE.sub(blank, _FENCE.sub(blank, text))


def _links(root: Path, page: Path, prose: str, shown: set[str]) -> Iterator[Problem]:
    name = page.relative_to(root).as_posix()
    for match in _LINK.finditer(prose):
        line = prose.count("\n", 0, match.start()) + 1
        target = urlsplit(match["target"])
        if match["image"]:
            words = " ".join(match["text"].split())
            if not words:
                yield Problem(name, line, "alt", f"{match['target']} has no alternative text")
            elif words.lower() in (Path(target.path).name.lower(), Path(target.path).stem.lower(), "image", "figure"):
                yield Problem(name, line, "alt", f"{match['target']}: {words!r} does not say what the figure says")
        if target.scheme or target.netloc:
            if target.scheme not in ("https", "mailto"):
                yield Problem(name, line, "link", f"{match['target']} is not an https address")
            continue
        where = page if not target.path else (page.parent / unquote(target.path)).resolve()
        if not where.is_relative_to(root.resolve()) and target.path:
            yield Problem(name, line, "link", f"{match['target']} leaves the course")
        elif not where.exists():
            yield Problem(name, line, "link", f"{match['target']} is not there")
        elif target.fragment and where.suffix == ".md" and target.fragment not in _anchors(where):
            yield Problem(name, line, "link", f"{match['target']}: no such heading")
        elif match["image"]:
            shown.add(where.name)


def _anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", h.lower())) for h in headings}


def _labels(root: Path, page: Path, prose: str) -> Iterator[Problem]:
    """Every label is one of the seven, and every numbered section of a session has one."""
    name = page.relative_to(root).as_posix()
    for match in _LABEL.finditer(prose):
        for label in match[1].split("; "):
            if label not in LABELS:
                line = prose.count("\n", 0, match.start()) + 1
                yield Problem(name, line, "label", f"[{label}] is no evidence label")
    starts = [*_TAUGHT.finditer(prose)]
    for start in starts:
        end = re.compile(r"^## ", re.MULTILINE).search(prose, start.end())
        section = prose[start.end():end.start() if end else None]
        if not _LABEL.search(section):
            line = prose.count("\n", 0, start.start()) + 1
            yield Problem(name, line, "label", f"{start[0][3:]!r} teaches without a label")


def _figures(root: Path, drawn: set[str], shown: set[str]) -> Iterator[Problem]:
    folder = root / "course" / "figures"
    files = {path.name: path for path in folder.glob("*") if path.suffix in FIGURES} if folder.is_dir() else {}
    try:
        records = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        records = {}
    place = f"course/figures/{PROVENANCE}"
    for name in sorted(drawn - files.keys()):
        yield Problem(f"course/figures/{name}", 1, "figure", "is drawn by mha build, and not there")
    for name, path in sorted(files.items()):
        if name not in shown:
            yield Problem(f"course/figures/{name}", 1, "figure", "no page shows it")
        if name not in drawn and name not in records:
            yield Problem(f"course/figures/{name}", 1, "provenance", f"is not drawn by mha build and has no record in "
                                                                     f"{PROVENANCE}")
        if name in records:
            yield from (Problem(place, 1, code, f"{name}: {text}") for code, text in _record(records[name], path))
    for name in sorted(records.keys() - files.keys()):
        yield Problem(place, 1, "provenance", f"{name}: the figure is not there")


def _record(record: dict, path: Path) -> Iterator[tuple[str, str]]:
    kind = record.get("source_class")
    if hashlib.sha256(path.read_bytes()).hexdigest() != record.get("digest"):
        yield "provenance", "the file is not the recorded one"
    if kind not in CLASSES:
        yield "provenance", f"{kind!r} is no source class"
    if not str(record.get("made") or "").strip():
        yield "provenance", "nothing says how it was made"
    if kind == "reconstruction":
        return
    if not str(record.get("upstream") or "").strip():
        yield "provenance", "no upstream work is named"
    if not str(record.get("permission") or "").strip():
        yield "permission", "no licence or permission is recorded; naming a source grants none"
    if kind in ("paper-extract", "paper-derivative") and record.get("derivative") != (kind == "paper-derivative"):
        yield "provenance", "what was added is not part of the paper: class and derivative contradict each other"
