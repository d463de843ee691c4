"""The life of a projected source pair as a table, the calls it is tried on, and what a difference means."""
from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import torch

from ...histories import ANYTHING, History, Outcome, Refusal, Step, modelled
from ._identities import FIELDS, OTHER, differing, identity

NAME, READS = "CrossKVLifecycle", ("state", "beam_map", "source")
BEAMS = "BEAM_SHARED", "BEAM_EXPANDED"
READABLE = "ATTACHED", *BEAMS
LIVE = "PROJECTED", *READABLE
TRAINING = "PROJECTED_EPHEMERAL", "BACKWARD_PENDING"
STATES = "EMPTY", "SOURCE_BOUND", *TRAINING, *LIVE, "INVALIDATED", "RELEASED"

# call: (states it is allowed in, state after it or None for the same, words of a refusal because of the state)
TABLE = {
    "bind": (("EMPTY",), "SOURCE_BOUND", ("bind",)),
    "project_training": (("SOURCE_BOUND",), "PROJECTED_EPHEMERAL", ()),
    "consume_training": (("PROJECTED_EPHEMERAL",), "BACKWARD_PENDING", ()),
    "finish_backward": (("BACKWARD_PENDING",), "RELEASED", ("backward",)),
    "project": (("SOURCE_BOUND",), "PROJECTED", ("bind",)),
    "attach": (("PROJECTED",), "ATTACHED", ()),
    "share_beams": (("ATTACHED",), "BEAM_SHARED", ("attached",)),
    "expand_beams": (("ATTACHED",), "BEAM_EXPANDED", ("attached",)),
    "reorder": (BEAMS, None, ()),
    "rollback_target": (READABLE, None, ("target",)),
    "drift": (LIVE, "INVALIDATED", ()),
    "read": (READABLE, None, ("attached",)),
    "release": ((*LIVE, "INVALIDATED"), "RELEASED", ()),
}


class Model:
    """What the contract asks for, call by call from the table."""

    def __init__(self):
        self.state, self.source, self.beam_map = "EMPTY", None, None
        self.made = self.version = None

    def __getattr__(self, name):
        if name not in TABLE:
            raise AttributeError(name)

        def call(*args):
            allowed, after, words = TABLE[name]
            if self.state not in allowed:
                more = ("inference",) if name == "drift" and self.state in TRAINING else ()
                raise Refusal(self.state, *words, *more)
            value = getattr(self, f"_{name}", lambda *_: None)(*args)
            self.state = after or self.state
            if self.state not in BEAMS:
                self.beam_map = None
            if self.state in ("INVALIDATED", "RELEASED"):
                self.source = ANYTHING
            return value
        return call

    def _bind(self, source):
        self.source = source

    def _project_training(self, version):
        if isinstance(self.source, torch.Tensor) and not self.source.requires_grad:
            raise Refusal("graph")
        self.version = version

    def _consume_training(self, version):
        if version != self.version:
            raise Refusal("version")

    def _project(self, made):
        self.made = made._fields

    def _attach(self, expected):
        for field in FIELDS:
            if self.made[field] != expected._fields[field]:
                raise Refusal(field)

    def _rows(self):
        return 1 if isinstance(self.source, str) else len(self.source)

    def _share_beams(self, beam_map):
        if not set(beam_map) <= set(range(self._rows())):
            raise Refusal("map")
        self.beam_map = tuple(beam_map)

    def _expand_beams(self, n):
        self.beam_map = tuple(i // n for i in range(n * self._rows()))

    def _reorder(self, order):
        if sorted(order) != list(range(len(self.beam_map))):
            raise Refusal("permutation", "map")
        self.beam_map = tuple(self.beam_map[i] for i in order)

    def _read(self):
        return self.source

    def _release(self, consumers):
        if consumers > 0:
            raise Refusal("consumer")


SOURCES = ("source-a", "source-b")
LEGAL: dict[str, Step] = {
    "bind": ("bind", (SOURCES,)), "project_training": ("project_training", (12,)),
    "consume_training": ("consume_training", (12,)), "finish_backward": ("finish_backward", ()),
    "project": ("project", (identity(),)), "attach": ("attach", (identity(),)),
    "share_beams": ("share_beams", ((0, 1, 1, 0),)), "expand_beams": ("expand_beams", (2,)),
    "reorder": ("reorder", ((1, 2, 0, 3),)), "rollback_target": ("rollback_target", (2,)),
    "drift": ("drift", ("adapter", "lora-9")), "read": ("read", ()), "release": ("release", (0,))}
BAD: list[Step] = [
    ("consume_training", (13,)), ("consume_training", (11,)),
    ("attach", (differing("adapter"),)), ("attach", (differing("kv_heads", "layout"),)),
    ("share_beams", ((0, 2, 1),)), ("share_beams", ((0, 5),)), ("share_beams", ((0, -1),)),
    ("reorder", ((0, 0, 1, 2),)), ("reorder", ((0, 1),)), ("reorder", ((1, 2, 3, 4),)),
    ("drift", ("memory_digest", "9f3d")), ("drift", ("layer", 4)), ("release", (2,)), ("release", (1,))]
CALLS = [*LEGAL.values(), *BAD]
_INFERENCE = "bind", "project", "attach"
PATHS = {state: tuple(LEGAL[name] for name in names) for state, names in {
    "EMPTY": (), "SOURCE_BOUND": ("bind",), "PROJECTED_EPHEMERAL": ("bind", "project_training"),
    "BACKWARD_PENDING": ("bind", "project_training", "consume_training"), "PROJECTED": _INFERENCE[:2],
    "ATTACHED": _INFERENCE, "BEAM_SHARED": (*_INFERENCE, "share_beams"),
    "BEAM_EXPANDED": (*_INFERENCE, "expand_beams"), "INVALIDATED": (*_INFERENCE, "drift"),
    "RELEASED": (*_INFERENCE, "release")}.items()}


def every_state_and_call() -> list[History]:
    """The shortest way to each state, then one call."""
    return [(*path, call) for path in PATHS.values() for call in CALLS]


def every_field() -> list[History]:
    """Attach to an identity that differs in one field or two; drift in each field, then try to read and to attach."""
    two = [("adapter", "shard"), ("request", "adapter"), ("d_v", "creation_mode")]
    attach = [(*PATHS["PROJECTED"], ("attach", (differing(*fields),)), LEGAL["attach"])
              for fields in [(f,) for f in FIELDS] + two]
    drift = [(*PATHS[state], ("drift", (field, OTHER[field])), LEGAL["read"], LEGAL["attach"])
             for state, field in zip(LIVE * 5, FIELDS, strict=False)]
    return attach + drift


def walks(number: int, length: int, seed: int) -> Iterator[History]:
    """Random sequences that go on where the table goes on: three steps of four are allowed in the state they meet."""
    draw = random.Random(seed)
    for _ in range(number):
        model, history = Model(), []
        for _ in range(length):
            allowed = [c for c in CALLS if model.state in TABLE[c[0]][0]]
            step = draw.choice(allowed if allowed and draw.random() < 0.75 else CALLS)
            if step[0] == "reorder" and draw.random() < 0.7 and model.beam_map:
                step = "reorder", (tuple(draw.sample(range(len(model.beam_map)), len(model.beam_map))),)
            history.append(step)
            with contextlib.suppress(Refusal):
                getattr(model, step[0])(*step[1])
            if model.state == "RELEASED" and draw.random() < 0.5:
                break
        yield tuple(history)


def spelled(history: History) -> str:
    """A sequence of calls as a learner would write it."""
    return "; ".join(f"{name}({', '.join(map(_argument, args))})" for name, args in history)


def _argument(value):
    fields = getattr(value, "_fields", None)
    if isinstance(value, torch.Tensor):
        return f"a tensor{' that needs no gradient' if not value.requires_grad else ''}"
    if fields is None:
        return repr(value)
    other = [f for f in FIELDS if fields[f] != identity()._fields[f]]
    return "identity" + (f" with {', '.join(f'{f}={fields[f]!r}' for f in other)}" if other else "")


SOURCE_FIELDS = {"request", "source_release", "memory_digest", "source_len", "position_policy"}


def causes(differences: list[tuple[History, list]]) -> set[str | None]:
    """The known mistakes behind these differences, (history, what the program did) each; None for an unknown one."""
    found: set[str | None] = set()
    attached, drifted = set(), set()
    for history, (kind, _, after) in differences:
        outcomes = modelled(Model, history, READS)
        before = outcomes[-2].after if len(outcomes) > 1 else ("EMPTY", None, None)
        cause = _cause(history, before[0], outcomes[-1], kind, after)
        if cause == "attach":
            attached |= {f for f in FIELDS if history[-1][1][0]._fields[f] != identity()._fields[f]}
        elif cause == "drift":
            drifted.add(history[-1][1][0])
        else:
            found.add(cause)
    if attached:
        found.add("adapter-not-in-identity" if attached == {"adapter"} else "attach-checks-shape")
    if drifted:
        found.add("source-edit-as-rollback" if drifted <= SOURCE_FIELDS else "drift-ignored")
    return found


def _cause(history: History, state: str, want: Outcome, kind: str, after: list) -> str | None:
    name, args = history[-1]
    through, moved = kind == "went through", after[0] != state
    if want.refused is None:  # a call that the contract allows
        if name == "drift" and through and not moved:
            return "drift"
        if name == "rollback_target" and through:
            return "rollback-drops-source"
        if name == "reorder" and through and after[2] != list(SOURCES) and after[2] != SOURCES:
            return "reordered-source"
        return None
    if not through:
        return None
    if state == "EMPTY" and name in ("project", "project_training"):
        return "projected-before-bind"
    if state == "PROJECTED" and name == "attach":
        return "attach"
    if state in TRAINING:
        return {"attach": "training-attached", "read": "training-attached", "share_beams": "beams-on-ephemeral",
                "expand_beams": "beams-on-ephemeral", "reorder": "beams-on-ephemeral",
                "consume_training": "stale-after-update" if state == "PROJECTED_EPHEMERAL" else None}.get(name)
    if state == "ATTACHED" and name == "share_beams":
        return "bad-map-accepted"
    if state == "INVALIDATED":
        return "drift-ignored" if name == "read" else "reattached" if name in ("attach", "project", "bind") else None
    if state == "RELEASED":
        return "read-after-release" if name == "read" else None
    return "released-under-readers" if name == "release" and args[0] > 0 else None


