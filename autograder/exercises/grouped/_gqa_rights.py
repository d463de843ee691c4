"""Grouped-query attention with a cache in many right styles."""
import math

import torch
from einops import einsum, rearrange
from torch.nn import functional as F

from ._gqa_base import Base

RIGHTS = []


def right(program):
    RIGHTS.append(program)
    return program


@right
class repeated_heads_in_the_call(Base):
    pass


@right
class group_folded_into_queries(Base):
    def weigh(self, q, k, seen):
        b, h, t, d = q.shape
        scores = (q.reshape(b, self.groups, -1, d) @ k.mT / math.sqrt(d)).view(b, h, t, -1)
        return torch.where(seen, scores, -math.inf).softmax(-1)

    def mix(self, q, k, v, weights, seen, causal):
        b, h, t, s = weights.shape
        return (weights.view(b, self.groups, -1, s) @ v).view(b, h, t, -1)


@right
class preallocated_buffer(Base):
    def join(self, cache, k, v):
        past, joined = cache[0].shape[2], []
        for old, new in zip(cache, (k, v), strict=True):
            room = new.new_empty(*new.shape[:2], past + new.shape[2], new.shape[3])
            room[:, :, :past], room[:, :, past:] = old, new
            joined.append(room)
        return tuple(joined)


@right
class buffer_with_spare_room(Base):
    def join(self, cache, k, v):
        past, joined = cache[0].shape[2], []
        for old, new in zip(cache, (k, v), strict=True):
            room = new.new_zeros(*new.shape[:2], 64, new.shape[3])
            room[:, :, :past], room[:, :, past:past + new.shape[2]] = old, new
            joined.append(room[:, :, :past + new.shape[2]])
        return tuple(joined)


@right
class sdpa_with_an_explicit_mask(Base):
    def mix(self, q, k, v, weights, seen, causal):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen.expand(weights.shape), enable_gqa=True)


@right
class loop_over_query_heads(Base):
    def weigh(self, q, k, seen):
        every = seen.expand(len(q), self.heads, q.shape[2], k.shape[2])
        scores = [q[:, h] @ k[:, h // self.members].mT / self.width**0.5 for h in range(self.heads)]
        rows = [row.masked_fill(~every[:, h], -torch.inf).softmax(-1) for h, row in enumerate(scores)]
        return torch.stack(rows, 1)

    def mix(self, q, k, v, weights, seen, causal):
        return torch.stack([weights[:, h] @ v[:, h // self.members] for h in range(self.heads)], 1)


@right
class einsum_with_a_member_axis(Base):
    def weigh(self, q, k, seen):
        scores = torch.einsum("bgrtd,bgsd->bgrts", q.unflatten(1, (self.groups, -1)), k).flatten(1, 2)
        scores = scores / self.width**0.5
        return F.softmax(scores + torch.zeros_like(seen, dtype=scores.dtype).masked_fill(~seen, -torch.inf), -1)

    def mix(self, q, k, v, weights, seen, causal):
        return torch.einsum("bgrts,bgsd->bgrtd", weights.unflatten(1, (self.groups, -1)), v).flatten(1, 2)


@right
class by_einops_positions(Base):
    def project(self, x):
        return [rearrange(p(x), "b t (h d) -> b h t d", d=self.width) for p in (self.q_proj, self.k_proj, self.v_proj)]

    def visible(self, new, keys, causal, cache, valid):
        position = torch.arange(keys - new, keys)
        seen = torch.arange(keys)[None] <= (position if causal else position * 0 + keys)[:, None]
        seen = rearrange(seen, "t s -> 1 1 t s")
        return seen if valid is None else seen.logical_and(rearrange(valid, "b s -> b 1 1 s"))

    def weigh(self, q, k, seen):
        q = rearrange(q, "b (g r) t d -> b g r t d", g=self.groups)
        scores = rearrange(einsum(q, k, "b g r t d, b g s d -> b g r t s"), "b g r t s -> b (g r) t s")
        return scores.div(self.width**0.5).masked_fill(~seen, torch.finfo(q.dtype).min).softmax(-1)


@right
class fused_keys_and_values(Base):
    def project(self, x):
        packed = F.linear(x, torch.cat([self.k_proj.weight, self.v_proj.weight]))
        k, v = (self.split(part, self.groups) for part in packed.chunk(2, -1))
        return self.split(self.q_proj(x), self.heads), k, v


@right
class contiguous_cache_from_a_fused_row(Base):
    def project(self, x):
        sizes = [self.heads * self.width, self.groups * self.width, self.groups * self.width]
        packed = F.linear(x, torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]))
        q, k, v = (self.split(part, part.shape[-1] // self.width) for part in packed.split(sizes, -1))
        return q, k.contiguous(), v.contiguous()


@right
class tokens_before_heads(Base):
    def join(self, cache, k, v):
        return [torch.cat([old.transpose(1, 2), new.transpose(1, 2)], 1).transpose(1, 2)
                for old, new in zip(cache, (k, v), strict=True)]


@right
class cached_tuple_of_copies(Base):
    def kept(self, k, v, cache):
        return tuple(x.clone() for x in (k, v))


@right
class softmax_in_float64(Base):
    def weigh(self, q, k, seen):
        scores = q.double() @ self.repeated(k).mT.double() / self.width**0.5
        return scores.masked_fill(~seen, -torch.inf).softmax(-1).to(q.dtype)
