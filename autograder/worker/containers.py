"""Whether a call rearranged the lists and dicts that it was given: a tensor may be untouched and yet be replaced."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Frame = dict[str, tuple[Any, list]]


def frame(value: Any) -> Frame:
    """Every list and dict inside a value, by its path, with what it holds now."""
    return dict(_walk(value, ""))


def rearranged(before: Frame) -> list[str]:
    """The paths of the containers that hold other objects than they did, or in another order."""
    return [path for path, (container, held) in before.items() if not _same(_held(container), held)]


def _walk(value: Any, path: str) -> Iterator[tuple[str, tuple[Any, list]]]:
    if isinstance(value, (list, dict)):
        yield path, (value, _held(value))
    if isinstance(value, (list, tuple, dict)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _walk(part, f"{path}[{key!r}]")


def _held(container: list | dict) -> list:
    return [part for pair in container.items() for part in pair] if isinstance(container, dict) else list(container)


def _same(now: list, before: list) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
