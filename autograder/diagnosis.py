"""From failing cases to a named cause. Never a guess: no name is given that the transcripts do not carry."""
from __future__ import annotations

import torch

from .exercise import CONTRACT, VALUES, Exercise, Observation, Program, Trial, same, same_transcript
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
    found, shown = _replay(exercise, trials)
    if found:
        return _diagnosis([(p.id, p.why) for p in found], shown)
    if exercise.tensor and (ids := _shared_by_pattern(trials)):
        return _diagnosis([(i, SHARED[i]) for i in ids], failing[0])
    return None


def _replay(exercise: Exercise, trials: list[Trial]) -> tuple[list[Program], Trial | None]:
    failing = [t for t in trials if not t.passed]
    kinds = [VALUES] if any(t.case.kind == VALUES for t in failing) else [CONTRACT]
    fits: list[tuple[int, Program]] = []
    for program in exercise.wrongs:
        known = exercise.try_program(program)
        pairs = list(zip(trials, known, strict=True))
        decisive = [(a, b) for a, b in pairs if a.case.kind in kinds]
        if kinds == [VALUES]:
            if not all(_agree(a, b) for a, b in decisive):
                continue
        elif any(not b.passed for a, b in pairs if a.case.kind == VALUES):
            continue
        explained = sum(_agree(a, b) for a, b in pairs if not a.passed)
        contradicted = sum(a.passed and not b.passed for a, b in pairs)
        if explained and (kinds == [VALUES] or not contradicted):
            fits.append((explained - contradicted, program))
    if not fits:
        return [], None
    best = max(score for score, _ in fits)
    found = [p for score, p in fits if score == best]
    if len(found) > MOST_NAMES:
        return [], None
    shown = next(t for t, known in zip(trials, exercise.try_program(found[0]), strict=True)
                 if not t.passed and _agree(t, known))
    return found, shown


def _agree(a: Trial, b: Trial) -> bool:
    if a.passed or b.passed:
        return a.passed and b.passed
    return same_transcript(a.transcript, b.transcript)


def _shared_by_fact(exercise: Exercise, trials: list[Trial]) -> list[str]:
    if not exercise.tensor:
        return []
    failing = [t for t in trials if not t.passed]
    if any(t.mutated for t in trials) or any("in-place operation" in t.message for t in failing):
        return ["mutates-input"]
    values = [t for t in trials if t.case.kind == VALUES]
    answers = [o.value for t in values for o in t.transcript if _tensors(o.value) and not o.asked == "backward"]
    zeros = answers and all(not t.is_complex() and not t.any() for v in answers for t in _tensors(v))
    if zeros and all(not t.passed for t in values if any(_tensors(o.value) for o in t.transcript)):
        return ["shape-only-stub"]
    return []


def _shared_by_pattern(trials: list[Trial]) -> list[str]:
    failing = [t for t in trials if not t.passed]
    cut = [t for t in failing if any(o.asked == "backward" and not o.value[0] for o in t.transcript)]
    if cut and len(cut) == sum(t.case.kind == VALUES for t in failing):
        return ["detaches-graph"]
    if all("is float32, expected" in t.message for t in failing):
        return ["casts-to-float32"]
    values = [t for t in trials if t.case.kind == VALUES and t.signature]
    if values:
        first = values[0].signature
        here = [t for t in values if t.signature == first]
        there = [t for t in values if t.signature != first]
        if there and all(t.passed for t in here) and all(not t.passed and _size_fault(t) for t in there):
            return ["hard-codes-sizes"]
    return []


def _size_fault(trial: Trial) -> bool:
    last = trial.transcript[-1] if trial.transcript else Observation("")
    return last.error in ("RuntimeError", "ValueError", "IndexError", "EinopsError") or "has shape" in trial.message


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(v)]
    return []


def _diagnosis(named: list[tuple[str, str]], shown: Trial) -> Diagnosis:
    title = " or ".join(i.replace("-", " ") for i, _ in named)
    explanation = " Or: ".join(why for _, why in named)
    return Diagnosis([i for i, _ in named], title, explanation, shown.message)


__all__ = ["SHARED", "diagnose", "same"]
