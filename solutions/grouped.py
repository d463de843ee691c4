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
    ### BEGIN SOLUTION
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads are not divisible by {num_kv_heads} key/value heads")
    if not 0 <= query_head < num_heads:
        raise ValueError(f"query head {query_head} is out of range: there are {num_heads}")
    return query_head // (num_heads // num_kv_heads)
    ### END SOLUTION


def repeat_kv(kv: Float[Tensor, "B G S D"], groups: int) -> Float[Tensor, "B H S D"]:
    """Keys or values with one head for every query head.

    kv: [B,G,S,D], of any strides. groups: R, the query heads that share a key/value head.
    Returns [B,G·R,S,D]: head h is head h // R of `kv`.
    Source: Derivation; `repeat_kv` of the Llama code does the same.
    """
    ### BEGIN SOLUTION
    return kv.repeat_interleave(groups, dim=1)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    (batch, heads, queries, width), groups, keys = q.shape, k.shape[1], k.shape[2]
    if heads % groups:
        raise ValueError(f"{heads} query heads are not divisible by {groups} key/value heads")
    folded = q.reshape(batch, groups, -1, width)
    scores = (folded @ k.transpose(-2, -1) * width**-0.5).view(batch, heads, queries, keys)
    if visible is not None:
        if not visible.any(-1).all():
            raise ValueError("a query has no visible key")
        scores = scores.masked_fill(~visible, -torch.inf)
    mixed = scores.softmax(-1).view(batch, groups, -1, keys) @ v
    return mixed.view(batch, heads, queries, -1)
    ### END SOLUTION


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
        ### BEGIN SOLUTION
        groups = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads <= 0 or groups <= 0 or (head_dim is not None and head_dim <= 0):
            raise ValueError("heads, key/value heads and head width must be positive")
        if num_heads % groups:
            raise ValueError(f"{num_heads} query heads are not divisible by {groups} key/value heads")
        if head_dim is None and d_model % num_heads:
            raise ValueError(f"d_model {d_model} is not divisible by num_heads {num_heads}")
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, groups, head_dim or d_model // num_heads
        self.q_proj = nn.Linear(d_model, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(d_model, groups * self.head_dim, bias=False)
        self.v_proj = nn.Linear(d_model, groups * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, d_model, bias=False)
        ### END SOLUTION

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
        ### BEGIN SOLUTION
        batch, new, _ = x.shape
        q = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)
        if cache is not None:
            if not causal:
                raise ValueError("a cache serves causal attention only")
            past = cache[0].shape[-2]
            for old in cache:
                if old.shape != (batch, self.num_kv_heads, past, self.head_dim) or old.dtype != k.dtype:
                    raise ValueError(f"the cache {list(old.shape)} ({old.dtype}) does not fit keys {list(k.shape)}")
            k, v = (torch.cat(pair, dim=2) for pair in zip(cache, (k, v), strict=True))
        keys = k.shape[2]
        visible = torch.ones(new, keys, dtype=torch.bool, device=x.device)
        if causal:
            visible = visible.tril(keys - new)
        if valid is not None:
            visible = visible & valid[:, None, None, :]
        if not visible.any(-1).all():
            raise ValueError("a query has no visible key")
        folded = q.reshape(batch, self.num_kv_heads, -1, self.head_dim)
        scores = (folded @ k.transpose(-2, -1) * self.head_dim**-0.5).view(batch, self.num_heads, new, keys)
        probabilities = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        mixed = probabilities.view(batch, self.num_kv_heads, -1, keys) @ v
        merged = mixed.view(batch, self.num_heads, new, -1).transpose(1, 2).flatten(2)
        return self.o_proj(merged), probabilities, (k, v)
        ### END SOLUTION


def kv_cache_bytes(config: Mapping[str, int], batch: int, length: int, bytes_per_element: int = 2) -> int:
    """The bytes that the keys and values of a whole model take.

    config: "layers" L, "hidden" M, "heads" H, "kv_heads" G, and where a model gives them "head_dim" D (M / H if left
    out) and "v_head_dim" D_v (D if left out). batch: B. length: S, tokens that are cached. bytes_per_element: 2 for
    bfloat16.
    Returns an int: keys and values of all layers; weights, temporaries and padding are not in it.
    Source: Derivation.
    """
    ### BEGIN SOLUTION
    width = config.get("head_dim", config["hidden"] // config["heads"])
    channels = config["kv_heads"] * (width + config.get("v_head_dim", width))
    return batch * length * config["layers"] * channels * bytes_per_element
    ### END SOLUTION


def gqa_parameters(d_model: int, num_heads: int, num_kv_heads: int, head_dim: int,
                   bias: bool = False) -> dict[str, Any]:
    """Parameters of a grouped layer by role, and what they save.

    d_model: M. num_heads: H. num_kv_heads: G. head_dim: D; H·D need not be M. bias: whether all four maps add one.
    Returns ints for "q", "k", "v", "o" (weight and bias of each role), "weights", "biases", "total"; and two fractions
    of what the same layer with G = H has: "saved_kv" of its K and V maps, "saved_total" of its total.
    Source: Derivation.
    """
    ### BEGIN SOLUTION
    queries, shared = num_heads * head_dim, num_kv_heads * head_dim
    weights = {"q": d_model * queries, "k": d_model * shared, "v": d_model * shared, "o": queries * d_model}
    biases = {"q": queries, "k": shared, "v": shared, "o": d_model} if bias else dict.fromkeys("qkvo", 0)
    ledger = {role: weights[role] + biases[role] for role in "qkvo"}
    total = sum(ledger.values())
    full = 2 * (ledger["q"] + ledger["o"]) + (queries - d_model if bias else 0)
    saved = 2 * (ledger["q"] - ledger["k"])
    return ledger | {"weights": sum(weights.values()), "biases": sum(biases.values()), "total": total,
                     "saved_kv": saved / (2 * ledger["q"]), "saved_total": saved / full}
    ### END SOLUTION


def mean_pool_kv(state: Mapping[str, Tensor], num_heads: int, num_kv_heads: int) -> dict[str, Tensor]:
    """A checkpoint of H key/value heads, made into one of G by averaging the heads of each group.

    state: q_proj.weight [H·D,M], k_proj.weight [H·D,M], v_proj.weight [H·D_v,M], o_proj.weight [M,H·D_v], and where
    there are biases q_proj.bias and so on. num_heads: H. num_kv_heads: G.
    Returns a new dict with the same keys: k_proj and v_proj have G heads (weight and bias), each the mean of R = H/G
    neighbours; everything else is as it was (the same tensors will do).
    Raises ValueError ("divisible") when G does not divide H.
    Source: Ainslie et al. 2023, section 2.1. The result is a starting point for more training.
    """
    ### BEGIN SOLUTION
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} heads are not divisible by {num_kv_heads} groups")

    def pool(rows: Tensor) -> Tensor:
        groups = rows.unflatten(0, (num_kv_heads, num_heads // num_kv_heads, -1))
        return groups.mean(1).flatten(0, 1)

    return {name: pool(rows) if name.startswith(("k_proj.", "v_proj.")) else rows for name, rows in state.items()}
    ### END SOLUTION


def mla_cache_elements(latent: int, rope_dim: int, num_heads: int) -> int:
    """The numbers that multi-head latent attention caches, for one token in one layer.

    latent: C, the width of the row from which all heads' keys and values are made. rope_dim: width of the one rotary
    key that all heads share. num_heads: H.
    Returns an int.
    Source: DeepSeek-V2 (2024), section 2.1.
    """
    ### BEGIN SOLUTION
    return latent + rope_dim
    ### END SOLUTION


def absorb_keys(w_q: Float[Tensor, "HD M"], w_uk: Float[Tensor, "HD C"], num_heads: int) -> Float[Tensor, "H C M"]:
    """Query map and key up-projection of every head, folded into one map.

    w_q: stored [H·D,M], makes queries of rows x. w_uk: stored [H·D,C], makes keys of latent rows c. num_heads: H.
    Returns [H,C,M]: a head's score is c · (absorbed[h] @ x), the same number as (w_q_h @ x) · (w_uk_h @ c). The
    division by sqrt(D) is not in it.
    Source: DeepSeek-V2 (2024), section 2.1. It needs constant maps: nothing that depends on a position in between.
    """
    ### BEGIN SOLUTION
    return torch.einsum("hdc,hdm->hcm", w_uk.unflatten(0, (num_heads, -1)), w_q.unflatten(0, (num_heads, -1)))
    ### END SOLUTION


def absorb_values(w_o: Float[Tensor, "M HD_v"], w_uv: Float[Tensor, "HD_v C"],
                  num_heads: int) -> Float[Tensor, "H M C"]:
    """Value up-projection and output map of every head, folded into one map.

    w_o: stored [M,H·D_v]. w_uv: stored [H·D_v,C], makes values of latent rows c. num_heads: H.
    Returns [H,M,C]: a head that has averaged latent rows to c̄ writes absorbed[h] @ c̄, the same row that w_o would
    make of its averaged values.
    Source: DeepSeek-V2 (2024), section 2.1.
    """
    ### BEGIN SOLUTION
    return torch.einsum("mhd,hdc->hmc", w_o.unflatten(1, (num_heads, -1)), w_uv.unflatten(0, (num_heads, -1)))
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    if not 1 <= window <= length:
        raise ValueError(f"a window of {window} does not fit a length of {length}")
    local = length * window - window * (window - 1) // 2
    causal = length * (length + 1) // 2
    return {"leading": (local_heads * length * window + global_heads * length**2) * head_dim,
            "exact_causal": (local_heads * local + global_heads * causal) * head_dim,
            "dense": (local_heads + global_heads) * length**2 * head_dim}
    ### END SOLUTION
