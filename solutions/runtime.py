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
    ### BEGIN SOLUTION
    facts = FastpathCall(**call)
    rules = {
        "autograd": facts.grad_enabled and (facts.parameters_require_grad or facts.input_requires_grad),
        "batch-first": not facts.batch_first,
        "bias": not facts.bias,
        "bias-kv": facts.add_bias_kv,
        "float-mask": "float" in (facts.key_padding_mask, facts.attn_mask),
        "not-self": facts.query_key_value != "one object",
        "odd-heads": facts.num_heads % 2 == 1,
        "switched-off": not facts.fastpath_enabled,
        "training": facts.training,
        "unbatched": facts.axes != 3,
        "widths": {facts.kdim, facts.vdim} - {None, facts.embed_dim} != set(),
        "zero-attention": facts.add_zero_attn,
    }
    reasons = sorted(name for name, holds in rules.items() if holds)
    return not reasons, reasons
    ### END SOLUTION


def attention_dropout_p(p: float, training: bool) -> float:
    """The `dropout_p` that a wrapper hands to `F.scaled_dot_product_attention`, which does not know about modes.

    p: the probability that a weight is dropped, in [0, 1). training: the module's mode.
    Returns the probability for this call.
    Raises ValueError ("probability") for a p outside [0, 1).
    Source: Official version-scoped: SDPA drops whenever dropout_p > 0, PyTorch 2.13.
    """
    ### BEGIN SOLUTION
    if not 0 <= p < 1:
        raise ValueError(f"a dropout probability lies in [0, 1), got {p}")
    return p if training else 0.0
    ### END SOLUTION


def dropout_attention(q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S D_v"], p: float,
                      training: bool) -> tuple[Float[Tensor, "B H T D_v"], Float[Tensor, "B H T S"]]:
    """Attention with dropout on its links, and the probabilities as they were before it.

    q: [B,H,T,D]. k: [B,H,S,D]. v: [B,H,S,D_v]. p: the probability that a link is dropped, in [0, 1); the links that
    stay grow by 1/(1 - p). training: without it nothing is dropped. The draw comes from torch's global generator.
    Returns (heads [B,H,T,D_v], probabilities [B,H,T,S]); every row of the probabilities sums to 1.
    Raises ValueError ("probability") for a p outside [0, 1).
    Source: Srivastava et al. 2014 for inverted dropout; `nn.MultiheadAttention` returns weights after it.
    """
    ### BEGIN SOLUTION
    _, probabilities = attend(q, k, v)
    return F.dropout(probabilities, attention_dropout_p(p, training)) @ v, probabilities
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    boolean = mask is not None and mask.dtype == torch.bool
    if boolean and polarity not in ("visible", "blocked"):
        raise ValueError(f"the polarity of a boolean mask is 'visible' or 'blocked', got {polarity!r}")
    device = inputs[0].device
    seen = operators(lambda: fn(*inputs))
    return {
        "framework_version": torch.__version__,
        "device": str(device),
        "shapes": [tuple(x.shape) for x in inputs],
        "dtypes": [str(x.dtype).removeprefix("torch.") for x in inputs],
        "strides": [x.stride() for x in inputs],
        "mask_kind": None if mask is None else "boolean" if boolean else "additive",
        "mask_shape": None if mask is None else tuple(mask.shape),
        "mask_polarity": polarity if boolean else None,
        "training": getattr(fn, "training", None),
        "autograd": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled(device.type),
        "need_weights": need_weights,
        "requested_backend": requested_backend,
        "observed_backend": next((name for name in ATTENTION_OPERATORS if name in seen), None),
        "method": "operators in a trace of torch.autograd.profiler",
    }
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    width = x.shape[-1]
    if width % 2:
        raise ValueError(f"channels turn in pairs: the width must be even, got {width}")
    if style not in ("half", "interleaved"):
        raise ValueError(f"style is 'half' or 'interleaved', got {style!r}")
    frequencies = base ** -(torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width)
    angles = positions[..., None] * frequencies
    angles = angles.unsqueeze(-3)  # [1,T,D/2] or [B,1,T,D/2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    axis = -2 if style == "half" else -1
    a, b = x.unflatten(-1, (2, -1) if style == "half" else (-1, 2)).unbind(axis)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], axis).flatten(-2)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    hidden, heads, groups, width = (config[key] for key in ("hidden", "heads", "kv_heads", "head_dim"))
    rows = {"q": heads * width, "k": groups * width, "v": groups * width}
    shapes = {f"{role}_proj": (n, hidden) for role, n in rows.items()}
    if config["fused"]:
        shapes = {"qkv_proj": (sum(rows.values()), hidden)}
    shapes["o_proj"] = hidden, heads * width
    turn = 1 if config["storage"] == "linear" else -1
    stored = {f"{name}.weight": shape[::turn] for name, shape in shapes.items()}
    if config["bias"]:
        stored |= {f"{name}.bias": shape[:1] for name, shape in shapes.items()}
    if odd := sorted(stored.keys() ^ state_dict.keys()):
        kind = "missing" if odd[0] in stored else "unexpected"
        raise ValueError(f"{kind} in the checkpoint: {odd[0]}")
    for name, shape in stored.items():
        if tuple(state_dict[name].shape) != shape:
            raise ValueError(f"{name} has the shape {tuple(state_dict[name].shape)}, expected {shape}")

    state = dict(state_dict)  # load_state_dict copies
    if config["storage"] == "conv1d":
        state = {name: tensor.mT if tensor.dim() == 2 else tensor for name, tensor in state.items()}
    if config["fused"]:
        for kind in ("weight", "bias") if config["bias"] else ("weight",):
            fused = state.pop(f"qkv_proj.{kind}")
            if config["fused"] == "per_kv_group":
                blocks = fused.unflatten(0, (groups, heads // groups + 2, width))
                fused = torch.cat([part.flatten(0, 2) for part in (blocks[:, :-2], blocks[:, -2:-1], blocks[:, -1:])])
            state |= {f"{role}_proj.{kind}": part for role, part in
                      zip(rows, fused.split(list(rows.values())), strict=True)}

    class LlamaAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for role in "qkvo":
                weight = state[f"{role}_proj.weight"]
                layer = nn.Linear(*weight.shape[::-1], bias=config["bias"], dtype=weight.dtype, device=weight.device)
                self.add_module(f"{role}_proj", layer)
            self.load_state_dict(state)

        def forward(self, x: Float[Tensor, "B T M"], positions: Int[Tensor, "*batch T"] | None = None,
                    cache: tuple[Tensor, Tensor] | None = None,
                    causal: bool = True) -> tuple[Float[Tensor, "B T M"], tuple[Tensor, Tensor]]:
            past, tokens = 0 if cache is None else cache[0].shape[2], x.shape[1]
            if positions is None:
                positions = torch.arange(past, past + tokens, device=x.device)
            q, k, v = (getattr(self, f"{role}_proj")(x).unflatten(-1, (-1, width)).transpose(1, 2) for role in "qkv")
            q, k = (apply_rope(t, positions, config.get("base", 10000.0), config["rope"]) for t in (q, k))
            if cache is not None:
                k, v = (torch.cat(pair, 2) for pair in zip(cache, (k, v), strict=True))
            visible = torch.ones(tokens, past + tokens, dtype=torch.bool, device=x.device)
            if causal:
                visible = visible.tril(past)
            every = (t.repeat_interleave(heads // groups, 1) for t in (k, v))
            mixed, _ = attend(q, *every, visible)
            return self.o_proj(mixed.transpose(1, 2).flatten(2)), (k, v)

    return LlamaAttention()
    ### END SOLUTION


class TinyLM(nn.Module):
    """The smallest causal language model with everything in it: one attention layer between embedding and head.

    logits = head(norm(x + attention(x))), x = tokens' embedding + positions' embedding; attention is causal, with heads
    of width d_model/num_heads and without biases.
    Its state: tokens.weight [V,M], positions.weight [max_len,M], q_proj.weight, k_proj.weight, v_proj.weight and
    o_proj.weight [M,M], norm.weight and norm.bias [M], head.weight [V,M], head.bias [V].
    Raises ValueError ("divisible") when num_heads does not divide d_model.
    """

    def __init__(self, vocab: int, d_model: int, num_heads: int, max_len: int) -> None:
        ### BEGIN SOLUTION
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"a width of {d_model} is not divisible by {num_heads} heads")
        self.num_heads, self.max_len = num_heads, max_len
        self.tokens, self.positions = nn.Embedding(vocab, d_model), nn.Embedding(max_len, d_model)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, vocab)
        ### END SOLUTION

    def forward(self, tokens: Int[Tensor, "B T"], positions: Int[Tensor, " T"] | None = None,
                cache: Any = None) -> tuple[Float[Tensor, "B T V"], Any]:
        """Logits for the token that follows each row, and a cache for the rows that come next.

        tokens: [B,T]. positions: [T], where they stand; None: 0 to T-1, with a cache too. cache: None, or what the last
        call returned, in a form of your own. Row t sees what is in the cache and the rows 0 to t.
        Returns (logits [B,T,V], cache).
        Raises ValueError ("max_len") for a position that has no embedding.
        """
        ### BEGIN SOLUTION
        count = tokens.shape[1]
        if positions is None:
            positions = torch.arange(count, device=tokens.device)
        if count and int(positions.max()) >= self.max_len:
            raise ValueError(f"position {int(positions.max())} is beyond max_len {self.max_len}")
        x = self.tokens(tokens) + self.positions(positions)
        q, k, v = (layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                   for layer in (self.q_proj, self.k_proj, self.v_proj))
        if cache is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(cache, (k, v), strict=True))
        past = k.shape[2] - count
        visible = torch.ones(count, past + count, dtype=torch.bool, device=tokens.device).tril(past)
        mixed = attend(q, k, v, visible)[0].transpose(1, 2).flatten(2)
        return self.head(self.norm(x + self.o_proj(mixed))), (k, v)
        ### END SOLUTION

    def loss(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        """Mean cross-entropy of predicting each token from those before it: B·(T-1) predictions."""
        ### BEGIN SOLUTION
        logits, _ = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        ### END SOLUTION


def generate(model: nn.Module, prompt: Int[Tensor, "B P"], steps: int) -> Int[Tensor, "B P+steps"]:
    """Greedy generation with a cache.

    model: `model(tokens [B,T], positions [T], cache) -> (logits [B,T,V], cache)`, as `TinyLM.forward`; the cache is the
    model's business. prompt: [B,P], P > 0. steps: how many tokens to add.
    The prompt runs once, then one new row a step, at its own position. No randomness: the model evaluates, without a
    graph, and is left in the mode that it was in.
    Returns prompt and new tokens, [B, P + steps].
    Raises ValueError ("steps") for a negative number.
    """
    ### BEGIN SOLUTION
    if steps < 0:
        raise ValueError(f"steps cannot be negative, got {steps}")
    tokens, fed, cache, mode = prompt, 0, None, model.training
    model.eval()
    try:
        with torch.no_grad():
            for _ in range(steps):
                positions = torch.arange(fed, tokens.shape[1], device=prompt.device)
                logits, cache = model(tokens[:, fed:], positions, cache)
                fed = tokens.shape[1]
                tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
    finally:
        model.train(mode)
    return tokens
    ### END SOLUTION


def induction_score(probabilities: Float[Tensor, "B H T T"], period: int) -> Float[Tensor, " H"]:
    """How much each head looks at the successor of the last occurrence, on a sequence that repeats.

    probabilities: [B,H,T,T] of a sequence whose token i equals token i - period. period: in [1, T).
    Returns [H]: the mean, over samples and over queries i >= period, of the mass on key i - period + 1.
    Raises ValueError ("period") outside that range.
    Source: Olsson et al. 2022, prefix matching.
    """
    ### BEGIN SOLUTION
    if not 0 < period < probabilities.shape[-1]:
        raise ValueError(f"the period lies in [1, {probabilities.shape[-1]}), got {period}")
    return probabilities[..., period:, :].diagonal(1, -2, -1).mean((0, -1))
    ### END SOLUTION


def check_publication(records: Sequence[FigureRecord]) -> list[str]:
    """What stands against printing these figures.

    records: see `FigureRecord`.
    Returns one "number: code" for each problem, number being the record's place from 0; by record, then by code.
    "alt" no text in it. "class" not one of SOURCE_CLASSES. "derivative" something was added to what calls itself an
    extract, or nothing to what calls itself a derivative. "digest" the file is not the recorded one. "permission" no
    text in it, for anything but a reconstruction. "route" not a relative path, a path that leaves its folder, or no
    file there (whose digest is then not compared). "upstream" no text in it, for anything but a reconstruction.
    """
    ### BEGIN SOLUTION
    def empty(text: str | None) -> bool:
        return not (text or "").strip()

    problems = []
    for number, record in enumerate(records):
        path, content, kind = PurePosixPath(record["route"]), record["content"], record["source_class"]
        codes = {
            "alt": empty(record["alt"]),
            "class": kind not in SOURCE_CLASSES,
            "derivative": kind in ("paper-extract", "paper-derivative")
                          and record["derivative"] != (kind == "paper-derivative"),
            "digest": content is not None and hashlib.sha256(content.encode()).hexdigest() != record["digest"],
            "permission": kind != "reconstruction" and empty(record["permission"]),
            "route": content is None or empty(record["route"]) or path.is_absolute() or ".." in path.parts,
            "upstream": kind != "reconstruction" and empty(record["upstream"]),
        }
        problems += [f"{number}: {code}" for code, found in codes.items() if found]
    return problems
    ### END SOLUTION
