"""From a coordinate to an address."""
from itertools import starmap
from operator import mul

import torch

from ...coordinates import coded
from ...exercise import CONTRACT, Exercise
from .table import Table

exercise = Exercise(
    "storage_offset", step=2, points=1, minutes=3, difficulty=1, importance=5, tensor=False,
    summary="Which element of the storage a coordinate of a tensor reads.",
    hints=(
        "Walk: start where the tensor starts, then take index[0] steps along the first axis. Where are you?",
        "Every axis adds its own part, in any order. What is one step of an axis worth?",
        "Python's `zip` stops at the shorter list without a word. Decide what to do when the ranks differ before you "
        "pair them; and a slice does not begin at element 0.",
    ),
    hides="A tensor that starts at element 0 hides a forgotten offset; index 0 on an axis hides its stride.",
)

table = Table(exercise)


def rows(tensor, *indices):
    """The oracle: elements of a coded storage hold their own address, so the element read is the answer."""
    return [((index, tensor.stride(), tensor.storage_offset()), int(tensor[index])) for index in indices]


_base = coded(batch=2, token=7, channel=12)
_heads = coded(batch=2, token=3, head=4, channel=5)

table.case("a fresh tensor, and the same one with heads first",
           [(args[:2], want) for t in (_heads, _heads.transpose(1, 2))
            for args, want in rows(t, (0, 0, 0, 0), (1, 2, 2, 4), (0, 2, 1, 3), (1, 0, 2, 0))])
table.case("a slice begins at its own offset",
           rows(_base[1:, 2:, 4:8], (0, 0, 0), (0, 4, 3), (0, 1, 2)) + rows(_base[1], (0, 0), (6, 11)))
table.case("steps and broadcast axes: strides of any size, 0 too",
           rows(_base[:, 1::2, ::3], (1, 2, 3), (0, 1, 1)) + rows(_base[:, :1].expand(2, 5, 12), (1, 4, 7), (1, 0, 7))
           + rows(_heads[0, 0, 0, 0], ()))


@exercise.case("refuses an index of another rank", CONTRACT)
def ranks(lab):
    lab.raises(ValueError, "rank", "storage_offset", (1, 2), (20, 5, 1))
    lab.raises(ValueError, "rank", "storage_offset", (1, 2, 3, 0), (20, 5, 1))


def _same_rank(index, strides):
    if len(index) != len(strides):
        raise ValueError(f"an index of rank {len(index)}, strides of rank {len(strides)}")


@exercise.right
def summed_products(index, strides, offset=0):
    _same_rank(index, strides)
    return offset + sum(map(mul, index, strides))


@exercise.right
def one_axis_after_another(index, strides, offset=0):
    if len(index) - len(strides):
        raise ValueError("Rank")
    for axis in range(len(index)):
        offset += index[axis] * strides[axis]
    return offset


@exercise.right
def star_mapped(index, strides, offset=0):
    try:
        return sum(starmap(mul, zip(index, strides, strict=True)), offset)
    except ValueError:
        raise ValueError("index and strides differ in rank") from None


@exercise.right
def with_torch(index, strides, offset=0):
    _same_rank(index, strides)
    return int(torch.tensor(index, dtype=torch.long) @ torch.tensor(strides, dtype=torch.long)) + offset


@exercise.wrong
def base_offset_ignored(index, strides, offset=0):
    """A slice starts at its own offset."""
    _same_rank(index, strides)
    return sum(map(mul, index, strides))


@exercise.wrong(id="base-offset-ignored")
def base_offset_subtracted(index, strides, offset=0):
    return summed_products(index, strides) - offset


@exercise.wrong
def rank_unchecked(index, strides, offset=0):
    """`zip` and `map` stop at the shorter list: a coordinate of another rank got an address."""
    return offset + sum(map(mul, index, strides))


@exercise.wrong(id="rank-unchecked")
def ranks_end_in_an_index_error(index, strides, offset=0):
    return offset + sum(i * strides[axis] for axis, i in enumerate(index))
