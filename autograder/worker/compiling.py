"""`torch.compile` beside learner code: a request that is heard and not granted."""
from __future__ import annotations

from collections.abc import Callable

import torch


def as_written(model: Callable | None = None, **_) -> Callable:
    """What `torch.compile` returns here: the function itself, also when it is used as a decorator with arguments.

    There is no compiler inside the walls, and a C++ compilation for every dtype and shape of a check takes longer than
    an exercise may.
    """
    return model if model is not None else lambda function: function


def refuse_politely() -> None:
    """Put `as_written` in the place of `torch.compile` in this process."""
    torch.compile = as_written
