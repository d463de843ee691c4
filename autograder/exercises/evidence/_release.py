"""A layer with its optimizer as fixtures, the release that pruning owes, and what a wrong tensor holds."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ... import expect, standard
from ...lab import Mismatch, Opaque
from ...nested import structure

Tensors = dict[str, torch.Tensor]
MOMENTS = ("exp_avg", "exp_avg_sq")


def shapes(heads: int, d_qk: int, d_v: int, width: int, bias: bool, layout: str) -> dict[str, tuple[int, ...]]:
    rows = {"q_proj": heads * d_qk, "k_proj": heads * d_qk, "v_proj": heads * d_v}
    if layout == "fused":
        rows = {"qkv_proj": sum(rows.values())}
    found = {f"{role}.weight": (n, width) for role, n in rows.items()} | {"o_proj.weight": (width, heads * d_v)}
    biases = {f"{role}.bias": (n,) for role, n in rows.items()} | {"o_proj.bias": (width,)}
    return found | biases if bias else found


def coded_layer(sizes: Sequence[int], bias: bool, layout: str = "separate") -> Tensors:
    """Every number is its own address in its tensor."""
    return {name: torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
            for name, shape in shapes(*sizes, bias, layout).items()}


def random_layer(sizes: Sequence[int], bias: bool, layout: str = "separate", seed: int = 0,
                 dtype: torch.dtype = torch.float64) -> Tensors:
    return {name: (0.5 * standard.normal(*shape, seed=seed + i)).to(dtype)
            for i, (name, shape) in enumerate(shapes(*sizes, bias, layout).items())}


def coded_moments(state: Tensors, step: bool = False) -> dict[str, Tensors]:
    """Adam's two moments of each parameter: its addresses, plus 10,000 and 20,000."""
    moments = {name: {key: tensor + 10_000 * (i + 1) for i, key in enumerate(MOMENTS)}
               for name, tensor in state.items()}
    if step:
        for tensors in moments.values():
            tensors["step"] = torch.tensor(7.0)
    return moments


def owners(name: str, heads: int, d_qk: int, d_v: int) -> tuple[int, list[tuple[str, int, int]]] | None:
    """(axis, [(role, head, channel) of each of its places]), or None for a tensor that belongs to no head."""
    def places(role, width):
        return [(role, h, d) for h in range(heads) for d in range(width)]
    if name == "o_proj.weight":
        return 1, places("v", d_v)
    role = name.split("_")[0]
    if role == "o":
        return None
    return 0, [p for r in role for p in places(r, d_v if r == "v" else d_qk)]


def cut(name: str, tensor: torch.Tensor, retained: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """The oracle: place by place, those that a retained head owns."""
    owned = owners(name, *sizes[:3])
    if owned is None or not tensor.dim():
        return tensor
    axis, places = owned
    return torch.stack([part for part, (_, head, _) in zip(tensor.unbind(axis), places, strict=True)
                        if head in retained], axis)


def release(state: Tensors, retained: Sequence[int], sizes: Sequence[int], optimizer=None) -> dict[str, Any]:
    heads, d_qk, d_v = sizes[:3]
    return {"state": {name: cut(name, t, retained, sizes) for name, t in state.items()},
            "optimizer": None if optimizer is None else {
                name: {key: cut(name, t, retained, sizes) for key, t in tensors.items()}
                for name, tensors in optimizer.items()},
            "head_map": dict(enumerate(retained)), "num_heads": len(retained), "d_qk": d_qk, "d_v": d_v}


def fields(got: Any) -> dict[str, Any]:
    """The six fields of a release."""
    names = ("state", "optimizer", "head_map", "num_heads", "d_qk", "d_v")
    kind = got.type if isinstance(got, Opaque) else type(got).__name__
    expect.true(isinstance(got, dict), f"the release is a {kind}, expected a dict with the keys {', '.join(names)}")
    missing = [n for n in names if n not in got]
    expect.true(not missing, f"the release has no {', '.join(missing)}")
    return got


def match_tensors(got: Any, want: Mapping[str, torch.Tensor], what: str, sizes: Sequence[int],
                  source: Mapping[str, torch.Tensor] | None = None, of: str = "") -> None:
    """Coded tensors, each in its place; `source` are the old ones. `of` is the parameter whose moments these are."""
    for name in structure(got, want, what):
        place = f"{what}[{name!r}]"
        held, due = expect.tensor(got[name], place), want[name]
        owner = owners(of or name, *sizes[:3])
        if held.shape != due.shape:
            raise Mismatch(f"{place} has shape {list(held.shape)}, expected {list(due.shape)}{_blocks(owner, due)}")
        expect.dtype(held, due.dtype, place)
        wrong = (held != due).nonzero()
        if len(wrong) and source is not None:
            at = wrong[0].tolist()
            old = [_say(t[tuple(at)].item(), source[name], owner) for t in (held, due)]
            raise Mismatch(f"{place}{at} holds {old[0]}, expected {old[1]}")
        expect.true(not len(wrong), f"{place}: {len(wrong)} values differ")


def _blocks(owner, due) -> str:
    if owner is None:
        return ": it belongs to no head"
    axis, _ = owner
    return f": heads own its {'columns' if axis else 'rows'}"


def _say(value: float, old: torch.Tensor, owner) -> str:
    where = (old == value).nonzero()
    if len(where) != 1:
        return f"{value:g}, which the old one does not hold"
    at = where[0].tolist()
    if owner is None:
        return f"its old {at}"
    role, head, channel = owner[1][at[owner[0]]]
    return f"its old {at} ({role} of old head {head}, channel {channel})"


def attention(target, memory, state: Tensors, heads: int, d_qk: int, d_v: int, gates=None) -> torch.Tensor:
    """Head by head in float64; gates multiply the heads before W_O. Either layout."""
    if "qkv_proj.weight" in state:
        cuts = (heads * d_qk, heads * d_qk, heads * d_v)
        roles = {r: (w, b) for r, w, b in zip("qkv", state["qkv_proj.weight"].split(cuts),
                                              state["qkv_proj.bias"].split(cuts), strict=True)}
    else:
        roles = {r: (state[f"{r}_proj.weight"], state[f"{r}_proj.bias"]) for r in "qkv"}
    output = state["o_proj.bias"]
    for h in range(heads):
        q, k, v = ((x @ roles[r][0][h * d:(h + 1) * d].T + roles[r][1][h * d:(h + 1) * d])
                   for r, x, d in (("q", target, d_qk), ("k", memory, d_qk), ("v", memory, d_v)))
        head = (q @ k.mT / d_qk**0.5).softmax(-1) @ v
        gate = 1.0 if gates is None else gates[h]
        output = output + gate * head @ state["o_proj.weight"][:, h * d_v:(h + 1) * d_v].T
    return output
