"""merge_heads_triton: heads side by side again, by a kernel that knows the strides of what it reads."""
from __future__ import annotations

import torch
from einops import rearrange

from ...coordinates import coded
from ...standard import normal
from ...triton_lab import TritonExercise, Workload, guarded
from . import _moves
from ._moves import NARROW, ORDER, TAILED, TRAP, WHOLE, flat, head_major, rows, tiles, token_major
from ._parts import half_case, numbers

FULL = "64 tokens: blocks fill the rows"
TAIL = "33 tokens, the last block is mostly empty: B2 H3 T33 D16"
THIN = "heads of width 12, which is no power of two"
NAMES = ("batch", "token", "channel")

exercise = TritonExercise(
    "merge_heads_triton", step=50, points=2, minutes=5, difficulty=3, importance=3,
    summary="heads [B,H,T,D] to contiguous packed [B,T,H·D] in one kernel, from any strides",
    exempt=("detaches-graph",),
    hides="64 tokens and heads of width 16 fill their blocks: no mask would be missed; contiguous heads hide assumed "
          "strides; H=1 or T=1 hides a flat copy",
    hints=("It is the way back: packed[b,t,h·D+d] = heads[b,h,t,d]. Which of the two sides has strides that you know, "
           "and which has strides that you are given?",
           "After a split by `view` and `transpose`, heads are not contiguous: all four strides of heads.stride() go "
           "to the kernel.",
           "In the output, head h begins at channel h·D of its token's row, and the row of token t begins at "
           "(b·T + t)·H·D."))


def oracle(heads):
    return rearrange(heads, "b h t d -> b t (h d)")


def _moved(lab, axes, heads):
    b, h, t, d = heads.shape
    _moves.moved(lab, "merge_heads_triton", heads, (), oracle(heads).contiguous(), axes, ORDER, "packed", NAMES,
                 split=(b, t, h, d))


def _heads(axes):
    return guarded(coded(**{n: axes[n] for n in ORDER}).float())


@exercise.case(FULL)
def whole(lab):
    _moved(lab, WHOLE, _heads(WHOLE))


@exercise.case(TAIL)
def tail(lab):
    _moved(lab, TAILED, _heads(TAILED))


@exercise.case(THIN)
def narrow(lab):
    _moved(lab, NARROW, _heads(NARROW))


@exercise.case("B=H=3, T=6, D=4: sizes where confused axes fit")
def trap(lab):
    _moved(lab, TRAP, _heads(TRAP))


@exercise.case("heads that are a view of a packed row, as a split leaves them")
def strided(lab):
    axes = dict(TAILED, token=32)
    _moved(lab, axes, guarded(_heads(axes).transpose(1, 2).clone()).transpose(1, 2))


@exercise.case("tokens are neighbours in memory, channels are not, and rows have gaps")
def channels_first(lab):
    axes = dict(TAILED, token=32)
    _moved(lab, axes, guarded(_heads(axes).mT.clone(), row_gap=3).mT)


_moves.moves_once(exercise, lambda: (guarded(numbers(2, 33, 3, 16, seed=1)).transpose(1, 2), ()))
half_case(exercise, lambda dtype: ((numbers(2, 3, 9, 8, seed=2, dtype=dtype),), {}), oracle, NAMES)


@exercise.workload
def workload(size, seed, dtype):
    b, h, t, d = (2, 3, 33, 16) if size == "small" else (2, 32, 4096, 64)
    heads = normal(b, t, h, d, seed=seed).to(dtype).transpose(1, 2)
    return Workload((heads,), {}, 2 * heads.numel() * heads.element_size(), 0, lambda x: (oracle(x).contiguous(),))


@exercise.recognise("tail-unmasked")
def past_the_row(trials):
    return _moves.stored_outside(trials, FULL, (TAIL, THIN))


def _empty(heads):
    b, h, t, d = heads.shape
    return torch.empty(b, t, h * d, dtype=heads.dtype)


def _merge(heads, read=None, write=None, **how):
    return tiles(heads, _empty(heads), heads.shape, read or heads.stride(), write or token_major(*heads.shape), **how)


@exercise.right
def one_program_a_tile(heads):
    return _merge(heads)


@exercise.right
def one_program_a_row(heads):
    return rows(heads, _empty(heads), heads.shape, heads.stride(), token_major(*heads.shape))


@exercise.right
def one_program_a_flat_block(heads):
    return flat(heads, _empty(heads), heads.shape, heads.stride(), True)


@exercise.right
def stores_through_views(heads):
    b, h, t, d = heads.shape
    out = torch.zeros(b, t, h, d, dtype=heads.dtype)
    tiles(heads, out, heads.shape, heads.stride(), out.transpose(1, 2).stride(), block=16)
    return out.view(b, t, h * d)


@exercise.wrong
def contiguous_assumed(heads):
    """Strides must come from the tensor: the kernel read `heads` as if they were contiguous."""
    return _merge(heads, read=head_major(*heads.shape))


@exercise.wrong
def tail_unmasked(heads):
    """The last block wrote past its row: lanes beyond the end are masked in the store as well as in the load."""
    return _merge(heads, masked=False)


@exercise.wrong(id="tail-unmasked")
def blocks_of_64(heads):
    return _merge(heads, masked=False, block=64)


@exercise.wrong
def relabelled_bytes(heads):
    """A flat copy moves no axis: the bytes came out in the order in which they were read."""
    return _merge(heads, write=head_major(*heads.shape))


@exercise.wrong
def head_major_output(heads):
    """Merged rows are token-major: here the rows of a head followed one another."""
    return _merge(heads, write=head_major(*heads.shape))


@exercise.wrong(id="head-major-output")
def heads_before_the_batch(heads):
    b, h, t, d = heads.shape
    return _merge(heads, write=(t * d, b * t * d, d, 1))


@exercise.wrong
def head_is_the_fast_axis(heads):
    """Head layout differs from the contract: channels were written as (d h)."""
    b, h, t, d = heads.shape
    return _merge(heads, write=(t * h * d, 1, h * d, h))


@exercise.wrong
def race_on_the_output(heads):
    """The address of the store lacks the head: the programs of all heads write to the same elements."""
    b, h, t, d = heads.shape
    return _merge(heads, write=(t * h * d, 0, h * d, 1))


@exercise.wrong
def first_block_only(heads):
    """The grid is too small: tokens after the first block were neither read nor written."""
    return _merge(heads, blocks=1)


@exercise.wrong
def copies_first(heads):
    """`.contiguous()` moved every byte once before the kernel moved it again."""
    return _merge(heads.contiguous())


@exercise.wrong
def torch_did_it(heads):
    """torch moved the bytes, and no kernel was launched."""
    return heads.transpose(1, 2).flatten(2).contiguous()
