"""What a released notebook shows where the learner writes."""
from __future__ import annotations

from nbgrader import utils
from nbgrader.preprocessors import ClearSolutions


class KeepStubs(ClearSolutions):
    """Cuts marked regions as nbgrader does, and keeps an answer cell without one as the text notebook wrote it."""

    def preprocess_cell(self, cell, resources, cell_index):
        if utils.is_solution(cell) and self.begin_solution_delimeter not in cell.source:
            return cell, resources
        return super().preprocess_cell(cell, resources, cell_index)
