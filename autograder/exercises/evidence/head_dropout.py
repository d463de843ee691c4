"""Whole heads, dropped while training."""
import torch

from ... import expect, standard
from ...exercise import CONTRACT, VALUES, Exercise
from ...lab import Mismatch

exercise = Exercise(
    "head_dropout", step=5, points=2, minutes=4, difficulty=2, importance=3,
    summary="Drop whole heads of each sample with probability p in training, and leave them alone at evaluation.",
    hints=(
        "Of how many independent decisions does one call consist, and what shape has a tensor that holds one decision "
        "each?",
        "A sum over heads comes next. If a quarter of them is missing on average, what keeps the sum's mean where it "
        "was?",
        "A mask of shape [B,H,1,1], True with probability 1-p, times 1/(1-p). At evaluation there is no mask, and no "
        "factor either.",
    ),
    hides="one sample hides a mask for the whole batch; one row or one channel hides links and elements; p = 1/2 hides "
          "p in place of 1-p.",
)
A, WIDE = (2, 3, 5, 6), (40, 25, 3, 2)
ROWS, ELEMENTS, BATCH, SAMPLES, SCALE, EVAL, RATE, GIVEN = (
    "changes from row to row", "changes from channel to channel", "the same heads in every sample",
    "all heads of a sample or none", "is kept and multiplied by", "at evaluation", "are dropped",
    "the generator that was given")


def _heads(shape, seed=0, dtype=torch.float64):
    """Numbers that are never 0, so that a mask can be read back."""
    x = standard.normal(*shape, seed=seed)
    return (x.sign() * (x.abs() + 0.5)).to(dtype)


def _mask(got, heads, p, atol=1e-9):
    """The factor of every head, [B,H], after it was found to be one for the whole head, and either 0 or 1/(1-p)."""
    expect.shape(got, heads.shape, "the result")
    expect.dtype(got, heads.dtype, "the result")
    factor = got.detach().double() / heads.double()
    for axis, word in ((-1, ELEMENTS), (-2, ROWS)):
        odd = (factor - factor.narrow(axis, 0, 1)).abs() > max(atol, 1e-12)
        if odd.any():
            b, h, t, d = odd.nonzero()[0].tolist()
            here, first = factor[b, h, t, d].item(), factor.narrow(axis, 0, 1).expand_as(factor)[b, h, t, d].item()
            raise Mismatch(f"sample {b} head {h}: row {t} channel {d} is multiplied by {here:.4g}, and {first:.4g} "
                           f"before it; the mask {word}, a dropped head goes as a whole")
    factor = factor[:, :, 0, 0]
    kept = 1 / (1 - p)
    odd = (factor.abs() > atol) & ((factor - kept).abs() > 1e-6 * kept)
    if odd.any():
        b, h = odd.nonzero()[0].tolist()
        raise Mismatch(f"sample {b} head {h} {SCALE} {factor[b, h].item():.4g}, expected {kept:.4g} = 1/(1-p)")
    return factor


def _rate(mask, p):
    """Independent decisions at the right rate, within five standard deviations."""
    dropped = mask == 0
    if dropped.any() and (dropped == dropped[:1]).all() and not dropped.all():
        raise Mismatch(f"of {mask.shape[0]} samples all drop {BATCH}; each sample has a draw of its own")
    if (dropped == dropped[:, :1]).all() and dropped.any():
        raise Mismatch(f"every sample drops {SAMPLES}; each head has a draw of its own")
    share, count = dropped.double().mean().item(), mask.numel()
    if abs(share - p) > 5 * (p * (1 - p) / count) ** 0.5:
        raise Mismatch(f"{share:.1%} of {count} heads {RATE}, expected about {p:.0%}")


def _some_kept(mask):
    expect.true(bool(mask.any()), f"all of {mask.numel()} heads {RATE}")


def _train(lab, shape, p, seed, **more):
    heads = _heads(shape, seed)
    return _mask(lab.call("head_dropout", heads, p, True, seed=seed, **more), heads, p)


@exercise.case("A, p = 0.4: a head goes as a whole, and a kept one is scaled")
def small(lab):
    _some_kept(torch.cat([_train(lab, A, 0.4, seed) for seed in range(4)]))


@exercise.case("a thousand heads, p = 0.25: each on its own")
def many(lab):
    _rate(_train(lab, WIDE, 0.25, 11), 0.25)


@exercise.case("a thousand heads, p = 0.8")
def most(lab):
    _rate(_train(lab, WIDE, 0.8, 12), 0.8)


@exercise.case("at evaluation every head stays as it is")
def evaluation(lab):
    heads = _heads(A, 3)
    got = lab.call("head_dropout", heads, 0.6, False, seed=1)
    expect.shape(got, heads.shape, "the result")
    expect.dtype(got, heads.dtype, "the result")
    wrong = (got != heads).nonzero()
    if len(wrong):
        b, h, t, d = wrong[0].tolist()
        factor = (got / heads)[b, h, t, d].item()
        raise Mismatch(f"{EVAL} sample {b} head {h} is multiplied by {factor:.4g}, expected 1")


def _gradient(lab, p, training, seed):
    heads = _heads((4, 6, 2, 3), 4).requires_grad_()
    got = lab.call("head_dropout", heads, p, training, seed=seed)
    mask = _mask(got, heads.detach(), p if training else 0.0)
    _some_kept(mask)
    cotangent = standard.normal(*heads.shape, seed=9)
    expect.gradient(lab.backward((got, cotangent)), heads, cotangent * mask[:, :, None, None], "heads",
                    ("sample", "head", "row", "channel"))


@exercise.case("a gradient comes back through the kept heads, with their factor")
def gradients(lab):
    _gradient(lab, 0.4, True, 2)


@exercise.case("a gradient comes back at evaluation", CONTRACT)
def gradient_at_evaluation(lab):
    _gradient(lab, 0.4, False, 3)


@exercise.case("the dtype follows the input, and p = 0 drops nothing", CONTRACT)
def dtypes(lab):
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        heads = _heads(A, 5, dtype)
        got = lab.call("head_dropout", heads, 0.5, True)
        expect.close(got, heads * 2 * (got.detach() != 0), "the result", ("sample", "head", "row", "channel"))
        expect.dtype(got, dtype, "the result")
        expect.close(lab.call("head_dropout", heads, 0.0, True), heads, "the result for p = 0")


@exercise.case("a generator that is given is the one that draws", CONTRACT)
def generator(lab):
    def drawn(number, seed):
        return _train(lab, (6, 8, 2, 3), 0.5, seed, generator=torch.Generator().manual_seed(number)) != 0
    first, again, other = drawn(5, 1), drawn(5, 2), drawn(6, 1)
    expect.true(torch.equal(first, again), f"{GIVEN} was seeded alike twice, and the masks differ")
    expect.true(not torch.equal(first, other), f"{GIVEN} was seeded differently, and the masks are equal")


@exercise.case("refuses what is no probability below 1", CONTRACT)
def refuses(lab):
    for p in (1.0, -0.1, 1.5):
        lab.raises(ValueError, "probability", "head_dropout", _heads(A), p, True)
    lab.raises(ValueError, "probability", "head_dropout", _heads(A), 2.0, False)


def _probability(p):
    if not 0 <= p < 1:
        raise ValueError(f"{p} is no probability in [0,1)")


def _dropped(heads, p, training, generator, shape=None, scale=None):
    _probability(p)
    if not training:
        return heads
    shape = (*heads.shape[:2], 1, 1) if shape is None else shape
    keep = (torch.rand(shape, generator=generator) >= p).to(heads.dtype)
    return heads * keep * (1 / (1 - p) if scale is None else scale)


@exercise.right
def compare_uniform_numbers(heads, p, training, generator=None):
    return _dropped(heads, p, training, generator)


@exercise.right
def bernoulli(heads, p, training, generator=None):
    _probability(p)
    if not training or p == 0:
        return heads
    keep = torch.full((*heads.shape[:2], 1, 1), 1 - p, dtype=torch.float64).bernoulli(generator=generator)
    return heads * (keep / (1 - p)).to(heads.dtype)


@exercise.right
def dropout_on_ones(heads, p, training, generator=None):
    _probability(p)
    ones = heads.new_ones(*heads.shape[:2], 1, 1)
    if generator is None:
        return heads * torch.nn.functional.dropout(ones, p, training)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        return heads * torch.nn.functional.dropout(ones, p, training)


@exercise.right
def head_by_head(heads, p, training, generator=None):
    _probability(p)
    if not training:
        return heads.clone()
    samples = []
    for sample in heads:
        draws = torch.rand(len(sample), generator=generator).tolist()
        samples.append(torch.stack([head / (1 - p) if u >= p else torch.zeros_like(head)
                                    for head, u in zip(sample, draws, strict=True)]))
    return torch.stack(samples)


@exercise.right
def where_and_einsum(heads, p, training, generator=None):
    _probability(p)
    if not training:
        return heads * 1
    draws = torch.empty(heads.shape[:2]).uniform_(generator=generator)
    factor = torch.where(draws < 1 - p, 1 / (1 - p), 0.0).to(heads.dtype)
    return torch.einsum("bhtd,bh->bhtd", heads, factor)


@exercise.wrong
def links_dropped(heads, p, training, generator=None):
    """That is attention dropout: it works inside a head, row by row. Here the whole branch goes."""
    return _dropped(heads, p, training, generator, (*heads.shape[:3], 1))


@exercise.wrong(id="links-dropped")
def rows_of_all_heads(heads, p, training, generator=None):
    return _dropped(heads, p, training, generator, (heads.shape[0], 1, heads.shape[2], 1))


@exercise.wrong
def elements_dropped(heads, p, training, generator=None):
    """A whole head branch goes, not single channels."""
    _probability(p)
    return torch.nn.functional.dropout(heads, p, training)


@exercise.wrong(id="elements-dropped")
def channels(heads, p, training, generator=None):
    return _dropped(heads, p, training, generator, (*heads.shape[:2], 1, heads.shape[3]))


@exercise.wrong
def not_rescaled(heads, p, training, generator=None):
    """Kept heads are divided by 1-p."""
    return _dropped(heads, p, training, generator, scale=1.0)


@exercise.wrong(id="not-rescaled")
def multiplied(heads, p, training, generator=None):
    return _dropped(heads, p, training, generator, scale=1 - p)


@exercise.wrong(id="not-rescaled")
def divided_by_p(heads, p, training, generator=None):
    return _dropped(heads, p, training, generator, scale=1 / max(p, 1e-9))


@exercise.wrong(id="not-rescaled")
def at_evaluation_instead(heads, p, training, generator=None):
    return _dropped(heads, p, training, generator, scale=1.0) if training else heads * (1 - p)


@exercise.wrong
def active_in_eval(heads, p, training, generator=None):
    """All heads return at evaluation, unscaled."""
    return _dropped(heads, p, True, generator)


@exercise.wrong
def one_draw_for_the_batch(heads, p, training, generator=None):
    """Every sample dropped the same heads; each sample draws on its own."""
    return _dropped(heads, p, training, generator, (1, heads.shape[1], 1, 1))


@exercise.wrong
def whole_samples_dropped(heads, p, training, generator=None):
    """All heads of a sample went together; each head draws on its own."""
    return _dropped(heads, p, training, generator, (heads.shape[0], 1, 1, 1))


@exercise.wrong
def kept_with_p(heads, p, training, generator=None):
    """p is the probability of dropping a head, not of keeping it."""
    _probability(p)
    if not training:
        return heads
    keep = torch.rand((*heads.shape[:2], 1, 1), generator=generator) < p
    return heads * keep.to(heads.dtype) / (1 - p)


@exercise.wrong(id="kept-with-p")
def kept_and_divided_by_it(heads, p, training, generator=None):
    _probability(p)
    if not training or p == 0:
        return heads
    keep = torch.rand((*heads.shape[:2], 1, 1), generator=generator) < p
    return heads * keep.to(heads.dtype) / p


@exercise.wrong
def generator_ignored(heads, p, training, generator=None):
    """A generator that was given is the one to draw from; otherwise a run cannot be repeated."""
    return _dropped(heads, p, training, None)


def _by_message(id_, *words):
    """Masks are drawn in many ways; what they have in common is what was read back."""
    @exercise.recognise(id_)
    def fits(trials):
        return any(word in t.message for t in trials if not t.passed for word in words)


_by_message("links-dropped", ROWS)
_by_message("elements-dropped", ELEMENTS)
_by_message("one-draw-for-the-batch", BATCH)
_by_message("whole-samples-dropped", SAMPLES)


def _failed(trials, probe):
    return next((t.message for t in trials if t.case.probe is probe and not t.passed), "")


@exercise.recognise("not-rescaled")
def another_factor(trials):
    """One factor for all kept heads at 0.4 and another at 0.25: 1, 1-p or 1/p, at the right rate."""
    message = _failed(trials, small)
    if SCALE not in message:
        return False
    seen = [_share(t) for t in trials if t.case.probe in (many, most)]
    return all(s is not None and abs(s - p) < 0.08 for s, p in zip(seen, (0.25, 0.8), strict=True))


@exercise.recognise("kept-with-p")
def another_rate(trials):
    seen = [_share(t) for t in trials if t.case.probe in (many, most)]
    return all(s is not None and abs(s - (1 - p)) < 0.08 for s, p in zip(seen, (0.25, 0.8), strict=True))


def _share(trial):
    """Which share of the heads is 0 throughout."""
    value = trial.transcript[-1].value if trial.transcript else None
    if not isinstance(value, torch.Tensor) or value.shape != WIDE:
        return None
    return (value == 0).flatten(2).all(-1).double().mean().item()


@exercise.recognise("active-in-eval")
def not_at_rest(trials):
    """Right while training, and at evaluation some heads are 0."""
    if any(_failed(trials, probe) for probe in (small, many, most)):
        return False
    return EVAL in _failed(trials, evaluation)


@exercise.recognise("generator-ignored")
def draws_from_elsewhere(trials):
    if any(not t.passed for t in trials if t.case.kind == VALUES):
        return False
    return GIVEN in _failed(trials, generator)
