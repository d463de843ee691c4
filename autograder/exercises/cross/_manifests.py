"""Call manifests: admissible ones, and same-shape impostors with the rules they break and the field that shows it."""
from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

RECORDS = {"projection": "ProjectionSpec", "heads": "HeadSpec", "call": "CallSpec", "runtime": "RuntimeSpec"}


@dataclass(frozen=True)
class Bundle:
    """A manifest, the codes it deserves, and the field that shows why."""

    title: str
    manifest: dict[str, Any]
    codes: tuple[str, ...] = ()
    field: str = ""


def _role(into, out):
    return {"in_features": into, "out_features": out, "bias": False}


def base(h=8, d_qk=64, d_v=48, m=512):
    """One row of cross decode over 128 source rows: separate maps, D_v 48."""
    return {
        "manifest_id": "decoder.l3.cross.step17",
        "projection": {"q": _role(m, h * d_qk), "k": _role(m, h * d_qk), "v": _role(m, h * d_v),
                       "o": _role(h * d_v, m), "layout": "separate", "stored_orientation": "out_in",
                       "fused_order": None, "spans": None},
        "heads": {"q_heads": h, "kv_heads": h, "d_qk": d_qk, "d_v": d_v, "d_model": m, "qk_total": h * d_qk,
                  "v_total": h * d_v},
        "call": {"mode": "cross", "batch": 2, "q_len": 1, "k_len": 128, "q_state_id": "request-42:decoder-step-17",
                 "k_state_id": "request-42:encoder-7", "v_state_id": "request-42:encoder-7",
                 "mask_owner": "decoder_cross", "canonical_mask_semantics": "true_is_visible",
                 "mask_axes": [2, 1, 1, 128], "training": False, "dropout_p": 0.0, "deterministic": True,
                 "need_weights": False},
        "runtime": {"release_id": "model-r19", "adapter": None, "cached_kv": None, "requested_backend": "sdpa_auto",
                    "forbids_matrix": False, "observed_backend": None, "observation_id": None, "framework": "pytorch",
                    "framework_version": "pinned-by-environment", "checkpoint_dtype": "bfloat16",
                    "parameter_dtype": "bfloat16", "projection_compute_dtype": "bfloat16",
                    "activation_dtype": "bfloat16", "score_accumulation_dtype": "float32",
                    "probability_dtype": "bfloat16", "output_dtype": "bfloat16"},
    }


def changed(start, changes):
    """A copy with other values under dotted names."""
    manifest = copy.deepcopy(start)
    for dotted, value in changes.items():
        *path, leaf = dotted.split(".")
        record = manifest
        for part in path:
            record = record[part]
        record[leaf] = copy.deepcopy(value)
    return manifest


SELF = {"call.mode": "self", "call.q_len": 128, "call.q_state_id": "request-42:encoder-7",
        "call.mask_owner": "encoder_self"}
CACHED = SELF | {"call.q_len": 1, "call.mask_owner": "decoder_causal", "call.mask_axes": [2, 1, 1, 128],
                 "runtime.cached_kv": {"release_id": "model-r19", "adapter": None}}
SQUARE = {"call.q_len": 128, "call.mask_axes": [2, 1, 128, 128]}
FUSED = {"projection.layout": "fused_qkv", "projection.fused_order": ["q", "k", "v"],
         "projection.spans": [[0, 512], [512, 1024], [1024, 1408]]}
TRAIN = SQUARE | {"call.training": True, "call.dropout_p": 0.1, "call.deterministic": False}
SEEN = {"runtime.observed_backend": "flash", "runtime.observation_id": "trace-9"}
TUNED = {"runtime.adapter": "lora-3", "runtime.cached_kv": {"release_id": "model-r19", "adapter": "lora-3"}}

_VALID = {
    "one target row, 128 source rows": {},
    "a square cross call, 128 by 128": SQUARE,
    "encoder self-attention": SELF,
    "a self call of one row over 128 cached ones": CACHED,
    "a self call of 3 rows over 128": CACHED | {"call.q_len": 3, "call.mask_axes": [2, 1, 3, 128]},
    "fused maps with spans 0-512, 512-1024, 1024-1408": FUSED,
    "stored as [in,out]": {"projection.stored_orientation": "in_out"},
    "an observed backend with its trace": SEEN,
    "training with dropout, not called deterministic": TRAIN,
    "training without dropout, called deterministic": TRAIN | {"call.dropout_p": 0.0, "call.deterministic": True},
    "dropout set but not training": {"call.dropout_p": 0.1},
    "probabilities asked of a backend that holds them": {"call.need_weights": True},
    "a backend that forbids the matrix, and nobody asks for it": {"runtime.forbids_matrix": True},
    "cached K and V of this release and adapter": TUNED,
    "a mask for each head": {"call.mask_axes": [2, 8, 1, 128]},
    "no mask": {"call.mask_axes": None},
    "a mask shared by everybody": {"call.mask_axes": [1, 1, 1, 128]},
    "a target whose name comes after the source's": {"call.q_state_id": "request-42:target-17"},
    "typed totals that nobody may trust": {"heads.qk_total": 1024, "heads.v_total": 512},
}
_INVALID = [
    ("q-width", "projection.q.out_features", {"projection.q.out_features": 384}),
    ("q-width", "projection.q.in_features", {"projection.q.in_features": 384}),
    ("k-width", "projection.k.out_features", {"projection.k.out_features": 384}),
    ("v-width", "projection.v.out_features", {"projection.v.out_features": 512}),
    ("o-width", "projection.o.in_features", {"projection.o.in_features": 512}),
    ("o-width", "projection.o.out_features", {"projection.o.out_features": 384}),
    ("v-width", "projection.v.out_features", {"projection.v.out_features": 512, "heads.v_total": 512}),
    ("k-width q-width", "projection.q.out_features", {
        "projection.q.out_features": 256, "projection.k.out_features": 256, "heads.qk_total": 256}),
    ("head-count", "heads.kv_heads", {"heads.kv_heads": 4, "projection.k.out_features": 256,
                                      "projection.v.out_features": 192}),
    ("self-origin", "call.q_state_id", SELF | {"call.q_state_id": "request-42:decoder-step-17"}),
    ("self-origin", "call.v_state_id", SELF | {"call.v_state_id": "request-43:encoder-7"}),
    ("self-origin", "call.k_state_id", CACHED | {"call.k_state_id": "request-42:encoder-8"}),
    ("kv-source", "call.v_state_id", {"call.v_state_id": "request-43:encoder-7"}),
    ("kv-source", "call.k_state_id", SQUARE | {"call.k_state_id": "request-42:encoder-6"}),
    ("cross-origin", "call.q_state_id", SQUARE | {"call.q_state_id": "request-42:encoder-7"}),
    ("cross-origin", "call.q_state_id", {"call.q_state_id": "request-42:encoder-7"}),
    ("fused-order", "projection.fused_order", FUSED | {"projection.fused_order": ["k", "q", "v"]}),
    ("fused-order", "projection.fused_order", FUSED | {
        "projection.fused_order": ["q", "v", "k"], "projection.spans": [[0, 512], [512, 896], [896, 1408]]}),
    ("fused-spans", "projection.spans", FUSED | {"projection.spans": [[0, 512], [512, 960], [960, 1408]]}),
    ("fused-spans", "projection.spans", FUSED | {"projection.spans": [[512, 1024], [0, 512], [1024, 1408]]}),
    ("fused-spans", "projection.spans", FUSED | {"projection.spans": [[0, 512], [500, 1012], [1024, 1408]]}),
    ("fused-spans", "projection.spans", FUSED | {"projection.spans": [[0, 512], [512, 1024], [1024, 1536]]}),
    ("release", "runtime.cached_kv.release_id", TUNED | {
        "runtime.cached_kv": {"release_id": "model-r18", "adapter": "lora-3"}}),
    ("release", "runtime.cached_kv.adapter", TUNED | {
        "runtime.cached_kv": {"release_id": "model-r19", "adapter": "lora-2"}}),
    ("release", "runtime.cached_kv.adapter", CACHED | {"runtime.adapter": "lora-3"}),
    ("stochastic", "call.deterministic", TRAIN | {"call.deterministic": True}),
    ("need-weights", "call.need_weights", {"call.need_weights": True, "runtime.forbids_matrix": True}),
    ("backend-evidence", "runtime.observed_backend", SEEN | {"runtime.observation_id": None}),
    ("backend-evidence", "runtime.observed_backend", {"runtime.observed_backend": "sdpa_auto"}),
    ("mask-semantics", "call.canonical_mask_semantics", {"call.canonical_mask_semantics": "true_is_blocked"}),
    ("mask-semantics", "call.canonical_mask_semantics", {"call.canonical_mask_semantics": "additive"}),
    ("mask-axes", "call.mask_axes", {"call.mask_axes": [2, 1, 128]}),
    ("mask-axes", "call.mask_axes", SQUARE | {"call.mask_axes": [2, 128, 128]}),
    ("mask-axes", "call.mask_axes", {"call.mask_axes": [2, 1, 128, 1]}),
    ("mask-axes", "call.mask_axes", {"call.mask_axes": [2, 4, 1, 128]}),
    ("mask-axes", "call.mask_axes", {"call.mask_axes": [128, 1, 1, 2]}),
    ("mask-axes", "call.mask_axes", {"call.mask_axes": [2, 1, 1]}),
    ("mask-axes", "call.mask_axes", {"call.mask_axes": [2, 1, 1, 128, 1]}),
    ("mask-semantics", "call.canonical_mask_semantics", {"call.canonical_mask_semantics": "visible_is_one"}),
    ("kv-source", "call.v_state_id", {"call.v_state_id": "request-41:encoder-7"}),
    ("self-origin", "call.q_state_id", SELF | {"call.q_state_id": "request-42:target-17"}),
    ("self-origin", "call.v_state_id", SELF | {"call.v_state_id": "request-41:encoder-7"}),
    ("head-count", "heads.kv_heads", {"heads.kv_heads": 16, "projection.k.out_features": 1024,
                                      "projection.v.out_features": 768}),
    ("cross-origin kv-source", "call.k_state_id", {"call.q_state_id": "request-42:encoder-7",
                                                   "call.v_state_id": "request-43:encoder-7"}),
    ("backend-evidence mask-semantics need-weights", "call.need_weights", {
        "call.need_weights": True, "runtime.forbids_matrix": True, "runtime.observed_backend": "flash",
        "call.canonical_mask_semantics": "true_is_blocked"}),
    ("fused-order release self-origin stochastic", "call.v_state_id", SELF | FUSED | {
        "projection.fused_order": ["k", "q", "v"], "call.v_state_id": "request-43:encoder-7", "call.training": True,
        "call.dropout_p": 0.1, "runtime.cached_kv": {"release_id": "model-r18", "adapter": None}}),
    ("head-count o-width v-width", "heads.kv_heads", {
        "heads.kv_heads": 4, "projection.k.out_features": 256, "projection.o.in_features": 512}),
]

VALID = [Bundle(title, changed(base(), changes)) for title, changes in _VALID.items()]
INVALID = [Bundle(f"{codes}, number {i + 1}", changed(base(), changes), tuple(codes.split()), field)
           for i, (codes, field, changes) in enumerate(_INVALID)]
_SMALL = base(3, 4, 6, 10)
SMALL = [Bundle("heads of other sizes: H3 D_qk4 D_v6 M10", changed(_SMALL, {"call.mask_axes": [2, 3, 1, 128]})),
         Bundle("the same with a value map as wide as the keys", changed(_SMALL, {
             "projection.v.out_features": 12}), ("v-width",), "projection.v.out_features")]
