"""From a packed row to heads: a view, whatever the strides of the input."""
import torch
from einops import rearrange

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "split_heads", step=2, points=3, minutes=6, difficulty=2, importance=5,
    summary="Give each head its own token sequence, [B,S,H·D] becomes [B,H,S,D], without moving a byte.",
    hints=(
        "Follow one number: channel 5 of token 1, with 3 heads of width 4. Which head owns it, and at which place?",
        "Two steps. One cuts the last axis into two and leaves the others alone; one brings an axis to another place.",
        "A single `view` to the final shape compiles and runs. Print the row of head 0, token 1 and ask whose it is. "
        "Refuse what the contract refuses before you name any axis.",
    ),
    hides="S=1 or H=1 hides `view(B,H,S,D)`; H=1 or D=1 hides the (d h) order; a round trip through a matching merge "
          "hides both. With equal S and H (or B and H) a wrong axis still gives a right shape.",
)

AXES = dict(batch=2, token=7, head=3, channel=4)
NAMES = ("batch", "head", "token", "channel")


def oracle(packed, num_heads):
    return rearrange(packed, "b s (h d) -> b h s d", h=num_heads)


def _contiguous(lab, **axes):
    packed = coded(**axes).reshape(axes["batch"], axes["token"], -1)
    heads = lab.call("split_heads", packed, num_heads=axes["head"])
    expect.layout(heads, oracle(packed, axes["head"]), axes, "heads", NAMES)


def _strided(lab, packed, axes):
    heads = lab.call("split_heads", packed, num_heads=axes["head"], watch=("storage",))
    expect.layout(heads, oracle(packed, axes["head"]), axes, "heads", NAMES)
    batch, token, channel = packed.stride()
    expect.view_of(lab, heads, packed, (batch, axes["channel"] * channel, token, channel), "heads")


@exercise.case("each head keeps its own channels of every token: B2 S7 H3 D4")
def layout(lab):
    _contiguous(lab, **AXES)


@exercise.case("B=H=3, S=6, D=4: sizes where confused axes fit")
def trap(lab):
    _contiguous(lab, batch=3, token=6, head=3, channel=4)


@exercise.case("other sizes: B4 S3 H2 D5")
def other_sizes(lab):
    _contiguous(lab, batch=4, token=3, head=2, channel=5)


standard.tensor_cases(exercise, lambda: ([standard.normal(2, 7, 12, seed=1)], {"num_heads": 3}), oracle, NAMES)


@exercise.case("one head owns every channel", CONTRACT)
def one_head(lab):
    _contiguous(lab, batch=2, token=7, head=1, channel=12)


@exercise.case("the heads are a view: no new memory", CONTRACT)
def view(lab):
    _strided(lab, coded(**AXES).reshape(2, 7, 12), AXES)


@exercise.case("the K slice of a fused [B,S,3M] tensor", CONTRACT)
def fused(lab):
    axes = dict(batch=2, token=7, span=3, head=3, channel=4)
    _strided(lab, coded(**axes).reshape(2, 7, 36)[..., 12:24], axes)


@exercise.case("an input whose channels are not neighbours in memory", CONTRACT)
def permuted(lab):
    axes = dict(batch=2, head=3, channel=4, token=7)
    _strided(lab, coded(**axes).reshape(2, 12, 7).transpose(1, 2), axes)


@exercise.case("refuses a width that the heads cannot share", CONTRACT)
def refuses_width(lab):
    lab.raises(ValueError, "divisible", "split_heads", torch.zeros(2, 7, 13), num_heads=3)


@exercise.case("refuses an input without exactly three axes", CONTRACT)
def refuses_axes(lab):
    lab.raises(ValueError, "three axes", "split_heads", torch.zeros(7, 12), num_heads=3)
    lab.raises(ValueError, "three axes", "split_heads", torch.zeros(2, 3, 7, 12), num_heads=3)


def _three(packed):
    if packed.dim() != 3:
        raise ValueError(f"split_heads takes three axes [B,S,H·D], not {packed.dim()}")


def _sizes(packed, num_heads):
    _three(packed)
    batch, tokens, width = packed.shape
    if width % num_heads:
        raise ValueError(f"{width} channels are not divisible by {num_heads} heads")
    return batch, num_heads, tokens, width // num_heads


@exercise.right
def view_and_transpose(packed, num_heads):
    b, h, s, d = _sizes(packed, num_heads)
    return packed.view(b, s, h, d).transpose(1, 2)


@exercise.right
def reshape_and_permute(packed, num_heads):
    b, h, s, d = _sizes(packed, num_heads)
    return packed.reshape(b, s, h, d).permute(0, 2, 1, 3)


@exercise.right
def unflatten_and_movedim(packed, num_heads):
    b, h, s, d = _sizes(packed, num_heads)
    return packed.unflatten(-1, (h, d)).movedim(-2, -3)


@exercise.right
def windows_of_unfold(packed, num_heads):
    b, h, s, d = _sizes(packed, num_heads)
    return packed.unfold(-1, d, d).swapaxes(1, 2)


@exercise.right
def as_strided(packed, num_heads):
    b, h, s, d = _sizes(packed, num_heads)
    batch, token, channel = packed.stride()
    return packed.as_strided((b, h, s, d), (batch, d * channel, token, channel))


@exercise.right
def einops(packed, num_heads):
    _sizes(packed, num_heads)
    return rearrange(packed, "b s (h d) -> b h s d", h=num_heads)


@exercise.right
def channels_first(packed, num_heads):
    b, h, s, d = _sizes(packed, num_heads)
    return packed.mT.unflatten(1, (h, d)).mT


@exercise.right
def one_token_under_vmap(packed, num_heads):
    b, h, s, d = _sizes(packed, num_heads)
    return torch.vmap(torch.vmap(lambda row: row.view(h, d), out_dims=1))(packed)


@exercise.right
def einsum_of_axes(packed, num_heads):
    b, h, s, d = _sizes(packed, num_heads)
    return torch.einsum("bshd->bhsd", packed.view(b, s, h, d))


@exercise.wrong
def relabelled_bytes(packed, num_heads):
    """`view(B,H,S,D)` renames bytes without moving an axis: heads receive other tokens' channels."""
    return packed.view(*_sizes(packed, num_heads))


@exercise.wrong(id="relabelled-bytes")
def by_reshape(packed, num_heads):
    return packed.reshape(*_sizes(packed, num_heads))


@exercise.wrong
def batch_and_head_in_one_view(packed, num_heads):
    """The result is [B·H,S,D] by a bare `view`, which cuts through the tokens."""
    b, h, s, d = _sizes(packed, num_heads)
    return packed.view(b * h, s, d)


@exercise.wrong(id="batch-and-head-in-one-view")
def in_one_reshape(packed, num_heads):
    b, h, s, d = _sizes(packed, num_heads)
    return packed.reshape(b * h, s, d)


@exercise.wrong
def head_is_the_fast_axis(packed, num_heads):
    """Head layout differs from the contract: channels were read as (d h)."""
    b, h, s, d = _sizes(packed, num_heads)
    return packed.view(b, s, d, h).permute(0, 3, 1, 2)


@exercise.wrong
def transpose_missing(packed, num_heads):
    """The axes stop at [B,S,H,D]; attention would mix heads within a token."""
    b, h, s, d = _sizes(packed, num_heads)
    return packed.view(b, s, h, d)


@exercise.wrong
def sequence_split(packed, num_heads):
    """The tokens were cut into H chunks, [B,H,S/H,M]."""
    _three(packed)
    b, s, width = packed.shape
    return packed.reshape(b, num_heads, s // num_heads, width)


@exercise.wrong(id="sequence-split")
def sequence_cut_short(packed, num_heads):
    _three(packed)
    b, s, width = packed.shape
    length = s // num_heads
    return packed[:, :num_heads * length].reshape(b, num_heads, length, width)


@exercise.wrong(id="sequence-split")
def sequence_unflattened(packed, num_heads):
    _three(packed)
    return packed.unflatten(1, (num_heads, -1))


@exercise.wrong(id="sequence-split")
def sequence_refused(packed, num_heads):
    _three(packed)
    if packed.shape[1] % num_heads:
        raise ValueError("the tokens are not divisible by the heads")
    return packed.unflatten(1, (num_heads, -1))


@exercise.wrong(id="sequence-split")
def sequence_by_einops(packed, num_heads):
    return rearrange(packed, "b (h s) m -> b h s m", h=num_heads)


@exercise.wrong
def heads_before_batch(packed, num_heads):
    """The result is [H,B,S,D]."""
    b, h, s, d = _sizes(packed, num_heads)
    return packed.view(b, s, h, d).permute(2, 0, 1, 3)


@exercise.wrong
def copies(packed, num_heads):
    """Values are right and new memory was allocated; splitting an axis is always a view."""
    b, h, s, d = _sizes(packed, num_heads)
    return packed.view(b, s, h, d).transpose(1, 2).contiguous()


@exercise.wrong
def floors_the_width(packed, num_heads):
    """The remainder channels were dropped."""
    _three(packed)
    d = packed.shape[-1] // num_heads
    return packed[..., :num_heads * d].unflatten(-1, (num_heads, d)).transpose(1, 2)
