"""Target rows read source rows."""
import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import expect, nested
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from ._calls import (
    A,
    E,
    X,
    attended,
    checked,
    first_blind,
    merge,
    oracle,
    projected,
    rows,
    split,
    state,
    tensors,
    valid_rows,
)

exercise = Exercise(
    "cross_attention", step=1, points=4, minutes=8, difficulty=3, importance=5,
    summary="The whole cross-attention call: target rows ask, source rows are read, W_O writes back into target rows.",
    hints=(
        "Two streams come in. Write beside each of the three projections whose rows it takes, and beside each axis of "
        "the scores whose rows it counts.",
        "Every target row spreads a weight of one over the source rows. The mix of values removes the source axis: "
        "what is left has the target's length.",
        "Split with the head count and let the width follow from the weights: values may be wider than keys. The given "
        "attention call takes heads, not packed rows, and refuses a row that sees nothing.",
    ),
    hides="T = S hides swapped arguments, K and V of the target's length, a softmax over targets and a borrowed "
          "triangle from every shape check; D_v = D_qk hides V reshaped with the width of the keys.",
)
NAMES = ("output", "probabilities")
OUT, CELL = ("batch", "target", "channel"), ("batch", "head", "target", "source")


def _check(got, want):
    output, probabilities = tensors(got, NAMES)
    try:
        expect.close(probabilities, want[1], "probabilities", CELL)
    except Mismatch as m:
        raise Mismatch(f"{m}{_read_back(probabilities, want[1])}", m.figure) from None
    expect.close(output, want[0], "output", OUT)


def _read_back(got, want):
    """What a wrong matrix of probabilities shows about itself."""
    def ones(axis):
        return torch.allclose(got.sum(axis), torch.ones(()).to(got.dtype))
    if got.dim() == 4 and got.shape[-1] and not ones(-1) and ones(-2):
        return "; each column sums to 1 over the target rows, each row has to over the source rows"
    if got.shape != want.shape:
        return "; [B,H,T,S]: rows are targets, columns are source rows"
    hidden = ((got == 0) & (want > 0)).nonzero()
    if len(hidden):
        b, h, t, s = hidden[0].tolist()
        return f"; in sample {b}, head {h}, target row {t} cannot see source row {s}, which nobody hid"
    leaks = ((got > 0) & (want == 0)).nonzero()
    if len(leaks):
        b, h, t, s = leaks[0].tolist()
        return f"; in sample {b}, head {h}, target row {t} looks at source row {s}, which is hidden"
    return ""


def _run(lab, sizes, visible=None, bias=True, seed=0):
    target, source = rows(sizes, seed)
    args = target, source, state(sizes, bias, seed=seed), sizes["heads"]
    args += () if visible is None else (visible,)
    _check(lab.call("cross_attention", *args), oracle(*args))


@exercise.case("B2 H3, 5 target rows, 7 source rows, D_qk 4, D_v 6, M10")
def rectangle(lab):
    _run(lab, A)


@exercise.case("B=H=3 and 6 rows on both sides, where confused axes fit")
def trap(lab):
    _run(lab, X, seed=100)


@exercise.case("equal widths, against nn.MultiheadAttention with the same weights and padding")
def module(lab):
    target, source = rows(E, 200)
    weights, valid = state(E, seed=200), valid_rows(E)
    reference = nn.MultiheadAttention(E["width"], E["heads"], batch_first=True, dtype=torch.float64)
    packed = [torch.cat([weights[f"{r}_proj.{kind}"] for r in "qkv"]) for kind in ("weight", "bias")]
    names = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    reference.load_state_dict(dict(zip(names, (*packed, weights["o_proj.weight"], weights["o_proj.bias"]),
                                       strict=True)))
    with torch.no_grad():
        want = reference(target, source, source, key_padding_mask=~valid, average_attn_weights=False)
    _check(lab.call("cross_attention", target, source, weights, E["heads"], valid[:, None, None]), want)


@exercise.case("a mask for each target row, [B,1,T,S]")
def per_target(lab):
    visible = _each_target(A)
    _run(lab, A, visible, seed=300)


@exercise.case("a mask for each head, [1,H,T,S], and no biases")
def per_head(lab):
    h, t, s = (torch.arange(A[n]) for n in ("heads", "targets", "sources"))
    visible = (5 * h[:, None, None] + 3 * t[:, None] + s) % 3 != 1
    _run(lab, A, visible[None], bias=False, seed=400)


def _each_target(sizes):
    b, t, s = (torch.arange(sizes[n]) for n in ("batch", "targets", "sources"))
    return ((b[:, None, None] + 2 * t[:, None] + 3 * s) % 4 != 0)[:, None]


def _inputs():
    weights = {name: 0.5 * tensor for name, tensor in state(A, seed=500).items()}
    return (*(0.5 * x for x in rows(A, 500)), weights), {"num_heads": A["heads"], "visible": _each_target(A)}


nested.nested_cases(exercise, _inputs, oracle, ("target", "source", "state"), dict(enumerate(NAMES)))


@exercise.case("refuses rows that do not fit the weights", CONTRACT)
def refuses_width(lab):
    target, source = rows(A)
    weights = state(A)
    for rows_ in (lambda x: x[..., 1:], lambda x: torch.cat([x, x], -1)):
        lab.raises(ValueError, "width", "cross_attention", rows_(target), source, weights, 3)
        lab.raises(ValueError, "width", "cross_attention", target, rows_(source), weights, 3)


@exercise.case("refuses one source for two targets, and two for one", CONTRACT)
def refuses_batch(lab):
    target, source = rows(A)
    lab.raises(ValueError, "batch", "cross_attention", target, source[:1], state(A), 3)
    lab.raises(ValueError, "batch", "cross_attention", target[:1], source, state(A), 3)


@exercise.case("refuses a target row that sees nothing", CONTRACT)
def refuses_blind(lab):
    target, source = rows(A)
    visible = _each_target(A)
    visible[1, 0, 3] = False
    lab.raises(ValueError, "no visible key", "cross_attention", target, source, state(A), 3, visible)


def _heads(target, source, state, num_heads, keys=None, values=None):
    keys, values = (source if x is None else x for x in (keys, values))
    return [split(projected(x, state, role), num_heads) for role, x in (("q", target), ("k", keys), ("v", values))]


def _call(target, source, state, num_heads, visible=None, heads=_heads, attended=attended):
    checked(target, source, state)
    first_blind(visible)
    q, k, v = heads(target, source, state, num_heads)
    probabilities = attended(q, k, visible)
    return projected(merge(probabilities @ v), state, "o"), probabilities


@exercise.right
def composed(*args, **kwargs):
    return _call(*args, **kwargs)


@exercise.right
def einsum_throughout(target, source, state, num_heads, visible=None):
    checked(target, source, state)
    first_blind(visible)
    e, h = torch.einsum, num_heads
    q, k, v = (e("blm,hdm->bhld", x, state[f"{r}_proj.weight"].view(h, -1, x.shape[-1]))
               + (state[f"{r}_proj.bias"].view(h, 1, -1) if f"{r}_proj.bias" in state else 0)
               for r, x in (("q", target), ("k", source), ("v", source)))
    scores = e("bhtd,bhsd->bhts", q, k) * q.shape[-1] ** -0.5
    if visible is not None:
        scores = torch.where(visible, scores, float("-inf"))
    p = torch.softmax(scores, -1)
    w_o = state["o_proj.weight"]
    out = e("bhts,bhsd,mhd->btm", p, v, w_o.view(w_o.shape[0], h, -1))
    return out + state.get("o_proj.bias", 0), p


@exercise.right
def fused_attention_and_its_weights(target, source, state, num_heads, visible=None):
    checked(target, source, state)
    first_blind(visible)
    q, k, v = _heads(target, source, state, num_heads)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    return projected(mixed.transpose(1, 2).reshape(*target.shape[:2], -1), state, "o"), attended(q, k, visible)


@exercise.right
def fused_key_value_product(target, source, state, num_heads, visible=None):
    checked(target, source, state)
    first_blind(visible)
    fused = torch.cat([state["k_proj.weight"], state["v_proj.weight"]])
    bias = torch.cat([state["k_proj.bias"], state["v_proj.bias"]]) if "k_proj.bias" in state else None
    k, v = F.linear(source, fused, bias).split([len(state[f"{r}_proj.weight"]) for r in "kv"], -1)
    q = split(projected(target, state, "q"), num_heads)
    p = attended(q, split(k, num_heads), visible)
    return projected(merge(p @ split(v, num_heads)), state, "o"), p


@exercise.right
def one_head_after_another(target, source, state, num_heads, visible=None):
    checked(target, source, state)
    first_blind(visible)
    q, k, v = (projected(x, state, r).chunk(num_heads, -1) for r, x in (("q", target), ("k", source), ("v", source)))
    probabilities = []
    for h in range(num_heads):
        scores = q[h] @ k[h].mT / math.sqrt(q[h].shape[-1])
        if visible is not None:
            scores = scores.masked_fill(visible[:, min(h, visible.shape[1] - 1)].logical_not(), -math.inf)
        probabilities.append(scores.softmax(-1))
    mixed = torch.cat([p @ x for p, x in zip(probabilities, v, strict=True)], -1)
    return projected(mixed, state, "o"), torch.stack(probabilities, 1)


@exercise.right
def sum_of_head_writes(target, source, state, num_heads, visible=None):
    checked(target, source, state)
    first_blind(visible)
    q, k, v = _heads(target, source, state, num_heads)
    p = attended(q, k, visible)
    blocks = state["o_proj.weight"].chunk(num_heads, 1)
    written = sum((p @ v)[:, h] @ block.T for h, block in enumerate(blocks))
    return written + state.get("o_proj.bias", 0), p


@exercise.right
def einops_and_a_log_sum_exp(target, source, state, num_heads, visible=None):
    from einops import rearrange
    checked(target, source, state)
    first_blind(visible)
    q, k, v = (rearrange(projected(x, state, r), "b l (h d) -> b h l d", h=num_heads)
               for r, x in (("q", target), ("k", source), ("v", source)))
    scores = q @ rearrange(k, "b h s d -> b h d s") / math.sqrt(q.shape[-1])
    if visible is not None:
        scores = scores + torch.zeros_like(scores).masked_fill(~visible, -torch.inf)
    p = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return projected(rearrange(p @ v, "b h t d -> b t (h d)"), state, "o"), p


@exercise.wrong
def arguments_swapped(target, source, state, num_heads, visible=None):
    """The output belongs to the source rows."""
    return _call(source, target, state, num_heads, visible)


@exercise.wrong(id="arguments-swapped")
def swapped_with_its_mask(target, source, state, num_heads, visible=None):
    return _call(source, target, state, num_heads, None if visible is None else visible.mT)


@exercise.wrong
def kv_with_target_length(target, source, state, num_heads, visible=None):
    """K and V have source length."""
    def heads(target, source, state, num_heads):
        b, t, _ = target.shape
        return [projected(x, state, r).view(b, t, num_heads, -1).transpose(1, 2)
                for r, x in (("q", target), ("k", source), ("v", source))]
    return _call(target, source, state, num_heads, visible, heads)


@exercise.wrong(id="kv-with-target-length")
def widths_from_the_weights(target, source, state, num_heads, visible=None):
    def heads(target, source, state, num_heads):
        b, t, _ = target.shape
        return [projected(x, state, r).reshape(b, t, num_heads, len(state[f"{r}_proj.weight"]) // num_heads
                                               ).transpose(1, 2)
                for r, x in (("q", target), ("k", source), ("v", source))]
    return _call(target, source, state, num_heads, visible, heads)


@exercise.wrong(id="kv-with-target-length")
def source_cut_to_the_target(target, source, state, num_heads, visible=None):
    return _call(target, source[:, :target.shape[1]], state, num_heads, visible)


@exercise.wrong
def softmax_over_targets(target, source, state, num_heads, visible=None):
    """Each target row must distribute over source columns."""
    def attended(q, k, visible):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return (scores if visible is None else scores.masked_fill(~visible, -torch.inf)).softmax(-2)
    return _call(target, source, state, num_heads, visible, attended=attended)


@exercise.wrong
def borrowed_triangle(target, source, state, num_heads, visible=None):
    """A causal triangle of the target hid source columns."""
    seen = torch.ones(target.shape[1], source.shape[1], dtype=torch.bool).tril()[None, None]
    return _call(target, source, state, num_heads, seen if visible is None else visible & seen)


def _triangle(name, offset, square=False, instead=False):
    def program(target, source, state, num_heads, visible=None):
        t, s = target.shape[1], source.shape[1]
        seen = torch.ones(t, s, dtype=torch.bool).tril(offset * (s - t))[None, None]
        if square and t != s:
            seen = torch.ones_like(seen)
        if visible is not None:
            seen = visible if instead else visible & seen
        return _call(target, source, state, num_heads, seen)
    program.__name__ = name
    exercise.wrong(program, id="borrowed-triangle")


_triangle("triangle_at_the_end", 1)
_triangle("triangle_when_lengths_agree", 0, square=True)
_triangle("triangle_where_no_mask_came", 0, instead=True)
_triangle("triangle_when_lengths_agree_and_no_mask_came", 0, square=True, instead=True)


@exercise.wrong
def keys_from_target(target, source, state, num_heads, visible=None):
    """K must read the source."""
    return _call(target, source, state, num_heads, visible, lambda *a: _heads(*a, keys=target))


@exercise.wrong
def values_from_target(target, source, state, num_heads, visible=None):
    """V must read the source."""
    return _call(target, source, state, num_heads, visible, lambda *a: _heads(*a, values=target))


@exercise.wrong
def source_detached(target, source, state, num_heads, visible=None):
    """The encoder would never train."""
    return _call(target, source.detach(), state, num_heads, visible)


@exercise.wrong(id="source-detached")
def keys_and_values_detached(target, source, state, num_heads, visible=None):
    def heads(*args):
        q, k, v = _heads(*args)
        return q, k.detach(), v.detach()
    return _call(target, source, state, num_heads, visible, heads)


@exercise.wrong(id="source-detached")
def only_keys_detached(target, source, state, num_heads, visible=None):
    return _call(target, source, state, num_heads, visible, lambda *a: _heads(*a, keys=source.detach()))


@exercise.wrong(id="source-detached")
def only_values_detached(target, source, state, num_heads, visible=None):
    return _call(target, source, state, num_heads, visible, lambda *a: _heads(*a, values=source.detach()))


@exercise.wrong
def value_width_from_keys(target, source, state, num_heads, visible=None):
    """V was reshaped with D_qk; its width is D_v."""
    def heads(target, source, state, num_heads):
        q, k, _ = _heads(target, source, state, num_heads)
        v = projected(source, state, "v").view(*source.shape[:2], num_heads, q.shape[-1])
        return q, k, v.transpose(1, 2)
    return _call(target, source, state, num_heads, visible, heads)


@exercise.wrong(id="value-width-from-keys")
def values_cut_to_the_keys(target, source, state, num_heads, visible=None):
    def heads(*args):
        q, k, v = _heads(*args)
        return q, k, v[..., :q.shape[-1]]
    return _call(target, source, state, num_heads, visible, heads)


@exercise.wrong(id="value-width-from-keys")
def merged_rows_as_wide_as_queries(target, source, state, num_heads, visible=None):
    checked(target, source, state)
    first_blind(visible)
    q, k, v = _heads(target, source, state, num_heads)
    p = attended(q, k, visible)
    packed = (p @ v).transpose(1, 2).reshape(*target.shape[:2], num_heads * q.shape[-1])
    return projected(packed, state, "o"), p


@exercise.wrong
def fused_on_one_stream(target, source, state, num_heads, visible=None):
    """One fused QKV product cannot serve two inputs."""
    return _call(target, source, state, num_heads, visible, lambda *a: _heads(*a, keys=target, values=target))


@exercise.wrong(id="fused-on-one-stream")
def fused_on_the_source(target, source, state, num_heads, visible=None):
    return _call(target, source, state, num_heads, visible, lambda _, *a: _heads(source, *a))


