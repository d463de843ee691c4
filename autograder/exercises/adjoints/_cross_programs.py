"""Cross-attention backward, right in every style and wrong in every known way."""
import math
from functools import partial

import torch
from torch.nn import functional as F

from ...programs import Programs
from ._attention import attended, local, merge, projected, routes, split, through

PROGRAMS = Programs()
right, wrong = PROGRAMS.right, PROGRAMS.wrong
RIGHTS, WRONGS = PROGRAMS.rights, PROGRAMS.wrongs


def summed(paths, grads):
    return {"target": paths["q"], "source": paths["k"] + paths["v"], **grads}


@right
def composed_adjoints(grad_output, target, source, state, num_heads, visible=None):
    return summed(*routes(grad_output, target, source, state, num_heads, visible))


@right
def einsum_throughout(grad_output, target, source, state, num_heads, visible=None):
    h, e = num_heads, torch.einsum
    w = {r: state[f"{r}_proj.weight"] for r in "qkvo"}
    q, k, v = (e("btm,hdm->bhtd", x, w[r].view(h, -1, x.shape[-1]))
               + (state[f"{r}_proj.bias"].view(1, h, 1, -1) if f"{r}_proj.bias" in state else 0)
               for r, x in (("q", target), ("k", source), ("v", source)))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = e("bhtd,bhsd->bhts", q, k) * scale
    if visible is not None:
        scores = scores.masked_fill(visible.logical_not(), float("-inf"))
    p = scores.softmax(-1)
    heads = e("bhts,bhsd->bhtd", p, v)
    w_o = w["o"].view(-1, h, heads.shape[-1])
    d_heads = e("btm,mhd->bhtd", grad_output, w_o)
    dp = e("bhtd,bhsd->bhts", d_heads, v)
    ds = (p * dp - p * e("bhts,bhts->bht", p, dp)[..., None]) * scale
    dq, dk, dv = e("bhts,bhsd->bhtd", ds, k), e("bhts,bhtd->bhsd", ds, q), e("bhts,bhtd->bhsd", p, d_heads)
    m = target.shape[-1]
    out = {"target": e("bhtd,hdm->btm", dq, w["q"].view(h, -1, m)),
           "source": e("bhsd,hdm->bsm", dk, w["k"].view(h, -1, m)) + e("bhsd,hdm->bsm", dv, w["v"].view(h, -1, m)),
           "o_proj.weight": e("btm,bhtd->mhd", grad_output, heads).flatten(1), "o_proj.bias": e("btm->m", grad_output)}
    for r, g, x in (("q", dq, target), ("k", dk, source), ("v", dv, source)):
        out[f"{r}_proj.weight"] = e("bhtd,btm->hdm", g, x).flatten(0, 1)
        out[f"{r}_proj.bias"] = e("bhtd->hd", g).flatten()
    return {name: out[name] for name in ("target", "source", *state)}


def _module(target, source, state, heads, visible, fused):
    q, k, v = (split(projected(x, state, r), heads) for r, x in (("q", target), ("k", source), ("v", source)))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible) if fused else attended(q, k, visible) @ v
    return projected(merge(mixed), state, "o")


def _by_autograd(grad_output, target, source, state, num_heads, visible=None, fused=False):
    leaves = {"target": target, "source": source} | state
    leaves = {k: v.detach().clone().requires_grad_() for k, v in leaves.items()}
    with torch.enable_grad():
        out = _module(leaves["target"], leaves["source"], leaves, num_heads, visible, fused)
    return dict(zip(leaves, torch.autograd.grad(out, leaves.values(), grad_output), strict=True))


@right
def autograd_of_the_module(*args, **kwargs):
    return _by_autograd(*args, **kwargs)


@right
def autograd_of_fused_attention(*args, **kwargs):
    return _by_autograd(*args, **kwargs, fused=True)


@right
def leaves_and_backward(grad_output, target, source, state, num_heads, visible=None):
    leaves = {"target": target, "source": source} | state
    leaves = {k: v.detach().clone().requires_grad_() for k, v in leaves.items()}
    _module(leaves["target"], leaves["source"], leaves, num_heads, visible, False).backward(grad_output)
    return {k: v.grad for k, v in leaves.items()}


@right
def vector_jacobian_product(grad_output, target, source, state, num_heads, visible=None):
    def call(target, source, state):
        return _module(target, source, state, num_heads, visible, False)
    _, back = torch.func.vjp(call, target, source, dict(state))
    to_target, to_source, to_state = back(grad_output)
    return {"target": to_target, "source": to_source} | to_state


@right
def one_head_after_another(grad_output, target, source, state, num_heads, visible=None):
    def one(name, h, axis=0):
        return state[name].chunk(num_heads, axis)[h] if name in state else None

    out = {"target": torch.zeros_like(target), "source": torch.zeros_like(source)}
    slices: dict[str, list] = {name: [] for name in state}
    for h in range(num_heads):
        seen = None if visible is None else visible[:, h if visible.shape[1] > 1 else 0]
        w_o = one("o_proj.weight", h, 1)
        q, k, v = (F.linear(x, one(f"{r}_proj.weight", h), one(f"{r}_proj.bias", h))
                   for r, x in (("q", target), ("k", source), ("v", source)))
        p = attended(q, k, seen)
        slices["o_proj.weight"].append(torch.einsum("btm,btd->md", grad_output, p @ v))
        for r, x, g in zip("qkv", (target, source, source), local(grad_output @ w_o, q, k, v, p), strict=True):
            gx, gw, gb = through(x, g, one(f"{r}_proj.weight", h))
            out["target" if r == "q" else "source"] += gx
            slices[f"{r}_proj.weight"].append(gw)
            if f"{r}_proj.bias" in slices:
                slices[f"{r}_proj.bias"].append(gb)
    if "o_proj.bias" in slices:
        slices["o_proj.bias"].append(grad_output.sum((0, 1)))
    return out | {n: torch.cat(parts, 1 if n == "o_proj.weight" else 0) for n, parts in slices.items()}


@right
def softmax_jacobian_written_out(grad_output, target, source, state, num_heads, visible=None):
    def softmax(p, dp):
        jacobian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
        return (jacobian @ dp[..., None])[..., 0]
    middle = partial(local, softmax=softmax)
    return summed(*routes(grad_output, target, source, state, num_heads, visible, local=middle))


@right
def concatenated_key_and_value_gradients(grad_output, target, source, state, num_heads, visible=None):
    q, k, v = (split(projected(x, state, r), num_heads) for r, x in (("q", target), ("k", source), ("v", source)))
    p = attended(q, k, visible)
    grad_merged, w_o, b_o = through(merge(p @ v), grad_output, state["o_proj.weight"])
    dq, dk, dv = (merge(g) for g in local(split(grad_merged, num_heads), q, k, v, p))
    fused = torch.cat([state["k_proj.weight"], state["v_proj.weight"]])
    to_source, weight, bias = through(source, torch.cat([dk, dv], -1), fused)
    cut = dk.shape[-1]
    to_target, w_q, b_q = through(target, dq, state["q_proj.weight"])
    found = {"q_proj.weight": w_q, "q_proj.bias": b_q, "k_proj.weight": weight[:cut], "v_proj.weight": weight[cut:],
             "k_proj.bias": bias[:cut], "v_proj.bias": bias[cut:], "o_proj.weight": w_o, "o_proj.bias": b_o}
    return {"target": to_target, "source": to_source} | {name: found[name] for name in state}


@wrong("source-from-keys-only")
def source_from_keys_only(*args, **kwargs):
    """The value path also reaches the source."""
    paths, grads = routes(*args, **kwargs)
    return {"target": paths["q"], "source": paths["k"], **grads}


@wrong("source-from-values-only")
def source_from_values_only(*args, **kwargs):
    """The key path also reaches the source."""
    paths, grads = routes(*args, **kwargs)
    return {"target": paths["q"], "source": paths["v"], **grads}


@wrong("path-overwrites-path")
def path_overwrites_path(*args, **kwargs):
    """The second path replaced the first; gradients add."""
    paths, grads = routes(*args, **kwargs)
    out = {"target": paths["q"], **grads}
    for role in "kv":
        out["source"] = paths[role]
    return out


@wrong("path-overwrites-path")
def values_first(*args, **kwargs):
    paths, grads = routes(*args, **kwargs)
    out = {"target": paths["q"], **grads}
    for role in "vk":
        out["source"] = paths[role]
    return out


@wrong("scale-forgotten")
def scale_forgotten(*args, **kwargs):
    """1/√D applies on the way back too."""
    return summed(*routes(*args, **kwargs, local=partial(local, scales=(False, False))))


@wrong("scale-forgotten")
def for_queries_only(*args, **kwargs):
    return summed(*routes(*args, **kwargs, local=partial(local, scales=(False, True))))


@wrong("scale-forgotten")
def for_keys_only(*args, **kwargs):
    return summed(*routes(*args, **kwargs, local=partial(local, scales=(True, False))))


@wrong("scale-forgotten")
def on_both_ways(*args, **kwargs):
    def unscaled(q, k, visible):
        return attended(q * math.sqrt(q.shape[-1]), k, visible)
    return summed(*routes(*args, **kwargs, attended=unscaled, local=partial(local, scales=(False, False))))


@wrong("diagonal-softmax")
def diagonal_softmax(*args, **kwargs):
    """The softmax Jacobian has the rank-one term −p·pᵀ."""
    return summed(*routes(*args, **kwargs, local=partial(local, softmax=lambda p, dp: p * dp)))


@wrong("diagonal-softmax")
def diagonal_of_the_jacobian(*args, **kwargs):
    return summed(*routes(*args, **kwargs, local=partial(local, softmax=lambda p, dp: p * (1 - p) * dp)))


def blind(q, k, visible):
    return attended(q, k)


def _masked_afterwards(q, k, visible):
    p = attended(q, k)
    return p if visible is None else p * visible


def _score_times_mask(q, k, visible):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores if visible is None else scores * visible).softmax(-1)


@wrong("masked-pairs-leak")
def masked_pairs_leak(*args, **kwargs):
    """A blocked pair carries no gradient."""
    return summed(*routes(*args, **kwargs, back=blind))


@wrong("masked-pairs-leak")
def no_mask_at_all(*args, **kwargs):
    return summed(*routes(*args, **kwargs, attended=blind))


@wrong("masked-pairs-leak")
def score_times_mask(*args, **kwargs):
    return summed(*routes(*args, **kwargs, attended=_score_times_mask))


@wrong("masked-pairs-leak")
def score_times_mask_on_the_way_back(*args, **kwargs):
    return summed(*routes(*args, **kwargs, back=_score_times_mask))


@wrong("masked-pairs-leak")
def only_the_scores_leak(grad_output, target, source, state, num_heads, visible=None):
    def half_blind(g, q, k, v, p):
        dq, dk, _ = local(g, q, k, v, attended(q, k))
        return dq, dk, p.mT @ g
    return summed(*routes(grad_output, target, source, state, num_heads, visible, local=half_blind))


@wrong("masked-pairs-leak")
def only_the_values_leak(grad_output, target, source, state, num_heads, visible=None):
    def half_blind(g, q, k, v, p):
        dq, dk, _ = local(g, q, k, v, p)
        return dq, dk, attended(q, k).mT @ g
    return summed(*routes(grad_output, target, source, state, num_heads, visible, local=half_blind))


@wrong("masked-pairs-leak")
def softmax_over_all_then_masked(*args, **kwargs):
    return summed(*routes(*args, **kwargs, local=lambda g, q, k, v, p: local(g, q, k, v, p, softmax=lambda p, dp: (
        attended(q, k) * (dp - (attended(q, k) * dp).sum(-1, keepdim=True))))))


@wrong("assumes-ones")
def assumes_ones(grad_output, *args, **kwargs):
    """The incoming gradient was replaced by ones."""
    return summed(*routes(torch.ones_like(grad_output), *args, **kwargs))
