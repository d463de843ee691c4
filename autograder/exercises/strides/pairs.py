"""Split and merge, done right in many ways and wrong in many more: what a layout oracle has to tell apart.

Every pair, right or wrong, returns the right shapes for any sizes; all run on the grader's side. A wrong pair is wrong
at every size whose axes are all above 1.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from einops import rearrange

MOST_ELEMENTS = 200_000


@dataclass(frozen=True)
class Pair:
    """split(packed, num_heads) and merge(heads), with what a learner is told about them."""

    id: str
    say: str
    split: Callable
    merge: Callable


def _guarded(split, merge):
    """The pair as a learner's test may call it: inputs that no layout can have are refused, and so are huge ones."""
    def safe_split(packed, num_heads):
        _tensor(packed, 3)
        if not isinstance(num_heads, int) or num_heads < 1 or packed.shape[2] % num_heads:
            raise ValueError(f"{packed.shape[2]} channels are not divisible by {num_heads!r} heads")
        return split(packed, num_heads)

    def safe_merge(heads):
        _tensor(heads, 4)
        return merge(heads)
    return safe_split, safe_merge


def _tensor(value, axes):
    if not isinstance(value, torch.Tensor) or value.dim() != axes:
        raise ValueError(f"expected a tensor with {axes} axes")
    if value.numel() > MOST_ELEMENTS:
        raise ValueError(f"this pair takes at most {MOST_ELEMENTS:,} elements")


def _pair(id_, say, split, merge):
    return Pair(id_, say, *_guarded(split, merge))


def _split(packed, n):
    return packed.unflatten(-1, (n, -1)).transpose(1, 2)


def _merge(heads):
    return heads.transpose(1, 2).flatten(2)


def _indexed_split(packed, n):
    b, s, w = packed.shape
    h, d = torch.arange(n)[:, None, None], torch.arange(w // n)
    return packed[:, torch.arange(s)[None, :, None], h * (w // n) + d]


def _indexed_merge(heads):
    b, h, q, d = heads.shape
    c = torch.arange(h * d)
    return heads[:, c // d, torch.arange(q)[:, None], c % d]


def _looped_split(packed, n):
    b, s, w = packed.shape
    heads = packed.new_empty(b, n, s, w // n)
    for head in range(n):
        heads[:, head] = packed[..., head * (w // n):(head + 1) * (w // n)]
    return heads


def _looped_merge(heads):
    packed = heads.new_empty(heads.shape[0], heads.shape[2], heads.shape[1] * heads.shape[3])
    for head in range(heads.shape[1]):
        packed[..., head * heads.shape[3]:(head + 1) * heads.shape[3]] = heads[:, head]
    return packed


def _padded(tensor):
    """The same values in wider rows: strided, in memory of its own."""
    wide = tensor.new_empty(*tensor.shape[:-1], tensor.shape[-1] + 3)
    wide[..., :-3] = tensor
    return wide[..., :-3]


VIEWING, COPYING, PADDED = "views", "contiguous copies", "strided copies"

RIGHT = {
    VIEWING: (
        _pair("unflatten-flatten", "`unflatten` and `transpose`, `transpose` and `flatten`", _split, _merge),
        _pair("view-contiguous", "`view` and `transpose`, `transpose` and `contiguous` and `view`",
              lambda x, n: x.reshape(*x.shape[:2], n, -1).transpose(1, 2),
              lambda x: x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])),
        _pair("einops", "einops, both ways", lambda x, n: rearrange(x, "b s (h d) -> b h s d", h=n),
              lambda x: rearrange(x, "b h q d -> b q (h d)")),
        _pair("windows", "`unfold` and `movedim`, `permute` and `reshape`",
              lambda x, n: x.unfold(2, x.shape[2] // n, x.shape[2] // n).movedim(2, 1),
              lambda x: x.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)),
    ),
    COPYING: (
        _pair("contiguous-cat", "a split made contiguous, a merge by `cat`",
              lambda x, n: _split(x, n).contiguous(), lambda x: torch.cat(x.unbind(1), -1)),
        _pair("loops", "a loop over heads that fills new memory, both ways", _looped_split, _looped_merge),
        _pair("indices", "advanced indexing, both ways", _indexed_split, _indexed_merge),
        _pair("stacked", "stacked channel slices, and rows of stacked queries",
              lambda x, n: torch.stack(x.chunk(n, -1), 1),
              lambda x: torch.stack([x[:, :, q].flatten(1) for q in range(x.shape[2])], 1)),
    ),
    PADDED: (
        _pair("padded", "both results lie in wider rows of new memory", lambda x, n: _padded(_split(x, n)),
              lambda x: _padded(_merge(x))),
    ),
}


def _relabelled(x, n):
    return x.reshape(x.shape[0], n, x.shape[1], -1)


def _unswapped(x):
    return x.reshape(x.shape[0], x.shape[2], -1)


def _fast_head(x, n):
    return rearrange(x, "b s (d h) -> b h s d", h=n)


def _fast_head_back(x):
    return rearrange(x, "b h q d -> b q (d h)")


def _misread(x):
    return x.permute(1, 2, 0, 3).reshape(x.shape[0], x.shape[2], -1)


def _channels_as_rows(x, n):
    return x.mT.reshape(x.shape[0], n, x.shape[1], -1)


def _first_for_all(x, n):
    heads = _split(x, n)
    return heads[:, :1].expand_as(heads)


def _one_left_out(x, n):
    heads = _split(x, n).clone()
    limits = torch.finfo if x.is_floating_point() else torch.iinfo
    heads[:, -1] = True if x.dtype is torch.bool else limits(x.dtype).max
    return heads


def _neighbours(x, n):
    """Channels 0 and 1, 2 and 3, ... of every row change places."""
    x = x.clone()
    even = x.shape[2] // 2 * 2
    x[..., 0:even:2], x[..., 1:even:2] = x[..., 1:even:2].clone(), x[..., 0:even:2].clone()
    return _split(x, n)


def _last_two(x, n):
    x = x.clone()
    x[-1, -1, -2:] = x[-1, -1, -2:].flip(0)
    return _split(x, n)


def _swapped_where(weights):
    """A split that exchanges two elements to which a positional code with these weights gives one number."""
    def split(x, n):
        b, s, w = x.shape
        sizes = (b, s, n, w // n) if len(weights) == 4 else (b, s, w)
        one, other = _collision(sizes, weights)
        cells = x.clone().reshape(sizes)
        cells[one], cells[other] = cells[other].clone(), cells[one].clone()
        return _split(cells.reshape(b, s, w), n)
    return split


def _collision(sizes, weights):
    seen = {}
    for index in product(*map(range, sizes)):
        code = sum(i * weight for i, weight in zip(index, weights, strict=True))
        if code in seen:
            return seen[code], index
        seen[code] = index
    first = (0,) * len(sizes)
    return first, (*first[:-1], 1 % sizes[-1])


def _contiguous_strides(x):
    b, h, q, d = x.shape
    return x.as_strided((b, q, h, d), (h * q * d, d, q * d, 1)).reshape(b, q, h * d)


def _token_major_strides(x):
    b, h, q, d = x.shape
    return x.as_strided((b, q, h * d), (q * h * d, h * d, 1)).clone()


def _bare_view(x):
    return x.transpose(1, 2).view(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


MATCHED = (
    _pair("relabelled-both-ways", "both only rename bytes: split by `view(B,H,S,D)`, merge by `view(B,Q,H·D)`",
          _relabelled, _unswapped),
    _pair("fast-head-both-ways", "both use the (d h) order", _fast_head, _fast_head_back),
    _pair("heads-reversed-both-ways", "both turn the order of the heads round",
          lambda x, n: _split(x, n).flip(1), lambda x: _merge(x.flip(1))),
    _pair("tokens-rolled-both-ways", "the split moves every token on by one, the merge moves it back",
          lambda x, n: _split(x, n).roll(1, 2), lambda x: _merge(x.roll(-1, 2))),
    _pair("channels-reversed-both-ways", "both turn the channels of every head round",
          lambda x, n: _split(x, n).flip(3), lambda x: _merge(x.flip(3))),
)
RELABELLED = _pair("relabelled-split", "its split only renames bytes: `view(B,H,S,D)`", _relabelled, _merge)
UNSWAPPED = _pair("merge-without-swap", "its merge only renames bytes: `view(B,Q,H·D)`", _split, _unswapped)
FAST_HEAD = (
    _pair("fast-head-split", "its split uses the (d h) order, its merge (h d)", _fast_head, _merge),
    _pair("fast-head-merge", "its merge uses the (d h) order, its split (h d)", _split, _fast_head_back),
)
MISREAD = _pair("head-batch-misread", "its merge reads [B,H,Q,D] as [H,B,Q,D]", _split, _misread)
TRANSPOSED = _pair("rows-and-channels", "its split reads every sample column by column", _channels_as_rows, _merge)
REPEATED = _pair("first-head-for-all", "its split gives every head the channels of head 0", _first_for_all, _merge)
UNFILLED = _pair("last-head-unfilled", "its split never fills the last head: it holds garbage", _one_left_out, _merge)
NEIGHBOURS = _pair("neighbours-swapped", "its split exchanges channels 0 and 1, 2 and 3, ...", _neighbours, _merge)
LAST_TWO = _pair("last-two-swapped", "its split exchanges the last two channels of the last token", _last_two, _merge)
COLLIDING = (
    _pair("equal-decimal-codes", "its split exchanges two elements: if there are any, two with one decimal code "
          "1000b+100s+10h+d, such as (h 0, d 10) and (h 1, d 0)", _swapped_where((1000, 100, 10, 1)), _merge),
    _pair("equal-decimal-codes-of-rows", "its split exchanges two elements: if there are any, two with one decimal "
          "code 100b+10s+c, such as (s 0, c 10) and (s 1, c 0)", _swapped_where((100, 10, 1)), _merge),
)
ONE_LAYOUT = (
    _pair("assumes-contiguous-heads", "its merge is right for contiguous heads only", _split, _contiguous_strides),
    _pair("assumes-token-major-heads", "its merge is right for heads that are stored by token only", _split,
          _token_major_strides),
    _pair("view-of-transposed", "its merge is a bare `view` after `transpose`: it raises on contiguous heads", _split,
          _bare_view),
)

WRONG = (RELABELLED, UNSWAPPED, *FAST_HEAD, MISREAD, TRANSPOSED, REPEATED, UNFILLED, NEIGHBOURS, LAST_TWO, *MATCHED,
         *COLLIDING)
