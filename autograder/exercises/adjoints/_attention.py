"""Attention and its gradients: the oracle by autograd, and the formulas that right and wrong programs are made of."""
import math
from functools import cache

import torch
from torch.nn import functional as F

from ...standard import normal

FIXTURE = dict(batch=2, heads=3, targets=4, sources=5, d_qk=6, d_v=8, width=7)
SQUARE = dict(batch=3, heads=3, targets=6, sources=6, d_qk=4, d_v=4, width=12)
ROLES = "q", "k", "v", "o"


def state(sizes, bias=True, seed=0):
    """Stored weights [out,in] and biases, drawn at random."""
    h, m = sizes["heads"], sizes["width"]
    shapes = {"q": (h * sizes["d_qk"], m), "k": (h * sizes["d_qk"], m), "v": (h * sizes["d_v"], m),
              "o": (m, h * sizes["d_v"])}
    found = {f"{r}_proj.weight": normal(*shapes[r], seed=seed + i) * 0.6 for i, r in enumerate(ROLES)}
    if bias:
        found |= {f"{r}_proj.bias": normal(shapes[r][0], seed=seed + 4 + i) for i, r in enumerate(ROLES)}
    return found


def rows(sizes, seed=20):
    """(grad_output, target, source), drawn at random."""
    b, m = sizes["batch"], sizes["width"]
    return (normal(b, sizes["targets"], m, seed=seed), normal(b, sizes["targets"], m, seed=seed + 1),
            normal(b, sizes["sources"], m, seed=seed + 2))


def rectangle(sizes):
    """[B,1,T,S]: sample and query decide; in sample 1 nobody sees source row 2, and every query sees some row."""
    b, t, s = sizes["batch"], sizes["targets"], sizes["sources"]
    i = torch.arange(b)[:, None, None] + 2 * torch.arange(t)[:, None] + 3 * torch.arange(s)
    visible = i % 4 != 0
    visible[1, :, 2] = False
    return visible[:, None]


def each_head(sizes):
    """[1,H,T,S]: every head has a mask of its own."""
    h, t, s = sizes["heads"], sizes["targets"], sizes["sources"]
    i = 5 * torch.arange(h)[:, None, None] + 3 * torch.arange(t)[:, None] + torch.arange(s)
    return (i % 3 != 1)[None]


def forward(target, source, state, heads, visible=None):
    """Output rows, one head after another: the oracle's own forward pass, in the dtype of its inputs."""
    def project(role, x, h):
        weight, bias = state[f"{role}_proj.weight"], state.get(f"{role}_proj.bias")
        d = weight.shape[0] // heads
        y = torch.einsum("btm,dm->btd", x, weight[h * d:(h + 1) * d])
        return y if bias is None else y + bias[h * d:(h + 1) * d]

    out, w_o = 0, state["o_proj.weight"]
    for h in range(heads):
        q, k, v = project("q", target, h), project("k", source, h), project("v", source, h)
        scores = torch.einsum("btd,bsd->bts", q, k) / math.sqrt(q.shape[-1])
        if visible is not None:
            seen = visible[:, h if visible.shape[1] > 1 else 0]
            scores = torch.where(seen, scores, torch.full_like(scores, -torch.inf))
        weights = scores.softmax(-1)
        d = v.shape[-1]
        out = out + torch.einsum("bts,bsd,md->btm", weights, v, w_o[:, h * d:(h + 1) * d])
    return out if "o_proj.bias" not in state else out + state["o_proj.bias"]


def oracle(grad_output, target, source, state, heads, visible=None):
    """Every gradient, by autograd in float64."""
    leaves = {"target": target, "source": source} | state
    leaves = {k: v.detach().double().clone().requires_grad_() for k, v in leaves.items()}
    with torch.enable_grad():
        out = forward(leaves["target"], leaves["source"], {k: leaves[k] for k in state}, heads, visible)
    return dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), grad_output.double()), strict=True))


COORDINATES = {"target": (1, 2, 3), "source": (0, 4, 1), "q_proj.weight": (7, 2), "k_proj.weight": (13, 5),
               "v_proj.weight": (20, 0), "o_proj.weight": (4, 17), "q_proj.bias": (8,), "k_proj.bias": (3,),
               "v_proj.bias": (11,), "o_proj.bias": (6,)}


@cache
def measured(masked, alias, eps=1e-5):
    """Central differences on fixture F at one named coordinate of every part: {part: (coordinate, slope)}.

    alias: target and source are one tensor, "x".
    """
    leaves = state(FIXTURE)
    g, target, source = rows(FIXTURE)
    visible = rectangle(FIXTURE) if masked and not alias else None
    leaves |= {"x": target} if alias else {"target": target, "source": source}
    names = ("x", "x") if alias else ("target", "source")

    def loss(parts):
        rows_ = [parts[n] for n in names]
        return (forward(*rows_, {k: parts[k] for k in parts if "proj" in k}, 3, visible) * g).sum().item()

    found = {}
    for name in leaves:
        at = COORDINATES["target" if name == "x" else name]
        ends = []
        for step in (eps, -eps):
            moved = leaves[name].clone()
            moved[at] += step
            ends.append(loss(leaves | {name: moved}))
        found[name] = at, (ends[0] - ends[1]) / (2 * eps)
    return found


def split(packed, heads):
    return packed.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(heads):
    return heads.transpose(1, 2).flatten(2)


def projected(x, state, role):
    return F.linear(x, state[f"{role}_proj.weight"], state.get(f"{role}_proj.bias"))


def through(x, g, weight):
    """(grad_x, grad_weight, grad_bias) of one affine map."""
    return g @ weight, g.flatten(0, 1).T @ x.flatten(0, 1), g.sum((0, 1))


def attended(q, k, visible=None):
    """Probabilities."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores if visible is None else scores.masked_fill(~visible, -torch.inf)).softmax(-1)


def local(g, q, k, v, p, scales=(True, True), softmax=None):
    """(grad_q, grad_k, grad_v) of one call. `softmax(p, dp)` sends gradients of probabilities back to scores."""
    dp = g @ v.mT
    ds = softmax(p, dp) if softmax else p * (dp - (p * dp).sum(-1, keepdim=True))
    for_q, for_k = (ds / math.sqrt(q.shape[-1]) if scaled else ds for scaled in scales)
    return for_q @ k, for_k.mT @ q, p.mT @ g


def routes(grad_output, target, source, state, heads, visible=None, attended=attended, local=local, back=None):
    """({"q": ..., "k": ..., "v": ...}, {state key: gradient}): what each path brings to its rows, and the weights.

    `back` are the probabilities of the backward pass, `attended(q, k, visible)` those of the forward pass.
    """
    q, k, v = (split(projected(x, state, r), heads) for r, x in (("q", target), ("k", source), ("v", source)))
    p = attended(q, k, visible)
    merged = merge(p @ v)
    grad_merged, *found = through(merged, grad_output, state["o_proj.weight"])
    grads = dict(zip(("o_proj.weight", "o_proj.bias"), found, strict=True))
    paths = {}
    p = back(q, k, visible) if back else p
    for role, x, g in zip("qkv", (target, source, source), local(split(grad_merged, heads), q, k, v, p), strict=True):
        paths[role], grads[f"{role}_proj.weight"], grads[f"{role}_proj.bias"] = through(
            x, merge(g), state[f"{role}_proj.weight"])
    return paths, {name: grads[name] for name in state}
