"""Split decoding in Triton with one thing left out at a time."""
from __future__ import annotations

import math

import torch

from ._triton import cdiv, jit, power_of_2, tl


@jit
def _decode(q, k, v, parts, lse, scale, groups, length, end_of_all, span, splits, q_b, q_h, q_d, k_b, k_g, k_s, k_d,
            v_b, v_g, v_s, v_d, R: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
            FAULT: tl.constexpr):
    row, split = tl.program_id(0), tl.program_id(1)
    b, g = row // groups, row % groups
    r, d = tl.arange(0, ROWS), tl.arange(0, D)
    if FAULT == "tiled":
        head = r * groups + g
    else:
        head = g * R + r
    query = tl.load(q + b * q_b + head[:, None] * q_h + d[None, :] * q_d, mask=r[:, None] < R, other=0.0)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    first = split * span
    end = tl.minimum(end_of_all, first + span)
    for start in range(first, end, S):
        s = start + tl.arange(0, S)
        key = tl.load(k + b * k_b + g * k_g + s[:, None] * k_s + d[None, :] * k_d, mask=s[:, None] < end, other=0.0)
        value = tl.load(v + b * v_b + g * v_g + s[:, None] * v_s + d[None, :] * v_d, mask=s[:, None] < end, other=0.0)
        x = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if FAULT != "tail":
            x = tl.where(s[None, :] < end, x, -float("inf"))
        new = tl.maximum(top, tl.max(x, axis=1))
        rescale = tl.exp(top - new)
        p = tl.exp(x - new[:, None])
        if FAULT == "sum":
            total = total + tl.sum(p, axis=1)
        else:
            total = total * rescale + tl.sum(p, axis=1)
        if FAULT == "accumulator":
            acc = acc + tl.dot(p.to(value.dtype), value, input_precision="ieee")
        else:
            acc = acc * rescale[:, None] + tl.dot(p.to(value.dtype), value, input_precision="ieee")
        top = new
    place = ((b * groups * R + head) * splits + split)
    filled = total
    if FAULT != "empty":
        filled = tl.where(total > 0, total, 1.0)
    tl.store(parts + place[:, None] * D + d[None, :], acc / filled[:, None], mask=r[:, None] < R)
    tl.store(lse + place, top + tl.log(filled), mask=r < R)


@jit
def _one_head(q, k, v, parts, lse, scale, heads, repeats, length, span, splits, q_b, q_h, q_d, k_b, k_g, k_s, k_d,
              v_b, v_g, v_s, v_d, D: tl.constexpr, S: tl.constexpr):
    row, split = tl.program_id(0), tl.program_id(1)
    b, h = row // heads, row % heads
    g = h // repeats
    d = tl.arange(0, D)
    query = tl.load(q + b * q_b + h * q_h + d * q_d).to(tl.float32)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    end = tl.minimum(length, (split + 1) * span)
    for start in range(split * span, end, S):
        s = start + tl.arange(0, S)
        inside = s[:, None] < end
        key = tl.load(k + b * k_b + g * k_g + s[:, None] * k_s + d[None, :] * k_d, mask=inside, other=0.0)
        value = tl.load(v + b * v_b + g * v_g + s[:, None] * v_s + d[None, :] * v_d, mask=inside, other=0.0)
        x = tl.where(s < end, tl.sum(key.to(tl.float32) * query[None, :], axis=1) * scale, -float("inf"))
        new = tl.maximum(top, tl.max(x, axis=0))
        p = tl.exp(x - new)
        total = total * tl.exp(top - new) + tl.sum(p, axis=0)
        acc = acc * tl.exp(top - new) + tl.sum(p[:, None] * value.to(tl.float32), axis=0)
        top = new
    filled = tl.where(total > 0, total, 1.0)
    tl.store(parts + (row * splits + split) * D + d, acc / filled)
    tl.store(lse + row * splits + split, top + tl.log(filled))


@jit
def _round_robin(q, k, v, sums, totals, tops, scale, groups, length, splits, q_b, q_h, q_d, k_b, k_g, k_s, k_d,
                 v_b, v_g, v_s, v_d, R: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, S: tl.constexpr):
    row, split = tl.program_id(0), tl.program_id(1)
    b, g = row // groups, row % groups
    r, d = tl.arange(0, ROWS), tl.arange(0, D)
    query = tl.load(q + b * q_b + (g * R + r[:, None]) * q_h + d[None, :] * q_d, mask=r[:, None] < R, other=0.0)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for start in range(split * S, length, splits * S):
        s = start + tl.arange(0, S)
        key = tl.load(k + b * k_b + g * k_g + s[None, :] * k_s + d[:, None] * k_d, mask=s[None, :] < length, other=0.0)
        value = tl.load(v + b * v_b + g * v_g + s[:, None] * v_s + d[None, :] * v_d, mask=s[:, None] < length,
                        other=0.0)
        x = tl.where(s[None, :] < length, tl.dot(query, key, input_precision="ieee") * scale, -1e30)
        new = tl.maximum(top, tl.max(x, axis=1))
        p = tl.where(s[None, :] < length, tl.exp(x - new[:, None]), 0.0)
        factor = tl.exp(top - new)
        total = total * factor + tl.sum(p, axis=1)
        acc = acc * factor[:, None] + tl.dot(p.to(value.dtype), value, input_precision="ieee")
        top = new
    place = (row * R + r) * splits + split
    tl.store(sums + place[:, None] * D + d[None, :], acc, mask=r[:, None] < R)
    tl.store(totals + place, total, mask=r < R)
    tl.store(tops + place, top, mask=r < R)


@jit
def _merge(parts, lse, out, splits, D: tl.constexpr, S: tl.constexpr):
    row, s, d = tl.program_id(0), tl.arange(0, S), tl.arange(0, D)
    weight = tl.load(lse + row * splits + s, mask=s < splits, other=-float("inf"))
    weight = tl.exp(weight - tl.max(weight, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    part = tl.load(parts + (row * splits + s[:, None]) * D + d[None, :], mask=s[:, None] < splits, other=0.0)
    tl.store(out + row * D + d, tl.sum(part * weight[:, None], axis=0))


def _places(q, k, v):
    return q.stride(0), q.stride(1), q.stride(3), *k.stride(), *v.stride()


def parts_of(q, k, v, length, splits, fault="", block=16, scale=None, end=None, span=None, strides=None):
    """(parts [B,H,splits,D], lse [B,H,splits]) in float32, from one program a group and split."""
    b, h, _, d = q.shape
    g = k.shape[1]
    parts, lse = torch.empty(b, h, splits, d), torch.empty(b, h, splits)
    _decode[(b * g, splits)](
        q, k, v, parts, lse, 1 / math.sqrt(d) if scale is None else scale, g, length, length if end is None else end,
        cdiv(length, splits) if span is None else span, splits, *(strides or _places(q, k, v)), R=h // g,
        ROWS=max(16, power_of_2(h // g)), D=d, S=block, FAULT=fault)
    return parts, lse


def parts_of_heads(q, k, v, length, splits, block=32):
    """The same from one program a query head and split: K and V are loaded R times."""
    b, h, _, d = q.shape
    parts, lse = torch.empty(b, h, splits, d), torch.empty(b, h, splits)
    _one_head[(b * h, splits)](q, k, v, parts, lse, 1 / math.sqrt(d), h, h // k.shape[1], length, cdiv(length, splits),
                               splits, *_places(q, k, v), D=d, S=block)
    return parts, lse


def round_robin(q, k, v, length, splits, block=16):
    """(sums, totals, maxima): split i takes blocks i, i + splits, ... and divides nothing."""
    b, h, _, d = q.shape
    g = k.shape[1]
    sums, totals, tops = torch.empty(b, h, splits, d), torch.empty(b, h, splits), torch.empty(b, h, splits)
    _round_robin[(b * g, splits)](q, k, v, sums, totals, tops, 1 / math.sqrt(d), g, length, splits, *_places(q, k, v),
                                  R=h // g, ROWS=max(16, power_of_2(h // g)), D=d, S=block)
    return sums, totals, tops


def merged_by_kernel(q, parts, lse):
    """The merge in a second kernel, one program a head."""
    b, h, splits, d = parts.shape
    out = torch.empty(b, h, 1, d, dtype=q.dtype)
    _merge[(b * h,)](parts, lse, out, splits, D=d, S=power_of_2(splits))
    return out


def merged(q, parts, lse):
    """The merge in PyTorch, by log-sum-exp weights."""
    weights = (lse - lse.amax(-1, keepdim=True)).exp()
    return ((weights / weights.sum(-1, keepdim=True))[..., None] * parts).sum(2, keepdim=True).to(q.dtype)
