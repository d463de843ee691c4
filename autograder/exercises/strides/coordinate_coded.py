"""A tensor whose values tell where they came from."""
from itertools import product
from math import prod

import torch

from ... import expect
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "coordinate_coded", step=3, points=1, minutes=4, difficulty=2, importance=5,
    exempt=("mutates-input", "detaches-graph"),
    summary="A tensor in which every element is its own row-major address, of a dtype that can hold it.",
    hints=(
        "Which address has the first element, which one its right neighbour, and which one the very last?",
        "Count from 0 in storage order. Which shape has a tensor that counts, and what gives it the shape you want?",
        "Half precision has 11 significant bits, bfloat16 has 8. Up to which whole number does each leave no gap? "
        "Compare that with the highest address before you build anything.",
    ),
    hides="Axes below 10 hide decimal digits; float32 and float64 hide rounding at every size that fits a notebook.",
)

NAMES = ("batch", "token", "head", "channel")


def _check(lab, *args, **axes):
    shape = tuple(axes.values())
    want = coded(**axes)
    got = lab.call("coordinate_coded", shape, *args)
    expect.layout(got, want.to(*args) if args else want, axes, "coded", NAMES[-len(axes):])


@exercise.case("every element of (2,3,4,5) is its own address")
def small(lab):
    _check(lab, batch=2, token=3, head=4, channel=5)


@exercise.case("(2,11,3,16), where an index has two digits")
def two_digits(lab):
    _check(lab, batch=2, token=11, head=3, channel=16)


@exercise.case("three axes, two, and one")
def other_ranks(lab):
    _check(lab, token=7, head=3, channel=4)
    _check(lab, head=5, channel=12)
    _check(lab, channel=13)


@exercise.case("any floating dtype, up to the highest address that it holds", CONTRACT)
def dtypes(lab):
    _check(lab, torch.float32, batch=2, token=11, head=3, channel=16)
    _check(lab, torch.float16, batch=2, token=11, head=3, channel=16)
    _check(lab, torch.bfloat16, batch=2, token=3, head=4, channel=5)
    _check(lab, torch.float16, channel=2049)
    _check(lab, torch.bfloat16, channel=257)


@exercise.case("refuses a dtype in which large addresses round together", CONTRACT)
def refuses(lab):
    for shape, dtype in (((2, 11, 3, 16), torch.bfloat16), ((4, 11, 3, 16), torch.float16), ((258,), torch.bfloat16),
                         ((2050,), torch.float16), ((2051,), torch.float16)):
        lab.raises(ValueError, "exact", "coordinate_coded", shape, dtype)


LIMIT = {torch.float16: 2048, torch.bfloat16: 256, torch.float32: 1 << 24, torch.float64: 1 << 53}


def _exact(shape, dtype):
    if prod(shape) - 1 > LIMIT[dtype]:
        raise ValueError(f"{dtype} is not exact for {prod(shape)} addresses")


@exercise.right
def counted_and_viewed(shape, dtype=torch.float64):
    _exact(shape, dtype)
    return torch.arange(prod(shape), dtype=dtype).view(shape)


@exercise.right
def tried_both_ways(shape, dtype=torch.float64):
    addresses = torch.arange(prod(shape)).reshape(shape)
    codes = addresses.to(dtype)
    if not torch.equal(codes.long(), addresses):
        raise ValueError("the codes are not exact")
    return codes


@exercise.right
def nested_loops(shape, dtype=torch.float64):
    if prod(shape) - 1 > 2 / torch.finfo(dtype).eps:
        raise ValueError(f"addresses are not Exact in {dtype}")
    result = torch.empty(shape, dtype=dtype)
    for address, index in enumerate(product(*map(range, shape))):
        result[index] = address
    return result


@exercise.right
def mixed_radix(shape, dtype=torch.float64):
    _exact(shape, dtype)
    result = torch.zeros(shape, dtype=torch.float64)
    for axis, size in enumerate(shape):
        step = torch.arange(size) * prod(shape[axis + 1:])
        result = result + step.view(-1, *[1] * (len(shape) - axis - 1))
    return result.to(dtype)


@exercise.right
def summed_ones(shape, dtype=torch.float64):
    _exact(shape, dtype)
    return (torch.ones(prod(shape), dtype=torch.float64).cumsum(0) - 1).to(dtype).unflatten(0, tuple(shape))


@exercise.wrong
def decimal_digits(shape, dtype=torch.float64):
    """1000b+100s+10h+d repeats values once an axis reaches 10."""
    _exact(shape, dtype)
    return _digits(shape).to(dtype)


def _digits(shape):
    result = torch.zeros(shape, dtype=torch.float64)
    for axis, size in enumerate(shape):
        places = len(shape) - axis - 1
        result = result + (10**places * torch.arange(size)).view(-1, *[1] * places)
    return result


@exercise.wrong(id="decimal-digits")
def decimal_digits_of_any_dtype(shape, dtype=torch.float64):
    return _digits(shape).to(dtype)


@exercise.wrong(id="decimal-digits")
def four_decimal_digits(shape, dtype=torch.float64):
    if len(shape) != 4:
        raise ValueError("not enough values to unpack (expected 4)")
    return _digits(shape).to(dtype)


@exercise.wrong
def inexact_dtype(shape, dtype=torch.float64):
    """Large addresses round together in half precision."""
    return torch.arange(prod(shape)).to(dtype).view(shape)


@exercise.wrong(id="inexact-dtype")
def compared_with_the_largest_number(shape, dtype=torch.float64):
    if prod(shape) - 1 > torch.finfo(dtype).max:
        raise ValueError("not exact")
    return torch.arange(prod(shape)).to(dtype).view(shape)


@exercise.wrong(id="inexact-dtype")
def only_the_last_address_tried(shape, dtype=torch.float64):
    last = prod(shape) - 1
    if torch.tensor(last).to(dtype).item() != last:
        raise ValueError("not exact")
    return torch.arange(prod(shape)).to(dtype).view(shape)


@exercise.wrong
def elements_instead_of_addresses(shape, dtype=torch.float64):
    """The number of elements was compared; the highest address is one less, and 2048 itself is exact in float16."""
    if prod(shape) > LIMIT[dtype]:
        raise ValueError("not exact")
    return torch.arange(prod(shape), dtype=dtype).view(shape)


@exercise.wrong
def counts_from_one(shape, dtype=torch.float64):
    """The first element has address 0."""
    _exact(shape, dtype)
    return torch.arange(1, prod(shape) + 1, dtype=dtype).view(shape)


@exercise.wrong
def column_major_codes(shape, dtype=torch.float64):
    """The addresses run along the first axis; row-major order lets the last axis run fastest."""
    _exact(shape, dtype)
    return torch.arange(prod(shape), dtype=dtype).view(shape[::-1]).permute(*range(len(shape))[::-1])
