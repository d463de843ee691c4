"""What this machine has, and what each missing thing costs."""
from __future__ import annotations

import importlib.metadata
import platform
import shutil
from dataclasses import dataclass

from . import cpu_clock
from .sandbox import walls_available


@dataclass(frozen=True)
class Finding:
    part: str
    found: bool
    detail: str
    cost: str


def examine() -> list[Finding]:
    """One Finding a part: Python, torch, Triton, GPU, sandbox, CPU accounts, nbgrader, JupyterLab, a browser."""
    import torch
    walled, how = walls_available()
    gpu, missing = torch.cuda.is_available(), cpu_clock.unavailable()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    return [
        Finding("Python", True, platform.python_version(), ""),
        _package("torch", "nothing in the course runs"),
        Finding("sandbox", walled, how,
                "self-study runs learner code in a plain subprocess; classes are not graded unless told so"),
        Finding("CPU accounts", not missing, missing or "the kernel tells each worker's CPU time",
                "timed exercises are judged on values and counts; their time is not measured"),
        _package("nbgrader", "no classroom: assignments cannot be made or graded"),
        _package("jupyterlab", "the notebooks have no place to run; `mha check` works without it"),
        _package("anywidget", "instruments show their static picture only"),
        _package("triton", "kernel exercises cannot be checked; all else works"),
        Finding("GPU", gpu, torch.cuda.get_device_name() if gpu else "none",
                "kernels are judged on correctness and traffic; their time is not measured"),
        Finding("browser", browser is not None, browser or "no Chromium found",
                "tests that drive JupyterLab are skipped"),
    ]


def _package(name: str, cost: str) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name), cost)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "not installed", cost)
