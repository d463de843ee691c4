"""The grade phase's work: one job for each program and exercise, done by threads of this process or on a cluster.

Threads are enough: a program runs in a process of its own, and judging what came back is a tenth of the time.
"""
from __future__ import annotations

import atexit
import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from ..exercises import find
from ..grading import Grader
from ..sandbox import Limits, SandboxError
from .store import Stored
from .submissions import grader_key

ATTEMPTS = 2


@dataclass(frozen=True)
class Job:
    """A program to judge: the files of a submission's `mha_lab`, by relative path."""

    exercise: str
    module: str
    key: str
    files: dict[str, bytes] = field(repr=False)
    walls: str = "required"
    limits: Limits = Limits()


@dataclass(frozen=True)
class Outcome:
    """A report, or the reason why there is none: a fault of ours or of the machine, never of the learner."""

    stored: Stored | None = None
    failure: str = ""


def grading_limits() -> Limits:
    """The limits of official grading; MHA_WALL_SECONDS sets the wall time of one exercise."""
    return Limits(wall=float(os.environ.get("MHA_WALL_SECONDS", Limits.wall)))


def wanted_walls() -> str:
    """MHA_WALLS, or "required"."""
    return os.environ.get("MHA_WALLS", "required")


class Judge:
    """Does jobs, one at a time, with a grader that stays warm."""

    def __init__(self):
        self._graders: dict[tuple[str, Limits], Grader] = {}

    def __call__(self, job: Job) -> Outcome:
        """Judge one program. A fault of ours is tried again with a fresh grader. SandboxError: no walls as asked."""
        failure = ""
        for _ in range(ATTEMPTS):
            start = time.perf_counter()
            try:
                report = self._check(job)
                return Outcome(Stored(report, time.perf_counter() - start))
            except SandboxError:
                raise
            except Exception as e:
                failure = f"{job.exercise} could not be judged ({type(e).__name__}: {e})"
                self.close()
        return Outcome(failure=failure)

    def _check(self, job: Job):
        with tempfile.TemporaryDirectory(prefix="mha-submission-") as folder:
            for name, content in job.files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return self._grader(job.walls, job.limits).check([find(job.exercise)], folder)[0]

    def _grader(self, walls: str, limits: Limits) -> Grader:
        if (walls, limits) not in self._graders:
            self._graders[walls, limits] = Grader(walls, limits)
        return self._graders[walls, limits]

    def close(self) -> None:
        while self._graders:
            self._graders.popitem()[1].close()


_of_thread = threading.local()


def do(job: Job) -> Outcome:
    """Judge one program with this thread's own judge, which stays for the next one."""
    if not hasattr(_of_thread, "judge"):
        _of_thread.judge = Judge()
        atexit.register(_of_thread.judge.close)
    return _of_thread.judge(job)


def local(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, Outcome]]:
    """`workers` at a time on this machine, in the order in which they finish."""
    idle: queue.SimpleQueue[Judge] = queue.SimpleQueue()
    judges = [Judge() for _ in range(max(1, min(workers, len(jobs))))]
    for judge in judges:
        idle.put(judge)

    def judged(job: Job) -> Outcome:
        judge = idle.get()
        try:
            return judge(job)
        finally:
            idle.put(judge)

    executor = ThreadPoolExecutor(len(judges))
    try:
        running = {executor.submit(judged, job): job for job in jobs}
        for future in as_completed(running):
            yield running[future], future.result()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        for judge in judges:
            judge.close()


def dask(jobs: Sequence[Job], address: str) -> Iterator[tuple[Job, Outcome]]:
    """On the workers of a Dask scheduler. They need this course installed, at the same version, and walls."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise LookupError("--dask needs Dask: pip install 'mha-course[cluster]'") from None
    with Client(address) as client:
        running = {client.submit(elsewhere, job, grader_key(job.module), key=f"mha-{job.key}", pure=False): job
                   for job in jobs}
        for future in as_completed(running):
            yield running[future], future.result()


def elsewhere(job: Job, expected: str) -> Outcome:
    """Judge one program on another machine, if that one has the course of the machine that asks."""
    if grader_key(job.module) != expected:
        return Outcome(failure="a Dask worker has another version of the course, Python or torch")
    return do(job)
