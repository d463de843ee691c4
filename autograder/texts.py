"""Text notebooks (MyST) become Jupyter notebooks. What nbgrader must know is taken from the exercises."""
from __future__ import annotations

import ast
import base64
import hashlib
import mimetypes
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from .exercise import Exercise
from .stubs import PublishError

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from .exercises import Session

EXPLAIN_POINTS = 4
LABELS = ("Source-local", "Externally verified", "Official version-scoped", "Derivation", "Rewrite interpretation",
          "Source-reported", "Uncertain")
_IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<path>figures/[^)\s]+)\)")
_LABEL = re.compile(r"\*\*\[([^\]]+)\]\*\*")
_NAMING = ("check", "hint", "solution")


def exercise_line(exercise: Exercise) -> str:
    """The line that a session's text shows above an exercise. The build refuses a text whose line is another one."""
    return (f"**Exercise `{exercise.name}`** · {exercise.points} {'point' if exercise.points == 1 else 'points'} · "
            f"{exercise.minutes} minutes · difficulty {exercise.difficulty} of 5 · importance {exercise.importance} "
            f"of 5 · in `mha_lab/{exercise.module}.py`")


def notebook(text: Path, session: Session, grading: bool) -> str:
    """The .ipynb of a session's text: deterministic cell ids, no outputs, kernel python3.

    A cell with the metadata {"mha": {"page": true}} is for readers of the text alone and is left out.
    grading: whether cells carry nbgrader's metadata (a released assignment) or none (a workspace).
    Raises PublishError for a check of an unknown exercise, an exercise without a check cell or with two, a check or
    predict cell with other code in it, a figure that is missing, a line above an exercise that is out of date, and
    an evidence label that is none.
    """
    import jupytext
    import nbformat

    where = f"course/{text.name}"
    try:
        every = jupytext.reads(text.read_text(encoding="utf-8"), fmt="md:myst").cells
    except FileNotFoundError:
        raise PublishError(f"{where} is not there: session {session.id} has no text") from None
    cells = [cell for cell in every if not cell.metadata.get("mha", {}).get("page")]
    _check_prose(cells, session, where)
    graded, taken = {}, set()
    for cell in cells:
        grade = _code_cell(cell, session, where) if cell.cell_type == "code" else _prose_cell(cell, text, session)
        grade_id = grade and grade["grade_id"]
        if grade_id in graded:
            raise PublishError(f"{where}: two cells for {grade_id!r}; one is the grade cell, so there must be one only")
        if grade:
            graded[grade_id] = grade
            if grading:
                cell.metadata["nbgrader"] = grade
        cell.id = _cell_id(session.id, grade_id or cell.source, taken)
    for exercise in session.exercises:
        if exercise.name not in graded:
            raise PublishError(f'{where}: the exercise {exercise.name} has no cell check("{exercise.name}")')
    made = nbformat.v4.new_notebook(cells=cells, metadata={
        "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"},
        "language_info": {"name": "python"}})
    made.nbformat_minor = 5
    nbformat.validate(made)
    return nbformat.writes(made) + "\n"


def _code_cell(cell: NotebookNode, session: Session, where: str) -> dict | None:
    """nbgrader's metadata of a check or predict cell, or None for another code cell."""
    cell.outputs, cell.execution_count = [], None
    try:
        tree = ast.parse(cell.source)
    except SyntaxError as e:
        raise PublishError(f"{where}: a code cell is not Python ({e.msg}): {cell.source[:80]!r}") from None
    known = {exercise.name: exercise for exercise in session.exercises}
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    for call in calls:
        if call.func.id in _NAMING and call.args and isinstance(call.args[0], ast.Constant):
            name = call.args[0].value
            if name not in known:
                raise PublishError(f"{where}: {call.func.id}({name!r}) names no exercise of session {session.id}; "
                                   f"it has {', '.join(known)}")
    special = [call for call in calls if call.func.id in ("check", "predict")]
    if not special:
        return None
    call, arguments = special[0], _literals(special[0])
    alone = len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr) and tree.body[0].value is call
    if call.func.id == "check":
        if not alone or call.keywords or arguments is None or len(arguments) != 1:
            raise PublishError(f'{where}: a check cell is one call check("name") and nothing else: '
                               f"{cell.source[:80]!r}")
        return _grade(arguments[0], "code", grade=True, points=known[arguments[0]].points)
    if not alone or call.keywords or arguments is None or len(arguments) != 2:
        raise PublishError(f'{where}: a prediction cell is one call predict("id", None) and nothing else: '
                           f"{cell.source[:80]!r}")
    return _grade(f"predict-{arguments[0]}", "code", solution=True)


def _prose_cell(cell: NotebookNode, text: Path, session: Session) -> dict | None:
    """Puts the figures into the cell; nbgrader's metadata of the explain-out-loud answer, or None."""
    cell.source = _IMAGE.sub(lambda match: _inline(match, text.parent), cell.source)
    explain = cell.metadata.get("mha", {}).get("explain")
    if explain is None:
        return None
    if explain != session.number:
        raise PublishError(f"course/{text.name}: the explain-out-loud cell says {explain!r}, "
                           f"the session is {session.number!r}")
    return _grade(f"explain-{explain}", "markdown", grade=True, solution=True, points=EXPLAIN_POINTS)


def _grade(grade_id: str, cell_type: str, grade: bool = False, solution: bool = False, points: int = 0) -> dict:
    metadata = {"schema_version": 3, "grade_id": grade_id, "cell_type": cell_type, "grade": grade,
                "solution": solution, "task": False, "locked": grade and not solution}
    return metadata | {"points": points} if grade else metadata


def _literals(call: ast.Call) -> list | None:
    try:
        return [ast.literal_eval(argument) for argument in call.args]
    except ValueError:
        return None


def _inline(match: re.Match, course: Path) -> str:
    """An image of a file as an image that carries its own bytes: a notebook travels without its figures folder."""
    path = course / match["path"]
    if not path.is_file():
        raise PublishError(f"course/{match['path']} is not there, but a text shows it")
    data = base64.b64encode(path.read_bytes()).decode()
    alt = escape(" ".join(match["alt"].split()))
    return f'<img alt="{alt}" src="data:{mimetypes.guess_type(path.name)[0]};base64,{data}">'


def _cell_id(session: str, content: str, taken: set[str]) -> str:
    """The same for the same content, unlike every other id of the notebook."""
    repeat = 0
    while True:
        cell_id = hashlib.sha256(f"{session}\n{content}\n{repeat}".encode()).hexdigest()[:12]
        if cell_id not in taken:
            taken.add(cell_id)
            return cell_id
        repeat += 1


def _check_prose(cells: list[NotebookNode], session: Session, where: str) -> None:
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for exercise in session.exercises:
        line = exercise_line(exercise)
        if line not in prose.splitlines():
            raise PublishError(f"{where}: above the exercise {exercise.name} the line must be\n{line}")
    for labels in _LABEL.findall(prose):
        for label in labels.split("; "):
            if label not in LABELS:
                raise PublishError(f"{where}: [{label}] is no evidence label; the labels are {', '.join(LABELS)}")
