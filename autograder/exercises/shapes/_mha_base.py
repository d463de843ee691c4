"""The contract of multi-head attention with one method a step, for known programs to override."""
from torch import nn

from ._mha_oracle import PROJECTIONS


def check_heads(d_model, num_heads):
    if d_model % num_heads:
        raise ValueError(f"d_model {d_model} is not divisible by {num_heads} heads")
    return d_model // num_heads


def check_call(d_model, query, key, value, visible):
    """The refusals of forward."""
    if {query.shape[-1], key.shape[-1], value.shape[-1]} != {d_model}:
        raise ValueError(f"inputs need the width {d_model}")
    if key.shape[1] != value.shape[1]:
        raise ValueError("key and value length differ")
    if visible is not None:
        if visible.dim() == 3:
            raise ValueError("a mask of three axes has no head axis")
        if not visible.any(-1).all():
            raise ValueError("a query has no visible key")


class Base(nn.Module):
    def __init__(self, d_model, num_heads, bias=False):
        super().__init__()
        self.d_model, self.num_heads, self.width = d_model, num_heads, check_heads(d_model, num_heads)
        for name in PROJECTIONS:
            setattr(self, name, nn.Linear(d_model, d_model, bias=bias))

    def check(self, query, key, value, visible):
        check_call(self.d_model, query, key, value, visible)

    def split(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.width).transpose(1, 2)

    def heads(self, query, key, value):
        return self.split(self.q_proj(query)), self.split(self.k_proj(key)), self.split(self.v_proj(value))

    def scale(self):
        return self.width ** -0.5

    def hide(self, scores, visible):
        return scores.masked_fill(~visible, float("-inf"))

    def normalise(self, scores):
        return scores.softmax(-1)

    def weigh(self, scores, visible):
        return self.normalise(scores if visible is None else self.hide(scores, visible))

    def merge(self, mixed):
        return mixed.transpose(1, 2).flatten(2)

    def answer(self, merged, weights):
        return self.o_proj(merged), weights

    def forward(self, query, key, value, visible=None):
        self.check(query, key, value, visible)
        q, k, v = self.heads(query, key, value)
        weights = self.weigh(q @ k.mT * self.scale(), visible)
        return self.answer(self.merge(weights @ v), weights)
