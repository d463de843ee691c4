"""A chain of tensor operations as text, such as `view(B, T, H, D).transpose(1, 2)[..., 1:]`, run on real torch tensors.

An argument is a product of whole numbers and of letters whose sizes are given (`2*D`). An operation that torch refuses
is a step with a reason, not an exception. `js/chain.js` knows the same rules; a test compares both with torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

MOST_CELLS = 4096
NAMES = ("view", "reshape", "transpose", "permute", "contiguous", "expand", "as_strided", "unsqueeze", "flatten")
SAYS = {
    "read": "“{text}” cannot be read. Known are {names} and slices such as [..., 1:3].",
    "letter": "{text} has no size here.",
    "arguments": "{op} takes other arguments.",
    "positive": "Every size is at least 1.",
    "count": "[{shape}] has {have} elements, the new shape asks for {want}.",
    "merge": "view refuses: with strides ({strides}) these axes do not continue each other, so the same order of "
             "elements needs a copy. reshape would make it: {bytes} bytes.",
    "axis": "There is no axis {axis} among {rank}.",
    "permute": "permute names each of the {rank} axes once.",
    "expand": "expand repeats axes of size 1 only: [{shape}] does not become [{want}].",
    "strided": "as_strided takes as many strides as sizes, and none below 0.",
    "outside": "This would read storage cell {address}, and there are {size}.",
    "window": "as_strided could leave the part of this big tensor that is shown.",
    "slice": "[{items}] does not fit [{shape}], or leaves nothing.",
    "cells": "{count} cells are more than the {most} that are drawn.",
}
_CALL = re.compile(r"\.?\s*(\w+)\(((?:[^()]|\([^()]*\))*)\)|\[([^\]]*)\]")
_FACTOR = re.compile(r"-?\d+|[A-Z]")


class Refused(ValueError):
    """An operation that cannot be done, with its reason."""


def sentence(name: str, **values) -> str:
    return SAYS[name].format(**values)


def listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def split(chain: str) -> tuple[list[str], str]:
    """The operations of a chain as texts, and what could not be read after them."""
    found, at, chain = [], 0, chain.strip()
    while at < len(chain):
        match = _CALL.match(chain, at)
        if not match or match[1] and match[1] not in NAMES:
            break
        found.append(match[0].lstrip(". "))
        at = match.end()
        while at < len(chain) and chain[at] == " ":
            at += 1
    return found, chain[at:]


def number(text: str, sizes: Mapping[str, int]) -> int:
    """The value of an argument. Raises Refused when it cannot be read."""
    result = 1
    for factor in text.split("*"):
        factor = factor.strip()
        if not _FACTOR.fullmatch(factor):
            raise Refused(sentence("read", text=text.strip(), names=listed(NAMES)))
        if factor.isalpha() and factor not in sizes:
            raise Refused(sentence("letter", text=factor))
        result *= sizes[factor] if factor.isalpha() else int(factor)
    return result


def numbers(text: str, sizes: Mapping[str, int]) -> list[int]:
    """A list of arguments, in brackets or not."""
    return [number(part, sizes) for part in re.sub(r"[()\[\]]", "", text).split(",") if part.strip()]


@dataclass(frozen=True)
class Layout:
    """One tensor of a chain: how it lies in a storage, and which cell of the first tensor each storage cell holds.

    strides, offset, addresses: in elements. copied: the bytes that the step wrote, 0 for a view.
    cells: the addresses of the storage that are known, in order. origin: for each of them the row-major number of the
    element of the first tensor, or -1. made: the operations that ended in the copy which wrote this storage, "" for the
    first one.
    """

    op: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    contiguous: bool
    copied: int
    size: int
    cells: tuple[int, ...]
    origin: tuple[int, ...]
    made: str = ""

    def addresses(self) -> list[int]:
        """The storage address of every element, in row-major order."""
        found = [self.offset]
        for size, stride in zip(self.shape, self.strides, strict=True):
            found = [address + i * stride for address in found for i in range(size)]
        return found


def first(tensor: Tensor, cells: Sequence[int] | None = None) -> Layout:
    """The layout that a chain starts from. `cells` limits a storage of which only a part is drawn."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    cells = tuple(range(size)) if cells is None else tuple(cells)
    layout = Layout("", tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.is_contiguous(), 0, size,
                    cells, ())
    numbers: dict[int, int] = {}
    for index, address in enumerate(layout.addresses()):
        numbers.setdefault(address, index)
    return _with(layout, origin=tuple(numbers.get(cell, -1) for cell in cells))


def run(tensor: Tensor, start: Layout, chain: str, sizes: Mapping[str, int]) -> tuple[list[Layout], str]:
    """Every layout of a chain on a tensor, the start included, and the reason why it stopped early ("" if it did not).
    """
    ops, rest = split(chain)
    layouts = [start]
    for op in ops:
        try:
            tensor, layout = _step(tensor, layouts[-1], op, sizes)
        except Refused as refused:
            return layouts, str(refused)
        if layout.copied:
            layout = _with(layout, made=" ".join([*(done.op for done in layouts[1:]), op]))
        layouts.append(layout)
    return layouts, sentence("read", text=rest, names=listed(NAMES)) if rest else ""


def _step(tensor: Tensor, before: Layout, op: str, sizes: Mapping[str, int]) -> tuple[Tensor, Layout]:
    reason, call = _plan(tensor, before, op, sizes)
    if not reason:
        made = call()
        if made.numel() > MOST_CELLS:
            reason = sentence("cells", count=made.numel(), most=MOST_CELLS)
        elif made.numel() == 0:
            reason = sentence("slice", items=op[1:-1], shape=listed(before.shape))
    if reason:
        raise Refused(reason)
    copies = made.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    layout = Layout(op, tuple(made.shape), made.stride(), made.storage_offset(), made.is_contiguous(),
                    made.numel() * made.element_size() if copies else 0, before.size, before.cells, before.origin,
                    before.made)
    if copies:
        held = dict(zip(before.cells, before.origin, strict=True))
        order = before.addresses()  # a copy reads what was there in row-major order
        layout = _with(layout, size=len(order), cells=tuple(range(len(order))),
                       origin=tuple(held[address] for address in order))
    return made, layout


def _plan(tensor: Tensor, before: Layout, op: str, sizes: Mapping[str, int]):
    """("", the call to torch) or (the reason why torch refuses it, None)."""
    if op.startswith("["):
        return _plan_slice(tensor, before, op, sizes)
    name, arguments = op[:op.index("(")], op[op.index("(") + 1:-1]
    rank, shape, count = len(before.shape), before.shape, math.prod(before.shape)
    if name == "as_strided":
        return _plan_strided(tensor, before, arguments, sizes)
    args = numbers(arguments, sizes)
    if name in ("view", "reshape"):
        if args.count(-1) == 1:
            known = -math.prod(args)
            if known > 0 and count % known == 0:
                args[args.index(-1)] = count // known
        if any(size < 1 for size in args):
            return sentence("positive"), None
        if math.prod(args) != count:
            return sentence("count", shape=listed(shape), have=count, want=math.prod(args)), None
        if name == "view":
            try:
                tensor.view(args)
            except RuntimeError:
                return sentence("merge", strides=listed(before.strides), bytes=count * tensor.element_size()), None
        return "", lambda: getattr(tensor, name)(args)
    if name == "expand":
        lead = len(args) - rank
        filled = [size if size != -1 or i < lead else shape[i - lead] for i, size in enumerate(args)]
        if lead < 0 or any(size < 1 for size in filled) or any(
                old not in (1, new) for old, new in zip(shape, filled[lead:], strict=True)):
            return sentence("expand", shape=listed(shape), want=listed(args)), None
        if math.prod(filled) > MOST_CELLS:
            return sentence("cells", count=math.prod(filled), most=MOST_CELLS), None
        return "", lambda: tensor.expand(filled)
    if name == "contiguous":
        return (sentence("arguments", op=name), None) if args else ("", tensor.contiguous)
    if name == "permute":
        if sorted(axis % rank if rank and -rank <= axis < rank else -1 for axis in args) != list(range(rank)):
            return sentence("permute", rank=rank), None
        return "", lambda: tensor.permute(args)
    wanted = {"transpose": (2, 2), "unsqueeze": (1, 1), "flatten": (0, 2)}[name]
    if not wanted[0] <= len(args) <= wanted[1]:
        return sentence("arguments", op=name), None
    rooms = rank + 1 if name == "unsqueeze" else rank
    for axis in args:
        if not -rooms <= axis < rooms:
            return sentence("axis", axis=axis, rank=rooms), None
    if name == "flatten":
        from_, to = (axis % rank if rank else 0 for axis in [*args, -1][:2]) if args else (0, rank - 1)
        if from_ > to and rank:
            return sentence("arguments", op=name), None
    return "", lambda: getattr(tensor, name)(*args)


def _plan_strided(tensor: Tensor, before: Layout, arguments: str, sizes: Mapping[str, int]):
    groups = re.findall(r"\(([^()]*)\)", arguments)
    rest = numbers(re.sub(r"\([^()]*\)", "", arguments), sizes)
    if len(groups) != 2 or len(rest) > 1:
        return sentence("arguments", op="as_strided"), None
    shape, strides = (numbers(group, sizes) for group in groups)
    offset = rest[0] if rest else before.offset
    if any(size < 1 for size in shape):
        return sentence("positive"), None
    if len(shape) != len(strides) or any(stride < 0 for stride in strides) or offset < 0:
        return sentence("strided"), None
    if len(before.cells) != before.size:
        return sentence("window"), None
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if last >= before.size:
        return sentence("outside", address=last, size=before.size), None
    return "", lambda: tensor.as_strided(shape, strides, offset)


def _plan_slice(tensor: Tensor, before: Layout, op: str, sizes: Mapping[str, int]):
    items = [item.strip() for item in op[1:-1].split(",") if item.strip()]
    reason = sentence("slice", items=op[1:-1], shape=listed(before.shape))
    rank = len(before.shape)
    if items.count("...") > 1 or len(items) - items.count("...") > rank:
        return reason, None
    if "..." not in items:
        items.append("...")
    at = items.index("...")
    items[at:at + 1] = [":"] * (rank - len(items) + 1)
    index: list = []
    for item, size in zip(items, before.shape, strict=True):
        bounds = [number(part, sizes) if part.strip() else None for part in item.split(":")]
        if len(bounds) == 1:
            if bounds[0] is None or not -size <= bounds[0] < size:
                return reason, None
            index.append(bounds[0])
        elif len(bounds) > 3 or len(bounds) == 3 and bounds[2] is not None and bounds[2] < 1:
            return reason, None
        else:
            index.append(slice(*bounds))
    return "", lambda: tensor[tuple(index)]


def _with(layout: Layout, **changes) -> Layout:
    return Layout(**{**layout.__dict__, **changes})
