"""Programs that prune heads: the building blocks of the right ones and of the wrong ones."""
from __future__ import annotations

import copy

import torch

RIGHTS = []


def checked(retained, num_heads):
    retained = list(retained)
    if not retained or retained != sorted(set(retained)) or retained[0] < 0 or retained[-1] >= num_heads:
        raise ValueError(f"retained heads must be rising and of this layer: {retained}")
    return retained


def rows(retained, width, start=0):
    """The places of whole heads in a region of equal blocks."""
    return torch.tensor([start + h * width + d for h in retained for d in range(width)])


def fused_rows(retained, num_heads, d_qk, d_v):
    k = num_heads * d_qk
    return torch.cat([rows(retained, d_qk), rows(retained, d_qk, k), rows(retained, d_v, 2 * k)])


def plan(retained, num_heads, d_qk, d_v):
    """{parameter: (axis, places)} of every tensor that has heads."""
    widths = {"q_proj": d_qk, "k_proj": d_qk, "v_proj": d_v}
    places = {f"{role}.{part}": (0, rows(retained, width)) for role, width in widths.items()
              for part in ("weight", "bias")}
    places |= {f"qkv_proj.{part}": (0, fused_rows(retained, num_heads, d_qk, d_v)) for part in ("weight", "bias")}
    return places | {"o_proj.weight": (1, rows(retained, d_v))}


def select(tensor, place):
    if place is None or not tensor.dim():
        return tensor.clone()
    axis, index = place
    return tensor.index_select(axis, index)


def pruned(state, retained, num_heads, d_qk, d_v, optimizer=None, *, places=None, moments=None, take=select,
           check=checked):
    """A release; `places` and `moments` may differ from the right ones."""
    retained = check(retained, num_heads)
    places = plan(retained, num_heads, d_qk, d_v) if places is None else places
    moments = places if moments is None else moments
    new = {name: take(tensor, places.get(name)) for name, tensor in state.items()}
    stepped = None if optimizer is None else {
        name: {key: take(tensor, moments.get(name)) for key, tensor in tensors.items()}
        for name, tensors in optimizer.items()}
    return {"state": new, "optimizer": stepped, "head_map": dict(enumerate(retained)), "num_heads": len(retained),
            "d_qk": d_qk, "d_v": d_v}


def right(program):
    """Collect a right program for the exercise."""
    RIGHTS.append(program)
    return program


@right
def index_lists(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer)


@right
def boolean_rows(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    retained = checked(retained, num_heads)
    keep = torch.zeros(num_heads, dtype=torch.bool)
    keep[retained] = True
    qk, v = keep.repeat_interleave(d_qk), keep.repeat_interleave(d_v)
    masks = {"q_proj": qk, "k_proj": qk, "v_proj": v, "qkv_proj": torch.cat([qk, qk, v])}

    def take(name, tensor):
        if name == "o_proj.bias" or not tensor.dim():
            return tensor.clone()
        return tensor[:, v] if name == "o_proj.weight" else tensor[masks[name.split(".")[0]]]
    moments = {n: {k: take(n, t) for k, t in ts.items()} for n, ts in optimizer.items()} if optimizer else None
    return dict(state={n: take(n, t) for n, t in state.items()}, optimizer=moments, num_heads=len(retained),
                head_map={new: old for new, old in enumerate(retained)}, d_qk=d_qk, d_v=d_v)


@right
def views_by_head(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    retained = checked(retained, num_heads)

    def blocks(tensor, width, axis=0):
        return tensor.unflatten(axis, (num_heads, width)).index_select(axis, torch.tensor(retained)).flatten(
            axis, axis + 1)

    def take(name, tensor):
        if name == "o_proj.bias" or tensor.dim() == 0:
            return tensor.detach().clone()
        if name == "o_proj.weight":
            return blocks(tensor, d_v, 1)
        if name.startswith("qkv"):
            parts = tensor.split([num_heads * d_qk, num_heads * d_qk, num_heads * d_v])
            return torch.cat([blocks(p, d) for p, d in zip(parts, (d_qk, d_qk, d_v), strict=True)])
        return blocks(tensor, d_v if name.startswith("v") else d_qk)
    new = {n: take(n, t) for n, t in state.items()}
    moments = None if optimizer is None else {n: {k: take(n, t) for k, t in ts.items()} for n, ts in optimizer.items()}
    return {"state": new, "optimizer": moments, "head_map": dict(zip(range(len(retained)), retained, strict=True)),
            "num_heads": len(retained), "d_qk": d_qk, "d_v": d_v}


@right
def slices_with_a_check_of_shapes(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    retained = checked(retained, num_heads)
    widths = {"q": (d_qk,), "k": (d_qk,), "v": (d_v,), "qkv": (d_qk, d_qk, d_v)}

    def take(name, tensor):
        role = name.split("_")[0]
        if name == "o_proj.bias" or tensor.ndim == 0:
            return tensor.clone()
        axis = 1 if role == "o" else 0
        parts = (d_v,) if role == "o" else widths[role]
        if tensor.shape[axis] != num_heads * sum(parts):
            raise ValueError(f"{name} does not have the shape of {num_heads} heads")
        kept, start = [], 0
        for width in parts:
            kept += [tensor.narrow(axis, start + h * width, width) for h in retained]
            start += num_heads * width
        return torch.cat(kept, axis)
    return {"state": {n: take(n, t) for n, t in state.items()},
            "optimizer": optimizer and {n: {k: take(n, t) for k, t in ts.items()} for n, ts in optimizer.items()},
            "head_map": dict(enumerate(retained)), "num_heads": len(retained), "d_qk": d_qk, "d_v": d_v}


@right
def on_a_deep_copy(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    retained = checked(retained, num_heads)
    new, moments = copy.deepcopy(dict(state)), copy.deepcopy(optimizer)
    removed = [h for h in range(num_heads) if h not in retained]
    places = plan(retained, num_heads, d_qk, d_v)
    for name in new:
        if name in places:
            new[name] = new[name].index_select(*places[name]).contiguous()
            for key in (moments or {}).get(name, {}):
                if moments[name][key].shape:
                    moments[name][key] = moments[name][key].index_select(*places[name])
    return {"state": new, "optimizer": moments, "head_map": {i: h for i, h in enumerate(retained)},
            "num_heads": num_heads - len(removed), "d_qk": d_qk, "d_v": d_v}
