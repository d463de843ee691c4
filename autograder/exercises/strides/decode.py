"""From an address back to a coordinate."""
from itertools import product
from math import prod

import torch

from ...exercise import CONTRACT, Exercise
from .table import Table

exercise = Exercise(
    "decode", step=4, points=1, minutes=3, difficulty=2, importance=4, tensor=False,
    summary="Which coordinate an address stands for.",
    hints=(
        "33 in a tensor [2,4,5]: how many whole rows of 5 come before it, and how far into the next row is it?",
        "The last index is a remainder. What is left belongs to the axes before it, and there the same question is "
        "asked again.",
        "Addresses run from 0 to the number of elements less one; anything else is refused first. Mind the order in "
        "which you collect the indices.",
    ),
    hides="Sizes of 10 everywhere hide decimal digits; an address below the last size hides the order of the axes.",
)

table = Table(exercise)


def exhaustive(shape):
    """The oracle: every coordinate, in row-major order."""
    return [((address, shape), index) for address, index in enumerate(product(*map(range, shape)))]


table.case("every address of (2,3,4,5)", exhaustive((2, 3, 4, 5)))
table.case("every address of (2,11,3,16), where an index has two digits", exhaustive((2, 11, 3, 16)))
table.case("three axes, and one", exhaustive((2, 7, 12)) + exhaustive((13,)))
table.tuples((33, (2, 4, 5)))


@exercise.case("refuses an address that the shape does not have", CONTRACT)
def refuses(lab):
    for value in (120, 1234, -1):
        lab.raises(ValueError, "range", "decode", value, (2, 3, 4, 5))


def _in_range(value, shape):
    if not 0 <= value < prod(shape):
        raise ValueError(f"{value} is out of range of {shape}")


@exercise.right
def mixed_radix(value, shape):
    _in_range(value, shape)
    index = []
    for size in shape[::-1]:
        value, place = divmod(value, size)
        index.insert(0, place)
    return tuple(index)


@exercise.right
def unravelled(value, shape):
    if value < 0 or value >= prod(shape):
        raise ValueError("RANGE")
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(value), shape))


@exercise.right
def strides_from_the_front(value, shape):
    _in_range(value, shape)
    index = []
    for axis in range(len(shape)):
        place, value = divmod(value, prod(shape[axis + 1:]))
        index.append(place)
    return tuple(index)


@exercise.right
def found_in_a_coded_tensor(value, shape):
    _in_range(value, shape)
    return tuple((torch.arange(prod(shape)).view(shape) == value).nonzero()[0].tolist())


@exercise.wrong
def digits_decoded(value, shape):
    """The value was read as decimal digits."""
    _in_range(value, shape)
    return tuple(value // 10**place % 10 for place in reversed(range(len(shape))))


@exercise.wrong(id="digits-decoded")
def digits_of_its_text(value, shape):
    _in_range(value, shape)
    return tuple(map(int, str(value).zfill(len(shape))))


@exercise.wrong(id="digits-decoded")
def digits_without_leading_zeros(value, shape):
    return tuple(map(int, str(value)))


@exercise.wrong(id="digits-decoded")
def four_digits(value, shape):
    _in_range(value, shape)
    return value // 1000, value // 100 % 10, value // 10 % 10, value % 10


@exercise.wrong(id="digits-decoded")
def digits_that_must_fit(value, shape):
    index = digits_of_its_text(value, shape)
    if any(i >= size for i, size in zip(index, shape, strict=False)):
        raise ValueError("a digit is out of range")
    return index


@exercise.wrong
def first_axis_fastest(value, shape):
    """The first remainder belongs to the last axis, which is the fastest; here the axes come in reverse."""
    _in_range(value, shape)
    index = []
    for size in shape:
        value, place = divmod(value, size)
        index.append(place)
    return tuple(index)


@exercise.wrong(id="first-axis-fastest")
def never_turned_round(value, shape):
    return mixed_radix(value, shape)[::-1]


@exercise.wrong
def range_unchecked(value, shape):
    """An address beyond the last element, or below 0, still got a coordinate."""
    index = []
    for size in shape[::-1]:
        value, place = divmod(value, size)
        index.insert(0, place)
    return tuple(index)


@table.recognise("digits-decoded")
def digits(answers):
    given = [a for a in answers if isinstance(a.got, (tuple, list))]
    return len(given) > 10 and all(_are_digits(a.got, a.args[0]) for a in given)


def _are_digits(index, value):
    text = "".join(str(i) for i in index)
    return text.lstrip("0") == str(value).lstrip("0") or text == str(value)[-len(index):]
