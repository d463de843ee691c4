"""What rounds of a program beside a reference say: pass or fail where the control leaves no doubt, or neither."""
from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

WIDEST_BAND = 2.0  # a control that differs from itself by more says nothing
OTHERS_TURN = 0.05  # how much of the reference's turns a program may be at work
PASS, FAIL, INCONCLUSIVE, NOT_MEASURED = "pass", "fail", "inconclusive", "not_measured"


@dataclass(frozen=True)
class Verdict:
    """`ratio`: the program's CPU time over the reference's, medians of pairs, carrying off; `band`: the reference over
    itself; `wall_ratio`, `wall_band`: the same by the parent's clock. `cores`: CPU time over wall time of the program.
    """

    verdict: str
    limit: float
    reason: str = ""
    ratio: float | None = None
    band: tuple[float, float] | None = None
    wall_ratio: float | None = None
    wall_band: tuple[float, float] | None = None
    cores: float | None = None
    rounds: int = 0
    attempts: int = 0
    device: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        whole = asdict(self)
        return {k: [round(x, 3) for x in v] if isinstance(v, tuple) else round(v, 3) if isinstance(v, float) else v
                for k, v in whole.items()}


@dataclass(frozen=True)
class Spent:
    """Seconds of one turn: by the parent's clock, and of CPU time."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Round:
    """What one pair took: the program, the reference before and after it, and a turn without any program."""

    program: Spent
    before: Spent
    after: Spent
    empty: Spent
    meanwhile: float  # CPU seconds that the program's worker spent in the reference's turns


def conclude(limit: float, rounds: Sequence[Round], attempts: int = 1) -> Verdict:
    """What these rounds say. Pass and fail only where the control leaves no doubt."""
    cpu, band = _ratio(rounds, "cpu")
    wall, wall_band = _ratio(rounds, "wall")
    spread, wall_spread = _spread(band), _spread(wall_band)
    busy = meanwhile(rounds)
    if busy > OTHERS_TURN:
        found, why = INCONCLUSIVE, (f"the program was at work for {busy:.0%} of the time that was the "
                                    "reference's: a turn ends when its answers are given")
    elif spread > WIDEST_BAND:
        found, why = INCONCLUSIVE, "the reference differed from itself too much: this machine is too busy now"
    elif cpu * spread <= limit:
        slow = wall / wall_spread > limit
        found = INCONCLUSIVE if slow else PASS
        why = "its CPU time is within the limit and its waiting time is not" if slow else ""
    elif cpu / spread > limit:
        quick = wall * wall_spread <= limit
        found = INCONCLUSIVE if quick else FAIL
        why = "its CPU time is beyond the limit and its waiting time is not" if quick else ""
    else:
        found, why = INCONCLUSIVE, (f"{cpu:.2f} is too near the limit of {limit:g}: the reference differed from itself "
                                    f"by a factor of up to {spread:.2f}")
    cores = sum(r.program.cpu for r in rounds) / sum(r.program.wall for r in rounds)
    return Verdict(found, limit, why, cpu, band, wall, wall_band, cores, len(rounds), attempts)


def meanwhile(rounds: Sequence[Round]) -> float:
    """How much of the reference's turns the program was at work."""
    return sum(r.meanwhile for r in rounds) / sum(r.before.wall + r.after.wall for r in rounds)


def clear(limit: float, rounds: Sequence[Round]) -> bool:
    """Whether every single round is on one side of the limit by a factor of two."""
    ratios = [_net(r.program, r.empty.cpu) / _net(r.before, r.empty.cpu) for r in rounds]
    return max(ratios) < limit / 2 or min(ratios) > limit * 2


def _net(spent: Spent, empty: float, clock: str = "cpu") -> float:
    return max(getattr(spent, clock) - empty, 1e-9)


def _ratio(rounds: Sequence[Round], clock: str) -> tuple[float, tuple[float, float]]:
    """(the program over the reference, the control's band), carrying taken off."""
    empty = statistics.median(getattr(r.empty, clock) for r in rounds)
    net = [[_net(spent, empty, clock) for spent in (r.program, r.before, r.after)] for r in rounds]
    ratio = statistics.median(2 * program / (before + after) for program, before, after in net)
    control = sorted(before / after for _, before, after in net)
    skip = len(control) // 5
    return ratio, (control[skip], control[-1 - skip])


def _spread(band: tuple[float, float]) -> float:
    return max(band[1], 1 / band[0], 1.0)
