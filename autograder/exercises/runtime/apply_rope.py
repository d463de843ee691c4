"""Rotary positions, in both conventions for which channels form a pair."""
import math

import torch

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from ...standard import normal
from ._rotation import pairs
from ._rotation import rotate as oracle

NAME = "apply_rope"
NAMES = "batch", "head", "token", "channel"
exercise = Exercise(
    NAME, step=5, points=3, minutes=7, difficulty=3, importance=5,
    summary="Turn channel pairs of queries or keys by angles that grow with the position, in both pair conventions.",
    hints=(
        "Start with one pair (a, b) at one position: what are a·cos - b·sin and a·sin + b·cos? Then ask which axis of "
        "x is the position, and along which axis the frequencies run.",
        "Angles form a table of positions by pairs, D/2 wide. A table [T, D/2] fits every sample and head; what has to "
        "stand between B and T when each sample has positions of its own?",
        "The two styles differ only in which channels are taken together, and in how they are put back. The frequency "
        "belongs to the pair's number, not to the channel's.",
    ),
    hides="D = 2 and position 0 hide the style; H = T hides positions on the head axis; positions from 0 hide a "
          "function that counts for itself.",
)
SIZES, TRAP = (2, 3, 5, 8), (5, 5, 5, 6)
FLOAT32_ANGLES = 1e-4  # of angles up to 150, as most models compute them


def x_of(sizes, seed=0, dtype=torch.float64):
    return normal(*sizes, seed=seed, dtype=dtype)


def _cell(got, x, positions, base, style):
    """Which pair was turned by which angle instead, in words, for the first pair that is wrong."""
    want = oracle(x, positions, base, style)
    b, h, t, c = (~((got - want).abs() <= FLOAT32_ANGLES)).nonzero()[0].tolist()
    i = next(i for i, pair in enumerate(pairs(x.shape[-1], style)) if c in pair)
    a, b_ = pairs(x.shape[-1], style)[i]
    at = (positions if positions.dim() == 1 else positions[b])[t].item()
    angle = at * base ** (-2 * i / x.shape[-1])
    before = torch.complex(x[b, h, t, a], x[b, h, t, b_])
    after = torch.complex(got[b, h, t, a], got[b, h, t, b_])
    place = f"sample {b}, head {h}, token {t} (position {at}), pair {i} = channels {a} and {b_}"
    if abs(abs(after) - abs(before)) > 1e-6:
        return f"{place}: its length changed from {abs(before):.4f} to {abs(after):.4f}; a rotation keeps it"
    turned = math.remainder((after / before).angle().item(), 2 * math.pi)
    return f"{place}: turned by {turned:.4f}, expected {math.remainder(angle, 2 * math.pi):.4f} rad (modulo 2π)"


def _try(lab, sizes, positions, base=10000.0, style="half", seed=0, defaults=False):
    x = x_of(sizes, seed)
    options = {} if defaults else {"base": base, "style": style}
    got = lab.call(NAME, x, positions, **options)
    want = oracle(x, positions, base, style)
    expect.shape(got, want.shape, "the result", "[B,H,T,D]")
    expect.dtype(got, want.dtype)
    try:
        expect.close(got, want, names=NAMES, atol=FLOAT32_ANGLES)
    except Mismatch as m:
        raise Mismatch(_cell(got, x, positions, base, style), m.figure) from None


@exercise.case("half: pair i is channels i and i + D/2")
def half(lab):
    _try(lab, SIZES, torch.arange(5), defaults=True)


@exercise.case("interleaved: pair i is channels 2i and 2i + 1")
def interleaved(lab):
    _try(lab, SIZES, torch.arange(5), style="interleaved")


@exercise.case("a prefix is cached: the positions of five new tokens start at 6")
def offset(lab):
    for style in ("half", "interleaved"):
        _try(lab, SIZES, torch.arange(6, 11), style=style, seed=1)


@exercise.case("positions in any order, with a gap and a repetition")
def any_order(lab):
    _try(lab, SIZES, torch.tensor([3, 0, 41, 7, 7]), seed=2)


@exercise.case("far positions, at the base that is meant when none is given")
def far(lab):
    _try(lab, SIZES, torch.arange(5) * 200, seed=12, defaults=True)


@exercise.case("each sample at its own positions, [B,T]")
def each_sample(lab):
    _try(lab, SIZES, torch.tensor([[0, 1, 2, 3, 4], [9, 10, 11, 12, 13]]), seed=3)


@exercise.case("B=H=T=5: sizes where confused axes fit")
def trap(lab):
    _try(lab, TRAP, torch.arange(2, 7), seed=4)
    _try(lab, TRAP, torch.arange(25).reshape(5, 5), seed=5, style="interleaved")


@exercise.case("another base: 500000, as in Llama 3")
def other_base(lab):
    for style in ("half", "interleaved"):
        _try(lab, (2, 3, 4, 6), torch.arange(4) * 50, base=500000.0, style=style, seed=6)


@exercise.case("one new token at position 7")
def one_token(lab):
    _try(lab, (2, 3, 1, 8), torch.tensor([7]), seed=7)


@exercise.case("scores depend on the distance of two positions only")
def relative(lab):
    q, k = x_of((2, 3, 4, 8), 8), x_of((2, 3, 4, 8), 9)
    for style in ("half", "interleaved"):
        scores = []
        for shift in (0, 100):
            at = torch.arange(4) + shift
            turned = [lab.call(NAME, x, at, style=style) for x in (q, k)]
            for got in turned:
                expect.shape(got, q.shape, "the result", "[B,H,T,D]")
                expect.dtype(got, q.dtype)
            scores.append(turned[0] @ turned[1].mT)
        expect.close(scores[1], scores[0], "scores after a shift by 100 positions",
                     ("batch", "head", "query", "key"), atol=10 * FLOAT32_ANGLES)
        own = (q * k).sum(-1)
        expect.close(scores[0].diagonal(0, -2, -1), own, "scores at distance 0, q·k as without rotation:",
                     ("batch", "head", "token"), atol=10 * FLOAT32_ANGLES)


@exercise.case("a gradient comes back to x, turned the other way")
def gradient(lab):
    for style in ("half", "interleaved"):
        x, at = x_of(SIZES, 10).requires_grad_(), torch.arange(4, 9)
        got, want = lab.call(NAME, x, at, style=style), oracle(x, at, style=style)
        expect.close(got, want.detach(), names=NAMES, atol=FLOAT32_ANGLES)
        cotangent = x_of(SIZES, 77)
        theirs = torch.autograd.grad(want, x, cotangent)[0]
        expect.gradient(lab.backward((got, cotangent)), x, theirs, "x", NAMES, atol=FLOAT32_ANGLES)


@exercise.case("the dtype follows the input, and two calls agree", CONTRACT)
def dtypes(lab):
    for dtype in (torch.float32, torch.bfloat16):
        x, at = x_of(SIZES, 11, dtype), torch.arange(4, 9)
        want = oracle(x, at)
        for _ in range(2):
            got = expect.tensor(lab.call(NAME, x, at))
            expect.dtype(got, dtype)
            loose = max(FLOAT32_ANGLES, standard.TOLERANCE[dtype])
            expect.close(got, want, names=NAMES, atol=loose, rtol=loose)


@exercise.case("refuses an odd width", CONTRACT)
def refuses(lab):
    for width in (7, 1):
        lab.raises(ValueError, "even", NAME, x_of((2, 3, 5, width)), torch.arange(5))


@exercise.case("refuses another style", CONTRACT)
def refuses_style(lab):
    lab.raises(ValueError, "style", NAME, x_of(SIZES), torch.arange(5), style="full")


def check(x, style):
    if x.shape[-1] % 2:
        raise ValueError("the width must be even")
    if style not in ("half", "interleaved"):
        raise ValueError("unknown style")


def table(x, positions, base):
    """cos and sin, [1,T,D/2] or [B,1,T,D/2]."""
    inverse = 1.0 / base ** (torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    angles = (positions[..., None].double() * inverse).unsqueeze(-3)
    return angles.cos(), angles.sin()


@exercise.right
def complex_numbers(x, positions, base=10000.0, style="half"):
    check(x, style)
    cos, sin = table(x, positions, base)
    wide = x.double()
    two = wide.unflatten(-1, (2, -1)).transpose(-1, -2) if style == "half" else wide.unflatten(-1, (-1, 2))
    turned = torch.view_as_real(torch.view_as_complex(two.contiguous()) * torch.complex(cos, sin))
    turned = turned.transpose(-1, -2) if style == "half" else turned
    return turned.flatten(-2).to(x.dtype)


@exercise.right
def rotate_half(x, positions, base=10000.0, style="half"):
    check(x, style)
    cos, sin = table(x, positions, base)
    if style == "half":
        cos, sin = (torch.cat([t, t], -1) for t in (cos, sin))
        a, b = x.chunk(2, -1)
        other = torch.cat([-b, a], -1)
    else:
        cos, sin = (t.repeat_interleave(2, -1) for t in (cos, sin))
        other = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return (x * cos + other * sin).to(x.dtype)


@exercise.right
def one_pair_at_a_time(x, positions, base=10000.0, style="half"):
    check(x, style)
    width, out = x.shape[-1], x.clone()
    at = (positions[:, None] if positions.dim() == 2 else positions).to(torch.float32).double()
    for i in range(width // 2):
        a, b = (i, i + width // 2) if style == "half" else (2 * i, 2 * i + 1)
        angle = at / base ** (2 * i / width)
        out[..., a] = (x[..., a] * angle.cos() - x[..., b] * angle.sin()).to(x.dtype)
        out[..., b] = (x[..., a] * angle.sin() + x[..., b] * angle.cos()).to(x.dtype)
    return out


@exercise.right
def angles_in_float32(x, positions, base=10000.0, style="half"):
    """As transformers does it."""
    check(x, style)
    inverse = 1.0 / (base ** (torch.arange(0, x.shape[-1], 2, dtype=torch.int64).float() / x.shape[-1]))
    angles = (positions[..., None].float() * inverse).unsqueeze(-3)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if style == "half":
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


@exercise.right
def matrices(x, positions, base=10000.0, style="half"):
    check(x, style)
    width = x.shape[-1]
    cos, sin = table(x, positions, base)
    turn = torch.zeros(*cos.shape[:-1], width, width, dtype=torch.float64)
    for i in range(width // 2):
        a, b = (i, i + width // 2) if style == "half" else (2 * i, 2 * i + 1)
        turn[..., a, a] = turn[..., b, b] = cos[..., i]
        turn[..., a, b], turn[..., b, a] = -sin[..., i], sin[..., i]
    return (turn.expand(*x.shape[:3], width, width) @ x[..., None].double()).squeeze(-1).to(x.dtype)


@exercise.wrong
def styles_exchanged(x, positions, base=10000.0, style="half"):
    """The other pairs were turned: "half" pairs channel i with i + D/2, "interleaved" pairs 2i with 2i + 1."""
    check(x, style)
    return rotate_half(x, positions, base, "interleaved" if style == "half" else "half")


@exercise.wrong(id="styles-exchanged")
def always_half(x, positions, base=10000.0, style="half"):
    check(x, style)
    return rotate_half(x, positions, base)


@exercise.wrong(id="styles-exchanged")
def always_interleaved(x, positions, base=10000.0, style="half"):
    check(x, style)
    return rotate_half(x, positions, base, "interleaved")


@exercise.wrong(id="styles-exchanged")
def half_with_interleaved_frequencies(x, positions, base=10000.0, style="half"):
    check(x, style)
    if style == "interleaved":
        return rotate_half(x, positions, base, style)
    cos, sin = (t.repeat_interleave(2, -1) for t in table(x, positions, base))
    a, b = x.chunk(2, -1)
    return (x * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


@exercise.wrong
def positions_restart(x, positions, base=10000.0, style="half"):
    """The function counts from 0 itself. With a cache the positions of new tokens continue, and the caller knows them.
    """
    check(x, style)
    return rotate_half(x, torch.arange(x.shape[2]), base, style)


@exercise.wrong(id="positions-restart")
def positions_taken_from_the_first(x, positions, base=10000.0, style="half"):
    check(x, style)
    return rotate_half(x, positions - positions[..., :1], base, style)


@exercise.wrong
def head_axis_as_position(x, positions, base=10000.0, style="half"):
    """The angle follows the token axis; here it follows the head axis, so that all tokens of a head turn alike."""
    check(x, style)
    heads = x.shape[1]
    at = positions if positions.shape[-1] == heads else positions[..., :1] + torch.arange(heads)
    return rotate_half(x.transpose(1, 2), at, base, style).transpose(1, 2)


@exercise.wrong(id="head-axis-as-position")
def table_on_the_head_axis(x, positions, base=10000.0, style="half"):
    check(x, style)
    cos, sin = (t.squeeze(-3)[..., None, :] for t in table(x, positions, base))
    a, b = x.unflatten(-1, (2, -1)).unbind(-2) if style == "half" else x.unflatten(-1, (-1, 2)).unbind(-1)
    axis = -2 if style == "half" else -1
    return torch.stack([a * cos - b * sin, a * sin + b * cos], axis).flatten(-2).to(x.dtype)
