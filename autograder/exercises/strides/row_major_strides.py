"""The strides of a fresh tensor."""
from itertools import accumulate
from math import prod
from operator import mul

import torch

from ...exercise import Exercise
from .table import Table

exercise = Exercise(
    "row_major_strides", step=1, points=1, minutes=3, difficulty=1, importance=4, tensor=False,
    summary="How far one step along each axis moves through the memory of a fresh tensor.",
    hints=(
        "Lay a [2,3] table out in one line, row by row. How far apart are neighbours in a row, and in a column?",
        "Begin with the last axis. What does one step of an axis jump over, compared with a step of the axis after it?",
        "Carry one number from the last axis to the first. A size of 0 must not stop it from growing: what does "
        "`torch.empty(2, 0, 3).stride()` say?",
    ),
    hides="Equal sizes everywhere hide nothing here; a shape without a 0 hides the rule for empty tensors.",
)

PLAIN = ((2, 3, 4, 5), (2, 7, 12), (6,), (3, 1, 4), (2, 3, 5, 2, 7))
ZERO = ((2, 0, 3), (4, 5, 0, 2), (3, 0, 0, 2), (7, 2, 0))

table = Table(exercise)


def oracle(shape):
    return torch.empty(shape).stride()


table.case("the last axis is the fastest: (2,3,4,5) and four more", [((s,), oracle(s)) for s in PLAIN])
table.case("a size of 0 counts as 1", [((s,), oracle(s)) for s in ZERO])
table.tuples((PLAIN[0],))


@exercise.right
def from_the_end(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size or 1
    return tuple(strides)


@exercise.right
def accumulated(shape):
    return tuple(accumulate((max(size, 1) for size in reversed(shape[1:])), mul, initial=1))[::-1]


@exercise.right
def products_of_tails(shape):
    return tuple(prod(max(size, 1) for size in shape[axis + 1:]) for axis in range(len(shape)))


@exercise.right
def recursive(shape):
    if len(shape) == 1:
        return (1,)
    rest = recursive(shape[1:])
    return (max(shape[1], 1) * rest[0], *rest)


@exercise.right
def asked_on_meta(shape):
    return torch.empty(shape, device="meta").stride()


@exercise.wrong
def column_major(shape):
    """The first axis is fastest; PyTorch's default is the last."""
    strides, step = [], 1
    for size in shape:
        strides.append(step)
        step *= max(size, 1)
    return tuple(strides)


@exercise.wrong(id="column-major")
def never_turned_round(shape):
    return from_the_end(shape)[::-1]


@exercise.wrong
def bytes_not_elements(shape):
    """Strides count elements."""
    return tuple(8 * stride for stride in from_the_end(shape))


@exercise.wrong(id="bytes-not-elements")
def bytes_of_float32(shape):
    return tuple(4 * prod(shape[axis + 1:]) for axis in range(len(shape)))


@exercise.wrong
def zero_size_collapses(shape):
    """A size of 0 must not zero the outer strides."""
    return tuple(prod(shape[axis + 1:]) for axis in range(len(shape)))


def _plain(answers):
    return [a for a in answers if a.args[0] in PLAIN]


@table.recognise("column-major")
def first_axis_fastest(answers):
    answers = _plain(answers)
    return any(all(a.got == order(a.args[0]) for a in answers) for order in (column_major, never_turned_round))


@table.recognise("bytes-not-elements")
def multiples(answers):
    answers = _plain(answers)
    return any(all(a.got == tuple(size * s for s in a.want) for a in answers) for size in (2, 4, 8))


@table.recognise("zero-size-collapses")
def zeros(answers):
    return all(a.right for a in _plain(answers)) and all(a.right or isinstance(a.got, (tuple, list)) and 0 in a.got
                                                         for a in answers)
