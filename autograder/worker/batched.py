"""A function of the grader under `torch.vmap`: it is asked once a sample, as it would be in a loop."""
from __future__ import annotations

import functools
from collections.abc import Callable

import torch

_functorch = torch._C._functorch


def sample_by_sample(function: Callable) -> Callable:
    """`function(*tensors)`, which cannot see a batched tensor, made ready for one level (or more) of `torch.vmap`."""
    @functools.wraps(function)
    def asked(*args, **kwargs):
        batched = [a for a in args if isinstance(a, torch.Tensor) and _functorch.is_batchedtensor(a)]
        if not batched:
            return function(*args, **kwargs)
        level = max(map(_functorch.maybe_get_level, batched))
        plain = [_unwrapped(a, level) for a in args]
        size = next(a.shape[d] for a, d in plain if d is not None)
        answers = [asked(*(a if d is None else a.select(d, i) for a, d in plain), **kwargs) for i in range(size)]
        return _functorch._add_batch_dim(torch.stack(answers), 0, level)
    return asked


def _unwrapped(value, level):
    """(the value one level further out, its batch axis or None)."""
    if not isinstance(value, torch.Tensor) or not _functorch.is_batchedtensor(value):
        return value, None
    if _functorch.maybe_get_level(value) != level:
        return value, None
    return _functorch.get_unwrapped(value), _functorch.maybe_get_bdim(value)
