"""MOHSA: heads that also read the edge channels of their neighbours."""
import torch
from torch.nn import functional as F

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, VALUES, Exercise

exercise = Exercise(
    "overlap_heads", step=1, points=3, minutes=6, difficulty=2, importance=3,
    summary="Let each head read r channels of both neighbours beside its own: [B,S,H·D] becomes [B,H,S,D+2r].",
    hints=(
        "Write the packed channels of three heads of width 5 in a row, 0 to 14, and mark with r = 2 what head 1 reads. "
        "What kind of stretch is it?",
        "Each head reads one unbroken window, and the windows of two neighbours begin a fixed distance apart. What "
        "stands outside the row, for the first and for the last head?",
        "Make the row longer at both ends by what the first and the last head miss; then every head is the same kind "
        "of window. Which channel does head i's window begin at in the longer row?",
    ),
    hides="r = 0 hides every fault but a wrong split; r = D hides which edge of a neighbour was borrowed; B = H lets a "
          "head axis in the batch's place run.",
)

NAMES = ("batch", "head", "token", "channel")


def oracle(packed, num_heads, overlap):
    """Channel by channel."""
    batch, tokens, total = packed.shape
    width = total // num_heads
    heads = packed.new_zeros(batch, num_heads, tokens, width + 2 * overlap)
    for head in range(num_heads):
        for place in range(width + 2 * overlap):
            channel = head * width + place - overlap
            if 0 <= channel < total:
                heads[:, head, :, place] = packed[..., channel]
    return heads


def _check(lab, sizes, overlap):
    """Values are addresses plus one, so that a zero is padding and nothing else."""
    batch, heads, tokens, width = sizes
    packed = coded(b=batch, s=tokens, c=heads * width) + 1
    got, want = lab.call("overlap_heads", packed, heads, overlap), oracle(packed, heads, overlap)
    expect.shape(got, want.shape, "heads", "[B,H,S,D+2r]")
    expect.dtype(got, want.dtype, "heads")
    wrong = (got != want).nonzero()
    if len(wrong):
        at = wrong[0].tolist()
        held, asked = (_say(t[tuple(at)].item(), tokens, heads, width) for t in (got, want))
        raise expect.Mismatch(f"heads[{','.join(map(str, at))}] (head {at[1]}, token {at[2]}, channel {at[3]} of "
                              f"{width + 2 * overlap}) holds {held}, expected {asked}; {len(wrong)} of {want.numel()} "
                              "cells differ")


def _say(value, tokens, heads, width):
    if value == 0:
        return "zero"
    if value != int(value) or value < 1:
        return f"{value:g}, which is no cell of the rows"
    row, channel = divmod(int(value) - 1, heads * width)
    sample, token = divmod(row, tokens)
    return f"channel {channel % width} of head {channel // width} (sample {sample}, token {token})"


@exercise.case("every channel of every head: V, B2 H3 S7 D5, r = 2")
def windows(lab):
    _check(lab, (2, 3, 7, 5), 2)


@exercise.case("a head axis as long as the batch: X, B3 H3 S6 D4, r = 1")
def trap(lab):
    _check(lab, (3, 3, 6, 4), 1)


@exercise.case("r = D borrows whole neighbours: B2 H4 S5 D3, r = 3")
def whole(lab):
    _check(lab, (2, 4, 5, 3), 3)


@exercise.case("r = 0 is the classic split: B2 H3 S7 D5")
def classic(lab):
    _check(lab, (2, 3, 7, 5), 0)


standard.tensor_cases(exercise, lambda: ([standard.normal(2, 7, 15, seed=1)], {"num_heads": 3, "overlap": 2}), oracle,
                      NAMES)


@exercise.case("refuses an overlap that is wider than a head", CONTRACT)
def too_wide(lab):
    lab.raises(ValueError, "overlap", "overlap_heads", torch.ones(2, 7, 15), 3, 6)


@exercise.case("refuses an overlap below zero", CONTRACT)
def negative(lab):
    lab.raises(ValueError, "overlap", "overlap_heads", torch.ones(2, 7, 15), 3, -1)


def _width(packed, num_heads, overlap):
    width = packed.shape[-1] // num_heads
    if overlap < 0 or overlap > width:
        raise ValueError(f"an overlap of {overlap} does not fit heads of width {width}")
    return width


@exercise.right
def pad_and_unfold(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    return F.pad(packed, (overlap, overlap)).unfold(2, width + 2 * overlap, width).permute(0, 2, 1, 3)


@exercise.right
def loop_over_windows(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    padded = F.pad(packed, (overlap, overlap))
    return torch.stack([padded[..., i * width:(i + 1) * width + 2 * overlap] for i in range(num_heads)], dim=1)


@exercise.right
def three_parts_of_each_head(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    own = packed.unflatten(-1, (num_heads, width)).transpose(1, 2)
    none = torch.zeros_like(own[:, :1, :, :overlap])
    left = torch.cat([none, own[:, :-1, :, width - overlap:]], dim=1)
    right = torch.cat([own[:, 1:, :, :overlap], none], dim=1)
    return torch.cat([left, own, right], dim=-1)


@exercise.right
def gather(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    channel = torch.arange(num_heads)[:, None] * width + torch.arange(-overlap, width + overlap)
    inside = (channel >= 0) & (channel < num_heads * width)
    taken = packed[:, :, channel.clamp(0, num_heads * width - 1)]
    return (taken * inside.to(packed.dtype)).transpose(1, 2)


@exercise.right
def product_with_zeros_and_ones(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    pick = F.pad(torch.eye(num_heads * width, dtype=packed.dtype), (overlap, overlap))
    pick = pick.unfold(1, width + 2 * overlap, width)
    return torch.einsum("bsc,chw->bhsw", packed, pick)


@exercise.right
def strided_view(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    padded = F.pad(packed, (overlap, overlap)).contiguous()
    batch, tokens, total = padded.shape
    return padded.as_strided((batch, num_heads, tokens, width + 2 * overlap), (tokens * total, width, total, 1))


@exercise.right
def filled_cell_by_cell(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    out = torch.zeros(*packed.shape[:2], num_heads, width + 2 * overlap, dtype=packed.dtype)
    for i in range(num_heads):
        begin, end = max(0, i * width - overlap), min(num_heads * width, (i + 1) * width + overlap)
        at = begin - i * width + overlap
        out[:, :, i, at:at + end - begin] = packed[:, :, begin:end]
    return out.transpose(1, 2)


def _parts(packed, num_heads):
    return list(packed.chunk(num_heads, dim=-1))


def _joined(packed, num_heads, overlap, left, right):
    """left(heads, i, r) and right(heads, i, r) give what head i borrows, or None where there is no neighbour."""
    _width(packed, num_heads, overlap)
    heads = _parts(packed, num_heads)
    none = torch.zeros_like(heads[0][..., :overlap])
    built = []
    for i, own in enumerate(heads):
        before, after = left(heads, i, overlap), right(heads, i, overlap)
        built.append(torch.cat([none if before is None else before, own, none if after is None else after], dim=-1))
    return torch.stack(built, dim=1)


def _last(heads, i, r):
    return heads[i - 1][..., heads[0].shape[-1] - r:] if i else None


def _first(heads, i, r):
    return heads[i + 1][..., :r] if i + 1 < len(heads) else None


@exercise.wrong
def wraps_around(packed, num_heads, overlap):
    """The first head borrowed from the last. Heads lie in a row, not in a ring: where there is no neighbour the
    contract asks for zeros."""
    return _joined(packed, num_heads, overlap, lambda h, i, r: h[i - 1][..., h[0].shape[-1] - r:],
                   lambda h, i, r: h[(i + 1) % len(h)][..., :r])


@exercise.wrong(id="wraps-around")
def only_the_first_wraps(packed, num_heads, overlap):
    return _joined(packed, num_heads, overlap, lambda h, i, r: h[i - 1][..., h[0].shape[-1] - r:], _first)


@exercise.wrong(id="wraps-around")
def only_the_last_wraps(packed, num_heads, overlap):
    return _joined(packed, num_heads, overlap, _last, lambda h, i, r: h[(i + 1) % len(h)][..., :r])


def _narrow(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    return [packed[..., max(0, i * width - overlap):(i + 1) * width + overlap] for i in range(num_heads)]


@exercise.wrong
def ends_narrowed(packed, num_heads, overlap):
    """The first and the last head came out narrower, or not where they belong. They are zero-padded on the side where
    the neighbour is missing, so that every head is D+2r wide."""
    return _narrow(packed, num_heads, overlap)


@exercise.wrong(id="ends-narrowed")
def padded_behind(packed, num_heads, overlap):
    windows = _narrow(packed, num_heads, overlap)
    width = packed.shape[-1] // num_heads + 2 * overlap
    return torch.stack([F.pad(w, (0, width - w.shape[-1])) for w in windows], dim=1)


@exercise.wrong(id="ends-narrowed")
def a_tuple_of_heads(packed, num_heads, overlap):
    return tuple(_narrow(packed, num_heads, overlap))


@exercise.wrong(id="ends-narrowed")
def window_pushed_inside(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    wide = width + 2 * overlap
    begin = [min(max(0, i * width - overlap), num_heads * width - wide) for i in range(num_heads)]
    return torch.stack([packed[..., b:b + wide] for b in begin], dim=1)


@exercise.recognise("ends-narrowed")
def heads_that_do_not_stack(trials):
    """Windows of unequal width, and a stack that refuses them."""
    values = [t for t in trials if t.case.kind == VALUES]
    failing = [t for t in values if not t.passed]
    overlapping = [t for t in values if t.case.probe is not classic]
    return failing == overlapping and all("stack expects each tensor to be equal size" in t.message for t in failing)


@exercise.wrong
def one_sided(packed, num_heads, overlap):
    """Only one neighbour was asked. A head reads r channels on its left and r on its right."""
    return _joined(packed, num_heads, overlap, _last, lambda *_: None)


@exercise.wrong(id="one-sided")
def right_side_only(packed, num_heads, overlap):
    return _joined(packed, num_heads, overlap, lambda *_: None, _first)


@exercise.wrong(id="one-sided")
def left_side_without_room(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    return F.pad(packed, (overlap, 0)).unfold(2, width + overlap, width).transpose(1, 2)


@exercise.wrong(id="one-sided")
def right_side_without_room(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    return F.pad(packed, (0, overlap)).unfold(2, width + overlap, width).transpose(1, 2)


@exercise.wrong(id="one-sided")
def both_from_the_left(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    return F.pad(packed, (2 * overlap, 0)).unfold(2, width + 2 * overlap, width).transpose(1, 2)


@exercise.wrong(id="one-sided")
def both_from_the_right(packed, num_heads, overlap):
    width = _width(packed, num_heads, overlap)
    return F.pad(packed, (0, 2 * overlap)).unfold(2, width + 2 * overlap, width).transpose(1, 2)


@exercise.wrong
def wrong_edges(packed, num_heads, overlap):
    """A neighbour gave the channels of its far edge. The left neighbour gives its last r channels, the right one its
    first r: those that lie beside the head."""
    return _joined(packed, num_heads, overlap, lambda h, i, r: h[i - 1][..., :r] if i else None,
                   lambda h, i, r: h[i + 1][..., h[0].shape[-1] - r:] if i + 1 < len(h) else None)


@exercise.wrong(id="wrong-edges")
def far_edge_on_the_left(packed, num_heads, overlap):
    return _joined(packed, num_heads, overlap, lambda h, i, r: h[i - 1][..., :r] if i else None, _first)


@exercise.wrong(id="wrong-edges")
def far_edge_on_the_right(packed, num_heads, overlap):
    return _joined(packed, num_heads, overlap, _last,
                   lambda h, i, r: h[i + 1][..., h[0].shape[-1] - r:] if i + 1 < len(h) else None)


@exercise.wrong
def too_wide_accepted(packed, num_heads, overlap):
    """r may not exceed D: a head would read beyond its neighbour, and the same channel through two of them."""
    width = packed.shape[-1] // num_heads
    return F.pad(packed, (overlap, overlap)).unfold(2, width + 2 * overlap, width).transpose(1, 2)


@exercise.wrong(id="too-wide-accepted")
def only_negative_refused(packed, num_heads, overlap):
    if overlap < 0:
        raise ValueError("overlap is negative")
    width = packed.shape[-1] // num_heads
    return F.pad(packed, (overlap, overlap)).unfold(2, width + 2 * overlap, width).transpose(1, 2)


@exercise.recognise("too-wide-accepted")
def accepted(trials):
    """All values are right, and the call with r > D came back with one."""
    [wide] = [t for t in trials if t.case.probe is too_wide]
    return (all(t.passed for t in trials if t.case.kind == VALUES) and not wide.passed
            and bool(wide.transcript) and wide.transcript[-1].error is None)
