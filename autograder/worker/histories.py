"""Sequences of method calls on fresh objects of one class, all in one request."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def play(make: Callable[[], Any], histories: Sequence[Sequence], reads: Sequence[str],
         describe: Callable[[BaseException], dict]) -> list[list[dict]]:
    """For every history, what each of its steps did.

    A history is a list of (method name, positional arguments); every history starts with `make()`. A step gives
    {"value": ...} or {"error": ...}, and under "after" the attributes named in `reads`. An error of `make` passes
    through.
    """
    return [_one(make(), history, reads, describe) for history in histories]


def _one(subject, history, reads, describe):
    outcomes = []
    for name, args in history:
        try:
            outcome = {"value": getattr(subject, name)(*args)}
        except Exception as e:
            outcome = {"error": describe(e)}
        outcomes.append(outcome | {"after": {read: getattr(subject, read, None) for read in reads}})
    return outcomes
