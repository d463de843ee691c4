"""The lifecycle stepper: the life of a cross-attention K/V pair, one call at a time, legal or refused.

    >>> LifecycleStepper().after(["bind", "project", "attach", "read"])["state"]
    'ATTACHED'
    >>> LifecycleStepper().after(["bind", "read"])["log"][-1][2]
    'refused: read needs an attached pair; this one is SOURCE_BOUND'

Two sources of three beams each (N_b = 3). The training lane lives for one backward pass; the inference lane may be
read again and again, as long as its identity stays what it was.
"""

from __future__ import annotations

from .kit import Instrument, grid, scene, table, words

STATES = {"EMPTY": "empty", "SOURCE_BOUND": "bound", "PROJECTED_EPHEMERAL": "ephemeral", "BACKWARD_PENDING": "pending",
          "PROJECTED": "projected", "ATTACHED": "attached", "BEAM_SHARED": "shared", "BEAM_EXPANDED": "expanded",
          "INVALIDATED": "invalid", "RELEASED": "released"}
BEAMS = ("BEAM_SHARED", "BEAM_EXPANDED")
READABLE = ("ATTACHED", *BEAMS)
FIELDS = ("request", "source_release", "memory_digest", "checkpoint", "layer", "projection_version", "adapter",
          "position_policy", "kv_heads", "d_qk", "d_v", "source_len", "dtype", "device", "layout", "shard",
          "creation_mode")

# call: (the states it is legal in, the state after it or "" for the same, what it needs)
CALLS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "bind": (("EMPTY",), "SOURCE_BOUND", "bind needs an empty slot"),
    "project_training": (("SOURCE_BOUND",), "PROJECTED_EPHEMERAL", "nothing to project: bind first"),
    "consume_training": (("PROJECTED_EPHEMERAL",), "BACKWARD_PENDING", "only a training pair is consumed"),
    "finish_backward": (("BACKWARD_PENDING",), "RELEASED", "no backward pass is pending"),
    "project": (("SOURCE_BOUND",), "PROJECTED", "nothing to project: bind first"),
    "attach": (("PROJECTED",), "ATTACHED", "attach needs a projected inference pair"),
    "share_beams": (("ATTACHED",), "BEAM_SHARED", "beams need an attached pair"),
    "expand_beams": (("ATTACHED",), "BEAM_EXPANDED", "beams need an attached pair"),
    "reorder": (BEAMS, "", "there are no beams to reorder"),
    "rollback_target": (READABLE, "", "there is no target cache to roll back"),
    "drift": (("PROJECTED", *READABLE), "INVALIDATED", "drift is a matter of inference pairs"),
    "read": (READABLE, "", "read needs an attached pair"),
    "release": (("PROJECTED", *READABLE, "INVALIDATED"), "RELEASED", "there is nothing to release"),
}
# what a button does: (its label, the call, why it is refused where the call itself would be legal)
MOVES: dict[str, tuple[str, str, str]] = {
    "bind": ("bind(source)", "bind", ""),
    "project_training": ("project_training(version)", "project_training", ""),
    "optimizer_step": ("an optimizer step", "", ""),
    "consume_training": ("consume_training(version)", "consume_training", ""),
    "finish_backward": ("finish_backward()", "finish_backward", ""),
    "project": ("project(identity)", "project", ""),
    "attach": ("attach(the same identity)", "attach", ""),
    "attach_other": ("attach(another {field})", "attach", "{field}: the pair was made under another one"),
    "share_beams": ("share_beams([0,0,0,1,1,1])", "share_beams", ""),
    "expand_beams": ("expand_beams(3)", "expand_beams", ""),
    "read": ("read(), one decode step", "read", ""),
    "reorder": ("reorder([2,0,1,3,5,4])", "reorder", ""),
    "reorder_far": ("reorder([0,1,2,3,4,6])", "reorder", "there is no row 6: the map must stay in range"),
    "rollback_target": ("rollback_target(1)", "rollback_target", ""),
    "rollback_far": ("rollback_target(99)", "rollback_target", "the target is not that long"),
    "drift": ("drift({field})", "drift", ""),
    "release_read": ("release(consumers=1)", "release", "a consumer still reads it"),
    "release": ("release(consumers=0)", "release", ""),
}
ORDER, MAP = (2, 0, 1, 3, 5, 4), (0, 0, 0, 1, 1, 1)
SAYS = {
    "now": "The pair is {state}.",
    "refused": "refused: {why}",
    "is": "{why}; this one is {state}",
    "version": "its version is {made}, the weights are at {now}: old activations would meet new parameters",
    "short": "the target has no row to take back",
    "kept": "The source pair is untouched: a rollback and a reorder move hypotheses only.",
    "gone": "A released or invalidated pair never comes back; a new one is a new object.",
    "legal": "{call} in {state}: legal, then {next}",
    "illegal": "{call} in {state}: refused, {why}",
}


class LifecycleStepper(Instrument):
    """State: history (the moves so far, names of `MOVES`), field (the identity field that drifts or differs)."""

    name, title = "lifecycle", "The life of a cross-attention pair"

    def after(self, history: list[str], field: str = "adapter") -> dict:
        """The machine after these moves: state, version, made, target, rows (which old row each beam row is), log."""
        now = {"state": "EMPTY", "version": 7, "made": 0, "target": 0, "rows": list(range(6)), "log": []}
        for move in history:
            label, call, why = (part.replace("{field}", field) for part in MOVES[move])
            if move == "optimizer_step":
                now["version"] += 1
                outcome = f"weights are at version {now['version']}"
            else:
                refusal = _refusal(now, move, call, why)
                outcome = SAYS["refused"].format(why=refusal) if refusal else _move(now, move, call)
            now["log"].append([str(len(now["log"]) + 1), label, outcome])
        return now

    def data(self) -> dict:
        return {"states": STATES, "calls": {name: list(call) for name, call in CALLS.items()},
                "moves": {name: list(move) for name, move in MOVES.items()}, "fields": list(FIELDS), "says": SAYS,
                "order": list(ORDER), "map": list(MAP)}

    def start(self) -> dict:
        return {"history": ["bind", "project", "attach"], "field": "adapter"}

    def settle(self, state: dict) -> dict:
        unknown = [move for move in state["history"] if move not in MOVES]
        if unknown:
            raise ValueError(f"there is no move {unknown[0]!r}; there are {', '.join(MOVES)}")
        if state["field"] not in FIELDS:
            raise ValueError(f"{state['field']!r} is no field of the identity; there are {', '.join(FIELDS)}")
        return state

    def scene(self, state: dict) -> dict:
        now = self.after(state["history"], state["field"])
        cells = [(call, state) for call in CALLS for state in STATES]
        legal = [state in CALLS[call][0] for call, state in cells]
        fills = ["none" if not is_legal else "good" if state == now["state"] else "w2"
                 for (_, state), is_legal in zip(cells, legal, strict=True)]
        cols = [f"▶{label}" if name == now["state"] else label for name, label in STATES.items()]
        lines = [SAYS["now"].format(state=now["state"])]
        last = state["history"][-1] if state["history"] else ""
        if last in ("reorder", "rollback_target") and not now["log"][-1][2].startswith("refused"):
            lines.append(SAYS["kept"])
        if now["state"] in ("RELEASED", "INVALIDATED"):
            lines.append(SAYS["gone"])
        beams = now["state"] in BEAMS
        facts = [["target rows", str(now["target"])], ["version of the weights", str(now["version"])],
                 ["version of the pair", str(now["made"]) if now["made"] else "–"],
                 ["beam row is old row", _listed(now["rows"]) if beams else "–"],
                 ["beam row reads source", _listed([MAP[row] for row in now["rows"]]) if beams else "–"],
                 ["copies of the source pair", {"BEAM_SHARED": "1 each, read by index", "BEAM_EXPANDED": "3 each"}.get(
                     now["state"], "1 each")]]
        log = now["log"][-8:]
        refused = [i for i, entry in enumerate(log) if entry[2].startswith("refused")]
        return scene(" ".join(lines), [
            words("say", lines),
            table("log", "what was called", ["step", "call", "outcome"], log or [["", "nothing yet", ""]], bad=refused),
            table("facts", "the pair and its target", ["fact", "value"], facts),
            grid("machine", "calls, and the states in which they are legal", list(CALLS), cols, fills,
                 ["yes" if is_legal else "" for is_legal in legal])])


def _refusal(now: dict, move: str, call: str, why: str) -> str:
    """Why a move is refused, or nothing."""
    legal, _, needs = CALLS[call]
    if now["state"] not in legal:
        return SAYS["is"].format(why=needs, state=now["state"])
    if move == "consume_training" and now["made"] != now["version"]:
        return SAYS["version"].format(made=now["made"], now=now["version"])
    if move == "rollback_target" and not now["target"]:
        return SAYS["short"]
    return why


def _move(now: dict, move: str, call: str) -> str:
    """Carries a legal move out, and says what came of it."""
    now["state"] = CALLS[call][1] or now["state"]
    if call in ("project", "project_training"):
        now["made"] = now["version"]
    if call in ("share_beams", "expand_beams"):
        now["rows"] = list(range(6))
    if move == "reorder":
        now["rows"] = [now["rows"][row] for row in ORDER]
    if move == "read":
        now["target"] += 1
    if move == "rollback_target":
        now["target"] -= 1
    return now["state"]


def _listed(numbers: list[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
