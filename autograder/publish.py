"""From what people write to what people open: solutions -> stubs, texts -> nbgrader's source, figures, workspaces."""
from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from .exercise import Exercise
from .exercises import SESSIONS, Session
from .stubs import PublishError, answer, cut
from .texts import notebook

if TYPE_CHECKING:
    from .workspace import StartResult

__all__ = ["PublishError", "build", "course_root", "solution_source", "start", "write"]

PORTION = '__path__ = __import__("pkgutil").extend_path(__path__, __name__)\n'


def course_root() -> Path:
    """The folder that holds `course/` and `solutions/`: a clone, or the place where the course is installed."""
    root = Path(__file__).resolve().parent.parent
    for part in ("course", "solutions"):
        if not (root / part).is_dir():
            raise PublishError(f"{root} holds no {part}/ folder beside the autograder: the installation is incomplete")
    return root


def build(root: Path | str, check: bool = False, sessions: Iterable[Session] = SESSIONS) -> list[Path]:
    """Write the stubs, the figures and nbgrader's source. Returns what changed, relative to `root`, in order.

    check: write nothing, and return what would change. nbgrader's source is not kept in version control, so there
    only a file that is there and differs counts as a change. Raises PublishError for a text or a solution that is not
    in order (see texts.py and stubs.py), and for an installed course.
    """
    root, changed = Path(root), []
    if (root / "autograder").is_dir() and not (root / "pyproject.toml").is_file():
        raise PublishError(f"{root} is an installed course; `mha build` works in a clone")
    for relative, content, tracked in _artefacts(root, tuple(sessions)):
        path = root / relative
        there = path.read_bytes() if path.is_file() else None
        if there == content or (check and there is None and not tracked):
            continue
        changed.append(relative)
        if not check:
            write(path, content)
    return changed


def start(folder: Path | str) -> StartResult:
    """Make a learner's workspace, or update one without touching an edited file; see workspace.py."""
    from .workspace import start as make
    return make(folder, course_root())


def solution_source(exercise: Exercise) -> str:
    """The course's answer to an exercise, as text."""
    return answer(_solution(course_root(), exercise.module), exercise.name)


def session_files(root: Path, session: Session, grading: bool) -> dict[str, bytes]:
    """The files that a learner gets for a session, by their path: the notebook, and the stubs that it fills in."""
    text = notebook(root / "course" / f"{session.id}.md", session, grading)
    return {f"{session.id}.ipynb": text.encode(), "mha_lab/__init__.py": PORTION.encode(),
            **{f"mha_lab/{module}.py": stub(root, session, module).encode() for module in session.modules}}


def stub(root: Path, session: Session, module: str = "") -> str:
    """The stub of a session's module (the first, if none is named), cut from its solutions."""
    module = module or session.module
    return cut(_solution(root, module), module)


def write(path: Path, content: bytes) -> None:
    """Write a whole file or none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _artefacts(root: Path, sessions: tuple[Session, ...]):
    """(path, content, whether it is kept in version control) of every built file."""
    for session in sessions:
        for module in session.modules:
            yield Path("mha_lab", f"{module}.py"), stub(root, session, module).encode(), True
    for name, svg in _figures().items():
        yield Path("course", "figures", name), svg.encode(), True
    for session in sessions:
        for name, content in session_files(root, session, grading=True).items():
            yield Path("course", "source", session.id, name), content, False


def _figures() -> dict[str, str]:
    """The still pictures that the texts show, drawn from the instruments."""
    import torch

    from mha_lab.instruments import AttentionDesk, ShapeMachine, StrideExplorer

    toy = ShapeMachine(batch=2, q_len=5, k_len=7, d_model=12, num_heads=3, cross=True)
    split = StrideExplorer(sizes={"B": 2, "T": 3, "H": 4, "D": 5}, chain="view(B, T, H, D).transpose(1, 2)",
                           versus="view(B, H, T, D)")
    queries = torch.tensor([[[30.0, 0.0]], [[0.0, 30.0]]])
    desk = AttentionDesk(queries, torch.eye(2).expand(2, 2, 2), torch.eye(2).T[..., None])
    return {"shape-machine.svg": toy.svg() + "\n", "split-heads.svg": toy.svg("heads") + "\n",
            "stride-explorer.svg": split.svg() + "\n", "attention-desk.svg": desk.svg(view="one") + "\n"}


def _solution(root: Path, module: str) -> str:
    path = root / "solutions" / f"{module}.py"
    if not path.is_file():
        raise PublishError(f"solutions/{module}.py is not there: the session has no answers to cut its stubs from")
    return path.read_text(encoding="utf-8")
