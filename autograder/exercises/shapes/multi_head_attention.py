"""The module: four learned maps around one attention call, for self- and cross-attention."""
import re
from collections import Counter
from contextlib import suppress

import torch

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from . import _mha_evidence as evidence
from ._mha_oracle import (
    ONE,
    OTHER,
    E,
    X,
    attend,
    coded_call,
    padding,
    per_head,
    random_call,
    scattered,
    self_call,
    staircase,
    staircases,
    steep_call,
    wanted,
)
from ._mha_rights import RIGHTS
from ._mha_wrong_maps import WRONGS as WRONG_MAPS
from ._mha_wrong_weights import WRONGS as WRONG_WEIGHTS

NAME = "MultiHeadAttention"
exercise = Exercise(
    NAME, step=6, points=5, minutes=22, difficulty=4, importance=5,
    summary="One module for self- and cross-attention: project, split, attend under a mask, merge, project.",
    hints=(
        "Follow the ledger stage by stage and compare the shape of each stage with it. Queries bring T, keys and "
        "values bring S; only the inputs say how long they are.",
        "A row of weights belongs to one query. Over which axis do its weights sum to one, how far apart are the "
        "scores of random rows of width D, and what must the weight of a hidden key be, exactly?",
        "Refuse before you compute: widths, lengths, masks of three axes, rows without a visible key. A hidden score "
        "must lose against every finite one and in every dtype; a finite number can always be beaten.",
    ),
    hides="Square maps hide their orientation; H = D hides √H for √D; B = H hides a mask's batch on the head axis; "
          "T = S hides keys reshaped with T, square masks and padding on the wrong axis; an all-visible mask hides "
          "every mask fault; finite fills show only below very negative scores and in float16; maps that start as "
          "copies hide V made with W_K.",
)
NAMES = ("batch", "query", "channel"), ("batch", "head", "query", "key")


def _built(lab, sizes, state, bias=False, dtype=torch.float64, training=False):
    """A module that has loaded `state`. Where that cannot be, its answer is recorded all the same."""
    load = {"state": state, "dtype": dtype, "training": training}
    handle, shapes = lab.build(NAME, sizes[3], sizes[4], load=load, **({"bias": True} if bias else {}))
    try:
        evidence.state(shapes, sizes[3], bias)
    except Mismatch:
        with suppress(Mismatch):
            lab.method(handle, "__call__", *(x.float() for x in random_call(sizes)[1:]))
        raise
    return handle


def _answer(lab, sizes, state, query, key, value, visible=None, **options):
    handle = _built(lab, sizes, state, **options)
    masks = () if visible is None else (visible,)
    got = lab.method(handle, "__call__", query, key, value, *masks)
    return evidence.pair(got)


def _same(got, want, atol=1e-9, rtol=1e-9):
    for mine, oracle, what, names in zip(reversed(got), reversed(want), ("probabilities", "output"), reversed(NAMES),
                                         strict=True):
        expect.close(mine, oracle, what, names, atol=atol, rtol=rtol)


def _plain(lab, sizes, call=random_call):
    """Random inputs: rows, scale, weights, output. Returns the answer."""
    got, want = _answer(lab, sizes, *call(sizes)), wanted(call, sizes)
    evidence.forms(got, want)
    evidence.rows(got[1])
    evidence.scale(got[1], want[1], sizes[3] // sizes[4])
    evidence.alike(got[1], want[1])
    evidence.unmerged(got[0], want[0], wanted(call, sizes, merged=True)[0])
    _same(got, want)
    return got


def _masked(lab, sizes, mask):
    """Coded values under equal scores: which keys does each query average?"""
    visible = mask(sizes)
    got, want = _answer(lab, sizes, *coded_call(sizes), visible), wanted(coded_call, sizes, mask)
    evidence.forms(got, want)
    evidence.rows(got[1])
    evidence.averages(got[0], got[1], visible, sizes[3] // sizes[4])
    _same(got, want)


@exercise.case("a packed checkpoint loads, and cross-attention with it is right: B2 H3 T5 S7 D4")
def cross(lab):
    _plain(lab, E)


@exercise.case("self-attention: one tensor three times, and its gradients add")
def alone(lab):
    output, _ = _plain(lab, E, self_call)
    state, x, *_ = self_call(E)
    want, _ = attend(state, E[4], x, x, x)
    cotangent = standard.normal(*want.shape, seed=61)
    grads = lab.backward((output, cotangent))
    expect.gradient(grads, x, torch.autograd.grad(want, x, cotangent)[0], "the one input")


@exercise.case("B=H=3, T=S=6: sizes where confused axes fit")
def trap(lab):
    _plain(lab, X)


@exercise.case("other sizes: B4 H5 T3 S7 D2")
def other_sizes(lab):
    _plain(lab, OTHER)


@exercise.case("a padding mask [B,1,1,S]")
def padded(lab):
    _masked(lab, E, padding)


@exercise.case("a padding mask where T = S")
def padded_square(lab):
    _masked(lab, X, padding)


@exercise.case("a mask for each query [T,S]")
def per_query(lab):
    _masked(lab, E, staircase)


@exercise.case("a mask for each sample and query [B,1,T,S] where T = S")
def per_query_square(lab):
    _masked(lab, X, staircases)


@exercise.case("a mask for each head [1,H,T,S]")
def each_head(lab):
    _masked(lab, E, per_head)


@exercise.case("scores near ±3·10⁴: a blocked key stays blocked above very negative visible ones")
def steep(lab):
    *call, visible = steep_call(E)
    got = _answer(lab, E, *call, visible)
    want = attend(call[0], 3, *call[1:], visible)
    evidence.forms(got, want)
    evidence.rows(got[1])
    leak = ((got[1] > 1e-6) & ~visible.expand_as(got[1])).nonzero()
    if len(leak):
        b, h, t, s = leak[0].tolist()
        best = want[1][b, h, t].argmax().item()
        expect.true(False, f"sample {b}, head {h}: query {t} gives the blocked key {s} the weight "
                           f"{got[1][b, h, t, s].item():.4g}; its best visible key {best} has "
                           f"{got[1][b, h, t, best].item():.4g}, expected {want[1][b, h, t, best].item():.4g}")
    _same(got, want)


def _gradients(lab, which, names, what):
    """Gradients of one answer, by a fixed random cotangent, in training mode and under a mask for each head."""
    state, *inputs = random_call(E)
    visible = scattered(E, 2, 3, 5, 7)
    inputs = [x.clone().requires_grad_() for x in inputs]
    leaves = {k: v.clone().requires_grad_() for k, v in state.items()}
    got = _answer(lab, E, state, *inputs, visible, training=True)
    want = attend(leaves, 3, *inputs, visible)
    evidence.forms(got, want)
    _same(got, [w.detach() for w in want])
    cotangent = standard.normal(*want[which].shape, seed=60)
    sources = dict(zip(("query", "key", "value"), inputs, strict=True)) | leaves
    theirs = torch.autograd.grad(want[which], [sources[n] for n in names], cotangent)
    grads = lab.backward((got[which], cotangent))
    for name, grad in zip(names, theirs, strict=True):
        expect.gradient(grads, name if name in state else sources[name], grad, f"{name} (from {what})")


@exercise.case("gradients of the output reach all inputs and all four maps")
def output_gradients(lab):
    names = ["query", "key", "value", *(f"{n}_proj.weight" for n in "qkvo")]
    _gradients(lab, 0, names, "the output")


@exercise.case("gradients of the probabilities reach queries, keys and their maps")
def probability_gradients(lab):
    _gradients(lab, 1, ["query", "key", "q_proj.weight", "k_proj.weight"], "the probabilities")


@exercise.case("bias=True gives each map a bias", CONTRACT)
def biased(lab):
    call = random_call(E, bias=True)
    got = _answer(lab, E, *call, bias=True)
    want = attend(call[0], 3, *call[1:])
    evidence.forms(got, want)
    _same(got, want)


def _in_dtype(lab, dtype, visible, calls=1):
    state, *inputs = random_call(E)
    state, inputs = {k: v.to(dtype) for k, v in state.items()}, [x.to(dtype) for x in inputs]
    want = [w.to(dtype) for w in attend(state, 3, *inputs, visible)]
    loose = {torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 1e-2}[dtype]
    handle = _built(lab, E, state, dtype=dtype)
    for _ in range(calls):
        got = evidence.pair(lab.method(handle, "__call__", *inputs, *(() if visible is None else (visible,))))
        evidence.forms(got, want)
        _same(got, want, loose, loose)


@exercise.case("float32 and bfloat16: the dtype follows the input, and two calls agree", CONTRACT)
def dtypes(lab):
    _in_dtype(lab, torch.float32, None, calls=2)
    _in_dtype(lab, torch.bfloat16, None, calls=2)


@exercise.case("float16, masked: what stands for a hidden score fits the dtype", CONTRACT)
def half(lab):
    _in_dtype(lab, torch.float16, scattered(E, 2, 1, 5, 7))


@exercise.case("one head of the whole width", CONTRACT)
def one_head(lab):
    _plain(lab, ONE)


def refusal(title, word, sizes, *changes):
    """Calls that must end in ValueError: each `change(query, key, value)` gives the arguments of one."""
    @exercise.case(title, CONTRACT)
    def refused(lab):
        state, *inputs = random_call(sizes)
        handle = _built(lab, sizes, state)
        for change in changes:
            lab.method_raises(ValueError, word, handle, "__call__", *change(*inputs))


def _wider(x):
    return torch.cat([x, x[..., :2]], -1)


def _dead_row():
    visible = scattered(E, 2, 3, 5, 7)
    visible[1, 2, 3] = False
    return visible


refusal("refuses a mask of three axes", "head axis", E, lambda q, k, v: (q, k, v, scattered(E, 2, 5, 7)))
refusal("refuses a mask of three axes where B = H", "head axis", X, lambda q, k, v: (q, k, v, scattered(X, 3, 6, 6)))
refusal("refuses a row without a visible key", "no visible key", E, lambda q, k, v: (q, k, v, _dead_row()))
refusal("refuses queries, keys or values of another width", "width", E,
        lambda q, k, v: (q[..., :10], k, v), lambda q, k, v: (_wider(q), k, v),
        lambda q, k, v: (q, k[..., :10], v), lambda q, k, v: (q, _wider(k), v),
        lambda q, k, v: (q, k, v[..., :10]), lambda q, k, v: (q, k, _wider(v)))
refusal("refuses 7 keys with 6 values, and 6 with 7", "key and value length", E,
        lambda q, k, v: (q, k, v[:, :6]), lambda q, k, v: (q, k[:, :6], v))


@exercise.case("refuses a width that the heads cannot share", CONTRACT)
def refuses_width(lab):
    lab.build_raises(ValueError, "divisible", NAME, 13, 3)


for _program in RIGHTS:
    exercise.right(_program)
for _id, _program in WRONG_MAPS + WRONG_WEIGHTS:
    exercise.wrong(_program, id=_id)


def _state(trials):
    """The weights that the module registered at d_model 12 with 3 heads: {name: shape}; None when they fit."""
    first = trials[0]
    shapes = first.transcript[0].value if first.transcript else None
    if first.passed or not isinstance(shapes, dict) or "packed checkpoint does not fit" not in first.message:
        return None
    return {k: v for k, v in shapes.items() if len(v) == 2}


def _known_by_state(id):
    def add(fits):
        exercise.recognise(id)(lambda trials: bool(shapes := _state(trials)) and fits(shapes))
        return fits
    return add


def _in_threes(shapes):
    """Whether weights of one head come once for each of the three heads, told apart by a number in their names."""
    groups = Counter(re.sub(r"\d+", "#", name) for name, shape in shapes.items() if 4 in shape)
    return any(n == 3 for n in groups.values())


_known_by_state("per-head-modules")(_in_threes)
_known_by_state("split-before-projection")(lambda shapes: (4, 4) in shapes.values() and not _in_threes(shapes))
_known_by_state("projection-overwritten")(
    lambda shapes: (4, 12) in shapes.values() and (4, 4) not in shapes.values() and not _in_threes(shapes))
_known_by_state("projections-tied")(lambda shapes: list(shapes.values()) == [(12, 12)])
_known_by_state("wo-missing")(lambda shapes: shapes == {f"{n}_proj.weight": (12, 12) for n in "qkv"})
_known_by_state("value-uses-key-projection")(lambda shapes: shapes == {f"{n}_proj.weight": (12, 12) for n in "qko"})
