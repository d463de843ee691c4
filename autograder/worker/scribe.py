"""A model for generation that holds no attention: each token it writes depends on every row it was shown, and where."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def written(shown: list[tuple[int, int]], vocabulary: int) -> int:
    """The token that follows rows (token, position): a sum over them, so that each counts and a second time counts."""
    return sum((token + 1) * (7 * position * position + 3 * position + 5) for token, position in shown) % vocabulary


class Scribe(nn.Module):
    """`model(tokens [B,T], positions, cache) -> (logits [B,T,V], cache)`, and the log of its calls.

    In training it draws random numbers, as dropout does, and writes at random.
    """

    def __init__(self, vocabulary: int, training: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.vocabulary, self.calls = vocabulary, []
        self.train(training)

    def forward(self, tokens: Tensor, positions: Any = None, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        batch, count = tokens.shape
        if positions is None:
            positions = torch.arange(count)
        positions = torch.as_tensor(positions).expand(batch, count)
        rows = torch.stack([tokens, positions], -1)
        past = 0 if cache is None else cache.shape[1]
        self.calls.append({"rows": count, "batch": batch, "first": int(positions[0, 0]), "cached": past,
                           "training": self.training, "graph": torch.is_grad_enabled()})
        seen = rows if cache is None else torch.cat([cache, rows], 1)
        logits = torch.zeros(batch, count, self.vocabulary)
        for b, sample in enumerate(seen.tolist()):
            for t in range(count):
                logits[b, t, written(sample[:past + t + 1], self.vocabulary)] = 1
        if self.training:
            logits = logits + torch.randn(logits.shape)
        return logits * self.weight, seen

    def report(self) -> dict[str, Any]:
        """The calls so far, and the mode that the model is in."""
        return {"calls": list(self.calls), "training": self.training}
