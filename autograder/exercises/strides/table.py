"""Questions to a function of plain values. All of them are asked; then the first wrong answer is shown."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ... import expect
from ...exercise import CONTRACT, VALUES, Exercise
from ...lab import Mismatch

MISSING = object()


@dataclass(frozen=True)
class Answer:
    """One question of a table of values, what was said, and what is true.

    `got` is MISSING after an exception, or when it is not made of plain numbers.
    """

    args: tuple
    want: Any
    got: Any
    right: bool


class Table:
    """Cases that are lists of (arguments, expected answer); `agree(got, want, args)` raises Mismatch.

    Because every question is asked, a whole pattern of answers is known when a program fails: `recognise` names a
    wrong program by that pattern, however it is spelled.
    """

    def __init__(self, exercise: Exercise, agree: Callable[[Any, Any, tuple], None] | None = None):
        self.exercise, self._agree = exercise, agree or self._equal
        self._rows: dict[str, list[tuple[tuple, Any]]] = {}

    def case(self, title: str, rows: Iterable[tuple[tuple, Any]], kind: str = VALUES) -> None:
        """Register a case."""
        rows = list(rows)
        if kind == VALUES:
            self._rows[title] = rows

        @self.exercise.case(title, kind)
        def ask(lab):
            first = None
            for args, want in rows:
                try:
                    self._agree(lab.call(self.exercise.name, *args), want, args)
                except Mismatch as m:
                    first = first or m
            if first:
                raise first

    def tuples(self, *questions: tuple) -> None:
        """Register the promise that answers are tuples."""
        @self.exercise.case("the answer is a tuple", CONTRACT)
        def ask(lab):
            for args in questions:
                got = lab.call(self.exercise.name, *args)
                expect.true(isinstance(got, tuple),
                            f"{self.spell(args)} is {got!r}, a {type(got).__name__}; it compares with "
                            "`tensor.stride()`, which is a tuple")

    def recognise(self, id: str):
        """Register `fits(answers) -> bool` over all answers about values, of which at least one is wrong."""
        def add(fits):
            def on_trials(trials):
                answers = self._answers(trials)
                return any(not a.right for a in answers) and fits(answers)
            self.exercise.recognise(id)(on_trials)
            return fits
        return add

    def spell(self, args: tuple) -> str:
        return f"{self.exercise.name}({', '.join(map(str, args))})"

    def _equal(self, got, want, args):
        expect.equal(got, want, self.spell(args))

    def _answers(self, trials) -> list[Answer]:
        found = []
        for trial in trials:
            rows = self._rows.get(trial.case.title, [])
            for (args, want), seen in zip(rows, trial.transcript, strict=False):
                got = seen.value if seen.error is None and _plain(seen.value) else MISSING
                found.append(Answer(args, want, got, got is not MISSING and self._accepts(got, want, args)))
        return found

    def _accepts(self, got, want, args) -> bool:
        try:
            self._agree(got, want, args)
        except Mismatch:
            return False
        return True


def _plain(value) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (bool, int, float))
