"""Blocked attention in Triton with one thing left out at a time."""
from __future__ import annotations

import math

import torch

from ._triton import cdiv, jit, tl


@jit
def _flash(q, k, v, out, lse, scale, heads, queries, keys, shift, q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, v_b, v_h,
           v_s, v_d, D: tl.constexpr, Q: tl.constexpr, S: tl.constexpr, CAUSAL: tl.constexpr, FAULT: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    b, h = row // heads, row % heads
    t, d = block * Q + tl.arange(0, Q), tl.arange(0, D)
    query = tl.load(q + b * q_b + h * q_h + t[:, None] * q_t + d[None, :] * q_d, mask=t[:, None] < queries, other=0.0)
    top = tl.full([Q], -float("inf"), tl.float32)
    total = tl.zeros([Q], tl.float32)
    acc = tl.zeros([Q, D], tl.float32)
    stop = keys
    if FAULT == "dropped":
        stop = keys // S * S
    if CAUSAL:
        stop = tl.minimum(stop, (block + 1) * Q + shift)
    if FAULT == "diagonal":
        stop = (block * Q + shift + 1) // S * S
    for start in range(0, stop, S):
        s = start + tl.arange(0, S)
        key = tl.load(k + b * k_b + h * k_h + s[:, None] * k_s + d[None, :] * k_d, mask=s[:, None] < keys, other=0.0)
        value = tl.load(v + b * v_b + h * v_h + s[:, None] * v_s + d[None, :] * v_d, mask=s[:, None] < keys,
                        other=0.0)
        x = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if FAULT != "tail":
            x = tl.where(s[None, :] < keys, x, -float("inf"))
        if CAUSAL:
            x = tl.where(s[None, :] <= t[:, None] + shift, x, -float("inf"))
        new = tl.maximum(top, tl.max(x, axis=1))
        if FAULT == "maximum":
            new = tl.zeros([Q], tl.float32)
        safe = tl.where(new == -float("inf"), 0.0, new)
        rescale = tl.exp(top - safe)
        if FAULT == "maximum":
            rescale = rescale * 0.0 + 1.0
        p = tl.exp(x - safe[:, None])
        if FAULT == "sum":
            total = total + tl.sum(p, axis=1)
        else:
            total = total * rescale + tl.sum(p, axis=1)
        if FAULT == "accumulator":
            acc = acc + tl.dot(p.to(value.dtype), value, input_precision="ieee")
        else:
            acc = acc * rescale[:, None] + tl.dot(p.to(value.dtype), value, input_precision="ieee")
        top = new
    inside = t < queries
    if FAULT == "undivided":
        tl.store(out + (row * queries + t[:, None]) * D + d[None, :], acc, mask=inside[:, None])
    elif FAULT == "unmasked":
        tl.store(out + (row * queries + t[:, None]) * D + d[None, :], acc / total[:, None])
    else:
        tl.store(out + (row * queries + t[:, None]) * D + d[None, :], acc / total[:, None], mask=inside[:, None])
    if FAULT == "lse":
        tl.store(lse + row * queries + t, tl.log(total), mask=inside)
    else:
        tl.store(lse + row * queries + t, top + tl.log(total), mask=inside)


def flash(q, k, v, causal=False, fault="", block=(32, 32), scale=None, shift=None, strides=None):
    """(heads, lse). `shift`: query t sees keys up to t + shift; `strides`: those of q, k and v."""
    b, h, t, d = q.shape
    s = k.shape[2]
    out, lse = torch.empty(b, h, t, d, dtype=q.dtype), torch.empty(b, h, t, dtype=torch.float32)
    strides = strides or (*q.stride(), *k.stride(), *v.stride())
    _flash[(b * h, cdiv(t, block[0]))](
        q, k, v, out, lse, 1 / math.sqrt(d) if scale is None else scale, h, t, s, s - t if shift is None else shift,
        *strides, D=d, Q=block[0], S=block[1], CAUSAL=causal, FAULT=fault)
    return out, lse
