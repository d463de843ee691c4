"""Given to session 10: a trace of the operators that a call ran, and the records that its functions take and return."""
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import torch

ATTENTION_OPERATORS = (
    "_native_multi_head_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_attention_math",
)
"""Operators of PyTorch 2.13 that are one way each to compute attention. Where several ran, the first one here holds
the others."""


def operators(fn: Callable[[], Any]) -> frozenset[str]:
    """The names of the operators that `fn()` ran, read from a profiler's trace, without their `aten::`.

    fn: a call without arguments, `lambda: model(x)`. It runs once, in whatever mode you are in.
    Source: `torch.autograd.profiler.profile`, PyTorch 2.13, CPU events.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself on stderr otherwise
    with torch.autograd.profiler.profile() as trace:
        fn()
    return frozenset(event.name.removeprefix("aten::") for event in trace.function_events)


@dataclass(frozen=True)
class FastpathCall:
    """Facts about one call `module(query, key, value, ...)` of an `nn.MultiheadAttention` on the CPU.

    The defaults describe a call that takes the inference fast path of PyTorch 2.13. `FastpathCall(**facts)` reads a
    plain dict, and `dataclasses.asdict` makes one.
    """

    embed_dim: int = 12
    num_heads: int = 4
    bias: bool = True  # of the constructor
    kdim: int | None = None  # input width of the keys; None for embed_dim
    vdim: int | None = None
    add_bias_kv: bool = False
    add_zero_attn: bool = False
    batch_first: bool = True
    dropout: float = 0.0
    training: bool = False  # module.training
    parameters_require_grad: bool = True
    query_key_value: str = "one object"  # or "equal values" (three clones), or "different"
    axes: int = 3  # 2 for an unbatched input
    input_requires_grad: bool = False
    grad_enabled: bool = False  # torch.is_grad_enabled() at the call
    cpu_autocast: bool = False
    key_padding_mask: str | None = None  # "bool" or "float"
    attn_mask: str | None = None
    need_weights: bool = True
    fastpath_enabled: bool = True  # torch.backends.mha.get_fastpath_enabled()


FASTPATH_REASONS = ("autograd", "batch-first", "bias", "bias-kv", "float-mask", "not-self", "odd-heads", "switched-off",
                    "training", "unbatched", "widths", "zero-attention")
"""What can keep a call off the fast path."""


class LlamaConfig(TypedDict, total=False):
    """What `load_llama_attention` must know about a checkpoint of one attention layer.

    hidden: M. heads: H. kv_heads: G. head_dim: D, which need not be M/H. bias: whether all four maps have one.
    rope: how channels pair up for rotation, "half" (i, i+D/2) or "interleaved" (2i, 2i+1).
    storage: how weights are kept, "linear" [out,in] or "conv1d" [in,out].
    fused: None for q_proj, k_proj and v_proj; "qkv" or "per_kv_group" for one qkv_proj whose output rows come in that
    order: all q heads, all k heads, all v heads; or for each group its R query heads, its k, its v.
    base: of the rotation; 10000.0 where it is not given.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool
    rope: str
    storage: str
    fused: str | None
    base: float


SOURCE_CLASSES = ("paper-extract", "paper-derivative", "reconstruction", "secondary-context")
"""What a figure is: a figure of a primary paper as it was; one with additions; our own drawing, checked against
equations or code; a picture from a review, for orientation only."""


class FigureRecord(TypedDict):
    """One figure that is about to be published.

    route: the path of its file from the page, such as "figures/heads.svg". content: the text of that file, None if it
    is not there. digest: SHA-256 of the content (UTF-8), in hexadecimal, as it was recorded when the figure was
    examined. alt: what the figure says, for those who do not see it. source_class: one of SOURCE_CLASSES.
    upstream: the work that it comes from; None for a reconstruction. derivative: whether anything was added or changed.
    permission: the licence or the permission under which we may print it; None if there is none.
    """

    route: str
    content: str | None
    digest: str
    alt: str
    source_class: str
    upstream: str | None
    derivative: bool
    permission: str | None
