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
    ### BEGIN SOLUTION
    row, block = tl.program_id(0), tl.program_id(1)
    b, h = row // num_heads, row % num_heads
    t = block * BLOCK + tl.arange(0, BLOCK)[:, None]
    d = tl.arange(0, triton.next_power_of_2(D))[None, :]
    inside = (t < length) & (d < D)
    values = tl.load(packed + b * stride_b + t * stride_t + (h * D + d) * stride_c, mask=inside, other=0.0)
    tl.store(heads + (row * length + t) * D + d, values, mask=inside)
    ### END SOLUTION


def split_heads_triton(packed: Float[Tensor, "B T HD"], num_heads: int) -> Float[Tensor, "B H T D"]:
    """heads[b,h,t,d] = packed[b,t,h·D+d], copied by one kernel; the strides of `packed` may be any.

    Every element is loaded once and stored once: no copy comes first. Source: session 01's head map, coordinate by
    coordinate. ImportError where Triton is not installed.
    """
    ### BEGIN SOLUTION
    ready()
    batch, length, width = packed.shape
    heads = torch.empty(batch, num_heads, length, width // num_heads, dtype=packed.dtype, device=packed.device)
    block = 32
    split_kernel[(batch * num_heads, triton.cdiv(length, block))](
        packed, heads, length, num_heads, *packed.stride(), D=width // num_heads, BLOCK=block)
    return heads
    ### END SOLUTION


@triton.jit
def merge_kernel(heads, packed, length, num_heads, stride_b, stride_h, stride_t, stride_d, D: tl.constexpr,
                 BLOCK: tl.constexpr):
    """One program copies a block of tokens of one head: heads [B,H,T,D] to contiguous packed [B,T,H·D]."""
    ### BEGIN SOLUTION
    row, block = tl.program_id(0), tl.program_id(1)
    b, h = row // num_heads, row % num_heads
    t = block * BLOCK + tl.arange(0, BLOCK)[:, None]
    d = tl.arange(0, triton.next_power_of_2(D))[None, :]
    inside = (t < length) & (d < D)
    values = tl.load(heads + b * stride_b + h * stride_h + t * stride_t + d * stride_d, mask=inside, other=0.0)
    tl.store(packed + ((b * length + t) * num_heads + h) * D + d, values, mask=inside)
    ### END SOLUTION


def merge_heads_triton(heads: Float[Tensor, "B H T D"]) -> Float[Tensor, "B T HD"]:
    """packed[b,t,h·D+d] = heads[b,h,t,d], copied by one kernel; the strides of `heads` may be any.

    Every element is loaded once and stored once: no copy comes first. ImportError where Triton is not installed.
    """
    ### BEGIN SOLUTION
    ready()
    batch, num_heads, length, width = heads.shape
    packed = torch.empty(batch, length, num_heads * width, dtype=heads.dtype, device=heads.device)
    block = 32
    merge_kernel[(batch * num_heads, triton.cdiv(length, block))](
        heads, packed, length, num_heads, *heads.stride(), D=width, BLOCK=block)
    return packed
    ### END SOLUTION


@triton.jit
def softmax_kernel(scores, probabilities, stride, out_stride, width, BLOCK: tl.constexpr):
    """One program owns one row: BLOCK is a power of two, at least `width`."""
    ### BEGIN SOLUTION
    row, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(scores + row * stride + lanes, mask=lanes < width, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(probabilities + row * out_stride + lanes, e / tl.sum(e, axis=0), mask=lanes < width)
    ### END SOLUTION


def softmax_triton(scores: Float[Tensor, "rows S"]) -> Float[Tensor, "rows S"]:
    """Softmax over the last axis, stable, in one kernel; rows may lie any number of elements apart.

    The elements of a row lie side by side. Each score is loaded at most twice, each probability stored once. Computed
    in float32, returned in the dtype of `scores`. ImportError where Triton is not installed.
    """
    ### BEGIN SOLUTION
    ready()
    rows, width = scores.shape
    probabilities = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    softmax_kernel[(rows,)](scores, probabilities, scores.stride(0), probabilities.stride(0), width,
                            BLOCK=triton.next_power_of_2(width))
    return probabilities
    ### END SOLUTION


@triton.jit
def flash_kernel(q, k, v, heads, lse, scale, num_heads, queries, keys, shift,
                 q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, v_b, v_h, v_s, v_d,
                 D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr):
    """One program owns a block of queries of one head and walks over the blocks of keys.

    WIDTH is D rounded up to a power of two, at least 16. shift = S - T: query t sees keys up to t + shift.
    """
    ### BEGIN SOLUTION
    row, block = tl.program_id(0), tl.program_id(1)
    b, h = row // num_heads, row % num_heads
    t = block * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, WIDTH)
    query = tl.load(q + b * q_b + h * q_h + t[:, None] * q_t + d[None, :] * q_d,
                    mask=(t[:, None] < queries) & (d[None, :] < D), other=0.0)
    maximum = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    summed = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in range(0, keys, BLOCK):
        s = start + tl.arange(0, BLOCK)
        inside = (s[:, None] < keys) & (d[None, :] < D)
        key = tl.load(k + b * k_b + h * k_h + s[:, None] * k_s + d[None, :] * k_d, mask=inside, other=0.0)
        value = tl.load(v + b * v_b + h * v_h + s[:, None] * v_s + d[None, :] * v_d, mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        visible = s[None, :] < keys
        if CAUSAL:
            visible = visible & (s[None, :] <= t[:, None] + shift)
        scores = tl.where(visible, scores, -float("inf"))
        new = tl.maximum(maximum, tl.max(scores, axis=1))
        safe = tl.where(new == -float("inf"), 0.0, new)
        rescale = tl.exp(maximum - safe)
        weights = tl.exp(scores - safe[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        summed = summed * rescale[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        maximum = new
    held = t < queries
    tl.store(heads + (row * queries + t[:, None]) * D + d[None, :], summed / total[:, None],
             mask=held[:, None] & (d[None, :] < D))
    tl.store(lse + row * queries + t, maximum + tl.log(total), mask=held)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    ready()
    batch, num_heads, queries, width = q.shape
    keys = k.shape[2]
    heads = torch.empty(batch, num_heads, queries, width, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, num_heads, queries, dtype=torch.float32, device=q.device)
    block = 32
    flash_kernel[(batch * num_heads, triton.cdiv(queries, block))](
        q, k, v, heads, lse, 1 / math.sqrt(width), num_heads, queries, keys, keys - queries,
        *q.stride(), *k.stride(), *v.stride(), D=width, WIDTH=max(16, triton.next_power_of_2(width)), BLOCK=block,
        CAUSAL=causal)
    return heads, lse
    ### END SOLUTION


@triton.jit
def decode_kernel(q, k, v, parts, lse, scale, groups, length, span, splits, q_b, q_h, q_d, k_b, k_g, k_s, k_d,
                  v_b, v_g, v_s, v_d, R: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
                  BLOCK: tl.constexpr):
    """One program owns all R query heads of one group and one span of keys; it stores its part and its log-sum-exp.

    ROWS is R rounded up to a power of two, at least 16; WIDTH is D rounded up in the same way.
    """
    ### BEGIN SOLUTION
    row, split = tl.program_id(0), tl.program_id(1)
    b, g = row // groups, row % groups
    r, d = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    query = tl.load(q + b * q_b + (g * R + r[:, None]) * q_h + d[None, :] * q_d,
                    mask=(r[:, None] < R) & (d[None, :] < D), other=0.0)
    maximum = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, WIDTH], tl.float32)
    end = tl.minimum(length, (split + 1) * span)
    for start in range(split * span, end, BLOCK):
        s = start + tl.arange(0, BLOCK)
        inside = (s[:, None] < end) & (d[None, :] < D)
        key = tl.load(k + b * k_b + g * k_g + s[:, None] * k_s + d[None, :] * k_d, mask=inside, other=0.0)
        value = tl.load(v + b * v_b + g * v_g + s[:, None] * v_s + d[None, :] * v_d, mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(s[None, :] < end, scores, -float("inf"))
        new = tl.maximum(maximum, tl.max(scores, axis=1))
        rescale = tl.exp(maximum - new)
        weights = tl.exp(scores - new[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        summed = summed * rescale[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        maximum = new
    filled = tl.where(total > 0, total, 1.0)
    place = (row * R + r) * splits + split
    tl.store(parts + place[:, None] * D + d[None, :], summed / filled[:, None],
             mask=(r[:, None] < R) & (d[None, :] < D))
    tl.store(lse + place, maximum + tl.log(filled), mask=r < R)
    ### END SOLUTION


def gqa_decode_triton(q: Float[Tensor, "B H 1 D"], k_cache: Float[Tensor, "B G S_max D"],
                      v_cache: Float[Tensor, "B G S_max D"], length: int, splits: int) -> Float[Tensor, "B H 1 D"]:
    """One new query a head against the first `length` rows of a cache, the keys split over `splits` programs.

    Query head h reads key/value head h // R. Rows from `length` on hold anything, NaN too. A split may be empty. Parts
    are merged by their log-sum-exp, in PyTorch or in a second kernel. Each cached row is loaded once for its group,
    not once for a query head. Source: Flash-Decoding (Dao et al., 2023). ImportError where Triton is not installed.

    D is a power of two, at least 16. Products of float32 keep the precision of float32 on a GPU too.
    """
    ### BEGIN SOLUTION
    ready()
    batch, num_heads, _, width = q.shape
    groups = k_cache.shape[1]
    repeats = num_heads // groups
    parts = torch.empty(batch, num_heads, splits, width, dtype=torch.float32, device=q.device)
    lse = torch.empty(batch, num_heads, splits, dtype=torch.float32, device=q.device)
    decode_kernel[(batch * groups, splits)](
        q, k_cache, v_cache, parts, lse, 1 / math.sqrt(width), groups, length, triton.cdiv(length, splits), splits,
        q.stride(0), q.stride(1), q.stride(3), *k_cache.stride(), *v_cache.stride(), R=repeats,
        ROWS=max(16, triton.next_power_of_2(repeats)), D=width, WIDTH=max(16, triton.next_power_of_2(width)), BLOCK=32)
    weights = (lse - lse.amax(-1, keepdim=True)).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights[..., None] * parts).sum(2, keepdim=True).to(q.dtype)
    ### END SOLUTION


def roofline(flops: float, bytes_moved: float, peak_flops: float, peak_bandwidth: float) -> dict[str, float | str]:
    """The least time that a machine needs for work of this size, and what bounds it.

    flops: operations. bytes_moved: bytes, not elements. peak_flops: operations a second. peak_bandwidth: bytes
    a second.
    Returns intensity (FLOPs per byte), bound ("compute" or "memory"; "compute" at the ridge itself) and seconds.
    Raises ValueError "positive" unless all four are positive. Source: Williams, Waterman, Patterson (2009).
    """
    ### BEGIN SOLUTION
    if min(flops, bytes_moved, peak_flops, peak_bandwidth) <= 0:
        raise ValueError("flops, bytes_moved, peak_flops and peak_bandwidth must be positive")
    computing, moving = flops / peak_flops, bytes_moved / peak_bandwidth
    return {"intensity": flops / bytes_moved, "bound": "compute" if computing >= moving else "memory",
            "seconds": max(computing, moving)}
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        fn()
    names = sorted({e.key.removeprefix("aten::") for e in trace.key_averages()})
    operators = [n for n in names if "scaled_dot_product" in n]
    backends = {"_scaled_dot_product_flash_attention": "flash", "_scaled_dot_product_efficient_attention": "efficient",
                "_scaled_dot_product_cudnn_attention": "cudnn", "_scaled_dot_product_attention_math": "math"}
    observed = [backend for prefix, backend in backends.items() if any(n.startswith(prefix) for n in operators)]
    return {"observed": observed[0] if observed else None, "method": "profiler", "operators": operators}
    ### END SOLUTION
