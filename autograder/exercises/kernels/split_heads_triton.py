"""split_heads_triton: a copy in which the kernel, not `view`, does the arithmetic of the strides."""
from __future__ import annotations

import torch
from einops import rearrange

from ...standard import normal
from ...triton_lab import TritonExercise, Workload, guarded
from . import _moves
from ._moves import NARROW, ORDER, PACKED, TAILED, TRAP, WHOLE, flat, head_major, rows, source, tiles, token_major
from ._parts import half_case, numbers

FULL = "64 tokens: blocks fill the rows"
TAIL = "33 tokens, the last block is mostly empty: B2 T33 H3 D16"
THIN = "heads of width 12, which is no power of two"

exercise = TritonExercise(
    "split_heads_triton", step=40, points=2, minutes=7, difficulty=3, importance=3,
    summary="packed [B,T,H·D] to contiguous heads [B,H,T,D] in one kernel, from any strides",
    exempt=("detaches-graph",),
    hides="64 tokens and heads of width 16 fill their blocks: no mask would be missed; a contiguous input hides "
          "assumed strides; H=1 or T=1 hides a flat copy",
    hints=("heads[b,h,t,d] = packed[b,t,h·D+d]. Give one program one batch entry, one head and a block of tokens.",
           "An address is a sum: base + b·stride_b + t·stride_t + c·stride_c. The strides come from packed.stride(), "
           "and those of the output from its shape.",
           "t = block·BLOCK + tl.arange(0, BLOCK) may pass the last token, and d may pass D where D is no power of "
           "two. Mask both, in the load and in the store."))


def oracle(packed, num_heads):
    return rearrange(packed, "b t (h d) -> b h t d", h=num_heads)


def _moved(lab, axes, packed):
    _moves.moved(lab, "split_heads_triton", packed, (axes["head"],), oracle(packed, axes["head"]).contiguous(), axes,
                 PACKED, "heads", ORDER)


def _packed(axes):
    given = source(PACKED, axes)
    b, t, h, d = given.shape
    return given.as_strided((b, t, h * d), (t * h * d, h * d, 1), given.storage_offset())


@exercise.case(FULL)
def whole(lab):
    _moved(lab, WHOLE, _packed(WHOLE))


@exercise.case(TAIL)
def tail(lab):
    _moved(lab, TAILED, _packed(TAILED))


@exercise.case(THIN)
def narrow(lab):
    _moved(lab, NARROW, _packed(NARROW))


@exercise.case("B=H=3, T=6, D=4: sizes where confused axes fit")
def trap(lab):
    _moved(lab, TRAP, _packed(TRAP))


@exercise.case("rows that lie 53 elements apart")
def strided(lab):
    axes = dict(TAILED, token=32)
    packed = _packed(axes)
    _moved(lab, axes, guarded(packed.clone(), row_gap=5))


@exercise.case("tokens are neighbours in memory, channels are not")
def channels_first(lab):
    axes = dict(TAILED, token=32)
    _moved(lab, axes, guarded(_packed(axes).mT.clone()).mT)


_moves.moves_once(exercise, lambda: (numbers(2, 33, 48, seed=1, row_gap=5), (3,)))
half_case(exercise, lambda dtype: ((numbers(2, 9, 24, seed=2, dtype=dtype), 3), {}), oracle, ORDER)


@exercise.workload
def workload(size, seed, dtype):
    b, t, h, d = (2, 33, 3, 16) if size == "small" else (2, 4096, 32, 64)
    packed = normal(b, t, h * d, seed=seed).to(dtype)
    return Workload((packed, h), {}, 2 * packed.numel() * packed.element_size(), 0,
                    lambda p, n: (oracle(p, n).contiguous(),))


@exercise.recognise("tail-unmasked")
def past_the_row(trials):
    return _moves.stored_outside(trials, FULL, (TAIL, THIN))


def _sizes(packed, num_heads):
    b, t, width = packed.shape
    return b, num_heads, t, width // num_heads


def _empty(packed, num_heads):
    return torch.empty(_sizes(packed, num_heads), dtype=packed.dtype)


def _read(packed, num_heads):
    batch, token, channel = packed.stride()
    return batch, packed.shape[-1] // num_heads * channel, token, channel


def _split(packed, num_heads, read=None, write=None, **how):
    sizes = _sizes(packed, num_heads)
    return tiles(packed, _empty(packed, num_heads), sizes, read or _read(packed, num_heads),
                 write or head_major(*sizes), **how)


@exercise.right
def one_program_a_tile(packed, num_heads):
    return _split(packed, num_heads)


@exercise.right
def one_program_a_row(packed, num_heads):
    sizes = _sizes(packed, num_heads)
    return rows(packed, _empty(packed, num_heads), sizes, _read(packed, num_heads), head_major(*sizes))


@exercise.right
def one_program_a_flat_block(packed, num_heads):
    return flat(packed, _empty(packed, num_heads), _sizes(packed, num_heads), _read(packed, num_heads), False)


@exercise.right
def four_views_first(packed, num_heads):
    heads = packed.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    out = torch.full(heads.shape, -1.0, dtype=packed.dtype)
    return tiles(heads, out, heads.shape, heads.stride(), out.stride(), block=16)


@exercise.wrong
def contiguous_assumed(packed, num_heads):
    """Strides must come from the tensor: the kernel read `packed` as if its rows followed one another."""
    return _split(packed, num_heads, read=token_major(*_sizes(packed, num_heads)))


@exercise.wrong
def tail_unmasked(packed, num_heads):
    """The last block wrote past its row: lanes beyond the end are masked in the store as well as in the load."""
    return _split(packed, num_heads, masked=False)


@exercise.wrong(id="tail-unmasked")
def blocks_of_64(packed, num_heads):
    return _split(packed, num_heads, masked=False, block=64)


@exercise.wrong
def relabelled_bytes(packed, num_heads):
    """A flat copy moves no axis: the bytes came back in the order in which they were."""
    b, h, t, d = _sizes(packed, num_heads)
    batch, token, channel = packed.stride()
    out = torch.empty(b, t, h * d, dtype=packed.dtype)
    tiles(packed, out, (b, 1, t, h * d), (batch, 0, token, channel), (t * h * d, 0, h * d, 1))
    return out.view(b, h, t, d)


@exercise.wrong
def head_is_the_fast_axis(packed, num_heads):
    """Head layout differs from the contract: channels were read as (d h)."""
    batch, token, channel = packed.stride()
    return _split(packed, num_heads, read=(batch, channel, token, num_heads * channel))


@exercise.wrong(id="relabelled-bytes")
def stored_token_major(packed, num_heads):
    return _split(packed, num_heads, write=token_major(*_sizes(packed, num_heads)))


@exercise.wrong
def race_on_the_output(packed, num_heads):
    """The address of the store lacks the batch: the programs of all batch entries write to the same elements."""
    b, h, t, d = _sizes(packed, num_heads)
    return _split(packed, num_heads, write=(0, t * d, d, 1))


@exercise.wrong
def first_block_only(packed, num_heads):
    """The grid is too small: tokens after the first block were neither read nor written."""
    return _split(packed, num_heads, blocks=1)


@exercise.wrong
def copies_first(packed, num_heads):
    """`.contiguous()` moved every byte once before the kernel moved it again."""
    return _split(packed.contiguous(), num_heads)


@exercise.wrong
def torch_did_it(packed, num_heads):
    """torch moved the bytes, and no kernel was launched."""
    return packed.unflatten(-1, (num_heads, -1)).transpose(1, 2).contiguous()
