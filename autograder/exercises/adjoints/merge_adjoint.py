"""Back through the merge: the gradient of the packed rows, head by head."""
import torch
from einops import rearrange

from ... import expect
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise
from . import _layouts, _parts

exercise = Exercise(
    "merge_adjoint", step=2, points=1, minutes=2, difficulty=2, importance=4, exempt=_parts.NOT_DIFFERENTIATED,
    summary="Give each head the gradient of its own channels: [B,Q,H·D_v] becomes [B,H,Q,D_v].",
    hints=(
        "The merge moved numbers and changed none. What does the gradient of a number do that was only moved?",
        "Follow one cell: the merge took heads[b,h,q,d] to packed channel h·D_v + d of row q. Where does the gradient "
        "of that channel have to go?",
        "It is a function that you know from session 01, used on a gradient. All-ones gradients cannot tell you "
        "whether you chose the right one.",
    ),
    hides="A constant gradient (`.sum()` as the loss) hides every fault of layout: all its cells are equal. So do one "
          "head and one query.",
)
AXES = dict(batch=2, query=4, head=3, channel=8)
NAMES = ("batch", "head", "query", "channel")


def oracle(grad_merged, num_heads):
    return rearrange(grad_merged, "b q (h d) -> b h q d", h=num_heads)


def _coded(lab, **axes):
    grad = coded(**axes).reshape(axes["batch"], axes["query"], -1)
    got = lab.call("merge_adjoint", grad, num_heads=axes["head"])
    expect.layout(got, oracle(grad, axes["head"]), axes, "grad_heads", NAMES)


@exercise.case("each gradient cell goes back to its head: B2 Q4 H3 D_v8")
def layout(lab):
    _coded(lab, **AXES)


@exercise.case("B=H=3, Q=6, D_v=4: sizes where confused axes fit")
def trap(lab):
    _coded(lab, batch=3, query=6, head=3, channel=4)


_layouts.declare(exercise, "merge", lambda: coded(**AXES).reshape(2, 4, 24), {"num_heads": 3}, oracle, NAMES)


@exercise.case("a gradient that is not contiguous", CONTRACT)
def strided(lab):
    axes = dict(batch=2, head=3, channel=8, query=4)
    grad = coded(**axes).reshape(2, 24, 4).transpose(1, 2)
    expect.layout(lab.call("merge_adjoint", grad, num_heads=3), oracle(grad, 3), axes, "grad_heads", NAMES)


@exercise.right
def view_and_transpose(grad_merged, num_heads):
    b, q, width = grad_merged.shape
    return grad_merged.view(b, q, num_heads, width // num_heads).transpose(1, 2)


@exercise.right
def reshape_and_permute(grad_merged, num_heads):
    return grad_merged.reshape(*grad_merged.shape[:2], num_heads, -1).permute(0, 2, 1, 3).contiguous()


@exercise.right
def unflatten_and_movedim(grad_merged, num_heads):
    return grad_merged.unflatten(-1, (num_heads, -1)).movedim(2, 1)


@exercise.right
def stacked_chunks(grad_merged, num_heads):
    return torch.stack(grad_merged.chunk(num_heads, dim=-1), dim=1)


@exercise.right
def einops(grad_merged, num_heads):
    return oracle(grad_merged, num_heads)


def _merge(heads):
    return heads.transpose(1, 2).flatten(2)


@exercise.right
def autograd_of_the_merge(grad_merged, num_heads):
    b, q, width = grad_merged.shape
    heads = torch.zeros(b, num_heads, q, width // num_heads, dtype=grad_merged.dtype, requires_grad=True)
    with torch.enable_grad():
        merged = _merge(heads)
    return torch.autograd.grad(merged, heads, grad_merged)[0]


@exercise.right
def vector_jacobian_product(grad_merged, num_heads):
    b, q, width = grad_merged.shape
    _, back = torch.func.vjp(_merge, grad_merged.new_zeros(b, num_heads, q, width // num_heads))
    return back(grad_merged)[0]


@exercise.right
def cell_by_cell(grad_merged, num_heads):
    b, q, width = grad_merged.shape
    out = grad_merged.new_empty(b, num_heads, q, width // num_heads)
    for h in range(num_heads):
        for d in range(width // num_heads):
            out[:, h, :, d] = grad_merged[:, :, h * (width // num_heads) + d]
    return out


@exercise.wrong
def relabelled_gradient(grad_merged, num_heads):
    """The gradient was viewed, not transposed."""
    b, q, width = grad_merged.shape
    return grad_merged.reshape(b, num_heads, q, width // num_heads)


@exercise.wrong(id="relabelled-gradient")
def relabelled_by_view(grad_merged, num_heads):
    b, q, width = grad_merged.shape
    return grad_merged.view(b, num_heads, q, width // num_heads)


@exercise.wrong(id="relabelled-gradient")
def transpose_missing(grad_merged, num_heads):
    return grad_merged.unflatten(-1, (num_heads, -1))


@exercise.wrong
def fast_axis_gradient(grad_merged, num_heads):
    """Head layout differs from the contract: gradient channels were read as (d h)."""
    return rearrange(grad_merged, "b q (d h) -> b h q d", h=num_heads)
