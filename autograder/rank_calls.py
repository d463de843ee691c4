"""One call on every rank of a process group, as a case sees it. The ranks run in worker/ranks.py."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .wording import error_kind, error_line


@dataclass
class Rank:
    """What one rank did: its value, the collectives it called, and its contractions as [rows, inner, columns]."""

    value: Any
    collectives: dict[str, int] = field(default_factory=dict)
    contractions: list[list[int]] = field(default_factory=list)
    error: dict | None = None
    timeout: str = ""


def call(lab, name: str, args: tuple, world: int, seconds: float) -> list[Rank]:
    """The ranks in order, entered into the transcript; Mismatch if one raises, ends or never ends."""
    from . import lab as labs
    ranks = _ask(lab, name, args, world, seconds)
    failed = min((r for r in ranks if r.error), key=lambda r: "gloo" in r.error["message"], default=None)
    late = [i for i, r in enumerate(ranks) if r.timeout]
    kind = error_kind(failed.error) if failed else "Waiting" if late else None
    lab.transcript.append(labs.Observation(f"{name} on {world} ranks", error=kind, value=[
        [r.value, r.collectives, r.contractions] for r in ranks]))
    if failed:
        raise labs.Mismatch(f"rank {ranks.index(failed)} of {world}: {name} raised {error_line(failed.error)}")
    if late:
        if all(ranks[i].timeout == "joining" for i in late):
            raise labs.Gone("the ranks could not form a process group in time on this machine", "timeout")
        done = [i for i in range(world) if i not in late]
        others = f" for a collective that {_named(done)} never called" if done else ""
        raise labs.Mismatch(f"{_named(late)} of {world} still waited{others} after {seconds:g} s")
    return ranks


def refused(lab, error: type[Exception], word: str, name: str, args: tuple, world: int) -> None:
    """Mismatch unless every rank raises `error` with `word` in its text."""
    ranks = _ask(lab, name, args, world, 8.0)
    for number, rank in enumerate(ranks):
        spelled = f"{name} on {world} ranks: rank {number}"
        if rank.timeout:
            from . import lab as labs
            lab.transcript.append(labs.Observation(spelled, error="Waiting"))
            raise labs.Mismatch(f"{spelled} waited for the others; the contract refuses the call with "
                                f"{error.__name__} (\"{word}\")")
        lab._refused(({"error": rank.error} if rank.error else {"value": rank.value}, None), error, word, spelled)


def _ask(lab, name, args, world, seconds) -> list[Rank]:
    body, _ = lab._exchange({"do": "ranks", "name": name, "args": list(args), "kwargs": {}, "world": world,
                             "seconds": seconds})
    lab._raise_error(body, name)
    if lab.signature is None:
        from .lab import sizes_of
        lab.signature = (*sizes_of(args, {}), world)
    ranks = [Rank(r.get("value"), r["collectives"], r["contractions"], r.get("error"), r.get("timeout", ""))
             for r in body["ranks"]]
    for rank in ranks:
        if rank.error:
            lab._not_started(rank.error)
    if any(r["mutated"] for r in body["ranks"]):
        lab.mutated.append(name)
    return ranks


def _named(numbers):
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"
