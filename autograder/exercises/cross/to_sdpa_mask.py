"""Visibility in the words of scaled_dot_product_attention: four axes, and True means visible."""
import torch
from torch.nn import functional as F

from ... import expect
from ...exercise import Exercise
from ...lab import Mismatch
from ._calls import E, X, attended
from ._masks import HEADS, checked, patterns, qkv, refusals

exercise = Exercise(
    "to_sdpa_mask", step=5, points=1, minutes=2, difficulty=1, importance=4, tensor=False,
    summary="Visibility as the attn_mask of F.scaled_dot_product_attention, where True means visible.",
    hints=(
        "Look up what True means in the attn_mask of this function, and then in the one of nn.MultiheadAttention.",
        "The axes fit already: whatever broadcasts to [B,H,T,S] will do.",
        "If you turn the mask into numbers, they are added to the scores: what must be added so that nothing is left "
        "of a key, in every dtype?",
    ),
    hides="An all-visible mask hides polarity and every finite number; moderate scores hide a finite fill from the "
          "output in float32, so its values are looked at too.",
)
CASES = {"one mask for all heads: B2 H3 T5 S7": (E, 0), "a mask for each head: B2 H3 T5 S7": (E, 1),
         "B=H=3, T=S=6": (X, 0), "B2 H4, a mask for each head": (HEADS, 1)}


def _case(title, sizes, which):
    @exercise.case(title)
    def probe(lab):
        visible = patterns(sizes)[which]
        got = expect.tensor(lab.call("to_sdpa_mask", visible), "the mask")
        expect.true(got.dim() == 4, f"the mask has {got.dim()} axes, expected four")
        q, k, v = qkv(sizes)
        full = (*q.shape[:3], k.shape[2])
        try:
            seen = got.expand(full)
            mask = got if got.dtype == torch.bool else got.to(q.dtype)
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        except RuntimeError as e:
            raise Mismatch(f"a mask {list(got.shape)} does not serve scores {list(full)}: {str(e)[:120]}") from None
        want = attended(q, k, visible) @ v
        if got.dtype != torch.bool:
            hidden = (visible.expand(full) ^ True) & seen.isfinite()
            if hidden.any():
                b, h, t, s = hidden.nonzero()[0].tolist()
                raise Mismatch(f"for query {t} the number {seen[b, h, t, s]:g} is added to the score of key {s}, which "
                               "is hidden: whatever number that is, it does not block")
        try:
            expect.close(heads, want, "the heads of SDPA with this mask", ("batch", "head", "query", "channel"))
        except Mismatch as m:
            raise Mismatch(f"{m}{_read_back(seen, visible.expand(full))}", m.figure) from None


def _read_back(seen, visible):
    wrong = (seen != visible).nonzero() if seen.dtype == torch.bool else []
    if not len(wrong):
        return ""
    b, h, t, s = wrong[0].tolist()
    return (f"; in sample {b} query {t} may {'' if visible[b, h, t, s] else 'not '}look at key {s}, and the mask says "
            f"{seen[b, h, t, s].item()}")


for _title, (_sizes, _which) in CASES.items():
    _case(_title, _sizes, _which)
refusals(exercise, lambda visible, sizes: (visible,))


@exercise.right
def as_it_is(visible):
    return checked(visible)


@exercise.right
def a_copy(visible):
    return checked(visible).clone()


@exercise.right
def additive_infinity(visible):
    return torch.zeros(checked(visible).shape).masked_fill(~visible, -torch.inf)


@exercise.right
def additive_infinity_in_float16(visible):
    return torch.where(checked(visible), 0.0, float("-inf")).half()


@exercise.right
def logarithm_of_visibility(visible):
    return checked(visible).double().log()


@exercise.right
def inverted_twice(visible):
    return ~(~checked(visible))


@exercise.wrong
def inverted_for_sdpa(visible):
    """SDPA's True means visible."""
    return ~checked(visible)


@exercise.wrong(id="inverted-for-sdpa")
def infinity_where_visible(visible):
    return torch.zeros(checked(visible).shape).masked_fill(visible, -torch.inf)


@exercise.wrong
def zero_one_float(visible):
    """A float mask is added to the scores."""
    return checked(visible).float()


@exercise.wrong(id="zero-one-float")
def zero_one_of_the_hidden(visible):
    return (~checked(visible)).float()


@exercise.wrong(id="zero-one-float")
def zero_one_double(visible):
    return checked(visible).double()


@exercise.wrong
def finite_additive(visible):
    """−1e9 is not −inf and does not fit in float16."""
    return torch.zeros(checked(visible).shape).masked_fill(~visible, -1e9)


@exercise.recognise("finite-additive")
def zero_or_very_negative(trials):
    answers = _answers(trials)
    return bool(answers) and all(bool((t.isfinite() & ((t == 0) | (t < -1e3))).all()) and bool((t < 0).any())
                                 for t in answers)


@exercise.recognise("zero-one-float")
def zero_or_one(trials):
    answers = _answers(trials)
    return bool(answers) and all(bool(((t == 0) | (t == 1)).all()) and bool((t == 1).any()) for t in answers)


def _answers(trials):
    found = [t.transcript[0].value for t in trials[:len(CASES)] if t.transcript]
    numbers = [a for a in found if isinstance(a, torch.Tensor) and a.dtype != torch.bool]
    return numbers if len(numbers) == len(CASES) else []
