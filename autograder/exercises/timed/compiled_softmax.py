"""A masked softmax that survives scores of any size."""
import torch

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from ...standard import normal

exercise = Exercise(
    "compiled_softmax", step=4, points=2, minutes=6, difficulty=2, importance=4,
    summary="Turn masked scores into probabilities, for scores near a thousand too; write it so that torch.compile "
            "could fuse it.",
    hints=(
        "exp(1000) is no number of float64. Which constant can you take off a whole row of scores so that the softmax "
        "stays what it is?",
        "A blocked score takes no part: not in the sum, and not in the maximum either. What is the maximum worth if it "
        "belongs to a blocked key?",
        "-inf is a score whose exponential is exactly 0. Fill it in where blocked, and everything after it, maximum "
        "included, sees visible keys only.",
    ),
    hides="scores near 0 hide a missing maximum; a maximum that is visible hides one over all keys; T=S hides a "
          "softmax over the queries.",
)

NAMES = ("batch", "head", "query", "key")


def oracle(scores, visible):
    """Row by row over the visible keys, in float64."""
    visible = visible.expand(scores.shape)
    top = torch.where(visible, scores, -torch.inf).amax(-1, keepdim=True).detach()
    weights = torch.where(visible, (scores - top).clamp(max=0.0).exp(), 0.0)
    return weights / weights.sum(-1, keepdim=True)


def mask(*shape, seed=5):
    """Two thirds visible, and key 0 always."""
    visible = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.67
    visible[..., 0] = True
    return visible


def _check(lab, scores, visible):
    got = lab.call("compiled_softmax", scores, visible)
    want = oracle(scores, visible)
    expect.shape(got, want.shape, "the probabilities", "[B,H,T,S]")
    expect.dtype(got, want.dtype, "the probabilities")
    blocked = (got != 0) & ~visible.expand(want.shape)
    finite = not got.isnan().any()
    if finite and blocked.any():
        b, h, t, s = blocked.nonzero()[0].tolist()
        raise expect.Mismatch(f"batch {b} head {h}: query {t} gives the blocked key {s} the probability "
                              f"{got[b, h, t, s].item():.4g}, expected exactly 0")
    sums = (got.double().sum(-1) - 1).abs()
    if finite and (sums > 1e-9).any():
        b, h, t = (sums > 1e-9).nonzero()[0].tolist()
        raise expect.Mismatch(f"batch {b} head {h}: the probabilities of query {t} sum to "
                              f"{got[b, h, t].double().sum().item():.4g} over the keys, expected 1")
    expect.close(got, want, "the probabilities", NAMES)


@exercise.case("small scores: B2 H3 T5 S7, a mask of all four axes")
def small(lab):
    _check(lab, normal(2, 3, 5, 7), mask(2, 3, 5, 7))


@exercise.case("scores near 1000")
def large(lab):
    _check(lab, 1000 + normal(2, 3, 5, 7, seed=1), mask(2, 1, 5, 7))


@exercise.case("scores near -1000")
def low(lab):
    _check(lab, -1000 + normal(2, 3, 5, 7, seed=2), mask(1, 1, 5, 7))


@exercise.case("blocked scores that are 1000 above the visible ones")
def blocked_above(lab):
    visible = mask(2, 3, 5, 7)
    _check(lab, torch.where(visible, 0.0, 1000.0) + normal(2, 3, 5, 7, seed=3), visible)


@exercise.case("X: B=H=3, T=S=6, all keys visible")
def trap(lab):
    _check(lab, normal(3, 3, 6, 6, seed=4), torch.ones(1, 1, 1, 6, dtype=torch.bool))


standard.tensor_cases(exercise, lambda: ([normal(2, 3, 4, 7, seed=6), mask(2, 1, 4, 7)], {}), oracle, NAMES)


@exercise.case("refuses a query that may look at nothing", CONTRACT)
def refuses(lab):
    visible = mask(2, 3, 4, 7)
    visible[1, 2, 3] = False
    lab.raises(ValueError, "no visible key", "compiled_softmax", normal(2, 3, 4, 7), visible)


def _look(visible):
    if not visible.any(-1).all():
        raise ValueError("no visible key")


def _filled(scores, visible):
    _look(visible)
    return scores.masked_fill(~visible, -torch.inf)


@exercise.right
def eager(scores, visible):
    return torch.softmax(_filled(scores, visible), dim=-1)


@exercise.right
def where(scores, visible):
    _look(visible)
    return torch.where(visible, scores, -torch.inf).softmax(-1)


@exercise.right
def by_hand(scores, visible):
    scores = _filled(scores, visible)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


@exercise.right
def through_the_logarithm(scores, visible):
    scores = _filled(scores, visible)
    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))


@exercise.right
def added_bias(scores, visible):
    _look(visible)
    bias = torch.zeros(visible.shape, dtype=scores.dtype).masked_fill(~visible, -torch.inf)
    return (scores + bias).softmax(-1)


@exercise.right
def compiled(scores, visible):
    _look(visible)
    return torch.compile(_masked_softmax, backend="eager", dynamic=True)(scores, visible)


def _masked_softmax(scores, visible):
    return torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)


@exercise.wrong
def no_maximum(scores, visible):
    """No maximum was taken off before `exp`: exp(1000) overflows, and inf/inf is NaN."""
    weights = torch.exp(_filled(scores, visible))
    return weights / weights.sum(-1, keepdim=True)


@exercise.wrong(id="no-maximum")
def no_maximum_where(scores, visible):
    _look(visible)
    weights = torch.where(visible, torch.exp(scores), 0.0)
    return weights / weights.sum(-1, keepdim=True)


@exercise.wrong(id="no-maximum")
def no_maximum_times_mask(scores, visible):
    _look(visible)
    weights = torch.exp(scores) * visible
    return weights / weights.sum(-1, keepdim=True)


@exercise.wrong
def maximum_over_blocked(scores, visible):
    """The maximum came from a blocked key: it takes so much off the visible ones that all of them vanish. Take it from
    visible keys."""
    _look(visible)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * visible
    return weights / weights.sum(-1, keepdim=True)


@exercise.wrong(id="maximum-over-blocked")
def blocked_after_the_softmax(scores, visible):
    _look(visible)
    weights = scores.softmax(-1).masked_fill(~visible, 0.0)
    return weights / weights.sum(-1, keepdim=True)


@exercise.wrong
def rows_not_keys(scores, visible):
    """The wrong axis was normalised: the queries' axis sums to 1, and the rows over the keys do not."""
    return torch.softmax(_filled(scores, visible), dim=-2).nan_to_num()


@exercise.wrong(id="rows-not-keys")
def rows_with_nan(scores, visible):
    return torch.softmax(_filled(scores, visible), dim=-2)


@exercise.timed(2.0, {"scores": (2, 8, 256, 256), "visible": (2, 1, 256, 256)}, masks=("visible",))
def compiled_softmax(scores, visible):
    """The masked softmax written out, eager: a maximum, an exponential, a sum, a quotient."""
    scores = scores.masked_fill(~visible, -torch.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)
