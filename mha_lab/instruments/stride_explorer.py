"""The stride explorer: logical cells, storage cells and the formula between them, along a chain of operations.

    >>> explorer = StrideExplorer("B, T, H*D", sizes={"B": 2, "T": 5, "H": 3, "D": 4})
    >>> [layout.strides for layout in explorer.layouts(chain="view(B, T, H, D).transpose(1, 2)")]
    [(60, 12, 1), (60, 12, 4, 1), (60, 4, 12, 1)]

Every layout is read from a real torch tensor that went through the operations. Strides, offsets and addresses count
elements. `explore(tensor)` opens it on a tensor of your own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from . import chain as chains
from .chain import MOST_CELLS, Layout, Refused
from .kit import Instrument, grid, scene, table, words
from .stride_text import EXAMPLES, INDEX_LETTERS, SAYS

WIDEST, MOST_SIZE, CORNER = 32, 12, 1024


class StrideExplorer(Instrument):
    """A first tensor, a chain of operations on it, and the wrong chain beside the right one.

    base: extents of a fresh float32 tensor, letters with `sizes` or numbers, such as "B, T, H*D"; or a tensor, of which
    the layout is shown (its corner, if it is big). names: a letter for each of its axes. chain, versus: operations, as
    `mha_lab.instruments.chain` reads them; versus "" compares nothing. notes: lines shown below the formula.

    State: base, sizes, chain, versus, step (which operation is shown, -1 the last), colour (the axis of the first
    tensor that gives the cells their colour), label ("value", the address in the first storage, or "row"), walk (the
    element that the walker stands on).
    """

    name, title = "stride-explorer", "The stride explorer"

    def __init__(self, base: str | Tensor = "B, T, H*D", sizes: dict[str, int] | None = None, chain: str = "",
                 versus: str = "", names: Sequence[str] = (), notes: Sequence[str] = ()):
        self._own = None
        self._notes = list(notes)
        if isinstance(base, Tensor):
            self._own = _corner(base)
            if tuple(self._own.shape) != tuple(base.shape):
                self._notes.append(SAYS["corner"].format(shape=list(self._own.shape), whole=list(base.shape)))
            base = ""
        self._names = list(names)
        given = dict(EXAMPLES[0]["sizes"]) if sizes is None and self._own is None else dict(sizes or {})
        self._start = {"base": base, "sizes": given, "chain": chain, "versus": versus, "step": -1, "colour": -1,
                       "label": "row", "walk": 0}
        self._start = self.settle(self._start)

    def data(self) -> dict:
        own = None
        if self._own is not None:
            layout = self._first(self._start)
            own = {"shape": layout.shape, "strides": layout.strides, "offset": layout.offset, "size": layout.size,
                   "cells": None if len(layout.cells) == layout.size else layout.cells}
            own = {key: list(value) if isinstance(value, tuple) else value for key, value in own.items()}
        return {"own": own, "names": self._names, "notes": self._notes, "says": chains.SAYS | SAYS,
                "ops": list(chains.NAMES), "most": MOST_CELLS, "widest": WIDEST, "letters": INDEX_LETTERS,
                "most_size": MOST_SIZE, "examples": [] if self._own is not None else EXAMPLES,
                "item_bytes": 4 if self._own is None else self._own.element_size()}

    def start(self) -> dict:
        return dict(self._start)

    def settle(self, state: dict) -> dict:
        """A first tensor that exists, a colour axis of it, a step of the chain. The chain itself may be refused."""
        if any(not (isinstance(size, int) and 1 <= size <= MOST_CELLS) for size in state["sizes"].values()):
            raise ValueError(f"sizes are whole numbers from 1 on, got {state['sizes']}")
        rank = len(self._first(state).shape)
        colour = state["colour"] if 0 <= state["colour"] < rank else max(0, rank - 2)
        layouts, _ = self._run(state, state["chain"])
        step = min(state["step"], len(layouts) - 1)
        shown = layouts[step]
        walk = min(max(0, state["walk"]), math.prod(shown.shape) - 1)
        if state["label"] not in ("value", "row"):
            raise ValueError(f"label is 'value' or 'row', got {state['label']!r}")
        return state | {"colour": colour, "step": max(-1, step), "walk": walk}

    def layouts(self, **changes) -> list[Layout]:
        """The layouts of the chain, the first tensor included, up to the first refused operation."""
        state = self.state(**changes)
        return self._run(state, state["chain"])[0]

    def refusal(self, **changes) -> str:
        """Why the chain stops early; "" if it does not."""
        state = self.state(**changes)
        return self._run(state, state["chain"])[1]

    def scene(self, state: dict) -> dict:
        layouts, refusal = self._run(state, state["chain"])
        shown = layouts[state["step"]]
        rows = [_row(i, layout) for i, layout in enumerate(layouts)]
        parts = [table("steps", SAYS["steps"], SAYS["columns"], rows, now=state["step"] % len(layouts)),
                 words("formula", [SAYS["formula"].format(formula=_formula(shown)), *self._notes])]
        if refusal:
            parts.append(words("refusal", [refusal], bad=True))
        wrong, wrong_refusal, notes = None, "", []
        if state["versus"]:
            others, wrong_refusal = self._run(state, state["versus"])
            wrong = others[-1]
            notes = [] if wrong_refusal or refusal else [_compare(layouts[-1], wrong)]
        verdict = "right" if state["versus"] else ""
        parts.append(self._logical(state, "logical", shown, verdict))
        if wrong is not None:
            parts.append(self._logical(state, "wrong", wrong, "wrong",
                                       [state["versus"], *([wrong_refusal] if wrong_refusal else notes)]))
        parts.append(self._storage(state, "storage", shown))
        if wrong is not None and wrong.made != shown.made:
            parts.append(self._storage(state, "wrong_storage", wrong))
        said = [SAYS["alt"].format(op=shown.op or SAYS["first"], shape=chains.listed(shown.shape),
                                   strides=chains.listed(shown.strides), offset=shown.offset,
                                   storage=SAYS["copied"].format(bytes=shown.copied) if shown.copied else SAYS["same"]),
                refusal, *notes]
        return scene(" ".join(sentence for sentence in said if sentence), parts)

    def probe(self, state: dict, part: str, index: int) -> dict | None:
        """What the view says about a cell, and the partner cells that it marks; None where there is no cell."""
        layouts, _ = self._run(state, state["chain"])
        layout = self._run(state, state["versus"])[0][-1] if part.startswith("wrong") else layouts[state["step"]]
        side = "wrong_" if part.startswith("wrong") else ""
        logical, storage = "wrong" if side else "logical", side + "storage"
        if side and layout.made == layouts[state["step"]].made:
            storage = "storage"
        addresses, place = layout.addresses(), {cell: i for i, cell in enumerate(layout.cells)}
        order = _order(layout.shape)
        if part.endswith("storage"):
            if index >= len(layout.cells):
                return None
            readers = [i for i, address in enumerate(addresses) if place[address] == index]
            text = SAYS["read_by" if readers else "unread"].format(
                address=layout.cells[index], holds=self._holds(state, layout, index), count=len(readers),
                readers=" ".join(f"[{chains.listed(_index(i, layout.shape))}]" for i in readers[:6])
                + (" …" if len(readers) > 6 else ""))
            marks = {logical: [order.index(i) for i in readers]}
            return {"text": text, "marks": marks, "tip": f"{layout.cells[index]}"}
        flat = order[index] if index < len(order) else -1
        if flat < 0:
            return None
        at, address = _index(flat, layout.shape), addresses[flat]
        text = SAYS["cell"].format(
            index=chains.listed(at), sum=" + ".join([str(layout.offset)] + [f"{i}·{s}" for i, s in zip(
                at, layout.strides, strict=True)]), address=address, holds=self._holds(state, layout, place[address]))
        if flat + 1 < len(addresses):
            jump = addresses[flat + 1] - address
            text += " " + SAYS["jump"].format(jump=f"+{jump}" if jump >= 0 else f"−{-jump}")
        return {"text": text, "marks": {storage: [place[address]]}, "tip": f"{address}"}

    def _first(self, state: dict) -> Layout:
        return chains.first(*self._tensor(state))

    def _tensor(self, state: dict) -> tuple[Tensor, list[int] | None]:
        if self._own is not None:
            size = self._own.untyped_storage().nbytes() // self._own.element_size()
            if size <= MOST_CELLS:
                return self._own, None
            return self._own, sorted(set(chains.first(self._own, []).addresses()))
        try:
            shape = chains.numbers(state["base"], state["sizes"])
        except Refused as refused:
            raise ValueError(str(refused)) from None
        if not shape or min(shape) < 1 or math.prod(shape) > MOST_CELLS:
            raise ValueError(f"{shape} is no first tensor: extents from 1 on, at most {MOST_CELLS} cells")
        return torch.empty(shape), None

    def _run(self, state: dict, chain: str) -> tuple[list[Layout], str]:
        tensor, cells = self._tensor(state)
        return chains.run(tensor, chains.first(tensor, cells), chain, state["sizes"])

    def _axis_names(self, state: dict) -> list[str]:
        if self._names:
            return self._names
        if self._own is not None:
            return list(INDEX_LETTERS[:len(self._own.shape)])
        texts = [text.strip() for text in state["base"].split(",") if text.strip()]
        return [text.lower() if len(text) == 1 and text.isalpha() else "c" for text in texts]

    def _fill(self, state: dict, number: int, first: Layout) -> str:
        if number < 0:
            return "none"
        return f"t{_index(number, first.shape)[state['colour']] % 8}" if first.shape else "t0"

    def _label(self, state: dict, number: int, first: Layout, addresses: list[int]) -> str:
        if number < 0:
            return ""
        if state["label"] == "value" or not first.shape:
            return str(addresses[number])
        return f"{self._axis_names(state)[state['colour']]}{_index(number, first.shape)[state['colour']]}"

    def _holds(self, state: dict, layout: Layout, place: int) -> str:
        number, first = layout.origin[place], self._first(state)
        if number < 0:
            return SAYS["nothing"]
        names = zip(self._axis_names(state), _index(number, first.shape), strict=True)
        return " ".join(f"{name}{i}" for name, i in names)

    def _logical(self, state: dict, id: str, layout: Layout, verdict: str, notes: Sequence[str] = ()) -> dict:
        first = self._first(state)
        base = first.addresses()
        addresses, place = layout.addresses(), {cell: i for i, cell in enumerate(layout.cells)}
        held = [layout.origin[place[address]] for address in addresses]
        row_axes, col_axes = _axes(len(layout.shape))
        order = _order(layout.shape)
        fills = [self._fill(state, held[flat], first) if flat >= 0 else "void" for flat in order]
        labels = [self._label(state, held[flat], first, base) if flat >= 0 else "" for flat in order]
        if len(layout.shape) < 2:
            width = min(16, len(addresses))
            rows, cols = [str(i) for i in range(0, len(order), width)], [f"+{i}" for i in range(width)]
            blocks = (0, 0)
        else:
            rows, cols = (_margin([layout.shape[axis] for axis in axes]) for axes in (row_axes, col_axes))
            blocks = (layout.shape[-2] if len(row_axes) > 1 else 0, layout.shape[-1] if len(col_axes) > 1 else 0)
        letters = INDEX_LETTERS
        told = SAYS["logical"].format(shape=chains.listed(layout.shape)) if len(layout.shape) < 2 else \
            SAYS["logical_axes"].format(shape=chains.listed(layout.shape), rows="".join(letters[a] for a in row_axes),
                                        cols="".join(letters[a] for a in col_axes))
        return grid(id, told, rows, cols, fills, labels, verdict=verdict, row_block=blocks[0], col_block=blocks[1],
                    notes=notes)

    def _storage(self, state: dict, id: str, layout: Layout) -> dict:
        first = self._first(state)
        base, read = first.addresses(), set(layout.addresses())
        width = _width(layout if layout.made else first)
        count = len(layout.cells)
        padded = -count % width
        fills = [self._fill(state, number, first) if cell in read else "none"
                 for cell, number in zip(layout.cells, layout.origin, strict=True)]
        labels = [self._label(state, number, first, base) for number in layout.origin]
        unread = count - len(read)
        notes = [SAYS["unread_cells"].format(count=unread)] if unread else []
        title = SAYS["storage_copied" if layout.made else "storage"].format(size=layout.size)
        return grid(id, title, [f"@{layout.cells[i]}" for i in range(0, count, width)], [f"+{i}" for i in range(width)],
                    fills + ["void"] * padded, labels + [""] * padded, notes=notes)


def explore(tensor: Tensor, chain: str = "", versus: str = "", names: Sequence[str] = ()) -> None:
    """Opens the stride explorer on a tensor of your own: real strides, offset and storage.

    `names` gives its axes a letter each, such as "bhtd". `chain` and `versus` are operations on it, as in
    `explore(x, "view(2, 5, 3, 4).transpose(1, 2)", versus="view(2, 3, 5, 4)")`. A big tensor is shown by its corner.
    Raises ValueError for a tensor without elements or without a storage of plain strides.
    """
    from . import show

    show(StrideExplorer(tensor, chain=chain, versus=versus, names=names))


def _corner(tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise ValueError(f"only a tensor with strides and a storage can be explored, got {tensor.layout}")
    if tensor.numel() == 0:
        raise ValueError(f"a tensor without elements has nothing to show, got shape {list(tensor.shape)}")
    tensor = tensor.detach()
    while tensor.numel() > CORNER:
        axis = max(range(tensor.dim()), key=lambda a: tensor.shape[a])
        tensor = tensor.narrow(axis, 0, -(-tensor.shape[axis] // 2))
    return tensor


def _index(flat: int, shape: Sequence[int]) -> list[int]:
    found = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        found.append(rest)
    return found[::-1]


def _axes(rank: int) -> tuple[list[int], list[int]]:
    """Which axes go down and which across: alternating, from the last one."""
    return [a for a in range(rank) if (rank - a) % 2 == 0], [a for a in range(rank) if (rank - a) % 2 == 1]


def _margin(sizes: Sequence[int]) -> list[str]:
    return [",".join(map(str, _index(i, sizes))) for i in range(math.prod(sizes))]


def _order(shape: Sequence[int]) -> list[int]:
    """The row-major number of the element that each cell of the drawn grid holds; -1 for no cell."""
    if len(shape) < 2:
        count = math.prod(shape)
        width = min(16, count)
        return list(range(count)) + [-1] * (-count % width)
    rows, cols = _axes(len(shape))
    steps = [math.prod(shape[axis + 1:]) for axis in range(len(shape))]

    def numbers(axes: list[int]) -> list[int]:
        found = [0]
        for axis in axes:
            found = [number + i * steps[axis] for number in found for i in range(shape[axis])]
        return found

    return [down + across for down in numbers(rows) for across in numbers(cols)]


def _width(layout: Layout) -> int:
    """How many storage cells stand in a row: a step of the layout, so that its rows are seen."""
    steps = [stride for stride in layout.strides if 1 < stride <= WIDEST]
    return min(max(steps) if steps else 16, len(layout.cells))


def _formula(layout: Layout) -> str:
    terms = [f"{letter}·{stride}" for letter, stride in zip(INDEX_LETTERS, layout.strides, strict=False)]
    return " + ".join([str(layout.offset), *terms])


def _row(number: int, layout: Layout) -> list[str]:
    storage = SAYS["copied"].format(bytes=layout.copied) if layout.copied else SAYS["same"] if number else ""
    return [str(number), layout.op or SAYS["first"], f"[{chains.listed(layout.shape)}]",
            f"({chains.listed(layout.strides)})", str(layout.offset), "yes" if layout.contiguous else "no", storage]


def _compare(right: Layout, wrong: Layout) -> str:
    if right.shape != wrong.shape:
        return SAYS["other_shape"].format(right=chains.listed(right.shape), wrong=chains.listed(wrong.shape))
    ours, theirs = ([layout.origin[{cell: i for i, cell in enumerate(layout.cells)}[address]]
                     for address in layout.addresses()] for layout in (right, wrong))
    differ = sum(a != b for a, b in zip(ours, theirs, strict=True))
    return SAYS["differ" if differ else "agree"].format(differ=differ, total=len(ours))
