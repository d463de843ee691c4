"""A learner's class, driven by sequences of method calls beside a model of what it has to do.

A model is a class of the grader with the same methods and attributes. Its methods raise `Refusal(word)` where the
contract refuses a call. What the two do is compared step by step; a difference is reduced to the shortest sequence of
calls that shows it.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .exercise import same
from .lab import Lab, Observation

ANYTHING = object()  # an attribute of a model about which the contract says nothing
Step = tuple[str, tuple]
History = Sequence[Step]


class Refusal(Exception):
    """A call that the contract refuses. `words` must all be in the text of the error, in any case."""

    def __init__(self, *words: str):
        super().__init__(*words)
        self.words = words


@dataclass(frozen=True)
class Outcome:
    """What one step did: `refused` are the words of a refusal, None where it went through."""

    value: Any = None
    refused: tuple[str, ...] | None = None
    after: tuple = ()


@dataclass(frozen=True)
class Difference:
    """The first step of a history at which a program and the model part. `before` is the model's state there.

    `got` is an Outcome, or the described error where it was another error, or one with other words.
    """

    history: History
    before: tuple
    want: Outcome
    got: Outcome | dict

    @property
    def step(self) -> Step:
        return self.history[-1]


def modelled(make: Callable[[], Any], history: History, reads: Sequence[str]) -> list[Outcome]:
    """What the model does. A step that it refuses leaves it as it was."""
    model, outcomes = make(), []
    for name, args in history:
        try:
            outcome = {"value": getattr(model, name)(*args)}
        except Refusal as refusal:
            outcome = {"refused": refusal.words}
        outcomes.append(Outcome(after=_state(model, reads), **outcome))
    return outcomes


def differences(lab: Lab, name: str, make: Callable[[], Any], histories: Sequence[History],
                reads: Sequence[str]) -> list[Difference]:
    """The first difference of each history that has one, shortest histories first."""
    found, start = [], _state(make(), reads)
    for history, outcomes in zip(histories, _play(lab, name, histories, reads), strict=True):
        wanted = modelled(make, history, reads)
        for i, (want, raw) in enumerate(zip(wanted, outcomes, strict=True)):
            got = _outcome(raw, want)
            if not _alike(got, want):
                found.append(Difference(tuple(history[:i + 1]), wanted[i - 1].after if i else start, want, got))
                break
    found.sort(key=lambda d: len(d.history))
    lab.transcript.append(Observation(name, value=[[list(map(list, d.history)), _plain(d.got)] for d in found]))
    return found


def shortest(lab: Lab, name: str, make: Callable[[], Any], difference: Difference, reads: Sequence[str]) -> Difference:
    """The same difference with every call left out that it does not need."""
    best = difference
    smaller = True
    while smaller:
        smaller = False
        tries = [best.history[:i] + best.history[i + 1:] for i in range(len(best.history) - 1)]
        transcript = lab.transcript
        lab.transcript = []
        for shorter in differences(lab, name, make, tries, reads) if tries else []:
            if len(shorter.history) < len(best.history):
                best, smaller = shorter, True
                break
        lab.transcript = transcript
    return best


def _play(lab, name, histories, reads):
    calls = {id(step): step for history in histories for step in history}
    number = {key: i for i, key in enumerate(calls)}
    body, _ = lab._exchange({"do": "histories", "name": name, "calls": list(map(list, calls.values())),
                             "histories": [[number[id(step)] for step in h] for h in histories], "reads": list(reads)})
    lab._raise_error(body, name)
    for error in (step[1] for history in body["histories"] for step in history if step[1]):
        lab._not_started(error)
    return body["histories"]


def _state(model, reads):
    return tuple(getattr(model, read) for read in reads)


def _outcome(raw, want):
    value, error, *after = raw
    if error is None:
        return Outcome(value, None, tuple(after))
    said = "ValueError" in error["kinds"] and all(w.lower() in error["message"].lower() for w in want.refused or ())
    return Outcome(None, want.refused, tuple(after)) if said and want.refused is not None else error | {"after": after}


def _alike(got, want):
    return (isinstance(got, Outcome) and got.refused == want.refused and same(got.value, want.value)
            and all(b is ANYTHING or same(a, b) for a, b in zip(got.after, want.after, strict=True)))


def _plain(got):
    if isinstance(got, Outcome):
        return ["went through" if got.refused is None else "refused", got.value, list(got.after)]
    return [got["type"], None, list(got["after"])]
