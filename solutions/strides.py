"""Session 02, the stride proof: where an element lies, and when a new shape needs no copy.

Letters: B batch, S tokens, Q query tokens, H heads, D head width. Strides, offsets and addresses count elements,
not bytes. Row-major: the last axis is the fastest. Head packing is head-major: channel c = h·D + d.
"""
import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

from mha_lab.given import Stage, known_sizes


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a fresh tensor of this shape, in elements.

    shape: sizes; a size of 0 counts as 1.
    Returns one stride an axis: (2, 3, 4, 5) gives (60, 20, 5, 1).
    Source: PyTorch 2.13, `torch.empty(shape).stride()`.
    """
    ### BEGIN SOLUTION
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
    ### END SOLUTION


def storage_offset(index: Sequence[int], strides: Sequence[int], offset: int = 0) -> int:
    """Which element of the storage a coordinate reads.

    index: one number an axis. strides: in elements. offset: where the tensor begins in its storage, in elements.
    Returns the address, in elements: ((1, 2, 3), (20, 5, 1)) gives 33.
    Raises ValueError ("rank") when index and strides have different lengths.
    Source: Derivation; it is the definition of a strided tensor.
    """
    ### BEGIN SOLUTION
    if len(index) != len(strides):
        raise ValueError(f"an index of rank {len(index)} does not fit strides of rank {len(strides)}")
    return offset + sum(i * stride for i, stride in zip(index, strides, strict=True))
    ### END SOLUTION


def coordinate_coded(shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Shaped[Tensor, "*shape"]:
    """A tensor whose values tell where they came from.

    shape: sizes. dtype: of the result.
    Returns a tensor in which every element is its own row-major address: the element at (i, j) of [3,4] is 4·i + j.
    Raises ValueError ("exact") when the dtype cannot hold every address, that is when the highest one lies above the
    numbers it counts without gaps: 2048 for float16, 256 for bfloat16.
    Source: Derivation.
    """
    ### BEGIN SOLUTION
    highest = math.prod(shape) - 1
    gapless = 2 / torch.finfo(dtype).eps if dtype.is_floating_point else torch.iinfo(dtype).max
    if highest > gapless:
        raise ValueError(f"{dtype} is exact up to {gapless:.0f}, the highest address of {tuple(shape)} is {highest}")
    return torch.arange(highest + 1).to(dtype).view(*shape)
    ### END SOLUTION


def decode(value: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The coordinate that a row-major address stands for; undoes `coordinate_coded`.

    value: an address, a whole number. shape: the sizes that it was coded with.
    Returns one index an axis: (33, (2, 4, 5)) gives (1, 2, 3).
    Raises ValueError ("range") when the shape has no such address.
    Source: Derivation (a number in mixed radix).
    """
    ### BEGIN SOLUTION
    if not 0 <= value < math.prod(shape):
        raise ValueError(f"address {value} is out of range for {tuple(shape)}")
    index, rest = [], int(value)
    for size in reversed(shape):
        rest, place = divmod(rest, size)
        index.append(place)
    return tuple(reversed(index))
    ### END SOLUTION


def transposed_layout(shape: Sequence[int], strides: Sequence[int], dim0: int,
                      dim1: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides after `transpose(dim0, dim1)`, which moves no element.

    shape, strides: of the tensor before. dim0, dim1: axes; -1 is the last one.
    Returns (shape, strides), each a tuple.
    Source: PyTorch 2.13, `Tensor.transpose`.
    """
    ### BEGIN SOLUTION
    order = list(range(len(shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return tuple(shape[axis] for axis in order), tuple(strides[axis] for axis in order)
    ### END SOLUTION


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether reading in row-major order is walking through the storage element by element.

    shape, strides: of the tensor. The stride of an axis of size 1 says nothing, and a tensor without elements counts.
    Source: PyTorch 2.13, `Tensor.is_contiguous`.
    """
    ### BEGIN SOLUTION
    if 0 in shape:
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True
    ### END SOLUTION


def view_strides(shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...] | None:
    """The strides that `view(new_shape)` gives a tensor of this layout, or None where `view` refuses.

    shape, strides: of the tensor, in elements. new_shape: the target sizes. Where it holds a -1, both None and the
    strides are accepted: the rule begins when all sizes are known, and the given `known_sizes` can work it out.
    Neighbouring axes can become one axis only while stride[i] = size[i+1]·stride[i+1]. Strides of new axes of size 1
    and of tensors without elements are free. No tensor is built here: the answer comes from the numbers.
    Source: PyTorch 2.13, `Tensor.view`.
    """
    ### BEGIN SOLUTION
    new_shape = known_sizes(new_shape, math.prod(shape))
    if new_shape is None or math.prod(new_shape) != math.prod(shape):
        return None
    if 0 in shape:
        return row_major_strides(new_shape)

    blocks = [[1, 1]]  # (elements, stride), from the last axis to the first
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        elements, step = blocks[-1]
        if size == 1:
            continue
        if stride == elements * step:
            blocks[-1][0] *= size
        else:
            blocks.append([size, stride])

    answer, (left, step) = [], blocks.pop(0)
    for size in reversed(new_shape):
        if left == 1 and size > 1:
            left, step = blocks.pop(0)
        if left % size:
            return None
        answer.append(step)
        left, step = left // size, step * size
    return tuple(reversed(answer))
    ### END SOLUTION


def split_heads_as_strided(packed: Shaped[Tensor, "B S HD"], num_heads: int) -> Shaped[Tensor, "B H S D"]:
    """`split_heads` of session 01 as one `as_strided` call: the layout is written down by hand.

    packed: [B,S,H·D], with any strides and any offset. num_heads: H, which divides H·D.
    Returns [B,H,S,D], a view of the same storage: heads[b,h,s,d] is packed[b,s,h·D+d].
    Source: PyTorch 2.13, `Tensor.as_strided`.
    """
    ### BEGIN SOLUTION
    batch, tokens, width = packed.shape
    of_batch, of_token, of_channel = packed.stride()
    head_width = width // num_heads
    return packed.as_strided((batch, num_heads, tokens, head_width),
                             (of_batch, head_width * of_channel, of_token, of_channel))
    ### END SOLUTION


def merge_trace(heads: Shaped[Tensor, "B H Q D"]) -> list[Stage]:
    """What happens to the memory when heads are merged by `transpose(1, 2)`, `contiguous()`, `view(B, Q, H·D)`.

    heads: [B,H,Q,D], with any strides and any offset.
    Returns four `Stage`s named "heads", "transpose", "contiguous" and "view". `shares_storage` compares a stage with
    the one before it; for "heads", which has none, it is free.
    Source: PyTorch 2.13, `Tensor.contiguous`.
    """
    ### BEGIN SOLUTION
    batch, count, queries, width = heads.shape
    transposed = heads.transpose(1, 2)
    contiguous = transposed.contiguous()
    merged = contiguous.view(batch, queries, count * width)
    stages, storage = [], heads.untyped_storage().data_ptr()
    for name, tensor in (("heads", heads), ("transpose", transposed), ("contiguous", contiguous), ("view", merged)):
        before, storage = storage, tensor.untyped_storage().data_ptr()
        stages.append(Stage(name, tuple(tensor.shape), tensor.stride(), tensor.is_contiguous(), storage == before))
    return stages
    ### END SOLUTION


def layout_oracle(split: Callable[[Tensor, int], Tensor], merge: Callable[[Tensor], Tensor]) -> list[str]:
    """A test of head layouts, written by you: does this pair split and merge as the contract says?

    split: split(packed [B,S,H·D], num_heads) -> heads [B,H,S,D], heads[b,h,s,d] is packed[b,s,h·D+d].
    merge: merge(heads [B,H,Q,D]) -> packed [B,Q,H·D], packed[b,q,h·D+d] is heads[b,h,q,d].
    Returns messages, one for each thing that is wrong; an empty list for a right pair. Copies are right, and so are
    views. A pair that raises is wrong. Heads reach `merge` both as strided and as contiguous tensors.
    Source: Derivation.
    """
    ### BEGIN SOLUTION
    messages = []
    for B, S, H, D in ((2, 7, 3, 4), (3, 4, 2, 5)):
        rows = coordinate_coded((B, S, H, D))
        packed, heads = rows.view(B, S, H * D), rows.transpose(1, 2)
        for what, function, given, want in (("split", split, (packed, H), heads),
                                            ("merge of strided heads", merge, (heads,), packed),
                                            ("merge of contiguous heads", merge, (heads.contiguous(),), packed)):
            try:
                got = function(*given)
            except Exception as error:
                messages.append(f"{what} raised {type(error).__name__}: {error}")
                continue
            if getattr(got, "shape", None) != want.shape:
                messages.append(f"{what} is not a tensor {list(want.shape)}")
            elif not torch.equal(got, want):
                cell = tuple((got != want).nonzero()[0].tolist())
                messages.append(f"{what}{list(cell)} holds the code {got[cell]:g}, expected {want[cell]:g}, "
                                f"which is the element {decode(int(want[cell]), (B, S, H, D))} of {[B, S, H, D]}")
    return messages
    ### END SOLUTION
