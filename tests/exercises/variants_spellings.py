"""Programs of session 09 as other people write them: (exercise, id or None for a right one, program)."""
import math

import torch
from einops import einsum as einops_einsum
from einops import rearrange
from torch.nn import functional as F

PROGRAMS = []


def says(exercise, id_):
    def add(program):
        PROGRAMS.append((exercise, id_, program))
        return program
    return add


def refuse(condition, word):
    if condition:
        raise ValueError(word)


# --- overlapping heads ---

@says("overlap_heads", None)
def rearranged(packed, num_heads, overlap):
    refuse(not 0 <= overlap <= packed.shape[-1] // num_heads, "overlap")
    heads = rearrange(packed, "b s (h d) -> b h s d", h=num_heads)
    d = heads.shape[-1]
    padded = F.pad(heads, (0, 0, 0, 0, 1, 1))
    return torch.cat([padded[:, :-2, :, d - overlap:], heads, padded[:, 2:, :, :overlap]], -1)


@says("overlap_heads", None)
def windows_of_channels_first(packed, num_heads, overlap):
    d = packed.shape[-1] // num_heads
    refuse(overlap < 0 or overlap > d, "the overlap")
    return F.pad(packed.mT, (0, 0, overlap, overlap)).unfold(1, d + 2 * overlap, d).contiguous()


@says("overlap_heads", "wraps-around")
def rolled(packed, num_heads, overlap):
    refuse(not 0 <= overlap <= packed.shape[-1] // num_heads, "overlap")
    heads = packed.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    d = heads.shape[-1]
    return torch.cat([heads.roll(1, 1)[..., d - overlap:], heads, heads.roll(-1, 1)[..., :overlap]], -1)


@says("overlap_heads", "wraps-around")
def negative_slices(packed, num_heads, overlap):
    refuse(not 0 <= overlap <= packed.shape[-1] // num_heads, "overlap")
    heads = packed.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    return torch.cat([heads.roll(1, 1)[..., -overlap:], heads, heads.roll(-1, 1)[..., :overlap]], -1)


@says("overlap_heads", "ends-narrowed")
def stacked_windows(packed, num_heads, overlap):
    d = packed.shape[-1] // num_heads
    refuse(not 0 <= overlap <= d, "overlap")
    return torch.stack([packed[..., max(0, i * d - overlap):(i + 1) * d + overlap] for i in range(num_heads)], 1)


@says("overlap_heads", "too-wide-accepted")
def nothing_refused(packed, num_heads, overlap):
    d = packed.shape[-1] // num_heads
    return torch.stack([F.pad(packed, (overlap, overlap))[..., i * d:(i + 1) * d + 2 * overlap]
                        for i in range(num_heads)], 1)


# --- Talking-Heads ---

def logits(q, k):
    return q @ k.mT * q.shape[-1] ** -0.5


@says("talking_heads_attention", None)
def in_double_precision(q, k, v, mix_logits, mix_weights, visible=None):
    dtype = q.dtype
    q, k, v, mix_logits, mix_weights = (t.double() for t in (q, k, v, mix_logits, mix_weights))
    mixed = einops_einsum(logits(q, k), mix_logits, "b k t s, k h -> b h t s")
    if visible is not None:
        refuse((visible.sum(-1) == 0).any(), "no visible key")
        mixed = torch.where(visible, mixed, -torch.inf)
    weights = einops_einsum(mixed.softmax(-1), mix_weights, "b h t s, h v -> b v t s")
    return (weights @ v).to(dtype), weights.to(dtype)


@says("talking_heads_attention", None)
def products_of_flat_pairs(q, k, v, mix_logits, mix_weights, visible=None):
    j = logits(q, k)
    shape = j.shape[2:]
    mixed = (mix_logits.T @ j.flatten(2)).unflatten(-1, shape)
    if visible is not None:
        refuse(not visible.any(-1).all(), "no visible key")
        mixed = mixed.masked_fill(~visible, torch.finfo(mixed.dtype).min)
    weights = (mix_weights.T @ mixed.softmax(-1).flatten(2)).unflatten(-1, shape)
    return weights @ v, weights


@says("talking_heads_attention", "map-transposed")
def as_linear_layers(q, k, v, mix_logits, mix_weights, visible=None):
    mixed = F.linear(logits(q, k).movedim(1, -1), mix_logits).movedim(-1, 1)
    if visible is not None:
        refuse(not visible.any(-1).all(), "no visible key")
        mixed = mixed.masked_fill(~visible, -torch.inf)
    weights = F.linear(mixed.softmax(-1).movedim(1, -1), mix_weights).movedim(-1, 1)
    return weights @ v, weights


@says("talking_heads_attention", "one-head-count")
def equal_counts_demanded(q, k, v, mix_logits, mix_weights, visible=None):
    refuse(not q.shape[1] == mix_logits.shape[1] == v.shape[1], "the maps must be square")
    return products_of_flat_pairs(q, k, v, mix_logits, mix_weights, visible)


@says("talking_heads_attention", "mask-before-mixing")
def added_mask(q, k, v, mix_logits, mix_weights, visible=None):
    j = logits(q, k)
    if visible is not None:
        refuse(not visible.any(-1).all(), "no visible key")
        j = j + torch.zeros(visible.shape, dtype=j.dtype).masked_fill(~visible, -torch.inf)
    weights = torch.einsum("bhts,hv->bvts", torch.einsum("bkts,kh->bhts", j, mix_logits).softmax(-1), mix_weights)
    return weights @ v, weights


@says("talking_heads_attention", "heads-normalised")
def softmax_of_the_last_axis_after_a_move(q, k, v, mix_logits, mix_weights, visible=None):
    mixed = logits(q, k).permute(0, 2, 3, 1) @ mix_logits
    if visible is not None:
        refuse(not visible.any(-1).all(), "no visible key")
        mixed = mixed.masked_fill(~visible.permute(0, 2, 3, 1), -torch.inf)
    weights = (mixed.softmax(-1) @ mix_weights).permute(0, 3, 1, 2)
    return weights @ v, weights


# --- dynamic composition ---

@says("compose_dynamic", None)
def one_pair_under_vmap(scores, factors):
    refuse(not scores.isfinite().all(), "finite")

    def pair(a, q1, q2, qg, k1, k2, kg):
        return a + a @ q1 @ q2 + a @ k1 @ k2 + a * qg + a * kg
    over_keys = torch.vmap(pair, in_dims=(0, None, None, None, 0, 0, 0))
    over_queries = torch.vmap(over_keys, in_dims=(0, 0, 0, 0, None, None, None))
    out = torch.vmap(over_queries)(scores.permute(0, 2, 3, 1), *(factors[n] for n in ("q1", "q2", "qg", "k1", "k2",
                                                                                     "kg")))
    return out.permute(0, 3, 1, 2)


@says("compose_dynamic", None)
def three_operands_at_a_time(scores, factors):
    refuse(bool((~torch.isfinite(scores)).sum()), "scores must be finite")
    f = factors
    return (scores + torch.einsum("bhts,bthr,btrg->bgts", scores, f["q1"], f["q2"])
            + torch.einsum("bhts,bshr,bsrg->bgts", scores, f["k1"], f["k2"])
            + scores * f["qg"].mT[..., None] + scores * f["kg"].mT[:, :, None])


@says("compose_dynamic", "dense-map")
def written_as_one_map(scores, factors):
    refuse(not scores.isfinite().all(), "finite")
    f = factors
    by_row = torch.eye(scores.shape[1], dtype=scores.dtype) + f["q1"] @ f["q2"] + torch.diag_embed(f["qg"])
    by_key = f["k1"] @ f["k2"] + torch.diag_embed(f["kg"])
    return torch.einsum("bhts,btshg->bgts", scores, by_row[:, :, None] + by_key[:, None])


@says("compose_dynamic", "skip-missing")
def maps_without_an_identity(scores, factors):
    refuse(not scores.isfinite().all(), "finite")
    f = factors
    by_row, by_key = (f[f"{s}1"] @ f[f"{s}2"] + torch.diag_embed(f[f"{s}g"]) for s in "qk")
    return torch.einsum("bhts,bthg->bgts", scores, by_row) + torch.einsum("bhts,bshg->bgts", scores, by_key)


@says("compose_dynamic", "composed-within-groups")
def maps_cut_into_three(scores, factors):
    refuse(not scores.isfinite().all(), "finite")
    f, heads = factors, scores.shape[1]
    group = torch.arange(heads) * 3 // heads
    same = (group == group[:, None]).to(scores.dtype)
    by_row, by_key = (f[f"{s}1"] @ f[f"{s}2"] * same + torch.diag_embed(f[f"{s}g"]) for s in "qk")
    return (scores + torch.einsum("bhts,bthg->bgts", scores, by_row)
            + torch.einsum("bhts,bshg->bgts", scores, by_key))


@says("compose_dynamic", "composed-after-mask")
def whatever_comes(scores, factors):
    f = factors
    return (scores * (1 + f["qg"].mT[..., None] + f["kg"].mT[:, :, None])
            + torch.einsum("bhts,bthr,btrg->bgts", scores, f["q1"], f["q2"])
            + torch.einsum("bhts,bshr,bsrg->bgts", scores, f["k1"], f["k2"]))


# --- routing ---

def families(x, router):
    return [F.linear(x, router[n]).softmax(-1) for n in ("shared", "routed", "kind")]


def weighed(shared, routed, kind):
    return torch.cat([kind[..., :1] * shared, kind[..., 1:] * routed], -1)


@says("route_heads", None)
def one_softmax_for_each_family_of_one_product(x, router, num_shared, top_k):
    refuse(not 1 <= top_k <= len(router["routed"]), "top_k")
    every = x @ torch.cat([router["shared"], router["routed"], router["kind"]]).mT
    sizes = [num_shared, len(router["routed"]), 2]
    shared, routed, kind = (part.softmax(-1) for part in every.split(sizes, -1))
    lowest = routed.sort(-1, descending=True).values[..., top_k - 1:top_k]
    keep = routed >= lowest
    return weighed(shared, torch.where(keep, routed, 0.0), kind), keep


@says("route_heads", "one-set-per-sequence")
def the_largest_anywhere(x, router, num_shared, top_k):
    refuse(not 1 <= top_k <= len(router["routed"]), "top_k")
    shared, routed, kind = families(x, router)
    best = routed.amax(1, keepdim=True).topk(top_k, -1).indices.expand(-1, x.shape[1], -1)
    keep = torch.zeros_like(routed).scatter(-1, best, 1.0).bool()
    return weighed(shared, routed * keep, kind), keep


@says("route_heads", "softmax-after-selection")
def renormalised(x, router, num_shared, top_k):
    refuse(not 1 <= top_k <= len(router["routed"]), "top_k")
    shared, routed, kind = families(x, router)
    keep = torch.zeros_like(routed).scatter(-1, routed.topk(top_k, -1).indices, 1.0).bool()
    kept = routed * keep
    return weighed(shared, kept / kept.sum(-1, keepdim=True), kind), keep


@says("route_heads", "softmax-after-selection")
def softmax_of_the_values(x, router, num_shared, top_k):
    refuse(not 1 <= top_k <= len(router["routed"]), "top_k")
    shared, routed, kind = families(x, router)
    best = F.linear(x, router["routed"]).topk(top_k, -1)
    tail = torch.zeros_like(routed).scatter(-1, best.indices, best.values.softmax(-1))
    return weighed(shared, tail, kind), tail != 0


@says("balance_loss", "casts-to-float32")
def shares_in_single_precision(probabilities, selected):
    return (probabilities.mean((0, 1)) * selected.float().mean((0, 1))).sum()


@says("balance_loss", None)
def one_product_of_counts(probabilities, selected):
    tokens = probabilities[..., 0].numel()
    return (probabilities.sum((0, 1)) * selected.sum((0, 1))).sum() / tokens**2


@says("balance_loss", "scaled-by-heads")
def as_for_experts(probabilities, selected):
    heads = selected.size(-1)
    return heads * torch.dot(probabilities.flatten(0, 1).mean(0), selected.flatten(0, 1).to(probabilities).mean(0))


# --- collaborative heads ---

@says("collaborative_scores", None)
def folded_into_one_weight(x_q, x_k, w_q, w_k, mixing):
    forms = torch.einsum("cm,hc,cn->hmn", w_q, mixing, w_k)
    return torch.einsum("btm,hmn,bsn->bhts", x_q, forms, x_k)


@says("collaborative_scores", None)
def roots_of_the_metric(x_q, x_k, w_q, w_k, mixing):
    size = mixing.abs().sqrt()
    q, k = F.linear(x_q, w_q)[:, None] * (size * mixing.sign())[:, None], F.linear(x_k, w_k)[:, None] * size[:, None]
    return q @ k.mT


@says("collaborative_scores", "mixed-twice")
def both_sides_weighed(x_q, x_k, w_q, w_k, mixing):
    q, k = (F.linear(x, w)[:, None] * mixing[:, None] for x, w in ((x_q, w_q), (x_k, w_k)))
    return q @ k.mT


@says("collaborative_scores", "one-metric")
def largest_of_each_column(x_q, x_k, w_q, w_k, mixing):
    one = mixing.amax(0)
    return ((F.linear(x_q, w_q) * one) @ F.linear(x_k, w_k).mT)[:, None].expand(-1, len(mixing), -1, -1).clone()


@says("classic_as_collaborative", "indicator-interleaved")
def every_third_coordinate(state, num_heads):
    w_q, w_k = state["q_proj.weight"], state["k_proj.weight"]
    mixing = torch.zeros(num_heads, len(w_q), dtype=w_q.dtype)
    for h in range(num_heads):
        mixing[h, h::num_heads] = 1
    return w_q, w_k, mixing


@says("classic_as_collaborative", "compressed-basis")
def strongest_directions(state, num_heads):
    w_q, w_k = state["q_proj.weight"], state["k_proj.weight"]
    per_head = [q.T @ k for q, k in zip(w_q.chunk(num_heads), w_k.chunk(num_heads), strict=True)]
    u, s, v = torch.linalg.svd(torch.cat(per_head))
    rank = 5
    mixing = torch.stack([torch.linalg.lstsq(v[:rank].T, p.T).solution.norm(dim=1) for p in per_head])
    return v[:rank], v[:rank], mixing


# --- ledgers ---

def ledger_with(kind, change):
    """The course's formulas with one kind's entries changed and the sum formed again."""
    from solutions.variants import variant_ledger

    def program(asked, **sizes):
        ledger = variant_ledger(asked, **sizes)
        if asked == kind:
            ledger |= change(sizes, ledger)
            ledger["macs"] = sum(n for k, n in ledger.items() if k.endswith("_macs") and k != "skipped_macs")
            ledger["macs"] -= ledger.get("skipped_macs", 0)
        return ledger
    return program


PROGRAMS += [
    ("variant_ledger", None, ledger_with("none", None)),
    ("variant_ledger", "overlap-free", ledger_with("mohsa", lambda s, _: {"parameters": 0})),
    ("variant_ledger", "one-generator", ledger_with("dcmha", lambda s, old: {
        "parameters": old["parameters"] // 4, "generator_macs": old["generator_macs"] // 2})),
    ("variant_ledger", "routed-fraction", ledger_with("moh", lambda s, old: {
        "active_fraction": round(s["top_k"] / s["num_heads"], 15)})),
    ("variant_ledger", "collab-classic-work", ledger_with("collab", lambda s, old: {
        "score_macs": s["batch"] * s["q_len"] * s["k_len"] * (s["width"] - s["num_heads"] * s["head_dim"])})),
    ("variant_ledger", "talking-parameters-only", ledger_with("talking", lambda s, old: {
        "logit_macs": old["logit_macs"] // math.prod((s["q_len"], s["k_len"])),
        "weight_macs": old["weight_macs"] // math.prod((s["q_len"], s["k_len"]))})),
]
