"""Grouped attention as a loop over query heads on compact keys and values, and what the exercises share."""
import torch

from ... import standard


def attend(q, k, v, visible=None):
    """(heads [B,H,T,D_v], probabilities [B,H,T,S]); differentiable, in the inputs' dtype."""
    batch, heads, queries, width = q.shape
    group_size = heads // k.shape[1]
    mixed, weights = [], []
    for head in range(heads):
        key, value = k[:, head // group_size], v[:, head // group_size]
        scores = torch.einsum("btd,bsd->bts", q[:, head], key) / width**0.5
        if visible is not None:
            seen = visible.expand(batch, heads, queries, key.shape[1])[:, head]
            scores = torch.where(seen, scores, -torch.inf)
        weights.append(torch.softmax(scores, -1))
        mixed.append(weights[-1] @ value)
    return torch.stack(mixed, 1), torch.stack(weights, 1)


def scattered(*shape, seed=50):
    """A random mask of any shape, with a visible and a blocked key in every row."""
    visible = standard.normal(*shape, seed=seed) > 0
    visible[..., 0], visible[..., 1] = True, False
    return visible


def heads_read(found):
    """`[0, 0, 1, ?]`: key/value heads by query head, as a list in words."""
    return f"[{', '.join('?' if head is None else str(head) for head in found)}]"
