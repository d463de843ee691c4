"""Session 07, the timed half: the same values, fewer and larger products, no memory that nobody needs.

Letters: B batch, T target (query) length, S source (key) length, H query heads, G key/value heads, D head width of
queries and keys, D_v head width of values. A boolean mask is True where a query may look. `check` counts what a program
asks torch for, then takes its time beside a reference on one CPU thread. Inside the check `torch.compile` is a request
that is not granted: the function runs as it is written.
"""
import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def batched_attention(q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S D_v"],
                      visible: Bool[Tensor, "*axes"] | None = None) -> Float[Tensor, "B H T D_v"]:
    """Attention of all heads and samples in two batched products.

    q: [B,H,T,D]. k: [B,H,S,D]. v: [B,H,S,D_v]. visible: boolean, True where a query may look, broadcastable to
    [B,H,T,S]; None when all is visible.
    Returns heads [B,H,T,D_v] = softmax over S of q·k / √D, times v. No loop over samples or heads: at most two products
    are asked for, and no tensor of B·H·T·S·D elements exists on the way.
    Raises ValueError ("no visible key") when a query may look at nothing.
    Source: Vaswani et al. 2017, section 3.2.1; `torch.bmm` for the batched product.
    """
    ### BEGIN SOLUTION
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if visible is not None:
        if not visible.any(-1).all():
            raise ValueError("a query has no visible key")
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ v
    ### END SOLUTION


def attention_without_query_loop(q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"],
                                 v: Float[Tensor, "B H S D_v"]) -> Float[Tensor, "B H T D_v"]:
    """Attention of all queries at once.

    q: [B,H,T,D]. k: [B,H,S,D]. v: [B,H,S,D_v].
    Returns heads [B,H,T,D_v] = softmax over S of q·k / √D, times v. No loop over queries: at most two products are
    asked for, and no tensor of B·H·T·S·D elements exists on the way.
    Source: Vaswani et al. 2017, section 3.2.1.
    """
    ### BEGIN SOLUTION
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v
    ### END SOLUTION


def grouped_decode(q: Float[Tensor, "B H 1 D"], k_cache: Float[Tensor, "B G S_max D"],
                   v_cache: Float[Tensor, "B G S_max D_v"], length: int) -> Float[Tensor, "B H 1 D_v"]:
    """One new query of every head against a cache that is filled up to `length`.

    q: [B,H,1,D]. k_cache: [B,G,S_max,D] and v_cache: [B,G,S_max,D_v], rows 0 to length - 1 filled, NaN in the rest.
    length: tokens in the cache, the newest included, 1 to S_max. Query head h reads key/value head h // (H/G).
    Returns heads [B,H,1,D_v]. K and V are not repeated: less new memory than B·H·length·D elements, all told.
    Raises ValueError ("length") for a length below 1 or above S_max.
    Source: Ainslie et al. 2023, "GQA", section 2.2, for the groups; Derivation for the folded product.
    """
    ### BEGIN SOLUTION
    if not 1 <= length <= k_cache.shape[2]:
        raise ValueError(f"the length {length} is not between 1 and the cache's {k_cache.shape[2]} rows")
    k, v = k_cache[:, :, :length], v_cache[:, :, :length]
    grouped = q.reshape(*k.shape[:2], -1, q.shape[-1])
    scores = grouped @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (scores.softmax(-1) @ v).reshape(*q.shape[:3], v.shape[-1])
    ### END SOLUTION


def compiled_softmax(scores: Float[Tensor, "B H T S"], visible: Bool[Tensor, "*axes"]) -> Float[Tensor, "B H T S"]:
    """A masked softmax over the keys that survives scores of any size, eager or under `torch.compile`.

    scores: [B,H,T,S], of any size: those of blocked keys too. visible: boolean, True where a query may look,
    broadcastable to [B,H,T,S].
    Returns probabilities [B,H,T,S]: exactly 0 where blocked, and every row sums to 1.
    Raises ValueError ("no visible key") when a query may look at nothing.
    Source: Derivation: softmax does not change when a constant is taken off a row; `torch.compile` for the request.
    """
    ### BEGIN SOLUTION
    if not visible.any(-1).all():
        raise ValueError("a query has no visible key")
    return scores.masked_fill(~visible, -torch.inf).softmax(-1)
    ### END SOLUTION
