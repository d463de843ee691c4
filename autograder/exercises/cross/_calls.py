"""Cross-attention calls: fixtures, the oracle by loops over heads, and the parts that programs are made of."""
import math

import torch

from ...lab import Mismatch
from ...standard import normal
from ..adjoints._attention import attended, merge, projected, split, state

__all__ = ["A", "E", "X", "attended", "checked", "first_blind", "merge", "oracle", "projected", "rows", "split",
           "state", "tensors", "valid_rows", "whole"]

A = dict(batch=2, heads=3, targets=5, sources=7, d_qk=4, d_v=6, width=10)
E = dict(batch=2, heads=3, targets=5, sources=7, d_qk=4, d_v=4, width=12)
X = dict(batch=3, heads=3, targets=6, sources=6, d_qk=4, d_v=4, width=12)


def rows(sizes, seed=0):
    """(target [B,T,M], source [B,S,M]), drawn at random."""
    b, m = sizes["batch"], sizes["width"]
    return normal(b, sizes["targets"], m, seed=seed + 40), normal(b, sizes["sources"], m, seed=seed + 41)


def valid_rows(sizes):
    """[B,S]: the last rows of every other sample are padding."""
    lengths = torch.tensor([sizes["sources"] - 2 * (b % 2) - b // 2 for b in range(sizes["batch"])])
    return torch.arange(sizes["sources"]) < lengths[:, None]


def whole(x, state, role, heads):
    """One role's rows, head by head: a list of [B,rows,D]."""
    weight, bias = state[f"{role}_proj.weight"], state.get(f"{role}_proj.bias")
    d = weight.shape[0] // heads
    out = []
    for h in range(heads):
        y = torch.einsum("btm,dm->btd", x, weight[h * d:(h + 1) * d])
        out.append(y if bias is None else y + bias[h * d:(h + 1) * d])
    return out


def oracle(target, source, state, num_heads, visible=None):
    """(output, probabilities), one head after another, in the dtype of its inputs."""
    every = [whole(x, state, role, num_heads) for role, x in (("q", target), ("k", source), ("v", source))]
    output, probabilities, w_o = 0, [], state["o_proj.weight"]
    for h, (q, k, v) in enumerate(zip(*every, strict=True)):
        scores = torch.einsum("btd,bsd->bts", q, k) / math.sqrt(q.shape[-1])
        if visible is not None:
            seen = visible[:, h if visible.shape[1] > 1 else 0]
            scores = torch.where(seen, scores, torch.full_like(scores, -torch.inf))
        probabilities.append(scores.softmax(-1))
        d = v.shape[-1]
        output = output + torch.einsum("bts,bsd,md->btm", probabilities[-1], v, w_o[:, h * d:(h + 1) * d])
    bias = state.get("o_proj.bias")
    return output if bias is None else output + bias, torch.stack(probabilities, 1)


def checked(target, source, state):
    """The refusals of the contract."""
    if target.shape[-1] != state["q_proj.weight"].shape[1] or source.shape[-1] != state["k_proj.weight"].shape[1]:
        raise ValueError("the width of the rows does not fit the weights")
    if target.shape[0] != source.shape[0]:
        raise ValueError("batch: one source for every target")


def first_blind(visible):
    """Raises where a query sees nothing."""
    if visible is not None and not visible.any(-1).all():
        raise ValueError("no visible key for some query")


def tensors(got, names):
    """A tuple of as many tensors as there are names."""
    if not isinstance(got, (tuple, list)) or len(got) != len(names) or not all(
            isinstance(t, torch.Tensor) for t in got):
        kind = f"a tensor {list(got.shape)}" if isinstance(got, torch.Tensor) else f"a {type(got).__name__}"
        raise Mismatch(f"the result is {kind}, expected the tuple ({', '.join(names)})")
    return got
