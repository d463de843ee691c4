"""A learner's `torch.autograd.Function`, driven forward and backward with something in between."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .lab import Lab, Mismatch, Observation

RNG_ELEMENTS = torch.get_rng_state().numel()


@dataclass
class Passes:
    """Raw facts of one forward and one backward pass.

    grads: one for each floating-point argument, None where none came back. kept: (where, dtype, shape) of every tensor
    that the graph held between the passes, arguments and result left out. rng_kept: whether the backward pass left
    torch's global generator where it found it. raised: the error of the backward pass, as a line.
    """

    value: Any
    graph: bool
    grads: list[torch.Tensor | None]
    kept: list[tuple[str, torch.dtype, tuple[int, ...]]]
    rng_kept: bool
    raised: str | None

    def gradient(self, number: int, what: str) -> torch.Tensor:
        """The gradient of floating-point argument `number`; Mismatch where there is none."""
        if self.raised:
            raise Mismatch(f"the backward pass raised {self.raised}")
        got = self.grads[number] if self.graph else None
        if got is None:
            raise Mismatch(f"no gradient reaches {what}: the graph is cut between it and the result")
        return got

    def larger_than(self, elements: int) -> list[tuple[str, tuple[int, ...]]]:
        """(where, shape) of the kept tensors with more elements; a saved state of the generator does not count."""
        return [(where, shape) for where, dtype, shape in self.kept
                if torch.Size(shape).numel() > elements and not (dtype == torch.uint8 and shape == (RNG_ELEMENTS,))]


def two_passes(lab: Lab, name: str, *args, cotangent: torch.Tensor, seed: int = 1, draw: int = 0,
               watch: bool = False, change: int | None = None, record: bool = True) -> Passes:
    """`name.apply(*args)` after `torch.manual_seed(seed)`, then `draw` random numbers, then the backward pass.

    watch: see what the graph keeps. change: the argument that is changed in place between the passes. record: whether
    the numbers enter the transcript; leave it out where they depend on how a program draws its random numbers.
    Mismatch if the forward pass raises.
    """
    body, _ = lab._request("passes", name, args, {}, seed=seed, cotangent=cotangent, draw=draw, watch=watch,
                           change=change)
    lab._raise_error(body, name)
    raised = body["raised"]
    if raised:
        lab._not_started(raised)
    passes = Passes(body["value"], body["graph"], body["grads"], body["kept"], body["rng_kept"],
                    raised and f"{raised['type']}: {' '.join(raised['message'].split())[:240]}")
    numbers = record and change is None
    lab.transcript.append(Observation(name, value=body["value"] if numbers else "random"))
    lab.transcript.append(Observation("backward", value=[body["graph"], body["grads"]] if numbers else "random",
                                      error=raised and raised["type"]))
    return passes
