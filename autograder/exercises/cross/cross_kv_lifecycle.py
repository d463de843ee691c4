"""A projected source pair is born, read, perhaps invalidated, and released: every transition and every refusal."""
import torch

from ...exercise import Exercise
from ...histories import Difference, Outcome, differences, shortest
from ...lab import Mismatch
from ._identities import FIELDS
from ._lifecycle import (
    LEGAL,
    NAME,
    READABLE,
    READS,
    TRAINING,
    Model,
    causes,
    every_field,
    every_state_and_call,
    spelled,
    walks,
)
from ._lifecycle_programs import RIGHTS, Tabled, count

exercise = Exercise(
    NAME, step=10, points=5, minutes=12, difficulty=4, importance=4, tensor=False,
    summary="The life of a projected source pair as a state machine with two lanes, beams and no way back.",
    hints=(
        "Write the table of the text down as data: for every call the states it may come from and the state it leads "
        "to. One check at the beginning of every method can then serve them all.",
        "A refused call changes nothing: check first, change last. The error of a wrong state says which state it was.",
        "Two things move in a beam state: hypotheses, through the map, and target rows, which are not yours. The "
        "source never does. When it changes, the pair is finished.",
    ),
    hides="A walk that stays legal hides every missing refusal; a walk that never comes back after a refusal hides a "
          "refused call that changed something; an identity with one differing field hides which field is named first.",
)


def _tried(lab, histories):
    found = differences(lab, NAME, Model, histories, READS)
    if found:
        raise Mismatch(_message(shortest(lab, NAME, Model, found[0], READS)))


def _message(d: Difference) -> str:
    """The shortest sequence that tells program and contract apart, and both outcomes of its last call."""
    state = d.before[0]
    start = f"in state {state}, after {spelled(d.history[:-1])}" if d.history[1:] else "on a new object"
    return (f"{start}: {spelled(d.history[-1:])} "
            f"{_did(d.got, state)}; the contract {_asks(d.want, state)}")


def _did(got, state):
    if isinstance(got, Outcome):
        if got.refused is not None:
            return f"was refused and left {_state(got.after)}"
        return f"went through: {_state(got.after)}" + ("" if got.value is None else f", it returned {got.value!r}")
    return f"raised {got['type']}: \"{got['message'][:100]}\"" + (
        "" if got["after"][0] == state else f", and left {_state(got['after'])}")


def _asks(want, state):
    if want.refused is not None:
        words = " and ".join(f'"{w}"' for w in want.refused)
        return f"refuses it with ValueError ({words}) and stays in {state}"
    return f"allows it: {_state(want.after)}" + ("" if want.value is None else f", it returns {want.value!r}")


def _state(after):
    state, beam_map, source = after
    about = [] if beam_map is None else [f"beam_map {tuple(beam_map) if isinstance(beam_map, list) else beam_map}"]
    about += [f"source {source!r}"] if isinstance(source, (str, tuple, list)) and state in READABLE else []
    return f"state {state}" + (f" ({', '.join(about)})" if about else "")


@exercise.case("the training lane, from source to released graph")
def training_lane(lab):
    lane = [LEGAL[n] for n in ("bind", "project_training", "consume_training", "finish_backward")]
    _tried(lab, [lane[:n] for n in range(1, 5)])


@exercise.case("the inference lane, with shared and with expanded beams")
def inference_lane(lab):
    shared, expanded = ([LEGAL[n] for n in ("bind", "project", "attach", "read", beams, "read", "reorder", "reorder",
                                            "rollback_target", "read", "release")]
                        for beams in ("share_beams", "expand_beams"))
    alone = [LEGAL[n] for n in ("bind", "project", "attach", "rollback_target", "read", "release")]
    _tried(lab, [shared, expanded, alone])


@exercise.case("all states and all calls")
def states_and_calls(lab):
    _tried(lab, every_state_and_call())


@exercise.case("all 17 fields of an identity, at attachment and afterwards")
def fields(lab):
    _tried(lab, every_field())


@exercise.case("100 generated sequences of up to 12 calls")
def generated(lab):
    _tried(lab, list(walks(100, 12, seed=5)))


@exercise.case("one source under a name, with three beams")
def one_source(lab):
    path = [("bind", ("source-a",)), LEGAL["project"], LEGAL["attach"]]
    turned = ("reorder", ((2, 0, 1),))
    _tried(lab, [[*path, ("expand_beams", (3,)), turned, LEGAL["read"]],
                 [*path, ("share_beams", ((0, 0, 0),)), turned, LEGAL["read"]], [*path, ("share_beams", ((0, 1),))]])


@exercise.case("a source that needs no gradient cannot be projected for training")
def graph(lab):
    def memory(needs):
        return "bind", (torch.zeros(2, 3, dtype=torch.float64).requires_grad_(needs),)
    training = LEGAL["project_training"], LEGAL["consume_training"]
    inference = LEGAL["project"], LEGAL["attach"], LEGAL["expand_beams"], LEGAL["reorder"], LEGAL["read"]
    _tried(lab, [[memory(True), *training], [memory(False), *training], [memory(False), *inference]])


for _program in RIGHTS:
    exercise.right(_program)


def _wrong(id, why, spelling="", also=None, skip=(), **methods):
    body = {"also": also or {}, "skip": frozenset(skip), **methods}
    kind = type("".join(w.title() for w in (spelling or id).split("-")), (Tabled,), body | ({"__doc__": why} if why
                                                                                            else {}))
    exercise.wrong(kind, id=id)


_wrong("projected-before-bind", "Nothing may be projected without a source.",
       also={"project": ("EMPTY",), "project_training": ("EMPTY",)})
_wrong("projected-before-bind", None, "training-before-bind", also={"project_training": ("EMPTY",)})
_wrong("projected-before-bind", None, "inference-before-bind", also={"project": ("EMPTY",)})
_wrong("attach-checks-shape", "Attachment compares every identity field.",
       asked=("kv_heads", "d_qk", "d_v", "source_len"))
_wrong("attach-checks-shape", None, "attach-checks-shape-and-dtype", asked=(
    "kv_heads", "d_qk", "d_v", "source_len", "dtype", "device", "layout"))
_wrong("attach-checks-shape", None, "attach-checks-nothing", asked=())
_wrong("adapter-not-in-identity", "Another adapter means another affine map.",
       asked=tuple(f for f in FIELDS if f != "adapter"))
_wrong("training-attached", "Training K/V are never a cache.", also={"attach": ("PROJECTED_EPHEMERAL",)})
_wrong("training-attached", None, "training-read", also={"read": ("PROJECTED_EPHEMERAL",)})
_wrong("training-attached", None, "training-attached-and-pending", also={"attach": TRAINING})
_wrong("beams-on-ephemeral", "Beam operations belong to inference.",
       also={"share_beams": ("PROJECTED_EPHEMERAL",), "expand_beams": ("PROJECTED_EPHEMERAL",)})
_wrong("beams-on-ephemeral", None, "only-shared-on-ephemeral", also={"share_beams": ("PROJECTED_EPHEMERAL",)})
_wrong("stale-after-update", "Old activations met new parameters.", skip=("version",))


def _taken(source, rows):
    """A source with other rows; one that cannot be counted stays as it is."""
    if isinstance(source, torch.Tensor):
        return source[list(rows)]
    return tuple(source[i] for i in rows) if isinstance(source, tuple) else source


def _permutes_source(self, order):
    Tabled.reorder(self, order)
    self.source = _taken(self.source, dict.fromkeys(self.beam_map))


def _flips_source(self, order):
    self.enter("reorder")
    if sorted(order) != list(range(len(self.beam_map))):
        raise ValueError("no permutation of the map")
    self.source = _taken(self.source, range(count(self.source))[::-1])


def _permutes_like_hypotheses(self, order):
    Tabled.reorder(self, order)
    self.source = _taken(self.source, [i % count(self.source) for i in order])


_wrong("reordered-source", "A reorder permutes hypotheses, not the shared source.", reorder=_permutes_source)
_wrong("reordered-source", None, "source-instead-of-map", reorder=_flips_source)
_wrong("reordered-source", None, "source-as-long-as-the-order", reorder=_permutes_like_hypotheses)
_wrong("bad-map-accepted", "The beam map must stay in range.", skip=("map",))


def _unbound(self, n):
    self.enter("rollback_target")
    self.source = None
    self.leave("SOURCE_BOUND")


def _back_to(state):
    def rollback_target(self, n):
        self.enter("rollback_target")
        self.leave(state)
    return rollback_target


def _drops(self, n):
    self.enter("rollback_target")
    self.source = None


_wrong("rollback-drops-source", "A target rollback keeps the source pair.", rollback_target=_back_to("INVALIDATED"))
_wrong("rollback-drops-source", None, "source-forgotten", rollback_target=_drops)
_wrong("rollback-drops-source", None, "bound-again", rollback_target=_back_to("SOURCE_BOUND"))
_wrong("rollback-drops-source", None, "emptied", rollback_target=_unbound)
_wrong("rollback-drops-source", None, "everything-released", rollback_target=_back_to("RELEASED"))


def _keeps(*kept):
    def drift(self, field, value):
        after = self.enter("drift")
        if field not in kept:
            self.leave(after)
    return drift


_wrong("source-edit-as-rollback", "A source edit invalidates.", drift=_keeps("source_release", "memory_digest"))
_wrong("source-edit-as-rollback", None, "every-source-field-kept", drift=_keeps(
    "request", "source_release", "memory_digest", "source_len"))
_wrong("drift-ignored", "A changed field makes the pair unreadable.", drift=_keeps(*FIELDS))
_wrong("drift-ignored", None, "read-after-drift", also={"read": ("INVALIDATED",)})
_wrong("reattached", "An invalidated pair never comes back.", also={"attach": ("INVALIDATED",)})
_wrong("reattached", None, "bound-after-drift", also={"bind": ("INVALIDATED",)})
_wrong("reattached", None, "projected-after-drift", also={"project": ("INVALIDATED",)})
_wrong("released-under-readers", "Release waits for the last consumer.", skip=("consumer",))
_wrong("read-after-release", "A released pair is gone.", also={"read": ("RELEASED",)})


def _known_by_its_differences(id):
    @exercise.recognise(id)
    def fits(trials):
        found = [(h, got) for t in trials for o in t.transcript if o.asked == NAME and isinstance(o.value, list)
                 for h, got in o.value]
        names = causes(found) if found and not any(t.unread for t in trials) else {None}
        return None not in names and len(names) <= 3 and id in names


for _id in exercise.wrong_ids:
    _known_by_its_differences(_id)
