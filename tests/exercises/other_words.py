"""The known mistakes of session 04 as other people write them: (exercise, id or None for a right one, program)."""
import itertools
import math

import torch
from torch.nn import functional as F

from mha_lab.given import attend, local_backward

PROGRAMS = []


def says(exercise, id_):
    def add(program):
        PROGRAMS.append((exercise, id_, program))
        return program
    return add


@says("output_adjoint", "batch-not-summed")
def output_of_the_last_sample(grad_output, merged, w_o):
    return grad_output @ w_o, grad_output[-1].T @ merged[-1], grad_output.sum((0, 1))


@says("output_adjoint", "batch-not-summed")
def output_rows_kept(grad_output, merged, w_o):
    return grad_output @ w_o, torch.einsum("bqm,bqn->qmn", grad_output, merged), grad_output.sum(0)


@says("output_adjoint", "batch-not-summed")
def output_of_the_first_row(grad_output, merged, w_o):
    return grad_output @ w_o, torch.einsum("bm,bn->mn", grad_output[:, 0], merged[:, 0]), grad_output[:, 0].sum(0)


@says("output_adjoint", "weight-not-transposed")
def output_as_a_linear(grad_output, merged, w_o):
    return F.linear(grad_output, w_o), torch.einsum("bqm,bqn->mn", grad_output, merged), grad_output.sum((0, 1))


@says("projection_adjoint", "rows-averaged")
def mean_of_the_bias(x, g, w):
    return g @ w, torch.einsum("bso,bsi->oi", g, x), g.mean((0, 1))


@says("projection_adjoint", "rows-averaged")
def mean_over_samples(x, g, w):
    return g @ w, torch.einsum("bso,bsi->oi", g, x) / x.shape[0], g.sum(1).mean(0)


@says("projection_adjoint", "weight-transposed")
def subscripts_exchanged(x, g, w):
    return torch.einsum("bso,io->bsi", g, w), torch.einsum("bso,bsi->oi", g, x), g.sum((0, 1))


def coordinates(x):
    return itertools.product(*map(range, x.shape))


@says("central_difference", "forward-difference")
def one_sided_in_place_without_refusals(f, x, eps=1e-6):
    slopes, here = torch.zeros_like(x), f(x)
    for i in coordinates(x):
        kept = x[i].item()
        x[i] = kept + eps
        slopes[i] = (f(x) - here) / eps
        x[i] = kept
    return slopes


@says("central_difference", "perturbation-left")
def only_the_last_coordinate_left(f, x, eps=1e-6):
    if x.dtype != torch.float64 or f(x).dim():
        raise ValueError("float64 and a scalar, please")
    slopes = torch.zeros_like(x)
    for i in coordinates(x):
        kept = x[i].item()
        x[i] = kept + eps
        above = f(x)
        x[i] = kept - eps
        slopes[i] = (above - f(x)) / (2 * eps)
        if slopes.count_nonzero() < x.numel():
            x[i] = kept
    return slopes


@says("central_difference", "copy-perturbed")
def a_contiguous_copy_without_refusals(f, x, eps=1e-6):
    flat = x.contiguous().view(-1)
    slopes = torch.zeros_like(flat)
    for i in range(flat.numel()):
        kept = flat[i].item()
        flat[i] = kept + eps
        above = f(x)
        flat[i] = kept - eps
        slopes[i] = (above - f(x)) / (2 * eps)
        flat[i] = kept
    return slopes.reshape(x.shape)


@says("central_difference", "float32-accepted")
def nothing_refused(f, x, eps=1e-6):
    slopes = torch.zeros_like(x)
    for i in coordinates(x):
        above, below = x.clone(), x.clone()
        above[i] += eps
        below[i] -= eps
        slopes[i] = (f(above) - f(below)) / (2 * eps)
    return slopes


@says("central_difference", "mutates-input")
def doubled(f, x, eps=1e-6):
    slopes = nothing_refused(f, x, eps)
    x.mul_(2)
    return slopes


def cross(fault=None):
    """Written out with `@` and `view`, one fault at a time."""
    def program(grad_output, target, source, state, num_heads, visible=None):
        def packed(x, n):
            y = x @ state[n + "_proj.weight"].T
            return y + state[n + "_proj.bias"] if n + "_proj.bias" in state else y

        def split(y):
            return y.view(y.shape[0], y.shape[1], num_heads, -1).transpose(1, 2)

        def merge(y):
            return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1)

        q, k, v = split(packed(target, "q")), split(packed(source, "k")), split(packed(source, "v"))
        plain = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        hidden = torch.zeros_like(plain) if visible is None else torch.zeros_like(plain).masked_fill(~visible, 1)
        blocked = plain.masked_fill(hidden.bool(), -math.inf)
        p = (plain if fault == "forgets the mask" else blocked).softmax(-1)
        g = torch.ones_like(grad_output) if fault == "ones" else grad_output
        out = {"o_proj.weight": torch.einsum("btm,btc->mc", g, merge(p @ v)), "o_proj.bias": g.sum((0, 1))}
        d_heads = split(g @ state["o_proj.weight"])
        if fault == "fills with a tiny number":
            p = plain.masked_fill(hidden.bool(), 1e-9).softmax(-1)
        if fault == "no mask for the derivative":
            p = attend(q, k, v)[1]
        dq, dk, dv = local_backward(d_heads, q, k, v, p)
        if fault in ("p times dp", "diagonal"):
            ds = (p if fault == "p times dp" else p * (1 - p)) * (d_heads @ v.transpose(-1, -2)) / q.shape[-1] ** 0.5
            dq, dk = ds @ k, ds.transpose(-1, -2) @ q
        if fault == "unscaled":
            dq, dk = dq * q.shape[-1] ** 0.5, dk * q.shape[-1] ** 0.5
        ends = {}
        for n, heads, x in (("q", dq, target), ("k", dk, source), ("v", dv, source)):
            back = merge(heads)
            out[n + "_proj.weight"], out[n + "_proj.bias"] = torch.einsum("bso,bsi->oi", back, x), back.sum((0, 1))
            ends[n] = back @ state[n + "_proj.weight"]
        out |= {"target": ends["q"], "source": ends["k"] + ends["v"]}
        if fault in ("keys", "values"):
            out["source"] = ends[fault[0]]
        if fault == "assigns":
            for n in "qkv":
                out["target" if n == "q" else "source"] = ends[n]
        return {n: out[n] for n in ("target", "source", *state)}
    program.__name__ = (fault or "written out").replace(" ", "_")
    return program


CROSS = {None: None, "forgets the mask": "masked-pairs-leak", "fills with a tiny number": "masked-pairs-leak",
         "no mask for the derivative": "masked-pairs-leak", "ones": "assumes-ones", "p times dp": "diagonal-softmax",
         "diagonal": "diagonal-softmax", "unscaled": "scale-forgotten", "keys": "source-from-keys-only",
         "values": "source-from-values-only", "assigns": "path-overwrites-path"}
PROGRAMS += [("cross_attention_backward", id_, cross(fault)) for fault, id_ in CROSS.items()]


def alone(name, x_of):
    """Self-attention through the cross version; `x_of(target, source, values)` is what becomes of the paths."""
    def program(grad_output, x, state, num_heads, visible=None):
        out = cross()(grad_output, x, x, state, num_heads, visible)
        values = cross("values")(grad_output, x, x, state, num_heads, visible)["source"]
        return x_of(out.pop("target"), out.pop("source"), values) | out
    program.__name__ = name
    return program


PROGRAMS += [("self_attention_backward", id_, alone(name, x_of)) for name, id_, x_of in (
    ("summed", None, lambda t, s, v: {"x": t + s}),
    ("source_last", "last-path-wins", lambda t, s, v: {"x": s}),
    ("target_last", "last-path-wins", lambda t, s, v: {"x": t}),
    ("values_last", "last-path-wins", lambda t, s, v: {"x": v}),
    ("values_forgotten", "value-path-missing", lambda t, s, v: {"x": t + s - v}),
    ("two_arrays", "three-gradients", lambda t, s, v: {"target": t, "source": s}),
    ("a_list", "three-gradients", lambda t, s, v: {"x": [t, s - v, v]}),
    ("a_dict", "three-gradients", lambda t, s, v: {"x": {"q": t, "k": s - v, "v": v}}))]


@says("key_bias_direction", "per-key-shift")
def shift_for_seven_keys(q, b):
    dots = torch.einsum("bhqd,hd->bhq", q, b.view(q.shape[1], -1)) / q.shape[-1] ** 0.5
    return dots[..., None].expand(*dots.shape, 7)


@says("key_bias_direction", "unsliced-bias")
def whole_bias_times_query(q, b):
    return (q * b).sum(-1, keepdim=True) / q.shape[-1] ** 0.5


@says("key_bias_direction", "summed-over-heads")
def heads_summed_by_einsum(q, b):
    return torch.einsum("bhqd,hd->bq", q, b.view(q.shape[1], -1))[:, None, :, None] / q.shape[-1] ** 0.5


def recomputed(*faults, low=None):
    """Formulas by hand over a mask from `rand_like`, with any faults at once."""
    class RecomputedAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, visible, dropout_p, training):
            if dropout_p < 0 or dropout_p >= 1:
                raise ValueError("dropout probability out of range")
            ctx.p, ctx.rng = dropout_p if training else 0.0, torch.get_rng_state()
            p = attend(q, k, v, visible)[1]
            keep = (torch.rand_like(p) >= ctx.p).to(p.dtype) / (1 - ctx.p) if ctx.p else torch.ones_like(p)
            saved = [q, k, v, visible]
            if "stash" in faults:
                ctx.inputs = saved
                return (p * keep) @ v
            if "keeps the draw" in faults:
                saved.append(keep != 0)
            ctx.save_for_backward(*saved)
            if "keeps p" in faults:
                ctx.p_of_forward = p
            return (p * keep) @ v

        @staticmethod
        def backward(ctx, g):
            inputs = ctx.inputs if "stash" in faults else ctx.saved_tensors
            q, k, v, visible = inputs[:4]
            dtype = q.dtype
            g, q, k, v = (t.to(low or dtype) for t in (g, q, k, v))
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            p = (scores if "no mask" in faults else scores.masked_fill(~visible, -math.inf)).softmax(-1)
            here, keep = torch.get_rng_state(), torch.ones_like(p)
            if ctx.p:
                if "fresh" not in faults:
                    torch.set_rng_state(ctx.rng)
                keep = (torch.rand_like(p, dtype=dtype) >= ctx.p).to(p.dtype) / (1 - ctx.p)
                if "fresh" not in faults and "moved" not in faults:
                    torch.set_rng_state(here)
            dp = (g @ v.mT) * keep
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
            return *(t.to(dtype) for t in (ds @ k, ds.mT @ q, (p * keep).mT @ g)), None, None, None
    RecomputedAttention.__name__ = "_".join(map(str, (*faults, low or ""))).replace(" ", "_") or "by_hand"
    return RecomputedAttention


PROGRAMS += [("RecomputedAttention", id_, recomputed(*faults, low=low)) for id_, low, *faults in (
    (None, None), ("fresh-dropout-mask", None, "fresh"), ("rng-left-moved", None, "moved"),
    ("stashed-on-ctx", None, "stash"), ("saves-probabilities", None, "keeps p"),
    ("saves-probabilities", None, "keeps the draw"), ("mask-dropped-in-backward", None, "no mask"),
    ("lower-precision", torch.float32), ("lower-precision", torch.bfloat16), ("lower-precision", torch.float16),
    ("fresh-dropout-mask", None, "fresh", "stash"), ("stashed-on-ctx", None, "fresh", "stash"))]
