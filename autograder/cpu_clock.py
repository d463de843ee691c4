"""The kernel's account of CPU time, read from outside: of a process and everything that it started (Linux)."""
from __future__ import annotations

import os
import time
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def unavailable() -> str:
    """Why the CPU time of other processes cannot be read here, or ""."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    return "" if children.exists() else "this system does not tell the CPU time of another process's tree"


def tree(root: int) -> set[int]:
    """A process and all its descendants, as far as they are alive."""
    found, waiting = set(), [root]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += _children(pid)
    return found


def seconds(root: int) -> float:
    """The CPU seconds of the tree so far: every thread of it, and those of its children that have ended."""
    return sum(map(_of_one, tree(root)))


def _children(pid: int) -> list[int]:
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as f:
                found += map(int, f.read().split())
    except OSError:  # it has ended meanwhile
        pass
    return found


def _of_one(pid: int) -> float:
    try:
        own = time.clock_gettime((~pid << 3) | 2)  # the clock that clock_getcpuclockid(3) names
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return own + (int(fields[13]) + int(fields[14])) / _TICK
    except OSError:
        return 0.0
