"""One turn of the clock, on the side of the program: inputs that nobody could know before, and all answers in full.

The numbers come beforehand, as one long pool for each argument. A turn names the places at which its inputs begin in
the pools, and the factor of the first one; a place is one of thousands, so no answer can be ready. What is not cut out
of a pool is not copied either: a turn costs little beside the program.
"""
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_equal, _clone = torch.equal, torch.Tensor.clone


class Turns:
    """`stage` once, `take` as often as asked; `echo` is what a turn costs without a program, `intact` costs nobody."""

    def __init__(self):
        self._pools: list[torch.Tensor] = []
        self._pristine: list[torch.Tensor] = []
        self._calls: list[list[torch.Tensor]] = []
        self._outputs: list[Any] = []

    def stage(self, pools: Sequence[torch.Tensor], core: int | None) -> None:
        """Keep the pools, and stay on one core where the system lets us."""
        self._pools, self._pristine = list(pools), [_clone(p) for p in pools]
        with contextlib.suppress(AttributeError, OSError):
            if core is not None:
                os.sched_setaffinity(0, {core})

    def take(self, function: Callable, turn: Mapping[str, Any]) -> dict[str, Any]:
        """Call `function` once for each entry of turn["at"]: {"outputs": [...]}."""
        self._calls = [self._inputs(at, turn) for at in turn["at"]]
        self._outputs = [function(*inputs, **turn["fixed"]) for inputs in self._calls]
        return {"outputs": self._outputs}

    def echo(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a turn, and the answers of the one before: all but the program."""
        for at in turn["at"]:
            self._inputs(at, turn)
        return {"outputs": self._outputs}

    def intact(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        """Whether the inputs of the turn before are still what they were."""
        first = [self._inputs(at, turn)[0] for at in turn["at"]]
        same = all(_equal(calls[0], given) for calls, given in zip(self._calls, first, strict=True))
        return {"intact": same and all(map(_equal, self._pools, self._pristine))}

    def _inputs(self, at: Sequence[int], turn: Mapping[str, Any]) -> list[torch.Tensor]:
        cut = [pool[start:start + _size(shape)].view(shape)
               for pool, start, shape in zip(self._pools, at, turn["shapes"], strict=True)]
        return [cut[0] * turn["factor"], *cut[1:]]


def _size(shape: Sequence[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
