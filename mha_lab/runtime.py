"""Session 10, runtime: what a framework does with a call, a checkpoint that loads, a model that generates.

Letters: B batch, T query length, S source (key) length, H query heads, G key/value heads, R = H/G, D head width, M
model width, V vocabulary. Head packing is head-major: channel c = h·D + d. A stored weight is [out,in], as `nn.Linear`
keeps it. A boolean mask is True where a query may look, unless its polarity says otherwise.
"""
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lab.given import (
    ATTENTION_OPERATORS,
    SOURCE_CLASSES,
    FastpathCall,
    FigureRecord,
    LlamaConfig,
    attend,
    operators,
)


def fastpath_eligible(call: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Whether an `nn.MultiheadAttention` call takes the inference fast path of PyTorch 2.13, and what forbids it.

    call: the facts of `FastpathCall`, as a mapping; all keys are there. No module and no tensor is needed.
    Returns (eligible, reasons): every reason that holds, sorted, out of `FASTPATH_REASONS`; none when eligible.
    "autograd" the call would be recorded; "widths" keys or values have another input width; "not-self" query, key and
    value are not one object; the others say what they mean.
    Source: Official version-scoped: `nn.MultiheadAttention.forward`, PyTorch 2.13; on that path the operator
    `_native_multi_head_attention` runs.
    """
    raise NotImplementedError("fastpath_eligible: write this in mha_lab/runtime.py")


def attention_dropout_p(p: float, training: bool) -> float:
    """The `dropout_p` that a wrapper hands to `F.scaled_dot_product_attention`, which does not know about modes.

    p: the probability that a weight is dropped, in [0, 1). training: the module's mode.
    Returns the probability for this call.
    Raises ValueError ("probability") for a p outside [0, 1).
    Source: Official version-scoped: SDPA drops whenever dropout_p > 0, PyTorch 2.13.
    """
    raise NotImplementedError("attention_dropout_p: write this in mha_lab/runtime.py")


def dropout_attention(q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S D_v"], p: float,
                      training: bool) -> tuple[Float[Tensor, "B H T D_v"], Float[Tensor, "B H T S"]]:
    """Attention with dropout on its links, and the probabilities as they were before it.

    q: [B,H,T,D]. k: [B,H,S,D]. v: [B,H,S,D_v]. p: the probability that a link is dropped, in [0, 1); the links that
    stay grow by 1/(1 - p). training: without it nothing is dropped. The draw comes from torch's global generator.
    Returns (heads [B,H,T,D_v], probabilities [B,H,T,S]); every row of the probabilities sums to 1.
    Raises ValueError ("probability") for a p outside [0, 1).
    Source: Srivastava et al. 2014 for inverted dropout; `nn.MultiheadAttention` returns weights after it.
    """
    raise NotImplementedError("dropout_attention: write this in mha_lab/runtime.py")


def observation_record(fn: Callable[..., Any], inputs: Sequence[Tensor], requested_backend: str = "auto",
                       mask: Tensor | None = None, polarity: str | None = None,
                       need_weights: bool = False) -> dict[str, Any]:
    """What one concrete call was, and what was seen to run.

    fn: the call, made as `fn(*inputs)`; it already holds its mask and its options. inputs: its tensors.
    requested_backend: what was asked for. mask: the mask that fn applies, for the record, or None. polarity: what True
    means in a boolean mask, "visible" or "blocked". need_weights: whether the call returns weights.
    Returns a dict: framework_version; device, of the first input; shapes, dtypes and strides, one of each per input, in
    order (dtypes as text, "float32"); mask_kind (None, "boolean" or "additive"), mask_shape (None without a mask),
    mask_polarity (None unless boolean); training (fn.training, None if fn has no mode), autograd and autocast (whether
    each is on, autocast for the inputs' device); need_weights; requested_backend; observed_backend, the first of
    `ATTENTION_OPERATORS` that ran, None if none did; method, in words, how that was seen.
    Raises ValueError ("polarity") for a boolean mask without one of the two words.
    Source: Official version-scoped: operator names of PyTorch 2.13. `operators` from `mha_lab.given` traces a call.
    """
    raise NotImplementedError("observation_record: write this in mha_lab/runtime.py")


def apply_rope(x: Float[Tensor, "B H T D"], positions: Int[Tensor, "*batch T"], base: float = 10000.0,
               style: str = "half") -> Float[Tensor, "B H T D"]:
    """Rotary positions: pair i of a row at position p turns by the angle p·base^(-2i/D).

    x: [B,H,T,D], queries or keys. positions: [T], or [B,T] where samples stand elsewhere. base: of the frequencies.
    style: which channels make pair i, "half": i and i + D/2, "interleaved": 2i and 2i + 1. (a, b) becomes
    (a·cos - b·sin, a·sin + b·cos).
    Returns [B,H,T,D], in the dtype of x. Angles are computed in float32 at least.
    Raises ValueError ("even") for an odd D, ("style") for another style.
    Source: Su et al. 2021 (interleaved); `apply_rotary_pos_emb` of transformers (half).
    """
    raise NotImplementedError("apply_rope: write this in mha_lab/runtime.py")


def load_llama_attention(state_dict: Mapping[str, Tensor], config: LlamaConfig) -> nn.Module:
    """One Llama attention layer, loaded from a checkpoint.

    state_dict: q_proj.weight, k_proj.weight, v_proj.weight, o_proj.weight, or qkv_proj.weight in place of the first
    three, and a .bias beside each weight if config says so. Biases belong to output channels and have the order of
    those. config: see `LlamaConfig`.
    Returns a module, `module(x, positions=None, cache=None, causal=True) -> (output, cache)`:
    x [B,T,M]. positions [T] or [B,T] of the rows of x; None: 0 to T-1, or where the cache left off. cache: None or what
    the last call returned: (k, v), each [B,G,S,D], as they enter the scores: rotated, not repeated. causal: row t sees
    everything in the cache and the rows 0 to t of x; else all rows. output [B,T,M].
    Order: project, split, rotate, cache, attend, merge, W_O. The module has the dtype of the checkpoint; its trainable
    parameters are the checkpoint's numbers, and no others.
    Raises ValueError: the name of a missing or of an unexpected key; "shape" (and the key) for a wrong shape.
    Source: Official version-scoped: LlamaAttention of transformers; Conv1D of its GPT-2 keeps [in,out].
    """
    raise NotImplementedError("load_llama_attention: write this in mha_lab/runtime.py")


class TinyLM(nn.Module):
    """The smallest causal language model with everything in it: one attention layer between embedding and head.

    logits = head(norm(x + attention(x))), x = tokens' embedding + positions' embedding; attention is causal, with heads
    of width d_model/num_heads and without biases.
    Its state: tokens.weight [V,M], positions.weight [max_len,M], q_proj.weight, k_proj.weight, v_proj.weight and
    o_proj.weight [M,M], norm.weight and norm.bias [M], head.weight [V,M], head.bias [V].
    Raises ValueError ("divisible") when num_heads does not divide d_model.
    """

    def __init__(self, vocab: int, d_model: int, num_heads: int, max_len: int) -> None:
        raise NotImplementedError("TinyLM.__init__: write this in mha_lab/runtime.py")

    def forward(self, tokens: Int[Tensor, "B T"], positions: Int[Tensor, " T"] | None = None,
                cache: Any = None) -> tuple[Float[Tensor, "B T V"], Any]:
        """Logits for the token that follows each row, and a cache for the rows that come next.

        tokens: [B,T]. positions: [T], where they stand; None: 0 to T-1, with a cache too. cache: None, or what the last
        call returned, in a form of your own. Row t sees what is in the cache and the rows 0 to t.
        Returns (logits [B,T,V], cache).
        Raises ValueError ("max_len") for a position that has no embedding.
        """
        raise NotImplementedError("TinyLM.forward: write this in mha_lab/runtime.py")

    def loss(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        """Mean cross-entropy of predicting each token from those before it: B·(T-1) predictions."""
        raise NotImplementedError("TinyLM.loss: write this in mha_lab/runtime.py")


def generate(model: nn.Module, prompt: Int[Tensor, "B P"], steps: int) -> Int[Tensor, "B P+steps"]:
    """Greedy generation with a cache.

    model: `model(tokens [B,T], positions [T], cache) -> (logits [B,T,V], cache)`, as `TinyLM.forward`; the cache is the
    model's business. prompt: [B,P], P > 0. steps: how many tokens to add.
    The prompt runs once, then one new row a step, at its own position. No randomness: the model evaluates, without a
    graph, and is left in the mode that it was in.
    Returns prompt and new tokens, [B, P + steps].
    Raises ValueError ("steps") for a negative number.
    """
    raise NotImplementedError("generate: write this in mha_lab/runtime.py")


def induction_score(probabilities: Float[Tensor, "B H T T"], period: int) -> Float[Tensor, " H"]:
    """How much each head looks at the successor of the last occurrence, on a sequence that repeats.

    probabilities: [B,H,T,T] of a sequence whose token i equals token i - period. period: in [1, T).
    Returns [H]: the mean, over samples and over queries i >= period, of the mass on key i - period + 1.
    Raises ValueError ("period") outside that range.
    Source: Olsson et al. 2022, prefix matching.
    """
    raise NotImplementedError("induction_score: write this in mha_lab/runtime.py")


def check_publication(records: Sequence[FigureRecord]) -> list[str]:
    """What stands against printing these figures.

    records: see `FigureRecord`.
    Returns one "number: code" for each problem, number being the record's place from 0; by record, then by code.
    "alt" no text in it. "class" not one of SOURCE_CLASSES. "derivative" something was added to what calls itself an
    extract, or nothing to what calls itself a derivative. "digest" the file is not the recorded one. "permission" no
    text in it, for anything but a reconstruction. "route" not a relative path, a path that leaves its folder, or no
    file there (whose digest is then not compared). "upstream" no text in it, for anything but a reconstruction.
    """
    raise NotImplementedError("check_publication: write this in mha_lab/runtime.py")
