"""Right programs of the lifecycle, and the one that wrong programs are made from."""
import enum

import torch

from ._identities import FIELDS, compare
from ._lifecycle import BEAMS, TABLE, TRAINING


def count(source):
    """How many sources were bound."""
    return len(source) if isinstance(source, (list, tuple, torch.Tensor)) else 1


class Tabled:
    """Right: a dict of transitions. `skip` and `also` are how wrong programs are made from it."""

    also: dict = {}  # call: more states that it is allowed in
    skip: frozenset = frozenset()  # checks that are left out
    asked = FIELDS

    def __init__(self):
        self.state, self.source, self.beam_map, self.made, self.version = "EMPTY", None, None, None, None

    def enter(self, name):
        states, after, words = TABLE[name]
        if self.state not in (*states, *self.also.get(name, ())):
            lane = "only in the inference lane" if self.state in TRAINING else ""
            raise ValueError(f"{name} in state {self.state}: {' '.join(words)} {lane}")
        return after or self.state

    def leave(self, state):
        self.state = state
        if state not in BEAMS:
            self.beam_map = None

    def bind(self, source):
        after = self.enter("bind")
        self.source = source
        self.leave(after)

    def project_training(self, version):
        after = self.enter("project_training")
        if isinstance(self.source, torch.Tensor) and not self.source.requires_grad:
            raise ValueError("no graph")
        self.version = version
        self.leave(after)

    def consume_training(self, version):
        after = self.enter("consume_training")
        if version != self.version and "version" not in self.skip:
            raise ValueError("the version has changed")
        self.leave(after)

    def finish_backward(self):
        self.leave(self.enter("finish_backward"))

    def project(self, identity):
        after = self.enter("project")
        self.made = identity
        self.leave(after)

    def attach(self, expected):
        after = self.enter("attach")
        if self.made is not None:
            compare(self.made, expected, self.asked)
        self.leave(after)

    def share_beams(self, map):
        after = self.enter("share_beams")
        if "map" not in self.skip and not all(0 <= row < count(self.source) for row in map):
            raise ValueError("the map leaves the source")
        self.leave(after)
        self.beam_map = tuple(map)

    def expand_beams(self, n):
        after = self.enter("expand_beams")
        rows = range(count(self.source))
        self.leave(after)
        self.beam_map = tuple(torch.tensor(rows).repeat_interleave(n).tolist())

    def reorder(self, order):
        after = self.enter("reorder")
        if self.beam_map is not None:
            if set(order) != set(range(len(self.beam_map))) or len(order) != len(self.beam_map):
                raise ValueError("no permutation of the map's rows")
            self.beam_map = tuple(self.beam_map[i] for i in order)
        self.state = after

    def rollback_target(self, n):
        self.state = self.enter("rollback_target")

    def drift(self, field, value):
        self.leave(self.enter("drift"))

    def read(self):
        self.enter("read")
        return self.source

    def release(self, consumers):
        after = self.enter("release")
        if consumers > 0 and "consumer" not in self.skip:
            raise ValueError("a consumer is left")
        self.leave(after)


class DictOfTransitions(Tabled):
    pass


class EnumAndMethods:
    class Stage(enum.StrEnum):
        EMPTY = "EMPTY"
        SOURCE_BOUND = "SOURCE_BOUND"
        PROJECTED_EPHEMERAL = "PROJECTED_EPHEMERAL"
        BACKWARD_PENDING = "BACKWARD_PENDING"
        PROJECTED = "PROJECTED"
        ATTACHED = "ATTACHED"
        BEAM_SHARED = "BEAM_SHARED"
        BEAM_EXPANDED = "BEAM_EXPANDED"
        INVALIDATED = "INVALIDATED"
        RELEASED = "RELEASED"

    def __init__(self):
        self._at, self.source, self._map = self.Stage.EMPTY, None, []

    @property
    def state(self):
        return self._at.value

    @property
    def beam_map(self):
        return list(self._map) if self.state in BEAMS else None

    def _require(self, *states, say=""):
        if self.state not in states:
            raise ValueError(f"{self.state} does not allow that. {say}")

    def bind(self, source):
        self._require("EMPTY", say="Bind once.")
        self.source, self._at = source, self.Stage.SOURCE_BOUND

    def project_training(self, version):
        self._require("SOURCE_BOUND")
        if getattr(self.source, "requires_grad", None) is False:
            raise ValueError("Keys and values need a graph.")
        self._version, self._at = version, self.Stage.PROJECTED_EPHEMERAL

    def consume_training(self, version):
        self._require("PROJECTED_EPHEMERAL")
        if self._version != version:
            raise ValueError(f"Version {version} is not {self._version}.")
        self._at = self.Stage.BACKWARD_PENDING

    def finish_backward(self):
        self._require("BACKWARD_PENDING", say="No backward pass is waiting.")
        self._at, self.source = self.Stage.RELEASED, None

    def project(self, identity):
        self._require("SOURCE_BOUND", say="Bind first.")
        self._identity, self._at = identity, self.Stage.PROJECTED

    def attach(self, expected):
        self._require("PROJECTED")
        wrong = [f for f in FIELDS if getattr(expected, f) != getattr(self._identity, f)]
        if wrong:
            raise ValueError(f"Differs: {', '.join(wrong)}")
        self._at = self.Stage.ATTACHED

    def share_beams(self, map):
        self._require("ATTACHED", say="Not attached.")
        if min(map) < 0 or max(map) > count(self.source) - 1:
            raise ValueError("Bad beam map.")
        self._map, self._at = list(map), self.Stage.BEAM_SHARED

    def expand_beams(self, n):
        self._require("ATTACHED", say="Not attached.")
        self._map = [i for i in range(count(self.source)) for _ in range(n)]
        self._at = self.Stage.BEAM_EXPANDED

    def reorder(self, order):
        self._require("BEAM_SHARED", "BEAM_EXPANDED")
        if sorted(order) != sorted(range(len(self._map))):
            raise ValueError("Not a permutation of the map.")
        self._map = [self._map[i] for i in order]

    def rollback_target(self, n):
        self._require("ATTACHED", "BEAM_SHARED", "BEAM_EXPANDED", say="No target rows to take back.")

    def drift(self, field, value):
        self._require("PROJECTED", "ATTACHED", "BEAM_SHARED", "BEAM_EXPANDED", say="Drift is for inference.")
        self._at = self.Stage.INVALIDATED

    def read(self):
        self._require("ATTACHED", "BEAM_SHARED", "BEAM_EXPANDED", say="Attached pairs only.")
        return self.source

    def release(self, consumers):
        self._require("PROJECTED", "ATTACHED", "BEAM_SHARED", "BEAM_EXPANDED", "INVALIDATED")
        if consumers:
            raise ValueError(f"{consumers} consumer(s) left.")
        self._at, self.source = self.Stage.RELEASED, None


class MatchStatement(Tabled):
    def enter(self, name):
        match (self.state, name):
            case ("EMPTY", "bind"):
                return "SOURCE_BOUND"
            case ("SOURCE_BOUND", "project" | "project_training"):
                return "PROJECTED" if name == "project" else "PROJECTED_EPHEMERAL"
            case ("PROJECTED_EPHEMERAL", "consume_training"):
                return "BACKWARD_PENDING"
            case ("BACKWARD_PENDING", "finish_backward"):
                return "RELEASED"
            case ("PROJECTED", "attach"):
                return "ATTACHED"
            case ("ATTACHED", "share_beams"):
                return "BEAM_SHARED"
            case ("ATTACHED", "expand_beams"):
                return "BEAM_EXPANDED"
            case (("BEAM_SHARED" | "BEAM_EXPANDED"), "reorder"):
                return self.state
            case (("ATTACHED" | "BEAM_SHARED" | "BEAM_EXPANDED"), "rollback_target" | "read"):
                return self.state
            case (("PROJECTED" | "ATTACHED" | "BEAM_SHARED" | "BEAM_EXPANDED"), "drift"):
                return "INVALIDATED"
            case (("PROJECTED" | "ATTACHED" | "BEAM_SHARED" | "BEAM_EXPANDED" | "INVALIDATED"), "release"):
                return "RELEASED"
        raise ValueError(f"{self.state} refuses {name}: bind, attached, target, backward or inference is missing")


RIGHTS = DictOfTransitions, EnumAndMethods, MatchStatement
