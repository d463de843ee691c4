"""A function's kernels for a real device: compiled ahead of time without one, timed with one. Facts, no verdict."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

_clock = time.perf_counter


def compile_kernels(function: Callable, request: dict, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Every kernel that `function(*args, **kwargs)` launches, for each args of `variants`, compiled for each of
    `targets` and never run.

    Returns {"kernels": [{"kernel", "variant", "target", "seconds", "shared", "tf32", "error"}], "error"}: shared memory
    in bytes for one program; whether its code has TF32 products; "error" of the whole is what the function raised
    (its numbers are those of empty memory). It ends at the first kernel that does not compile.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    kernels: list[dict] = []
    original = JITFunction.run

    def run(kernel, *args, grid, warmup, **kwargs):
        fact = {"kernel": kernel.fn.__name__, "variant": number, "target": arch, "seconds": 0.0, "shared": None,
                "tf32": False, "error": None}
        began = _clock()
        try:
            made = original(kernel, *args, grid=grid, warmup=True, **kwargs)
            fact["shared"] = int(made.metadata.shared)
            fact["tf32"] = ".tf32" in str(made.asm.get("ptx", ""))
        except BaseException as e:
            fact["error"] = " ".join(f"{type(e).__name__}: {e}".split())[:600]
            raise
        finally:
            fact["seconds"] = _clock() - began
            if fact not in kernels:
                kernels.append(fact)
        return made

    failure = None
    work = [(arch, number, args) for number, args in enumerate(request["variants"]) for arch in request["targets"]]
    for arch, number, args in work:  # noqa: B007  (`run` reads it)
        driver.set_active(_NoDevice(arch, GPUTarget("cuda", arch, 32)))
        JITFunction.run = run
        try:
            function(*args, **request["kwargs"])
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            failure = " ".join(f"{type(e).__name__}: {e}".split())[:600]
        finally:
            JITFunction.run = original
        if any(k["error"] for k in kernels):
            break
    return {"kernels": kernels, "error": failure, "triton": triton.__version__}


class _NoDevice:
    """What `JITFunction.run` asks a driver before it compiles. Each architecture is a device with its own cache."""

    def __init__(self, arch: int, target):
        self._arch, self._target = arch, target

    def get_current_device(self):
        return self._arch

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return self._target

    def get_active_torch_device(self):
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind):
        return kind

    def get_benchmarker(self):
        raise RuntimeError("there is no GPU here to choose a configuration by time; give the kernel one configuration")


def time_kernels(function: Callable, request: dict, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    """`calls` calls on the GPU, each with new numbers at the same addresses and a flushed L2 cache.

    Returns device seconds of each call (between two events on the current stream), bytes a second of a measured copy,
    the device's name, and the outputs of the first and last timed call, by which the grader judges them.
    """
    device = torch.device("cuda")
    args = [_to(a, device) for a in request["args"]]
    fresh = [[_to(a, device) for a in variant] for variant in request["variants"]]
    flush = torch.empty(2 * max(torch.cuda.get_device_properties(device).L2_cache_size, 1 << 25), dtype=torch.int8,
                        device=device)
    for _ in range(3):
        function(*args, **request["kwargs"])
    torch.cuda.synchronize()
    seconds, outputs = [], []
    for call in range(request["calls"]):
        for mine, new in zip(args, fresh[call % len(fresh)], strict=True):
            if isinstance(mine, torch.Tensor):
                mine.copy_(new)
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        value = function(*args, **request["kwargs"])
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) * 1e-3)
        if call in (0, request["calls"] - 1):
            outputs.append([t.cpu().clone() for t in (value if isinstance(value, tuple) else (value,))])
    return {"seconds": seconds, "outputs": outputs, "device": torch.cuda.get_device_name(device),
            "copy_bandwidth": _copy_bandwidth(device)}


def _to(value, device):
    if not isinstance(value, torch.Tensor):
        return value
    moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return moved.copy_(value)


def _copy_bandwidth(device, size: int = 1 << 28, calls: int = 10) -> float:
    """Bytes read and written in a second by the best of `calls` copies of `size` bytes."""
    source = torch.ones(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(calls):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) * 1e-3)
    return 2 * size / best
