"""The records of session 08, as typed dictionaries: a plain dict with these keys is one."""
from typing import NotRequired, TypedDict

from torch import Tensor

KINDS = ("map", "probe", "gradient", "ablation", "sparse_gate", "prune_retrain", "small_model", "profile")
CLAIMS = ("pattern", "decodable", "local_dependence", "removal_effect", "recoverability", "causal_necessity",
          "universal_ratio", "speedup", "stable_index")
STEPS = ("freeze", "gate", "score", "select", "logical-eval", "surgery", "parity", "fine-tune", "test", "profile",
         "release")
SPLITS = ("train", "calibration", "validation", "test")


class Evidence(TypedDict):
    """One experiment about one head. A value of None says that it was not written down.

    kind: one of KINDS. checkpoint: which trained weights. layer, head: where. inputs: which examples.
    dropout: whether weights were read "pre" or "post" dropout. effect: what happened to the output, as text; "not
    measured" is an answer. retrained: whether weights were updated after the intervention. shapes_changed: whether
    tensors became smaller. Source: Derivation from what each of them changes in a claim.
    """

    kind: str
    checkpoint: str | None
    layer: int | None
    head: int | None
    inputs: str | None
    dropout: str | None
    effect: str | None
    retrained: bool | None
    shapes_changed: bool


class Step(TypedDict):
    """One line of a pruning log, in the order in which things were done.

    step: one of STEPS. reads: the splits whose examples it looked at, each one of SPLITS. artifact: the checkpoint
    that a "freeze" froze. baseline: the frozen checkpoint that a "release" can be rolled back to. claims: what a
    "release" promises, for instance ["quality", "speed"].
    """

    step: str
    reads: list[str]
    artifact: NotRequired[str]
    baseline: NotRequired[str | None]
    claims: NotRequired[list[str]]


class Release(TypedDict):
    """A layer after surgery: what a runtime and a resumed training need to know.

    state: tensors by name. optimizer: for each parameter its tensors by name, or None. head_map: new head number to
    old head number. num_heads, d_qk, d_v: of the new layer.
    """

    state: dict[str, Tensor]
    optimizer: dict[str, dict[str, Tensor]] | None
    head_map: dict[int, int]
    num_heads: int
    d_qk: int
    d_v: int
