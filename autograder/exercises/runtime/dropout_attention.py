"""Attention with dropout on its links; what is returned beside it are the probabilities before the draw."""
import math

import torch
from torch.nn import functional as F

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch, Observation
from ...standard import normal

NAME = "dropout_attention"
exercise = Exercise(
    NAME, step=3, points=2, minutes=4, difficulty=2, importance=4,
    summary="Attention whose links are dropped in training; the returned probabilities still sum to one.",
    hints=(
        "Two things leave the function: heads that felt the dropout, and probabilities that did not. At which line do "
        "the two part?",
        "A link is one entry of the probabilities. What stays has to grow, so that the mean over draws is the sum "
        "without dropout.",
        "Dropped scores are not dropped links: softmax would share the weight out again, and a score of zero is an "
        "ordinary score.",
    ),
    hides="p = 0.5 hides a keep probability; without the identity as values one cannot see which links were dropped.",
)
A, TRAP = (2, 3, 5, 7, 4, 6), (3, 3, 6, 6, 4, 4)  # B H T S D_qk D_v
P = 0.3
HEADS, LINKS = ("batch", "head", "query", "channel"), ("batch", "head", "query", "key")


def inputs(sizes, seed=0, dtype=torch.float64):
    b, h, t, s, d_qk, d_v = sizes
    shapes = (b, h, t, d_qk), (b, h, s, d_qk), (b, h, s, d_v)
    return [normal(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes)]


def attend(q, k, v):
    """Without dropout, one head after another."""
    rows = [(torch.einsum("btd,bsd->bts", q[:, h], k[:, h]) / math.sqrt(q.shape[-1])).softmax(-1)
            for h in range(q.shape[1])]
    p = torch.stack(rows, 1)
    return torch.einsum("bhts,bhsd->bhtd", p, v), p


def _pair(got, sizes, dtype=torch.float64):
    b, h, t, s, _, d_v = sizes
    if not isinstance(got, tuple) or len(got) != 2:
        raise Mismatch(f"the result is a {type(got).__name__}, expected the pair (heads, probabilities)")
    expect.shape(got[0], (b, h, t, d_v), "the heads", "[B,H,T,D_v]")
    expect.shape(got[1], (b, h, t, s), "the probabilities", "[B,H,T,S]")
    for part, what in zip(got, ("the heads", "the probabilities"), strict=True):
        expect.dtype(part, dtype, what)
    return got


def _same(got, want, loose=1e-10):
    for mine, oracle, what, names in zip(got, want, ("the heads", "the probabilities"), (HEADS, LINKS), strict=True):
        expect.close(mine, oracle, what, names, atol=loose, rtol=max(loose, 1e-9))


def _evaluate(lab, sizes, p, training, seed=0):
    q, k, v = inputs(sizes, seed)
    _same(_pair(lab.call(NAME, q, k, v, p, training), sizes), attend(q, k, v))


@exercise.case("evaluation: p = 0.3 is not applied, as SDPA at p = 0 confirms")
def evaluation(lab):
    q, k, v = inputs(A)
    got = _pair(lab.call(NAME, q, k, v, P, False), A)
    expect.close(got[0], F.scaled_dot_product_attention(q, k, v), "the heads", HEADS)
    _same(got, attend(q, k, v))


@exercise.case("training with p = 0, at B=H=3, T=S=6, D=4: sizes where confused axes fit")
def nothing_dropped(lab):
    _evaluate(lab, TRAP, 0.0, True, seed=10)


def _draws(lab, seeds):
    """Under the identity as values the heads are the links that stayed. Returns (probabilities, answers)."""
    sizes = 2, 3, 20, 24, 4, 24
    q, k, _ = inputs(sizes, seed=20)
    v = torch.eye(24, dtype=torch.float64).expand(2, 3, 24, 24).contiguous()
    answers = []
    for seed in seeds:
        answers.append(_pair(lab.call(NAME, q, k, v, P, True, seed=seed), sizes))
        lab.transcript[-1].value = "random"
    return attend(q, k, v)[1], answers


def _facts(p, heads, probabilities):
    """What a draw was, in a few words that do not depend on the draw."""
    sums = probabilities.sum(-1)
    rows = "rows of probabilities sum to one" if torch.allclose(sums, torch.ones_like(sums)) else "rows do not"
    kept = heads != 0
    share = 1 - kept.double().mean().item()
    drawn = "nothing" if share < 0.01 else "p" if abs(share - P) < 0.05 else "1-p" if abs(share - 1 + P) < 0.05 else "?"
    grown = [torch.allclose(heads[kept], (p / scale)[kept]) for scale in (1 - P, P, 1.0)]
    growth = next((n for n, fits in zip(("1/(1-p)", "1/p", "none"), grown, strict=True) if fits), "other")
    softmax = torch.allclose(heads.sum(-1), torch.ones_like(sums))
    return rows, drawn, growth, "mixed rows sum to one" if softmax else "mixed rows do not"


@exercise.case("training: what is dropped is a link, with probability p, and what stays grows by 1/(1-p)")
def training(lab):
    p, [(heads, probabilities)] = _draws(lab, (5,))
    lab.transcript.append(Observation("the draw", value=_facts(p, heads, probabilities)))
    sums = probabilities.sum(-1)
    if not torch.allclose(sums, torch.ones_like(sums)):
        at = ((sums - 1).abs() > 1e-9).nonzero()[0].tolist()
        raise Mismatch(f"the returned probabilities of sample {at[0]}, head {at[1]}, query {at[2]} sum to "
                       f"{sums[tuple(at)].item():.4f}, and rows range from {sums.min().item():.3f} to "
                       f"{sums.max().item():.3f}; before dropout each sums to 1")
    expect.close(probabilities, p, "the probabilities", LINKS)
    kept = heads != 0
    share = 1 - kept.double().mean().item()
    expect.true(abs(share - P) < 0.05, f"with p = {P}, {100 * share:.0f} percent of the links were dropped, expected "
                                       f"about {100 * P:.0f}")
    expect.close(heads[kept], (p / (1 - P))[kept], "with the identity as values, the links that stayed")


@exercise.case("two seeds draw two masks, one seed draws one", CONTRACT)
def seeds(lab):
    _, ((first, _), (same, _), (other, _)) = _draws(lab, (5, 5, 6))
    expect.close(same, first, "two calls under one seed: the heads", atol=0, rtol=0)
    expect.true(not torch.equal(first, other), "two seeds gave the same links: they are not drawn from torch's global "
                                               "generator")


@exercise.case("gradients of the heads, in evaluation")
def gradients(lab):
    q, k, v = (x.requires_grad_() for x in inputs(A, seed=30))
    got, want = _pair(lab.call(NAME, q, k, v, P, False), A), attend(q, k, v)
    _same(got, [w.detach() for w in want])
    cotangent = normal(*want[0].shape, seed=77)
    theirs = torch.autograd.grad(want[0], (q, k, v), cotangent)
    grads = lab.backward((got[0], cotangent))
    for x, grad, label in zip((q, k, v), theirs, "qkv", strict=True):
        expect.gradient(grads, x, grad, label)


@exercise.case("gradients of the probabilities, in training")
def probability_gradients(lab):
    q, k, v = (x.requires_grad_() for x in inputs(A, seed=40))
    got, want = _pair(lab.call(NAME, q, k, v, P, True), A), attend(q, k, v)
    lab.transcript[-1].value = "random"
    cotangent = normal(*want[1].shape, seed=78)
    theirs = torch.autograd.grad(want[1], (q, k), cotangent)
    grads = lab.backward((got[1], cotangent))
    expect.gradient(grads, q, theirs[0], "q (from the probabilities)")
    expect.gradient(grads, k, theirs[1], "k (from the probabilities)")


@exercise.case("the dtype follows the input, and two calls agree", CONTRACT)
def dtypes(lab):
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = inputs(A, seed=50, dtype=dtype)
        want = [w.to(dtype) for w in attend(q.double(), k.double(), v.double())]
        for _ in range(2):
            _same(_pair(lab.call(NAME, q, k, v, P, False), A, dtype), want, standard.TOLERANCE[dtype])


@exercise.case("refuses what is no probability, in both modes", CONTRACT)
def refuses(lab):
    for p in (1.0, -0.1, 1.5):
        for training in (True, False):
            lab.raises(ValueError, "probability", NAME, *inputs(A), p, training)


def checked(p):
    if not 0 <= p < 1:
        raise ValueError("a probability lies in [0, 1)")


def weights(q, k):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)


@exercise.right
def dropout_on_probabilities(q, k, v, p, training):
    checked(p)
    w = weights(q, k)
    return F.dropout(w, p, training) @ v, w


@exercise.right
def own_bernoulli_mask(q, k, v, p, training):
    checked(p)
    w = torch.einsum("bhtd,bhsd->bhts", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
    keep = torch.bernoulli(torch.full_like(w, 1 - p)) if training else torch.ones_like(w)
    return torch.einsum("bhts,bhsd->bhtd", w * keep / (1 - p if training else 1), v), w


@exercise.right
def sdpa_for_the_heads(q, k, v, p, training):
    checked(p)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=p if training else 0.0), weights(q, k)


@exercise.right
def dropout_module(q, k, v, p, training):
    checked(p)
    w = weights(q, k)
    return torch.nn.Dropout(p).train(training)(w) @ v, w


@exercise.right
def a_uniform_draw(q, k, v, p, training):
    checked(p)
    w = weights(q, k)
    if not training or p == 0:
        return w @ v, w
    return w.masked_fill(torch.rand(w.shape) < p, 0) @ v / (1 - p), w


@exercise.wrong
def always_on(q, k, v, p, training):
    """SDPA drops whenever its p is above 0, in evaluation too; it does not ask for the mode."""
    checked(p)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=p), weights(q, k)


@exercise.wrong(id="always-on")
def dropout_without_its_mode(q, k, v, p, training):
    checked(p)
    w = weights(q, k)
    return F.dropout(w, p) @ v, w


@exercise.wrong
def keep_probability(q, k, v, p, training):
    """p is the probability that a link is dropped, not that it is kept."""
    checked(p)
    w = weights(q, k)
    return F.dropout(w, 1 - p, training and p > 0) @ v, w


@exercise.wrong(id="keep-probability")
def keeps_with_p(q, k, v, p, training):
    checked(p)
    w = weights(q, k)
    keep = torch.bernoulli(torch.full_like(w, p)) / p if training and p else torch.ones_like(w)
    return (w * keep) @ v, w


@exercise.wrong
def never_on(q, k, v, p, training):
    """Training uses p; here nothing is ever dropped."""
    checked(p)
    return weights(q, k) @ v, weights(q, k)


@exercise.wrong
def dropped_weights_returned(q, k, v, p, training):
    """What is returned are the weights after dropout: their rows no longer sum to one. `nn.MultiheadAttention` returns
    such weights in training."""
    checked(p)
    w = F.dropout(weights(q, k), p, training)
    return w @ v, w


@exercise.wrong
def logits_dropped(q, k, v, p, training):
    """Links are dropped after softmax; a dropped score is an ordinary score, and softmax shares its weight out."""
    checked(p)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return F.dropout(scores, p, training).softmax(-1) @ v, scores.softmax(-1)


@exercise.wrong(id="logits-dropped")
def logits_set_to_minus_infinity(q, k, v, p, training):
    checked(p)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    dropped = torch.rand_like(scores) < p if training else torch.zeros_like(scores, dtype=torch.bool)
    return scores.masked_fill(dropped, -torch.inf).softmax(-1) @ v, scores.softmax(-1)


@exercise.wrong(id="logits-dropped")
def queries_dropped(q, k, v, p, training):
    checked(p)
    return weights(F.dropout(q, p, training), k) @ v, weights(q, k)


def _title(trials, probe):
    return next(t for t in trials if t.case.probe is probe)


def _drawn(trials):
    found = [o.value for o in _title(trials, training).transcript if o.asked == "the draw"]
    return found[0] if found else None


def _known(id, fits):
    exercise.recognise(id)(lambda trials: (facts := _drawn(trials)) is not None and fits(facts, trials))


_known("always-on", lambda f, t: not _title(t, evaluation).passed and _title(t, training).passed
       and _title(t, nothing_dropped).passed)
_known("keep-probability", lambda f, t: f[1] == "1-p" and _title(t, evaluation).passed)
_known("never-on", lambda f, t: f[1] == "nothing" and f[2] == "none" and f[0] != "rows do not"
       and _title(t, evaluation).passed)
_known("dropped-weights-returned", lambda f, t: f[0] == "rows do not" and f[1:3] == ("p", "1/(1-p)")
       and _title(t, evaluation).passed)
_known("logits-dropped", lambda f, t: f[0] != "rows do not" and f[3] == "mixed rows sum to one"
       and f[2] == "other" and _title(t, evaluation).passed)
