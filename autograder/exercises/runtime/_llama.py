"""A Llama attention layer in logical parts, how checkpoints store it, and its answer, one head after another."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from ...standard import normal
from ._rotation import rotate


@dataclass(frozen=True)
class Layer:
    """One fixture: sizes, conventions, and a seed for its numbers."""

    hidden: int = 20
    heads: int = 12
    kv_heads: int = 3
    head_dim: int = 8
    bias: bool = False
    rope: str = "half"
    storage: str = "linear"
    fused: str | None = None
    base: float | None = None
    seed: int = 0

    @property
    def config(self) -> dict:
        """What a loader is told."""
        names = "hidden", "heads", "kv_heads", "head_dim", "bias", "rope", "storage", "fused"
        told = {name: getattr(self, name) for name in names}
        return told if self.base is None else told | {"base": self.base}

    def parts(self, dtype=torch.float64) -> dict[str, torch.Tensor]:
        """{"q": [H,D,M], "k": [G,D,M], "v": [G,D,M], "o": [M,H,D]} and, with biases, "q bias": [H,D] and so on."""
        h, g, d, m = self.heads, self.kv_heads, self.head_dim, self.hidden
        shapes = {"q": (h, d, m), "k": (g, d, m), "v": (g, d, m), "o": (m, h, d)}
        parts = {role: normal(*shape, seed=100 * self.seed + i) / math.sqrt(m)
                 for i, (role, shape) in enumerate(shapes.items())}
        if self.bias:
            parts |= {f"{role} bias": normal(*(shape[:2] if role != "o" else shape[:1]), seed=100 * self.seed + 50 + i)
                      for i, (role, shape) in enumerate(shapes.items())}
        return {name: part.to(dtype) for name, part in parts.items()}

    def state(self, dtype=torch.float64) -> dict[str, torch.Tensor]:
        """The checkpoint."""
        parts = self.parts(dtype)
        kinds = ("", " bias") if self.bias else ("",)
        state = {}
        for kind in kinds:
            rows = {role: parts[role + kind] for role in "qkv"}
            suffix = ".bias" if kind else ".weight"
            if self.fused:
                state["qkv_proj" + suffix] = self._fuse(rows)
            else:
                state |= {f"{role}_proj{suffix}": part.flatten(0, 1) for role, part in rows.items()}
            state["o_proj" + suffix] = parts["o" + kind] if kind else parts["o"].flatten(1)
        if self.storage == "conv1d":
            state = {name: t.T.contiguous() if t.dim() == 2 else t for name, t in state.items()}
        return state

    def _fuse(self, rows):
        if self.fused == "qkv":
            return torch.cat([rows[role].flatten(0, 1) for role in "qkv"])
        share = self.heads // self.kv_heads
        blocks = []
        for g in range(self.kv_heads):
            blocks += [rows["q"][g * share + r] for r in range(share)] + [rows["k"][g], rows["v"][g]]
        return torch.cat(blocks)

    def other(self, **changes) -> Layer:
        return replace(self, **changes)


SQUARE = Layer(hidden=24, heads=4, kv_heads=4, head_dim=6)
WIDE = Layer(hidden=12, heads=4, kv_heads=4, head_dim=10)
CANONICAL = Layer(hidden=24, heads=6, kv_heads=2, head_dim=4)


def rows(layer: Layer, tokens=5, seed=0, dtype=torch.float64):
    return normal(2, tokens, layer.hidden, seed=1000 + seed, dtype=dtype)


def answer(layer: Layer, parts, x, positions=None, causal=True):
    """(output [B,T,M], keys [B,G,T,D] rotated, values [B,G,T,D]), without a cache."""
    tokens = x.shape[1]
    positions = torch.arange(tokens) if positions is None else positions

    def project(role):
        rows = torch.einsum("btm,hdm->bhtd", x, parts[role])
        return rows + parts[f"{role} bias"][:, None] if layer.bias else rows

    queries, keys = (rotate(project(role), positions, layer.base or 10000.0, layer.rope) for role in "qk")
    values = project("v")
    output = parts["o bias"].expand(*x.shape) if layer.bias else torch.zeros_like(x)
    seen = torch.tensor([[s <= t or not causal for s in range(tokens)] for t in range(tokens)])
    for h in range(layer.heads):
        g = h // (layer.heads // layer.kv_heads)
        scores = torch.einsum("btd,bsd->bts", queries[:, h], keys[:, g]) / math.sqrt(layer.head_dim)
        mixed = scores.where(seen, -torch.inf).softmax(-1) @ values[:, g]
        output = output + mixed @ parts["o"][:, h].T
    return output, keys, values
