"""Grouped-query attention with exactly one fault: (id, program), several spellings where they behave differently."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...programs import Programs
from ._gqa_base import PROJECTIONS, Base, head_sizes

PROGRAMS = Programs()
wrong, WRONGS = PROGRAMS.wrong, PROGRAMS.wrongs


@wrong("cache-repeated")
class CacheRepeated(Base):
    """Query-many heads were stored; cache G. The repeat, if there is one, belongs after the cache."""

    def kept(self, k, v, cache):
        return self.repeated(k), self.repeated(v)


@wrong("cache-repeated")
class RepeatedBeforeItIsStored(Base):
    def project(self, x):
        q, k, v = super().project(x)
        return q, self.repeated(k), self.repeated(v)

    def weigh(self, q, k, seen):
        return (q @ k.mT * self.width**-0.5).masked_fill(~seen, -torch.inf).softmax(-1)

    def mix(self, q, k, v, weights, seen, causal):
        return weights @ v


@wrong("cache-strided-by-queries")
class CacheStridedByQueries(Base):
    """The cache's storage is H·D wide per token though G·D is used: a view keeps the larger tensor alive."""

    def kept(self, k, v, cache):
        return self.repeated(k)[:, ::self.members], self.repeated(v)[:, ::self.members]


@wrong("cache-strided-by-queries")
class ViewOfAFusedRow(Base):
    def project(self, x):
        sizes = [self.heads * self.width, self.groups * self.width, self.groups * self.width]
        packed = F.linear(x, torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]))
        return [self.split(part, part.shape[-1] // self.width) for part in packed.split(sizes, -1)]


@wrong("cache-strided-by-queries")
class ViewOfARowAsWideAsTheQueries(Base):
    def kept(self, k, v, cache):
        def wide(x):
            b, g, s, d = x.shape
            row = x.new_zeros(b, s, self.heads, d)
            row[:, :, :g] = x.transpose(1, 2)
            return row[:, :, :g].transpose(1, 2)
        return wide(k), wide(v)


@wrong("triangle-top-left")
class TriangleTopLeft(Base):
    """With a prefix the triangle must end at the lower right: new row t is row P + t."""

    def triangle(self, new, keys, cache):
        return torch.ones(new, keys, dtype=torch.bool).tril()


@wrong("mask-skipped-with-cache")
class MaskSkippedWithCache(Base):
    """Chunks of two or more tokens still need the triangle; one token hides it."""

    def triangle(self, new, keys, cache):
        return super().triangle(new, keys, cache) if cache is None else torch.ones(new, keys, dtype=torch.bool)


@wrong("mask-skipped-with-cache")
class EveryMaskSkippedWithCache(Base):
    def visible(self, new, keys, causal, cache, valid):
        return super().visible(new, keys, causal and cache is None, cache, valid if cache is None else None)


@wrong("square-mask-on-chunk")
class SquareMaskOnChunk(Base):
    """The mask has new rows and all columns: T by P + T, not a square."""

    def triangle(self, new, keys, cache):
        return torch.ones(new, new, dtype=torch.bool).tril()


@wrong("square-mask-on-chunk")
class SquareOfAllKeys(Base):
    def triangle(self, new, keys, cache):
        return torch.ones(keys, keys, dtype=torch.bool).tril()


@wrong("square-mask-on-chunk")
class SquareInTheLastColumns(Base):
    def triangle(self, new, keys, cache):
        square = torch.ones(new, new, dtype=torch.bool).tril()
        return F.pad(square, (keys - new, 0))


@wrong("causal-and-mask-together")
class CausalAndMaskTogether(Base):
    """`is_causal` and a mask were both passed: math SDPA raises, fused CPU SDPA applies both, and its triangle is top
    left."""

    def mix(self, q, k, v, weights, seen, causal):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen.expand(weights.shape), is_causal=causal,
                                              enable_gqa=True)


@wrong("causal-and-mask-together")
class CausalAndMaskTogetherByMath(Base):
    def mix(self, q, k, v, weights, seen, causal):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen.expand(weights.shape), is_causal=causal,
                                                  enable_gqa=True)


@wrong("causal-and-mask-together")
class CausalAndPaddingTogether(Base):
    def mix(self, q, k, v, weights, seen, causal):
        if not causal or seen.dim() == 2:
            return super().mix(q, k, v, weights, seen, causal)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen.expand(weights.shape), is_causal=True,
                                              enable_gqa=True)


@wrong("first-token-not-cached")
class FirstTokenNotCached(Base):
    """The first call returned no cache."""

    def kept(self, k, v, cache):
        return None if cache is None else (k, v)


@wrong("first-token-not-cached")
class OldCacheReturned(Base):
    def kept(self, k, v, cache):
        return cache


@wrong("valid-covers-new-only")
class ValidCoversNewOnly(Base):
    """Padding must span cached and new keys: `valid` is [B, P + T]."""

    def padding(self, valid, new, keys):
        return F.pad(valid[:, -new:], (keys - new, 0), value=True)[:, None, None]


@wrong("valid-covers-new-only")
class FirstColumnsForNewKeys(Base):
    def padding(self, valid, new, keys):
        return F.pad(valid[:, :new], (keys - new, 0), value=True)[:, None, None]


@wrong("valid-covers-new-only")
class AsManyColumnsAsNewRows(Base):
    def padding(self, valid, new, keys):
        return valid[:, -new:][:, None, None]


@wrong("valid-covers-new-only")
class ViewedAsNewRows(Base):
    def padding(self, valid, new, keys):
        return valid.view(len(valid), 1, 1, new)


@wrong("valid-covers-new-only")
class LeftOutWithACache(Base):
    def visible(self, new, keys, causal, cache, valid):
        return super().visible(new, keys, causal, cache, valid if cache is None else None)


class WiderKeys(Base):
    wide = ("k_proj", "v_proj")

    def maps(self, d_model):
        super().maps(d_model)
        for name in self.wide:
            setattr(self, name, nn.Linear(d_model, self.heads * self.width, bias=False))

    def project(self, x):
        parts = [self.split(getattr(self, name)(x), -1) for name in PROJECTIONS[:3]]
        return parts[0], parts[1][:, :self.groups], parts[2][:, :self.groups]


@wrong("kv-projected-full-width")
class KvProjectedFullWidth(WiderKeys):
    """K and V maps have G·D rows: with H·D of them nothing is saved."""


@wrong("kv-projected-full-width")
class OnlyKeysFullWidth(WiderKeys):
    wide = ("k_proj",)


@wrong("kv-projected-full-width")
class OnlyValuesFullWidth(WiderKeys):
    wide = ("v_proj",)


@wrong("head-dim-from-model")
class HeadDimFromModel(Base):
    """head_dim was given; do not assume M/H."""

    def sizes(self, d_model, num_heads, num_kv_heads, head_dim):
        heads, groups, _ = head_sizes(d_model, num_heads, num_kv_heads, head_dim)
        return heads, groups, d_model // num_heads


@wrong("head-dim-from-model")
class ModelWidthMustBeDivisible(Base):
    def sizes(self, d_model, num_heads, num_kv_heads, head_dim):
        heads, groups, width = head_sizes(d_model, num_heads, num_kv_heads, head_dim)
        if d_model % num_heads:
            raise ValueError("d_model is not divisible by num_heads")
        return heads, groups, width


@wrong("cache-changed-in-place")
class CacheChangedInPlace(Base):
    """Another hypothesis may hold the same cache."""

    def join(self, cache, k, v):
        for old, new in zip(cache, (k, v), strict=True):
            old.data = torch.cat([old, new], 2)
        return cache


@wrong("cache-changed-in-place")
class PaddingZeroedInPlace(Base):
    def forward(self, x, causal=False, cache=None, valid=None):
        if cache is not None:
            with torch.no_grad():
                for old in cache:
                    old.mul_(1.0 if valid is None else valid[:, None, :old.shape[2], None])
        return super().forward(x, causal, cache, valid)


@wrong("cache-changed-in-place")
class ResizedInPlace(Base):
    def join(self, cache, k, v):
        for old, new in zip(cache, (k, v), strict=True):
            both = torch.cat([old, new], 2)
            old.resize_(both.shape).copy_(both)
        return cache


@wrong("cache-without-causal")
class CacheWithoutCausal(Base):
    """A cache serves causal inference only: without the triangle, the rows that were cached would have had to see the
    new ones."""

    def check_lane(self, cache, causal):
        pass


@wrong("cache-without-causal")
class CacheMeansCausal(Base):
    def forward(self, x, causal=False, cache=None, valid=None):
        return super().forward(x, causal or cache is not None, cache, valid)


@wrong("tiled-groups")
class TiledGroups(Base):
    """Queries h, h+G, … shared a head. The function is one of the same family, but your head layout differs from the
    contract, and a checkpoint would meet the wrong keys."""

    def repeated(self, x):
        return x.repeat(1, self.members, 1, 1)


@wrong("cache-not-checked")
class CacheNotChecked(Base):
    """A cache of another model, batch or dtype must be refused: a cache of one key/value head, say, may broadcast, and
    a cast hides that two models disagree."""

    def check_cache(self, cache, k):
        pass

    def join(self, cache, k, v):
        return [torch.cat([old.to(new.dtype).expand(len(new), self.groups, -1, -1), new], 2)
                for old, new in zip(cache, (k, v), strict=True)]


@wrong("cache-not-checked")
class CacheLeftToTorch(Base):
    def check_cache(self, cache, k):
        pass


@wrong("all-masked-row-nan")
class AllMaskedRowNan(Base):
    """A row without a visible key gave NaN; refuse it."""

    def check_rows(self, seen):
        pass
