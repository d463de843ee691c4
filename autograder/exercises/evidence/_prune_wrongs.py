"""Programs that prune heads with one fault, by the id of the fault."""
from __future__ import annotations

import torch

from ._prune_programs import checked, plan, pruned, rows, select

WRONGS = []


def wrong(program=None, *, id: str = ""):
    """Collect a wrong program for the exercise; see Exercise.wrong."""
    if program is None:
        return lambda p: wrong(p, id=id)
    WRONGS.append((program, id))
    return program


def _plan(retained, num_heads, d_qk, d_v, without=(), **changed):
    """The right plan, with some entries left out or replaced."""
    places = {n: p for n, p in plan(retained, num_heads, d_qk, d_v).items() if n not in without}
    return places | {name.replace("__", "."): place for name, place in changed.items()}


QKV = ("q_proj", "k_proj", "v_proj", "qkv_proj")
BIASES = tuple(f"{role}.bias" for role in QKV)


@wrong
def wo_not_sliced(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """W_O still expects the removed head."""
    places = _plan(checked(retained, num_heads), num_heads, d_qk, d_v, without=("o_proj.weight",))
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, places=places)


@wrong(id="wo-not-sliced")
def its_moments_are(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    right = plan(checked(retained, num_heads), num_heads, d_qk, d_v)
    places = {n: p for n, p in right.items() if n != "o_proj.weight"}
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, places=places, moments=right)


@wrong
def wo_output_axis(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """The head axis of the stored W_O is its input axis."""
    places = _plan(checked(retained, num_heads), num_heads, d_qk, d_v, o_proj__weight=(0, rows(retained, d_v)))
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, places=places)


@wrong(id="wo-output-axis")
def its_rows_with_its_bias(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    index = rows(checked(retained, num_heads), d_v)
    places = _plan(retained, num_heads, d_qk, d_v, o_proj__weight=(0, index), o_proj__bias=(0, index))
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, places=places)


@wrong
def bias_kept(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """Q/K/V biases follow their rows."""
    places = _plan(checked(retained, num_heads), num_heads, d_qk, d_v, without=BIASES)
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, places=places)


@wrong(id="bias-kept")
def biases_dropped(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    got = pruned(state, retained, num_heads, d_qk, d_v, optimizer)
    return got | {"state": {n: t for n, t in got["state"].items() if n not in BIASES}}


@wrong(id="bias-kept")
def bias_of_v_kept(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    places = _plan(checked(retained, num_heads), num_heads, d_qk, d_v, without=("v_proj.bias",))
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, places=places)


@wrong
def output_bias_sliced(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """b_O belongs to no head."""
    index = rows(checked(retained, num_heads), d_v)
    places = _plan(retained, num_heads, d_qk, d_v, o_proj__bias=(0, index))
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, places=places)


@wrong(id="output-bias-sliced")
def as_many_as_fit(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    def take(tensor, place):
        if place is not None and place[1].max() >= tensor.shape[place[0]] and tensor.dim() == 1:
            return tensor[place[1][place[1] < len(tensor)]]
        return select(tensor, place)
    places = _plan(checked(retained, num_heads), num_heads, d_qk, d_v, o_proj__bias=(0, rows(retained, d_v)))
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, places=places, take=take)


@wrong(id="output-bias-sliced")
def output_bias_dropped(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    got = pruned(state, retained, num_heads, d_qk, d_v, optimizer)
    return got | {"state": {n: t for n, t in got["state"].items() if n != "o_proj.bias"}}


@wrong
def moments_stale(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """Optimizer moments kept the old rows."""
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, moments={})


@wrong(id="moments-stale")
def moments_forgotten(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer) | {"optimizer": None}


@wrong(id="moments-stale")
def moments_zeroed(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    got = pruned(state, retained, num_heads, d_qk, d_v, optimizer)
    fresh = optimizer and {n: {k: torch.zeros_like(t) for k, t in ts.items()} for n, ts in got["optimizer"].items()}
    return got | {"optimizer": fresh}


@wrong(id="moments-stale")
def moments_of_biases_stale(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    moments = _plan(checked(retained, num_heads), num_heads, d_qk, d_v, without=BIASES)
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, moments=moments)


@wrong(id="moments-stale")
def the_first_moment_only(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    got = pruned(state, retained, num_heads, d_qk, d_v, optimizer)
    if optimizer:
        got["optimizer"] = {n: ts | {k: t.clone() for k, t in optimizer[n].items() if k == "exp_avg_sq"}
                            for n, ts in got["optimizer"].items()}
    return got


def _fused_as(state, retained, num_heads, d_qk, d_v, optimizer, index):
    places = plan(checked(retained, num_heads), num_heads, d_qk, d_v)
    places |= {f"qkv_proj.{part}": (0, index) for part in ("weight", "bias")}
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, places=places)


@wrong
def one_fused_interval(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """A head owns three intervals of a fused tensor."""
    index = rows(checked(retained, num_heads), 2 * d_qk + d_v)
    return _fused_as(state, retained, num_heads, d_qk, d_v, optimizer, index)


@wrong(id="one-fused-interval")
def rows_of_q_only(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    kept = rows(checked(retained, num_heads), d_qk)
    index = torch.cat([kept, torch.arange(num_heads * d_qk, num_heads * (2 * d_qk + d_v))])
    return _fused_as(state, retained, num_heads, d_qk, d_v, optimizer, index)


@wrong(id="one-fused-interval")
def cut_out_of_q_alone(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    index = rows(checked(retained, num_heads), d_qk)
    return _fused_as(state, retained, num_heads, d_qk, d_v, optimizer, index)


@wrong(id="one-fused-interval")
def fused_left_whole(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    places = _plan(checked(retained, num_heads), num_heads, d_qk, d_v, without=("qkv_proj.weight", "qkv_proj.bias"))
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, places=places)


@wrong
def width_recomputed(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """d = M/(H-r) changes every surviving head."""
    width = state["o_proj.weight"].shape[0] // len(checked(retained, num_heads))
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer) | {"d_qk": width, "d_v": width}


@wrong(id="width-recomputed")
def rows_stretched_over_fewer_heads(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    kept = len(checked(retained, num_heads))
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer) | {
        "d_qk": num_heads * d_qk // kept, "d_v": num_heads * d_v // kept}


@wrong(id="width-recomputed")
def one_width_for_both(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer) | {"d_v": d_qk}


@wrong
def labels_kept(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """New index 1 is old head 2; the map must say so, from new to old."""
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer) | {"head_map": {h: h for h in retained}}


@wrong(id="labels-kept")
def new_to_new(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer) | {
        "head_map": {i: i for i in range(len(retained))}}


@wrong(id="labels-kept")
def old_to_new(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer) | {
        "head_map": {h: i for i, h in enumerate(retained)}}


@wrong(id="labels-kept")
def a_list_of_old_heads(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer) | {"head_map": list(retained)}


@wrong
def head_count_stale(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """The old H was kept; some shapes still divide."""
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer) | {"num_heads": num_heads}


def _in_place(state, retained, num_heads, d_qk, d_v, optimizer):
    places = plan(retained, num_heads, d_qk, d_v)
    for name in list(state):
        state[name] = select(state[name], places.get(name))
    for name, tensors in (optimizer or {}).items():
        for key in list(tensors):
            tensors[key] = select(tensors[key], places.get(name))
    return {"state": state, "optimizer": optimizer, "head_map": dict(enumerate(retained)), "num_heads": len(retained),
            "d_qk": d_qk, "d_v": d_v}


@wrong
def source_modified(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """The baseline must stay for rollback."""
    return _in_place(state, checked(retained, num_heads), num_heads, d_qk, d_v, optimizer)


@wrong(id="source-modified")
def only_the_optimizer(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    got = pruned(state, retained, num_heads, d_qk, d_v)
    inner = _in_place({}, retained, num_heads, d_qk, d_v, optimizer)
    return got | {"optimizer": inner["optimizer"]}


@wrong(id="source-modified")
def only_the_state(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    got = pruned({}, retained, num_heads, d_qk, d_v, optimizer)
    return got | {"state": _in_place(state, retained, num_heads, d_qk, d_v, None)["state"]}


@wrong
def half_applied(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """An error left a mixture: new tensors beside old ones, and no way back."""
    old = dict(state)
    moments = None if optimizer is None else {n: dict(ts) for n, ts in optimizer.items()}
    got = _in_place(state, checked(retained, num_heads), num_heads, d_qk, d_v, moments)
    got["state"] = dict(state)
    state.update(old)
    return got


@wrong(id="half-applied")
def the_optimizer_half_applied(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    old = {n: dict(ts) for n, ts in (optimizer or {}).items()}
    got = _in_place(dict(state), checked(retained, num_heads), num_heads, d_qk, d_v, optimizer)
    if optimizer is not None:
        got["optimizer"] = {n: dict(ts) for n, ts in optimizer.items()}
        for name, tensors in old.items():
            optimizer[name].update(tensors)
    return got


@wrong
def baseline_shared(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """Some tensors of the release are the baseline's own: training it would move both. Copy them."""
    def take(tensor, place):
        return tensor if place is None or not tensor.dim() else select(tensor, place)
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, take=take)


@wrong(id="baseline-shared")
def by_narrow(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    def take(tensor, place):
        if place is None or not tensor.dim():
            return tensor.clone()
        axis, index = place
        whole = int(index[-1] - index[0]) + 1 == len(index)
        return tensor.narrow(axis, int(index[0]), len(index)) if whole else tensor.index_select(axis, index)
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, take=take)


@wrong
def unsorted_accepted(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """Retained heads are at least one, rising, each once, and heads of this layer."""
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, check=lambda r, h: list(r))


@wrong(id="unsorted-accepted")
def sorted_silently(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    return pruned(state, sorted(set(retained)), num_heads, d_qk, d_v, optimizer)


@wrong(id="unsorted-accepted")
def only_the_range_is_checked(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    if not retained or not all(0 <= h < num_heads for h in retained):
        raise ValueError("retained heads must be heads of the layer")
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, check=lambda r, h: list(r))


@wrong
def short_release(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    """A slice beyond the end of a tensor is short and raises nothing: check the shapes first."""
    def take(tensor, place):
        if place is None or not tensor.dim():
            return tensor.clone()
        axis, index = place
        return tensor.index_select(axis, index[index < tensor.shape[axis]])
    return pruned(state, retained, num_heads, d_qk, d_v, optimizer, take=take)
