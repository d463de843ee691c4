"""Attention of all queries at once."""
import functools

from torch.nn import functional as F

from ... import expect, standard
from ...exercise import Exercise
from . import _attention
from ._attention import NAMES, K, X, make, oracle

exercise = Exercise(
    "attention_without_query_loop", step=2, points=2, minutes=6, difficulty=2, importance=4,
    summary="Attend with all queries at once: two products in place of two for each query, and no tensor that holds "
            "every product of two channels.",
    hints=(
        "One query gives one row of scores, [1,S]. What do all T rows together look like, and which single product "
        "makes them?",
        "The softmax of a row needs no other row. Which axis does it run over when all rows are there?",
        "If you think of an axis for queries and one for keys, inserted by None: that holds B·H·T·S·D numbers. A "
        "matrix product sums over D as it goes.",
    ),
    hides="T=1 hides a loop over queries; T=S hides keys that were read with the length of the queries.",
)


def _check(lab, given):
    expect.close(lab.call("attention_without_query_loop", *given), oracle(*given), "heads", NAMES)


@exercise.case("K: B2 H3 T33 S70 D16")
def plain(lab):
    _check(lab, make(**K))


@exercise.case("value heads of another width: D16, D_v 11, more queries than keys")
def wide(lab):
    _check(lab, make(2, 3, 21, 9, 16, d_v=11, seed=10))


@exercise.case("X: B=H=3, T=S=6")
def trap(lab):
    _check(lab, make(**X, seed=20))


standard.tensor_cases(exercise, lambda: (list(make(2, 3, 4, 7, 5, d_v=6, seed=30)), {}), oracle, NAMES)
_attention.counted(exercise)


def _without_mask(program):
    @functools.wraps(program)
    def attention(q, k, v):
        return program(q, k, v)
    return attention


_attention.declare(exercise, _without_mask)


@exercise.timed(2.5, {axis: (1, 8, 512, 64) for axis in "qkv"})
def attention_without_query_loop(q, k, v):
    """PyTorch's fused attention."""
    return F.scaled_dot_product_attention(q, k, v)
