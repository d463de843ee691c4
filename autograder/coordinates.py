"""Coded tensors: inputs whose answers tell which cell, head or key a program read.

Every function here turns an output back into the program that made it: strides, head maps, visible sets, block order.
Units: strides and offsets count elements.
"""
from __future__ import annotations

import math
from collections.abc import Mapping

import torch


def coded(**axes: int) -> torch.Tensor:
    """Every element's value is its own row-major address: coded(b=2, s=3) is [[0, 1, 2], [3, 4, 5]], float64."""
    return torch.arange(math.prod(axes.values()), dtype=torch.float64).reshape(*axes.values())


def address(value: float, axes: Mapping[str, int]) -> dict[str, int] | None:
    """The named coordinates that a coded value stands for; None when it is no address of these axes."""
    if not math.isfinite(value) or value != int(value) or not 0 <= value < math.prod(axes.values()):
        return None
    rest, found = int(value), {}
    for name, size in reversed(axes.items()):
        rest, found[name] = divmod(rest, size)
    return dict(reversed(found.items()))


def say(value: float, axes: Mapping[str, int]) -> str:
    """An address in words: "token 1 head 0 channel 3"; other values as they are."""
    place = address(value, axes)
    if place is None:
        return f"{value:g}, which is no element of the input"
    return " ".join(f"{name} {index}" for name, index in place.items())


def recover_strides(out: torch.Tensor) -> tuple[int, tuple[int, ...]] | None:
    """(offset, strides) with which `out` reads a coded source, or None if no single affine map does.

    The stride of an axis of size 1 is never used and comes back as 0.
    """
    if out.numel() == 0:
        return None
    base = out[(0,) * out.dim()].item()
    strides = []
    for axis, size in enumerate(out.shape):
        index = [0] * out.dim()
        index[axis] = min(1, size - 1)
        strides.append(out[tuple(index)].item() - base)
    grid = torch.full_like(out, base)
    for axis, size in enumerate(out.shape):
        shape = [1] * out.dim()
        shape[axis] = size
        grid = grid + strides[axis] * torch.arange(size, dtype=out.dtype).reshape(shape)
    if not torch.equal(grid, out):
        return None
    return int(base), tuple(int(s) for s in strides)


def visible_sets(out: torch.Tensor, k_len: int) -> list[frozenset[int] | None]:
    """For each query, the keys that it averaged, when V[key] = 2^key and all scores are equal; None if no set
    fits, or two do (with up to 6 keys none is ambiguous; {0,2,6} and {2,3,4,6} are).

    `out` holds one number a query, in any shape.
    """
    return [_average_of(v, k_len) for v in out.reshape(-1).tolist()]


def _average_of(mean: float, k_len: int) -> frozenset[int] | None:
    if not math.isfinite(mean):
        return None
    fits = []
    for count in range(1, k_len + 1):
        total = mean * count
        whole = round(total)
        if abs(total - whole) < 1e-6 and 0 < whole < 1 << k_len and whole.bit_count() == count:
            fits.append(frozenset(k for k in range(k_len) if whole >> k & 1))
    return fits[0] if len(fits) == 1 else None


def head_map(out: torch.Tensor, markers: torch.Tensor) -> list[int | None]:
    """For each of H outputs the index of the marker (one number per key/value head) that it shows, or None."""
    found = []
    for value in out.reshape(-1).tolist():
        hits = [i for i, m in enumerate(markers.tolist()) if math.isclose(value, m, rel_tol=1e-9, abs_tol=1e-9)]
        found.append(hits[0] if len(hits) == 1 else None)
    return found


def block_order(rows: torch.Tensor, marker: Mapping[str, float]) -> list[tuple[str, int]]:
    """Runs of equal markers along the first axis: [("q", 8), ("k", 8)]; unknown values are named "?"."""
    names = {v: k for k, v in marker.items()}
    runs: list[tuple[str, int]] = []
    for value in rows.reshape(rows.shape[0], -1)[:, 0].tolist():
        name = names.get(value, "?")
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return runs
