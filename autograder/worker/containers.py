"""Whether a call rearranged the lists and dicts that it was given: a tensor may be untouched and yet be replaced."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Frame = list[tuple[str, list | dict, list | dict]]


def frame(value: Any) -> Frame:
    """Every list and dict inside a value: its path, itself, and a copy that holds the same objects."""
    return list(_walk(value, ""))


def rearranged(before: Frame) -> list[str]:
    """The paths of the entries of dicts, and of the lists, that hold other objects than they did."""
    return [path for place, now, held in before for path in _changed(place, now, held)]


def _walk(value: Any, path: str) -> Iterator[tuple[str, list | dict, list | dict]]:
    if isinstance(value, (list, dict)):
        yield path, value, value.copy()
    if isinstance(value, (list, tuple, dict)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _walk(part, f"{path}[{key!r}]")


def _changed(path: str, now: list | dict, held: list | dict) -> list[str]:
    if isinstance(held, dict):
        return [f"{path}[{key!r}]" for key in held | now
                if key not in now or key not in held or now[key] is not held[key]]
    same = len(now) == len(held) and all(a is b for a, b in zip(now, held, strict=True))
    return [] if same else [path]
