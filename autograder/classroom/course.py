"""The course folder, read through nbgrader's own config."""
from __future__ import annotations

import contextlib
import functools
import logging
import os
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbgrader.api
from nbformat.warnings import DuplicateCellId, MissingIDFieldWarning
from nbgrader.api import (
    Assignment,
    Grade,
    Gradebook,
    MissingEntry,
    SubmittedAssignment,
    SubmittedNotebook,
)
from nbgrader.api import GradeCell as GradeCell_
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SAWarning
from traitlets.config import Config, Configurable, PyFileConfigLoader

CONFIG = "nbgrader_config.py"


def coursedir_of(configurable: Configurable) -> CourseDirectory:
    """The course directory that a preprocessor works for: its converter's, or the one that its config tells."""
    node = configurable
    while node is not None:
        if isinstance(getattr(node, "coursedir", None), CourseDirectory):
            return node.coursedir
        node = getattr(node, "parent", None)
    return CourseDirectory(config=configurable.config)


@dataclass(frozen=True)
class GradeCell:
    """A code cell that is graded by program, and the points that the gradebook gives for it."""

    notebook: str
    name: str
    points: float


class Course:
    """A folder with an `nbgrader_config.py`, and nbgrader's commands on it, in this process.

    `extra` is merged over the file's config. LookupError if there is no such file.
    """

    def __init__(self, folder: Path | str, extra: Config | None = None):
        self.folder = Path(folder).resolve()
        if not (self.folder / CONFIG).is_file():
            raise LookupError(f"{folder} holds no {CONFIG}: name the course folder with --course")
        self.config = PyFileConfigLoader(CONFIG, path=str(self.folder)).load_config()
        if extra is not None:
            self.config.merge(extra)

    @cached_property
    def api(self) -> NbGraderAPI:
        logger = logging.getLogger("autograder.classroom.nbgrader")
        logger.propagate = False
        logger.addHandler(logging.NullHandler())
        with quiet():
            return NbGraderAPI(config=self.config, log=logger, log_level=logging.INFO)

    @property
    def coursedir(self) -> CourseDirectory:
        return self.api.coursedir

    def gradebook(self) -> Gradebook:
        """A fresh connection; use as a context manager."""
        return Gradebook(self.coursedir.db_url, self.coursedir.course_id)

    def grade_cells(self, assignment: str) -> list[GradeCell]:
        """What there is to grade by program. LookupError if the assignment was never generated."""
        with self.gradebook() as gradebook:
            try:
                found = gradebook.find_assignment(assignment)
            except MissingEntry:
                raise LookupError(f"the gradebook does not know {assignment}; run "
                                  f"`nbgrader generate_assignment {assignment}` in the course folder first") from None
            cells = []
            for notebook in found.notebooks:
                by_hand = {c.name for c in notebook.solution_cells}
                cells += [GradeCell(notebook.name, c.name, c.max_score) for c in notebook.grade_cells
                          if c.cell_type == "code" and c.name not in by_hand]
            return cells

    def auto_scores(self, assignment: str) -> dict[str, dict[str, float | None]]:
        """By student and code cell, what the gradebook holds as the program's score."""
        found: dict[str, dict[str, float | None]] = {}
        with self.gradebook() as gradebook:
            rows = (gradebook.db.query(SubmittedAssignment.student_id, GradeCell_.name, Grade.auto_score)
                    .select_from(Grade).join(GradeCell_, GradeCell_.id == Grade.cell_id)
                    .join(SubmittedNotebook, SubmittedNotebook.id == Grade.notebook_id)
                    .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
                    .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
                    .filter(Assignment.name == assignment, GradeCell_.cell_type == "code").all())
        for student, cell, score in rows:
            found.setdefault(student, {})[cell] = score
        return found

    def path(self, step: str, student: str, assignment: str) -> Path:
        return Path(self.coursedir.format_path(step, student, assignment))

    def students(self, assignment: str) -> list[str]:
        """Who handed something in, sorted."""
        return sorted(self.api.get_submitted_students(assignment))


@contextlib.contextmanager
def one_engine():
    """One database engine for each gradebook file, with the queries that it has compiled.

    nbgrader makes a new one ten times a submission: measured, that is 40 % of the time that recording takes.
    """
    made = nbgrader.api.create_engine
    nbgrader.api.create_engine = functools.cache(made)
    try:
        yield
    finally:
        nbgrader.api.create_engine = made


@contextlib.contextmanager
def quiet():
    """nbgrader prints, and its queries warn; a command's own output stays readable."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), warnings.catch_warnings():
        for category in (SAWarning, DuplicateCellId, MissingIDFieldWarning):
            warnings.simplefilter("ignore", category)
        yield
