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
    ### BEGIN SOLUTION
    weight = {role: state[f"{role}_proj.weight"] for role in "qkvo"}
    if target.shape[-1] != weight["q"].shape[1] or source.shape[-1] != weight["k"].shape[1]:
        raise ValueError(f"rows of width {target.shape[-1]} and {source.shape[-1]} do not fit the projections")
    if target.shape[0] != source.shape[0]:
        raise ValueError(f"a batch of {target.shape[0]} targets cannot read a batch of {source.shape[0]} sources")
    packed = (F.linear(rows, weight[role], state.get(f"{role}_proj.bias"))
              for role, rows in (("q", target), ("k", source), ("v", source)))
    heads, probabilities = attend(*(p.unflatten(-1, (num_heads, -1)).transpose(1, 2) for p in packed), visible)
    return F.linear(heads.transpose(1, 2).flatten(2), weight["o"], state.get("o_proj.bias")), probabilities
    ### END SOLUTION


def causal_visibility(q_len: int, k_len: int) -> Bool[Tensor, "T S"]:
    """Which keys a causal query may see when the last query belongs to the last key.

    q_len: queries of this call. k_len: keys, the cached ones first; k_len - q_len of them were there before.
    Returns boolean [q_len,k_len]: query i sees the keys up to i + k_len - q_len.
    Raises ValueError ("k_len") when there are fewer keys than queries.
    Source: Derivation. Query i stands at position i + k_len - q_len of its own sequence.
    """
    ### BEGIN SOLUTION
    if k_len < q_len:
        raise ValueError(f"k_len {k_len} is smaller than q_len {q_len}: some queries would come before every key")
    return torch.arange(k_len) <= torch.arange(q_len)[:, None] + k_len - q_len
    ### END SOLUTION


def source_visibility(valid: Bool[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"]:
    """The validity of source rows, for every head and every target row.

    valid: boolean [B,S], True where a source row is a real one.
    Returns a view [B,1,1,S] with the same meaning.
    Raises ValueError ("two axes") for any other number of axes.
    Source: Derivation; broadcasting of PyTorch.
    """
    ### BEGIN SOLUTION
    if valid.dim() != 2:
        raise ValueError(f"validity has two axes [B,S], not {valid.dim()}")
    return valid[:, None, None]
    ### END SOLUTION


def to_module_mask(visible: Bool[Tensor, "B heads T S"], num_heads: int) -> Bool[Tensor, "BH T S"]:
    """Visibility as `nn.MultiheadAttention` wants its `attn_mask`.

    visible: boolean [B,1,T,S] or [B,H,T,S], True where a query may look. num_heads: H.
    Returns boolean [B·H,T,S], batch-major, True where a query may NOT look.
    Raises ValueError: "bool" for another dtype, "no visible key" when a query may look at nothing.
    Source: PyTorch 2.13, `nn.MultiheadAttention.forward`.
    """
    ### BEGIN SOLUTION
    return ~to_sdpa_mask(visible).expand(-1, num_heads, -1, -1).flatten(0, 1)
    ### END SOLUTION


def to_sdpa_mask(visible: Bool[Tensor, "B heads T S"]) -> Bool[Tensor, "B heads T S"]:
    """Visibility as `F.scaled_dot_product_attention` wants its `attn_mask`.

    visible: boolean, four axes broadcastable to [B,H,T,S], True where a query may look.
    Returns a mask with four axes; SDPA reads True as visible.
    Raises ValueError: "bool" for another dtype, "no visible key" when a query may look at nothing.
    Source: PyTorch 2.13, `F.scaled_dot_product_attention`.
    """
    ### BEGIN SOLUTION
    if visible.dtype != torch.bool:
        raise ValueError(f"visibility is bool, not {visible.dtype}")
    if not visible.any(-1).all():
        raise ValueError("a query has no visible key")
    return visible
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    missing = [name for name in ("projection", "heads", "call", "runtime") if manifest.get(name) is None]
    if missing:
        raise ValueError(f"the manifest lacks the record {', '.join(missing)}")
    maps, heads, call, runtime = (as_dict(manifest[name]) for name in ("projection", "heads", "call", "runtime"))
    q_heads, kv_heads, d_qk, d_v, d_model = (heads[n] for n in ("q_heads", "kv_heads", "d_qk", "d_v", "d_model"))
    rows = {"q": q_heads * d_qk, "k": kv_heads * d_qk, "v": kv_heads * d_v}
    widths = {role: (d_model, n) for role, n in rows.items()} | {"o": (q_heads * d_v, d_model)}
    broken = {f"{role}-width": (maps[role]["in_features"], maps[role]["out_features"]) != width
              for role, width in widths.items()}
    broken["head-count"] = q_heads != kv_heads

    q_id, k_id, v_id = (call[f"{role}_state_id"] for role in "qkv")
    if call["mode"] == "self":
        broken["self-origin"] = not q_id == k_id == v_id
    else:
        broken["kv-source"], broken["cross-origin"] = k_id != v_id, q_id == k_id
    if maps["layout"] == "fused_qkv":
        order, at, tiles = maps["fused_order"] or (), 0, []
        for role in order:
            tiles.append((at, at + rows[role]))
            at += rows[role]
        broken["fused-order"] = list(order) != ["q", "k", "v"]
        broken["fused-spans"] = [tuple(span) for span in maps["spans"] or ()] != tiles

    cached, full = runtime["cached_kv"], (call["batch"], q_heads, call["q_len"], call["k_len"])
    broken["release"] = cached is not None and (cached["release_id"], cached["adapter"]) != (
        runtime["release_id"], runtime["adapter"])
    broken["stochastic"] = call["training"] and call["dropout_p"] > 0 and call["deterministic"]
    broken["need-weights"] = call["need_weights"] and runtime["forbids_matrix"]
    broken["backend-evidence"] = runtime["observed_backend"] is not None and not runtime["observation_id"]
    broken["mask-semantics"] = call["canonical_mask_semantics"] != "true_is_visible"
    axes = full if call["mask_axes"] is None else call["mask_axes"]
    broken["mask-axes"] = len(axes) != 4 or any(n not in (1, size) for n, size in zip(axes, full, strict=True))
    return sorted(code for code, holds in broken.items() if holds)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    calls = {"encoder_self": ("source", "source"), "decoder_self": ("target", "target"),
             "training_cross": ("target", "source"), "decode_cross": ("target", "source")}
    if kind not in calls:
        raise ValueError(f"unknown kind of call {kind!r}; there are {', '.join(calls)}")
    query, key_value = calls[kind]
    rows = {"source": source_len, "target": target_len}
    q_len, k_len = 1 if kind == "decode_cross" else rows[query], rows[key_value]
    return {
        "owners": {"query": query, "key_value": key_value, "output": query,
                   "visibility": "source_validity" if key_value == "source" else "target_causal"},
        "shapes": {
            "query_in": (batch, q_len, d_model), "key_value_in": (batch, k_len, d_model),
            "q_heads": (batch, num_heads, q_len, d_qk), "k_heads": (batch, num_heads, k_len, d_qk),
            "v_heads": (batch, num_heads, k_len, d_v), "probabilities": (batch, num_heads, q_len, k_len),
            "head_output": (batch, num_heads, q_len, d_v), "merged": (batch, q_len, num_heads * d_v),
            "output": (batch, q_len, d_model)}}
    ### END SOLUTION


def project_source(memory: Float[Tensor, "B S M"], state: Mapping[str, Tensor], num_heads: int, identity: Identity,
                   training: bool = False) -> CrossKV:
    """The keys and values of a source, made once.

    memory: [B,S,M], the encoder's output. state: stored weights and, where there are some, biases. num_heads: H.
    identity: what makes this pair this pair. training: whether gradients must come back to memory and weights.
    Returns CrossKV(k [B,H,S,D_qk], v [B,H,S,D_v], identity, memory); outside training k and v belong to no graph.
    Source: Derivation.
    """
    ### BEGIN SOLUTION
    k, v = (F.linear(memory, state[f"{role}_proj.weight"], state.get(f"{role}_proj.bias"))
            .unflatten(-1, (num_heads, -1)).transpose(1, 2) for role in "kv")
    return CrossKV(k, v, identity, memory) if training else CrossKV(k.detach(), v.detach(), identity, memory)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    made, wanted = as_dict(pair.identity), as_dict(expected)
    for field in wanted:
        if made[field] != wanted[field]:
            raise ValueError(f"the pair differs in {field}: {made[field]!r}, expected {wanted[field]!r}")
    q = F.linear(target_row, state["q_proj.weight"], state.get("q_proj.bias")).unflatten(-1, (num_heads, -1))
    heads, _ = attend(q.transpose(1, 2), pair.k, pair.v, source_visibility(valid))
    return F.linear(heads.transpose(1, 2).flatten(2), state["o_proj.weight"], state.get("o_proj.bias"))
    ### END SOLUTION


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
        ### BEGIN SOLUTION
        self.state, self.source, self.beam_map = "EMPTY", None, None
        self._identity = self._version = None

        def only_from(word: str, *allowed: str) -> None:
            if self.state not in allowed:
                raise ValueError(f"refused in state {self.state} ({word})")
        self._from = only_from
        ### END SOLUTION

    def bind(self, source: Any) -> None:
        """EMPTY to SOURCE_BOUND. source: a tuple, list or tensor with one entry for each source; else one source.

        Raises ValueError: the state and "bind" from any other state.
        """
        ### BEGIN SOLUTION
        self._from("bind", "EMPTY")
        self._rows = len(source) if isinstance(source, (tuple, list, Tensor)) else 1
        self.source, self.state = source, "SOURCE_BOUND"
        ### END SOLUTION

    def project_training(self, version: int) -> None:
        """SOURCE_BOUND to PROJECTED_EPHEMERAL. version: of the parameters that projected.

        Raises ValueError: "graph" when the source is a tensor that needs no gradient; the state from any other state.
        """
        ### BEGIN SOLUTION
        self._from("bind a source first", "SOURCE_BOUND")
        if not getattr(self.source, "requires_grad", True):
            raise ValueError("K and V would belong to no graph: the source needs no gradient")
        self._version, self.state = version, "PROJECTED_EPHEMERAL"
        ### END SOLUTION

    def consume_training(self, version: int) -> None:
        """PROJECTED_EPHEMERAL to BACKWARD_PENDING. version: of the parameters now.

        Raises ValueError: "version" when the parameters have changed since; the state from any other state.
        """
        ### BEGIN SOLUTION
        self._from("version", "PROJECTED_EPHEMERAL")
        if version != self._version:
            raise ValueError(f"projected by parameter version {self._version}, now it is {version}")
        self.state = "BACKWARD_PENDING"
        ### END SOLUTION

    def finish_backward(self) -> None:
        """BACKWARD_PENDING to RELEASED: the graph is gone.

        Raises ValueError: the state and "backward" from any other state.
        """
        ### BEGIN SOLUTION
        self._from("backward", "BACKWARD_PENDING")
        self.state = "RELEASED"
        ### END SOLUTION

    def project(self, identity: Identity) -> None:
        """SOURCE_BOUND to PROJECTED, for inference. identity: what made the pair.

        Raises ValueError: the state and "bind" from any other state.
        """
        ### BEGIN SOLUTION
        self._from("bind", "SOURCE_BOUND")
        self._identity, self.state = as_dict(identity), "PROJECTED"
        ### END SOLUTION

    def attach(self, expected: Identity) -> None:
        """PROJECTED to ATTACHED: from here on the pair may be read. expected: the identity that the readers need.

        Raises ValueError: the name of the first differing field; the state from any other state.
        """
        ### BEGIN SOLUTION
        self._from("attach", "PROJECTED")
        for field, value in as_dict(expected).items():
            if self._identity[field] != value:
                raise ValueError(f"the pair differs in {field}: {self._identity[field]!r}, expected {value!r}")
        self.state = "ATTACHED"
        ### END SOLUTION

    def share_beams(self, map: Sequence[int]) -> None:
        """ATTACHED to BEAM_SHARED. map: the source row of every hypothesis.

        Raises ValueError: "map" for a row that the source does not have; the state and "attached" from any other state.
        """
        ### BEGIN SOLUTION
        self._from("not attached", "ATTACHED")
        if any(row < 0 or row >= self._rows for row in map):
            raise ValueError(f"the beam map {tuple(map)} leaves the rows of the source")
        self.beam_map, self.state = tuple(map), "BEAM_SHARED"
        ### END SOLUTION

    def expand_beams(self, n: int) -> None:
        """ATTACHED to BEAM_EXPANDED. n: physical copies of each source row; row i·n + j is copy j of source row i.

        Raises ValueError: the state and "attached" from any other state.
        """
        ### BEGIN SOLUTION
        self._from("not attached", "ATTACHED")
        self.beam_map, self.state = tuple(row for row in range(self._rows) for _ in range(n)), "BEAM_EXPANDED"
        ### END SOLUTION

    def reorder(self, order: Sequence[int]) -> None:
        """A beam state stays. order: order[i] is the old hypothesis that becomes hypothesis i.

        The beam map follows; the source does not move.
        Raises ValueError: "permutation" and "map" when the order is no permutation of the hypotheses of the beam map;
        the state from any other state.
        """
        ### BEGIN SOLUTION
        self._from("no beam map", "BEAM_SHARED", "BEAM_EXPANDED")
        if sorted(order) != list(range(len(self.beam_map))):
            raise ValueError(f"the order {tuple(order)} is no permutation of the beam map's {len(self.beam_map)} rows")
        self.beam_map = tuple(self.beam_map[old] for old in order)
        ### END SOLUTION

    def rollback_target(self, n: int) -> None:
        """ATTACHED or a beam state stays. n: target rows taken back; the source pair is not touched.

        Raises ValueError: the state and "target" from any other state.
        """
        ### BEGIN SOLUTION
        self._from("no target reads this pair", "ATTACHED", "BEAM_SHARED", "BEAM_EXPANDED")
        ### END SOLUTION

    def drift(self, field: str, value: Any) -> None:
        """PROJECTED, ATTACHED or a beam state to INVALIDATED. field: of Identity, which now has another value.

        Raises ValueError: "inference" in the training lane, whose guard is `version`; the state from any other state.
        """
        ### BEGIN SOLUTION
        self._from("only the inference lane drifts", "PROJECTED", "ATTACHED", "BEAM_SHARED", "BEAM_EXPANDED")
        self.state, self.beam_map = "INVALIDATED", None
        ### END SOLUTION

    def read(self) -> Any:
        """What was bound, in ATTACHED or a beam state.

        Raises ValueError: the state and "attached" from any other state.
        """
        ### BEGIN SOLUTION
        self._from("not attached", "ATTACHED", "BEAM_SHARED", "BEAM_EXPANDED")
        return self.source
        ### END SOLUTION

    def release(self, consumers: int) -> None:
        """PROJECTED, ATTACHED, a beam state or INVALIDATED to RELEASED. consumers: readers that are still there.

        Raises ValueError: "consumer" when there are some; the state from any other state.
        """
        ### BEGIN SOLUTION
        self._from("release", "PROJECTED", "ATTACHED", "BEAM_SHARED", "BEAM_EXPANDED", "INVALIDATED")
        if consumers > 0:
            raise ValueError(f"{consumers} consumers still read this pair")
        self.state, self.beam_map = "RELEASED", None
        ### END SOLUTION


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
    ### BEGIN SOLUTION
    beams = len(beam_to_source)
    if len(order) != beams or ((order < 0) | (order >= beams)).any():
        raise ValueError(f"an order of {beams} hypotheses names {beams} of the rows 0 to {beams - 1}")
    return cross_kv, beam_to_source[order], tuple(cache[order] for cache in target_kv)
    ### END SOLUTION


def cross_kv_bytes(batch: int, source_len: int, num_kv_heads: int, d_qk: int, d_v: int, bytes_per_element: int,
                   layers: int = 1, beams: int = 1, expanded: bool = False) -> int:
    """The bytes that a decoder keeps of its sources.

    batch: sources. source_len: S. num_kv_heads: G. d_qk, d_v: head widths. bytes_per_element: of the stored dtype.
    layers: decoder layers, each with a pair of its own. beams: hypotheses of each source. expanded: whether each has
    physical copies; otherwise an index serves.
    Returns bytes of K and V together, without the index.
    Source: Derivation.
    """
    ### BEGIN SOLUTION
    copies = batch * beams if expanded else batch
    return copies * source_len * num_kv_heads * (d_qk + d_v) * bytes_per_element * layers
    ### END SOLUTION
