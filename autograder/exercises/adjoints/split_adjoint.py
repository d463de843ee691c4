"""Back through the split: the gradients of the heads, packed into rows again."""
import torch
from einops import rearrange

from ... import expect
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise
from . import _layouts, _parts

exercise = Exercise(
    "split_adjoint", step=3, points=1, minutes=2, difficulty=2, importance=4, exempt=_parts.NOT_DIFFERENTIATED,
    summary="Pack the gradients of the heads into rows: [B,H,S,D] becomes [B,S,H·D].",
    hints=(
        "The split took packed channel h·D + d of row s to heads[b,h,s,d]. Read that arrow from its end.",
        "One row of the result belongs to one token. From how many heads does it collect, and how many channels from "
        "each?",
        "The axis that the split brought forward has to go back before two axes become one.",
    ),
    hides="A constant gradient (`.sum()` as the loss) hides every fault of layout; so do one head and one token.",
)
AXES = dict(batch=2, head=3, token=5, channel=6)
NAMES = ("batch", "token", "channel")


def oracle(grad_heads):
    return rearrange(grad_heads, "b h s d -> b s (h d)")


def _coded(lab, grad, axes):
    got = lab.call("split_adjoint", grad)
    split = (axes["batch"], axes["token"], axes["head"], axes["channel"])
    expect.layout(got, oracle(grad), axes, "grad_packed", NAMES, split)


@exercise.case("each row collects the gradients of its heads: B2 H3 S5 D6")
def layout(lab):
    _coded(lab, coded(**AXES).reshape(2, 3, 5, 6), AXES)


@exercise.case("B=H=3, S=6, D=4: sizes where confused axes fit")
def trap(lab):
    axes = dict(batch=3, head=3, token=6, channel=4)
    _coded(lab, coded(**axes), axes)


_layouts.declare(exercise, "split", lambda: coded(**AXES), {}, oracle, NAMES)


@exercise.case("heads that lie token by token, as fused kernels return them", CONTRACT)
def strided(lab):
    axes = dict(batch=2, token=5, head=3, channel=6)
    _coded(lab, coded(**axes).transpose(1, 2), axes)


@exercise.right
def transpose_and_flatten(grad_heads):
    return grad_heads.transpose(1, 2).flatten(2)


@exercise.right
def contiguous_and_view(grad_heads):
    b, h, s, d = grad_heads.shape
    return grad_heads.transpose(1, 2).contiguous().view(b, s, h * d)


@exercise.right
def permute_and_reshape(grad_heads):
    b, h, s, d = grad_heads.shape
    return grad_heads.permute(0, 2, 1, 3).reshape(b, s, h * d)


@exercise.right
def heads_side_by_side(grad_heads):
    return torch.cat(list(grad_heads.unbind(1)), dim=-1)


@exercise.right
def einops(grad_heads):
    return oracle(grad_heads)


def _split(packed, heads):
    return packed.unflatten(-1, (heads, -1)).transpose(1, 2)


@exercise.right
def autograd_of_the_split(grad_heads):
    b, h, s, d = grad_heads.shape
    packed = torch.zeros(b, s, h * d, dtype=grad_heads.dtype, requires_grad=True)
    with torch.enable_grad():
        heads = _split(packed, h)
    return torch.autograd.grad(heads, packed, grad_heads)[0]


@exercise.right
def vector_jacobian_product(grad_heads):
    b, h, s, d = grad_heads.shape
    _, back = torch.func.vjp(lambda packed: _split(packed, h), grad_heads.new_zeros(b, s, h * d))
    return back(grad_heads)[0]


@exercise.right
def slices_filled(grad_heads):
    b, h, s, d = grad_heads.shape
    out = grad_heads.new_empty(b, s, h * d)
    for i in range(h):
        out[..., i * d:(i + 1) * d] = grad_heads[:, i]
    return out


@exercise.right
def channels_before_tokens(grad_heads):
    return grad_heads.mT.flatten(1, 2).mT


@exercise.wrong
def relabelled_gradient(grad_heads):
    """The gradient was viewed, not transposed."""
    b, h, s, d = grad_heads.shape
    return grad_heads.reshape(b, s, h * d)


@exercise.wrong(id="relabelled-gradient")
def relabelled_by_view(grad_heads):
    b, h, s, d = grad_heads.shape
    return grad_heads.view(b, s, h * d)


@exercise.wrong
def fast_axis_gradient(grad_heads):
    """Head layout differs from the contract: gradient channels were read as (d h)."""
    return rearrange(grad_heads, "b h s d -> b s (d h)")


@exercise.wrong
def flatten_without_swap(grad_heads):
    """Head rows were flattened head-major."""
    b, h, s, d = grad_heads.shape
    return grad_heads.reshape(b, s, h * d)


@exercise.wrong(id="flatten-without-swap")
def heads_of_one_sample_flattened(grad_heads):
    return grad_heads.flatten(2)


@exercise.wrong(id="flatten-without-swap")
def heads_one_after_another(grad_heads):
    return grad_heads.flatten(1, 2)
