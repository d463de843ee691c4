"""The attention desk: who reads whom, head by head, under a mask that you edit cell by cell.

    >>> desk = AttentionDesk()
    >>> desk.weights(mask="causal").sum(-1).round(decimals=6).unique()
    tensor([1.], dtype=torch.float64)

A plain model over torch tensors in float64; no widget is imported here. Letters: H heads, T queries, S keys, D width of
queries and keys, M width of the output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .desk_text import MASKS, MOST_CHANNELS, MOST_PAIRS, SAYS, VIEWS
from .kit import Instrument, bars, fixed, grid, scene, share, signed, words


class AttentionDesk(Instrument):
    """Attention of one sample.

    q: [H,T,D], k: [H,S,D], v: [H,S,D_v], already projected and split; scores are q·k / sqrt(D). w_o: [M, H·D_v] as an
    `nn.Linear` stores it, b_o: [M]; without w_o there are no head writes. visible: [T,S], True where a query may look.
    targets, sources: a short label for every query and key. Without q, k and v: a seeded toy with H3 T5 S7 D4 M12.

    State: view (one of "who", "lens", "one", "writes", "rank"), mask (a preset, see `visible`), amount (of padding, or
    the width of the window), cells (a mask drawn by hand: T·S characters, "1" visible; "" follows the preset), head (-1
    all), query (the row that the views of a single query show).

    Raises ValueError for shapes that do not belong together and for more than 16,384 pairs.
    """

    name, title = "attention-desk", "The attention desk"

    def __init__(self, q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None,
                 w_o: Tensor | None = None, b_o: Tensor | None = None, *, visible: Tensor | None = None,
                 targets: Sequence[str] = (), sources: Sequence[str] = ()):
        if q is None or k is None or v is None:
            if not q is k is v is None:
                raise ValueError("q, k and v come together")
            q, k, v, w_o = _toy()
        q, k, v = (tensor.detach().double() for tensor in (q, k, v))
        if not (q.dim() == k.dim() == v.dim() == 3 and q.shape[0] == k.shape[0] == v.shape[0]
                and q.shape[2] == k.shape[2] and k.shape[1] == v.shape[1] and min(*q.shape, *v.shape) > 0):
            raise ValueError(f"q [H,T,D], k [H,S,D], v [H,S,D_v] do not fit: {list(q.shape)}, {list(k.shape)}, "
                             f"{list(v.shape)}")
        self._set(q @ k.transpose(1, 2) / math.sqrt(q.shape[2]), v, w_o, b_o, targets, sources)
        cells = ""
        if visible is not None:
            if visible.dtype != torch.bool or tuple(visible.shape) != self.scores.shape[1:]:
                raise ValueError(f"visible is boolean [T,S] = {list(self.scores.shape[1:])}, got {visible.dtype} "
                                 f"{list(visible.shape)}")
            cells = "".join("1" if seen else "0" for seen in visible.flatten().tolist())
        self._cells = cells

    @classmethod
    def from_module(cls, module: nn.Module | Mapping[str, Tensor], x: Tensor, num_heads: int,
                    source: Tensor | None = None, **more) -> AttentionDesk:
        """The desk of a module's weights on the rows x [T,M] (or [1,T,M]), and for cross-attention on a source [S,M].

        module: an `nn.Module` or a state dict with `q_proj.weight [H·D,M]`, `k_proj.weight [G·D,M]`, `v_proj.weight`
        and `o_proj.weight` or `out_proj.weight`, with or without biases and a prefix; or the `in_proj_weight` of
        `nn.MultiheadAttention`. G KV heads are repeated for their query heads. Nothing is done to positions: where a
        model rotates its queries and keys (RoPE), this shows the scores without the rotation.
        Raises ValueError for weights that are missing or do not fit.
        """
        state = module.state_dict() if isinstance(module, nn.Module) else module
        weights = {end: _ending(state, end) for end in (
            "in_proj_weight", "in_proj_bias", "q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias",
            "v_proj.weight", "v_proj.bias", "o_proj.weight", "o_proj.bias", "out_proj.weight", "out_proj.bias")}
        for kind in ("weight", "bias"):
            if weights[f"in_proj_{kind}"] is not None:
                for role, block in zip("qkv", weights[f"in_proj_{kind}"].chunk(3), strict=True):
                    weights[f"{role}_proj.{kind}"] = block
        missing = [f"{role}_proj.weight" for role in "qkv" if weights[f"{role}_proj.weight"] is None]
        if missing:
            raise ValueError(f"no {missing[0]} among {', '.join(list(state)[:8])}")
        rows = [_rows(x), _rows(x if source is None else source), _rows(x if source is None else source)]
        wide = weights["q_proj.weight"].shape[0]
        if num_heads < 1 or wide % num_heads:
            raise ValueError(f"{wide} query channels are not divisible by {num_heads} heads")
        width, made = wide // num_heads, []
        for role, given in zip("qkv", rows, strict=True):
            weight, bias = weights[f"{role}_proj.weight"].double(), weights[f"{role}_proj.bias"]
            if weight.dim() != 2 or weight.shape[1] != given.shape[1]:
                raise ValueError(f"{role}_proj.weight {list(weight.shape)} does not fit rows of {given.shape[1]}")
            made.append(given @ weight.T + (0 if bias is None else bias.double()))
        groups = made[1].shape[1] // width
        if groups < 1 or made[1].shape[1] % width or num_heads % groups or made[2].shape[1] % groups:
            raise ValueError(f"{made[1].shape[1]} key channels are no KV heads of width {width} for {num_heads} heads")
        q, k, v = (part.unflatten(1, (count, -1)).transpose(0, 1)
                   for part, count in zip(made, (num_heads, groups, groups), strict=True))
        k, v = (part.repeat_interleave(num_heads // groups, 0) for part in (k, v))
        name = "o_proj" if weights["o_proj.weight"] is not None else "out_proj"
        return cls(q, k, v, weights[f"{name}.weight"], weights[f"{name}.bias"], **more)

    @classmethod
    def from_scores(cls, scores: Tensor, v: Tensor | None = None, w_o: Tensor | None = None, *,
                    targets: Sequence[str] = (), sources: Sequence[str] = ()) -> AttentionDesk:
        """The desk of scaled scores [H,T,S], for small examples by hand. Values default to zeros."""
        desk = cls.__new__(cls)
        if scores.dim() != 3 or min(scores.shape) < 1:
            raise ValueError(f"scores are [H,T,S], got {list(scores.shape)}")
        values = torch.zeros(scores.shape[0], scores.shape[2], 1) if v is None else v
        desk._set(scores.detach().double(), values.detach().double(), w_o, None, targets, sources)
        desk._cells = ""
        return desk

    def _set(self, scores, values, w_o, b_o, targets, sources) -> None:
        heads, t, s = scores.shape
        if scores.numel() > MOST_PAIRS:
            raise ValueError(f"too large: {heads} heads of {t} × {s} pairs, the limit is {MOST_PAIRS:,}; "
                             "pass fewer tokens")
        self.scores, self.values = scores, values
        self.targets, self.sources = (
            list(map(str, given)) or [f"{letter}{i}" for i in range(count)]
            for given, letter, count in ((targets, "t", t), (sources, "s", s)))
        if len(self.targets) != t or len(self.sources) != s:
            raise ValueError(f"{t} queries and {s} keys, {len(self.targets)} and {len(self.sources)} labels")
        self.writes = self.bias = None
        if w_o is not None:
            if w_o.dim() != 2 or w_o.shape[1] != heads * values.shape[2]:
                raise ValueError(f"w_o is [M, H·D_v] = [M, {heads * values.shape[2]}], got {list(w_o.shape)}")
            blocks = w_o.detach().double().unflatten(1, (heads, -1))                  # [M,H,D_v]
            self.writes = torch.einsum("hsd,mhd->hsm", values, blocks)                # what each value writes
            self.bias = torch.zeros(len(w_o)).double() if b_o is None else b_o.detach().double()

    # ---- what torch says ------------------------------------------------------------------------

    def visible(self, **changes) -> Tensor:
        """[T,S] bool. Presets: "cross" all keys; "causal" keys up to the query's own number (upper left);
        "bottom-right" the last query sees all keys; "padding" all but the last `amount` keys; "window" the last
        `amount` keys up to the bottom-right diagonal."""
        state = self.state(**changes)
        t, s = self.scores.shape[1:]
        if state["cells"]:
            return torch.tensor([cell == "1" for cell in state["cells"]]).view(t, s)
        row, key, shift = torch.arange(t)[:, None], torch.arange(s), s - t
        return {"cross": torch.ones(t, s, dtype=torch.bool), "causal": key <= row, "bottom-right": key <= row + shift,
                "padding": (key < s - state["amount"]).expand(t, s),
                "window": (key <= row + shift) & (key > row + shift - state["amount"])}[state["mask"]]

    def weights(self, **changes) -> Tensor:
        """[H,T,S]: the softmax over the visible keys, NaN in rows without any."""
        return self.scores.masked_fill(~self.visible(**changes), -torch.inf).softmax(-1)

    # ---- the instrument -------------------------------------------------------------------------

    def data(self) -> dict:
        shown = None if self.writes is None else self.writes[..., :MOST_CHANNELS].tolist()
        return {"scores": self.scores.tolist(), "targets": self.targets, "sources": self.sources, "writes": shown,
                "values": self.values[..., :MOST_CHANNELS].tolist(), "width": self.values.shape[2],
                "bias": None if self.bias is None else self.bias[:MOST_CHANNELS].tolist(),
                "channels": 0 if self.bias is None else len(self.bias), "says": SAYS, "views": VIEWS, "masks": MASKS,
                "ranks": [_rank(head) for head in self.scores]}

    def start(self) -> dict:
        return {"view": "who", "mask": "cross", "amount": min(2, len(self.sources)), "cells": self._cells, "head": -1,
                "query": 0}

    def settle(self, state: dict) -> dict:
        heads, t, s = self.scores.shape
        if state["view"] not in VIEWS or state["mask"] not in MASKS:
            raise ValueError(f"view is one of {', '.join(VIEWS)}, mask one of {', '.join(MASKS)}")
        if set(state["cells"]) - {"0", "1"} or len(state["cells"]) not in (0, t * s):
            raise ValueError(f"cells are {t * s} characters 0 and 1, or none")
        for name, low, high in (("head", -1, heads - 1), ("query", 0, t - 1), ("amount", 0, s)):
            if not low <= state[name] <= high:
                raise ValueError(f"{name} is in {low} to {high}, got {state[name]}")
        return state

    def scene(self, state: dict) -> dict:
        visible, weights = self.visible(**state), self.weights(**state)
        heads, t, s = self.scores.shape
        empty = [self.targets[i] for i in range(t) if not visible[i].any()]
        rows = SAYS["no_key"].format(rows=", ".join(empty)) if empty else SAYS["sums"]
        parts = [self._mask(visible)]
        parts += getattr(self, f"_{state['view']}")(state, visible, weights)
        if empty:
            parts.insert(0, words("empty", [rows], bad=True))
        alt = SAYS["alt"].format(view=VIEWS[state["view"]], heads=heads, t=t, s=s, seen=int(visible.sum()), all=t * s,
                                 rows=rows)
        return scene(alt, parts)

    def _mask(self, visible: Tensor) -> dict:
        seen = visible.flatten().tolist()
        return grid("mask", SAYS["mask"], self.targets, self.sources, ["good" if one else "off" for one in seen],
                    ["✓" if one else "·" for one in seen])

    def _who(self, state: dict, visible: Tensor, weights: Tensor) -> list[dict]:
        heads = range(len(weights)) if state["head"] < 0 else [state["head"]]
        shown = [(f"head{h}", SAYS["head"].format(head=h), weights[h]) for h in heads]
        shown.append(("mean", SAYS["mean"].format(heads=len(weights)), weights.mean(0)))
        return [self._weights(id, title, rows, visible) for id, title, rows in shown]

    def _weights(self, id: str, title: str, weights: Tensor, visible: Tensor) -> dict:
        fills, labels = [], []
        for row, seen in zip(weights.tolist(), visible.tolist(), strict=True):
            for value, one in zip(row, seen, strict=True):
                fills.append(share(value) if one else "off")
                labels.append(fixed(value) if one else "")
            fills.append("none")
            labels.append(fixed(sum(row)))
        columns = [sum(column) for column in zip(*weights.tolist(), strict=True)]
        return grid(id, title, [*self.targets, "Σ"], [*self.sources, "Σ"], fills + ["none"] * (len(columns) + 1),
                    [*labels, *map(fixed, columns), ""])

    def _lens(self, state: dict, visible: Tensor, weights: Tensor) -> list[dict]:
        head, query = max(0, state["head"]), state["query"]
        scores, seen = self.scores[head, query], visible[query]
        ways = [scores.masked_fill(~seen, -torch.inf).softmax(-1), (scores * seen).softmax(-1),
                scores.softmax(-1) * seen, scores.masked_fill(seen, -torch.inf).softmax(-1)]
        fills = ["none" if one else "off" for one in seen.tolist()] + ["void"]
        labels = [*map(fixed, scores.tolist()), ""]
        for way in ways:
            fills += [*map(share, way.tolist()), "none"]
            labels += [*map(fixed3, way.tolist()), fixed3(sum(way.tolist()))]
        title = SAYS["lens"].format(head=head, query=self.targets[query])
        return [grid("lens", title, SAYS["lens_rows"], [*self.sources, "Σ"], fills, labels, notes=[SAYS["lens_note"]])]

    def _one(self, state: dict, visible: Tensor, weights: Tensor) -> list[dict]:
        query, heads = state["query"], len(weights)
        joint = (self.scores[:, query].sum(0) / math.sqrt(heads)).masked_fill(~visible[query], -torch.inf).softmax(-1)
        rows = [joint, *weights[:, query], weights[:, query].mean(0)]
        fills, labels = [], []
        for row in rows:
            fills += [*(share(v) if one else "off" for v, one in zip(
                row.tolist(), visible[query].tolist(), strict=True)), "none"]
            labels += [*map(fixed, row.tolist()), fixed(sum(row.tolist()))]
        names = [SAYS["one_row"], *(f"h{h}" for h in range(heads)), SAYS["mean_row"]]
        return [grid("one", SAYS["one"].format(query=self.targets[query]), names, [*self.sources, "Σ"], fills, labels,
                     notes=[SAYS["one_note"]])]

    def _writes(self, state: dict, visible: Tensor, weights: Tensor) -> list[dict]:
        query = state["query"]
        mixed = torch.einsum("hs,hsd->hd", weights[:, query], self.values[..., :MOST_CHANNELS]).tolist()
        wide = self.values.shape[2]
        read = _signed_grid("mixed", SAYS["mixed"].format(query=self.targets[query]), "d", mixed,
                            [f"h{h}" for h in range(len(weights))],
                            [SAYS["mixed_note"], *_first_channels(min(wide, MOST_CHANNELS), wide)])
        if self.writes is None:
            return [read, words("no_w_o", [SAYS["no_w_o"]])]
        rows = [*torch.einsum("hs,hsm->hm", weights[:, query], self.writes[..., :MOST_CHANNELS])]
        if self.bias.any():
            rows.append(self.bias[:MOST_CHANNELS])
        table = [row.tolist() for row in [*rows, sum(rows)]]
        names = [*(f"h{h}" for h in range(len(weights))), *([SAYS["bias_row"]] if self.bias.any() else []), "Σ"]
        notes = [SAYS["writes_note"], *_first_channels(len(table[0]), len(self.bias))]
        title = SAYS["writes"].format(query=self.targets[query])
        return [read, _signed_grid("writes", title, "m", table, names, notes)]

    def _rank(self, state: dict, visible: Tensor, weights: Tensor) -> list[dict]:
        heads = range(len(weights)) if state["head"] < 0 else [state["head"]]
        most = min(self.scores.shape[1:])
        items, rows = [], visible.any(-1)
        for h in heads:
            after = _rank(weights[h][rows])
            before = _rank(self.scores[h])
            items += [(SAYS["before"].format(head=h), float(before), SAYS["of"].format(rank=before, most=most), "w5"),
                      (SAYS["after"].format(head=h), float(after), SAYS["of"].format(rank=after, most=most), "w9")]
        return [bars("rank", SAYS["rank"], items, float(most)), words("rank_note", [SAYS["rank_note"]])]

    def probe(self, state: dict, part: str, index: int) -> dict | None:
        """What the view says about a cell of the mask or of the weights, and the same pair in every other grid."""
        heads, t, s = self.scores.shape
        columns = s if part == "mask" else s + 1
        row, key = divmod(index, columns)
        if not (part == "mask" or part == "mean" or part.startswith("head")):
            return None
        weights, seen = self.weights(**state), self.visible(**state)
        chosen = list(range(heads)) if state["head"] < 0 else [state["head"]]
        head = int(part[4:]) if part.startswith("head") else -1
        table = weights.mean(0) if head < 0 else weights[head]
        if row == t or key == s:
            if row == t and key == s:
                return None
            told = table[row] if key == s else table[:, key]
            name = self.targets[row] if key == s else self.sources[key]
            text = SAYS["row_sum" if key == s else "column_sum"].format(name=name, sum=fixed3(sum(told.tolist())))
            return {"text": text, "marks": {}, "tip": ""}
        pairs = [SAYS["pair"].format(head=h, score=fixed(self.scores[h, row, key].item()),
                                     weight=fixed3(weights[h, row, key].item()))
                 for h in (chosen if head < 0 else [head])]
        text = SAYS["reads" if seen[row, key] else "hidden"].format(query=self.targets[row], key=self.sources[key],
                                                                    pairs="; ".join(pairs[:8]))
        marks = {"mask": [row * s + key]}
        if state["view"] == "who":
            marks |= {id: [row * (s + 1) + key] for id in [*(f"head{h}" for h in chosen), "mean"]}
        return {"text": text, "marks": marks, "tip": fixed3(table[row, key].item())}


def _signed_grid(id: str, title: str, letter: str, table: list[list[float]], names: list[str],
                 notes: list[str]) -> dict:
    largest = max((abs(v) for row in table for v in row if math.isfinite(v)), default=0.0)
    return grid(id, title, names, [f"{letter}{i}" for i in range(len(table[0]))],
                [signed(v, largest) for row in table for v in row], [fixed(v) for row in table for v in row],
                notes=notes)


def _first_channels(shown: int, every: int) -> list[str]:
    return [SAYS["first_channels"].format(shown=shown, all=every)] if shown < every else []


def fixed3(value: float) -> str:
    return fixed(value, 3)


def _toy() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    q, k, v, w_o = (torch.randn(*shape, generator=draw, dtype=torch.float64)
                    for shape in ((3, 5, 4), (3, 7, 4), (3, 7, 4), (12, 12)))
    return 2 * q, k, v, w_o / 3


def _rank(matrix: Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix)) if matrix.numel() else 0


def _rows(x: Tensor) -> Tensor:
    rows = x.detach().double()
    rows = rows[0] if rows.dim() == 3 and len(rows) == 1 else rows
    if rows.dim() != 2:
        raise ValueError(f"rows are [tokens, M] or [1, tokens, M], got {list(x.shape)}")
    return rows


def _ending(state: Mapping[str, Tensor], end: str) -> Tensor | None:
    found = [name for name in state if name == end or name.endswith(f".{end}")]
    if len(found) > 1:
        raise ValueError(f"several weights end in {end}: {', '.join(found[:3])}; pass those of one layer")
    return state[found[0]].detach() if found else None
