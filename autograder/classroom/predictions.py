"""Prediction cells are read, never run."""
from __future__ import annotations

import ast
import html

from nbformat.v4 import new_output
from nbgrader import utils
from nbgrader.preprocessors import NbGraderPreprocessor

LONGEST = 4000


class NotRead(ValueError):
    """Why a prediction could not be read, in words for the learner."""


def read_prediction(source: str):
    """The literal of the cell's one `predict("id", literal)` call. NotRead says why there is none."""
    if len(source) > LONGEST:
        raise NotRead(f"the cell is longer than {LONGEST} characters")
    try:
        tree = ast.parse(source.lstrip("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise NotRead(f"the cell is not Python ({getattr(e, 'msg', None) or type(e).__name__})") from None
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
             and n.func.id == "predict"]
    if len(calls) != 1:
        raise NotRead("the cell has no predict(...) call" if not calls else "the cell has several predict(...) calls")
    given = [*calls[0].args[1:2], *(k.value for k in calls[0].keywords if k.arg == "value")]
    if len(given) != 1:
        raise NotRead('predict("name", value) needs one value')
    try:
        value = ast.literal_eval(given[0])
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise NotRead(f"`{ast.unparse(given[0])[:80]}` is not a literal: predictions are read, never run, so write "
                      "the number, text, tuple or list itself") from None
    if value is None:
        raise NotRead("nothing was predicted")
    return value


class ReadPredictions(NbGraderPreprocessor):
    """Shows under each prediction cell what was read from it. Predictions carry no points."""

    def preprocess_cell(self, cell, resources, cell_index):
        meta = cell.metadata.get("nbgrader", {})
        if (cell.cell_type == "code" and utils.is_solution(cell) and not utils.is_grade(cell)
                and meta.get("grade_id", "").startswith("predict-")):
            try:
                said = f"Your prediction: {read_prediction(cell.source)!r}"
            except NotRead as why:
                said = f"No prediction was read: {why}."
            cell.outputs = [new_output("display_data", data={
                "text/plain": said, "text/html": f'<div class="mha-prediction">{html.escape(said)}</div>'})]
        return cell, resources
