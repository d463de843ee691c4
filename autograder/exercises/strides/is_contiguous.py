"""Whether a layout is row-major."""
import torch

from ...exercise import Exercise
from .layouts import KINDS, layouts
from .row_major_strides import from_the_end as row_major
from .table import Table

exercise = Exercise(
    "is_contiguous", step=6, points=2, minutes=4, difficulty=2, importance=4, tensor=False,
    summary="Does reading in row-major order walk through the memory element by element?",
    hints=(
        "For a fresh tensor you know the strides. When may a stride differ from them, and nobody could tell?",
        "Which index does an axis of size 1 have? What does its stride get multiplied with?",
        "Walk from the last axis to the first and keep the stride that comes next. Two kinds of tensors need a second "
        "look: axes of size 1, and tensors with no element at all.",
    ),
    hides="A fresh tensor hides everything; without an axis of size 1 and without an empty tensor, comparing with "
          "row-major strides looks right.",
)

table = Table(exercise)


def oracle(shape, strides):
    return torch.empty_strided(shape, strides, device="meta").is_contiguous()


def _rows(*questions):
    return [(q, oracle(*q)) for q in questions]


table.case("fresh tensors, and heads before tokens", _rows(
    ((2, 3, 4, 5), (60, 20, 5, 1)), ((2, 4, 3, 5), (60, 5, 20, 1)), ((6,), (1,)), ((5, 6), (1, 5)),
    ((4, 2, 3), (1, 12, 4)), ((2, 1024, 768), (786432, 768, 1)), ((2, 12, 1024, 64), (786432, 64, 768, 1))))
table.case("a slice of wider rows, every second element, and a broadcast axis", _rows(
    ((2, 7, 4), (252, 36, 1)), ((6,), (2,)), ((3, 5), (0, 1)), ((3, 5), (1, 0)), ((2, 3), (6, 2))))
table.case("axes of size 1, whose stride is never used", _rows(
    ((2, 1, 4), (4, 99, 1)), ((1, 4), (7, 1)), ((4, 1), (1, 5)), ((1, 1), (3, 8)), ((2, 1, 4), (8, 4, 1))))
table.case("tensors without an element", _rows(
    ((0, 4), (4, 1)), ((2, 0, 3), (3, 3, 1)), ((3, 0), (1, 3)), ((2, 0, 3), (9, 1, 2)), ((0,), (5,)),
    ((0, 1, 3), (7, 7, 7))))
table.case("400 layouts made by slicing, permuting and expanding", [
    ((made.shape, made.strides), tensor.is_contiguous()) for kind in KINDS for made, tensor in layouts(kind, 50, 1)])


@exercise.right
def running_product(shape, strides):
    step = 1
    for size, stride in reversed(list(zip(shape, strides, strict=True))):
        if size == 0:
            return True
        if size > 1 and stride != step:
            return 0 in shape
        step *= size
    return True


@exercise.right
def compared_without_ones(shape, strides):
    return 0 in shape or all(n == 1 or s == r for n, s, r in zip(shape, strides, row_major(shape), strict=True))


@exercise.right
def ones_dropped_first(shape, strides):
    kept = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    sizes, steps = [n for n, _ in kept], [s for _, s in kept]
    return min(shape, default=1) == 0 or tuple(steps) == row_major(sizes)


@exercise.right
def asked_on_meta(shape, strides):
    return torch.empty_strided(shape, strides, device="meta").is_contiguous()


@exercise.right
def addresses_in_order(shape, strides):
    addresses = torch.zeros((), dtype=torch.long)
    for size, stride in zip(shape, strides, strict=True):
        addresses = addresses[..., None] + stride * torch.arange(size)
    return torch.equal(addresses.flatten(), torch.arange(addresses.numel()))


@exercise.wrong
def size_one_strides_matter(shape, strides):
    """The stride of a size-1 axis is never used."""
    return 0 in shape or tuple(strides) == row_major(shape)


@exercise.wrong(id="size-one-strides-matter")
def bare_comparison(shape, strides):
    return tuple(strides) == row_major(shape)


@exercise.wrong
def any_dense_order(shape, strides):
    """A permuted dense tensor is not row-major."""
    if 0 in shape:
        return True
    step = 1
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if stride != step:
            return False
        step *= size
    return True


@exercise.wrong(id="any-dense-order")
def same_numbers_in_any_order(shape, strides):
    return sorted(strides) == sorted(row_major(shape)) or any_dense_order(shape, strides)


@exercise.wrong
def empty_not_contiguous(shape, strides):
    """An empty tensor counts as contiguous."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


@exercise.wrong(id="empty-not-contiguous")
def empty_refused(shape, strides):
    return 0 not in shape and empty_not_contiguous(shape, strides)


def dense(shape, strides):
    """Whether the elements fill a stretch of memory without a gap or an overlap, in some order of the axes."""
    return any_dense_order(shape, strides)


def _split(answers):
    """(answers about empty tensors, about layouts with an axis of size 1, about all others)"""
    empty = [a for a in answers if 0 in a.args[0]]
    ones = [a for a in answers if 0 not in a.args[0] and 1 in a.args[0]]
    return empty, ones, [a for a in answers if 0 not in a.args[0] and 1 not in a.args[0]]


@table.recognise("size-one-strides-matter")
def ones(answers):
    _, ones, others = _split(answers)
    wrong = [a for a in ones if not a.right]
    return bool(wrong) and all(a.got is False for a in wrong) and all(a.right for a in others)


@table.recognise("empty-not-contiguous")
def empties(answers):
    empty, ones, others = _split(answers)
    wrong = [a for a in empty if not a.right]
    return bool(wrong) and all(a.got is False for a in wrong) and all(a.right for a in ones + others)


@table.recognise("any-dense-order")
def dense_orders(answers):
    *_, others = _split(answers)
    permuted = [a for a in others if dense(*a.args) and a.want is False]
    return all(a.got is True for a in permuted) and all(a.right for a in others if a not in permuted)
