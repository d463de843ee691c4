"""A submitted notebook is material: what its cells are comes from the gradebook, never from the notebook itself."""
from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from .course import coursedir_of

RESTORED = ("**Note from the grader.** The cell `{name}` was missing from your notebook and was put back. "
            "Your program was graded as usual.")
RESTORED_ANSWER = ("**Note from the grader.** The cell `{name}` was missing from your notebook and was put back as it "
                   "was handed out, without an answer.")
KEPT = ("**Note from the grader.** The cell `{name}` was in your notebook {count} times. This one was graded; "
        "the copies stay where they are and count for nothing.")


@dataclass(frozen=True)
class Known:
    """A cell of the assignment, as the gradebook knows it."""

    name: str
    cell_type: str
    source: str
    metadata: dict

    @property
    def locked(self) -> bool:
        return self.metadata["locked"]

    @property
    def graded(self) -> bool:
        return self.metadata["grade"] or self.metadata["task"]

    def cell(self) -> NotebookNode:
        """The cell as it was handed out."""
        make = new_code_cell if self.cell_type == "code" else new_markdown_cell
        return make(self.source, metadata={"nbgrader": dict(self.metadata)})


def known_cells(gradebook: Gradebook, notebook: str, assignment: str) -> dict[str, Known]:
    """Every cell of a notebook that nbgrader cares for, by its grade_id."""
    found = gradebook.find_notebook(notebook, assignment)
    points = {c.name: c.max_score for c in found.grade_cells}
    tasks = {c.name: c.max_score for c in found.task_cells}
    answers = {c.name for c in found.solution_cells}
    cells = {}
    for cell in found.source_cells:
        metadata = {"schema_version": 3, "grade_id": cell.name, "cell_type": cell.cell_type, "checksum": cell.checksum,
                    "grade": cell.name in points, "solution": cell.name in answers, "task": cell.name in tasks,
                    "locked": bool(cell.locked)}
        if cell.name in points or cell.name in tasks:
            metadata["points"] = {**points, **tasks}[cell.name]
        cells[cell.name] = Known(cell.name, cell.cell_type, cell.source, metadata)
    return cells


class TrustCells(NbGraderPreprocessor):
    """Gives every cell its true nbgrader metadata, settles duplicates and puts missing graded cells back.

    Of several cells with one grade_id the first counts; of several answers, the first that was written in. What was
    done is said in a note beside the cell. Comes first: nbgrader itself ends a whole class's run at a cell whose
    metadata is too old, and keeps the last of two duplicates.
    """

    def preprocess(self, nb, resources):
        of = resources["nbgrader"]
        with Gradebook(of["db_url"]) as gradebook:
            known = known_cells(gradebook, of["notebook"], of["assignment"])
        tidy(nb)
        notes = settle(nb, known)
        missing = [k for k in known.values() if k.graded and k.name not in names(nb)]
        if missing:
            order = self._released_order(of)
            for cell in sorted(missing, key=lambda k: order.index(k.name) if k.name in order else len(order)):
                self.log.warning("The cell '%s' is missing from the submission; it is put back", cell.name)
                place = place_of(nb, cell.name, order)
                nb.cells.insert(place, cell.cell())
                answer = cell.metadata["solution"]
                notes[cell.name] = (RESTORED_ANSWER if answer else RESTORED).format(name=cell.name)
        annotate(nb, notes)
        return nb, resources

    def _released_order(self, of) -> list[str]:
        """The keys (grade_id, or cell id) of the cells of the notebook that was handed out, in order."""
        coursedir = coursedir_of(self)
        for step in (coursedir.release_directory, coursedir.source_directory):
            path = Path(coursedir.format_path(step, ".", of["assignment"]), f"{of['notebook']}.ipynb")
            if path.is_file():
                return [key(c) for c in nbformat.read(path, as_version=4).cells]
        return []


def claimed(cell: NotebookNode) -> str | None:
    """The grade_id that a cell gives itself."""
    meta = cell.metadata.get("nbgrader")
    name = meta.get("grade_id") if isinstance(meta, Mapping) else None
    return name if isinstance(name, str) else None


def key(cell: NotebookNode) -> str:
    return claimed(cell) or cell.get("id", "")


def names(nb: NotebookNode) -> set[str | None]:
    return {claimed(c) for c in nb.cells}


def tidy(nb: NotebookNode) -> None:
    """Unique cell ids; of all metadata only a cell's claim; raw cells, which pages show unescaped, become text."""
    nb.nbformat, nb.nbformat_minor = 4, max(5, nb.get("nbformat_minor", 0))
    nb.metadata = NotebookNode(language_info=NotebookNode(name="python"))
    taken = set()
    for i, cell in enumerate(nb.cells):
        metadata = cell.get("metadata")
        claim = metadata.get("nbgrader") if isinstance(metadata, Mapping) else None
        cell["metadata"] = NotebookNode() if claim is None else NotebookNode(nbgrader=claim)
        if cell.cell_type == "raw":
            text = "\n".join(f"    {line}" for line in cell.source.splitlines())
            nb.cells[i] = cell = new_markdown_cell(text, id=cell.get("id", ""), metadata=cell.metadata)
        if cell.get("id") in taken or not cell.get("id"):
            cell["id"] = uuid.uuid4().hex[:8]
        taken.add(cell["id"])


def settle(nb: NotebookNode, known: Mapping[str, Known]) -> dict[str, str]:
    """One cell for each known grade_id, with its true metadata and type; none for any other. Returns notes."""
    places: dict[str, list[int]] = {}
    for i, cell in enumerate(nb.cells):
        name = claimed(cell)
        cell.metadata.pop("nbgrader", None)
        if name in known:
            places.setdefault(name, []).append(i)
    notes = {}
    for name, found in places.items():
        true = known[name]
        written = [] if true.locked else [i for i in found if nb.cells[i].source != true.source]
        kept = (written or found)[0]
        if nb.cells[kept].cell_type != true.cell_type:
            make = new_code_cell if true.cell_type == "code" else new_markdown_cell
            nb.cells[kept] = make(nb.cells[kept].source, id=nb.cells[kept].id)
        nb.cells[kept].metadata["nbgrader"] = NotebookNode(true.metadata)
        if len(found) > 1:
            notes[name] = KEPT.format(name=name, count=len(found))
    return notes


def place_of(nb: NotebookNode, name: str, order: list[str]) -> int:
    """Where a missing cell goes: after the nearest cell that stood above it in the handed-out notebook."""
    here = {key(c): i for i, c in enumerate(nb.cells)}
    above = order[:order.index(name)] if name in order else list(here)
    return next((here[k] + 1 for k in reversed(above) if k in here), 0)


def annotate(nb: NotebookNode, notes: Mapping[str, str]) -> None:
    """Put each note above its cell."""
    cells = []
    for cell in nb.cells:
        if note := notes.get(claimed(cell)):
            cells.append(new_markdown_cell(note))
        cells.append(cell)
    nb.cells = cells
