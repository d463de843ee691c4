"""Multi-head attention in many right styles."""
import math

import torch
from einops import einsum, rearrange
from torch.nn import functional as F

from ._mha_base import Base

RIGHTS = []


def right(program):
    RIGHTS.append(program)
    return program


@right
class by_steps(Base):
    pass


@right
class with_einsum(Base):
    def forward(self, query, key, value, visible=None):
        self.check(query, key, value, visible)
        q, k, v = (p(x).unflatten(-1, (self.num_heads, -1)) for p, x in
                   ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(self.width)
        if visible is not None:
            scores = torch.where(visible, scores, -math.inf)
        weights = torch.softmax(scores, dim=3)
        mixed = torch.einsum("bhts,bshd->bthd", weights, v)
        return self.o_proj(mixed.reshape(*query.shape)), weights


@right
class loop_over_heads(Base):
    def forward(self, query, key, value, visible=None):
        self.check(query, key, value, visible)
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        if visible is not None:
            visible = visible.expand(len(query), self.num_heads, query.shape[1], key.shape[1])
        mixed, weights = [], []
        for h in range(self.num_heads):
            mine = slice(h * self.width, (h + 1) * self.width)
            scores = q[..., mine] @ k[..., mine].transpose(1, 2) / self.width ** 0.5
            if visible is not None:
                scores = scores.masked_fill(visible[:, h].logical_not(), -torch.inf)
            weights.append(F.softmax(scores, -1))
            mixed.append(weights[-1] @ v[..., mine])
        return self.o_proj(torch.cat(mixed, -1)), torch.stack(weights, 1)


@right
class sdpa_and_separate_weights(Base):
    def forward(self, query, key, value, visible=None):
        self.check(query, key, value, visible)
        q, k, v = self.heads(query, key, value)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        weights = self.weigh(q @ k.transpose(-1, -2) / math.sqrt(self.width), visible)
        return self.o_proj(mixed.transpose(1, 2).reshape(query.shape)), weights


@right
class fused_in_one_product(Base):
    def heads(self, query, key, value):
        fused = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        bias = None if self.q_proj.bias is None else torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias])
        if query is key is value:
            return [self.split(x) for x in F.linear(query, fused, bias).chunk(3, -1)]
        return [self.split(F.linear(x, fused, bias).chunk(3, -1)[i]) for i, x in enumerate((query, key, value))]


@right
class by_the_functional_call(Base):
    def forward(self, query, key, value, visible=None):
        self.check(query, key, value, visible)
        biases = [p.bias for p in (self.q_proj, self.k_proj, self.v_proj)]
        blocked = None
        if visible is not None:
            blocked = ~visible.expand(len(query), self.num_heads, query.shape[1], key.shape[1]).flatten(0, 1)
        output, weights = F.multi_head_attention_forward(
            query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), self.d_model, self.num_heads, None,
            None if biases[0] is None else torch.cat(biases), None, None, False, 0.0, self.o_proj.weight,
            self.o_proj.bias, training=self.training, attn_mask=blocked, use_separate_proj_weight=True,
            q_proj_weight=self.q_proj.weight, k_proj_weight=self.k_proj.weight, v_proj_weight=self.v_proj.weight,
            average_attn_weights=False)
        return output.transpose(0, 1), weights


@right
class batched_over_batch_and_heads(Base):
    def forward(self, query, key, value, visible=None):
        self.check(query, key, value, visible)
        q, k, v = (x.flatten(0, 1) for x in self.heads(query, key, value))
        hidden = q.new_zeros(len(q), query.shape[1], key.shape[1])
        if visible is not None:
            every = visible.expand(len(query), self.num_heads, *hidden.shape[1:]).reshape(hidden.shape)
            hidden = hidden.masked_fill(~every, -torch.inf)
        weights = torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=self.width ** -0.5).softmax(-1)
        mixed = torch.bmm(weights, v).unflatten(0, (-1, self.num_heads))
        return self.o_proj(self.merge(mixed)), weights.unflatten(0, (-1, self.num_heads))


@right
class scaled_query_and_own_softmax(Base):
    def scale(self):
        return 1.0

    def heads(self, query, key, value):
        q, k, v = super().heads(query, key, value)
        return q / self.width ** 0.5, k, v

    def normalise(self, scores):
        grown = (scores - scores.amax(-1, keepdim=True)).exp()
        return grown / grown.sum(-1, keepdim=True)


@right
class log_softmax_of_added_infinity(Base):
    def hide(self, scores, visible):
        return scores + torch.zeros_like(visible, dtype=scores.dtype).masked_fill(~visible, -torch.inf)

    def normalise(self, scores):
        return scores.log_softmax(-1).exp()


@right
class smallest_number_of_the_dtype(Base):
    def hide(self, scores, visible):
        return scores.masked_fill(~visible, torch.finfo(scores.dtype).min)


@right
class maps_as_three_axes(Base):
    def project(self, linear, x):
        y = einsum(x, linear.weight.view(self.num_heads, self.width, -1), "b s m, h d m -> b h s d")
        return y if linear.bias is None else y + linear.bias.view(self.num_heads, 1, self.width)

    def heads(self, query, key, value):
        return (self.project(self.q_proj, query), self.project(self.k_proj, key), self.project(self.v_proj, value))


@right
class sum_of_head_writes(Base):
    def forward(self, query, key, value, visible=None):
        self.check(query, key, value, visible)
        q, k, v = self.heads(query, key, value)
        weights = self.weigh(q @ k.mT * self.scale(), visible)
        writes = torch.einsum("bhtd,mhd->bhtm", weights @ v, self.o_proj.weight.unflatten(1, (self.num_heads, -1)))
        output = writes.sum(1)
        return output if self.o_proj.bias is None else output + self.o_proj.bias, weights


@right
class one_head_under_vmap(Base):
    def forward(self, query, key, value, visible=None):
        self.check(query, key, value, visible)
        q, k, v = (rearrange(p(x), "b s (h d) -> b h s d", h=self.num_heads) for p, x in
                   ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        if visible is None:
            visible = torch.ones(1, dtype=torch.bool)
        visible = torch.broadcast_to(visible, (*q.shape[:3], k.shape[2]))

        def head(q, k, v, visible):
            weights = (q @ k.T * self.scale()).masked_fill(~visible, -torch.inf).softmax(-1)
            return weights @ v, weights

        mixed, weights = torch.vmap(torch.vmap(head))(q, k, v, visible)
        return self.o_proj(rearrange(mixed, "b h t d -> b t (h d)")), weights
