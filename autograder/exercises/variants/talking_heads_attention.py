"""Talking-Heads: linear maps over the head axis, on both sides of the softmax."""
import math

import torch
from torch.nn import functional as F

from ... import expect, standard
from ...exercise import CONTRACT, VALUES, Exercise
from ...nested import nested_cases, structure

exercise = Exercise(
    "talking_heads_attention", step=2, points=4, minutes=9, difficulty=3, importance=4,
    summary="Mix logits over the head axis before softmax and weights over it after softmax, with three head counts.",
    hints=(
        "Keep a list of axes: logits have H_k heads, what softmax sees has H_s, what the values meet has H_v. At which "
        "line does each count change into the next?",
        "Both maps are products over the head axis alone; queries and keys only come along. `einsum` with a letter for "
        "each head count says that directly.",
        "A blocked pair must be out of the softmax of every H_s head. Which tensor has those heads, and what would a "
        "product of minus infinity with a negative number do to it?",
    ),
    hides="H_k = H_s = H_v lets a transposed map run, and a symmetric map hides it; identity maps hide every order; "
          "maps without negative entries hide a mask that came too early, if it is finite.",
)

LABELS = {0: "heads", 1: "weights"}
ARGUMENTS = ("q", "k", "v", "mix_logits", "mix_weights")
V = dict(batch=2, logit_heads=3, softmax_heads=4, value_heads=5, queries=6, keys=7, d_qk=8, d_v=9)
SQUARE = V | dict(logit_heads=3, softmax_heads=3, value_heads=3)


def inputs(batch, logit_heads, softmax_heads, value_heads, queries, keys, d_qk, d_v):
    """q, k, v and two maps with entries of both signs."""
    return (standard.normal(batch, logit_heads, queries, d_qk, seed=1),
            standard.normal(batch, logit_heads, keys, d_qk, seed=2),
            standard.normal(batch, value_heads, keys, d_v, seed=3),
            0.5 * standard.normal(logit_heads, softmax_heads, seed=4),
            0.5 * standard.normal(softmax_heads, value_heads, seed=5))


def shared_mask(batch, queries, keys, **_):
    """[B,1,T,S]: another third of the keys blocked for every sample and query, and key 4 for all of them."""
    key = torch.arange(keys)
    place = torch.arange(batch)[:, None, None] + torch.arange(queries)[:, None] + key
    return ((place % 3 != 0) & (key != 4))[:, None]


def mask_per_head(batch, softmax_heads, queries, keys, **_):
    """[B,H_s,T,S]: another one for every softmax head."""
    place = (torch.arange(batch)[:, None, None, None] + 2 * torch.arange(softmax_heads)[:, None, None]
             + torch.arange(queries)[:, None] + torch.arange(keys))
    return place % 4 != 1


def oracle(q, k, v, mix_logits, mix_weights, visible=None):
    """Head by head, with the softmax written out."""
    logit_heads, softmax_heads = mix_logits.shape
    logits = [q[:, i] @ k[:, i].transpose(1, 2) / math.sqrt(q.shape[-1]) for i in range(logit_heads)]
    rows = []
    for head in range(softmax_heads):
        mixed = sum(mix_logits[i, head] * logits[i] for i in range(logit_heads))
        if visible is not None:
            seen = visible.expand(q.shape[0], softmax_heads, *mixed.shape[1:])[:, head]
            mixed = mixed.masked_fill(~seen, -math.inf)
        powers = (mixed - mixed.amax(-1, keepdim=True)).exp()
        rows.append(powers / powers.sum(-1, keepdim=True))
    weights = torch.stack([sum(mix_weights[s, o] * rows[s] for s in range(softmax_heads))
                           for o in range(mix_weights.shape[1])], dim=1)
    return weights @ v, weights


def _check(lab, args, want, **kwargs):
    got = lab.call("talking_heads_attention", *args, **kwargs)
    structure(got, want, "the result")
    expect.close(got[1], want[1], "weights", ("batch", "value head", "query", "key"))
    expect.close(got[0], want[0], "heads", ("batch", "value head", "query", "channel"))


@exercise.case("three head counts: V, B2 H_k3 H_s4 H_v5 T6 S7 D8 D_v9")
def uneven(lab):
    _check(lab, inputs(**V), oracle(*inputs(**V)))


@exercise.case("one head count and maps that are not symmetric: H_k = H_s = H_v = 3")
def square(lab):
    _check(lab, inputs(**SQUARE), oracle(*inputs(**SQUARE)))


@exercise.case("identity maps are classic attention, under a mask: H3 T6 S7")
def identity(lab):
    q, k, v, *_ = inputs(**SQUARE)
    eye, visible = torch.eye(3, dtype=q.dtype), shared_mask(**SQUARE)
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    keys = torch.eye(7, dtype=q.dtype).expand(2, 3, 7, 7)
    weights = F.scaled_dot_product_attention(q, k, keys, attn_mask=visible)
    _check(lab, (q, k, v, eye, eye), (heads, weights), visible=visible)


@exercise.case("a mask that all heads share, with maps of both signs")
def masked(lab):
    visible = shared_mask(**V)
    _check(lab, inputs(**V), oracle(*inputs(**V), visible), visible=visible)


@exercise.case("a mask of its own for each of the H_s softmax heads")
def masked_per_head(lab):
    visible = mask_per_head(**V)
    _check(lab, inputs(**V), oracle(*inputs(**V), visible), visible=visible)


nested_cases(exercise, lambda: (inputs(**V), {"visible": shared_mask(**V)}), oracle, ARGUMENTS, LABELS)


@exercise.case("refuses a query that may look at nothing", CONTRACT)
def blind(lab):
    visible = shared_mask(**V).clone()
    visible[1, 0, 2] = False
    lab.raises(ValueError, "no visible key", "talking_heads_attention", *inputs(**V), visible=visible)


def _logits(q, k):
    return torch.einsum("bktd,bksd->bkts", q, k) / math.sqrt(q.shape[-1])


def _masked(logits, visible):
    if visible is None:
        return logits
    if not visible.any(-1).all():
        raise ValueError("a query has no visible key")
    return logits.masked_fill(visible.logical_not(), float("-inf"))


@exercise.right
def einsum(q, k, v, mix_logits, mix_weights, visible=None):
    mixed = torch.einsum("bkts,kh->bhts", _logits(q, k), mix_logits)
    weights = torch.einsum("bhts,hv->bvts", _masked(mixed, visible).softmax(-1), mix_weights)
    return torch.einsum("bvts,bvsd->bvtd", weights, v), weights


@exercise.right
def product_on_a_moved_axis(q, k, v, mix_logits, mix_weights, visible=None):
    mixed = (_logits(q, k).movedim(1, -1) @ mix_logits).movedim(-1, 1)
    weights = (_masked(mixed, visible).softmax(-1).movedim(1, -1) @ mix_weights).movedim(-1, 1)
    return weights @ v, weights


@exercise.right
def convolutions_of_size_one(q, k, v, mix_logits, mix_weights, visible=None):
    mixed = F.conv2d(_logits(q, k), mix_logits.T[:, :, None, None])
    weights = F.conv2d(_masked(mixed, visible).softmax(-1), mix_weights.T[:, :, None, None])
    return weights @ v, weights


@exercise.right
def loops_over_heads(q, k, v, mix_logits, mix_weights, visible=None):
    logits = _logits(q, k)
    mixed = torch.stack([sum(w * logits[:, i] for i, w in enumerate(column)) for column in mix_logits.T], dim=1)
    rows = _masked(mixed, visible).softmax(-1)
    weights = torch.stack([sum(w * rows[:, i] for i, w in enumerate(column)) for column in mix_weights.T], dim=1)
    return torch.stack([weights[:, i] @ v[:, i] for i in range(v.shape[1])], dim=1), weights


@exercise.right
def wide_queries_into_fused_attention(q, k, v, mix_logits, mix_weights, visible=None):
    if visible is not None and not visible.any(-1).all():
        raise ValueError("a query has no visible key")
    batch, _, keys, width = k.shape
    wide_q = torch.einsum("bktd,kh->bhtkd", q, mix_logits).flatten(3)
    wide_k = k.transpose(1, 2).flatten(2)[:, None].expand(-1, mix_logits.shape[1], -1, -1)
    eye = torch.eye(keys, dtype=v.dtype).expand(batch, mix_logits.shape[1], keys, keys)
    rows = F.scaled_dot_product_attention(wide_q, wide_k, eye, attn_mask=visible, scale=1 / math.sqrt(width))
    weights = torch.einsum("bhts,hv->bvts", rows, mix_weights)
    return weights @ v, weights


@exercise.right
def scaled_at_the_end_of_the_mix(q, k, v, mix_logits, mix_weights, visible=None):
    mixed = torch.tensordot(q @ k.mT, mix_logits, dims=([1], [0])).permute(0, 3, 1, 2) / q.shape[-1] ** 0.5
    if visible is not None:
        if (~visible.any(-1)).any():
            raise ValueError("no visible key for a query")
        mixed = mixed + torch.zeros(visible.shape, dtype=mixed.dtype).masked_fill(~visible, -torch.inf)
    weights = torch.tensordot(mixed.softmax(-1), mix_weights, dims=([1], [0])).permute(0, 3, 1, 2)
    return weights.matmul(v), weights


def _program(q, k, v, mix_logits, mix_weights, visible=None, before=None, after=None, masked=_masked, axis=-1):
    """The right program with a part exchanged. before and after take (tensor, map)."""
    before = before or (lambda x, w: torch.einsum("bkts,kh->bhts", x, w))
    after = after or (lambda x, w: torch.einsum("bhts,hv->bvts", x, w))
    weights = after(masked(before(_logits(q, k), mix_logits), visible).softmax(axis), mix_weights)
    return weights @ v, weights


@exercise.wrong
def mixed_after_softmax(q, k, v, mix_logits, mix_weights, visible=None):
    """Both maps came after the softmax. mix_logits acts on logits: softmax is not linear, so the order changes the
    function."""
    rows = _masked(_logits(q, k), visible).softmax(-1)
    weights = torch.einsum("bkts,kh,hv->bvts", rows, mix_logits, mix_weights)
    return weights @ v, weights


@exercise.wrong
def one_head_count(q, k, v, mix_logits, mix_weights, visible=None):
    """The program knows one number of heads. H_k, H_s and H_v are three numbers, and need not be equal."""
    batch, heads, queries, keys = _logits(q, k).shape

    def mix(x, w):
        return (x.permute(0, 2, 3, 1) @ w).reshape(batch, queries, keys, heads).permute(0, 3, 1, 2)
    return _program(q, k, v, mix_logits, mix_weights, visible, before=mix, after=mix)


@exercise.wrong(id="one-head-count")
def loops_over_the_query_heads(q, k, v, mix_logits, mix_weights, visible=None):
    count = range(q.shape[1])
    logits = _logits(q, k)
    mixed = torch.stack([sum(mix_logits[i, o] * logits[:, i] for i in count) for o in count], dim=1)
    rows = _masked(mixed, visible).softmax(-1)
    weights = torch.stack([sum(mix_weights[i, o] * rows[:, i] for i in count) for o in count], dim=1)
    return torch.stack([weights[:, i] @ v[:, i] for i in count], dim=1), weights


@exercise.recognise("one-head-count")
def only_equal_counts(trials):
    """Right where the three counts agree, an error or a wrong shape wherever they do not."""
    values = [t for t in trials if t.case.kind == VALUES]
    even = [t for t in values if t.case.probe in (square, identity)]
    others = [t for t in values if t not in even]
    return all(t.passed for t in even) and not any(t.passed for t in others) and all(
        t.transcript and (t.transcript[-1].error or "has shape" in t.message) for t in others)


@exercise.wrong
def map_transposed(*args, **kwargs):
    """A map was read the wrong way round. Row k and column h of mix_logits lead from logit head k to softmax head h,
    and mix_weights leads from softmax heads to value heads in the same way."""
    return _program(*args, **kwargs, before=lambda x, w: torch.einsum("bkts,hk->bhts", x, w))


@exercise.wrong(id="map-transposed")
def the_second_map(*args, **kwargs):
    return _program(*args, **kwargs, after=lambda x, w: torch.einsum("bhts,vh->bvts", x, w))


@exercise.wrong(id="map-transposed")
def both_maps(*args, **kwargs):
    return _program(*args, **kwargs, before=lambda x, w: torch.einsum("bkts,hk->bhts", x, w),
                    after=lambda x, w: torch.einsum("bhts,vh->bvts", x, w))


def _then(change):
    """The mixed weights, changed before they meet the values."""
    def after(x, w):
        return change(torch.einsum("bhts,hv->bvts", x, w))
    return after


@exercise.wrong
def weights_renormalised(*args, **kwargs):
    """The mixed weights were made a distribution again. They are a linear mix: they may be negative, and need not sum
    to one."""
    return _program(*args, **kwargs, after=_then(lambda u: u / u.sum(-1, keepdim=True)))


@exercise.wrong(id="weights-renormalised")
def a_second_softmax(*args, **kwargs):
    return _program(*args, **kwargs, after=_then(lambda u: u.softmax(-1)))


@exercise.wrong(id="weights-renormalised")
def negative_weights_cut(*args, **kwargs):
    return _program(*args, **kwargs, after=_then(torch.relu))


@exercise.wrong(id="weights-renormalised")
def sizes_normalised(*args, **kwargs):
    return _program(*args, **kwargs, after=_then(lambda u: u / u.abs().sum(-1, keepdim=True)))


@exercise.wrong(id="weights-renormalised")
def a_convex_map(*args, **kwargs):
    return _program(*args, **kwargs, after=lambda x, w: torch.einsum("bhts,hv->bvts", x, w.softmax(0)))


@exercise.wrong(id="weights-renormalised")
def only_the_returned_ones(*args, **kwargs):
    heads, weights = _program(*args, **kwargs)
    return heads, weights / weights.sum(-1, keepdim=True)


def _mask_first(fill):
    def program(q, k, v, mix_logits, mix_weights, visible=None):
        logits = _masked(_logits(q, k), visible)
        logits = torch.where(logits.isneginf(), torch.full_like(logits, fill), logits)
        mixed = torch.einsum("bkts,kh->bhts", logits, mix_logits)
        weights = torch.einsum("bhts,hv->bvts", mixed.softmax(-1), mix_weights)
        return weights @ v, weights
    return program


@exercise.wrong
def mask_before_mixing(*args, **kwargs):
    """The mask came before mix_logits. Minus infinity times a negative number, or times zero, is no mask: blocked keys
    open, or everything is NaN. Mix first, then block."""
    return _mask_first(-torch.inf)(*args, **kwargs)


@exercise.wrong(id="mask-before-mixing")
def with_a_large_number(*args, **kwargs):
    return _mask_first(-1e9)(*args, **kwargs)


@exercise.wrong(id="mask-before-mixing")
def with_the_smallest_number(*args, **kwargs):
    return _mask_first(torch.finfo(torch.float64).min)(*args, **kwargs)


@exercise.wrong(id="mask-before-mixing")
def with_ten_thousand(*args, **kwargs):
    return _mask_first(-1e4)(*args, **kwargs)


@exercise.wrong
def heads_normalised(*args, **kwargs):
    """Softmax ran over the head axis. Each softmax head is normalised over its keys."""
    return _program(*args, **kwargs, axis=1)
