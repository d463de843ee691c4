"""Grouped-query attention as a loop over query heads on slices of the stored maps, and the fixtures it is asked
about."""
from dataclasses import dataclass
from functools import cache

import torch

from ... import standard

# d_model, heads, key/value heads, head width; H·D = 96 is not M = 20
G, OTHER, CLASSIC, ONE, SMALLEST = (20, 12, 3, 8), (10, 8, 2, 3), (12, 3, 3, 4), (14, 4, 1, 5), (6, 1, 1, 1)


def rows(sizes):
    """The shape of each stored map."""
    d_model, heads, groups, width = sizes
    return {"q_proj.weight": (heads * width, d_model), "k_proj.weight": (groups * width, d_model),
            "v_proj.weight": (groups * width, d_model), "o_proj.weight": (d_model, heads * width)}


@cache
def random_state(sizes, seed=20):
    return {name: 1.5 * standard.normal(*shape, seed=seed + i) / shape[1]**0.5
            for i, (name, shape) in enumerate(rows(sizes).items())}


def answer(state, sizes, x, causal=False, cache=None, valid=None):
    """(output, probabilities, (k, v)) in float64; differentiable."""
    state, x = {n: w.double() for n, w in state.items()}, x.double()
    _, heads, groups, width = sizes
    new = x.shape[1]

    def blocks(role, count):
        return [x @ state[f"{role}_proj.weight"][i * width:(i + 1) * width].T for i in range(count)]
    k, v = torch.stack(blocks("k", groups), 1), torch.stack(blocks("v", groups), 1)
    if cache is not None:
        k, v = torch.cat([cache[0].double(), k], 2), torch.cat([cache[1].double(), v], 2)
    keys = k.shape[2]
    at = torch.arange(keys)
    seen = (at <= at[keys - new:, None]) if causal else torch.ones(new, keys, dtype=torch.bool)
    seen = seen.expand(len(x), new, keys) if valid is None else seen & valid[:, None]
    output, weights = 0.0, []
    for head, q in enumerate(blocks("q", heads)):
        group = head * groups // heads
        scores = torch.where(seen, torch.einsum("btd,bsd->bts", q, k[:, group]) / width**0.5, -torch.inf)
        weights.append(scores.softmax(-1))
        output = output + weights[-1] @ v[:, group] @ state["o_proj.weight"][:, head * width:(head + 1) * width].T
    return output, torch.stack(weights, 1), (k, v)


VALID = torch.tensor([[True, False, True, True, True], [True, True, True, True, False]])


@dataclass(frozen=True, eq=False)
class Call:
    """One chunk of a sequence: what forward is given beside a cache, the oracle's cache, and the oracle's answer."""

    rows: torch.Tensor
    given: dict
    cache: tuple | None
    want: tuple


def random_rows(sizes, tokens=5):
    return standard.normal(2, tokens, sizes[0], seed=30)


@cache
def calls(sizes, lengths, causal=True, padded=False, dtype=torch.float64):
    """The chunks of one sequence, in order; rows, maps and caches are rounded to the dtype, answers are in float64."""
    state = {name: weight.to(dtype) for name, weight in random_state(sizes).items()}
    x, past, at, made = random_rows(sizes, sum(lengths)).to(dtype), None, 0, []
    for length in lengths:
        rows, at = x[:, at:at + length], at + length
        given = ({"causal": True} if causal else {}) | ({"valid": VALID[:, :at]} if padded else {})
        want = answer(state, sizes, rows, cache=past, **given)
        made.append(Call(rows, given, past, want))
        past = tuple(t.to(dtype) for t in want[2])
    return made


def coded_state(sizes):
    """Equal scores; the values of key/value head g are 10^g times the first input channel; output h shows head h."""
    _, heads, groups, width = sizes
    state = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in rows(sizes).items()}
    for group in range(groups):
        state["v_proj.weight"][group * width, 0] = 10.0**group
    for head in range(heads):
        state["o_proj.weight"][head, head * width] = 1
    return state
