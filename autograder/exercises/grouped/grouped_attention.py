"""H query heads over G key/value heads, without a repeated key or value."""
import math

import torch
from einops import einsum, rearrange
from torch.nn import functional as F

from ... import expect, standard
from ...coordinates import head_map, visible_sets
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch, Observation
from ._attend import attend, heads_read, scattered

NAME = "grouped_attention"
exercise = Exercise(
    NAME, step=3, points=5, minutes=14, difficulty=4, importance=5,
    summary="Attention of H query heads over G key/value heads that never repeats a key or a value.",
    hints=(
        "Four query heads read one key/value head. For that key/value head, is there a difference between four heads "
        "with T queries each and one head with 4·T queries?",
        "Give the query heads two axes, group and member. Which axes have to meet in the product with the keys, and "
        "can the member axis ride along with the queries?",
        "What has been regrouped for the product has its own scores for every query head. A mask may differ from query "
        "head to query head too: bring scores and mask into one order before you apply it.",
    ),
    hides="G = 1 and R = 1 hide tiled groups; a mask that all heads share hides a mask that was not regrouped; values "
          "alone hide every copy.",
)
NAMES = ("batch", "head", "query", "channel")
SIZES, OTHER = (2, 12, 3, 5, 7, 8, 8), (3, 8, 2, 4, 6, 3, 5)  # batch, H, G, T, S, D, D_v


def _inputs(sizes, seed=1):
    batch, heads, groups, queries, keys, width, wide = sizes
    return (standard.normal(batch, heads, queries, width, seed=seed),
            standard.normal(batch, groups, keys, width, seed=seed + 1),
            standard.normal(batch, groups, keys, wide, seed=seed + 2))


def oracle(q, k, v, visible=None):
    return attend(q, k, v, visible)[0]


def _close(lab, *args, **kwargs):
    expect.close(lab.call(NAME, *args, **kwargs), oracle(*args, **kwargs), "heads", NAMES)


def _map(lab, sizes):
    """Values that name their key/value head."""
    batch, heads, groups, queries, keys, width, wide = sizes
    q, k, _ = _inputs(sizes)
    markers = 10.0 ** torch.arange(groups, dtype=torch.float64)
    v = markers[None, :, None, None].expand(batch, groups, keys, wide).contiguous()
    got, want = lab.call(NAME, q, k, v), oracle(q, k, v)
    expect.shape(got, want.shape, "heads", "[B,H,T,D_v]")
    expect.dtype(got, want.dtype, "heads")
    found, size = head_map(got[0, :, 0, 0], markers), heads // groups
    wrong = [h for h in range(heads) if found[h] != h // size]
    if wrong:
        head = wrong[0]
        reads = "no single key/value head" if found[head] is None else f"key/value head {found[head]}"
        raise Mismatch(f"the values of query head {head} come from {reads}, expected {head // size}; by query head: "
                       f"{heads_read(found)}")
    expect.close(got, want, "heads", NAMES)


@exercise.case("values that name their head: which key/value head does each query head read? G: B2 H12 G3")
def which(lab):
    _map(lab, SIZES)


@exercise.case("real numbers, G: B2 H12 G3 T5 S7 D8")
def numbers(lab):
    _close(lab, *_inputs(SIZES))


@exercise.case("other sizes, values wider than keys: B3 H8 G2 T4 S6 D3 D_v5")
def other(lab):
    _close(lab, *_inputs(OTHER, seed=11))


def _averages(lab, visible, sizes=SIZES):
    """Equal scores and V[key] = 2^key: which keys does each query average?"""
    batch, heads, groups, queries, keys, width, wide = sizes
    q = torch.zeros(batch, heads, queries, width, dtype=torch.float64)
    _, k, _ = _inputs(sizes)
    v = (2.0 ** torch.arange(keys, dtype=torch.float64))[None, None, :, None].expand(batch, groups, keys, wide).clone()
    got, want = lab.call(NAME, q, k, v, visible), oracle(q, k, v, visible)
    expect.shape(got, want.shape, "heads", "[B,H,T,D_v]")
    expect.dtype(got, want.dtype, "heads")
    ours, theirs = (visible_sets(t[..., 0], keys) for t in (got, want))
    for at, (mine, due) in enumerate(zip(ours, theirs, strict=True)):
        if mine != due and due is not None:
            rest, query = divmod(at, queries)
            sample, head = divmod(rest, heads)
            averaged = "no plain average of keys" if mine is None else f"the average of keys {_set(mine)}"
            raise Mismatch(f"sample {sample}, query head {head}, query {query} shows {averaged}, expected that of "
                           f"{_set(due)}")
    expect.close(got, want, "heads", NAMES)


def _set(keys):
    return "{" + ",".join(map(str, sorted(keys))) + "}"


def _shifted(heads, queries, keys):
    """[1,H,T,S]: query head h sees key t + h (modulo S) and the one after it."""
    first = (torch.arange(heads)[:, None, None] + torch.arange(queries)[:, None]) % keys
    return ((torch.arange(keys) - first) % keys < 2)[None]


@exercise.case("a mask for every query head [1,H,T,S]")
def each_head(lab):
    _averages(lab, _shifted(12, 5, 7))


@exercise.case("a mask for every sample and query head [B,H,T,S]")
def everything(lab):
    _close(lab, *_inputs(SIZES, seed=21), scattered(2, 12, 5, 7))


@exercise.case("a padding mask [B,1,1,S]")
def padding(lab):
    _averages(lab, (torch.arange(7) < torch.tensor([[6], [4]]))[:, None, None])


@exercise.case("a mask for every query [1,1,T,S]")
def rectangle(lab):
    _averages(lab, torch.ones(5, 7, dtype=torch.bool).tril(2)[None, None])


standard.tensor_cases(exercise, lambda: (_inputs(SIZES, seed=31), {"visible": scattered(2, 12, 5, 7, seed=34)}),
                      oracle, NAMES)


@exercise.case("one key/value head for all, and one for each", CONTRACT)
def ends(lab):
    _close(lab, *_inputs((2, 6, 1, 4, 5, 3, 3), seed=41))
    _close(lab, *_inputs((2, 6, 6, 4, 5, 3, 3), seed=44))


def _copies(lab, visible):
    """No new storage of B·H·S·D elements or more, at B2 H12 G3 T2 S40 D16."""
    q, k, v = _inputs((2, 12, 3, 2, 40, 16, 16), seed=51)
    got = lab.call(NAME, q, k, v, visible, count=True)
    counts, full = lab.last.counts, 2 * 12 * 40 * 16
    large = [(size // 8, shape) for size, shape in zip(counts["new_storages"], counts["new_shapes"], strict=True)
             if size // 8 >= full]
    inside = [s for _, s in large if list(s[-2:]) == [16, 40]]
    lab.transcript.append(Observation("copies", value="none" if not large else "inside" if inside else "before"))
    expect.close(got, oracle(q, k, v, visible), "heads", NAMES)
    if large:
        where = (f"a transposed key of shape {inside[0]} among them: the product itself copied it" if inside
                 else f"the first one appears as {large[0][1]}")
        raise Mismatch(f"{len(large)} new tensors hold {large[0][0]:,} elements ({large[0][0] * 8:,} bytes) or more, as "
                       f"many as keys for all 12 query heads, B·H·S·D = {full:,}; compact keys have {full // 4:,}; {where}")


@exercise.case("allocates no tensor of B·H·S·D elements: B2 H12 G3 T2 S40 D16", CONTRACT)
def compact(lab):
    _copies(lab, None)


@exercise.case("nor under a mask", CONTRACT)
def compact_masked(lab):
    _copies(lab, scattered(2, 1, 1, 40, seed=60))


@exercise.case("refuses 12 query heads over 5 key/value heads", CONTRACT)
def uneven(lab):
    lab.raises(ValueError, "divisible", NAME, torch.ones(2, 12, 5, 8), torch.ones(2, 5, 7, 8), torch.ones(2, 5, 7, 8))


@exercise.case("refuses a query without a visible key, in one query head", CONTRACT)
def dead(lab):
    visible = scattered(2, 12, 5, 7)
    visible[1, 7, 3] = False
    lab.raises(ValueError, "no visible key", NAME, *(x.float() for x in _inputs(SIZES)), visible)


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


@exercise.right
def group_folded_into_queries(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = q.reshape(b, g, r * t, d) @ k.mT / math.sqrt(d)
    weights = _weights(scores.view(b, h, t, s), visible)
    return (weights.view(b, g, r * t, s) @ v).view(b, h, t, -1)


@exercise.right
def einsum_with_a_member_axis(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = torch.einsum("bgrtd,bgsd->bgrts", q.unflatten(1, (g, r)), k) * d**-0.5
    if visible is not None:
        seen = visible.expand(b, h, t, s).unflatten(1, (g, r))
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("bgrts,bgsd->bgrtd", scores.softmax(-1), v).flatten(1, 2)


@exercise.right
def loop_over_query_heads(q, k, v, visible=None):
    b, h, _, r, t, s, d = _checked(q, k, visible)
    seen = None if visible is None else visible.expand(b, h, t, s)
    heads = []
    for i in range(h):
        scores = q[:, i] @ k[:, i // r].transpose(1, 2) / d**0.5
        weights = _weights(scores, None if seen is None else seen[:, i])
        heads.append(weights @ v[:, i // r])
    return torch.stack(heads, 1)


@exercise.right
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


@exercise.right
def sdpa_with_enable_gqa(q, k, v, visible=None):
    _checked(q, k, visible)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)


@exercise.right
def by_einops(q, k, v, visible=None):
    b, h, g, _, t, s, d = _checked(q, k, visible)
    folded = rearrange(q, "b (g r) t d -> b g (r t) d", g=g)
    scores = rearrange(einsum(folded, k, "b g n d, b g s d -> b g n s"), "b g (r t) s -> b (g r) t s", t=t) / d**0.5
    weights = rearrange(_weights(scores, visible), "b (g r) t s -> b g (r t) s", g=g)
    return rearrange(einsum(weights, v, "b g n s, b g s e -> b g n e"), "b g (r t) e -> b (g r) t e", t=t)


@exercise.right
def groups_in_the_batch(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = torch.bmm(q.reshape(b * g, r * t, d), k.reshape(b * g, s, d).transpose(1, 2)) * d**-0.5
    weights = _weights(scores.view(b, h, t, s), visible).view(b * g, r * t, s)
    return torch.bmm(weights, v.reshape(b * g, s, -1)).view(b, h, t, -1)


@exercise.right
def in_float64(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = q.double().reshape(b, g, r * t, d) @ k.double().mT / d**0.5
    weights = _weights(scores.view(b, h, t, s), visible)
    return (weights.view(b, g, r * t, s) @ v.double()).view(b, h, t, -1).to(q.dtype)


@exercise.right
def members_in_the_queries_of_sdpa(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    mask = None if visible is None else visible.expand(b, h, t, s).reshape(b, g, r * t, s)
    return F.scaled_dot_product_attention(q.reshape(b, g, r * t, d), k, v, attn_mask=mask).view(b, h, t, -1)


@exercise.right
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


@exercise.wrong
def memory_repeated(q, k, v, visible=None):
    """The full K and V were built, one copy for every query head: values are right, and the memory that grouping saves is
    spent in the call."""
    r = _checked(q, k, visible)[3]
    return _repeated(q, k, v, visible, lambda x: x.repeat_interleave(r, dim=1))


@exercise.wrong(id="memory-repeated")
def expanded_then_reshaped(q, k, v, visible=None):
    b, h, g, r, _, s, _ = _checked(q, k, visible)
    return _repeated(q, k, v, visible, lambda x: x[:, :, None].expand(b, g, r, s, x.shape[-1]).reshape(b, h, s, -1))


@exercise.wrong(id="memory-repeated")
def indexed(q, k, v, visible=None):
    r = _checked(q, k, visible)[3]
    return _repeated(q, k, v, visible, lambda x: x[:, torch.arange(q.shape[1]) // r])


@exercise.wrong(id="memory-repeated")
def repeated_for_sdpa(q, k, v, visible=None):
    r = _checked(q, k, visible)[3]
    k, v = (x.repeat_interleave(r, dim=1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


@exercise.wrong
def broadcast_matmul(q, k, v, visible=None):
    """Matmul over an inserted axis clones K (and V) for every member of the group: broadcasting is free until a batched
    product needs its operands in memory."""
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = q.reshape(b, g, r, t, d) @ k[:, :, None].mT / d**0.5
    weights = _weights(scores.view(b, h, t, s), visible).view(b, g, r, t, s)
    return (weights @ v[:, :, None]).view(b, h, t, -1)


@exercise.wrong
def tiled_groups(q, k, v, visible=None):
    """Queries h, h+G, … shared a head. The function is one of the same family, but your head layout differs from the
    contract, and a checkpoint would meet the wrong keys."""
    b, h, g, r, t, s, d = _checked(q, k, visible)
    folded = q.unflatten(1, (r, g)).transpose(1, 2).reshape(b, g, r * t, d)
    scores = (folded @ k.mT / d**0.5).view(b, g, r, t, s).transpose(1, 2).reshape(b, h, t, s)
    weights = _weights(scores, visible).unflatten(1, (r, g)).transpose(1, 2).reshape(b, g, r * t, s)
    return (weights @ v).view(b, g, r, t, -1).transpose(1, 2).reshape(b, h, t, -1)


@exercise.wrong(id="tiled-groups")
def tiled_by_repeat(q, k, v, visible=None):
    r = _checked(q, k, visible)[3]
    return _repeated(q, k, v, visible, lambda x: x.repeat(1, r, 1, 1))


@exercise.wrong
def queries_averaged(q, k, v, visible=None):
    """Query heads were reduced to G; every query head keeps its own scores."""
    b, h, g, r, t, s, d = _checked(q, k, visible)
    few = q.unflatten(1, (g, r)).mean(2)
    seen = None if visible is None else visible.expand(b, h, t, s)[:, ::r]
    return (_weights(few @ k.mT / d**0.5, seen) @ v).repeat_interleave(r, dim=1)


@exercise.wrong(id="queries-averaged")
def g_heads_returned(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    few = q.unflatten(1, (g, r)).mean(2)
    seen = None if visible is None else visible.expand(b, h, t, s)[:, ::r]
    return _weights(few @ k.mT / d**0.5, seen) @ v


@exercise.wrong(id="queries-averaged")
def queries_summed(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    few = q.unflatten(1, (g, r)).sum(2)
    seen = None if visible is None else visible.expand(b, h, t, s)[:, ::r]
    return (_weights(few @ k.mT / d**0.5, seen) @ v).repeat_interleave(r, dim=1)


@exercise.wrong(id="queries-averaged")
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


@exercise.wrong
def softmax_over_group(q, k, v, visible=None):
    """The group axis was normalised: members of a group compete for a pair. Every query distributes over the keys."""
    return _softmax_over(2, q, k, v, visible)


@exercise.wrong(id="softmax-over-group")
def over_the_groups(q, k, v, visible=None):
    return _softmax_over(1, q, k, v, visible)


@exercise.wrong(id="softmax-over-group")
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


@exercise.wrong
def mask_not_regrouped(q, k, v, visible=None):
    """A per-head mask must be folded like the queries: its head axis is group and member too."""
    return _regrouped(lambda seen, n: seen[:, None] if seen.shape[1] == 1 else seen, q, k, v, visible)


@exercise.wrong(id="mask-not-regrouped")
def as_it_came(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen, q, k, v, visible)


@exercise.wrong(id="mask-not-regrouped")
def inserted_axis(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen.unsqueeze(1), q, k, v, visible)


@exercise.wrong(id="mask-not-regrouped")
def inserted_member_axis(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen.unsqueeze(2), q, k, v, visible)


@exercise.wrong(id="mask-not-regrouped")
def of_the_first_g_heads(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen[:, :n[2]].unsqueeze(2), q, k, v, visible)


@exercise.wrong(id="mask-not-regrouped")
def of_the_first_member(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen[:, ::n[3]].unsqueeze(2), q, k, v, visible)


@exercise.wrong(id="mask-not-regrouped")
def of_the_first_head(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen[:, :1].unsqueeze(2), q, k, v, visible)


@exercise.wrong(id="mask-not-regrouped")
def in_the_other_order(q, k, v, visible=None):
    return _regrouped(lambda seen, n: seen.unsqueeze(1) if seen.shape[1] == 1 else
                      seen.unflatten(1, (n[3], n[2])).transpose(1, 2), q, k, v, visible)


@exercise.wrong(id="mask-not-regrouped")
def on_folded_scores(q, k, v, visible=None):
    b, h, g, r, t, s, d = _checked(q, k, visible)
    scores = q.reshape(b, g, r * t, d) @ k.mT / d**0.5
    return (_weights(scores, visible) @ v).view(b, h, t, -1)


@exercise.recognise("mask-not-regrouped")
def only_the_per_head_masks_fail(trials):
    """Right without a mask and under masks that all heads share; an error where query heads differ."""
    by = {t.case.probe: t for t in trials}
    shared = all(by[p].passed for p in (which, numbers, other, padding, rectangle))
    return shared and not by[each_head].passed and not by[everything].passed and all(
        by[p].transcript and (by[p].transcript[-1].error or "").startswith("RuntimeError") for p in (each_head, everything))


@exercise.wrong
def scale_by_value_width(q, k, v, visible=None):
    """Scores are divided by the root of D, the width that queries and keys share; D_v has no part in them."""
    b, h, g, r, t, s, _ = _checked(q, k, visible)
    scores = q.reshape(b, g, r * t, -1) @ k.mT / v.shape[-1]**0.5
    weights = _weights(scores.view(b, h, t, s), visible)
    return (weights.view(b, g, r * t, s) @ v).view(b, h, t, -1)
