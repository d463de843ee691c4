"""Multi-head attention whose maps, axes or results go wrong: (id, program), several spellings where they differ."""
from itertools import combinations

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional as F

from ...programs import Programs
from ._mha_base import Base, check_heads
from ._mha_oracle import PROJECTIONS

PROGRAMS = Programs()
wrong, WRONGS = PROGRAMS.wrong, PROGRAMS.wrongs


def _subsets(letters):
    """Some of the maps, not all: "q", "k", ..., "qk", ..."""
    return ["".join(some) for n in range(1, len(letters)) for some in combinations(letters, n)]


class Bare(Base):
    """Base without its four Linears."""

    def __init__(self, d_model, num_heads, bias=False):
        nn.Module.__init__(self)
        self.d_model, self.num_heads, self.width = d_model, num_heads, check_heads(d_model, num_heads)
        self.maps(d_model, self.width, bias)


@wrong("split-before-projection")
class SplitBeforeProjection(Bare):
    """The raw row was split and one small Linear served all heads: each head sees M/H channels only."""

    def maps(self, d_model, width, bias):
        for name in PROJECTIONS[:3]:
            setattr(self, name, nn.Linear(width, width, bias=bias))
        self.o_proj = nn.Linear(d_model, d_model, bias=bias)

    def heads(self, query, key, value):
        return self.q_proj(self.split(query)), self.k_proj(self.split(key)), self.v_proj(self.split(value))


@wrong("projection-overwritten")
class ProjectionOverwritten(Base):
    """A loop overwrote the per-head projection, so every head has the last one."""

    names = "q_proj", "k_proj", "v_proj"

    def heads(self, query, key, value):
        made = []
        for name, x in zip(PROJECTIONS, (query, key, value), strict=False):
            linear = getattr(self, name)
            if name not in self.names:
                made.append(self.split(linear(x)))
                continue
            for h in range(self.num_heads):
                mine = slice(h * self.width, (h + 1) * self.width)
                one = F.linear(x, linear.weight[mine], None if linear.bias is None else linear.bias[mine])
            made.append(one[:, None].expand(-1, self.num_heads, -1, -1))
        return made


for _letters in _subsets("qkv"):
    _names = {"names": tuple(f"{n}_proj" for n in _letters)}
    wrong("projection-overwritten")(type(f"Overwritten{_letters.title()}", (ProjectionOverwritten,), _names))


@wrong("projection-overwritten")
class ProjectionOverwrittenInTheConstructor(Bare):
    def maps(self, d_model, width, bias):
        for _ in range(self.num_heads):
            for name in PROJECTIONS[:3]:
                setattr(self, name, nn.Linear(d_model, width, bias=bias))
        self.o_proj = nn.Linear(d_model, d_model, bias=bias)

    def split(self, x):
        return x[:, None].expand(-1, self.num_heads, -1, -1)


@wrong("value-uses-key-projection")
class ValueUsesKeyProjection(Base):
    """V was made with W_K."""

    def heads(self, query, key, value):
        return self.split(self.q_proj(query)), self.split(self.k_proj(key)), self.split(self.k_proj(value))


@wrong("value-uses-key-projection")
class ValueIsKey(Base):
    def heads(self, query, key, value):
        q, k, _ = super().heads(query, key, value)
        return q, k, k


class Tied(Bare):
    order = "q", "k", "v", "o"

    def maps(self, d_model, width, bias):
        one = nn.Linear(d_model, d_model, bias=bias)
        for letter in self.order:
            setattr(self, f"{letter}_proj", one)


@wrong("projections-tied")
class ProjectionsTied(Tied):
    """One Linear plays Q, K, V and O."""


for _order in ("oqkv", "okvq", "ovqk"):
    wrong("projections-tied")(type(f"TiedIn{_order.title()}", (Tied,), {"order": tuple(_order)}))


@wrong("projections-tied")
class OneProjection(Bare):
    def maps(self, d_model, width, bias):
        self.proj = nn.Linear(d_model, d_model, bias=bias)

    def heads(self, query, key, value):
        return [self.split(self.proj(x)) for x in (query, key, value)]

    def answer(self, merged, weights):
        return self.proj(merged), weights


@wrong("wo-missing")
class WoMissing(Base):
    """The merged heads were returned without W_O."""

    def answer(self, merged, weights):
        return merged, weights


@wrong("wo-missing")
class WoNeverMade(Bare):
    def maps(self, d_model, width, bias):
        for name in PROJECTIONS[:3]:
            setattr(self, name, nn.Linear(d_model, d_model, bias=bias))

    def answer(self, merged, weights):
        return merged, weights


class InOut(Base):
    turned = "q", "k", "v", "o"

    def apply_map(self, letter, x):
        linear = getattr(self, f"{letter}_proj")
        if letter not in self.turned:
            return linear(x)
        y = x @ linear.weight
        return y if linear.bias is None else y + linear.bias

    def heads(self, query, key, value):
        return [self.split(self.apply_map(n, x)) for n, x in zip("qkv", (query, key, value), strict=True)]

    def answer(self, merged, weights):
        return self.apply_map("o", merged), weights


@wrong("weight-used-as-in-out")
class WeightUsedAsInOut(InOut):
    """Stored weights are [out,in]; the square shape hid the missing transpose."""


for _letters in _subsets("qkvo"):
    wrong("weight-used-as-in-out")(type(f"InOut{_letters.title()}", (InOut,), {"turned": tuple(_letters)}))


@wrong("kv-with-query-length")
class KvWithQueryLength(Base):
    """K and V were reshaped with T; silent when T = S."""

    def heads(self, query, key, value):
        batch, queries, _ = query.shape
        return [p(x).view(batch, queries, self.num_heads, self.width).transpose(1, 2)
                for p, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))]


@wrong("kv-with-query-length")
class KvWithQueryLengthByEinops(Base):
    def heads(self, query, key, value):
        return [rearrange(p(x), "b t (h d) -> b h t d", h=self.num_heads, t=query.shape[1])
                for p, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))]


@wrong("sequence-first")
class SequenceFirst(Base):
    """The tensors were read as [T,B,M]: samples attended to each other."""

    def split(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.width).permute(1, 2, 0, 3)

    def merge(self, mixed):
        return mixed.permute(2, 0, 1, 3).flatten(2)


@wrong("sequence-first")
class SequenceFirstByQuerySizes(SequenceFirst):
    def heads(self, query, key, value):
        batch = query.shape[1]
        return [p(x).view(-1, batch, self.num_heads, self.width).permute(1, 2, 0, 3)
                for p, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))]


@wrong("sequence-first")
class SequenceFirstLeftTransposed(Base):
    def forward(self, query, key, value, visible=None):
        return super().forward(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), visible)


@wrong("returns-head-average")
class ReturnsHeadAverage(Base):
    """Probabilities were averaged over heads."""

    def answer(self, merged, weights):
        return self.o_proj(merged), weights.mean(1)


@wrong("returns-head-average")
class ReturnsHeadAverageWithAxis(Base):
    def answer(self, merged, weights):
        return self.o_proj(merged), weights.mean(1, keepdim=True)


@wrong("per-head-modules")
class PerHeadModules(Bare):
    """The map is right, but a packed checkpoint cannot load into H separate Linears."""

    def maps(self, d_model, width, bias):
        for name in PROJECTIONS[:3]:
            setattr(self, name, nn.ModuleList(nn.Linear(d_model, width, bias=bias) for _ in range(self.num_heads)))
        self.o_proj = nn.Linear(d_model, d_model, bias=bias)

    def heads(self, query, key, value):
        return [torch.stack([one(x) for one in maps], 1)
                for maps, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))]


@wrong("returns-probabilities-as-output")
class ReturnsProbabilitiesAsOutput(Base):
    """The module's output is the value mix after W_O."""

    def answer(self, merged, weights):
        return weights, weights


@wrong("returns-probabilities-as-output")
class ReturnsThemSwapped(Base):
    def answer(self, merged, weights):
        return weights, self.o_proj(merged)


@wrong("returns-probabilities-as-output")
class ReturnsTheirAverage(Base):
    def answer(self, merged, weights):
        return weights.mean(1), weights


@wrong("returns-probabilities-as-output")
class ReturnsOnlyProbabilities(Base):
    def answer(self, merged, weights):
        return weights
