"""What a learner handed in, as far as grading goes, and the key under which its report is kept."""
from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from dataclasses import astuple
from functools import cache
from pathlib import Path

import autograder
import mha_lab

from ..lab import Gone, read_lab
from ..sandbox import Limits

ENGINE = Path(autograder.__file__).parent
GIVEN = Path(mha_lab.__file__).parent
NOT_ENGINE = {"classroom", "exercises", "cli.py", "doctor.py", "notebook.py", "progress.py", "publish.py", "stubs.py",
              "texts.py", "workspace.py"}


class Unreadable(Exception):
    """Why a submission's program cannot be graded, in words for the learner."""


def read_submission(folder: Path, module: str) -> dict[str, bytes]:
    """The Python files of a submission's `mha_lab`, by relative path. Everything else in the folder is ignored."""
    folder = Path(folder)
    file = f"mha_lab/{module}.py"
    try:
        if (folder / "mha_lab").is_symlink() or (folder / file).is_symlink():
            raise Unreadable(f"{file} is a link in your submission; hand in the file itself")
        if not (folder / file).is_file():
            raise Unreadable(f"{file} is missing from your submission; the exercises are written in that file")
        return read_lab(folder, module)
    except Gone as e:
        raise Unreadable(str(e).replace(f"{folder}/", "")) from None
    except OSError as e:
        raise Unreadable(f"{file} could not be read ({e.strerror})") from None


def content_key(module: str, exercise: str, files: dict[str, bytes], limits: Limits) -> str:
    """The same for the same program judged by the same grader, and different for any other."""
    digest = hashlib.sha256()
    for part in (exercise, grader_key(module), str(astuple(limits))):
        digest.update(part.encode() + b"\0")
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32]


@cache
def grader_key(module: str) -> str:
    """A fingerprint of all that decides a verdict: engine, the module's exercises, what is given, Python and torch."""
    digest = hashlib.sha256(f"{platform.python_version()} {importlib.metadata.version('torch')}".encode())
    engine = [p for p in ENGINE.rglob("*.py") if p.relative_to(ENGINE).parts[0] not in NOT_ENGINE]
    exercises = [*(ENGINE / "exercises").glob("*.py"), *(ENGINE / "exercises" / module).rglob("*.py")]
    given = [p for p in GIVEN.rglob("*.py") if "instruments" not in p.parts]
    for path in sorted({*engine, *exercises, *given}):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
