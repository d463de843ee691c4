"""PyTorch's view rule, by hand."""
from math import prod

import torch

from ... import expect
from ...exercise import CONTRACT, Exercise
from .layouts import questions, viewed
from .row_major_strides import from_the_end as row_major
from .table import MISSING, Table

exercise = Exercise(
    "view_strides", step=7, points=4, minutes=10, difficulty=5, importance=5, tensor=False,
    summary="The strides that `view` gives, or None where it refuses, from nothing but numbers.",
    hints=(
        "Split first, merge later: which stride do the two halves of one axis get? When do two neighbouring axes walk "
        "through memory as one axis would?",
        "Collect the old axes, from the last to the first, into blocks that one stride can walk. Then cut every block, "
        "from its end, with the new sizes. When does a new size not fit into what is left of a block?",
        "Three kinds of layouts have their own rules: an axis of size 1 (its stride says nothing), an axis of stride "
        "0 (steps of nothing), and a tensor without elements (nothing can be in the wrong place). Compare element "
        "counts before anything else.",
    ),
    hides="Contiguous input hides everything; a transposed tensor with one token, one head or one channel still folds.",
)

Q, H, D = 5, 3, 4


def _agree(got, want, args):
    shape, strides, new_shape = args
    what = f"view_strides({shape}, {strides}, {new_shape})"
    if want is None:
        expect.true(got is None, f"{what} is {got!r}; `view` refuses here, expected None")
        return
    expect.true(got is not None, f"{what} is None; `view` gives {want}")
    expect.true(isinstance(got, (tuple, list)) and len(got) == len(want) and all(isinstance(s, int) for s in got),
                f"{what} is {got!r}, expected {len(want)} strides")
    if 0 in new_shape:
        return
    wrong = [i for i, n in enumerate(new_shape) if n > 1 and got[i] != want[i]]
    if wrong:
        raise expect.Mismatch(f"{what} is {tuple(got)}, expected {want}: one step along axis {wrong[0]} moves "
                              f"{want[wrong[0]]} elements, not {got[wrong[0]]}")


table = Table(exercise, _agree)


def oracle(shape, strides, new_shape):
    return viewed(torch.empty_strided(shape, strides, device="meta"), new_shape)


def _rows(*questions):
    return [(q, oracle(*q)) for q in questions]


def _merge_of_heads(batch, q, h, d):
    """[B,Q,H,D], transposed from a contiguous [B,H,Q,D], to [B,Q,H·D]."""
    return (batch, q, h, d), (h * q * d, d, q * d, 1), (batch, q, h * d)


table.case("fresh tensors: every shape with as many elements, and none with more or fewer", _rows(
    ((2, 3, 4, 5), (60, 20, 5, 1), (2, 3, 20)), ((2, 3, 4, 5), (60, 20, 5, 1), (6, 20)), ((6, 4), (4, 1), (8, 3)),
    ((24,), (1,), (2, 3, 4)), ((2, 12), (12, 1), (2, 3, 4)), ((6, 4), (4, 1), (5, 5)), ((6, 4), (4, 1), (6, 2)),
    ((2, 1024, 768), (786432, 768, 1), (2048, 12, 64))))
table.case("splitting an axis, however it lies: heads of a fused slice, of transposed rows, of every second row", _rows(
    ((2, 7, 12), (252, 36, 1), (2, 7, 3, 4)), ((2, 7, 12), (84, 1, 7), (2, 7, 3, 4)),
    ((2, 4, 12), (84, 24, 1), (2, 4, 3, 4)), ((6, 4), (1, 6), (2, 3, 2, 2)), ((4, 6), (5, 40), (2, 2, 6))))
table.case("merging [B,Q,H,D], transposed from [B,H,Q,D]: only with one token, one head or one channel", _rows(
    _merge_of_heads(2, Q, H, D), _merge_of_heads(2, 1, H, D), _merge_of_heads(2, Q, 1, D), _merge_of_heads(2, Q, H, 1),
    _merge_of_heads(2, 1024, 12, 64), ((2, 1024, 12, 64), (786432, 768, 64, 1), (2, 1024, 768))))
table.case("merging neighbours that do and that do not continue each other", _rows(
    ((4, 6), (12, 1), (24,)), ((4, 6), (12, 2), (24,)), ((4, 6), (13, 2), (24,)), ((6, 4), (1, 6), (24,)),
    ((2, 4, 6), (100, 12, 2), (2, 24)), ((2, 4, 6), (100, 12, 2), (8, 6)), ((2, 4, 6), (96, 24, 3), (8, 6)),
    ((4, 6), (12, 1), (8, 3)), ((4, 6), (12, 1), (2, 12)), ((3, 4, 5), (7, 63, 3), (3, 20))))
table.case("axes of size 1, whose stride says nothing", _rows(
    ((4, 1, 6), (6, 99, 1), (24,)), ((4, 1, 6), (6, 99, 1), (2, 2, 6)), ((4, 1), (1, 50), (2, 2)),
    ((1, 4, 6), (5, 6, 1), (24,)), ((4, 1, 6), (7, 99, 1), (24,)), ((2, 3, 1, 4), (12, 4, 7, 1), (6, 4)),
    ((6, 4), (4, 1), (6, 1, 4, 1)), ((1, 1), (3, 8), (1,)), ((5, 1, 2), (2, 77, 1), (10,))))
table.case("broadcast axes, of stride 0", _rows(
    ((3, 4), (0, 1), (12,)), ((4, 3), (1, 0), (12,)), ((2, 3), (0, 0), (6,)), ((2, 6, 4), (0, 4, 1), (2, 24)),
    ((2, 6, 4), (0, 4, 1), (12, 4)), ((4, 6), (0, 1), (2, 2, 6)), ((2, 3, 4), (0, 0, 1), (6, 4)),
    ((5, 4, 6), (24, 6, 0), (5, 24)), ((3, 4), (0, 1), (3, 2, 2))))
table.case("tensors without an element", _rows(
    ((0, 4), (4, 1), (2, 0)), ((2, 0, 3), (3, 3, 1), (0,)), ((3, 0), (1, 3), (0, 7)), ((0, 4), (9, 5), (4, 0, 2)),
    ((0, 4), (4, 1), (4,))))


table.case("600 layouts made by slicing, permuting and expanding", questions(75, 2))
table.tuples(((2, 7, 12), (252, 36, 1), (2, 7, 3, 4)), ((2, 0, 3), (3, 3, 1), (0, 5)))


@exercise.case("a -1 among the new sizes: worked out as `view` does, or None", CONTRACT)
def minus_one(lab):
    for question, want in _rows(((2, 7, 12), (252, 36, 1), (2, 7, 3, -1)), ((6, 4), (1, 6), (2, -1, 4))):
        got = lab.call("view_strides", *question)
        resolved = torch.empty(question[0], device="meta").reshape(question[2]).shape
        if got is not None:
            _agree(got, want, (*question[:2], tuple(resolved)))
    question = (6, 4), (4, 1), (5, -1)
    _agree(lab.call("view_strides", *question), None, question)


@exercise.case("strides that run backwards, as NumPy has them, follow the same rule", CONTRACT)
def backwards(lab):
    for question, want in ((((4, 6), (-6, -1), (24,)), (-1,)), (((4, 6), (-6, 1), (24,)), None),
                           (((12,), (-1,), (3, 4)), (-4, -1)), (((2, 3, 4), (12, -4, 1), (2, 12)), None)):
        _agree(lab.call("view_strides", *question), want, question)


@exercise.case("no tensor is built: the answer comes from the numbers", CONTRACT)
def no_tensor(lab):
    for question in (_merge_of_heads(2, Q, H, D), ((2, 7, 12), (252, 36, 1), (2, 7, 3, 4)), ((0, 4), (4, 1), (2, 0))):
        lab.call("view_strides", *question, count=True, watch=("counts",))
        asked = lab.last.counts["operators"]
        expect.true(not asked, f"view_strides{question} asked torch for {', '.join(sorted(asked))}")


def _blocks(shape, strides, merges, skip_ones=True):
    """Old axes merged from the last to the first while `merges(stride, elements, step)`: [elements, step] each."""
    blocks = []
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1 and skip_ones:
            continue
        if blocks and merges(stride, *blocks[-1]):
            blocks[-1][0] *= size
        else:
            blocks.append([size, stride])
    return blocks


def _tile(blocks, new_shape):
    blocks, answer, left, step = list(blocks), [], 1, 1
    for size in reversed(new_shape):
        while left == 1 and size > 1 and blocks:
            left, step = blocks.pop(0)
        if left % size:
            return None
        answer.insert(0, step)
        left, step = left // size, step * size
    return tuple(answer)


def _rule(shape, strides, new_shape, merges=lambda stride, elements, step: stride == elements * step, skip_ones=True):
    if prod(shape) != prod(new_shape):
        return None
    if 0 in shape:
        return row_major(new_shape)
    return _tile(_blocks(shape, strides, merges, skip_ones), new_shape)


@exercise.right
def blocks_from_the_end(shape, strides, new_shape):
    return _rule(shape, strides, new_shape)


@exercise.right
def two_pointers(shape, strides, new_shape):
    """The walk of ATen's computeStride."""
    if prod(shape) != prod(new_shape):
        return None
    if prod(shape) == 0:
        return row_major(new_shape)
    if not shape:
        return (1,) * len(new_shape)
    new, at, step, old_count, new_count = [1] * len(new_shape), len(new_shape) - 1, strides[-1], 1, 1
    for axis in reversed(range(len(shape))):
        old_count *= shape[axis]
        if axis == 0 or (shape[axis - 1] != 1 and strides[axis - 1] != old_count * step):
            while at >= 0 and (new_count < old_count or new_shape[at] == 1):
                new[at] = new_count * step
                new_count *= new_shape[at]
                at -= 1
            if new_count != old_count:
                return None
            if axis:
                step, old_count, new_count = strides[axis - 1], 1, 1
    return tuple(new) if at < 0 else None


@exercise.right
def addresses_compared(shape, strides, new_shape):
    """Lists every address, and looks whether one stride an axis reproduces the list."""
    def addresses(sizes, steps):
        found = [0]
        for size, step in zip(sizes, steps, strict=True):
            found = [address + i * step for address in found for i in range(size)]
        return found

    if prod(shape) != prod(new_shape):
        return None
    old = addresses(shape, strides)
    steps = [prod(new_shape[axis + 1:]) for axis in range(len(new_shape))]
    guess = tuple(old[n] - old[0] if size > 1 else 0 for size, n in zip(new_shape, steps, strict=True)) if old else (
        0,) * len(new_shape)
    return guess if addresses(new_shape, guess) == old else None


@exercise.right
def axis_by_axis(shape, strides, new_shape):
    """Searches, for each group of old axes, the group of new axes with as many elements."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    if prod(shape) != prod(new_shape):
        return None
    if prod(shape) == 0:
        return tuple(0 for _ in new_shape)
    result, i, j = [], 0, 0
    while j < len(new_shape):
        first, count, elements = j, new_shape[j], 1
        j += 1
        group = []
        while elements != count:
            if elements < count:
                group.append(old[i])
                elements *= old[i][0]
                i += 1
            else:
                count *= new_shape[j]
                j += 1
        if any(a[1] != b[0] * b[1] for a, b in zip(group, group[1:], strict=False)):
            return None
        step = group[-1][1] if group else 1
        steps = []
        for size in reversed(new_shape[first:j]):
            steps.insert(0, step)
            step *= size
        result += steps
    return tuple(result)


@exercise.wrong
def contiguous_only(shape, strides, new_shape):
    """Non-contiguous tensors may still be viewable: splitting an axis always is."""
    if prod(shape) != prod(new_shape) or tuple(strides) != row_major(shape):
        return None
    return row_major(new_shape)


@exercise.wrong(id="contiguous-only")
def row_major_only(shape, strides, new_shape):
    fits = 0 in shape or all(n == 1 or s == r for n, s, r in zip(shape, strides, row_major(shape), strict=True))
    return row_major(new_shape) if fits and prod(shape) == prod(new_shape) else None


@exercise.wrong
def element_count_only(shape, strides, new_shape):
    """Equal element counts do not make a view."""
    return row_major(new_shape) if prod(shape) == prod(new_shape) else None


@exercise.wrong
def row_major_answer(shape, strides, new_shape):
    """The answer must use the given strides."""
    return None if _rule(shape, strides, new_shape) is None else row_major(new_shape)


@exercise.wrong
def any_neighbours_merge(shape, strides, new_shape):
    """Two axes merge only if the outer stride equals inner size times inner stride."""
    return _rule(shape, strides, new_shape, merges=lambda stride, elements, step: True)


@exercise.wrong(id="any-neighbours-merge")
def whole_axes_first(shape, strides, new_shape):
    """Splits within an axis are right; a new size that needs more takes in the next axis, whatever its stride."""
    if prod(shape) != prod(new_shape):
        return None
    if 0 in shape:
        return row_major(new_shape)
    old = [(n, s) for n, s in zip(reversed(shape), reversed(strides), strict=True) if n != 1]
    answer, left, step = [], 1, 1
    for size in reversed(new_shape):
        if left == 1 and size > 1:
            left, step = old.pop(0)
        while left % size and old:
            left *= old.pop(0)[0]
        answer.insert(0, step)
        left, step = left // size, step * size
    return tuple(answer)


@exercise.wrong(id="any-neighbours-merge")
def longer_strides_merge(shape, strides, new_shape):
    return _rule(shape, strides, new_shape, merges=lambda stride, elements, step: stride >= elements * step)


@exercise.wrong
def size_one_blocks(shape, strides, new_shape):
    """A size-1 axis never prevents a merge."""
    return _rule(shape, strides, new_shape, skip_ones=False)


@exercise.wrong
def expand_merged(shape, strides, new_shape):
    """A stride-0 axis merges only with another stride-0 axis."""
    return _rule(shape, strides, new_shape, merges=lambda stride, elements, step: stride in (0, elements * step))


@exercise.wrong(id="expand-merged")
def into_a_broadcast_axis(shape, strides, new_shape):
    return _rule(shape, strides, new_shape,
                 merges=lambda stride, elements, step: step == 0 or stride == elements * step)


@exercise.wrong(id="expand-merged")
def broadcast_axes_skipped(shape, strides, new_shape):
    return _rule(shape, strides, new_shape,
                 merges=lambda stride, elements, step: step == 0 or stride in (0, elements * step))


@exercise.wrong
def empty_refused(shape, strides, new_shape):
    """Without an element nothing can be in the wrong place: `view` gives every shape that has none either."""
    return None if 0 in shape else _rule(shape, strides, new_shape)


@exercise.wrong(id="empty-refused")
def empty_by_the_rule(shape, strides, new_shape):
    if 0 in shape and tuple(strides) != row_major(shape):
        return None
    return _rule(shape, strides, new_shape)


@exercise.wrong
def asked_torch(shape, strides, new_shape):
    """The answer came from `Tensor.view` itself; here it is worked out from the numbers alone."""
    return viewed(torch.empty_strided(shape, strides, device="meta"), new_shape)


def _full(answers):
    """Answers about tensors with elements and without axes of size 1: there every rule shows plainly."""
    return [a for a in answers if 0 not in a.args[0] + a.args[2] and 1 not in a.args[0] + a.args[2]]


def _contiguous(a):
    return a.args[1] == row_major(a.args[0])


def _told(a):
    """Whether strides were given at all."""
    return isinstance(a.got, (tuple, list))


def _is_row_major(a):
    return _told(a) and tuple(a.got) == row_major(a.args[2])


def _equal_counts(a):
    return prod(a.args[0]) == prod(a.args[2])


@exercise.recognise("asked-torch")
def tensors_built(trials):
    return [t.case.title for t in trials if not t.passed] == [exercise.cases[-1].title] and "asked torch" in str(
        [t.message for t in trials])


@table.recognise("contiguous-only")
def refused_unless_contiguous(answers):
    return all(a.right if _contiguous(a) or a.want is None else a.got is None for a in _full(answers))


@table.recognise("element-count-only")
def never_refused(answers):
    return all(_is_row_major(a) if _equal_counts(a) else a.right for a in _full(answers))


@table.recognise("row-major-answer")
def refused_where_torch_refuses(answers):
    full = _full(answers)
    return (all(a.got is None if a.want is None else _is_row_major(a) for a in full)
            and any(not a.right for a in full))


@table.recognise("any-neighbours-merge")
def merged_whatever_the_stride(answers):
    full = [a for a in _full(answers) if _equal_counts(a) and 0 not in a.args[1]]
    refused, legal = ([a for a in full if (a.want is None) is none] for none in (True, False))
    return any(map(_told, refused)) and all(map(_told, legal)) and not all(map(_is_row_major, filter(_told, full)))


@table.recognise("size-one-blocks")
def refused_beside_ones(answers):
    wrong = [a for a in answers if not a.right]
    return all(1 in a.args[0] and a.want is not None and a.got is None for a in wrong)


@table.recognise("expand-merged")
def only_broadcast_axes(answers):
    wrong = [a for a in answers if not a.right]
    return all(a.got is not MISSING and 0 not in a.args[0] and 0 in a.args[1] for a in wrong) and any(
        a.want is None for a in wrong)


@table.recognise("empty-refused")
def only_empties(answers):
    return all(0 in a.args[0] and a.got is None for a in answers if not a.right)
