"""Attention that keeps its inputs and recomputes the rest: same parameters, mask, dropout draw and precision."""
import math

import torch

from ... import expect
from ...exercise import CONTRACT, VALUES, Exercise
from ...lab import Mismatch, Observation
from ...passes import two_passes
from ...standard import normal
from ._recompute_programs import RIGHTS, WRONGS

NAME = "RecomputedAttention"
exercise = Exercise(
    NAME, step=9, points=5, minutes=14, difficulty=5, importance=3,
    summary="A custom autograd function that saves its inputs and recomputes scores, probabilities and dropout mask.",
    hints=(
        "List what the backward formulas need: queries, keys, values, probabilities, the dropout mask. Which of these "
        "can be made again from the others, and what must be remembered so that they come out the same?",
        "A dropout mask is decided by the place at which the random generator stood. A place can be read, remembered "
        "and set; and somebody else's place must be found again afterwards.",
        "Autograd notices an input that was changed in place, but only in what it was asked to save. Attributes of ctx "
        "are for things that are not tensors of the call.",
    ),
    hides="Without dropout a fresh mask is invisible; with nothing drawn between the passes a generator left moved is; "
          "an all-visible mask hides a forgotten one; an output wider than the scores would hide saved probabilities.",
)
A, TRAP = (2, 3, 5, 7, 4, 6), (3, 3, 6, 6, 4, 4)  # B H T S D_qk D_v
P = 0.3
LABELS = "q", "k", "v"
NAMES = "batch", "head", "query", "channel"
SHIFTED, WRONG, COARSE = "moved", "wrong", "coarse"


def inputs(sizes, seed=0, dtype=torch.float64):
    """(q, k, v, cotangent); the first three need gradients."""
    b, h, t, s, d_qk, d_v = sizes
    shapes = (b, h, t, d_qk), (b, h, s, d_qk), (b, h, s, d_v), (b, h, t, d_v)
    q, k, v, g = (normal(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes))
    return *(x.requires_grad_() for x in (q, k, v)), g


def everything(sizes):
    return torch.ones(1, 1, sizes[2], sizes[3], dtype=torch.bool)


def rectangle(sizes):
    """[B,1,T,S], different for each sample and query; nobody is without a key."""
    b, _, t, s, *_ = sizes
    i = torch.arange(b)[:, None, None] + 2 * torch.arange(t)[:, None] + 3 * torch.arange(s)
    return (i % 4 != 0)[:, None]


def attend(q, k, v, visible):
    """Without dropout, one head after another, by einsum."""
    heads = []
    for h in range(q.shape[1]):
        seen = visible[:, h if visible.shape[1] > 1 else 0]
        scores = torch.einsum("btd,bsd->bts", q[:, h], k[:, h]) / math.sqrt(q.shape[-1])
        heads.append(torch.where(seen, scores, -torch.inf).softmax(-1) @ v[:, h])
    return torch.stack(heads, 1)


def oracle(q, k, v, g, visible):
    """(heads, gradients) in float64."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        heads = attend(*leaves, visible)
    return heads.detach(), torch.autograd.grad(heads, leaves, g.double())


def _drive(lab, *args, cotangent, **how):
    """Two passes whose result has the shape and the dtype of the cotangent."""
    passes = two_passes(lab, NAME, *args, cotangent=cotangent, **how)
    expect.shape(passes.value, cotangent.shape, "the heads", "[B,H,T,D_v]")
    expect.dtype(passes.value, cotangent.dtype, "the heads")
    return passes


def _compare(lab, passes, g, want, loose=1e-10):
    """Forward values, then each gradient; a gradient that is nearly right is told apart from a wrong one."""
    heads, grads = want
    expect.close(passes.value.double(), heads, "the heads", NAMES, atol=loose, rtol=loose)
    for i, (label, oracle) in enumerate(zip(LABELS, grads, strict=True)):
        got = passes.gradient(i, label)
        try:
            expect.close(got.double(), oracle, f"the gradient of {label}", atol=loose, rtol=max(loose, 1e-9))
        except Mismatch as m:
            error = (got.double() - oracle).abs().max().item() / oracle.abs().max().item()
            kind = COARSE if error < 0.03 else WRONG
            lab.transcript.append(Observation("gradient", value=kind))
            if kind == COARSE:
                raise Mismatch(f"the gradient of {label} is off by {error:.1e} of its largest value, while the forward "
                               f"pass is exact to rounding in {str(g.dtype)[6:]}", m.figure) from None
            raise


def _plain(lab, sizes, visible, seed, p=0.0, training=True, loose=1e-10, dtype=torch.float64):
    q, k, v, g = inputs(sizes, seed, dtype)
    passes = _drive(lab, q, k, v, visible, p, training, cotangent=g, draw=3)
    _compare(lab, passes, g, oracle(q, k, v, g, visible), loose)


@exercise.case("forward, no dropout: B2 H3 T5 S7, D_qk 4, D_v 6")
def forward(lab):
    q, k, v, _ = inputs(A)
    heads = expect.tensor(lab.call(f"{NAME}.apply", q, k, v, rectangle(A), 0.0, True), "the heads")
    want = attend(q, k, v, rectangle(A)).detach()
    expect.close(heads, want, "the heads", NAMES)


@exercise.case("gradients, every key visible, no dropout")
def gradients(lab):
    _plain(lab, A, everything(A), seed=10)


@exercise.case("gradients at B=H=3, T=S=6, D=4: sizes where confused axes fit")
def trap(lab):
    _plain(lab, TRAP, everything(TRAP), seed=20)


@exercise.case("gradients under a mask [B,1,T,S]")
def masked(lab):
    _plain(lab, A, rectangle(A), seed=30)


@exercise.case("gradients in evaluation: a dropout of 0.3 is not applied", CONTRACT)
def evaluation(lab):
    _plain(lab, A, rectangle(A), seed=40, p=P, training=False)


@exercise.case("float32 and bfloat16: the dtype follows the inputs", CONTRACT)
def dtypes(lab):
    for dtype, loose in ((torch.float32, 2e-5), (torch.bfloat16, 0.1)):
        _plain(lab, A, rectangle(A), seed=50, dtype=dtype, loose=loose)


@exercise.case("dropout: what is dropped is a probability, and what stays grows by 1/(1-p)", CONTRACT)
def dropped(lab):
    b, h, t, s = 2, 3, 20, 24
    q, k, v, g = inputs((b, h, t, s, 4, s), seed=60)
    v = torch.eye(s, dtype=torch.float64).expand(b, h, s, s).contiguous().requires_grad_()
    p = attend(q, k, v, everything((b, h, t, s))).detach()
    asked = {"cotangent": g, "record": False}
    first, same, other = (_drive(lab, q, k, v, everything((b, h, t, s)), P, True, seed=seed, **asked).value
                          for seed in (5, 5, 6))
    expect.close(same, first, "two forward passes under one seed: the heads", atol=0, rtol=0)
    kept = first != 0
    expect.close(first[kept], (p / (1 - P))[kept], "with the identity as values, the probabilities that stayed")
    share = 1 - kept.double().mean().item()
    expect.true(abs(share - P) < 0.04, f"{100 * share:.0f} percent of the probabilities were dropped, expected about "
                                       f"{100 * P:.0f}")
    expect.true(not torch.equal(first, other), "two seeds gave the same dropout mask: it is not drawn from torch's "
                                               "global generator")


def _measured(lab, q, k, v, visible, g, seed, at, step=1e-5):
    """The slope of ⟨heads, g⟩ along one coordinate, under dropout: the generator starts at one place for every call."""
    which, *index = at
    ends = []
    for sign in (step, -step):
        args = [x.detach().clone() for x in (q, k, v)]
        args[which][tuple(index)] += sign
        heads = expect.tensor(lab.call(f"{NAME}.apply", *args, visible, P, True, seed=seed), "the heads")
        expect.shape(heads, g.shape, "the heads", "[B,H,T,D_v]")
        expect.dtype(heads, g.dtype, "the heads")
        lab.transcript[-1].value = "random"
        ends.append((heads * g).sum().item())
    return (ends[0] - ends[1]) / (2 * step)


COORDINATES = ((0, 0, 1, 2, 3), (0, 1, 2, 4, 0), (1, 1, 0, 5, 2), (1, 0, 2, 0, 1), (2, 0, 0, 3, 5), (2, 1, 1, 6, 2))


@exercise.case("gradients under dropout: central differences that reseed before each forward pass", CONTRACT)
def under_dropout(lab):
    q, k, v, g = inputs(A, seed=70)
    visible = rectangle(A)
    first, second = (_drive(lab, q, k, v, visible, P, True, cotangent=g, seed=8, draw=draw, record=False)
                     for draw in (5, 11))
    grads = [first.gradient(i, label) for i, label in enumerate(LABELS)]
    slopes = [_measured(lab, q, k, v, visible, g, 8, at) for at in COORDINATES]
    wrong = [n for n, (at, slope) in enumerate(zip(COORDINATES, slopes, strict=True))
             if not abs(grads[at[0]][at[1:]].item() - slope) < 1e-6]
    if not wrong:
        return
    (which, *index), slope = COORDINATES[wrong[0]], slopes[wrong[0]]
    got, cell = grads[which][tuple(index)].item(), f"{LABELS[which]}[{','.join(map(str, index))}]"
    plain = oracle(q, k, v, g, visible)[1]
    error = max(abs(grads[at[0]][at[1:]].item() - s) for at, s in zip(COORDINATES, slopes, strict=True))
    if all(torch.allclose(a, b, atol=1e-6) for a, b in zip(grads, plain, strict=True)):
        kind, why = "undropped", "it is the gradient of a call without dropout"
    elif any(not torch.allclose(a, b) for a, b in zip(grads, second.grads, strict=True)):
        kind, why = WRONG, "it changes with the numbers that were drawn between the passes"
    elif error < 0.03 * max(map(abs, slopes)):
        kind, why = COARSE, "it is nearly that"
    else:
        kind, why = WRONG, "it belongs to another mask"
    lab.transcript.append(Observation("gradient under dropout", value=kind))
    raise Mismatch(f"the gradient of {cell} is {got:.6g}; stepping it by 1e-5 under the same seed measures "
                   f"{slope:.6g}: {why}")


@exercise.case("the backward pass leaves the random generator where it found it", CONTRACT)
def generator(lab):
    q, k, v, g = inputs(A, seed=80)
    passes = _drive(lab, q, k, v, rectangle(A), P, True, cotangent=g, draw=5, record=False)
    passes.gradient(0, "q")
    if not passes.rng_kept:
        lab.transcript.append(Observation("generator", value=SHIFTED))
        raise Mismatch("after the forward pass 5 numbers were drawn, then came the backward pass, and now torch's "
                       "generator stands somewhere else: the numbers that follow would repeat or skip some")


@exercise.case("what the graph keeps between the passes is small", CONTRACT)
def kept(lab):
    q, k, v, g = inputs(A, seed=90)
    passes = _drive(lab, q, k, v, rectangle(A), P, True, cotangent=g, watch=True, record=False)
    passes.gradient(0, "q")
    large = passes.larger_than(g.numel())
    if large:
        lab.transcript.append(Observation("kept", value=sorted(math.prod(shape) for _, shape in large)))
        where, shape = large[0]
        raise Mismatch(f"{where} of shape {list(shape)} ({math.prod(shape)} elements) waits for the backward pass; the "
                       f"output has {g.numel()}, and nothing but the inputs may be larger")


@exercise.case("an input that is changed in place between the passes is noticed", CONTRACT)
def changed(lab):
    unnoticed = []
    for number, label in enumerate(LABELS):
        q, k, v, g = inputs(A, seed=100)
        passes = _drive(lab, q, k, v, rectangle(A), 0.0, True, cotangent=g, change=number)
        if not passes.raised:
            passes.gradient(number, label)
            unnoticed.append(label)
    if unnoticed:
        raise Mismatch(f"{' and '.join(unnoticed)} changed in place between the passes, and the backward pass raised "
                       "nothing: its gradient belongs to no forward pass that ever ran")


@exercise.case("refuses a query without a visible key", CONTRACT)
def refuses_blind(lab):
    q, k, v, _ = inputs(A)
    visible = rectangle(A)
    visible[1, 0, 3] = False
    lab.raises(ValueError, "no visible key", f"{NAME}.apply", q, k, v, visible, 0.0, False)


@exercise.case("refuses a dropout probability outside [0, 1)", CONTRACT)
def refuses_probability(lab):
    q, k, v, _ = inputs(A)
    for p in (1.0, -0.1, 1.5):
        lab.raises(ValueError, "probability", f"{NAME}.apply", q, k, v, everything(A), p, True)


for _program in RIGHTS:
    exercise.right(_program)
for _id, _program in WRONGS:
    exercise.wrong(_program, id=_id)


def _by_title(trials, probe):
    return next(t for t in trials if t.case.probe is probe)


def _facts(trials, asked):
    return {o.value for t in trials for o in t.transcript if o.asked == asked and isinstance(o.value, str)}


def _values_pass(trials):
    return all(t.passed for t in trials if t.case.kind == VALUES)


@exercise.recognise("fresh-dropout-mask")
def another_function(trials):
    return _values_pass(trials) and WRONG in _facts(trials, "gradient under dropout")


@exercise.recognise("rng-left-moved")
def generator_elsewhere(trials):
    return SHIFTED in _facts(trials, "generator") and _by_title(trials, under_dropout).passed


@exercise.recognise("stashed-on-ctx")
def no_version_check(trials):
    return "raised nothing" in _by_title(trials, changed).message and _by_title(trials, gradients).passed


@exercise.recognise("saves-probabilities")
def large_tensor_kept(trials):
    return "waits for the backward pass" in _by_title(trials, kept).message


@exercise.recognise("mask-dropped-in-backward")
def right_until_a_mask_comes(trials):
    free, under = _by_title(trials, gradients), _by_title(trials, masked)
    return free.passed and _by_title(trials, forward).passed and not under.passed \
        and _facts([under], "gradient") == {WRONG}


@exercise.recognise("lower-precision")
def nearly_right(trials):
    kinds = _facts(trials, "gradient")
    return kinds == {COARSE} and _by_title(trials, forward).passed
