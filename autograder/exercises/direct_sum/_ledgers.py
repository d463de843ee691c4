"""What the three ledgers share: an oracle that counts a real layer, and mistakes that are known by their numbers."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from ... import expect
from ...exercise import VALUES, Exercise, Trial
from ...worker.ranks import Watch

ROLES = ("q", "k", "v", "o")
Alternatives = Mapping[str, set]


def layer(d_model: int, num_heads: int, d_qk: int, d_v: int, bias: bool) -> nn.ModuleDict:
    """The four maps, without data."""
    qk, v = num_heads * d_qk, num_heads * d_v
    with torch.device("meta"):
        return nn.ModuleDict({role: nn.Linear(reads, writes, bias=bias) for role, (reads, writes) in dict(
            q=(d_model, qk), k=(d_model, qk), v=(d_model, v), o=(v, d_model)).items()})


def counted_macs(batch, q_len, k_len, d_model, num_heads, d_qk, d_v) -> dict[str, int]:
    """Products of a call on tensors without data, read from the contractions that were dispatched."""
    maps = layer(d_model, num_heads, d_qk, d_v, bias=False)
    target, source = (torch.empty(batch, n, d_model, device="meta") for n in (q_len, k_len))
    ledger, seen = {}, {}

    def run(name, function):
        with Watch() as watch:
            seen[name] = function()
        ledger[name] = sum(rows * inner * columns for rows, inner, columns in watch.contractions)
    for role, rows in (("q", target), ("k", source), ("v", source)):
        run(role, lambda r=role, x=rows: maps[r](x).unflatten(-1, (num_heads, -1)).transpose(1, 2))
    run("scores", lambda: seen["q"] @ seen["k"].mT)
    run("values", lambda: seen["scores"] @ seen["v"])
    run("o", lambda: maps["o"](seen["values"].transpose(1, 2).flatten(2)))
    return ledger | {"total": sum(ledger.values())}


def check(lab, name: str, args: tuple, want: dict[str, int], unit: str, how: Mapping[str, str]) -> None:
    """Key by key, with the product that the contract counts."""
    got = lab.call(name, *args)
    expect.true(isinstance(got, dict), f"the ledger is a {type(got).__name__}, expected a dict")
    missing, extra = [k for k in want if k not in got], [k for k in got if k not in want]
    expect.true(not missing, f"the ledger has no {', '.join(missing)}")
    expect.true(not extra, f"the ledger has {', '.join(map(str, extra))}, which the contract does not know")
    wrong = [k for k in want if not number(got[k]) or got[k] != want[k]]
    if wrong:
        first = wrong[0]
        held = f"{got[first]:,}" if number(got[first]) else repr(got[first])[:60]
        others = f"; also wrong: {', '.join(wrong[1:])}" if wrong[1:] else ""
        raise expect.Mismatch(f"{name}{args}: {first} is {held} {unit}, expected {want[first]:,}"
                              f"{' = ' + how[first] if first in how else ''}{others}")


def number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and abs(value) < 1e30


def answers(trials: Iterable[Trial], probes: Mapping[Callable, tuple]) -> list[tuple[tuple, object]] | None:
    """(arguments, answer) of every case about values; None when one ended in an error."""
    found = []
    for trial in trials:
        if trial.case.kind == VALUES and trial.case.probe in probes:
            if not trial.transcript or trial.transcript[-1].error:
                return None
            found.append((probes[trial.case.probe], trial.transcript[-1].value))
    return found


def by_numbers(exercise: Exercise, id: str, probes: Mapping[Callable, tuple], right: Callable[..., dict],
               alternatives: Callable[..., Alternatives]) -> None:
    """Recognises a ledger that has, for every key, the right number or the one that this mistake makes.

    `alternatives(*args)` gives the numbers of the mistake for the keys that it changes; None stands for a key that is
    left out. The mistake must show in every case where it can.
    """
    @exercise.recognise(id)
    def fits(trials):
        seen = answers(trials, probes)
        if not seen or not all(isinstance(got, dict) for _, got in seen):
            return False
        shown = False
        for args, got in seen:
            want, other = right(*args), alternatives(*args)
            changed = False
            for key in want:
                value = got.get(key)
                if value is not None and not number(value):
                    return False
                if value == want[key] or (key not in other and key in SUMS):
                    continue
                if key not in other or value not in other[key]:
                    return False
                changed = True
            possible = all(want[key] not in numbers for key, numbers in other.items())
            if possible and not changed:
                return False
            shown |= changed
        return shown


SUMS = ("weights", "biases", "total")
