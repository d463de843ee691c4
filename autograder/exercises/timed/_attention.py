"""What `batched_attention` and `attention_without_query_loop` share: the oracle, the counted promises, the programs."""
import math
from collections.abc import Callable

import torch
from torch.nn import functional as F

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Lab
from ...standard import normal

NAMES = ("batch", "head", "query", "channel")
K = dict(batch=2, heads=3, t=33, s=70, d=16)
X = dict(batch=3, heads=3, t=6, s=6, d=4)
MOST_PRODUCTS = 2


def make(batch, heads, t, s, d, d_v=None, seed=0, dtype=torch.float64):
    """(q, k, v) of random numbers."""
    return tuple(normal(batch, heads, n, width, seed=seed + i, dtype=dtype)
                 for i, (n, width) in enumerate(((t, d), (s, d), (s, d_v or d))))


def oracle(q, k, v, visible=None):
    """Sample by sample and head by head, in the order of the definition."""
    if visible is not None:
        visible = visible.expand(*q.shape[:3], k.shape[2])
    rows = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            weights = torch.einsum("td,sd->ts", q[b, h], k[b, h]).div(math.sqrt(q.shape[-1])).exp()
            weights = weights if visible is None else weights * visible[b, h]
            rows.append(torch.einsum("ts,sd->td", weights / weights.sum(-1, keepdim=True), v[b, h]))
    return torch.stack(rows).unflatten(0, q.shape[:2])


def products(counts: dict) -> int:
    """How many products a call asked for; one fused attention operator is one."""
    return counts["contractions"] + sum(n for name, n in counts["operators"].items() if "scaled_dot_product" in name)


def counted(exercise: Exercise) -> None:
    """The promises of both exercises: at most two products, and no tensor of every product of two channels."""
    @exercise.case("all heads, samples and queries in at most two products", CONTRACT)
    def few_products(lab: Lab):
        q, k, v = make(**K)
        lab.call(exercise.name, q, k, v, count=True, watch=("counts",))
        asked = products(lab.last.counts)
        expect.true(asked <= MOST_PRODUCTS, f"{asked} products were dispatched{_spelled(asked)}; {MOST_PRODUCTS} are "
                                            "enough for all of B2 H3 T33")

    @exercise.case("no tensor of B·H·T·S·D elements on the way", CONTRACT)
    def no_pairwise(lab: Lab):
        q, k, v = make(**K)
        lab.call(exercise.name, q, k, v, count=True, watch=("counts",))
        largest, bound = max(lab.last.counts["new_storages"], default=0), _pairwise_bytes()
        expect.true(largest < bound, f"a storage of {largest:,} bytes was made; B·H·T·S·D elements are {bound:,} "
                                     f"bytes, the scores B·H·T·S are {bound // K['d']:,}")

    @exercise.recognise("loop-over-heads")
    def heads_one_by_one(trials):
        return _products_of(trials) in _multiples(K["heads"])

    @exercise.recognise("loop-over-queries")
    def queries_one_by_one(trials):
        return _products_of(trials) in _multiples(K["t"])

    @exercise.recognise("pairwise-product-stored")
    def pairs(trials):
        return any(t.case.title.startswith("no tensor of") and not t.passed and "a storage of" in t.message
                   for t in trials)


def _pairwise_bytes() -> int:
    return 8 * math.prod(K.values())


def _multiples(axis: int) -> set[int]:
    """What a loop over this axis, alone or with the axes outside it, asks for: one or two products a turn."""
    batch, heads = K["batch"], K["heads"]
    outside = {1, batch} if axis == heads else {1, batch, heads, batch * heads}
    return {turns * axis * each for turns in outside for each in (1, 2)} - {1, 2}


def _products_of(trials) -> int:
    """The number of products of the counting case, if that is what failed."""
    for trial in trials:
        if trial.case.title.startswith("all heads, samples") and not trial.passed and trial.transcript:
            value = trial.transcript[-1].value
            if isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict):
                return products(value[1])
    return 0


def _spelled(asked: int) -> str:
    for each in (2, 1):
        for name, turns in (("heads", K["heads"]), ("samples and heads", K["batch"] * K["heads"]),
                            ("queries", K["t"]), ("samples", K["batch"])):
            if asked == each * turns:
                return f", {each} for each of {turns} {name}"
    return ""


def eager(q, k, v, visible=None):
    """Matmul, softmax, matmul."""
    return hidden(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), visible).softmax(-1) @ v


def hidden(scores, visible):
    """Scores with -inf where a query may not look. ValueError for a query without a visible key."""
    if visible is None:
        return scores
    if not visible.any(-1).all():
        raise ValueError("no visible key")
    return scores.masked_fill(~visible, -torch.inf)


def declare(exercise: Exercise, adapt: Callable[[Callable], Callable] = lambda program: program) -> None:
    """The programs of both exercises, each over (q, k, v, visible); `adapt` gives them the exercise's arguments."""
    for program in RIGHTS:
        exercise.right(adapt(program))
    for id_, spellings in WRONGS.items():
        for program in spellings:
            exercise.wrong(adapt(program), id=id_)


def matmul(q, k, v, visible=None):
    return eager(q, k, v, visible)


def einsum(q, k, v, visible=None):
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhts,bhsv->bhtv", hidden(scores, visible).softmax(-1), v)


def sdpa(q, k, v, visible=None):
    hidden(q[..., :1], visible if visible is None else visible.any(-1, keepdim=True))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def folded(q, k, v, visible=None):
    """Samples and heads as one batch axis."""
    scores = torch.baddbmm(q.new_zeros(1), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=1 / math.sqrt(q.shape[-1]))
    weights = hidden(scores.unflatten(0, q.shape[:2]), visible).softmax(-1)
    return torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).unflatten(0, q.shape[:2])


def exponentials(q, k, v, visible=None):
    """The softmax by hand, divided after the second product."""
    scores = hidden(q.mul(q.shape[-1] ** -0.5) @ k.mT, visible)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights @ v / weights.sum(-1, keepdim=True)


def vmapped(q, k, v, visible=None):
    """Written for one head, mapped over heads and samples."""
    def head(q, k, v, bias):
        return (q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1) @ v
    bias = hidden(q.new_zeros(*q.shape[:3], k.shape[2]), visible)
    return torch.vmap(torch.vmap(head))(q, k, v, bias)


def _rows(visible, q, k):
    """The mask with all four axes in full, or None."""
    return None if visible is None else visible.expand(*q.shape[:3], k.shape[2])


def _at(mask, *index):
    return None if mask is None else mask[index]


ALL = slice(None)


def heads_stacked(q, k, v, visible=None):
    """Values are right; the heads went through one at a time, a small product for each."""
    mask = _rows(visible, q, k)
    return torch.stack([eager(q[:, h], k[:, h], v[:, h], _at(mask, ALL, h)) for h in range(q.shape[1])], dim=1)


def samples_and_heads(q, k, v, visible=None):
    mask = _rows(visible, q, k)
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            out[b, h] = eager(q[b, h], k[b, h], v[b, h], _at(mask, b, h))
    return out


def fused_head_by_head(q, k, v, visible=None):
    return torch.cat([sdpa(q[:, h:h + 1], k[:, h:h + 1], v[:, h:h + 1], _at(_rows(visible, q, k), ALL, slice(h, h + 1)))
                      for h in range(q.shape[1])], dim=1)


def queries_joined(q, k, v, visible=None):
    """Values are right; the queries went through one at a time, and T products were dispatched."""
    mask = _rows(visible, q, k)
    return torch.cat([eager(q[:, :, t:t + 1], k, v, _at(mask, ALL, ALL, slice(t, t + 1))) for t in range(q.shape[2])],
                     dim=2)


def queries_stacked(q, k, v, visible=None):
    mask = _rows(visible, q, k)
    rows = []
    for t in range(q.shape[2]):
        scores = torch.einsum("bhd,bhsd->bhs", q[:, :, t], k) / math.sqrt(q.shape[-1])
        rows.append(torch.einsum("bhs,bhsv->bhv", hidden(scores, _at(mask, ALL, ALL, t)).softmax(-1), v))
    return torch.stack(rows, dim=2)


def fused_query_by_query(q, k, v, visible=None):
    mask = _rows(visible, q, k)
    return torch.cat([sdpa(q[:, :, t:t + 1], k, v, _at(mask, ALL, ALL, slice(t, t + 1))) for t in range(q.shape[2])], 2)


def pairs_summed(q, k, v, visible=None):
    """Values are right; a [B,H,T,S,D] tensor of every product of two channels was built before it was summed."""
    scores = (q[:, :, :, None] * k[:, :, None]).sum(-1) / math.sqrt(q.shape[-1])
    return hidden(scores, visible).softmax(-1) @ v


def values_weighted_and_summed(q, k, v, visible=None):
    weights = hidden(q @ k.mT / math.sqrt(q.shape[-1]), visible).softmax(-1)
    return (weights[..., None] * v[:, :, None]).sum(3)


RIGHTS = (matmul, einsum, sdpa, folded, exponentials, vmapped)
WRONGS = {"loop-over-heads": (heads_stacked, samples_and_heads, fused_head_by_head),
          "loop-over-queries": (queries_joined, queries_stacked, fused_query_by_query),
          "pairwise-product-stored": (pairs_summed, values_weighted_and_summed)}
