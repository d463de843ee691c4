"""From heads back to a packed row, for any strides of the input."""
import torch
from einops import rearrange

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "merge_heads", step=3, points=3, minutes=6, difficulty=2, importance=5,
    summary="Lay the heads of a query side by side again: [B,H,Q,D] becomes [B,Q,H·D].",
    hints=(
        "A packed row belongs to one query. Which axes of [B,H,Q,D] does a row collect, and which one does it keep?",
        "Only neighbouring axes can become one axis. Which two have to be neighbours, and in which order?",
        "After you move an axis the bytes still lie as before; that is why `view` may refuse. Another call copies "
        "when it has to. Try your function on a tensor that is already stored by token, too.",
    ),
    hides="Q=1 or H=1 hides a missing swap; B=1 or H=1 hides heads read as [H,B,Q,D]; contiguous input hides "
          "hard-coded strides.",
)

AXES = dict(batch=2, head=3, query=5, channel=4)
NAMES = ("batch", "query", "channel")


def oracle(heads):
    """out[b,q,h·D+d] = heads[b,h,q,d]"""
    batch, count, queries, width = heads.shape
    channel = torch.arange(count * width)
    b, q = torch.arange(batch)[:, None, None], torch.arange(queries)[None, :, None]
    return heads[b, channel // width, q, channel % width]


def _merge(lab, heads, axes):
    packed = lab.call("merge_heads", heads)
    expect.layout(packed, oracle(heads), axes, "packed", NAMES, split=heads.transpose(1, 2).shape)


@exercise.case("a row holds all heads of one query: B2 H3 Q5 D4")
def layout(lab):
    _merge(lab, coded(**AXES), AXES)


@exercise.case("B=H=3, Q=6, D=4: sizes where confused axes fit")
def trap(lab):
    axes = dict(batch=3, head=3, query=6, channel=4)
    _merge(lab, coded(**axes), axes)


@exercise.case("other sizes: B4 H2 Q3 D5")
def other_sizes(lab):
    axes = dict(batch=4, head=2, query=3, channel=5)
    _merge(lab, coded(**axes), axes)


standard.tensor_cases(exercise, lambda: ([standard.normal(2, 3, 5, 4, seed=2)], {}), oracle, NAMES)


@exercise.case("heads that are stored by token, as scaled_dot_product_attention returns them", CONTRACT)
def token_major(lab):
    axes = dict(batch=2, query=5, head=3, channel=4)
    _merge(lab, coded(**axes).transpose(1, 2), axes)


@exercise.case("heads that are the first queries of a longer sequence", CONTRACT)
def sliced(lab):
    axes = dict(batch=2, head=3, query=8, channel=4)
    _merge(lab, coded(**axes)[:, :, :5], axes)


@exercise.case("refuses an input without exactly four axes", CONTRACT)
def refuses_axes(lab):
    lab.raises(ValueError, "four axes", "merge_heads", torch.zeros(3, 5, 4))
    lab.raises(ValueError, "four axes", "merge_heads", torch.zeros(2, 2, 3, 5, 4))


def _sizes(heads):
    if heads.dim() != 4:
        raise ValueError(f"merge_heads takes four axes [B,H,Q,D], not {heads.dim()}")
    return heads.shape


@exercise.right
def transpose_contiguous_view(heads):
    b, h, q, d = _sizes(heads)
    return heads.transpose(1, 2).contiguous().view(b, q, h * d)


@exercise.right
def reshape(heads):
    b, h, q, d = _sizes(heads)
    return heads.permute(0, 2, 1, 3).reshape(b, q, h * d)


@exercise.right
def flatten(heads):
    _sizes(heads)
    return heads.movedim(1, 2).flatten(2)


@exercise.right
def cat_of_heads(heads):
    _sizes(heads)
    return torch.cat(heads.unbind(1), dim=-1)


@exercise.right
def einops(heads):
    _sizes(heads)
    return rearrange(heads, "b h q d -> b q (h d)")


@exercise.right
def filled_slices(heads):
    b, h, q, d = _sizes(heads)
    packed = heads.new_empty(b, q, h * d)
    for i in range(h):
        packed[:, :, i * d:(i + 1) * d] = heads[:, i]
    return packed


@exercise.right
def stacked_queries(heads):
    _sizes(heads)
    return torch.stack([heads[:, :, q].flatten(1) for q in range(heads.shape[2])], dim=1)


@exercise.right
def blocks_of_an_identity(heads):
    b, h, q, d = _sizes(heads)
    places = torch.eye(h * d, dtype=heads.dtype).view(h, d, h * d)
    return torch.einsum("bhqd,hdc->bqc", heads, places)


@exercise.right
def under_vmap(heads):
    _sizes(heads)
    return torch.vmap(torch.vmap(torch.flatten, in_dims=1))(heads)


@exercise.wrong
def merge_without_swap(heads):
    """`reshape` of [B,H,Q,D] keeps head-major order: a row holds several tokens."""
    b, h, q, d = _sizes(heads)
    return heads.reshape(b, q, h * d)


@exercise.wrong(id="merge-without-swap")
def without_swap_by_view(heads):
    b, h, q, d = _sizes(heads)
    return heads.view(b, q, h * d)


@exercise.wrong
def head_and_width_swapped(heads):
    """Head layout differs from the contract: merged as (d h)."""
    b, h, q, d = _sizes(heads)
    return heads.permute(0, 2, 3, 1).reshape(b, q, d * h)


@exercise.wrong
def head_batch_misread(heads):
    """The tensor was read as [H,B,Q,D]."""
    h, b, q, d = _sizes(heads)
    return heads.permute(1, 2, 0, 3).reshape(b, q, h * d)


@exercise.wrong(id="head-batch-misread")
def misread_into_the_right_shape(heads):
    b, h, q, d = _sizes(heads)
    return heads.permute(1, 2, 0, 3).reshape(b, q, h * d)


@exercise.wrong
def tokens_concatenated(heads):
    """Heads were joined along the sequence: [B,H·Q,D]."""
    _sizes(heads)
    return heads.flatten(1, 2)


@exercise.wrong(id="tokens-concatenated")
def tokens_interleaved(heads):
    _sizes(heads)
    return heads.transpose(1, 2).flatten(1, 2)


@exercise.wrong
def heads_averaged(heads):
    """The heads were averaged; W_O needs all H·D channels."""
    _sizes(heads)
    return heads.mean(1)


@exercise.wrong
def heads_summed(heads):
    """Raw head outputs were added; only W_O blocks may be added."""
    _sizes(heads)
    return heads.sum(1)


@exercise.wrong
def view_of_transposed(heads):
    """`.view` straight after `transpose` raises here: the strides cannot fold."""
    b, h, q, d = _sizes(heads)
    return heads.transpose(1, 2).view(b, q, h * d)


@exercise.wrong
def assumes_strides(heads):
    """Hard-coded strides fit the contiguous input only."""
    b, h, q, d = _sizes(heads)
    return heads.as_strided((b, q, h, d), (h * q * d, d, q * d, 1)).reshape(b, q, h * d)


@exercise.wrong(id="assumes-strides")
def assumes_one_size(heads):
    b, h, q, d = _sizes(heads)
    return heads.as_strided((b, q, h, d), (60, 4, 20, 1)).reshape(b, q, h * d)
