"""Whether heads were removed in an order that proves something."""
from __future__ import annotations

from ... import expect
from ...exercise import Exercise
from ...lab import Mismatch

exercise = Exercise(
    "check_pipeline", step=9, points=3, minutes=7, difficulty=4, importance=4, tensor=False,
    summary="Read the log of a removal and name the rules that it breaks.",
    hints=(
        "Go through the log once, from top to bottom. What do you have to remember at a step to judge it?",
        "Two memories are enough: what has ever been done, and what has been done since the last surgery. Which rules "
        "ask which?",
        "A surgery empties the second memory, a fine-tune takes score and test out of it. At the end, what was never "
        "done at all? Two steps may be missing.",
    ),
    hides="a log of one stage hides a stale ranking; a log without fine-tune hides the place of parity; a release that "
          "claims no speed hides a missing profile.",
)
ALL = ("freeze", "gate", "score", "select", "logical-eval", "surgery", "parity", "fine-tune", "test", "profile",
       "release")
READS = {"score": ["calibration"], "select": ["calibration"], "logical-eval": ["validation"], "fine-tune": ["train"],
         "test": ["test"]}
DUE = {"order": "a step is missing or came before the one that it needs",
       "parity": "a fine-tune came before parity was shown",
       "profile": "speed is claimed without a profile after the last surgery",
       "rollback": "the release does not name the checkpoint that was frozen",
       "split": "the test split was read elsewhere, or something else was tested on",
       "stale": "heads were selected by a score from before the last surgery or fine-tune"}


def entry(name, **changed):
    made = {"step": name, "reads": list(READS.get(name, []))}
    if name == "freeze":
        made["artifact"] = "base-7f3"
    if name == "release":
        made |= {"baseline": "base-7f3", "claims": ["quality", "speed"]}
    return made | changed


def log(*names, **changed):
    """A log of these steps; a keyword changes the entries of that step (logical_eval for logical-eval)."""
    return [entry(name, **changed.get(name.replace("-", "_"), {})) for name in names]


def without(*names):
    return [name for name in ALL if name not in names]


STAGE = ("score", "select", "logical-eval", "surgery", "parity")


def oracle(entries):
    """Every rule on its own, by places in the log."""
    names = [e["step"] for e in entries]
    broken = set()

    def last(i, *wanted):
        """The last place before i of one of these steps, or -1."""
        return max((j for j in range(i) if names[j] in wanted), default=-1)
    anywhere = {"gate": "freeze", "score": "gate", "select": "score", "parity": "surgery"}
    staged = {"logical-eval": ("select", ("surgery",)), "surgery": ("logical-eval", ("surgery",)),
              "test": ("parity", ("surgery",)), "release": ("test", ("surgery", "fine-tune"))}
    for i, (name, one) in enumerate(zip(names, entries, strict=True)):
        if name in anywhere and last(i, anywhere[name]) < 0:
            broken.add("order")
        if name in staged:
            needs, wall = staged[name]
            if last(i, needs) < 0 or last(i, needs) < last(i, *wall):
                broken.add("order")
        if any((split == "test") != (name == "test") for split in one["reads"]):
            broken.add("split")
        cut = last(i, "surgery")
        if name == "fine-tune" and last(i, "parity") <= cut:
            broken.add("parity")
        changed = last(i, "surgery", "fine-tune")
        if name == "select" and changed >= 0 and last(i, "score") < changed:
            broken.add("stale")
        if name == "release":
            if "speed" in one.get("claims", []) and last(i, "profile") <= cut:
                broken.add("profile")
            frozen = last(i, "freeze")
            if frozen < 0 or one.get("baseline") != entries[frozen]["artifact"]:
                broken.add("rollback")
    if set(ALL) - {"fine-tune", "profile"} - set(names):
        broken.add("order")
    return sorted(broken)


TWO_STAGES = ["freeze", "gate", *STAGE, "fine-tune", *STAGE, "fine-tune", "test", "profile", "release"]
QUIET = {"release": {"claims": ["quality"]}}
LOGS = {
    "a whole log": log(*ALL),
    "fine-tuning is left out": log(*without("fine-tune")),
    "two stages, each with its own score": log(*TWO_STAGES),
    "no profile, and no claim of speed": log(*without("profile"), **QUIET),
    "gates trained on the training split, two fine-tunes": log(
        *ALL[:8], *ALL[7:], score={"reads": ["train"]}),
    "heads selected on the test split": log(*ALL, select={"reads": ["test"]}),
    "scores from the test split, among others": log(*ALL, score={"reads": ["calibration", "test"]}),
    "a test on the validation split": log(*ALL, test={"reads": ["validation"]}),
    "surgery before the logical mask was evaluated": log(
        "freeze", "gate", "score", "select", "surgery", "logical-eval", "parity", "test", "profile", "release"),
    "selected before it was scored": log(
        "freeze", "gate", "select", "score", "logical-eval", "surgery", "parity", "test", "profile", "release"),
    "frozen after the gates were put in": log("gate", "freeze", *ALL[2:]),
    "released before the test": log(*without("fine-tune", "test", "release"), "release", "test"),
    "no logical evaluation at all": log(*without("logical-eval")),
    "no gate": log(*without("gate")),
    "no freeze": log(*without("freeze")),
    "no score": log(*without("score")),
    "no select": log(*without("select")),
    "no surgery": log(*without("surgery")),
    "no test": log(*without("test")),
    "no release": log(*without("release")),
    "parity was never shown": log(*without("parity", "fine-tune")),
    "fine-tuned, and then parity": log(
        *ALL[:6], "fine-tune", "parity", "test", "profile", "release"),
    "the second stage fine-tuned before its parity": log(
        "freeze", "gate", *STAGE, "fine-tune", *STAGE[:4], "fine-tune", "parity", "test", "profile", "release"),
    "the second stage without parity, then tested": log(
        "freeze", "gate", *STAGE, *STAGE[:4], "test", "profile", "release"),
    "the second stage on the first ranking": log(
        "freeze", "gate", *STAGE, *STAGE[1:], "test", "profile", "release"),
    "selected again after a fine-tune, on the old ranking": log(
        "freeze", "gate", *STAGE, "score", "fine-tune", *STAGE[1:], "test", "profile", "release"),
    "the second stage without its own mask evaluation": log(
        "freeze", "gate", *STAGE, "score", "select", "surgery", "parity", "test", "profile", "release"),
    "fine-tuned after the test": log(*without("fine-tune", "release"), "fine-tune", "release"),
    "the profile is missing": log(*without("profile")),
    "the profile is older than the last surgery": log(
        "freeze", "gate", *STAGE, "profile", *STAGE, "test", "release"),
    "a release without a baseline": log(*ALL, release={"baseline": None}),
    "a release that names another checkpoint": log(*ALL, release={"baseline": "pruned-01"}),
    "a release whose baseline is not said": [e if e["step"] != "release" else {"step": "release", "reads": [],
                                             "claims": ["quality"]} for e in log(*ALL)],
    "everything at once": log(
        "select", "score", "surgery", "fine-tune", "select", "release", select={"reads": ["test"]},
        release={"baseline": "", "claims": ["speed"]}),
    "an empty log": [],
}
WANTED = {title: oracle(entries) for title, entries in LOGS.items()}


def _case(title, entries):
    want = WANTED[title]

    @exercise.case(title)
    def probe(lab):
        got = lab.call("check_pipeline", entries)
        good = isinstance(got, (list, tuple)) and all(isinstance(code, str) for code in got)
        expect.true(good, f"the result is {got!r:.80}, expected a list of codes")
        unknown = [code for code in got if code not in DUE]
        expect.true(not unknown, f"{unknown[:1]} is no code; the codes are {', '.join(DUE)}")
        steps = " ".join(e["step"] for e in entries)
        for code in want:
            if code not in got:
                raise Mismatch(f"you did not report \"{code}\": {DUE[code]}. The log: {steps}")
        for code in got:
            if code not in want:
                raise Mismatch(f"you report \"{code}\", and this log does not break that rule. The log: {steps}")
        expect.true(list(got) == want, f"the codes are {list(got)}, expected each once and sorted: {want}")
    return probe


PROBES = {_case(title, entries): WANTED[title] for title, entries in LOGS.items()}


@exercise.right
def by_places_in_the_log(log):
    return oracle(log)


@exercise.right
def state_machine(log):
    return _run(log)


def _run(log, skip=(), stage_walls=True, tuning_required=False, sets_only=False):
    """One pass with two memories; the options are faults."""
    ever, fresh, broken, frozen = set(), set(), set(), None
    needs = {"gate": (ever, "freeze"), "score": (ever, "gate"), "select": (ever, "score"), "parity": (ever, "surgery"),
             "logical-eval": (fresh, "select"), "surgery": (fresh, "logical-eval"), "test": (fresh, "parity"),
             "release": (fresh, "test")}
    for one in log:
        name = one["step"]
        if name in needs and not sets_only:
            memory, need = needs[name]
            if need not in (memory if stage_walls else ever):
                broken.add("order")
        if [s for s in one["reads"] if (s == "test") is not (name == "test")]:
            broken.add("split")
        if name == "fine-tune" and "parity" not in fresh:
            broken.add("parity")
        if name == "select" and "score" not in fresh and ("surgery" in ever or "fine-tune" in ever):
            broken.add("stale")
        if name == "release":
            if "speed" in (one.get("claims") or []) and "profile" not in fresh:
                broken.add("profile")
            if frozen is None or one.get("baseline") != frozen:
                broken.add("rollback")
        if name == "freeze":
            frozen = one["artifact"]
        elif name == "surgery":
            fresh.clear()
        elif name == "fine-tune":
            fresh -= {"score", "test"}
        ever.add(name)
        fresh.add(name)
    optional = {"profile"} if tuning_required else {"fine-tune", "profile"}
    if not ever >= set(ALL) - optional:
        broken.add("order")
    return sorted(broken - set(skip))


def _forgets(id_, why, name, program):
    program.__doc__, program.__name__ = why, name
    exercise.wrong(program, id=id_)


_why = "Heads were chosen on the test split."
_forgets("test-selects", _why, "split_not_checked", lambda log: _run(log, skip=("split",)))


@exercise.wrong(id="test-selects")
def only_the_test_step_is_checked(log):
    tested = [{**e, "reads": e["reads"] if e["step"] == "test" else []} for e in log]
    return _run(tested)


@exercise.wrong(id="test-selects")
def any_other_split_beside_it(log):
    kept = [{**e, "reads": [s for s in e["reads"] if s != "test"] if e["step"] != "test" and len(e["reads"]) > 1
             else e["reads"]} for e in log]
    return _run(kept)


_why = "A set of steps is not a sequence."
_forgets("order-ignored", _why, "only_what_is_missing", lambda log: _run(log, sets_only=True))
_forgets("order-ignored", _why, "order_not_checked", lambda log: _run(log, skip=("order",)))
_forgets("order-ignored", _why, "across_surgeries", lambda log: _run(log, stage_walls=False))
_why = "Parity comes before fine-tuning."
_forgets("parity-after-tuning", _why, "parity_not_checked", lambda log: _run(log, skip=("parity",)))


@exercise.wrong(id="parity-after-tuning")
def parity_anywhere(log):
    found = set(_run(log))
    names = [e["step"] for e in log]
    if "parity" in names:
        found.discard("parity")
    return sorted(found)


@exercise.wrong(id="parity-after-tuning")
def parity_of_any_stage(log):
    found = set(_run(log)) - {"parity"}
    seen = set()
    for one in log:
        if one["step"] == "fine-tune" and "parity" not in seen:
            found.add("parity")
        seen.add(one["step"])
    return sorted(found)


_why = "Re-score after each removal stage."
_forgets("stale-ranking", _why, "stale_not_checked", lambda log: _run(log, skip=("stale",)))


@exercise.wrong(id="stale-ranking")
def only_after_surgery(log):
    found = set(_run(log)) - {"stale"}
    fresh = cut = False
    for one in log:
        if one["step"] == "select" and cut and not fresh:
            found.add("stale")
        cut = cut or one["step"] == "surgery"
        fresh = one["step"] == "score" or fresh and one["step"] != "surgery"
    return sorted(found)


_why = "A speed claim without a profile."
_forgets("profile-skipped", _why, "profile_not_checked", lambda log: _run(log, skip=("profile",)))


@exercise.wrong(id="profile-skipped")
def any_profile_will_do(log):
    found = set(_run(log))
    if any(e["step"] == "profile" for e in log):
        found.discard("profile")
    return sorted(found)


_why = "Release names its baseline, the checkpoint that was frozen."
_forgets("no-rollback", _why, "rollback_not_checked", lambda log: _run(log, skip=("rollback",)))


@exercise.wrong(id="no-rollback")
def any_baseline_will_do(log):
    found = set(_run(log)) - {"rollback"}
    if any(e["step"] == "release" and not e.get("baseline") for e in log):
        found.add("rollback")
    return sorted(found)


_why = "Fine-tuning is optional."
_forgets("tuning-required", _why, "missing_fine_tune", lambda log: _run(log, tuning_required=True))


@exercise.wrong
def profile_required(log):
    """A profile is owed only where the release claims speed."""
    found = set(_run(log))
    if not any(e["step"] == "profile" for e in log):
        found.add("order")
    return sorted(found)


@exercise.wrong
def codes_unsorted(log):
    """Codes come sorted, each once."""
    found = sorted(_run(log), reverse=True)
    return found + found[:1]


@exercise.wrong(id="codes-unsorted")
def in_the_order_of_rules(log):
    found = _run(log)
    return [code for code in ("split", "order", "stale", "parity", "profile", "rollback") if code in found]


def _answers(trials):
    """(codes due, codes given) of every log that was answered with a list."""
    for trial in trials:
        if trial.transcript and isinstance(trial.transcript[-1].value, (list, tuple)):
            yield set(PROBES[trial.case.probe]), {c for c in trial.transcript[-1].value if isinstance(c, str)}


def _one_rule(id_, code):
    @exercise.recognise(id_)
    def fits(trials):
        """The rule is never reported where it is due, or only sometimes, and never where it is not."""
        seen = [(code in due, code in given) for due, given in _answers(trials)]
        return bool(seen) and any(due and not given for due, given in seen) and not any(
            given and not due for due, given in seen)


for _id, _code in (("test-selects", "split"), ("order-ignored", "order"), ("parity-after-tuning", "parity"),
                   ("stale-ranking", "stale"), ("profile-skipped", "profile"), ("no-rollback", "rollback")):
    _one_rule(_id, _code)
