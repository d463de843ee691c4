"""y = x·Wᵀ + b, and what comes back through it: the shared half of `output_adjoint` and `projection_adjoint`."""
import functools
from collections.abc import Callable, Sequence

import torch
from einops import einsum, rearrange
from torch.nn import functional as F

from ...exercise import Exercise, Trial, same
from ...standard import normal
from . import _parts

F_ROWS, X_ROWS = (2, 3), (3, 3)  # batch and heads of the fixtures


def oracle(x, g, w):
    """Autograd of the forward product, in float64."""
    x, w, b = (t.detach().double().clone().requires_grad_() for t in (x, w, w[:, 0]))
    y = torch.einsum("bti,oi->bto", x, w) + b
    return torch.autograd.grad(y, (x, w, b), g.double())


def inputs(batch, rows, width_in, width_out, seed=0):
    """(x, g, w): rows [B,T,in], their gradient's source [B,T,out], a stored weight [out,in]."""
    return (normal(batch, rows, width_in, seed=seed), normal(batch, rows, width_out, seed=seed + 1),
            normal(width_out, width_in, seed=seed + 2))


def row_shares(grad, g, x=None):
    """How often each row (sample, token) counts in a summed gradient [out,in] or [out]; None if rows do not explain it.

    [B,T] of multiples: all ones when it is right. Where there are too few numbers to tell all rows apart, only whole
    samples are, or only row 0 of every sample from row 1 of every sample.
    """
    parts = g if x is None else g[..., :, None] * x[..., None, :]
    if not isinstance(grad, torch.Tensor) or grad.shape != parts.shape[2:]:
        return None
    batch, rows = g.shape[:2]
    for several, form in ((parts.flatten(0, 1), (batch, rows)), (parts.sum(1), (batch, 1)), (parts.sum(0), (1, rows))):
        if grad.numel() > len(several):
            found = _parts.shares(grad, dict(enumerate(several)))
            if found is not None:
                return torch.tensor(list(found.values())).reshape(form).expand(batch, rows)
    return None


def unsummed(grad, g, x=None):
    """Whether a gradient still has a batch axis, a row axis or both."""
    parts = g if x is None else g[..., :, None] * x[..., None, :]
    partial = (parts, parts.sum(0), parts.sum(1))
    return isinstance(grad, torch.Tensor) and any(
        grad.shape == p.shape and torch.allclose(grad.double(), p) for p in partial)


def declare(exercise: Exercise, order: Sequence[str], names: Sequence[str],
            sizes: dict[str, Sequence[int]]) -> Callable:
    """Cases and programs that the two exercises share. `order` is that of the arguments x, g, w; `names` are those of
    the three results. Returns the decorator that makes a program over (x, g, w) one with the exercise's arguments."""
    grad_x, grad_w, grad_b = names
    axes = {grad_x: ("sample", "row", "in"), grad_w: ("out", "in"), grad_b: ("out",)}

    def arguments(x, g, w):
        given = {"x": x, "g": g, "w": w}
        return [given[name] for name in order]

    def adapted(program):
        @functools.wraps(program)
        def program_of_exercise(*args):
            given = dict(zip(order, args, strict=True))
            return program(given["x"], given["g"], given["w"])
        return program_of_exercise

    def call(lab, x, g, w):
        return _parts.triple(lab.call(exercise.name, *arguments(x, g, w)), names)

    def explained(lab, x, g, w):
        want = dict(zip(names, oracle(x, g, w), strict=True))
        _parts.check(call(lab, x, g, w), want, axes, {
            grad_x: lambda got: _through_the_weight(got, g, w), grad_w: lambda got: _summed(got, want[grad_w], g, x),
            grad_b: lambda got: _summed(got, want[grad_b], g)})

    for title, given in sizes.items():
        exercise.case(title)(lambda lab, given=given: explained(lab, *inputs(*given)))

    @exercise.case("one unit of gradient, at sample 1, row 2, output channel 3")
    def unit(lab):
        x, g, w = inputs(2, 4, 6, 5, seed=30)
        g = torch.zeros_like(g)
        g[1, 2, 3] = 1
        explained(lab, x, g, w)

    def in_dtype(lab, dtype):
        given = [t.to(dtype) for t in inputs(*next(iter(sizes.values())))]
        return call(lab, *given), dict(zip(names, oracle(*given), strict=True))
    _parts.dtypes(exercise, in_dtype)

    for program in RIGHTS:
        exercise.right(adapted(program))
    return adapted


def summed_parts(trials: Sequence[Trial], given: Sequence[int]) -> list[tuple]:
    """(gradient, g, x or None) for the weight and the bias of the first case, those that are wrong.

    Empty where there is no such answer, or where the gradient of x is wrong as well.
    """
    value = trials[0].transcript[0].value if trials[0].transcript else None
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        return []
    x, g, w = inputs(*given)
    gx, gw, gb = oracle(x, g, w)
    if not same(value[0], gx):
        return []
    return [(got, g, rows) for got, want, rows in ((value[1], gw, x), (value[2], gb, None)) if not same(got, want)]


def _through_the_weight(got, g, w):
    if g.shape[-1] == w.shape[1] and torch.allclose(got.double(), g @ w.T):
        return "it went through the weight the wrong way round: row i of W in place of column i"
    return None


def _summed(got, want, g, x=None):
    if want.dim() == 2 and got.shape == want.mT.shape and torch.allclose(got.double(), want.mT):
        return "it is the transpose: [in,out], where the stored weight is [out,in]"
    if unsummed(got, g, x):
        return "an axis of the rows is still there; every row of every sample adds to one gradient"
    counts = row_shares(got, g, x)
    if counts is None:
        return None
    if counts.unique().numel() == 1:
        return f"every row counts {counts[0, 0].item():.4g} times in it, expected once"
    b, t = (counts != 1).nonzero()[0].tolist()
    return f"row {t} of sample {b} counts {counts[b, t].item():.4g} times in it, expected once"


def matrix_products(x, g, w):
    rows, grads = x.flatten(0, 1), g.flatten(0, 1)
    return g @ w, grads.T @ rows, grads.sum(0)


def einsum_throughout(x, g, w):
    return (torch.einsum("bto,oi->bti", g, w), torch.einsum("bto,bti->oi", g, x), torch.einsum("bto->o", g))


def tensordot(x, g, w):
    return torch.tensordot(g, w, 1), torch.tensordot(g, x, ([0, 1], [0, 1])), g.sum(dim=(0, 1))


def batched_products_then_sum(x, g, w):
    return torch.matmul(g, w), (g.mT @ x).sum(0), g.sum(1).sum(0)


def outer_product_of_every_row(x, g, w):
    gx, gw, gb = torch.zeros_like(x), torch.zeros_like(w), torch.zeros_like(w[:, 0])
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            gx[b, t] = w.T @ g[b, t]
            gw += torch.outer(g[b, t], x[b, t])
            gb += g[b, t]
    return gx, gw, gb


def autograd_of_the_forward(x, g, w):
    x, w, b = (t.detach().clone().requires_grad_() for t in (x, w, w[:, 0]))
    with torch.enable_grad():
        y = F.linear(x, w, b)
    return torch.autograd.grad(y, (x, w, b), g)


def vector_jacobian_product(x, g, w):
    _, back = torch.func.vjp(F.linear, x, w, torch.zeros_like(w[:, 0]))
    return back(g)


def einops_names(x, g, w):
    return (einsum(g, w, "b t o, o i -> b t i"), einsum(g, x, "b t o, b t i -> o i"),
            rearrange(g, "b t o -> (b t) o").sum(0))


def as_another_linear(x, g, w):
    return F.linear(g, w.T), F.linear(g.flatten(0, 1).T, x.flatten(0, 1).T), g.flatten(0, 1).T.sum(1)


def a_list_of_three(x, g, w):
    return list(matrix_products(x, g, w))


RIGHTS = (matrix_products, einsum_throughout, tensordot, batched_products_then_sum, outer_product_of_every_row,
          autograd_of_the_forward, vector_jacobian_product, einops_names, as_another_linear, a_list_of_three)


def some_rows_missing(grad, g, x=None):
    """Whether some rows count once in a gradient, and the others not at all."""
    counts = row_shares(grad, g, x)
    return counts is not None and set(counts.flatten().tolist()) == {0.0, 1.0}


def averaged(grad, g, x=None):
    """Whether every row counts less than once in a gradient, and all equally."""
    counts = row_shares(grad, g, x)
    return counts is not None and counts.unique().numel() == 1 and 0 < counts[0, 0] < 1
