"""softmax_triton: one pass over memory, stable, and blind to the lanes beyond the row."""
from __future__ import annotations

import torch

from ... import expect
from ...exercise import CONTRACT
from ...standard import normal
from ...triton_lab import TritonExercise, Workload, all_read, guarded, run, traffic
from ._parts import faithful, half_case, leaves_its_tensor, numbers
from ._triton import cdiv, jit, power_of_2, tl

WHOLE = "4 rows of 64 scores: a softmax over each row"
TAILED = "33 rows of 70 scores: nothing beyond a row counts, and nothing is written there"
NAMES = ("row", "key")

exercise = TritonExercise(
    "softmax_triton", step=60, points=3, minutes=9, difficulty=3, importance=5,
    summary="softmax over the last axis of scores [rows, S] in one kernel, stable, with any row stride",
    exempt=("detaches-graph",),
    hides="rows of 64 fill a block: neither padding nor a missing store mask would show; contiguous rows hide an "
          "assumed row stride; scores near 0 hide a missing maximum",
    hints=("One program can own one row: row = tl.program_id(0). Its lanes are tl.arange(0, BLOCK), and BLOCK is a "
           "power of two that is at least S.",
           "Which number, loaded into a lane that has no score, changes neither the maximum nor the sum of "
           "exponentials? Zero is not it.",
           "Load once with a mask and that number, subtract tl.max, take tl.exp, divide by tl.sum, store once with the "
           "same mask. Rows are scores.stride(0) elements apart."))


def oracle(scores):
    shifted = scores.double() - scores.double().amax(-1, keepdim=True)
    return shifted.exp() / shifted.exp().sum(-1, keepdim=True)


@exercise.case(WHOLE)
def whole(lab):
    scores = numbers(4, 64, seed=1)
    faithful(lab, "softmax_triton", scores, want=oracle(scores), names=NAMES)


@exercise.case(TAILED)
def tail(lab):
    scores = numbers(33, 70, seed=2)
    faithful(lab, "softmax_triton", scores, want=oracle(scores), names=NAMES)
    all_read(lab, 0, scores.numel(), "scores")


@exercise.case("scores near a thousand: nothing overflows")
def large(lab):
    scores = guarded(1000 + normal(4, 64, seed=3).float())
    faithful(lab, "softmax_triton", scores, want=oracle(scores), names=NAMES)


@exercise.case("rows that lie 71 elements apart")
def strided(lab):
    scores = numbers(5, 64, seed=4, row_gap=7)
    faithful(lab, "softmax_triton", scores, want=oracle(scores), names=NAMES)


@exercise.case("each score is loaded once or twice, and each probability stored once", CONTRACT)
def bytes_moved(lab):
    scores = numbers(4, 70, seed=5)
    got = run(lab, "softmax_triton", scores)
    expect.shape(got, (4, 70))
    traffic(lab, 2 * scores.numel() * 4, 2.0, "A row that stays in the program is read once.")


half_case(exercise, lambda dtype: ((numbers(3, 64, seed=6, dtype=dtype),), {}), oracle, NAMES)


@exercise.workload
def workload(size, seed, dtype):
    rows, width = (33, 70) if size == "small" else (16384, 1024)
    scores = normal(rows, width, seed=seed).to(dtype)
    return Workload((scores,), {}, 2 * scores.numel() * scores.element_size(), 5 * scores.numel(),
                    lambda s: (oracle(s).to(s.dtype),))


@exercise.recognise("padding-as-zero")
def counts_zeros(trials):
    """Every denominator holds the same whole number of exp(0) too many."""
    by_title = {t.case.title: t for t in trials}
    if not by_title[WHOLE].passed or by_title[TAILED].passed:
        return False
    scores, got = normal(33, 70, seed=2).float().double(), by_title[TAILED].transcript[0].value
    if not isinstance(got, torch.Tensor) or got.shape != scores.shape or not (got > 0).all():
        return False
    extra = (scores.exp() / got.double() - scores.exp().sum(-1, keepdim=True))
    number = extra.mean().round()
    return bool(number >= 1 and (extra - number).abs().max() < 0.05 * number)


@exercise.recognise("tail-unmasked")
def past_the_row(trials):
    return leaves_its_tensor(trials, WHOLE, TAILED)


@jit
def _rows(scores, out, row_stride, out_stride, width, BLOCK: tl.constexpr, FILL: tl.constexpr, SHIFT: tl.constexpr,
          MASKED: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(scores + row * row_stride + lanes, mask=lanes < width, other=FILL).to(tl.float32)
    if SHIFT:
        x = x - tl.max(x, axis=0)
    e = tl.exp(x)
    p = e / tl.sum(e, axis=0)
    if MASKED:
        tl.store(out + row * out_stride + lanes, p, mask=lanes < width)
    else:
        tl.store(out + row * out_stride + lanes, p)


def _launch(scores, fill=-float("inf"), shift=True, masked=True, stride=None, block=None):
    out = torch.empty(scores.shape, dtype=scores.dtype)
    rows, width = scores.shape
    _rows[(rows,)](scores, out, stride or scores.stride(0), out.stride(0), width, BLOCK=block or power_of_2(width),
                   FILL=fill, SHIFT=shift, MASKED=masked)
    return out


@exercise.right
def one_row_per_program(scores):
    return _launch(scores)


@jit
def _tile(scores, out, row_stride, out_stride, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    lanes = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (lanes < width)
    x = tl.load(scores + row * row_stride + lanes, mask=inside, other=-float("inf")).to(tl.float32)
    x = tl.where(row < rows, x, 0.0)
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(out + row * out_stride + lanes, e / tl.sum(e, axis=1)[:, None], mask=inside)


@exercise.right
def several_rows_per_program(scores):
    out = torch.zeros(scores.shape, dtype=scores.dtype)
    rows, width = scores.shape
    _tile[(cdiv(rows, 4),)](scores, out, scores.stride(0), out.stride(0), rows, width, ROWS=4, BLOCK=power_of_2(width))
    return out


@jit
def _online(scores, out, row_stride, out_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top = -float("inf")
    total = 0.0
    for start in range(0, width, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        x = tl.load(scores + row * row_stride + lanes, mask=lanes < width, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(x, axis=0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new), axis=0)
        top = new
    for start in range(0, width, BLOCK):
        lanes = start + tl.arange(0, BLOCK)
        x = tl.load(scores + row * row_stride + lanes, mask=lanes < width, other=-float("inf")).to(tl.float32)
        tl.store(out + row * out_stride + lanes, tl.exp(x - top) / total, mask=lanes < width)


@exercise.right
def long_rows_in_blocks(scores):
    out = torch.empty(scores.shape, dtype=scores.dtype)
    _online[(scores.shape[0],)](scores, out, scores.stride(0), out.stride(0), scores.shape[1], BLOCK=32)
    return out


@jit
def _looping(scores, out, row_stride, out_stride, rows, width, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        lanes = tl.arange(0, BLOCK)
        x = tl.load(scores + row * row_stride + lanes, mask=lanes < width, other=0.0).to(tl.float32)
        x = tl.where(lanes < width, x, -1e30)
        tl.store(out + row * out_stride + lanes, tl.softmax(x), mask=lanes < width)


@exercise.right
def persistent_programs(scores):
    out = torch.full(scores.shape, 7.0, dtype=scores.dtype)
    _looping[(3,)](scores, out, scores.stride(0), out.stride(0), *scores.shape, BLOCK=power_of_2(scores.shape[1]))
    return out


@exercise.wrong
def padding_as_zero(scores):
    """Masked lanes load −∞, not 0: exp(0) adds to the sum."""
    return _launch(scores, fill=0.0)


@exercise.wrong(id="padding-as-zero")
def padded_to_a_block_of_256(scores):
    return _launch(scores, fill=0.0, block=256) if scores.shape[1] > 64 else _launch(scores)


@exercise.wrong
def no_maximum(scores):
    """Large scores overflow: the maximum of the row is subtracted before exp."""
    return _launch(scores, shift=False)


@exercise.wrong
def row_stride_assumed(scores):
    """The row stride is an argument: a row need not begin where the one before it ends."""
    return _launch(scores, stride=scores.shape[1])


@exercise.wrong
def tail_unmasked(scores):
    """The last block wrote past its row: lanes beyond the end are masked in the store as well as in the load."""
    return _launch(scores, masked=False)


@exercise.wrong
def first_block_only(scores):
    """The loop bound is wrong: scores after the first block were neither read nor written."""
    return _launch(scores, block=64)


@jit
def _undefined(scores, out, row_stride, out_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    x = tl.load(scores + row * row_stride + lanes, mask=lanes < width).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out + row * out_stride + lanes, e / tl.sum(e, axis=0), mask=lanes < width)


@exercise.wrong
def undefined_lanes(scores):
    """A masked lane without `other` holds an undefined number, and here it is used."""
    out = torch.empty(scores.shape, dtype=scores.dtype)
    _undefined[(scores.shape[0],)](scores, out, scores.stride(0), out.stride(0), scores.shape[1],
                                   BLOCK=power_of_2(scores.shape[1]))
    return out


@jit
def _maxima(scores, out, row_stride, width, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(scores + tl.program_id(0) * row_stride + lanes, mask=lanes < width, other=-float("inf"))
    tl.store(out + tl.program_id(0), tl.max(x, axis=0))


@jit
def _exponentials(scores, tops, out, row_stride, out_stride, width, BLOCK: tl.constexpr):
    row, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(scores + row * row_stride + lanes, mask=lanes < width, other=0.0)
    tl.store(out + row * out_stride + lanes, tl.exp((x - tl.load(tops + row)).to(tl.float32)), mask=lanes < width)


@jit
def _divide(parts, out, out_stride, width, BLOCK: tl.constexpr):
    row, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    e = tl.load(parts + row * out_stride + lanes, mask=lanes < width, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + lanes, e / tl.sum(e, axis=0), mask=lanes < width)


@exercise.wrong
def three_passes(scores):
    """Right, and slow: maximum, exponentials and quotient each went through memory. A row that stays in its program is
    loaded once and stored once."""
    rows, width = scores.shape
    tops = torch.empty(rows, dtype=scores.dtype)
    parts, out = torch.empty(scores.shape, dtype=torch.float32), torch.empty(scores.shape, dtype=scores.dtype)
    block = power_of_2(width)
    _maxima[(rows,)](scores, tops, scores.stride(0), width, BLOCK=block)
    _exponentials[(rows,)](scores, tops, parts, scores.stride(0), width, width, BLOCK=block)
    _divide[(rows,)](parts, out, width, width, BLOCK=block)
    return out


@exercise.wrong
def torch_did_it(scores):
    """A kernel was launched, and torch computed the answer."""
    _launch(scores)
    return torch.softmax(scores, -1)
