"""Whether the judge of timed exercises is ever wrong: the same programs many times over, beside busy processes.

A right program must never be failed, a naive one and a shortcut never be passed; "inconclusive" is allowed, and
counted. Naive programs go to the clock at once, although counting refuses them before. Of the shortcuts in the tests
those are here that leave the verdict to the clock; the others give wrong answers, which no load changes. Exits with 1
if a verdict was wrong.

    python benchmarks/timing_verdicts.py --runs 20 --busy 2          # the hardest to tell apart
    python benchmarks/timing_verdicts.py --runs 20 --busy 2 --all    # every program of this file
    python benchmarks/timing_verdicts.py --runs 5 --more             # five more runs, beside those on record
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from autograder.exercise import Exercise
from autograder.exercises import find
from autograder.lab import Gone
from autograder.publish import course_root
from autograder.timing import Timer, WrongUnderTheClock
from autograder.verdicts import FAIL, INCONCLUSIVE, PASS

sys.path.insert(0, str(course_root() / "tests"))
from timed_cheats import CHEATS, COMMON  # noqa: E402

HEAD = """import math
import torch
from torch.nn import functional as F
def eager(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
"""
EINSUM = """    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhts,bhsv->bhtv", scores.softmax(-1), v)
"""
RIGHT = {
    "batched_attention": {
        "einsum": "def batched_attention(q, k, v, visible=None):\n" + EINSUM,
        "sdpa": "def batched_attention(q, k, v, visible=None):\n    return F.scaled_dot_product_attention(q, k, v)\n"},
    "attention_without_query_loop": {
        "einsum": "def attention_without_query_loop(q, k, v):\n" + EINSUM,
        "sdpa": "attention_without_query_loop = F.scaled_dot_product_attention\n"},
    "grouped_decode": {
        "sdpa": "def grouped_decode(q, k, v, length):\n"
                "    return F.scaled_dot_product_attention(q, k[:, :, :length], v[:, :, :length], enable_gqa=True)\n",
        "copied slices": "def grouped_decode(q, k, v, length):\n"
                         "    k, v = k[:, :, :length].contiguous(), v[:, :, :length].contiguous()\n"
                         "    return eager(q.reshape(*k.shape[:2], -1, q.shape[-1]), k, v).reshape(q.shape)\n"},
    "compiled_softmax": {
        "compiled": "@torch.compile\ndef compiled_softmax(scores, visible):\n"
                    "    return scores.masked_fill(~visible, -torch.inf).softmax(-1)\n",
        "logsumexp": "def compiled_softmax(scores, visible):\n    scores = scores.masked_fill(~visible, -torch.inf)\n"
                     "    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))\n"},
}
NAIVE = {
    "batched_attention": {
        "loop over samples and heads": "def batched_attention(q, k, v, visible=None):\n"
        "    return torch.stack([torch.stack([eager(*qkv) for qkv in zip(*of)]) for of in zip(q, k, v)])\n"},
    "attention_without_query_loop": {
        "loop over queries": "def attention_without_query_loop(q, k, v):\n"
        "    return torch.cat([eager(q[:, :, t:t + 1], k, v) for t in range(q.shape[2])], 2)\n"},
    "grouped_decode": {
        "repeat": "def grouped_decode(q, k, v, length):\n    r = q.shape[1] // k.shape[1]\n"
        "    return eager(q, *(t[:, :, :length].repeat_interleave(r, 1) for t in (k, v)))\n",
        "inserted axis": "def grouped_decode(q, k, v, length):\n    q = q.unflatten(1, (k.shape[1], -1))\n"
        "    return eager(q, k[:, :, None, :length], v[:, :, None, :length]).flatten(1, 2)\n"},
    "compiled_softmax": {
        "row by row": "def compiled_softmax(scores, visible):\n    rows = []\n"
        "    for row in scores.masked_fill(~visible, -torch.inf).flatten(0, 2):\n"
        "        weights = (row - row.max()).exp()\n        rows.append(weights / weights.sum())\n"
        "    return torch.stack(rows).reshape(scores.shape)\n"},
}


@dataclass
class Tried:
    """One program, and what was said of it in every run."""

    exercise: Exercise
    name: str
    kind: str
    source: str
    said: Counter = field(default_factory=Counter)
    ratios: list[float] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    reasons: Counter = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def judge(self, timer: Timer) -> None:
        start = time.perf_counter()
        try:
            verdict = timer.judge(self.exercise, {f"mha_lab/{self.exercise.module}.py": self.source.encode()})
            self.said[verdict.verdict] += 1
            if verdict.ratio is not None:
                self.ratios.append(verdict.ratio)
                self.attempts.append(verdict.attempts)
            if verdict.verdict == INCONCLUSIVE:
                self.reasons[verdict.reason] += 1
        except WrongUnderTheClock:
            self.said["wrong answer"] += 1
        except Gone:
            self.said["no answer"] += 1
        self.seconds.append(time.perf_counter() - start)

    @property
    def wrong_verdicts(self) -> int:
        allowed = {PASS, INCONCLUSIVE} if self.kind == "right" else {FAIL, INCONCLUSIVE, "wrong answer", "no answer"}
        return sum(n for said, n in self.said.items() if said not in allowed)

    def record(self) -> dict:
        made = {"exercise": self.exercise.name, "program": self.name, "kind": self.kind, "said": dict(self.said),
                "wrong_verdicts": self.wrong_verdicts, "median_seconds": round(statistics.median(self.seconds), 2)}
        if self.reasons:
            made["inconclusive_because"] = dict(self.reasons)
        if self.ratios:
            made["limit"] = self.exercise.timing.limit
            made["ratio"] = {"median": round(statistics.median(self.ratios), 2), "min": round(min(self.ratios), 2),
                             "max": round(max(self.ratios), 2)}
            made["most_attempts"] = max(self.attempts)
        return made


HARDEST = {"einsum", "copied slices", "logsumexp",  # the slowest of the right programs
           "loop over samples and heads", "loop over queries", "repeat", "row by row",  # the naive ones
           "patches-the-timers", "many-threads", "keeps-the-cores-busy"}


def programs() -> Iterator[Tried]:
    answers = (course_root() / "solutions" / "timed.py").read_text(encoding="utf-8")
    for name in RIGHT:
        yield Tried(find(name), "the course's answer", "right", answers)
        for kind, of in (("right", RIGHT), ("naive", NAIVE)):
            for label, source in of[name].items():
                yield Tried(find(name), label, kind, HEAD + source)
    for label, kind, source in CHEATS:
        if kind == "slow":
            yield Tried(find("grouped_decode"), label, "shortcut", COMMON + source + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=2, help="processes that do nothing but take CPU time")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--more", action="store_true", help="keep the sittings that are on record")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "timing_verdicts.json")
    args = parser.parse_args()
    tried, loads = [p for p in programs() if args.all or p.name in HARDEST], []
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
    kept = json.loads(args.out.read_text())["sittings"] if args.more and args.out.is_file() else []
    timer = Timer("auto")
    try:
        for run in range(1, args.runs + 1):
            for program in tried:
                program.judge(timer)
            loads.append(os.getloadavg()[0])
            sitting = summary(tried, run, args.busy, loads)
            sittings = [*kept, sitting]
            record = {"runs": sum(s["runs"] for s in sittings),
                      "wrong_verdicts": sum(s["wrong_verdicts"] for s in sittings), "sittings": sittings}
            args.out.parent.mkdir(exist_ok=True)
            args.out.write_text(json.dumps(record, indent=1) + "\n")
            print(f"run {run}: {sitting['wrong_verdicts']} wrong verdicts so far, {sitting['said']}", flush=True)
    finally:
        timer.close()
        for process in busy:
            process.kill()
    return 1 if record["wrong_verdicts"] else 0


def summary(tried: list[Tried], runs: int, busy: int, loads: list[float]) -> dict:
    said = {kind: Counter() for kind in ("right", "naive", "shortcut")}
    for program in tried:
        said[program.kind].update(program.said)
    return {
        "runs": runs, "busy_processes": busy, "programs": {kind: sum(t.kind == kind for t in tried) for kind in said},
        "wrong_verdicts": sum(t.wrong_verdicts for t in tried), "said": {kind: dict(of) for kind, of in said.items()},
        "load_average_1_min": {"min": round(min(loads), 1), "max": round(max(loads), 1)},
        "nice": os.nice(0), "python": platform.python_version(), "torch": torch.__version__, "cpus": os.cpu_count(),
        "machine": platform.machine(), "each": [t.record() for t in tried],
    }


if __name__ == "__main__":
    sys.exit(main())
