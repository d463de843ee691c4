"""The judge of timed exercises: a program beside a reference, turn by turn. It never fails a program by mistake.

The reference runs in a worker of its own, where no learner code ever was. Both are pinned to one core and take turns:
reference, program, reference. The clocks stand in this process, around the whole turn, until every answer is here in
full: how long it took, and how much CPU time the kernel charged to all that the worker had started. The load of others
makes the first longer and not the second, threads and helpers make the first shorter and not the second: the second
decides, the first may object. Every answer under the clock is compared with the reference's own.

The two turns of the reference are the control: what they differ by, nobody's program can be blamed for. A verdict needs
a distance from the limit that is larger; else the answer is "inconclusive", it is tried again, and then left to a
person.
"""
from __future__ import annotations

import ast
import contextlib
import inspect
import os
import random
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import cpu_clock
from .exercise import Exercise, Timing
from .lab import Gone, Lab, NotStarted, in_worker
from .report import CaseResult, Report
from .sandbox import Limits, Sandbox
from .verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_MEASURED,
    OTHERS_TURN,
    PASS,
    Round,
    Spent,
    Verdict,
    clear,
    conclude,
    meanwhile,
)
from .wording import error_line
from .worker import wire

ATTEMPTS, ROUNDS, FEWEST_ROUNDS, SECONDS = 3, 15, 7, 4.0
WARM_UP = 2  # rounds that are judged like all others and not counted
HONEST = 32  # how much further from float64 a program may be than the reference is
ALIGNMENT = 16  # elements: a place in a pool is as well aligned as a tensor of its own
STEADY_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184",
                 "MALLOC_TOP_PAD_": "268435456"}  # memory is kept between turns, so that no turn pays for the kernel's
BY_A_PERSON = ("All values and counts are right; only the time is open. Check again when the machine is quiet; in a "
               "course a teacher decides.")


class WrongUnderTheClock(Exception):
    """An answer of a timed turn is not what the reference answers."""


class Undecided(Exception):
    """Something went wrong that cannot be held against the program."""


class Timer:
    """Times programs. Starts its workers when it is first needed; use close(). walls: as for Sandbox."""

    def __init__(self, walls: str = "auto"):
        self._sandbox = Sandbox(walls, Limits(wall=60, cpu=60), environment=STEADY_MEMORY)

    def close(self) -> None:
        self._sandbox.close()

    def judge(self, exercise: Exercise, files: Mapping[str, bytes]) -> Verdict:
        """Time the program in `files`, which has passed all cases. WrongUnderTheClock, or Gone if it ends."""
        timing = exercise.timing
        if why := unmeasurable(timing):
            return Verdict(NOT_MEASURED, timing.limit, why, device=timing.device)
        with alone(), contextlib.ExitStack() as open_sides:
            try:
                with _reference():
                    module = {f"mha_lab/{exercise.module}.py": module_of(timing)}
                    reference = self._side(open_sides, exercise, module)
                return self._judge(timing, reference, self._side(open_sides, exercise, files))
            except Undecided as why:
                return Verdict(INCONCLUSIVE, timing.limit, str(why))
            except Gone as e:
                if e.kind != "timeout":
                    raise
                return Verdict(INCONCLUSIVE, timing.limit, str(e))  # too slow a program, or too busy a machine

    @staticmethod
    def _judge(timing: Timing, reference: Side, program: Side) -> Verdict:
        pools = _pools(timing)
        for attempt in range(1, ATTEMPTS + 1):
            rounds = _measure(timing, pools, reference, program, _core(attempt))
            verdict = conclude(timing.limit, rounds, attempt)
            if verdict.verdict != INCONCLUSIVE or meanwhile(rounds) > OTHERS_TURN:
                break
        return verdict

    def _side(self, stack: contextlib.ExitStack, exercise: Exercise, files: Mapping[str, bytes]) -> Side:
        self._sandbox.prepare()
        there = cpu_clock.tree(self._sandbox.pid)
        lab = in_worker(self._sandbox, exercise.module, files)
        stack.callback(lab.close)
        new = cpu_clock.tree(self._sandbox.pid) - there
        return Side(lab, exercise.name, _topmost(new))


@contextlib.contextmanager
def _reference() -> Iterator[None]:
    """Whatever goes wrong here is the reference's."""
    try:
        yield
    except (Gone, NotStarted, WrongUnderTheClock) as e:
        raise Undecided(f"the reference did not answer ({e})") from e


class Side:
    """One worker under the clock."""

    def __init__(self, lab: Lab, name: str, pid: int):
        self._lab, self._name, self._pid = lab, name, pid

    def stage(self, pools: Sequence[torch.Tensor], core: int | None) -> None:
        self._decode(self._lab.send(*_packed({"do": "stage", "pools": list(pools), "core": core})))

    def turn(self, asked: Mapping[str, Any], how: str = "take") -> tuple[dict, Spent]:
        """The answer to one turn, and what it took. how: "take", "echo" (no program) or "intact" (its inputs)."""
        frame = _packed({"do": "turn", "how": how, "name": self._name, **asked})
        cpu, start = self.cpu(), time.perf_counter()
        reply = self._lab.send(*frame)
        wall, cpu = time.perf_counter() - start, self.cpu() - cpu
        return self._decode(reply), Spent(wall, cpu)

    def cpu(self) -> float:
        """CPU seconds of the worker and all that it started, so far."""
        return cpu_clock.seconds(self._pid)

    @staticmethod
    def _decode(reply: tuple[bytes, bytes]) -> dict:
        try:
            unpacker = wire.Unpacker(*reply, layouts=False)
            answer = unpacker.unpack(unpacker.body)
            error = answer.get("error")
            line = error and error_line(error)
        except Exception as e:
            raise WrongUnderTheClock(f"an answer could not be read ({type(e).__name__})") from None
        if error:
            raise WrongUnderTheClock(f"the program raised {line}")
        if "gone" in answer or "refused" in answer:
            raise Gone("the program ended under the clock")
        return answer


def enter(report: Report, exercise: Exercise, time_it: Callable[[], Verdict]) -> None:
    """Time a program that passed all cases, and write what came out into its Report.

    Too slow, or wrong under the clock, is failed; what could not be decided here is not_measured, and a person's to do.
    """
    title = f"under the clock: at most {exercise.timing.limit:g} times as slow as the reference"
    status, why = "passed", ""
    try:
        verdict = time_it()
        report.timing = verdict.to_dict()
        if verdict.verdict == FAIL:
            status = "failed"
            why = f"it takes {verdict.ratio:.1f} times as long as the reference; the limit is {verdict.limit:g}"
        elif verdict.verdict != PASS:
            status, why = "not_measured", verdict.reason
            report.note = BY_A_PERSON
    except WrongUnderTheClock as e:
        status, why = "failed", str(e)
    except Gone as e:
        status, why = e.kind, str(e)
    report.cases.append(CaseResult(title, status, why))
    report.status = status
    if status != "passed":
        report.score = 0


def unmeasurable(timing: Timing) -> str:
    """Why this machine cannot time such a program, or ""."""
    if timing.device != "cpu":
        return f"there is no {timing.device} timing on this machine"
    return cpu_clock.unavailable()


def module_of(timing: Timing) -> bytes:
    """The reference as a module of its own."""
    function = ast.parse(textwrap.dedent(inspect.getsource(timing.reference))).body[0]
    function.decorator_list = []
    return f"import math\nimport torch\nfrom torch.nn import functional as F\n\n{ast.unparse(function)}\n".encode()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One timing at a time on a machine, where the system can say so."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl
            lock = stack.enter_context(open(Path(tempfile.gettempdir(), f"mha-timing-{os.getuid()}.lock"), "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _measure(timing: Timing, pools, reference: Side, program: Side, core: int | None) -> list[Round]:
    with _reference():
        reference.stage(pools, core)
    program.stage(pools, core)
    places, bound = random.SystemRandom(), None
    rounds, start = [], time.perf_counter()
    for number in range(-WARM_UP, ROUNDS):
        asked = _ask(timing, pools, places)
        (wanted, before), busy_before = _watched(program, reference, asked)
        answer, spent = program.turn(asked)
        (_, after), busy_after = _watched(program, reference, asked)
        with _reference():
            _, empty = reference.turn(asked, "echo")
        bound = bound or _bound(timing, pools, asked, wanted)
        _compare(answer, wanted, bound)
        if program.turn(asked, "intact")[0].get("intact") is not True:
            raise WrongUnderTheClock("the program changed a tensor that it was given")
        if number >= 0:
            rounds.append(Round(spent, before, after, empty, busy_before + busy_after))
        late = time.perf_counter() - start > SECONDS
        if len(rounds) >= FEWEST_ROUNDS and (late or clear(timing.limit, rounds)):
            break
    return rounds


def _watched(program: Side, reference: Side, asked) -> tuple[tuple[dict, Spent], float]:
    """A turn of the reference, and the CPU seconds that the program's worker spent meanwhile."""
    before = program.cpu()
    with _reference():
        turn = reference.turn(asked)
    return turn, program.cpu() - before


def _pools(timing: Timing) -> list[torch.Tensor]:
    """For each argument twice as many numbers as it needs, new for every judgement."""
    source = torch.Generator().manual_seed(random.SystemRandom().getrandbits(60))
    return [torch.rand(2 * _size(shape), generator=source) < 0.75 if name in timing.masks
            else torch.randn(2 * _size(shape), generator=source) for name, shape in timing.shapes.items()]


def _ask(timing: Timing, pools, places: random.Random) -> dict[str, Any]:
    """A turn: where the inputs of each call begin in the pools, and the factor of the first one."""
    shapes = list(timing.shapes.values())
    at = [[ALIGNMENT * places.randrange((len(pool) - _size(shape)) // ALIGNMENT + 1)
           for pool, shape in zip(pools, shapes, strict=True)] for _ in range(timing.calls)]
    return {"at": at, "shapes": [list(s) for s in shapes], "fixed": dict(timing.fixed),
            "factor": places.uniform(0.75, 1.25)}


def _bound(timing: Timing, pools, asked, wanted) -> float:
    """How far from the reference an honest float32 program may be, from how far the reference is from float64."""
    cut = [pool[start:start + _size(shape)].view(shape) for pool, start, shape in
           zip(pools, asked["at"][0], asked["shapes"], strict=True)]
    cut[0] = cut[0] * asked["factor"]
    exact = timing.reference(*(t.double() if t.is_floating_point() else t for t in cut), **asked["fixed"])
    error = (wanted["outputs"][0].double() - exact).abs().max().item()
    return HONEST * max(error, torch.finfo(torch.float32).eps * exact.abs().max().item())


def _compare(answer: Mapping[str, Any], wanted: Mapping[str, Any], bound: float) -> None:
    got, want = answer.get("outputs"), wanted["outputs"]
    if not isinstance(got, list) or len(got) != len(want):
        raise WrongUnderTheClock(f"{len(want)} calls were made, and not as many answers came")
    for mine, theirs in zip(got, want, strict=True):
        if not isinstance(mine, torch.Tensor) or mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            raise WrongUnderTheClock("an answer has another shape or dtype than in the cases")
        off = (mine - theirs).abs().max().item()
        if not off <= bound:
            raise WrongUnderTheClock(f"an answer is {off:.2g} off on inputs that are new in every call; float32 "
                                     f"explains {bound:.2g}")


def _packed(body: Mapping[str, Any]) -> tuple[bytes, bytes]:
    packer = wire.Packer(layouts=True)
    return packer.message(packer.pack(dict(body)))


def _core(attempt: int) -> int | None:
    """Another core at each attempt, from the last one on."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[-attempt % len(cores)]


def _topmost(pids: set[int]) -> int:
    """Of the processes of one worker the one above the others."""
    below = {child for pid in pids for child in cpu_clock.tree(pid) - {pid}}
    top = sorted(pids - below)
    if len(top) != 1:
        raise Undecided("the worker's processes could not be told apart")
    return top[0]


def _size(shape: Sequence[int]) -> int:
    return torch.Size(shape).numel()
