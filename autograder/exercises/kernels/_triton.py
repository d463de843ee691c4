"""Triton for known programs. It is imported only in the process that runs them (see triton_replay.py)."""
from __future__ import annotations

import os

if os.environ.get("MHA_TRITON_REPLAY"):
    import triton
    import triton.language as tl

    jit = triton.jit
else:
    class tl:  # noqa: N801
        constexpr = "constexpr"

    def jit(function):
        """The function as it is: nothing launches it in this process."""
        return function


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


__all__ = ["cdiv", "jit", "power_of_2", "tl"]
