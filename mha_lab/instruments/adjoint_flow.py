"""Adjoint flow: choose one number of the output, and see which inputs it reaches, by which path, and how strongly.

    >>> flow = AdjointFlow()
    >>> flow.paths("cross", cell=0).keys()
    dict_keys(['q', 'k', 'v'])

One sample, two heads of width 2 over rows of 4. Every number is read from torch's autograd: the gradient of one output
number, split by the path that it took. In a self-attention call the three paths end in one tensor, and add.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ..given import attend
from .kit import Instrument, fixed, grid, scene, signed, table, words

T, S, M, H = 3, 4, 4, 2
CALLS = {"cross": "cross-attention: source rows feed keys and values",
         "self": "self-attention: one tensor feeds all three"}
MASKS = {"all": "every key visible", "causal": "no key after the query"}
DROPS = {"": "nothing", "k": "the key path", "v": "the value path", "last": "all but the last path written"}
PATHS = {"q": "query path", "k": "key path", "v": "value path"}
SAYS = {
    "cross": "{out} moves target rows {q} by the query path, source rows {k} by the key path, {v} by the value path.",
    "self": "{out} moves rows {q} by the query path, {k} by the key path and {v} by the value path; x gets their sum.",
    "nothing": "none",
    "wrong": "Without it the gradient is off by {off} in {cells} of {all} numbers, and no shape complains.",
    "still right": "Here that path carries nothing, so the fault would not show.",
    "probe": "{part}, row {row}, channel {channel}: {value}",
}


class AdjointFlow(Instrument):
    """State: call ("cross", "self"), mask ("all", "causal"), cell (the output number, t·M + m), drop ("", "k", "v",
    "last": the path that a wrong backward pass forgets)."""

    name, title = "adjoint-flow", "Adjoint flow"

    def __init__(self, seed: int = 3):
        self._seed = seed
        self._data = {"says": SAYS, "calls": CALLS, "masks": MASKS, "drops": DROPS, "paths": PATHS,
                      "sizes": {"T": T, "S": S, "M": M, "H": H},
                      "flows": {f"{call} {mask}": self._flows(call, mask) for call in CALLS for mask in MASKS}}

    def _forward(self, call: str, mask: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(the rows that start each path, the tensors on the way), float64, with a graph."""
        draw = torch.Generator().manual_seed(self._seed)
        normal = partial(torch.randn, generator=draw, dtype=torch.float64)
        target, source = normal(1, T, M), normal(1, S, M)
        weights = {role: normal(M, M) * scale for role, scale in zip("qkvo", (0.8, 0.8, 0.5, 0.5), strict=True)}
        rows = {"q": target, "k": source, "v": source} if call == "cross" else dict.fromkeys("qkv", target)
        starts = {role: x.clone().requires_grad_() for role, x in rows.items()}
        heads = {role: F.linear(x, weights[role]).unflatten(-1, (H, -1)).transpose(1, 2) for role, x in starts.items()}
        keys = starts["k"].shape[1]
        visible = torch.ones(T, keys, dtype=torch.bool).tril(keys - T) if mask == "causal" else None
        mixed, probabilities = attend(*heads.values(), visible)
        merged = mixed.transpose(1, 2).flatten(2)
        output = F.linear(merged, weights["o"])
        return starts, heads | {"probabilities": probabilities, "mixed": mixed, "merged": merged, "output": output}

    def _flows(self, call: str, mask: str) -> dict:
        """The gradient of every output number, by path, and its size on every tensor of the way."""
        starts, way = self._forward(call, mask)
        named = {"output": way["output"], "merged": way["merged"], "heads": way["mixed"],
                 "probabilities": way["probabilities"], "q": way["q"], "k": way["k"], "v": way["v"]}
        nodes = [[name, str(list(tensor.shape))] for name, tensor in named.items()]
        by_path: dict[str, list] = {role: [] for role in PATHS}
        sizes = []
        for number in way["output"].flatten():
            grads = torch.autograd.grad(number, [*starts.values(), *list(named.values())[1:]], retain_graph=True,
                                        allow_unused=True)
            for role, grad in zip(PATHS, grads, strict=False):
                by_path[role].append([round(v, 6) for v in grad.flatten().tolist()])
            sizes.append([1.0] + [round(g.abs().sum().item(), 6) for g in grads[len(PATHS):]])
        return {"nodes": nodes, "paths": by_path, "sizes": sizes}

    def paths(self, call: str, cell: int, mask: str = "all") -> dict[str, list[float]]:
        """The gradient of one output number for the rows at the start of each path, row by row."""
        flow = self._data["flows"][f"{call} {mask}"]
        return {role: flow["paths"][role][cell] for role in PATHS}

    def data(self) -> dict:
        return self._data

    def start(self) -> dict:
        return {"call": "cross", "mask": "all", "cell": 5, "drop": ""}

    def settle(self, state: dict) -> dict:
        for name, choices in (("call", CALLS), ("mask", MASKS), ("drop", DROPS)):
            if state[name] not in choices:
                raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}, not {state[name]!r}")
        if not (isinstance(state["cell"], int) and 0 <= state["cell"] < T * M):
            raise ValueError(f"cell counts the {T * M} output numbers from 0, got {state['cell']!r}")
        return state

    def scene(self, state: dict) -> dict:
        call, cell = state["call"], state["cell"]
        flow = self._data["flows"][f"{call} {state['mask']}"]
        grads = {role: flow["paths"][role][cell] for role in PATHS}
        largest = max(abs(v) for values in grads.values() for v in values)
        out = f"output[{cell // M},{cell % M}]"
        parts = [grid("output", f"output: {out}", _rows("t", T), _rows("c", M),
                      ["t1" if i == cell else "none" for i in range(T * M)],
                      ["1" if i == cell else "" for i in range(T * M)])]
        parts += [_gradient(role, PATHS[role], values, call, largest) for role, values in grads.items()]
        whole, wrong = total(call, grads, ""), total(call, grads, state["drop"])
        what = "x: the sum of three paths" if call == "self" else "source: key path + value path"
        largest = max([largest] + [abs(v) for v in whole])
        parts.append(_gradient("sum", what, whole, call, largest, "right" if state["drop"] else ""))
        reached = {role: _reached(values) for role, values in grads.items()}
        lines = [SAYS[call].format(out=out, **reached)]
        if state["drop"]:
            parts.append(_gradient("wrong", f"forgotten: {DROPS[state['drop']]}", wrong, call, largest, "wrong"))
            off = [abs(a - b) for a, b in zip(whole, wrong, strict=True)]
            count = sum(o > 1e-6 for o in off)
            lines.append(SAYS["wrong"].format(off=fixed(max(off)), cells=count, all=len(off)) if count
                         else SAYS["still right"])
        rows = [[*node, fixed(size)] for node, size in zip(flow["nodes"], flow["sizes"][cell], strict=True)]
        parts.append(table("way", "the way back: shapes, and how much arrives",
                           ["tensor", "shape", "sum of |gradient|"], rows))
        parts.append(words("say", lines))
        return scene(" ".join(lines), parts)


def total(call: str, grads: dict[str, list[float]], drop: str) -> list[float]:
    """What reaches the tensor where several paths end, if a backward pass forgets `drop`."""
    ends = ["q", "k", "v"] if call == "self" else ["k", "v"]
    kept = [ends[-1]] if drop == "last" else [role for role in ends if role != drop]
    return [sum(values) for values in zip(*(grads[role] for role in kept), strict=True)]


def _rows(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def _gradient(id: str, title: str, values: list[float], call: str, largest: float, verdict: str = "") -> dict:
    letter = "t" if id == "q" or call == "self" else "s"
    return grid(id, title, _rows(letter, len(values) // M), _rows("c", M), [signed(v, largest) for v in values],
                [fixed(v) if abs(v) > 1e-6 else "0" for v in values], verdict=verdict)


def _reached(values: list[float]) -> str:
    rows = [i for i in range(len(values) // M) if any(abs(v) > 1e-6 for v in values[i * M:(i + 1) * M])]
    return ", ".join(map(str, rows)) or SAYS["nothing"]
