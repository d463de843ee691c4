"""How a call, an answer and an error are worded, in a message and in a transcript."""
from __future__ import annotations

import re

import torch

from .worker.wire import Record


def spell(name, args, kwargs):
    """A call as a learner would write it; tensors by their shapes, inside pairs and dicts too."""
    def one(v):
        if isinstance(v, torch.Tensor):
            return f"a tensor {list(v.shape)}"
        if isinstance(v, dict):
            return f"{{{', '.join(f'{k!r}: {one(x)}' for k, x in v.items())}}}"
        if type(v) in (tuple, list):
            inside = ", ".join(map(one, v))
            return f"[{inside}]" if isinstance(v, list) else f"({inside}{',' if len(v) == 1 else ''})"
        if isinstance(v, Record):
            return f"{v._type}(...)"
        return "a function" if callable(v) else repr(v)
    return f"{name}({', '.join([one(a) for a in args] + [f'{k}={one(v)}' for k, v in kwargs.items()])})"


def spoken(method):
    """`__call__` is known to learners as forward."""
    return "forward" if method == "__call__" else method


def returned(value):
    """What an accepted call gave back, as the end of a sentence."""
    def one(v):
        if not isinstance(v, torch.Tensor):
            return str(v)[:80]
        return f"a tensor {list(v.shape)}" + (" with NaN in it" if v.isnan().any() else "")
    if isinstance(value, (tuple, list)) and any(isinstance(v, torch.Tensor) for v in value):
        return f"; it returned {' and '.join(map(one, value))}"
    return "" if value is None else f"; it returned {one(value)}"


def error_line(error):
    """Type, text and place of an exception that the worker described."""
    text = " ".join(error["message"].split())[:240]
    if error["type"] == "MemoryError" or "can't allocate memory" in text:
        text = "it asked for more memory than an exercise may have"
    return f"{error['type']}: {text}" + (f"  ({error['where']})" if error["where"] else "")


def from_torch(error):
    """Whether a NotImplementedError is torch's (an operation that a dtype does not have) and not a stub's."""
    return "not implemented for" in error["message"] or bool(error["where"]) and "raise" not in error["where"]


def error_kind(error):
    """What a transcript keeps of an exception: its type, and which one it is where torch says many things with one."""
    if "without overflow" in error["message"]:
        return f"{error['type']}: overflow"
    if "view size is not compatible" in error["message"]:
        return f"{error['type']}: strides do not fold"
    if size := re.search(r"invalid for input of size (\d+)", error["message"]):
        return f"{error['type']}: {size[1]} elements"
    return error["type"]


def epitaph(message):
    """Why a worker is no more."""
    if "refused" in message:
        return f"the sandbox refused to start: {message['refused']}"
    gone = str(message["gone"])
    return {"killed": "the program was ended (it asked for more memory or processes than it may have)",
            "cpu": "the program used up its CPU time", "crash": "the program crashed the interpreter"}.get(
        gone, f"the program ended the interpreter ({gone})")
