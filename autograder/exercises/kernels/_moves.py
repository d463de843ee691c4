"""Known programs that copy [B,H,T,D] elements from one layout to another, and what both layout exercises ask."""
from __future__ import annotations

import torch

from ... import expect
from ...coordinates import coded
from ...exercise import CONTRACT
from ...triton_lab import guarded, run, sound, sound_beside, traffic
from ._triton import cdiv, jit, power_of_2, tl

WHOLE = dict(batch=2, head=3, token=64, channel=16)
TAILED = dict(batch=2, head=3, token=33, channel=16)
NARROW = dict(batch=2, head=3, token=7, channel=12)
TRAP = dict(batch=3, head=3, token=6, channel=4)
ORDER = ("batch", "head", "token", "channel")
PACKED = ("batch", "token", "head", "channel")


def source(order, axes, dtype=torch.float32) -> torch.Tensor:
    """A coded tensor whose axes come in `order`, between bands of NaN."""
    return guarded(coded(**{name: axes[name] for name in order}).to(dtype))


def moved(lab, name, given, args, want, axes, order, what, names, split=()):
    """A watched call, compared address by address."""
    got = run(lab, name, given, *args)
    with sound_beside(lab):
        expect.layout(got, want, {n: axes[n] for n in order}, what, names, split)
    return got


def moves_once(exercise, inputs):
    """Adds the count of bytes: every element loaded once, stored once, whatever the strides."""
    @exercise.case("every element is loaded once and stored once, from a strided input too", CONTRACT)
    def bytes_moved(lab):
        given, args = inputs()
        run(lab, exercise.name, given, *args)
        sound(lab)
        traffic(lab, 2 * given.numel() * given.element_size(), 1.5,
                "The strides of the input go to the kernel; no copy has to come first.")


def stored_outside(trials, whole, tails) -> bool:
    """Right where blocks fill the rows, and storing outside of them, or over other rows, where they do not."""
    by_title = {t.case.title: t for t in trials}
    return by_title[whole].passed and any(
        by_title[t].message.startswith("out of bounds") and ", a store of" in by_title[t].message
        or by_title[t].message.startswith("a race") and "stores" in by_title[t].message for t in tails)


@jit
def _tile(src, dst, heads, length, s_b, s_h, s_t, s_d, o_b, o_h, o_t, o_d, D: tl.constexpr, WIDTH: tl.constexpr,
          BLOCK: tl.constexpr, MASKED: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    b, h = row // heads, row % heads
    t = block * BLOCK + tl.arange(0, BLOCK)[:, None]
    d = tl.arange(0, WIDTH)[None, :]
    inside = (t < length) & (d < D)
    x = tl.load(src + b * s_b + h * s_h + t * s_t + d * s_d, mask=inside, other=0.0)
    to = dst + b * o_b + h * o_h + t * o_t + d * o_d
    if MASKED:
        tl.store(to, x, mask=inside)
    else:
        tl.store(to, x, mask=d < D)


@jit
def _row(src, dst, heads, length, s_b, s_h, s_t, s_d, o_b, o_h, o_t, o_d, D: tl.constexpr, WIDTH: tl.constexpr):
    token, h = tl.program_id(0), tl.program_id(1)
    b, t = token // length, token % length
    d = tl.arange(0, WIDTH)
    x = tl.load(src + b * s_b + h * s_h + t * s_t + d * s_d, mask=d < D)
    tl.store(dst + b * o_b + h * o_h + t * o_t + d * o_d, x, mask=d < D)


@jit
def _flat(src, dst, heads, length, total, s_b, s_h, s_t, s_d, D: tl.constexpr, BLOCK: tl.constexpr,
          MERGES: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = i % D
    if MERGES:
        h, t = i // D % heads, i // (D * heads) % length
    else:
        t, h = i // D % length, i // (D * length) % heads
    b = i // (D * heads * length)
    x = tl.load(src + b * s_b + h * s_h + t * s_t + d * s_d, mask=i < total, other=0.0)
    tl.store(dst + i, x, mask=i < total)


def tiles(src, out, sizes, read, write, masked=True, block=32, blocks=None):
    """One program a head and block of tokens; `read` and `write` are strides of (b, h, t, d)."""
    b, h, t, d = sizes
    _tile[(b * h, blocks or cdiv(t, block))](src, out, h, t, *read, *write, D=d, WIDTH=power_of_2(d), BLOCK=block,
                                             MASKED=masked)
    return out


def rows(src, out, sizes, read, write):
    """One program a token and head."""
    b, h, t, d = sizes
    _row[(b * t, h)](src, out, h, t, *read, *write, D=d, WIDTH=power_of_2(d))
    return out


def flat(src, out, sizes, read, merges):
    """One program a block of 256 elements of the output, by arithmetic on the flat index."""
    b, h, t, d = sizes
    _flat[(cdiv(b * h * t * d, 256),)](src, out, h, t, b * h * t * d, *read, D=d, BLOCK=256, MERGES=merges)
    return out


def head_major(b, h, t, d):
    """Strides of (b, h, t, d) in contiguous [B,H,T,D]."""
    return h * t * d, t * d, d, 1


def token_major(b, h, t, d):
    """Strides of (b, h, t, d) in contiguous [B,T,H·D]."""
    return t * h * d, d, h * d, 1
