"""Recomputed attention, right in several styles and wrong in every known way."""
import math

import torch
from torch.nn import functional as F

from ...programs import Programs

Function = torch.autograd.Function
PROGRAMS = Programs()
right, wrong = PROGRAMS.right, PROGRAMS.wrong
RIGHTS, WRONGS = PROGRAMS.rights, PROGRAMS.wrongs


def refuse(visible, dropout_p):
    if not 0 <= dropout_p < 1:
        raise ValueError(f"a dropout probability lies in [0, 1), not at {dropout_p}")
    if not visible.any(-1).all():
        raise ValueError("a query has no visible key")


def weights(q, k, visible):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~visible, -torch.inf).softmax(-1)


def attend(q, k, v, visible, dropout_p, training):
    return F.dropout(weights(q, k, visible), dropout_p, training) @ v


def on_the_graph(g, q, k, v, *rest, call=attend):
    """The three gradients, by autograd over a second forward pass."""
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    with torch.enable_grad():
        out = call(*leaves, *rest)
    return torch.autograd.grad(out, leaves, g)


@right
class SavedStateAndAutograd(Function):
    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        ctx.save_for_backward(q, k, v, visible, torch.get_rng_state())
        ctx.how = dropout_p, training
        return attend(q, k, v, visible, dropout_p, training)

    @staticmethod
    def backward(ctx, g):
        *saved, state = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            grads = on_the_graph(g, *saved, *ctx.how)
        return *grads, None, None, None


@right
class StateOnTheNodeAndFormulas(Function):
    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        ctx.rng, ctx.p, ctx.visible = torch.get_rng_state(), dropout_p if training else 0.0, visible
        ctx.save_for_backward(q, k, v)
        return attend(q, k, v, visible, dropout_p, training)

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        here = torch.get_rng_state()
        torch.set_rng_state(ctx.rng)
        p = weights(q, k, ctx.visible)
        keep = F.dropout(torch.ones_like(p), ctx.p)
        torch.set_rng_state(here)
        dp = (g @ v.mT) * keep
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, (p * keep).mT @ g, None, None, None


def _keep(shape, p, seed, dtype):
    draw = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (draw >= p).to(dtype) / (1 - p)


@right
class GeneratorSeededFromTheGlobalOne(Function):
    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        ctx.p = dropout_p if training else 0.0
        ctx.seed = int(torch.randint(2**31, ())) if ctx.p else 0
        ctx.save_for_backward(q, k, v, visible)
        p = weights(q, k, visible)
        return (p * _keep(p.shape, ctx.p, ctx.seed, p.dtype)) @ v

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        q, k, v, visible = ctx.saved_tensors
        p = weights(q, k, visible)
        keep = _keep(p.shape, ctx.p, ctx.seed, p.dtype)
        dp = (g @ v.mT) * keep
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, (p * keep).mT @ g, None, None, None


@right
class OneHeadAfterAnother(Function):
    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        ctx.save_for_backward(q, k, v, visible)
        ctx.rng, ctx.how = torch.get_rng_state(), (dropout_p, training)
        return OneHeadAfterAnother.loop(q, k, v, visible, dropout_p, training)

    @staticmethod
    def loop(q, k, v, visible, dropout_p, training):
        seen = visible.expand(-1, q.shape[1], -1, -1)
        return torch.stack([attend(q[:, h], k[:, h], v[:, h], seen[:, h], dropout_p, training)
                            for h in range(q.shape[1])], dim=1)

    @staticmethod
    def backward(ctx, g):
        here = torch.random.get_rng_state()
        torch.random.set_rng_state(ctx.rng)
        grads = on_the_graph(g, *ctx.saved_tensors, *ctx.how, call=OneHeadAfterAnother.loop)
        torch.random.set_rng_state(here)
        return *grads, None, None, None


@right
class FusedAttention(Function):
    @staticmethod
    def call(q, k, v, visible, dropout_p, training):
        return F.scaled_dot_product_attention(q, k, v, visible, dropout_p if training else 0.0)

    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        ctx.save_for_backward(q, k, v, visible)
        ctx.rng, ctx.how = torch.get_rng_state(), (dropout_p, training)
        return FusedAttention.call(q, k, v, visible, dropout_p, training)

    @staticmethod
    def backward(ctx, g):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.rng)
            return *on_the_graph(g, *ctx.saved_tensors, *ctx.how, call=FusedAttention.call), None, None, None


@right
class EinsumAndOwnMask(Function):
    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        ctx.save_for_backward(q, k, v, visible)
        ctx.p = dropout_p if training else 0
        ctx.rng = torch.get_rng_state() if ctx.p else None
        return torch.einsum("bhts,bhsd->bhtd", EinsumAndOwnMask.pair(ctx, q, k, visible)[1], v)

    @staticmethod
    def pair(ctx, q, k, visible):
        scores = torch.einsum("bhtd,bhsd->bhts", q * q.shape[-1] ** -0.5, k)
        p = scores.where(visible, torch.tensor(-torch.inf, dtype=q.dtype)).softmax(-1)
        if not ctx.p:
            return p, p, 1.0
        keep = torch.bernoulli(torch.full_like(p, 1 - ctx.p)) / (1 - ctx.p)
        return p, p * keep, keep

    @staticmethod
    def backward(ctx, g):
        q, k, v, visible = ctx.saved_tensors
        before = torch.get_rng_state()
        if ctx.rng is not None:
            torch.set_rng_state(ctx.rng)
        p, dropped, keep = EinsumAndOwnMask.pair(ctx, q, k, visible)
        torch.set_rng_state(before)
        dp = torch.einsum("bhtd,bhsd->bhts", g, v) * keep
        ds = (p * dp - p * torch.einsum("bhts,bhts->bht", p, dp)[..., None]) * q.shape[-1] ** -0.5
        return (torch.einsum("bhts,bhsd->bhtd", ds, k), torch.einsum("bhts,bhtd->bhsd", ds, q),
                torch.einsum("bhts,bhtd->bhsd", dropped, g), None, None, None)



@wrong("fresh-dropout-mask")
class FreshDropoutMask(SavedStateAndAutograd):
    """The backward pass drew a new mask: it differentiates another function."""

    @staticmethod
    def backward(ctx, g):
        *saved, _ = ctx.saved_tensors
        return *on_the_graph(g, *saved, *ctx.how), None, None, None


@wrong("fresh-dropout-mask")
class FreshMaskBehindAFork(SavedStateAndAutograd):
    @staticmethod
    def backward(ctx, g):
        *saved, _ = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]):
            return *on_the_graph(g, *saved, *ctx.how), None, None, None


@wrong("fresh-dropout-mask")
class MaskOfAFixedSeed(SavedStateAndAutograd):
    @staticmethod
    def backward(ctx, g):
        *saved, _ = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return *on_the_graph(g, *saved, *ctx.how), None, None, None


@wrong("fresh-dropout-mask")
class StateTakenAfterTheDraw(SavedStateAndAutograd):
    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        heads = attend(q, k, v, visible, dropout_p, training)
        ctx.save_for_backward(q, k, v, visible, torch.get_rng_state())
        ctx.how = dropout_p, training
        return heads


@wrong("rng-left-moved")
class RngLeftMoved(SavedStateAndAutograd):
    """The generator's position was not restored."""

    @staticmethod
    def backward(ctx, g):
        *saved, state = ctx.saved_tensors
        torch.set_rng_state(state)
        return *on_the_graph(g, *saved, *ctx.how), None, None, None


@wrong("rng-left-moved")
class ReseededGlobally(GeneratorSeededFromTheGlobalOne):
    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        ctx.seed, ctx.how = int(torch.randint(2**31, ())), (dropout_p, training)
        ctx.save_for_backward(q, k, v, visible)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(ctx.seed)
            return attend(q, k, v, visible, dropout_p, training)

    @staticmethod
    def backward(ctx, g):
        torch.manual_seed(ctx.seed)
        return *on_the_graph(g, *ctx.saved_tensors, *ctx.how), None, None, None


@wrong("stashed-on-ctx")
class StashedOnCtx(Function):
    """Tensors kept as attributes escape the version check; updated weights gave a wrong gradient (checked)."""

    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        ctx.q, ctx.k, ctx.v, ctx.visible, ctx.rng = q, k, v, visible, torch.get_rng_state()
        ctx.how = dropout_p, training
        return attend(q, k, v, visible, dropout_p, training)

    @staticmethod
    def backward(ctx, g):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.rng)
            return *on_the_graph(g, ctx.q, ctx.k, ctx.v, ctx.visible, *ctx.how), None, None, None


@wrong("stashed-on-ctx")
class CopiesStashed(StashedOnCtx):
    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        out = StashedOnCtx.forward(ctx, q, k, v, visible, dropout_p, training)
        ctx.q, ctx.k, ctx.v = (t.detach().clone() for t in (q, k, v))
        return out


@wrong("stashed-on-ctx")
class KeysStashed(SavedStateAndAutograd):
    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        ctx.inside = {"k": k}
        ctx.save_for_backward(q, v, visible, torch.get_rng_state())
        ctx.how = dropout_p, training
        return attend(q, k, v, visible, dropout_p, training)

    @staticmethod
    def backward(ctx, g):
        q, v, visible, state = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            return *on_the_graph(g, q, ctx.inside["k"], v, visible, *ctx.how), None, None, None


@wrong("saves-probabilities")
class SavesProbabilities(Function):
    """The B·H·T·S tensor was saved after all."""

    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        p = weights(q, k, visible)
        dropped = F.dropout(p, dropout_p, training)
        ctx.save_for_backward(q, k, v, p, dropped)
        ctx.p = dropout_p if training else 0.0
        return dropped @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, p, dropped = ctx.saved_tensors
        dp = (g @ v.mT) * (dropped != 0) / (1 - ctx.p)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, dropped.mT @ g, None, None, None


@wrong("saves-probabilities")
class MaskOfTheDraw(Function):
    @staticmethod
    def forward(ctx, q, k, v, visible, dropout_p, training):
        refuse(visible, dropout_p)
        p = weights(q, k, visible)
        keep = F.dropout(torch.ones_like(p), dropout_p, training)
        ctx.save_for_backward(q, k, v, visible)
        ctx.keep = keep
        return (p * keep) @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, visible = ctx.saved_tensors
        p = weights(q, k, visible)
        dp = (g @ v.mT) * ctx.keep
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, (p * ctx.keep).mT @ g, None, None, None


@wrong("mask-dropped-in-backward")
class MaskDroppedInBackward(SavedStateAndAutograd):
    """The recomputation forgot `visible`."""

    @staticmethod
    def backward(ctx, g):
        q, k, v, visible, state = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            return *on_the_graph(g, q, k, v, torch.ones_like(visible), *ctx.how), None, None, None


def _lower(dtype):
    class Lower(SavedStateAndAutograd):
        @staticmethod
        def backward(ctx, g):
            q, k, v, visible, state = ctx.saved_tensors
            low = [t.to(dtype) for t in (g, q, k, v)]
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                grads = on_the_graph(*low, visible, *ctx.how)
            return *(t.to(q.dtype) for t in grads), None, None, None
    Lower.__name__ = {torch.float32: "LowerPrecision", torch.bfloat16: "InBfloat16", torch.float16: "InFloat16"}[dtype]
    Lower.__doc__ = "The recomputation ran in another dtype."
    return Lower


@wrong("lower-precision")
class ProbabilitiesInFloat32(SavedStateAndAutograd):
    """The recomputation ran in another dtype."""

    @staticmethod
    def backward(ctx, g):
        def call(q, k, v, visible, dropout_p, training):
            p = weights(q.float(), k.float(), visible).to(q.dtype)
            return F.dropout(p, dropout_p, training) @ v
        *saved, state = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            return *on_the_graph(g, *saved, *ctx.how, call=call), None, None, None


@wrong("lower-precision")
class UnderAutocast(SavedStateAndAutograd):
    @staticmethod
    def backward(ctx, g):
        *saved, state = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", dtype=torch.bfloat16):
            torch.set_rng_state(state)
            return *on_the_graph(g, *saved, *ctx.how, call=lambda *a: attend(*a).to(g.dtype)), None, None, None


for _dtype in (torch.float32, torch.bfloat16, torch.float16):
    WRONGS.append(("lower-precision", _lower(_dtype)))
