"""Grouped attention: right programs in many styles, and wrong ones with exactly one fault: (id, program)."""
import math

import torch
from einops import einsum, rearrange
from torch.nn import functional as F

from ...programs import Programs

PROGRAMS = Programs()
right, wrong = PROGRAMS.right, PROGRAMS.wrong
RIGHTS, WRONGS = PROGRAMS.rights, PROGRAMS.wrongs


def _checked(q, k, visible):
    """(B, H, G, R, T, S, D), after the refusals."""
    (batch, heads, queries, width), (groups, keys) = q.shape, k.shape[1:3]
    if heads % groups:
        raise ValueError("query heads are not divisible by key/value heads")
    if visible is not None and not visible.any(-1).all():
        raise ValueError("a query has no visible key")
    return batch, heads, groups, heads // groups, queries, keys, width


def _weights(scores, visible):
    """Softmax of scores [B,H,T,S] under a mask."""
    return (scores if visible is None else scores.masked_fill(~visible, -torch.inf)).softmax(-1)


@right
def group_folded_into_queries(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = q.reshape(b, g, r * t, d) @ k.mT / math.sqrt(d)
    weights = _weights(scores.view(b, h, t, s), visible)
    return (weights.view(b, g, r * t, s) @ v).view(b, h, t, -1)


@right
def einsum_with_a_member_axis(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = torch.einsum("bgrtd,bgsd->bgrts", q.unflatten(1, (g, r)), k) * d**-0.5
    if visible is not None:
        seen = visible.expand(b, h, t, s).unflatten(1, (g, r))
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("bgrts,bgsd->bgrtd", scores.softmax(-1), v).flatten(1, 2)


@right
def loop_over_query_heads(q, k, v, visible=None):
    b, h, _, r, t, s, d = _checked(q, k, visible)
    seen = None if visible is None else visible.expand(b, h, t, s)
    heads = []
    for i in range(h):
        scores = q[:, i] @ k[:, i // r].transpose(1, 2) / d**0.5
        weights = _weights(scores, None if seen is None else seen[:, i])
        heads.append(weights @ v[:, i // r])
    return torch.stack(heads, 1)


@right
def loop_over_groups(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    seen = None if visible is None else visible.expand(b, h, t, s)
    parts = []
    for j in range(g):
        mine = slice(j * r, (j + 1) * r)
        scores = torch.einsum("brtd,bsd->brts", q[:, mine], k[:, j]) / d**0.5
        weights = _weights(scores, None if seen is None else seen[:, mine])
        parts.append(torch.einsum("brts,bsd->brtd", weights, v[:, j]))
    return torch.cat(parts, 1)


@right
def sdpa_with_enable_gqa(q, k, v, visible=None):
    _checked(q, k, visible)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)


@right
def by_einops(q, k, v, visible=None):
    b, h, g, _, t, s, d = _checked(q, k, visible)
    folded = rearrange(q, "b (g r) t d -> b g (r t) d", g=g)
    scores = rearrange(einsum(folded, k, "b g n d, b g s d -> b g n s"), "b g (r t) s -> b (g r) t s", t=t) / d**0.5
    weights = rearrange(_weights(scores, visible), "b (g r) t s -> b g (r t) s", g=g)
    return rearrange(einsum(weights, v, "b g n s, b g s e -> b g n e"), "b g (r t) e -> b (g r) t e", t=t)


@right
def groups_in_the_batch(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = torch.bmm(q.reshape(b * g, r * t, d), k.reshape(b * g, s, d).transpose(1, 2)) * d**-0.5
    weights = _weights(scores.view(b, h, t, s), visible).view(b * g, r * t, s)
    return torch.bmm(weights, v.reshape(b * g, s, -1)).view(b, h, t, -1)


@right
def in_float64(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = q.double().reshape(b, g, r * t, d) @ k.double().mT / d**0.5
    weights = _weights(scores.view(b, h, t, s), visible)
    return (weights.view(b, g, r * t, s) @ v.double()).view(b, h, t, -1).to(q.dtype)


@right
def members_in_the_queries_of_sdpa(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    mask = None if visible is None else visible.expand(b, h, t, s).reshape(b, g, r * t, s)
    return F.scaled_dot_product_attention(q.reshape(b, g, r * t, d), k, v, attn_mask=mask).view(b, h, t, -1)


@right
def one_head_under_vmap(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    seen = torch.ones(b, h, t, s, dtype=torch.bool) if visible is None else visible.expand(b, h, t, s)

    def head(q, k, v, seen):
        return _weights(q @ k.T / d**0.5, seen) @ v

    members = torch.vmap(head, in_dims=(0, None, None, 0))
    return torch.vmap(torch.vmap(members))(q.unflatten(1, (g, r)), k, v, seen.unflatten(1, (g, r))).flatten(1, 2)


def _repeated(q, k, v, visible, repeat):
    *_, d = _checked(q, k, visible)
    k, v = repeat(k), repeat(v)
    return _weights(q @ k.mT / d**0.5, visible) @ v


@wrong("memory-repeated")
def memory_repeated(q, k, v, visible=None):
    """The full K and V were built, one copy for every query head: values are right, and the memory that grouping saves
    is spent in the call."""
    r = _checked(q, k, visible)[3]
    return _repeated(q, k, v, visible, lambda x: x.repeat_interleave(r, dim=1))


@wrong("memory-repeated")
def expanded_then_reshaped(q, k, v, visible=None):
    b, h, g, r, _, s, _ = _checked(q, k, visible)
    return _repeated(q, k, v, visible, lambda x: x[:, :, None].expand(b, g, r, s, x.shape[-1]).reshape(b, h, s, -1))


@wrong("memory-repeated")
def indexed(q, k, v, visible=None):
    r = _checked(q, k, visible)[3]
    return _repeated(q, k, v, visible, lambda x: x[:, torch.arange(q.shape[1]) // r])


@wrong("memory-repeated")
def repeated_for_sdpa(q, k, v, visible=None):
    r = _checked(q, k, visible)[3]
    k, v = (x.repeat_interleave(r, dim=1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


@wrong("broadcast-matmul")
def broadcast_matmul(q, k, v, visible=None):
    """Matmul over an inserted axis clones K (and V) for every member of the group: broadcasting is free until a batched
    product needs its operands in memory."""
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = q.reshape(b, g, r, t, d) @ k[:, :, None].mT / d**0.5
    weights = _weights(scores.view(b, h, t, s), visible).view(b, g, r, t, s)
    return (weights @ v[:, :, None]).view(b, h, t, -1)


@wrong("tiled-groups")
def tiled_groups(q, k, v, visible=None):
    """Queries h, h+G, … shared a head. The function is one of the same family, but your head layout differs from the
    contract, and a checkpoint would meet the wrong keys."""
    b, h, g, r, t, s, d = _checked(q, k, visible)
    folded = q.unflatten(1, (r, g)).transpose(1, 2).reshape(b, g, r * t, d)
    scores = (folded @ k.mT / d**0.5).view(b, g, r, t, s).transpose(1, 2).reshape(b, h, t, s)
    weights = _weights(scores, visible).unflatten(1, (r, g)).transpose(1, 2).reshape(b, g, r * t, s)
    return (weights @ v).view(b, g, r, t, -1).transpose(1, 2).reshape(b, h, t, -1)


@wrong("tiled-groups")
def tiled_by_repeat(q, k, v, visible=None):
    r = _checked(q, k, visible)[3]
    return _repeated(q, k, v, visible, lambda x: x.repeat(1, r, 1, 1))


@wrong("queries-averaged")
def queries_averaged(q, k, v, visible=None):
    """Query heads were reduced to G; every query head keeps its own scores."""
    b, h, g, r, t, s, d = _checked(q, k, visible)
    few = q.unflatten(1, (g, r)).mean(2)
    seen = None if visible is None else visible.expand(b, h, t, s)[:, ::r]
    return (_weights(few @ k.mT / d**0.5, seen) @ v).repeat_interleave(r, dim=1)


@wrong("queries-averaged")
def g_heads_returned(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    few = q.unflatten(1, (g, r)).mean(2)
    seen = None if visible is None else visible.expand(b, h, t, s)[:, ::r]
    return _weights(few @ k.mT / d**0.5, seen) @ v


@wrong("queries-averaged")
def queries_summed(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    few = q.unflatten(1, (g, r)).sum(2)
    seen = None if visible is None else visible.expand(b, h, t, s)[:, ::r]
    return (_weights(few @ k.mT / d**0.5, seen) @ v).repeat_interleave(r, dim=1)


@wrong("queries-averaged")
def scores_averaged(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = (q.reshape(b, g, r * t, d) @ k.mT / d**0.5).view(b, g, r, t, s).mean(2, keepdim=True)
    weights = _weights(scores.expand(b, g, r, t, s).reshape(b, h, t, s), visible)
    return (weights.view(b, g, r * t, s) @ v).view(b, h, t, -1)


def _softmax_over(axis, q, k, v, visible):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = (q.reshape(b, g, r * t, d) @ k.mT / d**0.5).view(b, h, t, s)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    weights = scores.view(b, g, r, t, s).softmax(axis)
    return torch.einsum("bgrts,bgsd->bgrtd", weights, v).flatten(1, 2)


@wrong("softmax-over-group")
def softmax_over_group(q, k, v, visible=None):
    """The group axis was normalised: members of a group compete for a pair. Every query distributes over the keys."""
    return _softmax_over(2, q, k, v, visible)


@wrong("softmax-over-group")
def over_the_groups(q, k, v, visible=None):
    return _softmax_over(1, q, k, v, visible)


@wrong("softmax-over-group")
def over_members_and_keys(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = (q.reshape(b, g, r * t, d) @ k.mT / d**0.5).view(b, h, t, s)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    together = scores.view(b, g, r, t, s).transpose(2, 3).flatten(3)
    weights = together.softmax(-1).view(b, g, t, r, s).transpose(2, 3)
    return torch.einsum("bgrts,bgsd->bgrtd", weights, v).flatten(1, 2)


def _regrouped(regroup, q, k, v, visible):
    """Scores [B,G,R,T,S] meet what `regroup(visible, sizes)` makes of the mask."""
    sizes = b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = (q.reshape(b, g, r * t, d) @ k.mT / d**0.5).view(b, g, r, t, s)
    if visible is not None:
        scores = scores.masked_fill(~regroup(visible, sizes), -torch.inf)
    return torch.einsum("bgrts,bgsd->bgrtd", scores.softmax(-1), v).flatten(1, 2)


@wrong("mask-not-regrouped")
def mask_not_regrouped(q, k, v, visible=None):
    """A per-head mask must be folded like the queries: its head axis is group and member too."""
    return _regrouped(lambda seen, n: seen[:, None] if seen.shape[1] == 1 else seen, q, k, v, visible)


@wrong("mask-not-regrouped")
def as_it_came(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen, q, k, v, visible)


@wrong("mask-not-regrouped")
def inserted_axis(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen.unsqueeze(1), q, k, v, visible)


@wrong("mask-not-regrouped")
def inserted_member_axis(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen.unsqueeze(2), q, k, v, visible)


@wrong("mask-not-regrouped")
def of_the_first_g_heads(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen[:, :n[2]].unsqueeze(2), q, k, v, visible)


@wrong("mask-not-regrouped")
def of_the_first_member(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen[:, ::n[3]].unsqueeze(2), q, k, v, visible)


@wrong("mask-not-regrouped")
def of_the_first_head(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen[:, :1].unsqueeze(2), q, k, v, visible)


@wrong("mask-not-regrouped")
def in_the_other_order(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen.unsqueeze(1) if seen.shape[1] == 1 else
                      seen.unflatten(1, (n[3], n[2])).transpose(1, 2), q, k, v, visible)


@wrong("mask-not-regrouped")
def on_folded_scores(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = q.reshape(b, g, r * t, d) @ k.mT / d**0.5
    return (_weights(scores, visible) @ v).view(b, h, t, -1)


@wrong("scale-by-value-width")
def scale_by_value_width(q, k, v, visible=None):
    """Scores are divided by the root of D, the width that queries and keys share; D_v has no part in them."""
    b, h, g, r, t, s, _ = _checked(q, k, visible)
    scores = q.reshape(b, g, r * t, -1) @ k.mT / v.shape[-1]**0.5
    weights = _weights(scores.view(b, h, t, s), visible)
    return (weights.view(b, g, r * t, s) @ v).view(b, h, t, -1)
