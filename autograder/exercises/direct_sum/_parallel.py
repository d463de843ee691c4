"""What tensor_parallel_attention is compared with: the layer in one process, and the facts that ranks leave behind."""
from __future__ import annotations

import re

import torch

from ... import expect
from .permute_heads import make_state, random_number

TWO = dict(batch=5, tokens=7, heads=6, d=4, width=10, world=2)
FOUR = dict(batch=2, tokens=5, heads=8, d=3, width=10, world=4)
LAYOUT = ("batch", "token", "output")


def fixture(size, bias):
    """(x, state, num_heads)."""
    x = random_number("x", (size["batch"], size["tokens"], size["width"]))
    return x, make_state(size["heads"], size["d"], size["d"], size["width"], bias, random_number), size["heads"]


def writes(x, state, heads):
    """What each head adds to the output, in float64, one head after the other: [H,B,S,M]."""
    def rows(role):
        weight, bias = state[f"{role}_proj.weight"], state.get(f"{role}_proj.bias")
        return torch.einsum("bsm,om->bso", x, weight) + (0 if bias is None else bias)
    q, k, v = (rows(role).chunk(heads, dim=-1) for role in "qkv")
    blocks = state["o_proj.weight"].chunk(heads, dim=1)
    mixed = [(q[h] @ k[h].mT / q[h].shape[-1]**0.5).softmax(-1) @ v[h] for h in range(heads)]
    return torch.stack([torch.einsum("bsd,md->bsm", m, w) for m, w in zip(mixed, blocks, strict=True)])


def oracle(x, state, heads):
    """One process, all heads."""
    return writes(x, state, heads).sum(0) + state.get("o_proj.bias", 0)


def parts(x, state, heads, world):
    """What each rank adds, without b_O."""
    return writes(x, state, heads).unflatten(0, (world, -1)).sum(1)


def differs(got, want, what, number, x, state, heads, world):
    """Mismatch, with what the difference is when it is something simple."""
    own, bias = parts(x, state, heads, world)[number], state.get("o_proj.bias")
    reason = ""
    if bias is not None and near(got - want, ((world - 1) * bias).expand_as(want)):
        reason = f"; the excess is {world - 1} times b_O in every row"
    elif near(got, own) or bias is not None and near(got, own + bias):
        first = number * heads // world
        reason = f"; it is the sum of heads {first} to {first + heads // world - 1} alone"
    elif near(got * world, want):
        reason = f"; it is 1/{world} of what is expected"
    try:
        expect.close(got, want, what, LAYOUT, atol=1e-9)
    except expect.Mismatch as m:
        raise expect.Mismatch(f"{m}{reason}", m.figure) from None


def near(a, b, tolerance=1e-8):
    return (isinstance(a, torch.Tensor) and a.shape == b.shape and a.is_floating_point()
            and torch.allclose(a.double(), b, atol=tolerance, rtol=1e-6))


def projected(contractions, size):
    """Channels of q, k and v that a row was projected to: products over M, divided by the rows."""
    done = sum(rows * columns for rows, inner, columns in contractions if inner == size["width"])
    return done / (size["batch"] * size["tokens"])


def columns_met(facts):
    """For each rank, how many columns of a weight its heads met in vain, 0 when unknown; None without such an error."""
    own, every = facts.heads * facts.size["d"] // facts.world, facts.heads * facts.size["d"]
    if facts.error != "RuntimeError" or facts.called("allgather", "allreduce"):
        return None
    if not {own, every} <= set(map(int, re.findall(r"\d+", facts.message))):
        return None
    last = [c[-1] for c in facts.contractions if c]
    return [columns if inner == own else 0 for _, inner, columns in last] or [0]


class Facts:
    """One case's transcript: the values of the ranks, what they called and what they multiplied."""

    def __init__(self, trials, probe, size, bias):
        trial = next(t for t in trials if t.case.probe is probe)
        seen = trial.transcript[-1] if trial.transcript else None
        self.error, self.message = (seen.error, trial.message) if seen else ("", "")
        rows = seen.value if seen and isinstance(seen.value, list) else []
        self.values, self.collectives, self.contractions = ([r[i] for r in rows] for i in range(3))
        self.size, self.world = size, size["world"]
        self.x, self.state, self.heads = fixture(size, bias)

    def returned(self, want) -> bool:
        """Every rank returned this; `want` is one tensor for all, or one a rank ([world, ...])."""
        shape = (self.size["batch"], self.size["tokens"], self.size["width"])
        each = want if want.dim() == 4 else want.expand(self.world, *shape)
        return len(self.values) == self.world and not self.error and all(
            near(v, w) for v, w in zip(self.values, each, strict=True))

    def called(self, *starts) -> int:
        """The largest number of such collectives on one rank."""
        return max((sum(n for name, n in c.items() if name.startswith(starts)) for c in self.collectives), default=0)
