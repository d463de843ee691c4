"""Calls to trace: one attention surface of the framework, as a module. And the modes in which a call is made."""
from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Surface(nn.Module):
    """`surface(*inputs)` makes the call that its recipe describes.

    {"surface": "sdpa", "mask": tensor or None, "is_causal": bool, "dropout_p": float} over (q, k, v);
    {"surface": "by hand", "mask": additive tensor or None}, the same from elementary operators;
    {"surface": "module", "width", "heads", "need_weights"}, an `nn.MultiheadAttention` over (query, key, value).
    "training" sets the mode.
    """

    def __init__(self, recipe: dict[str, Any]):
        super().__init__()
        self.recipe = recipe
        if recipe["surface"] == "module":
            self.attention = nn.MultiheadAttention(recipe["width"], recipe["heads"], batch_first=True)
            self.requires_grad_(False)
        self.train(recipe.get("training", False))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = self.recipe.get("mask")
        if self.recipe["surface"] == "module":
            return self.attention(query, key, value, need_weights=self.recipe.get("need_weights", False))[0]
        if self.recipe["surface"] == "sdpa":
            return F.scaled_dot_product_attention(query, key, value, mask, self.recipe.get("dropout_p", 0.0),
                                                  self.recipe.get("is_causal", False))
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return (scores if mask is None else scores + mask).softmax(-1) @ value


def modes(asked: dict[str, bool] | None) -> contextlib.ExitStack:
    """The context of a call: {"grad": whether autograd records, "autocast": whether CPU autocast is on}."""
    stack = contextlib.ExitStack()
    if asked:
        stack.enter_context(torch.set_grad_enabled(asked.get("grad", True)))
        stack.enter_context(torch.autocast("cpu", enabled=asked.get("autocast", False)))
    return stack
