"""Given: Triton, or its absence. Without a GPU kernels run in Triton's interpreter, one program after the other.

Triton reads TRITON_INTERPRET once, when it is imported: a process runs kernels in one way, or in the other.
"""
from __future__ import annotations

import os

import torch

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces itself on stderr
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

try:
    import triton
    import triton.language as tl

    MISSING = ""
except ImportError:
    MISSING = "Triton is not installed here: pip install triton (Linux; 200 MB come, 700 MB stay)"

    class triton:  # noqa: N801  (stands in for the package, so that a module with kernels can be imported)
        """No kernel can be launched; `triton.jit` gives the plain function back."""

        @staticmethod
        def jit(function):
            return function

        @staticmethod
        def cdiv(a: int, b: int) -> int:
            return -(-a // b)

        @staticmethod
        def next_power_of_2(n: int) -> int:
            return 1 << max(0, n - 1).bit_length()

    class tl:  # noqa: N801
        """Only what a kernel's signature names."""

        constexpr = "constexpr"


def ready() -> None:
    """ImportError, with what to install, where Triton is not there."""
    if MISSING:
        raise ImportError(MISSING)
