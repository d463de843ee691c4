"""Session 05, cross-attention: rows and columns have owners.

Letters: B batch, T target (query) length, S source (key) length, H query heads, G key/value heads, M model width,
D_qk head width of queries and keys, D_v head width of values, N beams. Head packing is head-major: channel c = h·D + d.
A stored weight is [out,in], as `nn.Linear` keeps it. A `state` is a dict of stored tensors: q_proj.weight [H·D_qk,M],
k_proj.weight [H·D_qk,M], v_proj.weight [H·D_v,M], o_proj.weight [M,H·D_v], and where there are biases q_proj.bias and
so on. Visibility is boolean, True where a query may look, with four axes broadcastable to [B,H,T,S].
"""
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from mha_lab.given import CrossKV, Identity, as_dict, attend


def cross_attention(target: Float[Tensor, "B T M"], source: Float[Tensor, "B S M"], state: Mapping[str, Tensor],
                    num_heads: int, visible: Bool[Tensor, "*axes"] | None = None) -> tuple[
                        Float[Tensor, "B T M"], Float[Tensor, "B H T S"]]:
    """Target rows read source rows: the whole call, from unprojected rows to W_O.

    target: [B,T,M], the rows that ask. source: [B,S,M], the rows that are read. state: stored weights and, where there
    are some, biases. num_heads: H. visible: boolean, four axes broadcastable to [B,H,T,S]; None when all is visible.
    Returns (output [B,T,M], probabilities [B,H,T,S]); a row of probabilities distributes over source rows.
    Raises ValueError: "width" when the rows do not fit the weights, "batch" when target and source hold different
    numbers of samples, "no visible key" when a query may look at nothing.
    Source: Vaswani et al. 2017, section 3.2.3.
    """
    raise NotImplementedError("cross_attention: write this in mha_lab/cross.py")


def causal_visibility(q_len: int, k_len: int) -> Bool[Tensor, "T S"]:
    """Which keys a causal query may see when the last query belongs to the last key.

    q_len: queries of this call. k_len: keys, the cached ones first; k_len - q_len of them were there before.
    Returns boolean [q_len,k_len]: query i sees the keys up to i + k_len - q_len.
    Raises ValueError ("k_len") when there are fewer keys than queries.
    Source: Derivation. Query i stands at position i + k_len - q_len of its own sequence.
    """
    raise NotImplementedError("causal_visibility: write this in mha_lab/cross.py")


def source_visibility(valid: Bool[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"]:
    """The validity of source rows, for every head and every target row.

    valid: boolean [B,S], True where a source row is a real one.
    Returns a view [B,1,1,S] with the same meaning.
    Raises ValueError ("two axes") for any other number of axes.
    Source: Derivation; broadcasting of PyTorch.
    """
    raise NotImplementedError("source_visibility: write this in mha_lab/cross.py")


def to_module_mask(visible: Bool[Tensor, "B heads T S"], num_heads: int) -> Bool[Tensor, "BH T S"]:
    """Visibility as `nn.MultiheadAttention` wants its `attn_mask`.

    visible: boolean [B,1,T,S] or [B,H,T,S], True where a query may look. num_heads: H.
    Returns boolean [B·H,T,S], batch-major, True where a query may NOT look.
    Raises ValueError: "bool" for another dtype, "no visible key" when a query may look at nothing.
    Source: PyTorch 2.13, `nn.MultiheadAttention.forward`.
    """
    raise NotImplementedError("to_module_mask: write this in mha_lab/cross.py")


def to_sdpa_mask(visible: Bool[Tensor, "B heads T S"]) -> Bool[Tensor, "B heads T S"]:
    """Visibility as `F.scaled_dot_product_attention` wants its `attn_mask`.

    visible: boolean, four axes broadcastable to [B,H,T,S], True where a query may look.
    Returns a mask with four axes; SDPA reads True as visible.
    Raises ValueError: "bool" for another dtype, "no visible key" when a query may look at nothing.
    Source: PyTorch 2.13, `F.scaled_dot_product_attention`.
    """
    raise NotImplementedError("to_sdpa_mask: write this in mha_lab/cross.py")


def validate_call(manifest: Mapping[str, Any]) -> list[str]:
    """The rules that a call breaks, before any projection runs.

    manifest: "projection", "heads", "call" and "runtime", each a record of `mha_lab.given` or a dict with its fields.
    Returns the sorted codes of all broken rules; an empty list admits the call.
    q-width, k-width, v-width, o-width: a map's in_features or out_features is not what heads, head widths and d_model
    make it. head-count: q_heads and kv_heads differ. self-origin: a self call whose three state ids are not one.
    kv-source: a cross call whose k and v name different states. cross-origin: a cross call whose q and k name one
    state. fused-order: a fused layout whose order is not q, k, v. fused-spans: spans that do not tile the fused rows
    from 0 on, each as wide as its role. release: cached K and V of another release or adapter. stochastic: training
    with dropout, called deterministic. need-weights: probabilities asked of a request that forbids the matrix.
    backend-evidence: an observed backend without an observation. mask-semantics: anything but "true_is_visible".
    mask-axes: a mask that is not [B,H,q_len,k_len] with 1 allowed for each.
    Raises ValueError ("record") when one of the four records is missing.
    Source: Derivation.
    """
    raise NotImplementedError("validate_call: write this in mha_lab/cross.py")


def trace_call(kind: str, batch: int, target_len: int, source_len: int, num_heads: int, d_qk: int, d_v: int,
               d_model: int) -> dict[str, dict[str, Any]]:
    """Who owns what in one of the four calls of an encoder-decoder, and every shape on the way.

    kind: "encoder_self", "decoder_self", "training_cross" or "decode_cross" (one target row). batch: B. target_len: T.
    source_len: S. num_heads: H. d_qk, d_v: head widths. d_model: M.
    Returns {"owners": {...}, "shapes": {...}}. Owners: "query", "key_value" and "output" are "source" or "target";
    "visibility" is "source_validity" or "target_causal". Shapes, tuples of ints: query_in and key_value_in, q_heads,
    k_heads, v_heads, probabilities, head_output, merged, output.
    Raises ValueError ("kind") for another kind.
    Source: Derivation.
    """
    raise NotImplementedError("trace_call: write this in mha_lab/cross.py")


def project_source(memory: Float[Tensor, "B S M"], state: Mapping[str, Tensor], num_heads: int, identity: Identity,
                   training: bool = False) -> CrossKV:
    """The keys and values of a source, made once.

    memory: [B,S,M], the encoder's output. state: stored weights and, where there are some, biases. num_heads: H.
    identity: what makes this pair this pair. training: whether gradients must come back to memory and weights.
    Returns CrossKV(k [B,H,S,D_qk], v [B,H,S,D_v], identity, memory); outside training k and v belong to no graph.
    Source: Derivation.
    """
    raise NotImplementedError("project_source: write this in mha_lab/cross.py")


def decode_step(target_row: Float[Tensor, "B 1 M"], pair: CrossKV, state: Mapping[str, Tensor], num_heads: int,
                valid: Bool[Tensor, "B S"], expected: Identity) -> Float[Tensor, "B 1 M"]:
    """One target row reads a source that was projected before.

    target_row: [B,1,M]. pair: from `project_source`; it stays as it is. state: stored weights and, where there are
    some, biases; W_K and W_V are not used here. num_heads: H. valid: boolean [B,S], True where a source row is real.
    expected: the identity that this call needs.
    Returns the output row [B,1,M], as a full cross-attention call gives it.
    Raises ValueError: the name of the first field of Identity in which the pair differs from what is expected; "no
    visible key" when a sample has no real source row.
    Source: Derivation.
    """
    raise NotImplementedError("decode_step: write this in mha_lab/cross.py")


class CrossKVLifecycle:
    """The life of one projected source pair, in a training lane or in an inference lane.

    state: "EMPTY", "SOURCE_BOUND", "PROJECTED_EPHEMERAL", "BACKWARD_PENDING", "PROJECTED", "ATTACHED", "BEAM_SHARED",
    "BEAM_EXPANDED", "INVALIDATED" or "RELEASED". source: what was bound, None before. beam_map: a tuple, the source
    row of every hypothesis; None outside of the two beam states.
    A call raises ValueError with the name of the state when the state does not allow it, and with the word that its
    docstring gives when something else is wrong. A refused call changes nothing. A pair that was invalidated or
    released never comes back: rebuilding makes a new object.
    Source: Derivation; `torch.Tensor.requires_grad` for the gradient check.
    """

    def __init__(self) -> None:
        """EMPTY: no source, no projection."""
        raise NotImplementedError("CrossKVLifecycle.__init__: write this in mha_lab/cross.py")

    def bind(self, source: Any) -> None:
        """EMPTY to SOURCE_BOUND. source: a tuple, list or tensor with one entry for each source; else one source.

        Raises ValueError: the state and "bind" from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.bind: write this in mha_lab/cross.py")

    def project_training(self, version: int) -> None:
        """SOURCE_BOUND to PROJECTED_EPHEMERAL. version: of the parameters that projected.

        Raises ValueError: "graph" when the source is a tensor that needs no gradient; the state from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.project_training: write this in mha_lab/cross.py")

    def consume_training(self, version: int) -> None:
        """PROJECTED_EPHEMERAL to BACKWARD_PENDING. version: of the parameters now.

        Raises ValueError: "version" when the parameters have changed since; the state from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.consume_training: write this in mha_lab/cross.py")

    def finish_backward(self) -> None:
        """BACKWARD_PENDING to RELEASED: the graph is gone.

        Raises ValueError: the state and "backward" from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.finish_backward: write this in mha_lab/cross.py")

    def project(self, identity: Identity) -> None:
        """SOURCE_BOUND to PROJECTED, for inference. identity: what made the pair.

        Raises ValueError: the state and "bind" from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.project: write this in mha_lab/cross.py")

    def attach(self, expected: Identity) -> None:
        """PROJECTED to ATTACHED: from here on the pair may be read. expected: the identity that the readers need.

        Raises ValueError: the name of the first differing field; the state from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.attach: write this in mha_lab/cross.py")

    def share_beams(self, map: Sequence[int]) -> None:
        """ATTACHED to BEAM_SHARED. map: the source row of every hypothesis.

        Raises ValueError: "map" for a row that the source does not have; the state and "attached" from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.share_beams: write this in mha_lab/cross.py")

    def expand_beams(self, n: int) -> None:
        """ATTACHED to BEAM_EXPANDED. n: physical copies of each source row; row i·n + j is copy j of source row i.

        Raises ValueError: the state and "attached" from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.expand_beams: write this in mha_lab/cross.py")

    def reorder(self, order: Sequence[int]) -> None:
        """A beam state stays. order: order[i] is the old hypothesis that becomes hypothesis i.

        The beam map follows; the source does not move.
        Raises ValueError: "permutation" and "map" when the order is no permutation of the hypotheses of the beam map;
        the state from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.reorder: write this in mha_lab/cross.py")

    def rollback_target(self, n: int) -> None:
        """ATTACHED or a beam state stays. n: target rows taken back; the source pair is not touched.

        Raises ValueError: the state and "target" from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.rollback_target: write this in mha_lab/cross.py")

    def drift(self, field: str, value: Any) -> None:
        """PROJECTED, ATTACHED or a beam state to INVALIDATED. field: of Identity, which now has another value.

        Raises ValueError: "inference" in the training lane, whose guard is `version`; the state from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.drift: write this in mha_lab/cross.py")

    def read(self) -> Any:
        """What was bound, in ATTACHED or a beam state.

        Raises ValueError: the state and "attached" from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.read: write this in mha_lab/cross.py")

    def release(self, consumers: int) -> None:
        """PROJECTED, ATTACHED, a beam state or INVALIDATED to RELEASED. consumers: readers that are still there.

        Raises ValueError: "consumer" when there are some; the state from any other state.
        """
        raise NotImplementedError("CrossKVLifecycle.release: write this in mha_lab/cross.py")


def gather_for_beams(cross_kv: tuple[Float[Tensor, "sources H S D_qk"], Float[Tensor, "sources H S D_v"]],
                     beam_to_source: Int[Tensor, " N"],
                     target_kv: tuple[Float[Tensor, "N H P D_qk"], Float[Tensor, "N H P D_v"]],
                     order: Int[Tensor, " N"]) -> tuple[tuple[Tensor, Tensor], Int[Tensor, " N"],
                                                       tuple[Tensor, Tensor]]:
    """Follow a beam search: hypotheses move, sources stay.

    cross_kv: (k, v) with one row for each source. beam_to_source: [N], the source row of every hypothesis. target_kv:
    (k, v) with one row for each hypothesis, P target positions. order: [N], order[i] is the old hypothesis that becomes
    hypothesis i; a good one may be taken several times.
    Returns (cross_kv in the same memory, the new map [N], the target caches gathered into new memory).
    Raises ValueError ("order") when the order has another length, or names a hypothesis that is not there.
    Source: Derivation.
    """
    raise NotImplementedError("gather_for_beams: write this in mha_lab/cross.py")


def cross_kv_bytes(batch: int, source_len: int, num_kv_heads: int, d_qk: int, d_v: int, bytes_per_element: int,
                   layers: int = 1, beams: int = 1, expanded: bool = False) -> int:
    """The bytes that a decoder keeps of its sources.

    batch: sources. source_len: S. num_kv_heads: G. d_qk, d_v: head widths. bytes_per_element: of the stored dtype.
    layers: decoder layers, each with a pair of its own. beams: hypotheses of each source. expanded: whether each has
    physical copies; otherwise an index serves.
    Returns bytes of K and V together, without the index.
    Source: Derivation.
    """
    raise NotImplementedError("cross_kv_bytes: write this in mha_lab/cross.py")
