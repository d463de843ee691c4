"""Sequences of method calls on fresh objects of one class, all in one request."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def play(make: Callable[[], Any], calls: Sequence[Sequence], histories: Sequence[Sequence[int]],
         reads: Sequence[str], describe: Callable[[BaseException], dict]) -> list[list[list]]:
    """For every history, what each of its steps did.

    `calls` are (method name, positional arguments); a history is a list of numbers of calls, and starts with `make()`.
    A step gives [value, None or the described error, *the attributes named in `reads`]. An error of `make` passes
    through.
    """
    return [_one(make(), [calls[number] for number in history], reads, describe) for history in histories]


def _one(subject, history, reads, describe):
    outcomes = []
    for name, args in history:
        value = error = None
        try:
            value = getattr(subject, name)(*args)
        except Exception as e:
            error = describe(e)
        outcomes.append([value, error, *(getattr(subject, read, None) for read in reads)])
    return outcomes
