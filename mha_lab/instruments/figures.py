"""What the picture of a stage shows, as plain data: panels of cells, each with the token it comes from.

The cells are read from real tensors of addresses (`ShapeMachine.origins`), batch item 0. The same data is
made in the browser by `js/figures.js`; a test holds the two equal.

figure = {"stage", "alt", "columns": [{"verdict", "heading", "caption", "panels": [panel]}]}
panel  = {"title", "row_axis", "rows", "groups", "cols", "bars", "cells", "side"}
cell   = [token, top label, bottom label, in colour?]; None in rows, cols or cells is a gap ("...").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .shape_text import SPEC

if TYPE_CHECKING:
    from .shape_machine import ShapeMachine

ROWS, COLUMNS, COMPARED_COLUMNS, HEAD_COLUMNS = 10, 24, 12, 8


def figure(machine: ShapeMachine, stage: str = "heads", tensor: str = "q", head: int = 0) -> dict:
    """The picture of a stage. `tensor` chooses q, k or v where a stage has all three; `head` the head.

    Raises LookupError for an unknown stage, ValueError for another tensor or a head out of range.
    """
    if tensor not in ("q", "k", "v"):
        raise ValueError(f"tensor must be 'q', 'k' or 'v', got {tensor!r}")
    if not 0 <= head < machine.num_heads:
        raise ValueError(f"head must be in 0 to {machine.num_heads - 1}, got {head!r}")
    facts = machine.stage(stage).tensors
    fact = facts["qkv".index(tensor)] if len(facts) == 3 else facts[0]
    pick = _Pick(machine, tensor, head)
    if stage == "heads":
        columns = pick.compare_split()
    elif stage == "merged":
        columns = pick.compare_merge()
    else:
        columns = [{"verdict": None, "heading": "", "caption": "", "panels": [pick.plain(stage, fact.name)]}]
    captions = " ".join(f"{column['verdict'].capitalize()}: {column['caption']}"
                        for column in columns if column["verdict"])
    alt = f"{machine.stage(stage).title}: {fact.name}, shape {list(fact.shape)}. {captions}".strip()
    return {"stage": stage, "alt": alt, "columns": columns}


def shown(count: int, limit: int, first: int = 0, last: int = 0) -> list[int | None]:
    """Which of `count` indices a picture shows: all, or both ends and the focus [first, last), gaps as None."""
    if count <= limit:
        return list(range(count))
    room = limit - 4
    focus = list(range(first, last))
    if len(focus) > room:
        focus = focus[: room // 2] + focus[len(focus) - room // 2:]
    picked = sorted({0, 1, count - 2, count - 1, *focus})
    result: list[int | None] = []
    for index in picked:
        if result and index != result[-1] + 1:
            result.append(None)
        result.append(index)
    return result


def tokens_text(letter: str, tokens: list[int]) -> str:
    """"t0, t1, t3"; of more than four the first three and the last."""
    names = [f"{letter}{token}" for token in tokens]
    return ", ".join(names if len(names) <= 4 else names[:3] + ["…", names[-1]])


class _Pick:
    """One choice of tensor and head, and the panels for it."""

    def __init__(self, machine: ShapeMachine, tensor: str, head: int):
        self.machine, self.tensor, self.head = machine, tensor, head
        sizes = machine.sizes
        self.heads = sizes["H"]
        self.length, self.letter = (sizes["T"], "T") if tensor == "q" else (sizes["S"], "S")
        self.width, self.axis = (sizes["D_v"], "D_v") if tensor == "v" else (sizes["D"], "D")

    def plain(self, stage: str, name: str) -> dict:
        machine, sizes = self.machine, self.machine.sizes
        if stage in ("inputs", "output"):
            letter = "T" if stage == "output" else self.letter
            cols = shown(sizes["M"], COLUMNS)
            cells = machine.origins(name)[0].tolist()
            return self._panel(
                f"{name}[0]", letter, sizes[letter], cols, [[_bar("M", cols, sizes["M"])]], "m",
                lambda r, c: _cell(letter, cells[r][c] // sizes["M"], "m", cells[r][c] % sizes["M"]))
        if stage in ("packed", "split"):
            return self._heads_side_by_side(name, self.letter, self.length, self.axis, self.width,
                                            split=stage == "split", origin=self._packed_origin)
        if stage == "token_major":
            return self._heads_side_by_side(name, "T", sizes["T"], "D_v", sizes["D_v"], split=True,
                                            origin=self._head_origin)
        index = f"{name}[0, {self.head}]"
        cells = machine.origins(name)[0, self.head].tolist()
        if stage in ("scores", "probabilities"):
            cols = shown(sizes["S"], ROWS)
            pairs = sizes["S"] * sizes["T"]
            return self._panel(
                index, "T", sizes["T"], cols, [[_bar("S", cols, sizes["S"])]], "s",
                lambda r, c: _cell("T", cells[r][c] % pairs // sizes["S"], "s", cells[r][c] % sizes["S"]),
                side=(lambda row: "Σ over S = 1") if stage == "probabilities" else None)
        cols = shown(sizes["D_v"], HEAD_COLUMNS)
        return self._panel(index, "T", sizes["T"], cols, [[_bar("D_v", cols, sizes["D_v"])]], "d",
                           lambda r, c: self._named("T", self._head_origin(cells[r][c])))

    def compare_split(self) -> list[dict]:
        machine, name = self.machine, self.tensor
        right, wrong = (machine.origins(f"{name}_{step}")[0] for step in ("heads", "wrong"))
        differ = int((right != wrong).sum())
        tokens = sorted({self._packed_origin(value)[0] for value in wrong[self.head].flatten().tolist()})
        first = self.head * self.width
        says = SPEC["sentences"]
        held = tokens_text(self.letter.lower(), tokens)
        captions = {"right": says["split_right"].format(head=self.head, first=first, last=first + self.width - 1),
                    "wrong": says["split_wrong"].format(head=self.head, differ=f"{differ:,}",
                                                        total=f"{right.numel():,}", tokens=held)}
        if not differ:
            captions["wrong"] = says["agree"]
        headings = {"right": f"packed.view(B, {self.letter}, H, {self.axis}).transpose(1, 2)",
                    "wrong": machine.fact(f"{name}_wrong").op}
        return [{"verdict": verdict, "heading": headings[verdict], "caption": captions[verdict],
                 "panels": [self._takers(cells), self._head_rows(cells, verdict)]}
                for verdict, cells in (("right", right), ("wrong", wrong))]

    def _takers(self, heads) -> dict:
        """The packed tensor with, in each cell, the head that takes it."""
        width, channels = self.width, self.heads * self.width
        taker = {}
        for index, row in enumerate(heads.tolist()):
            taker |= {value: index for cells in row for value in cells}
        cols = shown(channels, COMPARED_COLUMNS, self.head * width, (self.head + 1) * width)

        def cell(row: int, col: int) -> list:
            head = taker[row * channels + col]
            return [row, f"h{head}", "", head == self.head]

        title = f"{self.tensor}_packed[0]: which head takes a cell"
        return self._panel(title, self.letter, self.length, cols,
                           [[_bar(f"H·{self.axis}", cols, channels)]], "c", cell)

    def _head_rows(self, heads, verdict: str) -> dict:
        cells = heads[self.head].tolist()
        cols = shown(self.width, HEAD_COLUMNS)
        name = "heads" if verdict == "right" else "wrong"

        def side(row: int) -> str:
            tokens = sorted({self._packed_origin(value)[0] for value in cells[row]})
            return f"holds {tokens_text(self.letter.lower(), tokens)}"

        title = f"{self.tensor}_{name}[0, {self.head}]: what head {self.head} then holds"
        return self._panel(title, self.letter, self.length, cols, [[_bar(self.axis, cols, self.width)]], "d",
                           lambda r, c: self._named(self.letter, self._packed_origin(cells[r][c])),
                           side=side, plain_rows=True)

    def compare_merge(self) -> list[dict]:
        machine, sizes, says = self.machine, self.machine.sizes, SPEC["sentences"]
        right, wrong = (machine.origins(name)[0] for name in ("merged", "merged_wrong"))
        differ = int((right != wrong).sum())
        channels = sizes["H"] * sizes["D_v"]
        tokens = sorted({self._head_origin(value)[0] for value in wrong[0].tolist()})
        captions = {"right": says["merge_right"].format(last=channels - 1),
                    "wrong": says["merge_wrong"].format(differ=f"{differ:,}", total=f"{right.numel():,}",
                                                        tokens=tokens_text("t", tokens))}
        if not differ:
            captions["wrong"] = says["agree"]
        headings = {"right": "head_output.transpose(1, 2).reshape(B, T, H * D_v)",
                    "wrong": machine.fact("merged_wrong").op}
        cols = shown(channels, COMPARED_COLUMNS, self.head * sizes["D_v"], (self.head + 1) * sizes["D_v"])
        columns = []
        for verdict, tensor in (("right", right), ("wrong", wrong)):
            cells = tensor.tolist()
            name = "merged" if verdict == "right" else "merged_wrong"

            def side(row: int, cells=cells) -> str:
                held = sorted({self._head_origin(value)[0] for value in cells[row]})
                return f"holds {tokens_text('t', held)}"

            panel = self._panel(f"{name}[0]", "T", sizes["T"], cols, [[_bar("H·D_v", cols, channels)]], "c",
                                lambda r, c, cells=cells: self._named("T", self._head_origin(cells[r][c])),
                                side=side, plain_rows=True)
            columns.append({"verdict": verdict, "heading": headings[verdict], "caption": captions[verdict],
                            "panels": [panel]})
        return columns

    def _heads_side_by_side(self, name, letter, length, axis, width, split, origin) -> dict:
        channels = self.heads * width
        cells = self.machine.origins(name)[0].reshape(length, channels).tolist()
        cols = shown(channels, COLUMNS, self.head * width, (self.head + 1) * width)
        bars = [[_bar(f"H·{axis}", cols, channels)]]
        groups = None
        if split:
            groups = [None if col is None else col // width for col in cols]
            spans: dict[int, list[int]] = {}
            for index, group in enumerate(groups):
                if group is not None:
                    spans.setdefault(group, []).append(index)
            bars = [[_span("H", f"h{head}", f"h{head}", span) for head, span in spans.items()],
                    [_span(axis, f"{axis} = {width}", axis, span) for span in spans.values()]]
        return self._panel(f"{name}[0]", letter, length, cols, bars, "d" if split else "c",
                           lambda r, c: self._named(letter, origin(cells[r][c])), groups=groups,
                           col_number=(lambda col: col % width) if split else None)

    def _panel(self, title, row_axis, length, cols, bars, col_letter, cell, side=None, groups=None,
               plain_rows=False, col_number=None) -> dict:
        rows = shown(length, ROWS, 0, ROWS - 4)
        number = col_number or (lambda col: col)
        prefix = "" if plain_rows else row_axis.lower()
        return {
            "title": title, "row_axis": row_axis,
            "rows": [None if row is None else f"{prefix}{row}" for row in rows],
            "groups": groups,
            "cols": [None if col is None else f"{col_letter}{number(col)}" for col in cols],
            "bars": bars,
            "cells": [[None if None in (row, col) else cell(row, col) for col in cols] for row in rows],
            "side": [side(row) if side and row is not None else "" for row in rows],
        }

    def _packed_origin(self, address: int) -> tuple[int, int]:
        """(token, packed channel) of an address in batch item 0 of the packed tensor."""
        return divmod(address, self.heads * self.width)

    def _head_origin(self, address: int) -> tuple[int, int]:
        """(token, packed channel h·D_v + d) of an address in batch item 0 of `head_output`."""
        length, width = self.machine.q_len, self.machine.d_v
        row, channel = divmod(address, width)
        head, token = divmod(row, length)
        return token, head * width + channel

    @staticmethod
    def _named(letter: str, origin: tuple[int, int]) -> list:
        return _cell(letter, origin[0], "c", origin[1])


def _cell(letter: str, token: int, col_letter: str, channel: int) -> list:
    return [token, f"{letter.lower()}{token}", f"{col_letter}{channel}", True]


def _bar(axis: str, cols: list, size: int) -> dict:
    return _span(axis, f"{axis} = {size}", axis, list(range(len(cols))))


def _span(axis: str, text: str, short: str, span: list[int]) -> dict:
    return {"axis": axis, "text": text, "short": short, "from": span[0], "to": span[-1]}
