"""The contract of grouped-query attention with one method a step, for known programs to override."""
import torch
from torch import nn

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def head_sizes(d_model, num_heads, num_kv_heads, head_dim):
    """(H, G, D), after the refusals."""
    groups = num_heads if num_kv_heads is None else num_kv_heads
    if min(num_heads, groups, 1 if head_dim is None else head_dim) < 1:
        raise ValueError("sizes must be positive")
    if num_heads % groups or head_dim is None and d_model % num_heads:
        raise ValueError("not divisible")
    return num_heads, groups, d_model // num_heads if head_dim is None else head_dim


class Base(nn.Module):
    def __init__(self, d_model, num_heads, num_kv_heads=None, head_dim=None):
        super().__init__()
        self.heads, self.groups, self.width = self.sizes(d_model, num_heads, num_kv_heads, head_dim)
        self.members = self.heads // self.groups
        self.maps(d_model)

    def sizes(self, *args):
        return head_sizes(*args)

    def maps(self, d_model):
        for name, rows in zip(PROJECTIONS, (self.heads, self.groups, self.groups), strict=False):
            setattr(self, name, nn.Linear(d_model, rows * self.width, bias=False))
        self.o_proj = nn.Linear(self.heads * self.width, d_model, bias=False)

    def split(self, x, heads):
        return x.unflatten(-1, (heads, self.width)).transpose(1, 2)

    def project(self, x):
        return (self.split(self.q_proj(x), self.heads), self.split(self.k_proj(x), self.groups),
                self.split(self.v_proj(x), self.groups))

    def check_lane(self, cache, causal):
        if cache is not None and not causal:
            raise ValueError("a cache serves causal attention only")

    def check_cache(self, cache, k):
        past = cache[0].shape[-2]
        for old in cache:
            if old.shape != (k.shape[0], self.groups, past, self.width) or old.dtype != k.dtype:
                raise ValueError("the cache does not fit")

    def join(self, cache, k, v):
        return torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)

    def triangle(self, new, keys, cache):
        return torch.ones(new, keys, dtype=torch.bool).tril(keys - new)

    def padding(self, valid, new, keys):
        return valid[:, None, None, :]

    def visible(self, new, keys, causal, cache, valid):
        seen = self.triangle(new, keys, cache) if causal else torch.ones(1, keys, dtype=torch.bool)
        return seen if valid is None else seen & self.padding(valid, new, keys)

    def check_rows(self, seen):
        if not seen.any(-1).all():
            raise ValueError("a query has no visible key")

    def repeated(self, x):
        return x.repeat_interleave(self.members, dim=1)

    def weigh(self, q, k, seen):
        scores = q @ self.repeated(k).mT * self.width**-0.5
        return scores.masked_fill(~seen, -torch.inf).softmax(-1)

    def mix(self, q, k, v, weights, seen, causal):
        return weights @ self.repeated(v)

    def kept(self, k, v, cache):
        return k, v

    def forward(self, x, causal=False, cache=None, valid=None):
        self.check_lane(cache, causal)
        q, k, v = self.project(x)
        if cache is not None:
            self.check_cache(cache, k)
            k, v = self.join(cache, k, v)
        seen = self.visible(x.shape[1], k.shape[2], causal, cache, valid)
        self.check_rows(seen)
        weights = self.weigh(q, k, seen)
        mixed = self.mix(q, k, v, weights, seen, causal)
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), weights, self.kept(k, v, cache)
