"""The standard checks for functions whose arguments or results hold tensors in tuples, lists and dicts."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import expect
from .exercise import CONTRACT, VALUES, Exercise
from .lab import Mismatch
from .standard import TOLERANCE, normal

Labels = Mapping[Any, Any]


def nested_cases(exercise: Exercise, inputs: Callable[[], tuple[tuple, Mapping[str, Any]]], oracle: Callable[..., Any],
                 arguments: tuple[str, ...], labels: Labels, kind: str = VALUES) -> None:
    """Adds C2 (dtype), C4 (gradients by fixed random cotangents) and C7 (two calls agree), as standard.tensor_cases.

    `inputs()` gives (args, kwargs), `arguments` their names; `oracle(*args, **kwargs)` gives tensors in the
    containers of the contract. `labels` names them, see `match`.
    """
    name = exercise.name

    @exercise.case("a gradient reaches every input, from the right place", kind)
    def gradients(lab):
        args, kwargs = inputs()
        args = tree_map(_leaf, args)
        got = lab.call(name, *args, **kwargs)
        want = oracle(*args, **kwargs)
        match(got, tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, want), labels)
        pairs = [(g, w, normal(*w.shape, seed=70 + i)) for i, (g, w) in enumerate(
            (g, w) for g, w in zip(_tensors(got), _tensors(want), strict=True) if w.requires_grad)]
        sources = [(path, t) for path, t in _paths(args, arguments) if t.requires_grad]
        theirs = torch.autograd.grad([w for _, w, _ in pairs], [t for _, t in sources], [c for *_, c in pairs],
                                     allow_unused=True)
        grads = lab.backward(*((g, c) for g, _, c in pairs))
        for (path, tensor), grad in zip(sources, theirs, strict=True):
            expect.gradient(grads, tensor, torch.zeros_like(tensor) if grad is None else grad, path)

    @exercise.case("the dtype follows the input, and two calls agree", CONTRACT)
    def dtypes(lab):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            args, kwargs = inputs()
            args = tree_map(lambda t, d=dtype: t.to(d) if _real(t) else t, args)
            first, again = lab.call(name, *args, **kwargs), lab.call(name, *args, **kwargs)
            exact = oracle(*tree_map(lambda t: t.double() if _real(t) else t, args), **kwargs)
            want = tree_map(lambda t, d=dtype: t.to(d) if _real(t) else t, exact)
            match(first, want, labels, TOLERANCE[dtype])
            match(again, first, labels, TOLERANCE[dtype], "the second call's ")


def match(got: Any, want: Any, labels: Labels, tolerance: float = 1e-10, prefix: str = "") -> None:
    """The containers of `want`, holding close tensors.

    `labels` names the parts: {0: "weight", 1: "bias"} for a pair; a dict inside a dict for containers in containers,
    whose own name stands under "".  A key without a label is shown as it is.
    """
    what = prefix + str(labels.get("", "the result"))
    if isinstance(want, torch.Tensor):
        expect.close(got, want, what, atol=tolerance, rtol=tolerance)
        return
    if want is None:
        expect.true(got is None, f"{what} is {_kind(got)}, expected None")
        return
    keys = structure(got, want, what)
    for key in keys:
        label = labels.get(key, f"{what}[{key!r}]")
        match(got[key], want[key], label if isinstance(label, Mapping) else {"": label}, tolerance, prefix)


def structure(got: Any, want: Any, what: str) -> list:
    """The keys of a container, after it was found to be the right kind of container with the right keys."""
    if isinstance(want, dict):
        if not isinstance(got, dict):
            raise Mismatch(f"{what} is {_kind(got)}, expected a dict")
        if got.keys() != want.keys():
            missing, extra = [k for k in want if k not in got], [k for k in got if k not in want]
            raise Mismatch(f"{what} {f'lacks {missing}' if missing else f'has {extra}, which nobody asked for'}")
        return list(want)
    if not isinstance(got, (tuple, list)) or len(got) != len(want):
        length = f" of {len(got)}" if isinstance(got, (tuple, list)) else ""
        raise Mismatch(f"{what} is {_kind(got)}{length}, expected a tuple of {len(want)}")
    return list(range(len(want)))


def _kind(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _real(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _leaf(value):
    return value.clone().requires_grad_() if _real(value) else value


def _tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _paths(value, names, path=""):
    """(name of the place, tensor), with the outermost level named by `names`."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _paths(part, (), f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            yield from _paths(part, (), names[i] if names else f"{path}[{i}]")
