"""The only room that knows an expected answer: one folder a session, one file an exercise."""
from __future__ import annotations

import difflib
import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..exercise import Exercise  # and with it torch, which nbgrader's commands can do without


@dataclass(frozen=True)
class Session:
    """One course session; the same name in every room.

    `module` is what the learner writes in; a session with `more` modules has a folder of exercises for each of them.
    """

    id: str
    title: str
    module: str
    minutes: int
    more: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        return self.id.split("-")[0]

    @property
    def modules(self) -> tuple[str, ...]:
        return self.module, *self.more

    @cached_property
    def exercises(self) -> tuple[Exercise, ...]:
        """In the order of their steps, from all modules. An exercise's module is the folder it lies in."""
        found = {}
        for module in self.modules:
            package = importlib.import_module(f"{__name__}.{module}")
            for info in pkgutil.iter_modules(package.__path__):
                exercise = getattr(importlib.import_module(f"{package.__name__}.{info.name}"), "exercise", None)
                if exercise is not None:
                    exercise.session, exercise.module = self.id, module
                    found[exercise.name] = exercise
        return tuple(sorted(found.values(), key=lambda e: e.step))


SESSIONS = (
    Session("00-start", "Start", "warmup", 10),
    Session("01-shape-machine", "The shape machine", "shapes", 75),
    Session("02-stride-proof", "The stride proof", "strides", 70),
    Session("03-direct-sum", "The direct sum", "direct_sum", 90),
    Session("04-adjoints", "Adjoints", "adjoints", 80),
    Session("05-cross-attention", "Cross-attention", "cross", 90),
    Session("06-grouped-cache", "Grouped heads and cache", "grouped", 80),
    Session("07-kernels", "Kernels", "kernels", 100, ("timed",)),
    Session("08-head-evidence", "Head evidence", "evidence", 75),
    Session("09-changed-heads", "Changed heads", "variants", 90),
    Session("10-runtime", "Runtime", "runtime", 90),
)


@cache
def all_exercises() -> tuple[Exercise, ...]:
    return tuple(e for s in SESSIONS for e in s.exercises)


def session(name: str) -> Session:
    """A session by id, number or module."""
    for candidate in SESSIONS:
        if name in (candidate.id, candidate.number, *candidate.modules):
            return candidate
    raise LookupError(_unknown(name))


def find(name: str) -> Exercise:
    """An exercise by name. LookupError names the nearest ones."""
    for exercise in all_exercises():
        if exercise.name == name:
            return exercise
    raise LookupError(_unknown(name))


def select(name: str) -> list[Exercise]:
    """The exercises that a name stands for: an exercise, one of a session's modules, or a session's id or number."""
    try:
        chosen = session(name)
    except LookupError:
        return [find(name)]
    return [e for e in chosen.exercises if name not in chosen.modules or e.module == name]


def _unknown(name: str) -> str:
    known = [e.name for e in all_exercises()] + [s.id for s in SESSIONS]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return (f"there is no exercise or session {name!r}"
            + (f"; did you mean {' or '.join(near)}?" if near else "; `mha exercises` lists them all"))
