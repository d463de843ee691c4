"""Layouts and target shapes, drawn at random: made by torch's own slicing, permuting and expanding."""
from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

import torch

KINDS = ("contiguous", "permuted", "sliced", "stepped", "expanded", "ones", "empty", "mixed")


@dataclass(frozen=True)
class Layout:
    """Sizes and strides of a real tensor, and the operations that made it."""

    kind: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def layouts(kind: str, count: int, seed: int) -> list[tuple[Layout, torch.Tensor]]:
    """`count` layouts of a kind, with the (meta) tensors that have them."""
    rng = random.Random(f"{kind} {seed}")
    found = []
    while len(found) < count:
        tensor = _make(rng, kind)
        if kind in ("empty", "mixed") or tensor.numel():
            found.append((Layout(kind, tuple(tensor.shape), tensor.stride()), tensor))
    return found


def target(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with as many elements: axes merged, split, both, or all cut anew; sometimes with axes of size 1."""
    sizes = list(shape)
    if 0 in sizes:
        sizes = [rng.choice((0, 1, 2, 3)) for _ in range(rng.randint(1, 4))]
        sizes[rng.randrange(len(sizes))] = 0
    else:
        way = rng.random()
        if way < 0.2:
            sizes = _factors(rng, prod(sizes), rng.randint(1, 4))
        for _ in range(rng.randint(1, 3) if way >= 0.2 else 0):
            at = rng.randrange(len(sizes)) if sizes else 0
            if sizes and (rng.random() < 0.5 or len(sizes) == 1):
                sizes[at:at + 1] = _factors(rng, sizes[at], 2)
            elif len(sizes) > 1:
                at = rng.randrange(len(sizes) - 1)
                sizes[at:at + 2] = [sizes[at] * sizes[at + 1]]
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        sizes.insert(rng.randint(0, len(sizes)), 1)
    return tuple(sizes)


def questions(count: int, seed: int):
    """`count` questions of every kind, ((shape, strides, new shape), torch's answer)."""
    rng = random.Random(seed)
    for kind in KINDS:
        for made, tensor in layouts(kind, count, seed):
            new_shape = target(rng, made.shape)
            yield (made.shape, made.strides, new_shape), viewed(tensor, new_shape)


def viewed(tensor: torch.Tensor, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The oracle: the strides of `tensor.view(shape)`, or None where torch refuses."""
    try:
        return tensor.view(shape).stride()
    except RuntimeError:
        return None


def _make(rng, kind):
    sizes = [rng.choice((2, 2, 3, 4, 6)) for _ in range(rng.randint(1 if kind == "contiguous" else 2, 4))]
    if kind in ("ones", "mixed"):
        sizes.insert(rng.randint(0, len(sizes)), 1)
    if kind == "empty":
        sizes[rng.randrange(len(sizes))] = 0
    tensor = torch.empty(sizes, device="meta")
    steps = {"contiguous": (), "ones": ("permute", "slice", "one"), "empty": ("permute", "step"),
             "permuted": ("permute",), "sliced": ("slice",), "stepped": ("step",), "expanded": ("expand", "permute?"),
             "mixed": ("permute?", "slice?", "step?", "expand?", "one?", "permute?")}[kind]
    for step in steps:
        if step.endswith("?") and rng.random() < 0.5:
            continue
        tensor = _STEPS[step.rstrip("?")](rng, tensor)
    return tensor


def _permute(rng, tensor):
    order = list(range(tensor.dim()))
    rng.shuffle(order)
    return tensor.permute(order)


def _slice(rng, tensor):
    axis = rng.randrange(tensor.dim())
    size = tensor.shape[axis]
    if size < 2:
        return tensor
    start = rng.randrange(size - 1)
    return tensor.narrow(axis, start, rng.randint(1, size - start))


def _step(rng, tensor):
    axis = rng.randrange(tensor.dim())
    return tensor[(slice(None),) * axis + (slice(rng.randint(0, 1), None, rng.randint(2, 3)),)]


def _expand(rng, tensor):
    axis = rng.randint(0, tensor.dim())
    tensor = tensor.unsqueeze(axis)
    sizes = list(tensor.shape)
    sizes[axis] = rng.randint(2, 3)
    if rng.random() < 0.4:
        sizes = [rng.randint(2, 3), *sizes]
    return tensor.expand(sizes)


def _one(rng, tensor):
    """An axis cut down to size 1 keeps the stride that it had."""
    axis = rng.randrange(tensor.dim())
    return tensor.narrow(axis, 0, min(1, tensor.shape[axis]))


def _factors(rng, number, parts):
    sizes = []
    for _ in range(parts - 1):
        size = rng.choice([n for n in range(1, number + 1) if number % n == 0])
        sizes.append(size)
        number //= size
    return [*sizes, number]


_STEPS = {"permute": _permute, "slice": _slice, "step": _step, "expand": _expand, "one": _one}


@dataclass(frozen=True)
class Stage:
    """What merge_trace returns; the learner's own is `mha_lab.given.Stage`."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    contiguous: bool
    shares_storage: bool
