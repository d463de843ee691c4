"""What a transpose does to shape and strides, and what it leaves alone."""
import torch

from ...exercise import Exercise
from .row_major_strides import from_the_end as row_major
from .table import Table

exercise = Exercise(
    "transposed_layout", step=5, points=1, minutes=3, difficulty=1, importance=4, tensor=False,
    summary="Shape and strides after two axes have changed places, and no element has moved.",
    hints=(
        "A transpose renames the axes. Which two lists describe an axis, and what happens to its entry in each?",
        "Every axis keeps its own stride, wherever it stands. A stride is a property of the axis, not of the place.",
        "Python counts -1 from the end of a list, as PyTorch does with axes; a comparison `axis == dim` does not.",
    ),
    hides="Equal sizes hide shapes that were not swapped; a square matrix with equal strides does not exist, so "
          "strides never hide.",
)

HEADS = (2, 3, 4, 5), (60, 20, 5, 1)
SLICE = (2, 7, 3, 4), (252, 36, 4, 1)
POSITIVE = ((*HEADS, 1, 2), (*HEADS, 0, 3), (*SLICE, 2, 1), (*SLICE, 3, 2), ((6, 5), (1, 6), 0, 1), (*HEADS, 2, 2))
NEGATIVE = ((*HEADS, -1, 1), (*HEADS, -2, -1), (*SLICE, 0, -3), (*SLICE, 1, -1), ((6, 5), (1, 6), -2, -1))

table = Table(exercise)


def oracle(shape, strides, dim0, dim1):
    tensor = torch.empty_strided(shape, strides, device="meta").transpose(dim0, dim1)
    return tuple(tensor.shape), tensor.stride()


table.case("heads before tokens, and other pairs of axes", [(q, oracle(*q)) for q in POSITIVE])
table.case("axes counted from the end", [(q, oracle(*q)) for q in NEGATIVE])


@exercise.right
def swapped_lists(shape, strides, dim0, dim1):
    shape, strides = list(shape), list(strides)
    for entries in (shape, strides):
        entries[dim0], entries[dim1] = entries[dim1], entries[dim0]
    return tuple(shape), tuple(strides)


@exercise.right
def permutation(shape, strides, dim0, dim1):
    rank = len(shape)
    dim0, dim1 = dim0 % rank, dim1 % rank
    order = [{dim0: dim1, dim1: dim0}.get(axis, axis) for axis in range(rank)]
    return tuple(shape[a] for a in order), tuple(strides[a] for a in order)


@exercise.right
def pairs_of_size_and_stride(shape, strides, dim0, dim1):
    axes = list(zip(shape, strides, strict=True))
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return tuple(zip(*axes, strict=True))


@exercise.right
def asked_on_meta(shape, strides, dim0, dim1):
    t = torch.empty_strided(shape, strides, device="meta").transpose(dim0, dim1)
    return t.shape, t.stride()


def _swapped(values, dim0, dim1):
    return swapped_lists(values, values, dim0, dim1)[0]


@exercise.wrong
def strides_left_behind(shape, strides, dim0, dim1):
    """Only the shape was swapped: that is a relabelling, not a transpose."""
    return _swapped(shape, dim0, dim1), tuple(strides)


@exercise.wrong(id="strides-left-behind")
def shape_left_behind(shape, strides, dim0, dim1):
    return tuple(shape), _swapped(strides, dim0, dim1)


@exercise.wrong
def strides_recomputed(shape, strides, dim0, dim1):
    """Row-major strides describe a copy."""
    shape = _swapped(shape, dim0, dim1)
    return shape, row_major(shape)


@exercise.wrong
def negative_dim_wrong(shape, strides, dim0, dim1):
    """−1 means the last axis."""
    order = [dim1 if axis == dim0 else dim0 if axis == dim1 else axis for axis in range(len(shape))]
    return tuple(shape[a] for a in order), tuple(strides[a] for a in order)


@exercise.wrong(id="negative-dim-wrong")
def negative_dims_refused(shape, strides, dim0, dim1):
    if dim0 < 0 or dim1 < 0:
        raise IndexError("dimension out of range")
    return swapped_lists(shape, strides, dim0, dim1)


@exercise.wrong(id="negative-dim-wrong")
def one_off_from_the_end(shape, strides, dim0, dim1):
    rank = len(shape) - 1
    return swapped_lists(shape, strides, dim0 % rank if dim0 < 0 else dim0, dim1 % rank if dim1 < 0 else dim1)


def _positive(answers):
    return [a for a in answers if min(a.args[2:]) >= 0]


def _plain(got):
    return [list(part) for part in got] if isinstance(got, (tuple, list)) and all(
        isinstance(part, (tuple, list)) for part in got) else None


@table.recognise("strides-left-behind")
def kept(answers):
    answers = _positive(answers)
    return (all(_plain(a.got) == [list(a.want[0]), list(a.args[1])] for a in answers)
            or all(_plain(a.got) == [list(a.args[0]), list(a.want[1])] for a in answers))


@table.recognise("strides-recomputed")
def recomputed(answers):
    return all(_plain(a.got) == [list(a.want[0]), list(row_major(a.want[0]))] for a in _positive(answers))


@table.recognise("negative-dim-wrong")
def only_negative(answers):
    return all(a.right for a in _positive(answers))
