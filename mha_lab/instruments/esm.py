"""Joins the ES modules of an instrument into the one string that a widget carries.

Each file under `js/` also runs unjoined, by `node` and in a page. Joining leaves out the relative import
lines and puts what they name in front, each file once: no build step, nothing fetched by the browser.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "js"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)


def module(name: str) -> str:
    """The source of `js/<name>` with everything that it imports, as one ES module."""
    parts: dict[str, str] = {}

    def add(file: str) -> None:
        if file in parts:
            return
        source = (FOLDER / file).read_text(encoding="utf-8")
        for needed in _IMPORT.findall(source):
            add(needed)
        parts[file] = _IMPORT.sub("", source)

    add(name)
    return "\n".join(parts.values())


def style(name: str) -> str:
    """The style sheet `js/<name>`."""
    return (FOLDER / name).read_text(encoding="utf-8")
