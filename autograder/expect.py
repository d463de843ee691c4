"""What a case says about an answer. Each function returns silently, or raises Mismatch with the cell that shows it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .coordinates import address, recover_strides, say
from .lab import Mismatch, Opaque
from .report import Figure, Reading


def tensor(got: Any, what: str = "the result") -> torch.Tensor:
    """`got`, which has to be a tensor."""
    if not isinstance(got, torch.Tensor):
        kind = got.type if isinstance(got, Opaque) else type(got).__name__
        raise Mismatch(f"{what} is a {kind}, expected a tensor")
    return got


def shape(got: Any, want: Sequence[int], what: str = "the result", names: str = "") -> None:
    """Same number of axes and same extents."""
    tensor(got, what)
    if tuple(got.shape) != tuple(want):
        named = f" {names}" if names else ""
        raise Mismatch(f"{what} has shape {list(got.shape)}, expected{named} {list(want)}")


def dtype(got: torch.Tensor, want: torch.dtype, what: str = "the result") -> None:
    """The dtype of the input is the dtype of the result."""
    if got.dtype != want:
        raise Mismatch(f"{what} is {_name(got.dtype)}, expected {_name(want)}: the dtype follows the input")


def layout(got: Any, want: torch.Tensor, axes: Mapping[str, int], what: str = "out",
           names: Sequence[str] = (), split: Sequence[int] = ()) -> None:
    """Coordinate-coded values: `got` equals `want`, both read from a source coded with `axes`.

    `split` is the shape in which the strides are read back, where an axis of the result packs several.
    """
    shape(got, want.shape, what)
    dtype(got, want.dtype, what)
    wrong = (got.double() != want.double()) | got.isnan()
    if not wrong.any():
        return
    at = wrong.nonzero()[0].tolist()
    holds, expected = (say(t[tuple(at)].item(), axes) for t in (got, want))
    text = f"{what}{_index(at)} holds {holds}, expected {expected}"
    ours, theirs = (recover_strides(t.double().reshape(tuple(split) or t.shape)) for t in (got, want))
    figure = Figure.around(got, want, at, what, lambda v: _short(v, axes), names)
    if ours and theirs:
        if figure:
            both = ([offset, *steps] for offset, steps in (ours, theirs))
            figure.reading = Reading(dict(axes), list(split or got.shape), *both)
        text += f"; you read the source with strides {_strides(ours)}, the contract reads it with {_strides(theirs)}"
    raise Mismatch(text, figure)


def close(got: Any, want: torch.Tensor, what: str = "the result", names: Sequence[str] = (),
          atol: float = 1e-10, rtol: float = 1e-9) -> None:
    """Values within tolerance of the oracle, compared in float64."""
    shape(got, want.shape, what)
    dtype(got, want.dtype, what)
    mine, oracle = got.double(), want.double()
    wrong = ~((mine - oracle).abs() <= atol + rtol * oracle.abs())
    if not wrong.any():
        return
    at = wrong.nonzero()[0].tolist()
    place = ", ".join(f"{n} {i}" for n, i in zip(names, at, strict=False)) if names else ""
    number = int(wrong.sum())
    text = (f"{what}{_index(at)}{f' ({place})' if place else ''} is {mine[tuple(at)].item():.6g}, "
            f"expected {oracle[tuple(at)].item():.6g}; {number} of {wrong.numel()} values differ")
    raise Mismatch(text, Figure.around(got, want, at, what, lambda v: f"{v:.4g}", names))


def equal(got: Any, want: Any, what: str = "the result") -> None:
    """Plain Python values: equal, and of the same type where that matters (True is not 1)."""
    if not _same_value(got, want):
        raise Mismatch(f"{what} is {_plain(got)}, expected {_plain(want)}")


def true(condition: bool, message: str) -> None:
    """`condition`, or Mismatch(message)."""
    if not condition:
        raise Mismatch(message)


def view_of(lab, got: torch.Tensor, given: torch.Tensor, strides: Sequence[int], what: str = "the result") -> None:
    """`got` lies in the memory of `given`, with these element strides (axes of size 1 are free)."""
    facts = lab.last
    if got.numel() and not facts.shares_storage(got, given):
        raise Mismatch(f"{what} lies in new memory ({got.numel() * got.element_size()} bytes were copied); "
                       "a view of the input is enough")
    mine = facts.layout(got).stride
    if any(n > 1 and a != b for n, a, b in zip(got.shape, mine, strides, strict=True)):
        raise Mismatch(f"{what} has strides {tuple(mine)}, expected {tuple(strides)}")


def gradient(grads, given: torch.Tensor | str, want: torch.Tensor, what: str, names: Sequence[str] = (),
             atol: float = 1e-9) -> None:
    """The gradient of an input (a tensor) or a parameter (its name)."""
    got = grads.params.get(given) if isinstance(given, str) else grads.of(given)
    if got is None:
        raise Mismatch(f"no gradient reaches {what}: the graph is cut between it and the result")
    close(got, want, f"the gradient of {what}", names, atol=atol, rtol=1e-8)


def _same_value(got, want):
    if isinstance(want, torch.dtype) or want is None:
        return got is want
    if isinstance(want, bool) or isinstance(got, bool):
        return got is want
    if isinstance(want, (int, float)):
        return isinstance(got, (int, float)) and got == want
    if isinstance(want, (list, tuple)):
        return (isinstance(got, (list, tuple)) and len(got) == len(want)
                and all(map(_same_value, got, want)))
    if isinstance(want, dict):
        return isinstance(got, dict) and got.keys() == want.keys() and all(
            _same_value(got[k], want[k]) for k in want)
    return type(got) is type(want) and got == want


def _plain(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    return value.text if isinstance(value, Opaque) else repr(value)


def _name(kind):
    return str(kind).removeprefix("torch.")


def _index(at):
    return f"[{','.join(map(str, at))}]"


def _strides(found):
    offset, strides = found
    return f"({','.join(map(str, strides))})" + (f" from element {offset}" if offset else "")


def _short(value, axes):
    place = address(value, axes)
    return f"{value:g}" if place is None else " ".join(f"{k[0]}{v}" for k, v in place.items())
