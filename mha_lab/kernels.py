"""Session 07, kernels: attention in blocks that fit a processor's own memory, and what is known about its speed.

Letters: B batch, H query heads, G key/value heads, R = H/G query heads to a group, T query length, S key length, D head
width. Head packing is head-major: channel c = h·D + d. A kernel is launched over a grid of programs; each has its own
`tl.program_id` and a block of lanes `tl.arange`. Strides are in elements. Lanes that leave a tensor are masked.
"""
import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from mha_lab.triton_given import ready, tl, triton


@triton.jit
def split_kernel(packed, heads, length, num_heads, stride_b, stride_t, stride_c, D: tl.constexpr,
                 BLOCK: tl.constexpr):
    """One program copies a block of tokens of one head: packed [B,T,H·D] to contiguous heads [B,H,T,D]."""
    raise NotImplementedError("split_kernel: write this in mha_lab/kernels.py")


def split_heads_triton(packed: Float[Tensor, "B T HD"], num_heads: int) -> Float[Tensor, "B H T D"]:
    """heads[b,h,t,d] = packed[b,t,h·D+d], copied by one kernel; the strides of `packed` may be any.

    Every element is loaded once and stored once: no copy comes first. Source: session 01's head map, coordinate by
    coordinate. ImportError where Triton is not installed.
    """
    raise NotImplementedError("split_heads_triton: write this in mha_lab/kernels.py")


@triton.jit
def merge_kernel(heads, packed, length, num_heads, stride_b, stride_h, stride_t, stride_d, D: tl.constexpr,
                 BLOCK: tl.constexpr):
    """One program copies a block of tokens of one head: heads [B,H,T,D] to contiguous packed [B,T,H·D]."""
    raise NotImplementedError("merge_kernel: write this in mha_lab/kernels.py")


def merge_heads_triton(heads: Float[Tensor, "B H T D"]) -> Float[Tensor, "B T HD"]:
    """packed[b,t,h·D+d] = heads[b,h,t,d], copied by one kernel; the strides of `heads` may be any.

    Every element is loaded once and stored once: no copy comes first. ImportError where Triton is not installed.
    """
    raise NotImplementedError("merge_heads_triton: write this in mha_lab/kernels.py")


@triton.jit
def softmax_kernel(scores, probabilities, stride, out_stride, width, BLOCK: tl.constexpr):
    """One program owns one row: BLOCK is a power of two, at least `width`."""
    raise NotImplementedError("softmax_kernel: write this in mha_lab/kernels.py")


def softmax_triton(scores: Float[Tensor, "rows S"]) -> Float[Tensor, "rows S"]:
    """Softmax over the last axis, stable, in one kernel; rows may lie any number of elements apart.

    The elements of a row lie side by side. Each score is loaded at most twice, each probability stored once. Computed
    in float32, returned in the dtype of `scores`. ImportError where Triton is not installed.
    """
    raise NotImplementedError("softmax_triton: write this in mha_lab/kernels.py")


@triton.jit
def flash_kernel(q, k, v, heads, lse, scale, num_heads, queries, keys, shift,
                 q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, v_b, v_h, v_s, v_d,
                 D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr):
    """One program owns a block of queries of one head and walks over the blocks of keys.

    WIDTH is D rounded up to a power of two, at least 16. shift = S - T: query t sees keys up to t + shift.
    """
    raise NotImplementedError("flash_kernel: write this in mha_lab/kernels.py")


def flash_attention_triton(q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S D"],
                           causal: bool = False) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B H T"]]:
    """Attention over blocks of keys with an online softmax: no [T,S] matrix is ever stored.

    Scores are scaled by 1/√D. causal: query t sees keys 0 to t + S - T (the triangle ends at the lower right; T <= S).
    Returns (heads in the dtype of q, the log-sum-exp of each row of scaled scores in float32). K and V are loaded
    once for a block of queries, not once for a query. Source: FlashAttention (Dao et al., 2022), online softmax
    (Milakov and Gimelshein, 2018). ImportError where Triton is not installed.

    D is a power of two, at least 16. Products of float32 keep the precision of float32 on a GPU too, where `tl.dot`
    takes TF32 unless input_precision="ieee".
    """
    raise NotImplementedError("flash_attention_triton: write this in mha_lab/kernels.py")


@triton.jit
def decode_kernel(q, k, v, parts, lse, scale, groups, length, span, splits, q_b, q_h, q_d, k_b, k_g, k_s, k_d,
                  v_b, v_g, v_s, v_d, R: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
                  BLOCK: tl.constexpr):
    """One program owns all R query heads of one group and one span of keys; it stores its part and its log-sum-exp.

    ROWS is R rounded up to a power of two, at least 16; WIDTH is D rounded up in the same way.
    """
    raise NotImplementedError("decode_kernel: write this in mha_lab/kernels.py")


def gqa_decode_triton(q: Float[Tensor, "B H 1 D"], k_cache: Float[Tensor, "B G S_max D"],
                      v_cache: Float[Tensor, "B G S_max D"], length: int, splits: int) -> Float[Tensor, "B H 1 D"]:
    """One new query a head against the first `length` rows of a cache, the keys split over `splits` programs.

    Query head h reads key/value head h // R. Rows from `length` on hold anything, NaN too. A split may be empty. Parts
    are merged by their log-sum-exp, in PyTorch or in a second kernel. Each cached row is loaded once for its group,
    not once for a query head. Source: Flash-Decoding (Dao et al., 2023). ImportError where Triton is not installed.

    D is a power of two, at least 16. Products of float32 keep the precision of float32 on a GPU too.
    """
    raise NotImplementedError("gqa_decode_triton: write this in mha_lab/kernels.py")


def roofline(flops: float, bytes_moved: float, peak_flops: float, peak_bandwidth: float) -> dict[str, float | str]:
    """The least time that a machine needs for work of this size, and what bounds it.

    flops: operations. bytes_moved: bytes, not elements. peak_flops: operations a second. peak_bandwidth: bytes
    a second.
    Returns intensity (FLOPs per byte), bound ("compute" or "memory"; "compute" at the ridge itself) and seconds.
    Raises ValueError "positive" unless all four are positive. Source: Williams, Waterman, Patterson (2009).
    """
    raise NotImplementedError("roofline: write this in mha_lab/kernels.py")


def observe_backend(fn: Callable[[], object], requested: str = "auto") -> dict[str, object]:
    """Run `fn()` under the profiler, and name the attention backend that was seen.

    requested: what was asked for; it has no say in what is seen.
    Returns {"observed", "method", "operators"}. observed: "flash", "efficient", "cudnn", "math", or None where no
    operator of an attention backend ran. method: how it was seen, "profiler" or "dispatch". operators: the names of the
    attention operators that ran, sorted, each once, without "aten::".
    Every backend has an operator of its own: one that begins with _scaled_dot_product_flash_attention,
    _scaled_dot_product_efficient_attention or _scaled_dot_product_cudnn_attention; the math path runs
    _scaled_dot_product_attention_math.
    """
    raise NotImplementedError("observe_backend: write this in mha_lab/kernels.py")
