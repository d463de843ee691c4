"""What the two attention kernels share: a float64 oracle, and faulty online softmaxes, simulated for any block size."""
from __future__ import annotations

import math

import torch

BLOCKS = (16, 32, 64, 128)
NEVER = -float("inf")


def scores_of(q, k, causal=False):
    """Scaled scores in float64, -inf where the triangle that ends at the lower right hides a key."""
    scores = torch.einsum("bhtd,bhsd->bhts", q.double(), k.double()) / math.sqrt(q.shape[-1])
    t, s = scores.shape[-2:]
    hidden = torch.arange(s)[None, :] > torch.arange(t)[:, None] + s - t
    return scores.masked_fill(hidden, NEVER) if causal else scores


def attend(q, k, v, causal=False):
    """(heads, log-sum-exp) in float64, from the whole score matrix."""
    scores = scores_of(q, k, causal)
    lse = scores.logsumexp(-1)
    return torch.einsum("bhts,bhsd->bhtd", (scores - lse[..., None]).exp(), v.double()), lse


def simulate(fault: str, q, k, v, causal: bool, block_q: int, block_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(heads, lse) of an online softmax over blocks of keys with one fault, in float64."""
    scores, v = scores_of(q, k, causal), v.double()
    keys, queries = scores.shape[-1], scores.shape[-2]
    stop = keys // block_k * block_k if fault == "last-block-dropped" else keys
    pad = -keys % block_k
    if fault == "tail-keys-counted" and pad and not causal:
        scores = torch.cat([scores, torch.zeros(*scores.shape[:-1], pad, dtype=scores.dtype)], -1)
        v = torch.cat([v, torch.zeros(*v.shape[:2], pad, v.shape[-1], dtype=v.dtype)], 2)
        stop = keys + pad
    maximum = torch.full(scores.shape[:-1], NEVER, dtype=torch.float64)
    total, summed = torch.zeros_like(maximum), torch.zeros(*scores.shape[:-1], v.shape[-1], dtype=torch.float64)
    starts = torch.arange(queries) // block_q * block_q + keys - queries
    for start in range(0, stop, block_k):
        part, values = scores[..., start:start + block_k], v[:, :, start:start + block_k]
        new = torch.maximum(maximum, part.amax(-1))
        safe = torch.where(new == NEVER, 0.0, new)
        rescale, weights = (maximum - safe).exp(), (part - safe[..., None]).exp()
        more = total * (1 if fault == "sum-not-rescaled" else rescale) + weights.sum(-1)
        acc = summed * (1 if fault == "accumulator-not-rescaled" else rescale[..., None]) + weights @ values
        used = torch.ones(queries, dtype=torch.bool)
        if fault == "diagonal-block-skipped" and causal:
            used = start + block_k - 1 <= starts
        maximum, total = torch.where(used, new, maximum), torch.where(used, more, total)
        summed = torch.where(used[:, None], acc, summed)
    return summed / total[..., None], maximum + total.log()


def agrees(got, want: torch.Tensor) -> bool:
    return (isinstance(got, torch.Tensor) and got.shape == want.shape
            and torch.allclose(got.double(), want, rtol=1e-4, atol=1e-5, equal_nan=True))
