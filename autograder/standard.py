"""The checks that every tensor exercise shares (course map, conventions C1-C7), and the faults they catch."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from . import expect
from .exercise import CONTRACT, VALUES, Exercise, Program
from .lab import Lab, sizes_of

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Reproducible standard normal numbers, drawn in float64 whatever the dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tensor_cases(exercise: Exercise, inputs: Callable[[], tuple[Sequence[torch.Tensor], Mapping[str, Any]]],
                 oracle: Callable[..., torch.Tensor], names: Sequence[str] = (), kind: str = VALUES) -> None:
    """Adds C2 (dtype), C4 (gradients by a fixed random cotangent) and C7 (two calls agree).

    `inputs()` gives float64 tensors and keyword arguments; `oracle(*tensors, **kwargs)` is differentiable. C3 (inputs
    unchanged) is watched on every call of every case. `kind` is that of the gradient case: CONTRACT where wrong
    programs may treat real numbers in many ways.
    """
    name = exercise.name

    @exercise.case("a gradient reaches every input, from the right place", kind)
    def gradients(lab: Lab):
        tensors, kwargs = inputs()
        tensors = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
        got = expect.tensor(lab.call(name, *tensors, **kwargs))
        want = oracle(*tensors, **kwargs)
        expect.close(got, want.detach(), names=names)
        cotangent = normal(*want.shape, seed=77)
        wanted = [t for t in tensors if t.requires_grad]
        theirs = torch.autograd.grad(want, wanted, cotangent)
        grads = lab.backward((got, cotangent))
        for i, (tensor, grad) in enumerate(zip(wanted, theirs, strict=True)):
            expect.gradient(grads, tensor, grad, f"input {i + 1}" if len(wanted) > 1 else "the input")

    @exercise.case("the dtype follows the input, and two calls agree", CONTRACT)
    def dtypes(lab: Lab):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            tensors, kwargs = inputs()
            tensors = [t.to(dtype) if t.is_floating_point() else t for t in tensors]
            first, again = (expect.tensor(lab.call(name, *tensors, **kwargs)) for _ in range(2))
            want = oracle(*tensors, **kwargs)
            expect.dtype(first, dtype)
            expect.close(first, want, names=names, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
            expect.close(again, first, "the second call's result", names)


def shared_faults(exercise: Exercise) -> list[Program]:
    """Faulty programs that a tensor exercise must recognise, made from its first right program."""
    right = exercise.rights[0].namespace[exercise.name]
    first = _Sizes()
    makers = {
        "mutates-input": lambda f: lambda *a, **k: _and_mutate(f(*a, **k), a),
        "detaches-graph": lambda f: lambda *a, **k: _map(f(*a, **k), torch.Tensor.detach),
        "casts-to-float32": lambda f: lambda *a, **k: _map(
            f(*a, **k), lambda t: t.float() if t.is_floating_point() else t),
        "hard-codes-sizes": lambda f: lambda *a, **k: first.only(f, a, k),
        "shape-only-stub": lambda f: lambda *a, **k: _map(f(*a, **k), torch.zeros_like),
    }
    return [Program(id_, {exercise.name: _wrapped(right, make)}, "") for id_, make in makers.items()
            if id_ not in exercise.exempt]


def _wrapped(right, make):
    if isinstance(right, type) and issubclass(right, torch.autograd.Function):
        return type(right.__name__, (right,), {"apply": staticmethod(make(right.apply))})
    if isinstance(right, type):
        return type(right.__name__, (right,), {"forward": lambda self, *a, **k: make(
            lambda *x, **y: right.forward(self, *x, **y))(*a, **k)})
    return make(right)


class _Sizes:
    """A program that was written for the first sizes it ever saw."""

    def __init__(self):
        self.known = None

    def only(self, function, args, kwargs):
        sizes = sizes_of(args, kwargs)
        result = function(*args, **kwargs)
        self.known = self.known or sizes
        if sizes != self.known:
            raise RuntimeError(f"shape '{self.known[0]}' is invalid for input of this size")
        return result


def _and_mutate(result, args):
    with torch.no_grad():
        for tensor in tree_leaves(args):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor.neg_()
    return result


def _map(value, change):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_map(v, change) for v in value)
    if isinstance(value, list):
        return [_map(v, change) for v in value]
    if isinstance(value, dict):
        return {k: _map(v, change) for k, v in value.items()}
    return value
