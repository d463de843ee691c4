"""Shared by the kernel exercises: inputs, tolerances, and programs that many of them need."""
from __future__ import annotations

from collections.abc import Callable

import torch

from ... import expect
from ...exercise import CONTRACT
from ...standard import normal
from ...triton_lab import TritonExercise, guarded, run, sound_beside

CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3}


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, row_gap: int = 0) -> torch.Tensor:
    """Standard normal numbers between bands of NaN."""
    return guarded(normal(*shape, seed=seed).to(dtype), row_gap)


def close(got, want: torch.Tensor, dtype: torch.dtype, what: str = "the result", names=()) -> None:
    """Values within the tolerance of a kernel's dtype."""
    expect.close(got, want.to(dtype), what, names, atol=CLOSE[dtype], rtol=CLOSE[dtype])


def faithful(lab, name: str, *args, want: torch.Tensor, what: str = "the result", names=(), **kwargs):
    """A watched call: its values, and then where it reached."""
    got = run(lab, name, *args, **kwargs)
    first = expect_tensor_first(got)
    with sound_beside(lab):
        close(first, want, args[0].dtype, what, names)
    return got


def expect_tensor_first(got):
    return got[0] if isinstance(got, (tuple, list)) and got else got


def half_case(exercise: TritonExercise, inputs: Callable[[torch.dtype], tuple[tuple, dict]],
              oracle: Callable[..., torch.Tensor], names=()) -> None:
    """Adds C2 and C7 for kernels: float32 and float16 keep their dtype, and two calls agree."""
    @exercise.case("float32 and float16 keep their dtype, and two calls agree", CONTRACT)
    def dtypes(lab):
        for dtype in (torch.float32, torch.float16):
            args, kwargs = inputs(dtype)
            wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
            want = oracle(*wide, **kwargs).to(dtype)
            first = expect_tensor_first(run(lab, exercise.name, *args, **kwargs))
            expect.dtype(expect.tensor(first), dtype)
            close(first, want, dtype, names=names)
            again = expect_tensor_first(run(lab, exercise.name, *args, **kwargs))
            close(again, first, dtype, "the second call's result", names)


def leaves_its_tensor(trials, whole: str, tail: str) -> bool:
    """Right where blocks fill their rows, and storing outside of them (or over other rows) where they do not."""
    by_title = {t.case.title: t for t in trials}
    told = by_title[tail].message
    return by_title[whole].passed and (told.startswith("out of bounds") and ", a store of" in told
                                       or told.startswith("a race") and "stores" in told)
