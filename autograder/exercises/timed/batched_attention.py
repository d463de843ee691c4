"""Attention of all samples and heads in two batched products."""
import math

import torch

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from . import _attention
from ._attention import NAMES, K, X, make, oracle

exercise = Exercise(
    "batched_attention", step=1, points=2, minutes=7, difficulty=2, importance=5,
    summary="Attend in every head of every sample with two batched products: no loop over heads, no tensor that holds "
            "every product of two channels.",
    hints=(
        "`@` multiplies the last two axes of its operands. What does it do with the axes before them?",
        "The scores are [B,H,T,S]. Which axis of k has to move so that `q @ k...` has that shape, and which axis does "
        "the softmax run over?",
        "Three lines: scores, divided by √D and -inf where blocked; softmax over the keys; times v. Refuse first a "
        "query that may look at nothing.",
    ),
    hides="H=1 or T=1 hides a loop over that axis: one turn of it is what the batched program asks for.",
)


def _mask(shape, seed=5):
    """Three quarters visible, and key 0 always."""
    visible = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.75
    visible[..., 0] = True
    return visible


def _check(lab, given, visible=None, **kwargs):
    want = oracle(*given, visible)
    got = lab.call("batched_attention", *given, **({} if visible is None else {"visible": visible}), **kwargs)
    expect.close(got, want, "heads", NAMES)


@exercise.case("K: B2 H3 T33 S70 D16, all keys visible")
def plain(lab):
    _check(lab, make(**K))


@exercise.case("value heads of another width: D16, D_v 11, with a mask of all four axes")
def masked(lab):
    _check(lab, make(**K, d_v=11, seed=10), _mask((2, 3, 33, 70)))


@exercise.case("X: B=H=3, T=S=6, with a mask that every head and sample shares")
def trap(lab):
    _check(lab, make(**X, seed=20), _mask((1, 1, 6, 6)))


standard.tensor_cases(exercise, lambda: (list(make(2, 3, 4, 7, 5, d_v=6, seed=30)), {"visible": _mask((2, 1, 4, 7))}),
                      oracle, NAMES)


@exercise.case("refuses a query that may look at nothing", CONTRACT)
def refuses(lab):
    visible = _mask((2, 3, 4, 7))
    visible[1, 2, 3] = False
    lab.raises(ValueError, "no visible key", "batched_attention", *make(2, 3, 4, 7, 5), visible=visible)


_attention.counted(exercise)
_attention.declare(exercise)


@exercise.timed(2.5, {axis: (4, 12, 16, 64) for axis in "qkv"}, calls=4)
def batched_attention(q, k, v):
    """Two batched products and a softmax."""
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v
