"""A learner's own folder. Later runs bring what is new in the course and never touch what the learner wrote."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .exercises import SESSIONS, Session
from .publish import session_files, write
from .stubs import PublishError

MANIFEST = ".mha/manifest.json"
_OURS = ("autograder", "mha_lab", "solutions", "course", "tests", "benchmarks")


@dataclass
class StartResult:
    """What a start did. Paths are relative to `folder`.

    `conflicts` are the new versions that were written beside files that the learner had edited.
    """

    folder: Path
    created: list[Path] = field(default_factory=list)
    updated: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    conflicts: list[Path] = field(default_factory=list)


def start(folder: Path | str, root: Path, sessions: Iterable[Session] = SESSIONS) -> StartResult:
    """Make or update the workspace `folder` from the course in `root`.

    A file is updated while it is as the course wrote it. An edited one (a notebook with outputs is edited) stays, and
    a newer version is written once beside it: `shapes.new.py`. A deleted one comes back. Solutions are not put in.
    Raises PublishError for a folder that is a file, that holds the course itself, or that cannot be written.
    """
    folder = Path(folder).expanduser().absolute()
    _check_place(folder, root)
    files: dict[str, bytes] = {}
    for session in sessions:
        files |= session_files(root, session, grading=False)
    result = StartResult(folder)
    try:
        known = _read_manifest(folder)
        for name in sorted(files):
            known[name] = _place(folder, name, files[name], known.get(name, {}), result)
        text = json.dumps({"version": 1, "files": known}, indent=1, sort_keys=True) + "\n"
        if not (folder / MANIFEST).is_file() or (folder / MANIFEST).read_text(encoding="utf-8") != text:
            write(folder / MANIFEST, text.encode())
    except OSError as e:
        raise PublishError(f"cannot write {e.filename or folder}: {e.strerror or e}") from None
    return result


def _place(folder: Path, name: str, content: bytes, known: dict[str, str], result: StartResult) -> dict[str, str]:
    """Bring one file up to date. `known`: {"written": hash, "offered": hash} of earlier runs; returns the new one."""
    path, relative, new = folder / name, Path(name), _hash(content)
    if path.is_dir():
        raise PublishError(f"{path} is a folder; the course has a file of that name")
    there = _hash(path.read_bytes()) if path.exists() else None
    if there is None or (there == known.get("written") and there != new):
        write(path, content)
        (result.created if there is None else result.updated).append(relative)
        return {"written": new}
    if there == new:
        result.kept.append(relative)
        return {"written": new}
    if new in (known.get("written"), known.get("offered")):
        result.kept.append(relative)
        return known
    beside = _free_name(folder, PurePosixPath(name), new, known.get("offered"))
    write(folder / beside, content)
    result.kept.append(relative)
    result.conflicts.append(beside)
    return known | {"offered": new}


def _free_name(folder: Path, name: PurePosixPath, new: str, offered: str | None) -> Path:
    """`shapes.new.py`, or `shapes.new2.py` when a learner has made the first one their own."""
    count = 1
    while True:
        beside = Path(name.with_name(f"{name.stem}.new{count if count > 1 else ''}{name.suffix}"))
        path = folder / beside
        if not path.exists() or (path.is_file() and _hash(path.read_bytes()) in (new, offered)):
            return beside
        count += 1


def _read_manifest(folder: Path) -> dict[str, dict[str, str]]:
    """What earlier runs wrote. A damaged manifest knows nothing: every file that differs then counts as edited."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {name: {k: str(v) for k, v in entry.items()} for name, entry in files.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _check_place(folder: Path, root: Path) -> None:
    real, root = folder.resolve(), root.resolve()
    if folder.exists() and not folder.is_dir():
        raise PublishError(f"{folder} is a file; a workspace is a folder")
    if real == root:
        raise PublishError(f"{folder} is the course itself; choose another folder, for example {folder / 'workspace'}")
    for part in _OURS:
        if real.is_relative_to(root / part):
            raise PublishError(f"{folder} lies in the course's own {part}/ folder; choose a folder of your own")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
