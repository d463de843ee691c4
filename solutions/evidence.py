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
    ### BEGIN SOLUTION
    blocks = w_o.unflatten(1, (heads.shape[1], -1))
    slopes = torch.einsum("nqm,nhqd,mhd->nh", grad_output, heads, blocks)
    return slopes.abs().mean(0)
    ### END SOLUTION


def interaction(loss: Callable[[Tensor], Tensor], gates: Float[Tensor, "H"], i: int, j: int) -> float:
    """What removing two heads does beyond what removing each of them does.

    loss: takes gates [H] and returns a scalar tensor. gates: [H], the layer as it is now; a removed head has gate 0.
    i, j: two heads.
    Returns ΔL(i,j) - ΔL(i) - ΔL(j), where ΔL is the loss with those gates at 0, less the loss at `gates`. `gates` is
    as it was afterwards.
    Raises ValueError ("distinct") when i and j are one head.
    Source: Derivation; the second difference of the loss over two gates.
    """
    ### BEGIN SOLUTION
    if i == j:
        raise ValueError(f"an interaction needs two distinct heads, not {i} and {j}")

    def without(*heads: int) -> float:
        closed = gates.clone()
        closed[list(heads)] = 0
        return float(loss(closed))

    return without(i, j) - without(i) - without(j) + float(loss(gates))
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    if u is None:
        s = log_alpha.sigmoid()
    else:
        if not ((u > 0) & (u < 1)).all():
            raise ValueError("every u must lie strictly between 0 and 1")
        s = ((u.log() - (-u).log1p() + log_alpha) / beta).sigmoid()
    return (s * (zeta - gamma) + gamma).clamp(0, 1)
    ### END SOLUTION


def expected_open_heads(log_alpha: Float[Tensor, "*axes"], beta: float = 2 / 3, gamma: float = -0.1,
                        zeta: float = 1.1) -> Float[Tensor, ""]:
    """How many gates of a layer are not exactly 0, on average over the noise.

    log_alpha: one number a gate. beta, gamma, zeta: as in `hard_concrete`.
    Returns a scalar: the sum over gates of P(gate > 0) = sigmoid(log_alpha - beta · ln(-gamma/zeta)).
    Source: Louizos, Welling and Kingma (ICLR 2018), equation 12.
    """
    ### BEGIN SOLUTION
    return (log_alpha - beta * math.log(-gamma / zeta)).sigmoid().sum()
    ### END SOLUTION


def head_dropout(heads: Float[Tensor, "B H T D_v"], p: float, training: bool,
                 generator: torch.Generator | None = None) -> Float[Tensor, "B H T D_v"]:
    """Drops whole heads while training, each with probability p, for every sample on its own.

    heads: [B,H,T,D_v]. p: in [0,1). training: at evaluation every head stays as it is. generator: what the mask is
    drawn from; None for torch's own.
    Returns [B,H,T,D_v]: a dropped head is 0 for all rows and channels, a kept one is divided by 1-p.
    Raises ValueError ("probability") for any other p.
    Source: Derivation; inverted dropout (Srivastava et al. 2014) on [B,H,1,1].
    """
    ### BEGIN SOLUTION
    if not 0 <= p < 1:
        raise ValueError(f"{p} is no probability in [0,1)")
    if not training:
        return heads
    keep = torch.rand(*heads.shape[:2], 1, 1, generator=generator, device=heads.device) >= p
    return heads * keep / (1 - p)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    retained = list(retained)
    if not retained or retained != sorted(set(retained)) or retained[0] < 0 or retained[-1] >= num_heads:
        raise ValueError(f"retained must be rising heads of 0 ... {num_heads - 1}, not {retained}")

    def rows(width: int, start: int = 0) -> Tensor:
        """The places of the retained heads in a region of num_heads blocks."""
        return torch.cat([start + torch.arange(head * width, (head + 1) * width) for head in retained])

    qk, v = rows(d_qk), rows(d_v)
    owned = {"q_proj": qk, "k_proj": qk, "v_proj": v} if layout == "separate" else {
        "qkv_proj": torch.cat([qk, rows(d_qk, num_heads * d_qk), rows(d_v, 2 * num_heads * d_qk)])}
    places = {f"{role}.{part}": (0, index) for role, index in owned.items() for part in ("weight", "bias")}
    places["o_proj.weight"] = (1, v)

    def cut(name: str, tensor: Tensor) -> Tensor:
        if name not in places:
            return tensor.clone()
        axis, index = places[name]
        return tensor.index_select(axis, index.to(tensor.device))

    moments = None if optimizer is None else {
        name: {key: cut(name, tensor) if tensor.dim() else tensor.clone() for key, tensor in tensors.items()}
        for name, tensors in optimizer.items()}
    return {"state": {name: cut(name, tensor) for name, tensor in state.items()}, "optimizer": moments,
            "head_map": dict(enumerate(retained)), "num_heads": len(retained), "d_qk": d_qk, "d_v": d_v}
    ### END SOLUTION


def pruned_macs(batch: int, q_len: int, k_len: int, d_model: int, d_qk: int, d_v: int, removed: int,
                physical: bool) -> dict[str, int]:
    """What one call and one layer save by `removed` heads less.

    batch: B. q_len: T. k_len: S. d_model: M. d_qk, d_v: widths of one head. removed: how many heads. physical: whether
    their rows and columns were cut out; False for a mask on a dense layer.
    Returns saved MACs under projection (q, k, v and o) and attention (scores and value mix), saved parameters under
    weights and biases (of a layer that has all four biases).
    Source: Derivation.
    """
    ### BEGIN SOLUTION
    gone = removed if physical else 0
    projection = batch * d_model * (q_len * (d_qk + d_v) + k_len * (d_qk + d_v))
    attention = batch * q_len * k_len * (d_qk + d_v)
    return {"projection": gone * projection, "attention": gone * attention,
            "weights": gone * 2 * d_model * (d_qk + d_v), "biases": gone * (2 * d_qk + d_v)}
    ### END SOLUTION


def supports(evidence: Evidence, claim: str) -> tuple[bool, str]:
    """Whether one experiment carries a claim, and why (not).

    evidence: a record, see `Evidence` in mha_lab.given. claim: one of CLAIMS there.
    Returns (answer, reason). The answer is True only if the kind of experiment carries this claim (the table in the
    session's text), and checkpoint, layer, head, inputs, dropout, effect and retrained are all written down, and, for
    "speedup", shapes changed. The reason is a sentence; it names the fields that are not written down.
    Source: Rewrite interpretation of Clark, Michel and Voita et al. 2019.
    """
    ### BEGIN SOLUTION
    carries = {"map": "pattern", "probe": "decodable", "gradient": "local_dependence", "ablation": "removal_effect",
               "sparse_gate": "recoverability", "prune_retrain": "recoverability", "profile": "speedup"}
    kind = evidence["kind"]
    if carries.get(kind) != claim:
        return False, f"{kind} does not carry {claim}; it carries {carries.get(kind, 'no claim about this checkpoint')}"
    fields = ("checkpoint", "layer", "head", "inputs", "dropout", "effect", "retrained")
    missing = [name for name in fields if evidence.get(name) is None]
    if missing:
        return False, f"not written down: {', '.join(missing)}"
    if claim == "speedup" and not evidence.get("shapes_changed"):
        return False, "no shape changed: a mask leaves every product where it was"
    return True, f"{kind} carries {claim}, for this checkpoint and these inputs"
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    anywhere = {"gate": "freeze", "score": "gate", "select": "score", "parity": "surgery"}
    in_stage = {"logical-eval": "select", "surgery": "logical-eval", "test": "parity", "release": "test"}
    ever: set[str] = set()
    stage: set[str] = set()
    broken: set[str] = set()
    frozen = None
    for entry in log:
        step = entry["step"]
        checks = {
            "order": anywhere.get(step) in (None, *ever) and in_stage.get(step) in (None, *stage),
            "split": all((split == "test") == (step == "test") for split in entry["reads"]),
            "parity": step != "fine-tune" or "parity" in stage,
            "stale": step != "select" or "score" in stage or not ever & {"surgery", "fine-tune"},
            "profile": step != "release" or "speed" not in entry.get("claims", ()) or "profile" in stage,
            "rollback": step != "release" or frozen is not None and entry.get("baseline") == frozen,
        }
        broken |= {code for code, kept in checks.items() if not kept}
        if step == "freeze":
            frozen = entry.get("artifact")
        if step == "surgery":
            stage.clear()
        if step == "fine-tune":
            stage -= {"score", "test"}
        ever.add(step)
        stage.add(step)
    if {"freeze", "gate", "score", "select", "logical-eval", "surgery", "parity", "test", "release"} - ever:
        broken.add("order")
    return sorted(broken)
    ### END SOLUTION
