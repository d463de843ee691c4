"""Visibility in the words of nn.MultiheadAttention: three axes, and True means blocked."""
import torch

from ...exercise import Exercise
from ...lab import Mismatch
from ._calls import E, X
from ._masks import HEADS, checked, masked, patterns, refusals

exercise = Exercise(
    "to_module_mask", step=4, points=2, minutes=4, difficulty=2, importance=4, tensor=False,
    summary="Visibility [B,1|H,T,S] as the attn_mask [B·H,T,S] of nn.MultiheadAttention, where True means blocked.",
    hints=(
        "Two things change: what True means, and how many axes there are.",
        "Row b·H+h of the module's mask belongs to sample b and head h: heads lie next to each other within a sample. "
        "Which repetition does that?",
        "Give every sample its H masks first, then make one axis of the first two. Do not number them: a boolean mask "
        "says everything.",
    ),
    hides="B = 1, H = 1 or equal masks in all samples hide the order of batch and heads; a mask with as many visible "
          "as hidden cells in every row would hide nothing, an all-visible one hides polarity.",
)
CASES = {"one mask for all heads: B2 H3 T5 S7": (E, 0), "a mask for each head: B2 H3 T5 S7": (E, 1),
         "B=H=3, T=S=6": (X, 0), "a mask for each head at B=H=3": (X, 1), "B2 H4": (HEADS, 0)}


def oracle(visible, heads):
    """mask[b·H+h,t,s] = not visible[b,h,t,s], cell by cell over b and h."""
    return torch.stack([visible[b, h if visible.shape[1] > 1 else 0] ^ True
                        for b in range(visible.shape[0]) for h in range(heads)])


def _case(title, sizes, which):
    @exercise.case(title)
    def probe(lab):
        visible, heads = patterns(sizes)[which], sizes["heads"]
        want = oracle(visible, heads)
        got = masked(lab.call("to_module_mask", visible, heads), want.shape)
        if got.dtype != torch.bool:
            raise Mismatch(f"the mask is {str(got.dtype)[6:]} with values from {got.min():g} to {got.max():g}: the "
                           "module adds numbers to the scores; a boolean mask blocks")
        wrong = (got != want).nonzero()
        if len(wrong):
            row, t, s = wrong[0].tolist()
            b, h = divmod(row, heads)
            raise Mismatch(f"mask[{row},{t},{s}] is {got[row, t, s].item()}: row {row} is sample {b}, head {h}, and "
                           f"there query {t} {'may not' if want[row, t, s] else 'may'} look at key {s}"
                           f"{_read_back(got, visible)}")


def _read_back(got, visible):
    """Which sample each row of a wrong mask was taken from, where that can be told."""
    if visible.shape[1] > 1:
        return ""
    each = (~visible)[:, 0]
    found = [next((b for b, mask in enumerate(each) if torch.equal(row, mask)), None) for row in got]
    return "" if None in found else f"; the rows hold the masks of samples {found}"


for _title, (_sizes, _which) in CASES.items():
    _case(_title, _sizes, _which)
refusals(exercise, lambda visible, sizes: (visible, sizes["heads"]))


@exercise.right
def expanded_and_reshaped(visible, num_heads):
    b, _, t, s = checked(visible).shape
    return (~visible).expand(b, num_heads, t, s).reshape(b * num_heads, t, s)


@exercise.right
def repeat_interleaved(visible, num_heads):
    if checked(visible).shape[1] == num_heads:
        return visible.flatten(0, 1).logical_not()
    return ~visible[:, 0].repeat_interleave(num_heads, 0)


@exercise.right
def repeated_on_the_head_axis(visible, num_heads):
    times = num_heads // checked(visible).shape[1]
    return torch.logical_not(visible.repeat(1, times, 1, 1)).flatten(0, 1)


@exercise.right
def rearranged(visible, num_heads):
    from einops import rearrange, repeat
    if checked(visible).shape[1] == 1:
        visible = repeat(visible, "b 1 t s -> b h t s", h=num_heads)
    return rearrange(visible == 0, "b h t s -> (b h) t s")


@exercise.right
def broadcast_and_a_loop(visible, num_heads):
    b, _, t, s = checked(visible).shape
    each = torch.broadcast_to(visible, (b, num_heads, t, s))
    return torch.cat([~sample for sample in each])


@exercise.wrong
def not_inverted(visible, num_heads):
    """The two APIs use opposite polarity."""
    return checked(visible).expand(-1, num_heads, -1, -1).flatten(0, 1)


@exercise.wrong
def heads_before_batch(visible, num_heads):
    """`repeat` orders masks head-major; the module wants batch-major."""
    if checked(visible).shape[1] == 1:
        return ~visible[:, 0].repeat(num_heads, 1, 1)
    return ~visible.transpose(0, 1).flatten(0, 1)


@exercise.wrong(id="heads-before-batch")
def repeated_where_one_mask_serves(visible, num_heads):
    if checked(visible).shape[1] == 1:
        return ~visible[:, 0].repeat(num_heads, 1, 1)
    return ~visible.flatten(0, 1)


@exercise.wrong
def zero_one_float(visible, num_heads):
    """A float mask is added to the scores."""
    return (~checked(visible)).expand(-1, num_heads, -1, -1).flatten(0, 1).float()


@exercise.wrong(id="zero-one-float")
def visible_as_one(visible, num_heads):
    return checked(visible).expand(-1, num_heads, -1, -1).flatten(0, 1).float()


@exercise.wrong(id="zero-one-float")
def zero_one_double(visible, num_heads):
    return (~checked(visible)).expand(-1, num_heads, -1, -1).flatten(0, 1).double()


@exercise.wrong
def finite_additive(visible, num_heads):
    """−1e9 is not −inf and does not fit in float16."""
    blocked = (~checked(visible)).expand(-1, num_heads, -1, -1).flatten(0, 1)
    return torch.zeros(blocked.shape).masked_fill(blocked, -1e9)


@exercise.recognise("finite-additive")
def zero_or_very_negative(trials):
    return _numbers(trials, lambda t: bool(((t == 0) | (t.isfinite() & (t < -1e3))).all()) and bool((t < 0).any()))


@exercise.recognise("zero-one-float")
def zero_or_one(trials):
    return _numbers(trials, lambda t: bool(((t == 0) | (t == 1)).all()) and bool((t == 1).any()))


def _numbers(trials, fits):
    answers = [t.transcript[0].value for t in trials[:len(CASES)] if t.transcript]
    return len(answers) == len(CASES) and all(isinstance(a, torch.Tensor) and a.dtype != torch.bool and fits(a)
                                              for a in answers)
