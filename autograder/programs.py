"""Right and wrong programs that are kept in a file of their own, beside the exercise that registers them."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Programs:
    """`rights` lists programs, `wrongs` pairs (id, program): several spellings may share an id."""

    def __init__(self):
        self.rights: list[Any] = []
        self.wrongs: list[tuple[str, Any]] = []

    def right(self, program):
        """Register the decorated program as right."""
        self.rights.append(program)
        return program

    def wrong(self, id: str) -> Callable:
        """Register the decorated program as one spelling of a known fault."""
        def add(program):
            self.wrongs.append((id, program))
            return program
        return add
