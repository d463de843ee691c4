"""Loaders that are right, in several styles, and loaders with one fault each."""
from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from .apply_rope import rotate_half

ROLES = "qkv"


def widths(config, head_dim=None, kv_heads=None):
    d = head_dim or config["head_dim"]
    return {"q": config["heads"] * d, "k": (kv_heads or config["kv_heads"]) * d,
            "v": (kv_heads or config["kv_heads"]) * d}


def expected(config, rows, orientation=None):
    """{key: shape} of the checkpoint."""
    total = {"qkv_proj": sum(rows.values())} if config["fused"] else {f"{r}_proj": rows[r] for r in ROLES}
    shapes = {name: (n, config["hidden"]) for name, n in total.items()} | {"o_proj": (config["hidden"], rows["q"])}
    turned = (orientation or config["storage"]) == "conv1d"
    keys = {f"{name}.weight": shape[::-1] if turned else shape for name, shape in shapes.items()}
    if config["bias"]:
        keys |= {f"{name}.bias": shape[:1] for name, shape in shapes.items()}
    return keys


def refuse(state, keys, missing=True, unexpected=True, own=True):
    """own=False leaves wrong shapes to `load_state_dict`, which raises RuntimeError."""
    for name in sorted(keys):
        if name not in state and missing:
            raise ValueError(f"missing key {name}")
    for name in sorted(state):
        if name not in keys and unexpected:
            raise ValueError(f"unexpected key {name}")
    for name, shape in keys.items():
        if name in state and tuple(state[name].shape) != shape:
            raise (ValueError if own else RuntimeError)(f"wrong shape of {name}")


def split_fused(fused, config):
    rows = widths(config)
    if config["fused"] == "qkv":
        return dict(zip(ROLES, fused.split(list(rows.values())), strict=True))
    g, d = config["kv_heads"], config["head_dim"]
    blocks = fused.reshape(g, -1, d, *fused.shape[1:])
    return {"q": blocks[:, :-2].flatten(0, 2), "k": blocks[:, -2].flatten(0, 1), "v": blocks[:, -1].flatten(0, 1)}


class Attention(nn.Module):
    """One method a step, for known programs to override. Its weights are [out,in]."""

    def __init__(self, weights, config):
        super().__init__()
        self.config, self.width = config, config["head_dim"]
        self.style, self.base = config["rope"], config.get("base", 10000.0)
        for name, value in weights.items():
            self.register_parameter(name.replace(".", "_"), nn.Parameter(value.clone()))

    def project(self, role, x):
        packed = F.linear(x, getattr(self, f"{role}_proj_weight"), getattr(self, f"{role}_proj_bias", None))
        return packed.unflatten(-1, (-1, self.width)).transpose(1, 2)

    def rotate(self, q, k, v, positions):
        return (rotate_half(q, positions, self.base, self.style), rotate_half(k, positions, self.base, self.style), v)

    def extend(self, k, v, cache):
        return (k, v) if cache is None else (torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2))

    def attend(self, q, k, v, past, causal):
        share = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        scores = q @ k.mT / math.sqrt(self.width)
        if causal:
            t, s = scores.shape[-2:]
            scores = scores.masked_fill(torch.arange(s) > torch.arange(t)[:, None] + past, -torch.inf)
        return scores.softmax(-1) @ v

    def forward(self, x, positions=None, cache=None, causal=True):
        past = 0 if cache is None else cache[0].shape[2]
        positions = torch.arange(x.shape[1]) + past if positions is None else positions
        q, k, v = self.rotate(*(self.project(role, x) for role in ROLES), positions)
        k, v = cache = self.extend(k, v, cache)
        merged = self.attend(q, k, v, past, causal).transpose(1, 2).flatten(2)
        return F.linear(merged, self.o_proj_weight, getattr(self, "o_proj_bias", None)), cache


def loader(module=Attention, keys=None, turned=None, prepare=None, missing=True, unexpected=True,
           own=True):
    """A loader with some of its steps replaced."""
    def load_llama_attention(state_dict, config):
        refuse(state_dict, (keys or (lambda c: expected(c, widths(c))))(config), missing, unexpected, own)
        transpose = config["storage"] == "conv1d" if turned is None else turned
        state = {n: t.T if transpose and t.dim() == 2 else t for n, t in state_dict.items()}
        if config["fused"]:
            for kind in ("weight", "bias"):
                if f"qkv_proj.{kind}" in state:
                    state |= {f"{r}_proj.{kind}": part for r, part in
                              split_fused(state.pop(f"qkv_proj.{kind}"), config).items()}
        if prepare:
            state, config = prepare(dict(state), config)
        return module(state, config)
    return load_llama_attention


def permuted(across=False, biases=True):
    """Interleaved rows of Q and K put into the order of the other style: evens, then odds, of each head."""
    def prepare(state, config):
        if config["rope"] == "interleaved":
            for name in [n for n in state if n[0] in "qk" and (biases or n.endswith("weight"))]:
                block = (1, -1) if across else (-1, config["head_dim"])
                state[name] = state[name].unflatten(0, block).unflatten(1, (-1, 2)).transpose(1, 2).flatten(0, 2)
            config = {**config, "rope": "half"}
        return state, config
    return prepare


class WithSdpa(Attention):
    def attend(self, q, k, v, past, causal):
        t, s = q.shape[2], k.shape[2]
        mask = torch.ones(t, s, dtype=torch.bool).tril(s - t) if causal else None
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


class Folded(Attention):
    """Query heads of a group folded into rows; nothing is repeated."""

    def attend(self, q, k, v, past, causal):
        b, h, t, d = q.shape
        folded = q.reshape(b, k.shape[1], -1, d)
        scores = (folded @ k.mT / math.sqrt(d)).view(b, h, t, -1)
        if causal:
            scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(past + 1)
        return (scores.softmax(-1).view(b, k.shape[1], -1, k.shape[2]) @ v).view(b, h, t, d)


class OneProjection(nn.Module):
    """Q, K and V stay in one fused parameter."""

    def __init__(self, state, config):
        super().__init__()
        self.config = config
        rows = widths(config)
        self.spans = list(rows.values())
        self.qkv = nn.Linear(config["hidden"], sum(self.spans), bias=config["bias"])
        self.out = nn.Linear(rows["q"], config["hidden"], bias=config["bias"])
        for layer, names in ((self.qkv, ROLES), (self.out, "o")):
            for kind in ("weight", "bias") if config["bias"] else ("weight",):
                setattr(layer, kind, nn.Parameter(torch.cat([state[f"{r}_proj.{kind}"] for r in names])))

    def forward(self, x, positions=None, cache=None, causal=True):
        d, style, base = self.config["head_dim"], self.config["rope"], self.config.get("base", 10000.0)
        q, k, v = (t.view(*t.shape[:2], -1, d).permute(0, 2, 1, 3) for t in self.qkv(x).split(self.spans, -1))
        past = cache[0].size(2) if cache else 0
        if positions is None:
            positions = torch.arange(past, past + x.size(1))
        q, k = (rotate_half(t, positions, base, style) for t in (q, k))
        if cache:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        seen = torch.ones(x.size(1), k.size(2)).tril(past) > 0 if causal else torch.ones(1, 1) > 0
        scores = torch.einsum("bgrtd,bgsd->bgrts", q.unflatten(1, (k.size(1), -1)), k) / d ** 0.5
        mixed = torch.einsum("bgrts,bgsd->btgrd", scores.where(seen, torch.tensor(-1e30)).softmax(-1), v)
        return self.out(mixed.flatten(2)), (k, v)


RIGHTS = {"name-map": loader(), "rows-permuted": loader(prepare=permuted()), "sdpa": loader(WithSdpa),
          "folded": loader(Folded, prepare=permuted()), "one-projection": loader(OneProjection)}


class HeadDimFromHidden(Attention):
    def __init__(self, weights, config):
        super().__init__(weights, config)
        self.width = config["hidden"] // config["heads"]


class ValuesRotated(Attention):
    def rotate(self, q, k, v, positions):
        return *super().rotate(q, k, v, positions)[:2], rotate_half(v, positions, self.base, self.style)


class CachedBeforeRope(Attention):
    """Raw keys are kept; the new ones are rotated for this call only."""

    def forward(self, x, positions=None, cache=None, causal=True):
        past = 0 if cache is None else cache[0].shape[2]
        positions = torch.arange(x.shape[1]) + past if positions is None else positions
        q, k, v = (self.project(role, x) for role in ROLES)
        kept = self.extend(k, v, cache)
        q, k, _ = self.rotate(q, k, v, positions)
        k = k if cache is None else torch.cat([cache[0], k], 2)
        merged = self.attend(q, k, kept[1], past, causal).transpose(1, 2).flatten(2)
        return F.linear(merged, self.o_proj_weight, getattr(self, "o_proj_bias", None)), kept


class RotatedWhenRead(CachedBeforeRope):
    """Raw keys are kept, and all of them rotated in every call, as if they stood at 0, 1, 2 ..."""

    def forward(self, x, positions=None, cache=None, causal=True):
        past = 0 if cache is None else cache[0].shape[2]
        positions = torch.arange(x.shape[1]) + past if positions is None else positions
        q, k, v = (self.project(role, x) for role in ROLES)
        k, v = kept = self.extend(k, v, cache)
        q = rotate_half(q, positions, self.base, self.style)
        k = rotate_half(k, positions if cache is None else torch.arange(k.shape[2]), self.base, self.style)
        merged = self.attend(q, k, v, past, causal).transpose(1, 2).flatten(2)
        return F.linear(merged, self.o_proj_weight, getattr(self, "o_proj_bias", None)), kept


class RepeatedCache(Attention):
    def extend(self, k, v, cache):
        share = self.config["heads"] // self.config["kv_heads"]
        return super().extend(k.repeat_interleave(share, 1), v.repeat_interleave(share, 1), cache)


def narrow_heads(config):
    return expected(config, widths(config, head_dim=config["hidden"] // config["heads"]))


def as_many_kv_heads(config):
    return expected(config, widths(config, kv_heads=config["heads"]))


def zero_biases(state, config):
    if config["bias"]:
        for role in "qkvo":
            state.setdefault(f"{role}_proj.bias", torch.zeros_like(state[f"{role}_proj.weight"][:, 0]))
    return state, config


def kept_layout(state, config):
    return state, {**config, "rope": "half"}


def always(storage):
    return lambda config: expected(config, widths(config), storage)


WRONGS = [
    ("conv1d-not-transposed", loader(turned=False), "This storage is [in,out]: weights of a Conv1D checkpoint have to "
     "be transposed, and a square one does not complain."),
    ("conv1d-not-transposed", loader(turned=False, keys=always("linear")), ""),
    ("conv1d-not-transposed", loader(turned=False, keys=always("linear"), own=False), ""),
    ("linear-transposed", loader(turned=True), "This storage is [out,in] already; transposed again it is another map."),
    ("linear-transposed", loader(turned=True, keys=always("conv1d")), ""),
    ("linear-transposed", loader(turned=True, keys=always("conv1d"), own=False), ""),
    ("head-dim-from-hidden", loader(HeadDimFromHidden, keys=narrow_heads), "config.head_dim decides; hidden/heads is "
     "only the usual choice."),
    ("head-dim-from-hidden", loader(HeadDimFromHidden), ""),
    ("head-dim-from-hidden", loader(HeadDimFromHidden, keys=narrow_heads, own=False), ""),
    ("kv-heads-equal", loader(keys=as_many_kv_heads), "K and V have G·D rows, not H·D: query heads share them in "
     "groups."),
    ("kv-heads-equal", loader(keys=as_many_kv_heads, own=False), ""),
    ("missing-bias-zeroed", loader(missing=False, prepare=zero_biases), "A missing tensor needs an explicit policy. "
     "Zeros for a bias that is not there make a failed load look like a good one."),
    ("unexpected-key-ignored", loader(unexpected=False), "A leftover tensor is a failed load: the checkpoint says "
     "something that the module does not do."),
    ("rope-layout-kept", loader(prepare=kept_layout), "An interleaved checkpoint was rotated in halves. Rotate its "
     "pairs (2i, 2i+1), or permute its Q and K rows per head."),
    ("rope-layout-kept", loader(prepare=permuted(biases=False)), ""),
    ("rope-rows-across-heads", loader(prepare=permuted(across=True)), "The permutation of Q and K rows stays inside "
     "each head; over all rows at once it mixes the channels of different heads."),
    ("values-rotated", loader(ValuesRotated), "Only Q and K rotate. A rotated value arrives turned by its position, "
     "and nothing turns it back."),
    ("cached-before-rope", loader(CachedBeforeRope), "Keys are rotated, then cached. Raw keys in the cache lose the "
     "positions at which they were projected."),
    ("cached-before-rope", loader(RotatedWhenRead), ""),
    ("repeated-cache", loader(RepeatedCache), "The cache holds G heads; repeated for the query heads it is R times "
     "larger and says nothing more."),
]
