"""Session 06, grouped heads and cache: which key/value head a query head reads, and what is kept of it.

Letters: B batch, T query (new) rows, P cached rows, S key rows (P + T where there is a cache), H query heads, G
key/value heads, R = H/G query heads in a group, M model width, D head width of queries and keys, D_v head width of
values, C latent width, L layers, W window. Head packing is head-major: channel c = h·D + d. A stored weight is
[out,in], as `nn.Linear` keeps it. Query head h reads key/value head h // R: neighbours share. A boolean mask is True
where a query may look.
"""
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


def kv_head_for(query_head: int, num_heads: int, num_kv_heads: int) -> int:
    """The key/value head that a query head reads.

    query_head: h, from 0 to H-1. num_heads: H. num_kv_heads: G. Neighbouring query heads form a group: the first R
    = H/G of them read key/value head 0, the next R head 1, and so on.
    Returns an int from 0 to G-1.
    Raises ValueError: "divisible" when G does not divide H, "range" when there is no query head h.
    Source: Ainslie et al. 2023, section 2.2; the order of groups is that of Llama and of PyTorch's `enable_gqa`.
    """
    raise NotImplementedError("kv_head_for: write this in mha_lab/grouped.py")


def repeat_kv(kv: Float[Tensor, "B G S D"], groups: int) -> Float[Tensor, "B H S D"]:
    """Keys or values with one head for every query head.

    kv: [B,G,S,D], of any strides. groups: R, the query heads that share a key/value head.
    Returns [B,G·R,S,D]: head h is head h // R of `kv`.
    Source: Derivation; `repeat_kv` of the Llama code does the same.
    """
    raise NotImplementedError("repeat_kv: write this in mha_lab/grouped.py")


def grouped_attention(q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G S D"], v: Float[Tensor, "B G S D_v"],
                      visible: Bool[Tensor, "*axes"] | None = None) -> Float[Tensor, "B H T D_v"]:
    """Scaled dot-product attention of H query heads over G key/value heads, without repeating a key or a value.

    q: [B,H,T,D]. k: [B,G,S,D]. v: [B,G,S,D_v]. visible: boolean, True where a query may look, four axes broadcastable
    to [B,H,T,S] (a mask may differ from query head to query head); None when all is visible. Scores are divided by
    sqrt(D).
    Returns heads [B,H,T,D_v]; query head h reads key/value head h // R. No new tensor may have B·H·S·D elements or
    more: the grader counts what is allocated, where D_v = D and T is much smaller than D.
    Raises ValueError: "divisible" when G does not divide H, "no visible key" when a query may look at nothing.
    Source: Shazeer 2019; Ainslie et al. 2023.
    """
    raise NotImplementedError("grouped_attention: write this in mha_lab/grouped.py")


class GroupedQueryAttention(nn.Module):
    """Self-attention with H query heads, G key/value heads, and a cache of G heads.

    Four `nn.Linear` maps without biases: q_proj of M to H·D, k_proj and v_proj of M to G·D, o_proj of H·D to M. Their
    names are what a checkpoint loads into. Query head h reads key/value head h // R.
    Raises ValueError: "positive" when a number of heads or the head width is not positive, "divisible" when G does not
    divide H, or when `head_dim` is left out and H does not divide M.
    Source: Ainslie et al. 2023; names as in the Llama checkpoints.
    """

    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int | None = None, head_dim: int | None = None):
        """d_model: M. num_heads: H. num_kv_heads: G, H if left out. head_dim: D, M / H if left out."""
        super().__init__()
        raise NotImplementedError("GroupedQueryAttention.__init__: write this in mha_lab/grouped.py")

    def forward(self, x: Float[Tensor, "B T M"], causal: bool = False, cache: tuple[Tensor, Tensor] | None = None,
                valid: Bool[Tensor, "B S"] | None = None) -> tuple[Float[Tensor, "B T M"], Float[Tensor, "B H T S"],
                                                                  tuple[Tensor, Tensor]]:
        """One call over T new rows, after P rows that the cache holds (P = 0 without one); S = P + T.

        x: [B,T,M]. causal: new row t sees keys 0 to P + t. cache: (k, v), each [B,G,P,D], of an earlier call; it is
        left as it is. valid: [B,P+T], True for a real row, False for padding, which no query may see.
        Returns (output [B,T,M], probabilities [B,H,T,S], (k, v) each [B,G,S,D]). The new cache is always returned, and
        keeps no wider tensor alive behind a view.
        Raises ValueError: "causal" for a cache without `causal`, "cache" for a cache of another shape, batch, width or
        dtype than this call's keys and values, "no visible key" when a query may look at nothing.
        """
        raise NotImplementedError("GroupedQueryAttention.forward: write this in mha_lab/grouped.py")


def kv_cache_bytes(config: Mapping[str, int], batch: int, length: int, bytes_per_element: int = 2) -> int:
    """The bytes that the keys and values of a whole model take.

    config: "layers" L, "hidden" M, "heads" H, "kv_heads" G, and where a model gives them "head_dim" D (M / H if left
    out) and "v_head_dim" D_v (D if left out). batch: B. length: S, tokens that are cached. bytes_per_element: 2 for
    bfloat16.
    Returns an int: keys and values of all layers; weights, temporaries and padding are not in it.
    Source: Derivation.
    """
    raise NotImplementedError("kv_cache_bytes: write this in mha_lab/grouped.py")


def gqa_parameters(d_model: int, num_heads: int, num_kv_heads: int, head_dim: int,
                   bias: bool = False) -> dict[str, Any]:
    """Parameters of a grouped layer by role, and what they save.

    d_model: M. num_heads: H. num_kv_heads: G. head_dim: D; H·D need not be M. bias: whether all four maps add one.
    Returns ints for "q", "k", "v", "o" (weight and bias of each role), "weights", "biases", "total"; and two fractions
    of what the same layer with G = H has: "saved_kv" of its K and V maps, "saved_total" of its total.
    Source: Derivation.
    """
    raise NotImplementedError("gqa_parameters: write this in mha_lab/grouped.py")


def mean_pool_kv(state: Mapping[str, Tensor], num_heads: int, num_kv_heads: int) -> dict[str, Tensor]:
    """A checkpoint of H key/value heads, made into one of G by averaging the heads of each group.

    state: q_proj.weight [H·D,M], k_proj.weight [H·D,M], v_proj.weight [H·D_v,M], o_proj.weight [M,H·D_v], and where
    there are biases q_proj.bias and so on. num_heads: H. num_kv_heads: G.
    Returns a new dict with the same keys: k_proj and v_proj have G heads (weight and bias), each the mean of R = H/G
    neighbours; everything else is as it was (the same tensors will do).
    Raises ValueError ("divisible") when G does not divide H.
    Source: Ainslie et al. 2023, section 2.1. The result is a starting point for more training.
    """
    raise NotImplementedError("mean_pool_kv: write this in mha_lab/grouped.py")


def mla_cache_elements(latent: int, rope_dim: int, num_heads: int) -> int:
    """The numbers that multi-head latent attention caches, for one token in one layer.

    latent: C, the width of the row from which all heads' keys and values are made. rope_dim: width of the one rotary
    key that all heads share. num_heads: H.
    Returns an int.
    Source: DeepSeek-V2 (2024), section 2.1.
    """
    raise NotImplementedError("mla_cache_elements: write this in mha_lab/grouped.py")


def absorb_keys(w_q: Float[Tensor, "HD M"], w_uk: Float[Tensor, "HD C"], num_heads: int) -> Float[Tensor, "H C M"]:
    """Query map and key up-projection of every head, folded into one map.

    w_q: stored [H·D,M], makes queries of rows x. w_uk: stored [H·D,C], makes keys of latent rows c. num_heads: H.
    Returns [H,C,M]: a head's score is c · (absorbed[h] @ x), the same number as (w_q_h @ x) · (w_uk_h @ c). The
    division by sqrt(D) is not in it.
    Source: DeepSeek-V2 (2024), section 2.1. It needs constant maps: nothing that depends on a position in between.
    """
    raise NotImplementedError("absorb_keys: write this in mha_lab/grouped.py")


def absorb_values(w_o: Float[Tensor, "M HD_v"], w_uv: Float[Tensor, "HD_v C"],
                  num_heads: int) -> Float[Tensor, "H M C"]:
    """Value up-projection and output map of every head, folded into one map.

    w_o: stored [M,H·D_v]. w_uv: stored [H·D_v,C], makes values of latent rows c. num_heads: H.
    Returns [H,M,C]: a head that has averaged latent rows to c̄ writes absorbed[h] @ c̄, the same row that w_o would
    make of its averaged values.
    Source: DeepSeek-V2 (2024), section 2.1.
    """
    raise NotImplementedError("absorb_values: write this in mha_lab/grouped.py")


def mixed_window_macs(length: int, window: int, local_heads: int, global_heads: int, head_dim: int) -> dict[str, int]:
    """Multiply-accumulates of one product (scores, or values) when some heads see a window and others everything.

    length: T, queries and keys. window: W, the keys that a query of a local head sees, itself included.
    local_heads, global_heads: how many there are. head_dim: D.
    Returns a dict: "leading", every local query counted with W keys and every global one with T; "exact_causal", the
    pairs that are visible when no query looks ahead (the first queries of a local head have fewer than W); "dense",
    what a kernel computes that skips no pair.
    Raises ValueError ("window") when W is not from 1 to T.
    Source: Derivation.
    """
    raise NotImplementedError("mixed_window_macs: write this in mha_lab/grouped.py")
