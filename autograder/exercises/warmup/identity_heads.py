"""Heads of projections that are equal to the identity."""
import torch
from einops import rearrange

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "identity_heads", step=1, points=1, minutes=3, difficulty=1, importance=5,
    summary="See the heads of a row before any attention: [B,S,H·D] becomes [B,S,H,D].",
    hints=(
        "Write down which channels head 0 owns, and which head 1 owns, for 12 channels and 3 heads.",
        "No number moves. The last axis becomes two axes; which of the two new ones counts whole heads?",
        "Check that the heads share the width evenly before you name the new axes; the first two axes stay as is.",
    ),
    hides="H=1 hides every layout fault: there is one way to cut a row into one piece.",
)

AXES = dict(batch=2, token=5, head=3, channel=4)
NAMES = ("batch", "token", "head", "channel")


def oracle(x, num_heads):
    return rearrange(x, "b s (h d) -> b s h d", h=num_heads)


@exercise.case("head h holds channels h·D to h·D+D-1 of its own token")
def layout(lab):
    packed = coded(**AXES).reshape(2, 5, 12)
    heads = lab.call("identity_heads", packed, num_heads=3)
    expect.layout(heads, oracle(packed, 3), AXES, "heads", NAMES)


@exercise.case("other sizes: B=H=3, S=6, where confused axes fit")
def trap(lab):
    axes = dict(batch=3, token=6, head=3, channel=4)
    packed = coded(**axes).reshape(3, 6, 12)
    heads = lab.call("identity_heads", packed, num_heads=3)
    expect.layout(heads, oracle(packed, 3), axes, "heads", NAMES)


standard.tensor_cases(exercise, lambda: ([standard.normal(2, 5, 12, seed=1)], {"num_heads": 3}), oracle, NAMES)


@exercise.case("one head is the whole row", CONTRACT)
def one_head(lab):
    axes = dict(batch=2, token=5, head=1, channel=4)
    packed = coded(**axes).reshape(2, 5, 4)
    expect.layout(lab.call("identity_heads", packed, num_heads=1), oracle(packed, 1), axes, "heads", NAMES)


@exercise.case("refuses a width that the heads cannot share", CONTRACT)
def refuses(lab):
    lab.raises(ValueError, "divisible", "identity_heads", torch.zeros(2, 5, 13), num_heads=3)


def _width(x, num_heads):
    if x.shape[-1] % num_heads:
        raise ValueError(f"{x.shape[-1]} channels are not divisible by {num_heads} heads")
    return x.shape[-1] // num_heads


@exercise.right
def view(x, num_heads):
    return x.view(*x.shape[:2], num_heads, _width(x, num_heads))


@exercise.right
def unflatten(x, num_heads):
    return x.unflatten(-1, (num_heads, _width(x, num_heads)))


@exercise.right
def stacked_slices(x, num_heads):
    d = _width(x, num_heads)
    return torch.stack([x[..., h * d:(h + 1) * d] for h in range(num_heads)], dim=2)


@exercise.wrong
def channels_interleaved(x, num_heads):
    """Head layout differs from the contract: head h took every H-th channel; the contract keeps a head's channels
    side by side."""
    return rearrange(x, "b s (d h) -> b s h d", d=_width(x, num_heads))


@exercise.wrong
def tokens_as_heads(x, num_heads):
    """`view(B,H,S,D)` and a transpose back: heads became chunks of tokens."""
    b, s, _ = x.shape
    return x.view(b, num_heads, s, _width(x, num_heads)).transpose(1, 2)


@exercise.wrong
def head_and_width_swapped(x, num_heads):
    """The last two axes are [D,H]; the head axis comes first."""
    return x.view(*x.shape[:2], _width(x, num_heads), num_heads)


@exercise.wrong
def floors_the_width(x, num_heads):
    """A width that the heads cannot share must be refused, not cut."""
    d = x.shape[-1] // num_heads
    return x[..., :num_heads * d].reshape(*x.shape[:2], num_heads, d)
