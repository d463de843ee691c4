"""From failing cases to a named cause. Never a guess: no name is given that the transcripts do not carry."""
from __future__ import annotations

import torch

from .exercise import CONTRACT, VALUES, Exercise, Program, Trial, same, same_transcript
from .lab import Record
from .report import Diagnosis

MOST_NAMES = 4

SHARED = {
    "mutates-input": "The caller's tensor was changed in place; the same activation is needed again in the backward "
                     "pass.",
    "detaches-graph": "`.detach()`, `.data` or `no_grad` cut the graph: forward values stay right and the gradient is "
                      "lost.",
    "casts-to-float32": "The result's dtype no longer follows the input.",
    "hard-codes-sizes": "The program knows one fixture's sizes instead of reading them from the tensors.",
    "shape-only-stub": "Zeros of the right shape; a shape is not an answer.",
}


def diagnose(exercise: Exercise, trials: list[Trial]) -> Diagnosis | None:
    """The known program, or the few that no case tells apart, whose transcripts these are; None if there is none."""
    failing = [t for t in trials if not t.passed]
    if not failing:
        return None
    if ids := _shared_by_fact(exercise, trials):
        return _diagnosis([(i, SHARED[i]) for i in ids], failing[0])
    in_values = any(t.case.kind == VALUES for t in failing)
    known = [exercise.program(i) for i, fits in exercise.recognisers.items() if fits(trials)]
    if known and (in_values or not exercise.replayed):
        return _diagnosis([(p.id, p.why) for p in known], failing[0])
    if not exercise.replayed:
        ids = _shared_by_pattern(trials) if exercise.tensor else []
        return _diagnosis([(i, SHARED[i]) for i in ids], failing[0]) if ids else None
    found, shown = (_by_values if in_values else _by_promises)(_Replay(exercise, trials))
    if known:
        both = {p.id: p.why for p in known + found}
        return _diagnosis([(i, both[i]) for i in exercise.wrong_ids if i in both], failing[0])
    if found:
        return _diagnosis([(p.id, p.why) for p in found], shown)
    if exercise.tensor and (ids := _shared_by_pattern(trials)):
        return _diagnosis([(i, SHARED[i]) for i in ids], failing[0])
    if in_values:
        found, shown = _by_part(_Replay(exercise, trials))
        if found:
            return _diagnosis([(p.id, p.why) for p in found], shown)
    return None


class _Replay:
    """The known wrong programs on the cases of a trial. Each case runs only when a comparison asks for it."""

    def __init__(self, exercise: Exercise, trials: list[Trial]):
        self.trials, self.programs, self._try = trials, exercise.wrongs, exercise.try_case
        order = sorted(range(len(trials)), key=lambda i: trials[i].passed)  # failing cases first: they differ soonest
        self.values = [i for i in order if trials[i].case.kind == VALUES]
        self.promises = [i for i in order if trials[i].case.kind == CONTRACT]

    def passes(self, program: Program, i: int) -> bool:
        return self._try(program, i).passed

    def agrees(self, program: Program, i: int) -> bool:
        """Both pass, or both fail with the same answers."""
        ours, known = self.trials[i], self._try(program, i)
        return ours.passed == known.passed and (ours.passed or same_transcript(ours.transcript, known.transcript))

    def explained(self, program: Program) -> list[int]:
        """The failing cases that this program would fail in the same way."""
        return [i for i in self.values + self.promises if not self.trials[i].passed and self.agrees(program, i)]

    def contradicted(self, program: Program, cases: list[int]) -> int:
        """How many of these cases this program fails although they passed."""
        return sum(self.trials[i].passed and not self.passes(program, i) for i in cases)

    def named(self, fits: list[tuple[list[int], Program]]) -> tuple[list[Program], Trial | None]:
        """One program an id, at most MOST_NAMES, and the first failing case that shows it."""
        unique = {p.id: p for _, p in reversed(fits)}
        if not fits or len(unique) > MOST_NAMES:
            return [], None
        return list(reversed(unique.values())), self.trials[min(fits[0][0])]


def _by_values(replay: _Replay) -> tuple[list[Program], Trial | None]:
    """Programs that give the same answers in every case about values; the promises only decide between several."""
    fits = []
    for program in replay.programs:
        if all(replay.agrees(program, i) for i in replay.values):
            cases = replay.explained(program)
            fits.append((len(cases) - replay.contradicted(program, replay.promises), cases, program))
    best = max((score for score, *_ in fits), default=0)
    return replay.named([(cases, program) for score, cases, program in fits if score == best])


def _by_promises(replay: _Replay) -> tuple[list[Program], Trial | None]:
    """All values are right. Each broken promise may have a cause of its own: several names can be true at once.

    A name needs every promise that its program breaks, broken in the same way.
    """
    fits = []
    for program in replay.programs:
        if all(replay.passes(program, i) for i in replay.values):
            broken = [i for i in replay.promises if not replay.passes(program, i)]
            if all(not replay.trials[i].passed and replay.agrees(program, i) for i in broken):
                fits.append((broken, program))
    return replay.named([(cases, p) for cases, p in fits if not any(set(cases) < set(other) for other, _ in fits)])


def _by_part(replay: _Replay) -> tuple[list[Program], Trial | None]:
    """The one program whose answers, tensors and not mere errors, are met in at least two cases and denied by none.

    This is how a mistake is recognised beside a second, unknown one.
    """
    fits = []
    for program in replay.programs:
        cases = [i for i in replay.values if not replay.trials[i].passed and _tensor_answer(replay.trials[i])
                 and replay.agrees(program, i)]
        if len(cases) >= 2 and not replay.contradicted(program, replay.values):
            fits.append((cases, program))
    best = max((len(cases) for cases, _ in fits), default=0)
    fits = [(cases, program) for cases, program in fits if len(cases) == best]
    return replay.named(fits) if len({p.id for _, p in fits}) == 1 else ([], None)


def _tensor_answer(trial: Trial) -> bool:
    return bool(trial.transcript) and bool(_tensors(trial.transcript[-1].value))


def _shared_by_fact(exercise: Exercise, trials: list[Trial]) -> list[str]:
    if not exercise.tensor:
        return []
    failing = [t for t in trials if not t.passed]
    if any(t.mutated for t in trials) or any("in-place operation" in t.message for t in failing):
        return ["mutates-input"]
    values = [t for t in trials if t.case.kind == VALUES]
    answers = [o.value for t in values for o in t.transcript if _tensors(o.value) and o.asked != "backward"]
    zeros = answers and all(not t.is_complex() and not t.any() for v in answers for t in _tensors(v))
    if zeros and all(not t.passed for t in values if any(_tensors(o.value) for o in t.transcript)):
        return ["shape-only-stub"]
    return []


def _shared_by_pattern(trials: list[Trial]) -> list[str]:
    failing = [t for t in trials if not t.passed]
    if any(_cut(t) for t in failing) and all(_in_backward(t) for t in failing if t.case.kind == VALUES):
        return ["detaches-graph"]
    if all(_float32(t.message) for t in [t for t in failing if t.case.kind == VALUES] or failing):
        return ["casts-to-float32"]
    values = [t for t in trials if t.case.kind == VALUES and t.signature]
    if values:
        here = [t for t in values if t.signature == values[0].signature]
        there = [t for t in values if t.signature != values[0].signature and not t.passed]
        if there and all(t.passed for t in here) and all(map(_size_fault, there)):
            return ["hard-codes-sizes"]
    return []


def _cut(trial: Trial) -> bool:
    """The forward values were right, and no gradient came back for something that needs one."""
    return _in_backward(trial) and trial.message.startswith("no gradient reaches")


def _in_backward(trial: Trial) -> bool:
    return bool(trial.transcript) and trial.transcript[-1].asked == "backward"


def _float32(message: str) -> bool:
    mixed = "dtype" in message or "scalar type" in message
    return "is float32, expected" in message or mixed and "loat" in message and "ouble" in message


def _size_fault(trial: Trial) -> bool:
    error = trial.transcript[-1].error if trial.transcript else None
    kinds = ("RuntimeError", "ValueError", "IndexError", "AssertionError", "EinopsError")
    return bool(error) and error.split(":")[0] in kinds or "has shape" in trial.message


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v)]
    if isinstance(value, (dict, Record)):
        return [t for v in (value._fields if isinstance(value, Record) else value).values() for t in _tensors(v)]
    return []


def _diagnosis(named: list[tuple[str, str]], shown: Trial) -> Diagnosis:
    title = " or ".join(i.replace("-", " ") for i, _ in named)
    explanation = " Or: ".join(why for _, why in named)
    return Diagnosis([i for i, _ in named], title, explanation, shown.message)


__all__ = ["SHARED", "diagnose", "same"]
