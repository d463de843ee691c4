"""Multi-head attention as a float64 loop over heads, and the fixtures it is asked about."""
from functools import cache

import torch

from ... import standard

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
# batch, queries, keys, d_model, heads
E, X, OTHER, ONE = (2, 5, 7, 12, 3), (3, 6, 6, 12, 3), (4, 3, 7, 10, 5), (2, 3, 5, 4, 1)


def attend(state, num_heads, query, key, value, visible=None):
    """(output [B,T,M], probabilities [B,H,T,S]) in float64; differentiable.

    Each head owns rows of the stored maps, and writes through its own columns of W_O: no split, no merge.
    """
    state = {k: v.double() for k, v in state.items()}
    query, key, value = query.double(), key.double(), value.double()
    width = query.shape[-1] // num_heads
    output, probabilities = 0.0, []
    for head in range(num_heads):
        rows = slice(head * width, (head + 1) * width)
        q, k, v = (x @ state[f"{n}.weight"][rows].T + state.get(f"{n}.bias", torch.zeros(num_heads * width))[rows]
                   for x, n in zip((query, key, value), PROJECTIONS, strict=False))
        scores = torch.einsum("btd,bsd->bts", q, k) / width ** 0.5
        if visible is not None:
            seen = visible.expand(len(query), num_heads, *scores.shape[1:])[:, head]
            scores = torch.where(seen, scores, -torch.inf)
        weights = torch.softmax(scores, -1)
        probabilities.append(weights)
        output = output + weights @ v @ state["o_proj.weight"][:, rows].T
    return output + state.get("o_proj.bias", 0.0), torch.stack(probabilities, 1)


def random_state(d_model, seed=20, bias=False):
    """Four square maps of variance 1/M, and their biases if asked."""
    state = {f"{n}.weight": standard.normal(d_model, d_model, seed=seed + i) / d_model ** 0.5
             for i, n in enumerate(PROJECTIONS)}
    if bias:
        state |= {f"{n}.bias": standard.normal(d_model, seed=seed + 4 + i) for i, n in enumerate(PROJECTIONS)}
    return state


@cache
def random_call(sizes, bias=False):
    """(state, query, key, value): three different tensors."""
    batch, queries, keys, d_model, _ = sizes
    return (random_state(d_model, bias=bias), standard.normal(batch, queries, d_model, seed=30),
            standard.normal(batch, keys, d_model, seed=31), standard.normal(batch, keys, d_model, seed=32))


@cache
def self_call(sizes):
    """(state, x, x, x): the same tensor three times."""
    state, query, *_ = random_call(sizes)
    query = query.clone().requires_grad_()
    return state, query, query, query


@cache
def wanted(call, sizes, mask=None, merged=False):
    """The oracle's answer to `call(sizes)` under `mask(sizes)`; `merged` leaves W_O out."""
    state, *inputs = call(sizes)
    if merged:
        state = state | {"o_proj.weight": torch.eye(sizes[3])}
    answer = attend(state, sizes[4], *inputs, mask and mask(sizes))
    return tuple(t.detach() for t in answer)


@cache
def coded_call(sizes):
    """Equal scores and values that name their key, through four identity maps.

    Channels of a head: 2^key; ±2^16, which cancels over all keys; 1; 0. The first shows which keys a query averages,
    the second shows weights that are equal only almost, the third sums the weights.
    """
    batch, queries, keys, d_model, heads = sizes
    state = {f"{n}.weight": torch.eye(d_model, dtype=torch.float64) for n in PROJECTIONS}
    key = torch.arange(keys, dtype=torch.float64)
    signs = torch.sign((keys - 1) / 2 - key) * 2.0 ** 16
    codes = torch.stack([2 ** key, signs, torch.ones(keys), torch.zeros(keys)], -1)
    value = codes.repeat(1, heads).expand(batch, -1, -1).contiguous()
    return (state, torch.zeros(batch, queries, d_model, dtype=torch.float64),
            standard.normal(batch, keys, d_model, seed=33), value)


@cache
def steep_call(sizes):
    """(state, query, key, value, visible) with scores near ±3·10⁴; what is visible lies below what is blocked."""
    batch, queries, keys, d_model, heads = sizes
    width = d_model // heads
    state = {f"{n}.weight": torch.eye(d_model, dtype=torch.float64) for n in PROJECTIONS}
    query, key = (standard.normal(batch, n, heads, width, seed=40 + i) for i, n in enumerate((queries, keys)))
    side = torch.tensor([1.0, -1.0]).repeat(keys)
    query[..., 0], key[..., 0] = 300 * side[:queries, None], 200 * side[:keys, None]
    scores = side[:queries, None] * side[:keys]
    visible = (scores < 0).expand(batch, 1, -1, -1).clone()
    visible[:, :, :, 0] |= scores[:, 0] > 0
    visible[:, :, 0, 0] = visible[:, :, 2, 0] = False
    return (state, query.flatten(2), key.flatten(2), standard.normal(batch, keys, d_model, seed=42), visible)


def padding(sizes):
    """[B,1,1,S]: sample b hides its last 1 + b keys."""
    batch, _, keys, *_ = sizes
    return (torch.arange(keys) < keys - 1 - torch.arange(batch)[:, None])[:, None, None]


def staircase(sizes):
    """[T,S]: query t sees the keys 0 to t, and never the last one; no row is all visible or all blocked."""
    _, queries, keys, *_ = sizes
    return torch.arange(keys) <= torch.arange(queries)[:, None].clamp(max=keys - 2)


def staircases(sizes):
    """[B,1,T,S]: the staircase for every sample."""
    batch, queries, keys, *_ = sizes
    return staircase(sizes).expand(batch, 1, queries, keys).contiguous()


def per_head(sizes):
    """[1,H,T,S]: head h sees the key t + h (modulo S) and its right neighbour."""
    _, queries, keys, _, heads = sizes
    first = (torch.arange(heads)[:, None, None] + torch.arange(queries)[:, None]) % keys
    return ((torch.arange(keys) - first) % keys < 2)[None]


def scattered(sizes, *shape, seed=50):
    """A random mask of any shape, with a visible and a blocked key in every row."""
    visible = standard.normal(*shape, seed=seed) > 0
    visible[..., 0], visible[..., 1] = True, False
    return visible
