"""How long a learner waits: a warm `check()` against a fresh pytest process on the same exercise.

Interleaved pairs on one machine; medians and the ratio of each pair. `python benchmarks/check_latency.py --pairs 15`.
"""
from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from autograder.exercises import find
from autograder.grading import Grader
from autograder.publish import solution_source

PYTEST = '''
import torch
from einops import rearrange
from {module} import {name}

def test_layout():
    packed = torch.arange(2 * 5 * 12, dtype=torch.float64).reshape(2, 5, 12)
    assert torch.equal({name}(packed, num_heads=3), rearrange(packed, "b s (h d) -> b h s d", h=3))
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--exercise", default="split_heads")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "check_latency.json")
    args = parser.parse_args()
    exercise = find(args.exercise)
    with tempfile.TemporaryDirectory() as folder, Grader("auto") as grader:
        lab = Path(folder) / "mha_lab"
        lab.mkdir()
        source = "import math\nimport torch\nfrom torch import Tensor, nn\nfrom jaxtyping import Bool, Float\n" + \
            solution_source(exercise)
        (lab / f"{exercise.module}.py").write_text(source)
        Path(folder, "plain.py").write_text(source)
        Path(folder, "test_plain.py").write_text(PYTEST.format(module="plain", name=exercise.name))
        assert grader.check([exercise], folder)[0].status == "passed"
        ours, theirs = [], []
        for _ in range(args.pairs):
            ours.append(_timed(lambda: grader.check([exercise], folder)))
            theirs.append(_timed(lambda: subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                                                         "test_plain.py"], cwd=folder, check=True,
                                                        stdout=subprocess.DEVNULL)))
        walls = grader.walls_description
    record = {
        "exercise": exercise.name, "cases": len(exercise.cases), "pairs": args.pairs, "walls": walls,
        "check_ms": _summary(ours), "pytest_ms": _summary(theirs),
        "ratio": round(statistics.median(t / o for t, o in zip(theirs, ours, strict=True)), 1),
        "python": platform.python_version(), "torch": torch.__version__, "cpus": os.cpu_count(),
        "machine": platform.machine(),
    }
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


def _timed(run) -> float:
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        run()
    return (time.perf_counter() - start) * 1000


def _summary(samples: list[float]) -> dict:
    return {"median": round(statistics.median(samples), 1), "min": round(min(samples), 1),
            "max": round(max(samples), 1)}


if __name__ == "__main__":
    main()
