"""The keys and values of a source, made once, with the name of what made them."""
import torch
from torch.nn import functional as F

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch, Record
from ...standard import TOLERANCE, normal
from ._calls import A, X, projected, rows, split, state, whole
from ._identities import FIELDS, CrossKV, identity

exercise = Exercise(
    "project_source", step=8, points=2, minutes=4, difficulty=2, importance=4, exempt=("detaches-graph",),
    summary="Project an encoder memory once: K, V, the identity that made them, and the memory.",
    hints=(
        "Two products and two splits, of source rows only. No query is needed.",
        "Put the identity that you were given beside the tensors: whoever reads them later has to compare it.",
        "In training the encoder learns through this pair, so its graph must stay. Outside of training nobody will "
        "ever send a gradient back, and a graph would keep the whole encoder alive.",
    ),
    hides="D_v = D_qk hides V split with the width of the keys; forward values hide whether a gradient can come back.",
)
CELL = ("batch", "head", "source", "channel")


def oracle(memory, weights, heads):
    """(K, V), one head after another."""
    return [torch.stack(whole(memory, weights, role, heads), 1) for role in "kv"]


def _pair(lab, memory, weights, heads, **how):
    got = lab.call("project_source", memory, weights, heads, identity(), **how)
    fields = getattr(got, "_fields", None) if isinstance(got, Record) else None
    if fields is None or not {"k", "v", "identity", "memory"} <= fields.keys():
        raise Mismatch("the result is no CrossKV with k, v, identity and memory")
    return got


def _check(lab, sizes, seed, bias=True, **how):
    _, memory = rows(sizes, seed)
    weights = state(sizes, bias, seed)
    got = _pair(lab, memory, weights, sizes["heads"], **how)
    for name, mine, want in zip("kv", (got.k, got.v), oracle(memory, weights, sizes["heads"]), strict=True):
        expect.close(mine, want, name, CELL)
    expect.close(got.memory, memory, "the memory of the pair", ("batch", "source", "channel"))


@exercise.case("B2 H3, 7 source rows, D_qk 4, D_v 6, M10")
def rectangle(lab):
    _check(lab, A, 0)


@exercise.case("B=H=3, 6 source rows, no biases")
def trap(lab):
    _check(lab, X, 100, bias=False)


@exercise.case("in training a gradient comes back to the memory and to both maps")
def training(lab):
    _, memory = rows(A, 300)
    memory.requires_grad_()
    weights = {k: v.requires_grad_() for k, v in state(A, seed=300).items()}
    want = oracle(memory, weights, 3)
    got = _pair(lab, memory, weights, 3, training=True)
    cotangents = [normal(*t.shape, seed=310 + i) for i, t in enumerate(want)]
    names = {"memory": memory} | {n: weights[n] for n in weights if n[0] in "kv"}
    theirs = torch.autograd.grad(want, list(names.values()), cotangents)
    for name, mine, right in zip("kv", (got.k, got.v), want, strict=True):
        expect.close(mine, right.detach(), name, CELL)
    grads = lab.backward(*zip((got.k, got.v), cotangents, strict=True))
    for (name, tensor), right in zip(names.items(), theirs, strict=True):
        expect.gradient(grads, tensor, right, name)


@exercise.case("the pair carries the identity that it was given", CONTRACT)
def recorded(lab):
    _, memory = rows(A, 200)
    for changes in ({}, {"layer": 5, "adapter": None}):
        got = lab.call("project_source", memory, state(A), 3, identity(**changes))
        want, mine = identity(**changes)._fields, getattr(getattr(got, "identity", None), "_fields", None)
        if not isinstance(mine, dict):
            raise Mismatch("the pair carries no identity: nobody can tell what made it")
        for field in FIELDS:
            expect.true(mine.get(field) == want[field], f"the pair says {field} = {mine.get(field)!r}; it was made "
                                                        f"with {want[field]!r}")


@exercise.case("outside of training the pair belongs to no graph", CONTRACT)
def inference(lab):
    _, memory = rows(A, 400)
    memory.requires_grad_()
    got = _pair(lab, memory, {k: v.requires_grad_() for k, v in state(A).items()}, 3)
    for name, mine in (("k", got.k), ("v", got.v)):
        grads = lab.backward((mine, torch.ones_like(mine)))
        expect.true(not grads.graph, f"{name} keeps a graph to the encoder although nothing is trained: every step of "
                                     "decoding would hold it in memory")


@exercise.case("the dtype follows the memory, and two calls agree", CONTRACT)
def dtypes(lab):
    _, memory = rows(A, 500)
    weights = state(A, seed=500)
    want = oracle(memory, weights, 3)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        cast = {k: v.to(dtype) for k, v in weights.items()}
        first, again = (_pair(lab, memory.to(dtype), cast, 3) for _ in range(2))
        loose = 4 * TOLERANCE[dtype]
        for name, right in zip("kv", want, strict=True):
            mine, second = getattr(first, name), getattr(again, name)
            expect.dtype(expect.tensor(mine, name), dtype, name)
            expect.close(mine.double(), right, name, CELL, loose, loose)
            expect.close(second, mine, f"{name} of the second call", CELL, 0, 0)


def _made(memory, weights, heads, identity, training, cut=torch.Tensor.detach):
    k, v = (split(projected(memory, weights, role), heads) for role in "kv")
    return CrossKV(k, v, identity, memory) if training else CrossKV(cut(k), cut(v), identity, memory)


@exercise.right
def detached_at_the_end(memory, state, num_heads, identity, training=False):
    return _made(memory, state, num_heads, identity, training)


@exercise.right
def grad_mode(memory, state, num_heads, identity, training=False):
    with torch.set_grad_enabled(training):
        return _made(memory, state, num_heads, identity, True)


@exercise.right
def one_fused_product(memory, state, num_heads, identity, training=False):
    weight = torch.cat([state["k_proj.weight"], state["v_proj.weight"]])
    bias = torch.cat([state["k_proj.bias"], state["v_proj.bias"]]) if "k_proj.bias" in state else None
    with torch.enable_grad() if training else torch.no_grad():
        k, v = F.linear(memory, weight, bias).split([len(state["k_proj.weight"]), len(state["v_proj.weight"])], -1)
        k, v = (x.view(*memory.shape[:2], num_heads, -1).movedim(2, 1) for x in (k, v))
    return CrossKV(k, v, identity, memory)


@exercise.right
def einsum_of_detached_inputs(memory, state, num_heads, identity, training=False):
    x, w = (memory, state) if training else (memory.detach(), {k: v.detach() for k, v in state.items()})
    found = []
    for role in "kv":
        weight = w[f"{role}_proj.weight"].view(num_heads, -1, x.shape[-1])
        heads = torch.einsum("bsm,hdm->bhsd", x, weight)
        if f"{role}_proj.bias" in w:
            heads = heads + w[f"{role}_proj.bias"].view(num_heads, 1, -1)
        found.append(heads.contiguous())
    return CrossKV(*found, identity, memory)


@exercise.wrong
def identity_not_recorded(memory, state, num_heads, identity, training=False):
    """The pair cannot prove what made it."""
    return _made(memory, state, num_heads, None, training)


@exercise.wrong(id="identity-not-recorded")
def sizes_recorded_only(memory, state, num_heads, identity, training=False):
    pair = _made(memory, state, num_heads, identity, training)
    return CrossKV(pair.k, pair.v, tuple(pair.k.shape), memory)


@exercise.wrong(id="identity-not-recorded")
def an_empty_identity(memory, state, num_heads, identity, training=False):
    return _made(memory, state, num_heads, {}, training)


@exercise.wrong
def detached_in_training(memory, state, num_heads, identity, training=False):
    """Training K/V must lead back to the encoder."""
    return _made(memory, state, num_heads, identity, False)


@exercise.wrong(id="detached-in-training")
def memory_detached(memory, state, num_heads, identity, training=False):
    pair = _made(memory.detach(), state, num_heads, identity, training)
    return CrossKV(pair.k, pair.v, identity, memory)


@exercise.wrong(id="detached-in-training")
def maps_detached(memory, state, num_heads, identity, training=False):
    return _made(memory, {k: v.detach() for k, v in state.items()}, num_heads, identity, training)


@exercise.wrong(id="detached-in-training")
def values_detached(memory, state, num_heads, identity, training=False):
    pair = _made(memory, state, num_heads, identity, training)
    return CrossKV(pair.k, pair.v.detach(), identity, memory)


@exercise.wrong(id="detached-in-training")
def keys_detached(memory, state, num_heads, identity, training=False):
    pair = _made(memory, state, num_heads, identity, training)
    return CrossKV(pair.k.detach(), pair.v, identity, memory)
