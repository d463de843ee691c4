"""Session 09, changed heads: five published programs, each of which changes one tensor of classic attention.

Letters: B batch, T target (query) length, S source (key) length, M model width, H heads, D head width of queries and
keys, D_v width of values; H_k, H_s, H_v heads of logits, softmax and values; R rank; D̃ shared width. Packing is
head-major: channel h·D + d belongs to head h. A *stored* weight is [out, in], as `nn.Linear` keeps it.
"""
import inspect
import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mha_lab.given import ComposeFactors, HeadRouter

Ledger = dict[str, int | float]


def overlap_heads(packed: Float[Tensor, "B S HD"], num_heads: int, overlap: int) -> Float[Tensor, "B H S W"]:
    """Heads that also read the edge channels of their neighbours (MOHSA).

    packed: projected rows, [B,S,H·D]. num_heads: H. overlap: r, channels borrowed from each neighbour.
    Returns [B,H,S,D+2r]: head i holds the last r channels of head i-1, its own D, the first r of head i+1. Where there
    is no neighbour it holds zeros, so that all heads have one width. r = 0 is the classic split.
    Raises ValueError ("overlap") if r < 0 or r > D.
    Source: Zhang et al. 2024 (multi-overlapped-head self-attention), with zero padding.
    """
    raise NotImplementedError("overlap_heads: write this in mha_lab/variants.py")


def talking_heads_attention(
        q: Float[Tensor, "B H_k T D"], k: Float[Tensor, "B H_k S D"], v: Float[Tensor, "B H_v S D_v"],
        mix_logits: Float[Tensor, "H_k H_s"], mix_weights: Float[Tensor, "H_s H_v"],
        visible: Bool[Tensor, "*axes"] | None = None) -> tuple[Float[Tensor, "B H_v T D_v"],
                                                              Float[Tensor, "B H_v T S"]]:
    """Attention whose heads talk before and after the softmax.

    q [B,H_k,T,D] and k [B,H_k,S,D] make logits q·k / sqrt(D). mix_logits [H_k,H_s] leads the logits of H_k heads to
    H_s softmax heads; softmax runs over keys; mix_weights [H_s,H_v] leads their weights to the H_v heads of
    v [B,H_v,S,D_v]. visible: boolean, True where a query may look, four axes broadcastable to [B,H_s,T,S], applied to
    the mixed logits; None when all is visible.
    Returns (heads [B,H_v,T,D_v], weights [B,H_v,T,S]); heads = weights @ v. Mixed weights may be negative and need not
    sum to one. Identity maps give classic attention.
    Raises ValueError ("no visible key") when a query may look at nothing.
    Source: Shazeer et al. 2020 (Talking-Heads Attention).
    """
    raise NotImplementedError("talking_heads_attention: write this in mha_lab/variants.py")


def compose_dynamic(scores: Float[Tensor, "B H T S"], factors: ComposeFactors) -> Float[Tensor, "B H T S"]:
    """Mix the heads of every pair by a map that its query row and its key row decide (DCMHA).

    scores: finite, [B,H,T,S], before softmax or after it. factors: a mapping with q1 [B,T,H,R], q2 [B,T,R,H],
    k1 [B,S,H,R], k2 [B,S,R,H], qg [B,T,H], kg [B,S,H]; see `mha_lab.given.ComposeFactors`.
    Returns [B,H,T,S]. With a the H scores of the pair (t, s), as a row: a + (a·q1[t])·q2[t] + (a·k1[s])·k2[s]
    + a∘qg[t] + a∘kg[s]. Zero factors give the scores back.
    Stores no tensor as large as an H×H map for every pair of a sample, T·S·H² numbers.
    Raises ValueError ("finite") for scores that are not finite: compose first, then mask.
    Source: Xiao et al. 2024 (DCMHA), with the identity in place of a static base map.
    """
    raise NotImplementedError("compose_dynamic: write this in mha_lab/variants.py")


def route_heads(x: Float[Tensor, "B T M"], router: HeadRouter, num_shared: int,
                top_k: int) -> tuple[Float[Tensor, "B T H"], Bool[Tensor, "B T H_r"]]:
    """How much every head counts for every token (MoH).

    x: [B,T,M]. router: a mapping with stored maps shared [H_s,M], routed [H_r,M], kind [2,M]; see
    `mha_lab.given.HeadRouter`. num_shared: H_s. top_k: K_r, routed heads that run for a token, 1 to H_r.
    Returns (gates [B,T,H], selected [B,T,H_r]). With α = softmax(kind·x), a pair for every token: the first H_s gates
    are α[0]·softmax(shared·x), the H_r others α[1]·softmax(routed·x), where the softmax runs over all H_r routed heads
    and only the K_r largest gates of a token stay; the rest is 0. selected is boolean, True for those that stay.
    Raises ValueError ("top_k") if top_k < 1 or top_k > H_r.
    Source: Jin et al. 2024 (MoH), the two-stage router.
    """
    raise NotImplementedError("route_heads: write this in mha_lab/variants.py")


def balance_loss(probabilities: Float[Tensor, "B T H_r"], selected: Bool[Tensor, "B T H_r"]) -> Float[Tensor, ""]:
    """A penalty for a router that sends all tokens to the same few heads (MoH).

    probabilities: of the routed heads, softmax over all of them, [B,T,H_r]. selected: boolean, [B,T,H_r].
    Returns a scalar: the sum over routed heads of P_i·f_i, where P_i is the mean probability of head i over all B·T
    tokens and f_i the part of the tokens that selected it. A gradient comes through P only.
    Even use of 2 of 6 heads gives 1/3; all tokens on the same 2, with all the probability, 1.
    Source: Jin et al. 2024 (MoH); not scaled by the number of heads.
    """
    raise NotImplementedError("balance_loss: write this in mha_lab/variants.py")


def collaborative_scores(x_q: Float[Tensor, "B T M"], x_k: Float[Tensor, "B S M"], w_q: Float[Tensor, "W M"],
                         w_k: Float[Tensor, "W M"], mixing: Float[Tensor, "H W"]) -> Float[Tensor, "B H T S"]:
    """Scores of heads that share one basis of queries and keys, and weigh its coordinates each in its own way.

    x_q: [B,T,M]. x_k: [B,S,M]. w_q, w_k: stored, [D̃,M]. mixing: [H,D̃], the metric of head h in row h.
    Returns [B,H,T,S], not scaled: the sum over coordinates c of mixing[h,c]·(w_q·x_q[t])[c]·(w_k·x_k[s])[c].
    Source: Cordonnier et al. 2020 (Collaborate Instead of Concatenate), equations 7 to 9.
    """
    raise NotImplementedError("collaborative_scores: write this in mha_lab/variants.py")


def classic_as_collaborative(state: Mapping[str, Tensor], num_heads: int) -> tuple[
        Float[Tensor, "HD M"], Float[Tensor, "HD M"], Float[Tensor, "H HD"]]:
    """A classic layer, written as heads over one shared basis of full width.

    state: stored weights, of which "q_proj.weight" and "k_proj.weight", both [H·D,M], are used. num_heads: H.
    Returns (w_q [H·D,M], w_k [H·D,M], mixing [H,H·D]): the packed maps as they are, and in row h of mixing ones for the
    D consecutive coordinates of head h, zeros elsewhere, in the dtype of the weights. `collaborative_scores` of them
    are the classic scores q·k, exactly. Biases are no part of it: they need a correction of their own.
    Source: Cordonnier et al. 2020, section 3: the classic layer as a special case.
    """
    raise NotImplementedError("classic_as_collaborative: write this in mha_lab/variants.py")


def variant_ledger(kind: str, **sizes: int) -> Ledger:
    """What a changed layer adds to the classic one, without biases: parameters, and multiply-accumulates of one call.

    kind, the sizes that it takes (all of them, and no other), and the keys of the result beside "parameters" and
    "macs"; both of these are differences to the classic layer, negative where something is saved:

    - "mohsa": batch, q_len, k_len, d_model, num_heads, head_dim, overlap. local_macs: the wider score and value
      products. output_macs: the wider W_O.
    - "talking": batch, q_len, k_len, logit_heads, softmax_heads, value_heads. logit_macs, weight_macs: the two maps.
    - "dcmha": batch, q_len, k_len, d_model, num_heads, rank. Four generators (of queries and of keys, before and after
      softmax), each with W_1 [M,2HR], W_2 [2HR,2HR] and a gate map [M,H]. generator_macs; compose_macs: the four terms
      of `compose_dynamic` for every pair, at both places, and one product a head and pair for each gate.
    - "moh": batch, q_len, k_len, d_model, num_heads, head_dim, num_shared, top_k, dense. dense is 1 where all heads are
      computed and the unselected ones are multiplied by zero, 0 where they are skipped. router_macs; skipped_macs, for
      every pair of a token and a head that does not run: its query projection, its row of scores, its row of the value
      product and its block of W_O. Keys and values are projected all the same, other tokens may need them.
      active_fraction: heads that count for a token, of all heads.
    - "collab": batch, q_len, k_len, d_model, num_heads, head_dim, width. width is D̃. projection_macs of queries and
      keys, mixing_macs (metric times queries), score_macs.
    - "gqa": batch, q_len, k_len, d_model, num_heads, num_kv_heads, head_dim. projection_macs.

    macs is the sum of the parts, skipped_macs subtracted. Products that turn a gate of MoH or a scale are not counted.
    Raises ValueError: "kind" for an unknown kind, "size" for a size that is missing or that the kind does not take;
    the text names it.
    Source: Derivation, and the papers of the six layers.
    """
    raise NotImplementedError("variant_ledger: write this in mha_lab/variants.py")
