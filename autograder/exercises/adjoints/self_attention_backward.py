"""One tensor as query, key and value: its gradient is the sum over the three paths."""
import torch
from torch.nn import functional as F

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from . import _attention, _cross_programs, _parts, _read_back
from ._attention import FIXTURE, routes

NAME = "self_attention_backward"
OTHER = dict(batch=3, heads=2, targets=6, sources=6, d_qk=4, d_v=5, width=8)
exercise = Exercise(
    NAME, step=7, points=3, minutes=5, difficulty=3, importance=5, exempt=_parts.NOT_DIFFERENTIATED,
    summary="Send the gradient of a self-attention call back to the one input that plays three roles.",
    hints=(
        "If x is given as target and as source, what are the gradients of the two, and how does the x that was both "
        "feel them?",
        "Change one number of x a little. By how many ways does the loss feel it?",
        "Where several paths end in one tensor, a line of yours has to combine them. Read that line aloud: does it say "
        "add, or does it say replace?",
    ),
    hides="A W_Q, W_K or W_V of zeros hides a missing path; three equal paths hide which one is missing.",
)


def _call(lab, g, x, state, heads, visible=None):
    masks = {} if visible is None else {"visible": visible}
    got = lab.call(NAME, g, x, state, heads, **masks)
    if isinstance(got, dict) and "x" in got and not isinstance(got["x"], torch.Tensor):
        many = len(got["x"]) if isinstance(got["x"], (tuple, list)) else 0
        expect.true(not many, f"the entry \"x\" holds {many} values; x is one tensor and has one gradient")
    return _parts.keyed(got, ("x", *state))


def _want(g, x, state, heads, visible=None):
    found = _attention.oracle(g, x, x, state, heads, visible)
    return {"x": found["target"] + found["source"]} | {k: found[k] for k in state}


def _explained(lab, g, x, state, heads, visible=None):
    axes = {"x": ("sample", "row", "channel")} | {n: ("out", "in")[:t.dim()] for n, t in state.items()}
    _parts.check(_call(lab, g, x, state, heads, visible), _want(g, x, state, heads, visible), axes,
                 _read_back.reader(g, x, x, state, heads, visible, alias=True))


def _causal(rows):
    return torch.ones(rows, rows, dtype=torch.bool).tril()[None, None]


@exercise.case("three paths end in x: B2 H3 T4 M7, D_qk 6, D_v 8")
def fixture(lab):
    g, x, _ = _attention.rows(FIXTURE)
    _explained(lab, g, x, _attention.state(FIXTURE), 3)


@exercise.case("one unit at one output channel: which head it passes, and by which paths it arrives")
def units(lab):
    state = _read_back.one_head_each(_attention.state(FIXTURE), 3)
    g, x, _ = _attention.rows(FIXTURE)
    for head, (sample, row) in enumerate(((0, 1), (1, 3), (1, 0))):
        unit = _read_back.one_unit(g.shape, sample, row, head)
        try:
            _explained(lab, unit, x, state, 3)
        except Mismatch as m:
            raise Mismatch(f"one unit at sample {sample}, query {row}, through head {head} alone: {m}",
                           m.figure) from None


@exercise.case("other sizes, no biases: B3 H2 T6 M8, D_qk 4, D_v 5")
def other_sizes(lab):
    g, x, _ = _attention.rows(OTHER)
    _explained(lab, g, x, _attention.state(OTHER, bias=False), 2)


@exercise.case("under a causal mask [1,1,T,T]")
def causal(lab):
    g, x, _ = _attention.rows(FIXTURE, seed=50)
    _explained(lab, g, x, _attention.state(FIXTURE), 3, _causal(4))


@exercise.case("central differences at one named coordinate of every part", CONTRACT)
def measured(lab):
    g, x, _ = _attention.rows(FIXTURE)
    got = _call(lab, g, x, _attention.state(FIXTURE), 3)
    _parts.near(got, _attention.measured(masked=False, alias=True))


def _in_dtype(lab, dtype):
    state = {k: v.to(dtype) for k, v in _attention.state(FIXTURE).items()}
    g, x, _ = (t.to(dtype) for t in _attention.rows(FIXTURE))
    return _call(lab, g, x, state, 3), _want(g, x, state, 3)


_parts.dtypes(exercise, _in_dtype)


def _joined(grads):
    found = dict(grads)
    return {"x": found.pop("target") + found.pop("source"), **found}


@exercise.right
def cross_with_one_tensor_twice(grad_output, x, state, num_heads, visible=None):
    return _joined(_cross_programs.composed_adjoints(grad_output, x, x, state, num_heads, visible))


@exercise.right
def einsum_throughout(grad_output, x, state, num_heads, visible=None):
    return _joined(_cross_programs.einsum_throughout(grad_output, x, x, state, num_heads, visible))


@exercise.right
def direct_sum_of_paths(grad_output, x, state, num_heads, visible=None):
    paths, grads = routes(grad_output, x, x, state, num_heads, visible)
    return {"x": sum(paths.values()), **grads}


@exercise.right
def accumulated(grad_output, x, state, num_heads, visible=None):
    paths, grads = routes(grad_output, x, x, state, num_heads, visible)
    total = torch.zeros_like(x)
    for path in paths.values():
        total += path
    return {**grads, "x": total}


@exercise.right
def one_fused_projection(grad_output, x, state, num_heads, visible=None):
    q, k, v = (_attention.split(_attention.projected(x, state, r), num_heads) for r in "qkv")
    p = _attention.attended(q, k, visible)
    grad_merged, w_o, b_o = _attention.through(_attention.merge(p @ v), grad_output, state["o_proj.weight"])
    local = _attention.local(_attention.split(grad_merged, num_heads), q, k, v, p)
    packed = torch.cat([_attention.merge(g) for g in local], -1)
    weights = [state[f"{r}_proj.weight"] for r in "qkv"]
    to_x, weight, bias = _attention.through(x, packed, torch.cat(weights))
    found = {"x": to_x, "o_proj.weight": w_o, "o_proj.bias": b_o}
    sizes = [w.shape[0] for w in weights]
    for r, w, b in zip("qkv", weight.split(sizes), bias.split(sizes), strict=True):
        found |= {f"{r}_proj.weight": w, f"{r}_proj.bias": b}
    return {name: found[name] for name in ("x", *state)}


def _module(x, state, heads, visible, fused=False):
    q, k, v = (_attention.split(_attention.projected(x, state, r), heads) for r in "qkv")
    mixed = F.scaled_dot_product_attention(q, k, v, visible) if fused else _attention.attended(q, k, visible) @ v
    return _attention.projected(_attention.merge(mixed), state, "o")


def _by_autograd(grad_output, x, state, num_heads, visible, fused):
    leaves = {k: v.detach().clone().requires_grad_() for k, v in ({"x": x} | state).items()}
    with torch.enable_grad():
        out = _module(leaves["x"], leaves, num_heads, visible, fused)
    return dict(zip(leaves, torch.autograd.grad(out, leaves.values(), grad_output), strict=True))


@exercise.right
def autograd_of_the_module(grad_output, x, state, num_heads, visible=None):
    return _by_autograd(grad_output, x, state, num_heads, visible, False)


@exercise.right
def autograd_of_fused_attention(grad_output, x, state, num_heads, visible=None):
    return _by_autograd(grad_output, x, state, num_heads, visible, True)


@exercise.right
def vector_jacobian_product(grad_output, x, state, num_heads, visible=None):
    _, back = torch.func.vjp(lambda x, s: _module(x, s, num_heads, visible), x, dict(state))
    to_x, to_state = back(grad_output)
    return {"x": to_x} | to_state


@exercise.wrong
def three_gradients(grad_output, x, state, num_heads, visible=None):
    """Three arrays for one aliased input are not its gradient."""
    paths, grads = routes(grad_output, x, x, state, num_heads, visible)
    return {"query": paths["q"], "key": paths["k"], "value": paths["v"], **grads}


@exercise.wrong(id="three-gradients")
def three_in_a_tuple(grad_output, x, state, num_heads, visible=None):
    paths, grads = routes(grad_output, x, x, state, num_heads, visible)
    return {"x": tuple(paths.values()), **grads}


@exercise.wrong(id="three-gradients")
def three_in_a_stack(grad_output, x, state, num_heads, visible=None):
    paths, grads = routes(grad_output, x, x, state, num_heads, visible)
    return {"x": torch.stack(list(paths.values())), **grads}


@exercise.wrong
def last_path_wins(grad_output, x, state, num_heads, visible=None):
    """Assignment replaced accumulation."""
    paths, grads = routes(grad_output, x, x, state, num_heads, visible)
    out = dict(grads)
    for path in paths.values():
        out["x"] = path
    return out


@exercise.wrong
def value_path_missing(grad_output, x, state, num_heads, visible=None):
    """Two of three paths were summed."""
    paths, grads = routes(grad_output, x, x, state, num_heads, visible)
    return {"x": paths["q"] + paths["k"], **grads}


def _missing(role):
    def program(grad_output, x, state, num_heads, visible=None):
        paths, grads = routes(grad_output, x, x, state, num_heads, visible)
        return {"x": sum(p for r, p in paths.items() if r != role), **grads}
    program.__name__ = {"q": "query", "k": "key"}[role] + "_path_missing"
    return program


def _only(role):
    def program(grad_output, x, state, num_heads, visible=None):
        paths, grads = routes(grad_output, x, x, state, num_heads, visible)
        return {"x": paths[role], **grads}
    program.__name__ = {"q": "query", "k": "key"}[role] + "_path_last"
    return program


for _role in "qk":
    exercise.wrong(_missing(_role), id="value-path-missing")
    exercise.wrong(_only(_role), id="last-path-wins")
exercise.wrong(_missing("q"), id="last-path-wins")  # the sum of the source's paths, assigned over the target's

_parts.recognise_by_part(exercise)


@exercise.recognise("three-gradients")
def several_arrays_for_x(trials):
    value = trials[0].transcript[0].value if trials[0].transcript else None
    if not isinstance(value, dict):
        return isinstance(value, (tuple, list)) and sum(_like_x(v) for v in value) >= 2
    x = value.get("x")
    if isinstance(x, torch.Tensor):
        return tuple(x.shape) in {(3, 2, 4, 7), (2, 4, 7, 3), (2, 4, 21), (2, 3, 4, 7)}
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else value.values()
    return sum(map(_like_x, parts)) >= 2


def _like_x(value):
    return isinstance(value, torch.Tensor) and tuple(value.shape) == (2, 4, 7)
