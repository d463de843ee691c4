"""A forward and a backward pass with something in between, and what the graph kept meanwhile. Facts, no verdict."""
from __future__ import annotations

import functools
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

_EMPTY = types.CellType()
_grad, _state = torch.autograd.grad, torch.get_rng_state


def two_passes(function: type[torch.autograd.Function], request: dict, tensors: list[torch.Tensor]) -> dict:
    """`function.apply(*args)`, then `draw` random numbers, then the backward pass of `cotangent`.

    watch: also report the tensors that the graph keeps (hooks on saved tensors switch torch's version check off, so
    this is asked for on its own). change: the number of an argument that is changed in place between the passes.
    Returns value, graph, grads (one for each floating-point argument, None where none came), kept (name, dtype,
    shape), rng_kept, and raised, the error of the backward pass.
    """
    args = request["args"]
    before = [(t, t._version, t.detach().clone()) for t in tensors]
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
    torch.default_generator.manual_seed(request["seed"])
    saved: list[torch.Tensor] = []
    if request.get("watch"):
        with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            value = function.apply(*args)
    else:
        value = function.apply(*args)
    mutated = [i for i, (t, version, copy) in enumerate(before) if t._version != version or not torch.equal(t, copy)]
    facts = {"value": value, "mutated": mutated, "graph": False, "grads": [], "kept": [], "rng_kept": True,
             "raised": None}
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return facts
    if request.get("watch"):
        given = {t.untyped_storage().data_ptr() for t in (*tensors, value)}
        named = [("a saved tensor", t) for t in saved] + list(_attributes(value.grad_fn))
        facts["kept"] = [(name, t.dtype, tuple(t.shape)) for name, t in named
                         if t.untyped_storage().data_ptr() not in given]
    if request.get("change") is not None:
        with torch.no_grad():
            args[request["change"]].mul_(1.5)
    torch.rand(request.get("draw", 0))
    state = _state()
    try:
        facts["grads"] = list(_grad(value, wanted, request["cotangent"], allow_unused=True))
        facts["graph"] = True
    except Exception as e:
        facts["raised"] = e
    facts["rng_kept"] = bool(torch.equal(_state(), state))
    return facts


def _attributes(node) -> Iterable[tuple[str, torch.Tensor]]:
    """The tensors that Python attributes of the graph's nodes hold, by name."""
    nodes, seen = [node], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [n for n, _ in node.next_functions]
        for name, value in getattr(node, "__dict__", {}).items():
            yield from ((f"ctx.{name}", t) for t in _held(value))


def _held(value: Any, depth: int = 0) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    if depth == 4:
        return
    inside: Iterable[Any] = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, (list, tuple, set)):
        inside = value
    elif isinstance(value, functools.partial):
        inside = value.func, value.args, value.keywords
    elif getattr(value, "__closure__", None):
        inside = [c.cell_contents for c in value.__closure__ if c != _EMPTY]
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        inside = vars(value).values()
    for part in inside:
        yield from _held(part, depth + 1)
