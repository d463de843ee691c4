"""Session 08, head evidence: what a head is worth, who may say so, and how one leaves a layer for good.

Letters: N examples, B batch, T target (query) length, S source length, H heads, M model width, D_qk, D_v widths of one
head. A `state` is a dict of *stored* tensors, [out, in], head-major: q_proj.weight [H·D_qk, M], k_proj.weight
[H·D_qk, M], v_proj.weight [H·D_v, M], o_proj.weight [M, H·D_v], and for each of them, where it has one, a *.bias.
In the layout "fused", qkv_proj.weight [H·(2·D_qk + D_v), M] holds the rows of q, then k, then v.
"""
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mha_lab.given import Evidence, Release, Step


def gate_sensitivity(grad_output: Float[Tensor, "N T M"], heads: Float[Tensor, "N H T D_v"],
                     w_o: Float[Tensor, "M HD_v"]) -> Float[Tensor, "H"]:
    """How strongly the loss hangs on a gate in front of each head, at the gate's value 1.

    grad_output: [N,T,M], the gradient of each example's own loss for the layer's output. heads: [N,H,T,D_v], before
    W_O. w_o: stored, [M, H·D_v].
    Returns [H]: the mean over examples of |dL/dg_h|, where the output is Σ_h g_h · head_h · W_O^(h) + b_O. Not
    normalised.
    Source: Michel et al. 2019, section 4.1, for one layer, without its normalisation.
    """
    raise NotImplementedError("gate_sensitivity: write this in mha_lab/evidence.py")


def interaction(loss: Callable[[Tensor], Tensor], gates: Float[Tensor, "H"], i: int, j: int) -> float:
    """What removing two heads does beyond what removing each of them does.

    loss: takes gates [H] and returns a scalar tensor. gates: [H], the layer as it is now; a removed head has gate 0.
    i, j: two heads.
    Returns ΔL(i,j) - ΔL(i) - ΔL(j), where ΔL is the loss with those gates at 0, less the loss at `gates`. `gates` is
    as it was afterwards.
    Raises ValueError ("distinct") when i and j are one head.
    Source: Derivation; the second difference of the loss over two gates.
    """
    raise NotImplementedError("interaction: write this in mha_lab/evidence.py")


def hard_concrete(log_alpha: Float[Tensor, "*axes"], u: Float[Tensor, "*axes"] | None = None, beta: float = 2 / 3,
                  gamma: float = -0.1, zeta: float = 1.1) -> Float[Tensor, "*axes"]:
    """A gate in [0,1] that can be exactly 0 or exactly 1, and has a gradient in between.

    log_alpha: one number a gate. u: as many numbers strictly between 0 and 1, the noise of training; None for the
    deterministic gate. beta: the temperature. gamma, zeta: the ends of the stretched interval, gamma < 0 and zeta > 1.
    Returns min(1, max(0, s·(zeta - gamma) + gamma)) with s = sigmoid((ln u - ln(1-u) + log_alpha) / beta); without
    noise s = sigmoid(log_alpha), and beta plays no part.
    Raises ValueError ("u") when some u is not strictly between 0 and 1.
    Source: Louizos, Welling and Kingma (ICLR 2018), equations 10 to 13.
    """
    raise NotImplementedError("hard_concrete: write this in mha_lab/evidence.py")


def expected_open_heads(log_alpha: Float[Tensor, "*axes"], beta: float = 2 / 3, gamma: float = -0.1,
                        zeta: float = 1.1) -> Float[Tensor, ""]:
    """How many gates of a layer are not exactly 0, on average over the noise.

    log_alpha: one number a gate. beta, gamma, zeta: as in `hard_concrete`.
    Returns a scalar: the sum over gates of P(gate > 0) = sigmoid(log_alpha - beta · ln(-gamma/zeta)).
    Source: Louizos, Welling and Kingma (ICLR 2018), equation 12.
    """
    raise NotImplementedError("expected_open_heads: write this in mha_lab/evidence.py")


def head_dropout(heads: Float[Tensor, "B H T D_v"], p: float, training: bool,
                 generator: torch.Generator | None = None) -> Float[Tensor, "B H T D_v"]:
    """Drops whole heads while training, each with probability p, for every sample on its own.

    heads: [B,H,T,D_v]. p: in [0,1). training: at evaluation every head stays as it is. generator: what the mask is
    drawn from; None for torch's own.
    Returns [B,H,T,D_v]: a dropped head is 0 for all rows and channels, a kept one is divided by 1-p.
    Raises ValueError ("probability") for any other p.
    Source: Derivation; inverted dropout (Srivastava et al. 2014) on [B,H,1,1].
    """
    raise NotImplementedError("head_dropout: write this in mha_lab/evidence.py")


def prune_heads(state: Mapping[str, Tensor], retained: Sequence[int], num_heads: int, d_qk: int, d_v: int,
                optimizer: Mapping[str, Mapping[str, Tensor]] | None = None, layout: str = "separate") -> Release:
    """A layer without some of its heads, as a transaction: a whole release, or an error and nothing has changed.

    state: as in the head of this file, with or without biases. retained: old head numbers, rising. num_heads, d_qk,
    d_v: of `state`. optimizer: for each parameter its tensors by name; those of the parameter's shape are moments and
    follow it, others (a step count) stay. layout: "separate", or "fused" with qkv_proj.
    Returns the release, see `Release` in mha_lab.given. Its tensors lie in memory of their own, so that training it
    never moves the baseline.
    Raises ValueError ("retained") unless retained is at least one head, each one of 0 ... num_heads-1, once, rising;
    and an error when a tensor is too small for its heads.
    Source: Derivation. Head h owns rows of q, k and v, their biases, and input columns of the stored W_O; b_O has no
    head.
    """
    raise NotImplementedError("prune_heads: write this in mha_lab/evidence.py")


def pruned_macs(batch: int, q_len: int, k_len: int, d_model: int, d_qk: int, d_v: int, removed: int,
                physical: bool) -> dict[str, int]:
    """What one call and one layer save by `removed` heads less.

    batch: B. q_len: T. k_len: S. d_model: M. d_qk, d_v: widths of one head. removed: how many heads. physical: whether
    their rows and columns were cut out; False for a mask on a dense layer.
    Returns saved MACs under projection (q, k, v and o) and attention (scores and value mix), saved parameters under
    weights and biases (of a layer that has all four biases).
    Source: Derivation.
    """
    raise NotImplementedError("pruned_macs: write this in mha_lab/evidence.py")


def supports(evidence: Evidence, claim: str) -> tuple[bool, str]:
    """Whether one experiment carries a claim, and why (not).

    evidence: a record, see `Evidence` in mha_lab.given. claim: one of CLAIMS there.
    Returns (answer, reason). The answer is True only if the kind of experiment carries this claim (the table in the
    session's text), and checkpoint, layer, head, inputs, dropout, effect and retrained are all written down, and, for
    "speedup", shapes changed. The reason is a sentence; it names the fields that are not written down.
    Source: Rewrite interpretation of Clark, Michel and Voita et al. 2019.
    """
    raise NotImplementedError("supports: write this in mha_lab/evidence.py")


def check_pipeline(log: Sequence[Step]) -> list[str]:
    """What is wrong with the way in which heads were removed.

    log: steps in the order in which they were done, see `Step` in mha_lab.given.
    Returns the codes of all rules that are broken, each once, sorted:
    "order": a step is missing, or came before the one that it needs. Needed are, anywhere before: freeze for gate,
    gate for score, score for select, surgery for parity; and, with no surgery in between: select for logical-eval,
    logical-eval for surgery, parity for test; and, with no surgery or fine-tune in between: test for release. Only
    fine-tune and profile may be missing.
    "parity": a fine-tune has no parity between it and the surgery before it.
    "profile": a release claims "speed", and no profile came after the last surgery.
    "rollback": a release's baseline is not the artifact that was frozen.
    "split": another step than test read "test", or test read another split.
    "stale": a select has no score after the last surgery or fine-tune before it.
    Source: Rewrite interpretation; the pipeline of the session's text.
    """
    raise NotImplementedError("check_pipeline: write this in mha_lab/evidence.py")
