"""Records of session 05: what one attention call claims to be, and what made a projected source.

A record says which objects a call uses, not how large they are: two sources of one shape are two sources.
"""
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

__all__ = ["MANIFEST_RECORDS", "MANIFEST_SCHEMA", "CachedKV", "CallSpec", "CrossKV", "HeadSpec", "Identity",
           "ProjectionSpec", "RoleSpec", "RuntimeSpec", "as_dict"]


@dataclass(frozen=True)
class RoleSpec:
    """One learned map. in_features, out_features: its logical widths, whatever the storage orientation."""

    in_features: int
    out_features: int
    bias: bool = False


@dataclass(frozen=True)
class ProjectionSpec:
    """The four maps and how a checkpoint stores them.

    q, k, v, o: the maps. layout: "separate" or "fused_qkv". stored_orientation: "out_in" (as `nn.Linear`) or
    "in_out". fused_order: the roles in the order of the fused rows. spans: half-open (start, stop) rows, one for each
    role of fused_order. Both are None where the layout is separate.
    """

    q: RoleSpec
    k: RoleSpec
    v: RoleSpec
    o: RoleSpec
    layout: str = "separate"
    stored_orientation: str = "out_in"
    fused_order: tuple[str, ...] | None = None
    spans: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class HeadSpec:
    """Heads and widths. qk_total, v_total: concatenated widths as somebody typed them; derive them instead."""

    q_heads: int
    kv_heads: int
    d_qk: int
    d_v: int
    d_model: int
    qk_total: int
    v_total: int


@dataclass(frozen=True)
class CallSpec:
    """One call. mode: "self" or "cross". q_len, k_len: rows.

    q_state_id, k_state_id, v_state_id: the objects whose rows become queries, keys and values. mask_owner:
    "encoder_self", "decoder_causal", "decoder_cross" or "external". canonical_mask_semantics: what True means in the
    mask. mask_axes: the sizes of the mask, None where there is none. deterministic: whether the caller claims that two
    runs give the same numbers. need_weights: whether the probabilities are asked for.
    """

    mode: str
    batch: int
    q_len: int
    k_len: int
    q_state_id: str
    k_state_id: str
    v_state_id: str
    mask_owner: str
    canonical_mask_semantics: str = "true_is_visible"
    mask_axes: tuple[int, ...] | None = None
    training: bool = False
    dropout_p: float = 0.0
    deterministic: bool = True
    need_weights: bool = False


@dataclass(frozen=True)
class CachedKV:
    """Which release and adapter made the projected K and V that a call reads instead of projecting."""

    release_id: str
    adapter: str | None = None


@dataclass(frozen=True)
class RuntimeSpec:
    """Where a call runs: parameters, numbers, and the backend.

    cached_kv: None where K and V are projected in the call. forbids_matrix: the requested backend never holds the
    probabilities. observed_backend: what a trace showed, None where nobody looked; observation_id names that trace.
    The seven dtypes are one path: checkpoint, parameter, projection, activation, score, probability, output.
    """

    release_id: str
    requested_backend: str
    adapter: str | None = None
    cached_kv: CachedKV | None = None
    forbids_matrix: bool = False
    observed_backend: str | None = None
    observation_id: str | None = None
    framework: str = "pytorch"
    framework_version: str = "pinned-by-environment"
    checkpoint_dtype: str = "bfloat16"
    parameter_dtype: str = "bfloat16"
    projection_compute_dtype: str = "bfloat16"
    activation_dtype: str = "bfloat16"
    score_accumulation_dtype: str = "float32"
    probability_dtype: str = "bfloat16"
    output_dtype: str = "bfloat16"


MANIFEST_RECORDS = {"projection": ProjectionSpec, "heads": HeadSpec, "call": CallSpec, "runtime": RuntimeSpec}


def _object(properties: Mapping[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties),
            "required": [name for name in properties if name not in optional]}


_TEXT, _FLAG, _SIZE = {"type": "string", "minLength": 1}, {"type": "boolean"}, {"type": "integer", "minimum": 1}
_MAYBE_TEXT = {"type": ["string", "null"]}
_DTYPE = {"enum": ["float64", "float32", "float16", "bfloat16"]}
_ROLE = _object({"in_features": _SIZE, "out_features": _SIZE, "bias": _FLAG})
_SPAN = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
MANIFEST_SCHEMA = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | _object({
    "manifest_id": _TEXT,
    "projection": _object(dict.fromkeys("qkvo", _ROLE) | {
        "layout": {"enum": ["separate", "fused_qkv"]}, "stored_orientation": {"enum": ["out_in", "in_out"]},
        "fused_order": {"type": ["array", "null"], "items": {"enum": ["q", "k", "v"]}},
        "spans": {"type": ["array", "null"], "items": _SPAN}}),
    "heads": _object(dict.fromkeys(("q_heads", "kv_heads", "d_qk", "d_v", "d_model", "qk_total", "v_total"), _SIZE)),
    "call": _object({
        "mode": {"enum": ["self", "cross"]}, "batch": _SIZE, "q_len": _SIZE, "k_len": _SIZE,
        "q_state_id": _TEXT, "k_state_id": _TEXT, "v_state_id": _TEXT,
        "mask_owner": {"enum": ["encoder_self", "decoder_causal", "decoder_cross", "external"]},
        "canonical_mask_semantics": _TEXT, "mask_axes": {"type": ["array", "null"], "items": _SIZE},
        "training": _FLAG, "dropout_p": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        "deterministic": _FLAG, "need_weights": _FLAG}),
    "runtime": _object({
        "release_id": _TEXT, "adapter": _MAYBE_TEXT,
        "cached_kv": {"anyOf": [{"type": "null"}, _object({"release_id": _TEXT, "adapter": _MAYBE_TEXT})]},
        "requested_backend": _TEXT, "forbids_matrix": _FLAG, "observed_backend": _MAYBE_TEXT,
        "observation_id": _MAYBE_TEXT, "framework": _TEXT, "framework_version": _TEXT}
        | {f"{stage}_dtype": _DTYPE for stage in ("checkpoint", "parameter", "projection_compute", "activation",
                                                  "score_accumulation", "probability", "output")}),
}, optional=("manifest_id",))


@dataclass(frozen=True)
class Identity:
    """Everything that decides what a projected source pair holds: 17 fields, none of which a shape can tell.

    request, source_release, memory_digest: whose source, which text, which encoder output. checkpoint, layer,
    projection_version, adapter: which affine maps. position_policy: how source positions entered. kv_heads, d_qk, d_v,
    source_len: sizes. dtype, device, layout, shard: how and where the numbers lie. creation_mode: "inference" or
    "training".
    """

    request: str
    source_release: str
    memory_digest: str
    checkpoint: str
    layer: int
    projection_version: int
    adapter: str | None
    position_policy: str
    kv_heads: int
    d_qk: int
    d_v: int
    source_len: int
    dtype: str
    device: str
    layout: str
    shard: int
    creation_mode: str


@dataclass(frozen=True)
class CrossKV:
    """A source, projected once. k: [B,H,S,D_qk]. v: [B,H,S,D_v]. identity: what made it. memory: its rows [B,S,M]."""

    k: Tensor
    v: Tensor
    identity: Identity
    memory: Tensor


def as_dict(record: Any) -> Any:
    """A record as plain dicts and values, all the way down; what is a mapping or a plain value already stays one."""
    if is_dataclass(record) and not isinstance(record, type):
        return {field.name: as_dict(getattr(record, field.name)) for field in fields(record)}
    return {name: as_dict(value) for name, value in record.items()} if isinstance(record, Mapping) else record
