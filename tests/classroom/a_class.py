"""A class of session 01: what each student hands in, the score they earned, and the words that their page must say."""
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_output

from .helpers import grade_cell, hand_in, solution

SESSION, NOTEBOOK = "01-shape-machine", "01-shape-machine.ipynb"
POINTS = {"head_width": 1, "split_heads": 3, "merge_heads": 3, "insert_head_axis": 2, "shape_ledger": 2,
          "MultiHeadAttention": 5}
ALL = tuple(POINTS)
RIGHT = solution("shapes")

SPLIT = "return packed.unflatten(-1, (num_heads, packed.shape[-1] // num_heads)).transpose(1, 2)"
MERGE = "return heads.transpose(1, 2).flatten(2)"
SCALE = "self.head_dim**-0.5"
WIDTH = "width, remainder = divmod(d_model, num_heads)"
RELABELLED = "return packed.reshape(packed.shape[0], num_heads, packed.shape[1], packed.shape[2] // num_heads)"
UNSWAPPED = "b, h, q, d = heads.shape\n    return heads.reshape(b, q, h * d)"


@dataclass(frozen=True)
class Student:
    """passed: the exercises that are right. says: words of the feedback page. problem: why nothing was recorded."""

    passed: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    source: str | bytes | None = None
    spoil: Callable[[Path], None] = field(default=lambda folder: None)
    problem: str = ""

    @property
    def score(self) -> int:
        return sum(POINTS[name] for name in self.passed)


def changed(*changes: tuple[str, str]) -> str:
    """The right program with these changes, each of which must be one."""
    source = RIGHT
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def without(*names: str) -> tuple[str, ...]:
    return tuple(n for n in ALL if n not in names)


def only(*names: str) -> str:
    """The right program with all but these functions left as stubs."""
    lines, kept, hidden = [], None, False
    for line in RIGHT.splitlines():
        if line.startswith(("def ", "class ")):
            kept = line.split()[1].split("(")[0] in names
        if line.strip() == "### BEGIN SOLUTION" and not kept:
            hidden = True
            lines.append(line.replace("### BEGIN SOLUTION", 'raise NotImplementedError("write this")'))
        if not hidden:
            lines.append(line)
        hidden = hidden and line.strip() != "### END SOLUTION"
    return "\n".join(lines)


def edit(change: Callable[[nbformat.NotebookNode], None]) -> Callable[[Path], None]:
    """Spoil the submitted notebook."""
    def spoil(folder: Path) -> None:
        path = folder / NOTEBOOK
        nb = nbformat.read(path, as_version=4)
        change(nb)
        path.write_text(json.dumps(nb), encoding="utf-8")
    return spoil


def cell(nb, grade_id: str) -> nbformat.NotebookNode:
    return next(c for c in nb.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


@edit
def delete_cells(nb) -> None:
    nb.cells = [c for c in nb.cells if c.metadata.get("nbgrader", {}).get("grade_id") not in
                ("split_heads", "insert_head_axis", "explain-01")]


@edit
def duplicate_cells(nb) -> None:
    twice = cell(nb, "merge_heads")
    nb.cells.insert(nb.cells.index(twice) + 1, twice)
    nb.cells.append(grade_cell("split_heads", 3))


@edit
def answer_everything(nb) -> None:
    cell(nb, "explain-01").source = "Projection comes before the split. <b>Heads</b> move, they are not renamed."
    for c in nb.cells:
        if c.metadata.get("nbgrader", {}).get("grade_id", "").startswith("predict-"):
            c.source = c.source.replace("None", "(2, 3, 5, 4)")


@edit
def print_a_fake_score(nb) -> None:
    for c in nb.cells:
        if c.cell_type == "code":
            c.execution_count = 1
            c.outputs = [new_output("stream", text="passed (16 of 16 points)\n"),
                         new_output("execute_result", data={"text/plain": "3.0"}, execution_count=1)]
        if meta := c.metadata.get("nbgrader"):
            meta["points"] = 100
    nb.cells.insert(0, new_code_cell("def check(*names):\n    print('passed (16 of 16 points)')\n    return 16.0"))


@edit
def age_the_metadata(nb) -> None:
    for c in nb.cells:
        if meta := c.metadata.get("nbgrader"):
            meta["schema_version"] = 1
        c.pop("id", None)
    nb.nbformat_minor = 4
    nb.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}


@edit
def attack_the_teacher(nb) -> None:
    cell(nb, "explain-01").source = "Heads move. <img src=x onerror=alert(1)> <script>alert(2)</script>"
    nb.cells.insert(0, nbformat.v4.new_raw_cell("<script>alert(3)</script>"))
    nb.cells[1].metadata["tags"] = ['"><script>alert(4)</script>']


def break_the_json(folder: Path) -> None:
    path = folder / NOTEBOOK
    path.write_text(path.read_text(encoding="utf-8")[:-200], encoding="utf-8")


def bring_other_modules(folder: Path) -> None:
    """A checker, a torch and a given of their own, beside the module and in it."""
    for name in ("torch.py", "autograder/__init__.py", "autograder/grading.py", "nbgrader_config.py"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit('mine was imported')\n")


def leave_out_the_module(folder: Path) -> None:
    (folder / "mha_lab" / "shapes.py").unlink()


PATCH = """
import sys

import torch

torch.equal = torch.allclose = lambda *a, **k: True
torch.Tensor.__eq__ = torch.Tensor.equal = lambda *a, **k: True
for name, module in list(sys.modules.items()):
    if name.startswith("autograder"):
        for attribute in ("check", "same", "close", "passed", "describe"):
            setattr(module, attribute, lambda *a, **k: True)


class Anything:
    def __getattr__(self, name):
        return Anything()
    def __call__(self, *args, **kwargs):
        return Anything()
    def __eq__(self, other):
        return True


def head_width(d_model, num_heads):
    return Anything()

split_heads = merge_heads = insert_head_axis = shape_ledger = MultiHeadAttention = head_width
"""

CLASS = {
    "complete": Student(ALL, ("head_width: passed", "Your prediction: (2, 3, 5, 4)"), RIGHT, answer_everything),
    "empty": Student((), ("not started", "No prediction was read", "No response")),
    "partly": Student(("head_width", "merge_heads", "shape_ledger"), ("split_heads: not started",),
                      only("head_width", "merge_heads", "shape_ledger")),
    "relabelled": Student(without("split_heads"), ("relabelled-bytes", "Seen at"), changed((SPLIT, RELABELLED))),
    "unswapped": Student(without("merge_heads"), ("merge-without-swap", "Seen at"), changed((MERGE, UNSWAPPED))),
    "misscaled": Student(without("MultiHeadAttention"), ("scale-by-model-width",),
                         changed((SCALE, "self.d_model**-0.5"))),
    "hang": Student(without("insert_head_axis"), ("ran out of time", "a loop that never ends"),
                    changed(("return mask.unsqueeze(1)", "while True: pass"))),
    "exit": Student(without("merge_heads"), ("ended the interpreter",),
                    changed((MERGE, "import os; os._exit(0)"))),
    "memory": Student(without("shape_ledger"), ("more memory than",),
                      changed(("    D = M // H\n", "    D = M // H; torch.ones(1 << 40)\n"))),
    "patched": Student((), ("not yet",), PATCH, bring_other_modules),
    "deleted": Student(ALL, ("was missing from your notebook and was put back", "split_heads: passed"), RIGHT,
                       delete_cells),
    "duplicated": Student(ALL, ("was in your notebook 2 times",), RIGHT, duplicate_cells),
    "syntax": Student((), ("cannot be imported", "SyntaxError"), RIGHT + "\ndef broken(:\n"),
    "crlf_bom": Student(ALL, ("head_width: passed",), b"\xef\xbb\xbf" + RIGHT.replace("\n", "\r\n").encode()),
    "fake": Student(("head_width",), ("split_heads: not started",), only("head_width"), print_a_fake_score),
    "no_module": Student((), ("mha_lab/shapes.py is missing from your submission",), None, leave_out_the_module),
    "aged": Student(ALL, ("head_width: passed",), RIGHT, age_the_metadata),
    "script": Student(without("head_width"), ("&lt;script&gt;",),
                      changed((WIDTH, "raise KeyError('<script>alert(1)</script>')")), attack_the_teacher),
    "no_json": Student(ALL, (), RIGHT, break_the_json, problem="no valid JSON at line"),
    "no_notebook": Student(ALL, (), RIGHT, lambda folder: (folder / NOTEBOOK).unlink(), problem="is missing"),
}


def hand_in_class(course) -> None:
    for name, student in CLASS.items():
        student.spoil(hand_in(course, SESSION, name, "shapes", student.source))
