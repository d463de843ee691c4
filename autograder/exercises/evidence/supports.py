"""Which experiment carries which claim."""
from collections.abc import Iterable

from ... import expect
from ...exercise import CONTRACT, Exercise, Trial
from ...lab import Mismatch

exercise = Exercise(
    "supports", step=8, points=3, minutes=6, difficulty=3, importance=5, tensor=False,
    summary="Decide whether an experiment carries a claim about a head, and say why or why not.",
    hints=(
        "For each kind of experiment ask what it changed: nothing, a gate by a hair, a gate for good, weights, shapes.",
        "Go through the claims. Which three need more than any single experiment on one checkpoint? Which kind speaks "
        "of another model altogether?",
        "Seven pairs are carried. For those, look whether everything that a reader needs is written down (a head "
        "number of 0 is), and for speed, whether a shape changed.",
    ),
    hides="a table that refuses everything passes a test of overclaims only; one that accepts its own kind passes a "
          "test of honest claims only; layer 0 and head 0 hide a test for truth in place of None.",
)
CARRIED = {"map": "pattern", "probe": "decodable", "gradient": "local_dependence", "ablation": "removal_effect",
           "sparse_gate": "recoverability", "prune_retrain": "recoverability", "profile": "speedup"}
KINDS = (*CARRIED, "small_model")
CLAIMS = ("pattern", "decodable", "local_dependence", "removal_effect", "recoverability", "causal_necessity",
          "universal_ratio", "speedup", "stable_index")
FIELDS = ("checkpoint", "layer", "head", "inputs", "dropout", "effect", "retrained")
WHY = {
    "causal_necessity": "other heads may stand in for it, now or after training",
    "universal_ratio": "a ratio was measured on one model and one task",
    "stable_index": "a head index is a storage coordinate, and another order is the same layer",
    "pattern": "no weights were looked at", "decodable": "nothing was decoded",
    "local_dependence": "no slope was measured", "removal_effect": "no head was removed from this checkpoint as it is",
    "recoverability": "no weights of this checkpoint were trained after a removal",
    "speedup": "nothing was timed",
}


def record(kind, **changed):
    """A record in which everything is written down. Layer and head are 0, which is not nothing."""
    trained = kind in ("sparse_gate", "prune_retrain", "small_model")
    return {"kind": kind, "checkpoint": "toy-lm seed 3", "layer": 0, "head": 0, "inputs": "512 repeated sequences",
            "dropout": "pre", "effect": "loss +0.4", "retrained": trained,
            "shapes_changed": kind in ("prune_retrain", "small_model", "profile")} | changed


def _asked(lab, pairs):
    """All answers first: the transcript then shows every overclaim at once."""
    return [(evidence, claim, lab.call("supports", evidence, claim)) for evidence, claim in pairs]


def _answer(evidence, claim, got):
    good = (isinstance(got, (tuple, list)) and len(got) == 2 and isinstance(got[0], bool) and isinstance(got[1], str)
            and got[1].strip())
    expect.true(bool(good), f"supports({evidence['kind']}, {claim}) is {got!r:.80}, expected (True or False, a reason)")
    return got[0]


def _refused(answers: Iterable) -> None:
    for evidence, claim, got in answers:
        if _answer(evidence, claim, got):
            kind = evidence["kind"]
            raise Mismatch(f"you let \"{kind}\" carry \"{claim}\": {WHY[claim]}" + (
                "; another model was trained" if kind == "small_model" else ""))


@exercise.case("what each kind of experiment carries")
def carried(lab):
    for evidence, claim, got in _asked(lab, [(record(kind), claim) for kind, claim in CARRIED.items()]):
        yes = _answer(evidence, claim, got)
        expect.true(yes, f"you refuse \"{claim}\" from \"{evidence['kind']}\" with everything written down, because: "
                         f"{got[1]}")


def _overclaims(kind):
    pairs = [(record(kind), claim) for claim in CLAIMS if CARRIED.get(kind) != claim]

    @exercise.case(f"what \"{kind}\" does not carry")
    def probe(lab):
        _refused(_asked(lab, pairs))
    return probe, pairs


OVERCLAIMS = dict(map(_overclaims, KINDS))


@exercise.case("a profile of a masked layer is no speed of a smaller one")
def masked_profile(lab):
    [(evidence, claim, got)] = _asked(lab, [(record("profile", shapes_changed=False), "speedup")])
    expect.true(not _answer(evidence, claim, got), "you let a profile carry \"speedup\" though no shape changed")


@exercise.case("nothing may be left out of the record", CONTRACT)
def tuple_asked(lab):
    for kind, claim in CARRIED.items():
        name = FIELDS[list(CARRIED).index(kind)]
        [(evidence, _, got)] = _asked(lab, [(record(kind, **{name: None}), claim)])
        expect.true(not _answer(evidence, claim, got), f"you let \"{kind}\" carry \"{claim}\" though its {name} is not "
                                                       "written down (None)")
        expect.true(name in got[1], f"{name} is not written down, and the reason does not say so: \"{got[1]:.80}\"")


@exercise.case("a reason that names all that is missing", CONTRACT)
def all_missing(lab):
    [(evidence, claim, got)] = _asked(lab, [(record("map", **dict.fromkeys(FIELDS)), "pattern")])
    expect.true(not _answer(evidence, claim, got), "you let an empty record carry \"pattern\"")
    unsaid = [name for name in FIELDS if name not in got[1]]
    expect.true(not unsaid, f"{', '.join(unsaid)}: not written down, and the reason does not say so: \"{got[1]:.80}\"")


def _table(evidence, claim, carries, fields=FIELDS, shapes=True):
    if not carries(evidence["kind"], claim):
        return False, f"{evidence['kind']} does not carry {claim}"
    missing = [name for name in fields if evidence[name] is None]
    if missing:
        return False, "not written down: " + ", ".join(missing)
    if shapes and claim == "speedup" and not evidence["shapes_changed"]:
        return False, "no shape changed"
    return True, f"{evidence['kind']} carries {claim} here"


def _right(kind, claim):
    return CARRIED.get(kind) == claim


@exercise.right
def table(evidence, claim):
    return _table(evidence, claim, _right)


@exercise.right
def rules_one_by_one(evidence, claim):
    missing = [n for n in FIELDS if evidence.get(n) is None]
    if missing:
        return (False, f"the record does not say: {missing}")
    if claim in ("causal_necessity", "universal_ratio", "stable_index"):
        return (False, f"no single experiment carries {claim}")
    match evidence["kind"], claim:
        case ("map", "pattern") | ("probe", "decodable") | ("gradient", "local_dependence"):
            return (True, "observed on this checkpoint")
        case ("ablation", "removal_effect") | ("sparse_gate" | "prune_retrain", "recoverability"):
            return (True, "measured under this intervention")
        case ("profile", "speedup"):
            changed = evidence["shapes_changed"]
            return (bool(changed), "the shapes changed" if changed else "a mask leaves every product")
    return (False, "another experiment would be needed")


@exercise.right
def pairs_in_a_set(evidence, claim):
    known = {(kind, carried) for kind, carried in CARRIED.items()}
    if (evidence["kind"], claim) not in known:
        return [False, "not carried"]
    for name in ("retrained", "effect", "dropout", "inputs", "head", "layer", "checkpoint"):
        if evidence[name] is None:
            return [False, "missing: " + " ".join(n for n in FIELDS if evidence[n] is None)]
    if claim == "speedup" and evidence["shapes_changed"] is not True:
        return [False, "a mask is no smaller program"]
    return [True, "carried"]


def _too_much(id_, why, *pairs, **more):
    """The right table, and these (kinds, claims) besides."""
    def program(evidence, claim):
        return _table(evidence, claim, lambda k, c: _right(k, c) or any(k in ks and c in cs for ks, cs in pairs),
                      **more)
    program.__doc__, program.__name__ = why, f"{id_.replace('-', '_')}_{len(exercise.wrongs)}"
    exercise.wrong(program, id=id_)


MAP, PROBE, SLOPE, CUT = ("map",), ("probe",), ("gradient",), ("ablation",)
TRAINED, ALL = ("sparse_gate", "prune_retrain"), KINDS
_why = "A map shows that routing occurred."
_too_much("map-is-cause", _why, (MAP, ("causal_necessity",)))
_too_much("map-is-cause", _why, (MAP, ("causal_necessity", "removal_effect", "local_dependence")))
_why = "Decodable is not used."
_too_much("probe-is-use", _why, (PROBE, ("local_dependence", "removal_effect")))
_too_much("probe-is-use", _why, (PROBE, ("causal_necessity",)))
_too_much("probe-is-use", _why, (PROBE, ("removal_effect",)))
_too_much("probe-is-use", _why, (PROBE, ("local_dependence",)))
_why = "A gradient is local; removal is finite."
_too_much("slope-is-removal", _why, (SLOPE, ("removal_effect",)))
_too_much("slope-is-removal", _why, (SLOPE, ("removal_effect", "causal_necessity")))
_why = "Zero-shot removal says nothing about fine-tuning."
_too_much("ablation-is-recovery", _why, (CUT, ("recoverability",)))
_why = "Speed needs changed shapes and a profile."
_too_much("mask-is-speed", _why, (("ablation", "sparse_gate"), ("speedup",)), shapes=False)
_too_much("mask-is-speed", _why, shapes=False)
_too_much("mask-is-speed", _why, (("prune_retrain", "small_model"), ("speedup",)))
_too_much("mask-is-speed", _why, (CUT, ("speedup",)), shapes=False)
_why = "A ratio holds for its model and task."
_too_much("paper-ratio-is-law", _why, (TRAINED, ("universal_ratio",)))
_too_much("paper-ratio-is-law", _why, ((*TRAINED, "ablation"), ("universal_ratio",)))
_too_much("paper-ratio-is-law", _why, (("prune_retrain",), ("universal_ratio",)))
_too_much("paper-ratio-is-law", _why, (ALL, ("universal_ratio",)))
_why = "A head index is a storage coordinate."
_too_much("index-is-identity", _why, (ALL, ("stable_index",)))
_too_much("index-is-identity", _why, (MAP, ("stable_index",)))
_too_much("index-is-identity", _why, (("map", "probe", "ablation"), ("stable_index",)))
_why = "A narrow model trained from scratch is another experiment."
_too_much("small-model-is-redundancy", _why, (("small_model",), ("recoverability",)))
_too_much("small-model-is-redundancy", _why, (("small_model",), ("removal_effect", "recoverability")))
_too_much("small-model-is-redundancy", _why, (("small_model",), ("removal_effect",)))
_why = "An ablation shows what removal does here; whether nothing else could do the job is another question."
_too_much("removal-is-necessity", _why, (CUT, ("causal_necessity",)))
_too_much("removal-is-necessity", _why, ((*TRAINED, "ablation"), ("causal_necessity",)))
_why = "A claim needs the whole record: checkpoint, layer, head, inputs, dropout, effect, retraining."
_too_much("record-not-asked", _why, fields=())
_too_much("record-not-asked", _why, fields=("checkpoint", "layer", "head"))
_too_much("record-not-asked", _why, fields=("checkpoint", "inputs", "retrained"))


@exercise.wrong
def rejects_everything(evidence, claim):
    """Supported claims must be accepted."""
    return False, "nothing is ever certain"


@exercise.wrong(id="rejects-everything")
def refuses_head_0(evidence, claim):
    if not all(evidence[name] for name in ("checkpoint", "layer", "head", "inputs")):
        return False, "not written down: " + ", ".join(n for n in FIELDS if not evidence[n])
    return table(evidence, claim)


def _said_yes(trials: Iterable[Trial]) -> set[tuple[str, str]]:
    """The pairs that were accepted and must not be, read from the transcripts."""
    found = set()
    for trial in trials:
        pairs = OVERCLAIMS.get(trial.case.probe, [])
        for (evidence, claim), seen in zip(pairs, trial.transcript, strict=False):
            if isinstance(seen.value, (tuple, list)) and seen.value and seen.value[0] is True:
                found.add((evidence["kind"], claim))
        if trial.case.probe is masked_profile and not trial.passed and "no shape changed" in trial.message:
            found.add(("profile", "speedup"))
    return found


EXPLAINS = {
    "map-is-cause": lambda kind, claim: kind == "map" and claim in (
        "causal_necessity", "removal_effect", "local_dependence"),
    "probe-is-use": lambda kind, claim: kind == "probe" and claim in (
        "causal_necessity", "removal_effect", "local_dependence"),
    "slope-is-removal": lambda kind, claim: kind == "gradient" and claim in ("removal_effect", "causal_necessity"),
    "ablation-is-recovery": lambda kind, claim: (kind, claim) == ("ablation", "recoverability"),
    "mask-is-speed": lambda kind, claim: claim == "speedup",
    "paper-ratio-is-law": lambda kind, claim: claim == "universal_ratio",
    "index-is-identity": lambda kind, claim: claim == "stable_index",
    "small-model-is-redundancy": lambda kind, claim: kind == "small_model" and claim in (
        "removal_effect", "recoverability"),
    "removal-is-necessity": lambda kind, claim: kind in ("ablation", *TRAINED) and claim == "causal_necessity",
}


def _by_pairs(id_, explains):
    @exercise.recognise(id_)
    def fits(trials):
        return any(explains(kind, claim) for kind, claim in _said_yes(trials))


for _id, _explains in EXPLAINS.items():
    _by_pairs(_id, _explains)


@exercise.recognise("rejects-everything")
def no_claim_is_carried(trials):
    """Every claim that is carried was refused."""
    seen = [o.value for t in trials if t.case.probe is carried for o in t.transcript]
    return len(seen) == len(CARRIED) and all(isinstance(v, (tuple, list)) and v and v[0] is False for v in seen)


@exercise.recognise("record-not-asked")
def accepted_without(trials):
    if any(not t.passed for t in trials if t.case.kind != CONTRACT):
        return False
    return any("not written down (None)" in t.message or "an empty record" in t.message for t in trials)
