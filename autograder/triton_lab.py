"""Triton exercises: the interpreter without a GPU, the real thing with one; one Report from both.

1. correct in the interpreter, with every access inside its tensor and no race (worker/triton_watch.py);
2. bytes moved over the minimum;
3. compiled ahead of time for real cards, with shared memory that they have (worker/triton_device.py);
4. time, only where there is a GPU; elsewhere it is "not_measured", with the reason.

The path with a GPU follows the same rules as the rest, and has not been run: no GPU was there when it was written.
"""
from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from . import triton_replay
from .exercise import Exercise
from .lab import Gone, Lab, Mismatch, NotStarted, Observation
from .report import CaseResult, Diagnosis, Report
from .sandbox import Limits, Sandbox, SandboxError

INSTALL = "not available here: Triton is not installed. `pip install triton` adds it (Linux; 200 MB come, 700 MB stay)"
SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10}  # bytes for one program (CUDA programming guide, compute capabilities)
CARDS = {80: "sm_80 (A100)", 90: "sm_90 (H100)"}
COMPILES = "it compiles for sm_80 and sm_90, within the shared memory of these cards"
TIMED = "its time on this GPU"
FALLBACKS = {"_softmax", "_safe_softmax", "softmax", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "matmul", "einsum"}
FAULTS = {
    "does-not-compile": "The interpreter is Python and runs what a compiler refuses: a kernel has fixed types and "
                        "shapes, and names only constants of the module.",
    "shared-memory-exceeded": "The blocks that a program holds do not fit the memory that it has on a card: smaller "
                              "blocks, or fewer stages.",
    "tf32-surprise": "On a GPU `tl.dot` multiplies float32 in TF32, with 10 bits of mantissa, unless it is told "
                     "`input_precision=\"ieee\"`. The interpreter always computes in full, so that the difference "
                     "shows up on the card only."}
GPU_LIMITS = Limits(wall=120, cpu=120, memory=0, frame=2 << 30)  # inputs travel four times


def missing() -> str:
    """Why Triton exercises cannot be checked here, or ""."""
    return "" if importlib.util.find_spec("triton") else INSTALL


@dataclass(frozen=True)
class Workload:
    """One call for a device. `minimum`: bytes that any kernel must move. `oracle(*args, **kwargs)` gives what the
    function returns, as a tuple. `tolerance` is for device arithmetic (TF32 where the inputs are float32)."""

    args: tuple
    kwargs: Mapping[str, Any]
    minimum: int
    flops: int
    oracle: Callable[..., tuple[torch.Tensor, ...]]
    tolerance: float = 2e-2


@dataclass(eq=False)
class TritonExercise(Exercise):
    """An exercise whose program launches Triton kernels. `workload(size, seed)`: size "small" or "large"."""

    workloads: list[Callable[[str, int], Workload]] = field(default_factory=list)
    triton: str = "interpret"

    def workload(self, make):
        """Register the decorated `make(size, seed, dtype) -> Workload`: what is compiled, and timed on a GPU."""
        self.workloads.append(make)
        return make

    def known_lab(self, program):
        """Known programs run in the interpreter too, in a process that is kept for them."""
        return triton_replay.known_lab(self, program)

    def unavailable(self) -> str:
        return missing()

    def afterwards(self, report: Report, noted: Mapping[str, Any], open_lab: Callable[..., Lab]) -> None:
        """What is asked of a program that is right: that it compiles, and how fast it is where that can be measured."""
        report.timing = {"verdict": "not_measured", "reason": "", "traffic": noted.get("traffic"), "compiled": [],
                         "device": None}
        compiled = judge_compilation(self, open_lab)
        report.timing["compiled"] = compiled.kernels
        report.cases.append(CaseResult(COMPILES, "failed" if compiled.fault else "passed", compiled.fault))
        if compiled.fault:
            report.status, report.score = "failed", 0
            if compiled.name:
                report.diagnosis = Diagnosis([compiled.name], compiled.name.replace("-", " "), FAULTS[compiled.name],
                                             compiled.fault)
        elif not torch.cuda.is_available():
            report.timing["reason"] = "no CUDA device on this machine; the time of the interpreter says nothing"
        else:
            report.timing |= judge_time(self, open_lab)
            ends = {"measured": "passed"}.get(report.timing["verdict"], "not_measured")
            report.cases.append(CaseResult(TIMED, ends, report.timing["reason"]))
        report.timing["line"] = summary(report.timing)


# ---- in the interpreter


def run(lab: Lab, name: str, *args, dtype: torch.dtype | None = None, **kwargs) -> Any:
    """The value of a call whose kernels are watched; Mismatch for an access outside a tensor, a race, no launch at all,
    or torch doing the work. What was seen enters the transcript without block sizes."""
    value = lab.call(name, *args, count="triton", **kwargs)
    facts = lab.last.counts
    seen = (sorted({o["kind"] for o in facts["outside"]}), bool(facts["races"]), bool(facts["launches"]))
    lab.transcript.append(Observation("accesses", value=list(seen)))
    return value


def sound(lab: Lab) -> None:
    """Mismatch unless the last call launched a kernel, stayed inside its tensors, and had no race."""
    facts = lab.last.counts
    if facts["outside"]:
        raise Mismatch(outside(facts["outside"][0], facts["violations"]["outside"]))
    if facts["races"]:
        raise Mismatch(race(facts["races"][0]))
    if not facts["launches"]:
        raise Mismatch("no Triton kernel was launched: the work of this exercise is done inside one")
    if used := sorted(o for o in facts["on_inputs"] if o in FALLBACKS or "attention" in o):
        raise Mismatch(f"torch did the work (it ran {', '.join(used)}); it belongs inside a kernel")


@contextmanager
def sound_beside(lab: Lab) -> Iterator[None]:
    """Around the comparison of an answer: a call has to be sound, and a wrong answer is told by its cause, where the
    watch saw one, rather than by the effect."""
    try:
        yield
    except Mismatch:
        if lab.last.counts["outside"] or lab.last.counts["races"]:
            sound(lab)
        raise
    sound(lab)


def outside(first: Mapping[str, Any], number: int) -> str:
    """An access outside of a tensor, in words."""
    lanes = f"{first['of']} elements" if first["of"] > 1 else "one element"
    more = f" ({number} accesses like this)" if number > 1 else ""
    place = first["element"]
    if 0 <= place < first["reach"]:
        where = f"lies between the rows of `{first['argument']}`, where that tensor holds nothing"
    elif place < 0:
        where = f"is {-place} before the start of `{first['argument']}`"
    else:
        size = (f"has {first['elements']}" if first["elements"] == first["reach"] else
                f"ends at {first['reach'] - 1}")
        where = f"is element {place} of `{first['argument']}`, which {size}"
    which = "the first one outside" if first["of"] > 1 else "it"
    return (f"out of bounds: in {first['kernel']}, program {first['program']}, a {first['kind']} of {lanes}: {which} "
            f"{where}{more}")


def race(first: Mapping[str, Any]) -> str:
    """A race between programs, in words."""
    did = "stores other numbers to" if first["kind"] == "store" else "loads"
    return (f"a race: in {first['kernel']}, program {first['program']} {did} element {first['element']} of "
            f"`{first['argument']}`, which program {first['other']} stored in the same launch; programs run in "
            "no order")


def traffic(lab: Lab, minimum: int, most: float, why: str) -> float:
    """Bytes moved by the last call over `minimum`; Mismatch above `most`. The ratio is noted for the Report."""
    facts = lab.last.counts
    moved = facts["loaded"] + facts["stored"] + facts["torch_bytes"]
    ratio = moved / minimum
    lab.noted["traffic"] = {"loaded": facts["loaded"], "stored": facts["stored"], "torch": facts["torch_bytes"],
                            "minimum": minimum, "ratio": round(ratio, 3)}
    if ratio > most:
        raise Mismatch(f"{moved:,} bytes were moved ({facts['loaded']:,} loaded and {facts['stored']:,} stored by "
                       f"kernels, {facts['torch_bytes']:,} by torch) where {minimum:,} are needed: {ratio:.2f} times "
                       f"the minimum, and {most:g} is the most. {why}")
    return ratio


def all_read(lab: Lab, number: int, elements: int, what: str) -> None:
    """Mismatch unless kernels loaded that many elements of input `number`."""
    got = lab.last.counts["read"][number]
    if got < elements:
        raise Mismatch(f"kernels loaded {got:,} of the {elements:,} elements of {what}: the rest of the answer did not "
                       "come from a kernel")


def guarded(tensor: torch.Tensor, row_gap: int = 0, band: int = 160) -> torch.Tensor:
    """The same values, lying between bands of NaN; with `row_gap`, NaN also follows every row of the last axis."""
    rows, width = tensor.numel() // tensor.shape[-1], tensor.shape[-1] + row_gap
    space = torch.full((band + rows * width + band,), float("nan"), dtype=tensor.dtype)
    strides, step = [], width
    for size in reversed(tensor.shape[:-1]):
        strides.append(step)
        step *= size
    inside = space.as_strided(tensor.shape, (*reversed(strides), 1), band)
    inside.copy_(tensor)
    return inside


# ---- compiled ahead of time


@dataclass
class Compiled:
    """What was compiled, and the first fault: its name (a key of FAULTS) and its evidence."""

    kernels: list[dict]
    fault: str = ""
    name: str = ""


def judge_compilation(exercise: TritonExercise, open_lab: Callable[..., Lab],
                      dtypes: Sequence[torch.dtype] = (torch.float32, torch.float16)) -> Compiled:
    """Every kernel of a call, compiled for each card in a child of its own."""
    works = [exercise.workloads[0]("small", 0, dtype) for dtype in dtypes]
    try:
        lab = open_lab("compile")
        try:
            body, _ = lab._exchange({"do": "triton", "how": "compile_kernels", "name": exercise.name,
                                     "variants": [list(w.args) for w in works], "kwargs": dict(works[0].kwargs),
                                     "targets": sorted(SHARED_MEMORY)})
        finally:
            lab.close()
    except (Gone, NotStarted) as e:
        return Compiled([], f"while it was compiled: {e}")
    return _compiled(body, dtypes)


def _compiled(body, dtypes) -> Compiled:
    if "kernels" not in body:
        return Compiled([], f"the call failed while it was compiled: {body['error']['message'][:300]}")
    made = Compiled([])
    for fact in body["kernels"]:
        card, limit = CARDS[fact["target"]], SHARED_MEMORY[fact["target"]]
        dtype = str(dtypes[fact["variant"]]).removeprefix("torch.")
        if fact["error"]:
            made.fault = (f"{fact['kernel']} does not compile for {card} with {dtype} inputs, although the interpreter "
                          f"runs it: {fact['error'][:400]}")
            made.name = "does-not-compile"
            return made
        made.kernels.append({"kernel": fact["kernel"], "target": fact["target"], "dtype": dtype,
                             "shared": fact["shared"], "seconds": round(fact["seconds"], 3)})
        if fact["shared"] > limit:
            made.fault = (f"{fact['kernel']} asks for {fact['shared']:,} bytes of shared memory on {card}, where one "
                          f"program has at most {limit:,}")
            made.name = "shared-memory-exceeded"
            return made
        if fact["tf32"] and dtypes[fact["variant"]] == torch.float32:
            made.fault = f"the code of {fact['kernel']} for {card} multiplies float32 numbers in TF32"
            made.name = "tf32-surprise"
            return made
    if not body["kernels"]:
        made.fault = f"no kernel was launched while it was compiled{': ' + body['error'] if body['error'] else ''}"
    return made


# ---- on a GPU (written with care, and never run: there was none)


def judge_time(exercise: TritonExercise, open_lab: Callable[..., Lab], calls: int = 30) -> dict[str, Any]:
    """Device seconds of one call, against the roofline of a measured copy and the wall clock of this process.

    The numbers of the worker are believed only as far as this process can see: its own clock says how much longer
    twice as many calls take, and no call is faster than its bytes at the speed of a copy.
    """
    make = exercise.workloads[0]
    work = make("large", 1, torch.float16)
    variants = [make("large", seed, torch.float16) for seed in (1, 2, 3)]
    sandbox = Sandbox("auto", GPU_LIMITS, gpu=True)
    try:
        lab = open_lab("compile", sandbox=sandbox)
        walls, bodies = [], []
        for number in (calls, calls, 2 * calls):  # the first call also compiles
            began = time.perf_counter()
            body, _ = lab._exchange({"do": "triton", "how": "time_kernels", "name": exercise.name,
                                     "args": list(work.args), "kwargs": dict(work.kwargs), "calls": number,
                                     "variants": [list(v.args) for v in variants]})
            walls.append(time.perf_counter() - began)
            bodies.append(body)
        lab.close()
    except (Gone, NotStarted, SandboxError) as e:
        return {"verdict": "not_measured", "reason": f"the GPU could not be used: {e}"}
    finally:
        sandbox.close()
    return conclude_time(bodies[-1], (walls[2] - walls[1]) / calls, work, variants, 2 * calls)


def conclude_time(body: Mapping[str, Any], wall: float, work: Workload, variants: Sequence[Workload],
                  calls: int) -> dict[str, Any]:
    """A verdict on what a GPU worker sent: measured, invalid, inconclusive or not_measured, with the reason."""
    if "seconds" not in body:
        return {"verdict": "not_measured", "reason": f"the call failed on the GPU: {body['error']['message'][:300]}"}
    for outputs, variant in zip(body["outputs"], (variants[0], variants[(calls - 1) % len(variants)]), strict=True):
        wanted = variant.oracle(*variant.args, **variant.kwargs)
        for got, want in zip(outputs, wanted, strict=True):
            if got.shape != want.shape or not torch.allclose(got.double(), want.double(), rtol=work.tolerance,
                                                             atol=work.tolerance):
                return {"verdict": "invalid", "reason": "the output of a timed call is wrong on the GPU"}
    seconds = statistics.median(body["seconds"])
    floor = work.minimum / body["copy_bandwidth"]
    fact = {"device": body["device"], "seconds": seconds, "wall_seconds": wall, "minimum_bytes": work.minimum,
            "flops": work.flops, "copy_bandwidth": body["copy_bandwidth"], "of_roofline": floor / max(seconds, 1e-12)}
    if fact["of_roofline"] > 1:
        return fact | {"verdict": "invalid", "reason": "it would be faster than its bytes can be copied: above 100 % "
                                                      "of the roofline no time is believed"}
    if seconds > 1.2 * wall or seconds < 0.02 * wall:
        return fact | {"verdict": "inconclusive", "reason": "the device's clock and this process's clock do not agree"}
    return fact | {"verdict": "measured", "reason": ""}


def summary(timing: Mapping[str, Any]) -> str:
    """One line under a report."""
    parts = []
    if timing.get("traffic"):
        parts.append(f"Bytes moved over the minimum: {timing['traffic']['ratio']:.2f}.")
    if timing["compiled"]:
        shared = max(k["shared"] for k in timing["compiled"])
        parts.append(f"Compiled for sm_80 and sm_90; largest shared memory {shared:,} bytes.")
    if timing["verdict"] == "measured":
        parts.append(f"{timing['device']}: {timing['seconds'] * 1e6:.1f} µs, {timing['of_roofline']:.0%} of the speed "
                     "of a copy of its bytes.")
    elif timing["reason"]:
        parts.append(f"GPU time: {timing['verdict'].replace('_', ' ')} ({timing['reason']}).")
    return " ".join(parts)
