"""Given to every session: one attention call over rows that are already projected and split into heads, and a way to
see any tensor as coordinates.

Letters: B batch, H heads, T target length, S source length, D width of queries and keys, D_v width of values.
"""
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .records_cross import *  # noqa: F403  of session 05
from .records_evidence import CLAIMS, KINDS, SPLITS, STEPS, Evidence, Release, Step  # noqa: F401  of session 08
from .records_runtime import (  # noqa: F401
    ATTENTION_OPERATORS,
    FASTPATH_REASONS,
    SOURCE_CLASSES,
    FastpathCall,
    FigureRecord,
    LlamaConfig,
    operators,
)


def attend(q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S D_v"],
           visible: Bool[Tensor, "*axes"] | None = None) -> tuple[Float[Tensor, "B H T D_v"],
                                                                 Float[Tensor, "B H T S"]]:
    """Scaled dot-product attention, head by head.

    q: [B,H,T,D]. k: [B,H,S,D]. v: [B,H,S,D_v]. visible: boolean, True where a query may look, broadcastable to
    [B,H,T,S]; None when all is visible.
    Returns (heads [B,H,T,D_v], probabilities [B,H,T,S]): probabilities = softmax over S of q·k / sqrt(D),
    heads = probabilities @ v. There is no dropout here.
    Raises ValueError ("no visible key") when a query may look at nothing: its softmax does not exist.
    Source: Vaswani et al. 2017, section 3.2.1.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if visible is not None:
        if not visible.any(-1).all():
            raise ValueError("a query has no visible key")
        scores = scores.masked_fill(~visible, -torch.inf)
    probabilities = scores.softmax(-1)
    return probabilities @ v, probabilities


def local_backward(grad_heads: Float[Tensor, "B H T D_v"], q: Float[Tensor, "B H T D"],
                   k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S D_v"],
                   probabilities: Float[Tensor, "B H T S"]) -> tuple[
                       Float[Tensor, "B H T D"], Float[Tensor, "B H S D"], Float[Tensor, "B H S D_v"]]:
    """The gradients that one `attend` call sends back to its queries, keys and values.

    grad_heads: [B,H,T,D_v], the gradient of a loss for the heads that `attend` returned; q, k, v and
    probabilities as in that call. A blocked pair has probability 0 and so passes nothing back.
    Returns (grad_q [B,H,T,D], grad_k [B,H,S,D], grad_v [B,H,S,D_v]).
    Source: Derivation. With dP = dO·vᵀ, softmax sends back dS = P * (dP - sum over S of P·dP).
    """
    grad_probabilities = grad_heads @ v.transpose(-2, -1)
    row_mean = (probabilities * grad_probabilities).sum(-1, keepdim=True)
    grad_scores = probabilities * (grad_probabilities - row_mean) / math.sqrt(q.shape[-1])
    return grad_scores @ k, grad_scores.transpose(-2, -1) @ q, probabilities.transpose(-2, -1) @ grad_heads


@dataclass(frozen=True)
class Stage:
    """How a tensor lies in memory at one step of a computation; what `merge_trace` of session 02 returns.

    name: of the step. shape: sizes. strides: in elements. contiguous: whether it is row-major.
    shares_storage: whether it lies in the memory of the step before it.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    contiguous: bool
    shares_storage: bool


def known_sizes(new_shape: Sequence[int], elements: int) -> tuple[int, ...] | None:
    """The target sizes of a `view` with a -1 worked out, or None where nothing fits.

    new_shape: sizes, one of which may be -1. elements: how many elements there are to share out.
    Source: PyTorch 2.13, `Tensor.view`.
    """
    sizes = list(new_shape)
    if sizes.count(-1) == 1:
        others = -math.prod(sizes)
        if others <= 0 or elements % others:
            return None
        sizes[sizes.index(-1)] = elements // others
    return tuple(sizes) if min(sizes, default=0) >= 0 else None


class Coordinates(str):
    """Text that a notebook shows line by line."""

    __repr__ = str.__str__


def coordinates(tensor: Tensor, axes: dict[str, int] | None = None, values: bool = False, most: int = 8) -> Coordinates:
    """Any tensor as coordinates: which element of its storage does every cell read?

    tensor: of any shape, strides, offset and dtype. axes: names and sizes of the axes in which the storage was
    written, {"b": 2, "s": 7, "c": 12}; given them, address 90 is shown as b1 s0 c6. values: read the cells' values
    as addresses instead of asking where the cells lie; for a coordinate-coded tensor, values survive a copy.
    most: rows, columns and tables shown; the rest is cut, and said so.
    Returns text: one table of the last two axes for every index of the others.
    Raises ValueError ("size") for names that do not span the storage: an address above their last element.
    Source: Derivation; address = offset + sum of index·stride.
    """
    shape, offset = tuple(tensor.shape), tensor.storage_offset()
    reads = torch.full(shape, offset)
    for axis, stride in enumerate(tensor.stride()):
        reads = reads + stride * torch.arange(shape[axis]).view(-1, *[1] * (len(shape) - axis - 1))
    if values:
        reads = tensor.detach().cpu()
    head = (f"shape {shape}, strides {tensor.stride()}, offset {offset}, "
            f"{'' if tensor.is_contiguous() else 'not '}contiguous")
    rows, columns = shape[-2:] if len(shape) > 1 else (1, reads.numel())
    tables = reads.reshape(math.prod(shape[:-2]), rows, columns)
    lines = [head]
    for number, table in enumerate(tables[:most]):
        if len(shape) > 2:
            lead = torch.unravel_index(torch.tensor(number), shape[:-2])
            lines.append(f"[{', '.join(str(int(i)) for i in lead)}]")
        cells = [[_spell(v, axes) for v in row] for row in table[:most, :most].tolist()]
        width = max((len(c) for row in cells for c in row), default=0)
        cut = "  ..." if columns > most else ""
        lines += ["  " + "  ".join(c.rjust(width) for c in row) + cut for row in cells]
        if rows > most:
            lines.append(f"  ... {rows - most} more rows")
    if len(tables) > most:
        lines.append(f"... {len(tables) - most} more tables")
    return Coordinates("\n".join(lines))


def _spell(address: float, axes: dict[str, int] | None) -> str:
    if axes is None:
        return f"{address:g}" if isinstance(address, float) else str(address)
    if not 0 <= address < math.prod(axes.values()) or address != int(address):
        raise ValueError(f"{address:g} is no address of axes of size {axes}")
    words, rest = [], int(address)
    for name, size in reversed(axes.items()):
        rest, place = divmod(rest, size)
        words.append(f"{name}{place}")
    return " ".join(reversed(words))


class HeadRouter(TypedDict):
    """The three stored maps of a trained head router (session 09), each reading rows of width M. A plain dict will do.

    shared: [H_s,M], one row a shared head. routed: [H_r,M], one row a routed head. kind: [2,M], row 0 weighs the
    shared family of heads and row 1 the routed one.
    Source: Jin et al. 2024 (MoH), the two-stage router.
    """

    shared: Float[Tensor, "H_s M"]
    routed: Float[Tensor, "H_r M"]
    kind: Float[Tensor, "2 M"]


class ComposeFactors(TypedDict):
    """What query rows and key rows say about mixing the heads of a pair (session 09). A plain dict will do.

    q1 [B,T,H,R] and k1 [B,S,H,R] lead H heads down to rank R, q2 [B,T,R,H] and k2 [B,S,R,H] lead back up; qg [B,T,H]
    and kg [B,S,H] are diagonal gates.
    Source: Xiao et al. 2024 (DCMHA), the low-rank plus diagonal decomposition.
    """

    q1: Float[Tensor, "B T H R"]
    q2: Float[Tensor, "B T R H"]
    k1: Float[Tensor, "B S H R"]
    k2: Float[Tensor, "B S R H"]
    qg: Float[Tensor, "B T H"]
    kg: Float[Tensor, "B S H"]
