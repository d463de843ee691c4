"""Given to every session: one attention call over rows that are already projected and split into heads.

Letters: B batch, H heads, T target length, S source length, D width of queries and keys, D_v width of values.
"""
import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def attend(q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S D_v"],
           visible: Bool[Tensor, "*axes"] | None = None) -> tuple[Float[Tensor, "B H T D_v"],
                                                                 Float[Tensor, "B H T S"]]:
    """Scaled dot-product attention, head by head.

    q: [B,H,T,D]. k: [B,H,S,D]. v: [B,H,S,D_v]. visible: boolean, True where a query may look, broadcastable to
    [B,H,T,S]; None when all is visible.
    Returns (heads [B,H,T,D_v], probabilities [B,H,T,S]): probabilities = softmax over S of q·k / sqrt(D),
    heads = probabilities @ v. There is no dropout here.
    Raises ValueError ("no visible key") when a query may look at nothing: its softmax does not exist.
    Source: Vaswani et al. 2017, section 3.2.1.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if visible is not None:
        if not visible.any(-1).all():
            raise ValueError("a query has no visible key")
        scores = scores.masked_fill(~visible, -torch.inf)
    probabilities = scores.softmax(-1)
    return probabilities @ v, probabilities


def local_backward(grad_heads: Float[Tensor, "B H T D_v"], q: Float[Tensor, "B H T D"],
                   k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S D_v"],
                   probabilities: Float[Tensor, "B H T S"]) -> tuple[
                       Float[Tensor, "B H T D"], Float[Tensor, "B H S D"], Float[Tensor, "B H S D_v"]]:
    """The gradients that one `attend` call sends back to its queries, keys and values.

    grad_heads: [B,H,T,D_v], the gradient of a loss for the heads that `attend` returned; q, k, v and
    probabilities as in that call. A blocked pair has probability 0 and so passes nothing back.
    Returns (grad_q [B,H,T,D], grad_k [B,H,S,D], grad_v [B,H,S,D_v]).
    Source: Derivation. With dP = dO·vᵀ, softmax sends back dS = P * (dP - sum over S of P·dP).
    """
    grad_probabilities = grad_heads @ v.transpose(-2, -1)
    row_mean = (probabilities * grad_probabilities).sum(-1, keepdim=True)
    grad_scores = probabilities * (grad_probabilities - row_mean) / math.sqrt(q.shape[-1])
    return grad_scores @ k, grad_scores.transpose(-2, -1) @ q, probabilities.transpose(-2, -1) @ grad_heads
