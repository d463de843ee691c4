"""One target row reads a source that was projected before."""
import math

import torch
from torch.nn import functional as F

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from ...standard import TOLERANCE
from ._calls import A, X, attended, merge, oracle, projected, rows, split, state, valid_rows, whole
from ._identities import FIELDS, OTHER, compare, identity, pair

exercise = Exercise(
    "decode_step", step=9, points=3, minutes=6, difficulty=3, importance=5, exempt=("detaches-graph",),
    summary="One row of cross decode from a projected source: check whose it is, project the query, read, write back.",
    hints=(
        "Which of the four projections does a step still need? The others were done when the source was projected.",
        "Before anything is read: is this pair the one that the call expects? Go through the fields in their order and "
        "say which one differs.",
        "The source is finished: a step may read all of its real rows, and it leaves the pair as it found it.",
    ),
    hides="A pair whose K and V really come from its memory hides a second projection from every value; a fresh "
          "identity hides a missing check; a source of one row hides a triangle.",
)
STEPS, CELL = 6, ("batch", "row", "channel")


def _setting(sizes, seed, bias=True):
    """(target rows, pair, weights, valid, the full call's output rows)."""
    target, memory = rows(sizes | {"targets": STEPS}, seed)
    weights, valid = state(sizes, bias, seed), valid_rows(sizes)
    k, v = (torch.stack(whole(memory, weights, role, sizes["heads"]), 1) for role in "kv")
    full, _ = oracle(target, memory, weights, sizes["heads"], valid[:, None, None])
    return target, pair(k, v, memory), weights, valid, full


def _steps(lab, sizes, setting, steps=STEPS):
    target, made, weights, valid, full = setting
    for t in range(steps):
        got = lab.call("decode_step", target[:, t:t + 1], made, weights, sizes["heads"], valid, identity())
        try:
            expect.close(got, full[:, t:t + 1], f"row {t}", CELL)
        except Mismatch as m:
            raise Mismatch(f"{m}{_read_back(got, t, sizes, setting)}", m.figure) from None


def _read_back(got, t, sizes, setting):
    """Which source rows a wrong step read, where reading only the first ones explains it."""
    target, made, weights, valid, full = setting
    if not isinstance(got, torch.Tensor) or got.shape != full[:, :1].shape or got.dtype != full.dtype:
        return ""
    if got.isnan().any():
        return "; K and V of this pair are fine, its memory and the weights W_K and W_V hold NaN: the step used them"
    q = split(projected(target[:, t:t + 1], weights, "q"), sizes["heads"])
    for n in range(1, sizes["sources"]):
        seen = (torch.arange(sizes["sources"]) < n) & valid
        if seen.any(-1).all():
            heads = attended(q, made.k, seen[:, None, None]) @ made.v
            if torch.allclose(projected(merge(heads), weights, "o"), got):
                return f"; it read the first {n} source rows only"
    return ""


@exercise.case("6 steps, B2 H3 S7 D_qk4 D_v6 M10, against the rows of the full call")
def rectangle(lab):
    _steps(lab, A, _setting(A, 0))


@exercise.case("3 steps at B=H=3, S=6, no biases")
def trap(lab):
    _steps(lab, X, _setting(X, 100, bias=False), 3)


@exercise.case("memory, W_K and W_V hold NaN: a step does not need them")
def poisoned(lab):
    target, made, weights, valid, full = _setting(A, 200)
    poison = {n: torch.full_like(w, torch.nan) for n, w in weights.items() if n[0] in "kv"}
    made = pair(made.k, made.v, torch.full_like(made.memory, torch.nan))
    _steps(lab, A, (target, made, weights | poison, valid, full), 2)


@exercise.case("no product has a source row, W_K or W_V as a factor", CONTRACT)
def counted(lab):
    target, made, weights, valid, full = _setting(A, 300)
    got = lab.call("decode_step", target[:, :1], made, weights, 3, valid, identity(), count=True)
    expect.close(got, full[:, :1], "row 0", CELL)
    numbers, used = lab.last.numbers, set(lab.last.counts["multiplied"])
    for name, tensor in (("the memory", made.memory), ("W_K", weights["k_proj.weight"]),
                         ("W_V", weights["v_proj.weight"])):
        expect.true(numbers[id(tensor)] not in used, f"{name} is a factor of a product in a step: the source was "
                                                     "projected when the pair was made")


@exercise.case("refuses a pair of another identity, and names the first field that differs", CONTRACT)
def refuses_identity(lab):
    target, made, weights, valid, _ = _setting(A, 400)
    for fields in [(field,) for field in FIELDS] + [("adapter", "shard")]:
        other = pair(made.k, made.v, made.memory, **{f: OTHER[f] for f in fields})
        try:
            lab.raises(ValueError, fields[0], "decode_step", target[:, :1], other, weights, 3, valid, identity())
        except Mismatch as m:
            spelled, rest = str(m), f"refused, but not by ValueError (\"{fields[0]}\")"
            raise Mismatch(f"a pair whose {fields[0]} is {OTHER[fields[0]]!r}, where the call expects "
                           f"{identity()._fields[fields[0]]!r}, was "
                           f"{'accepted' if 'was accepted' in spelled else rest}") from None


@exercise.case("refuses a sample without a real source row", CONTRACT)
def refuses_blind(lab):
    target, made, weights, valid, _ = _setting(A, 500)
    blind = valid.clone()
    blind[1] = False
    lab.raises(ValueError, "no visible key", "decode_step", target[:, :1], made, weights, 3, blind, identity())


@exercise.case("the dtype follows the row, and two calls agree", CONTRACT)
def dtypes(lab):
    target, made, weights, valid, full = _setting(A, 600)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        cast = pair(*(t.to(dtype) for t in (made.k, made.v, made.memory)))
        args = target[:, :1].to(dtype), cast, {n: w.to(dtype) for n, w in weights.items()}, 3, valid, identity()
        first, again = (expect.tensor(lab.call("decode_step", *args)) for _ in range(2))
        expect.dtype(first, dtype, "the row")
        loose = 6 * TOLERANCE[dtype]
        expect.close(first.double(), full[:, :1], "the row", CELL, loose, loose)
        expect.close(again, first, "the row of the second call", CELL, 0, 0)


def _read(target_row, made, state, num_heads, seen, k=None, v=None):
    if not seen.any(-1).all():
        raise ValueError("no visible key: a sample has no real source row")
    q = split(projected(target_row, state, "q"), num_heads)
    heads = attended(q, made.k if k is None else k, seen[:, None, None]) @ (made.v if v is None else v)
    return projected(merge(heads), state, "o")


@exercise.right
def composed(target_row, pair, state, num_heads, valid, expected):
    compare(pair.identity, expected)
    return _read(target_row, pair, state, num_heads, valid)


@exercise.right
def fused_attention(target_row, pair, state, num_heads, valid, expected):
    compare(pair.identity, expected)
    if not valid.any(-1).all():
        raise ValueError("no visible key")
    q = split(projected(target_row, state, "q"), num_heads)
    heads = F.scaled_dot_product_attention(q, pair.k, pair.v, attn_mask=valid[:, None, None])
    return projected(merge(heads), state, "o")


@exercise.right
def einsum_without_a_row_axis(target_row, pair, state, num_heads, valid, expected):
    for name, made in vars(pair.identity).items():
        if made != getattr(expected, name):
            raise ValueError(f"identity: {name}")
    if not valid.any(1).all():
        raise ValueError("no visible key")
    q = projected(target_row, state, "q")[:, 0].view(len(target_row), num_heads, -1)
    scores = torch.einsum("bhd,bhsd->bhs", q, pair.k) / math.sqrt(q.shape[-1])
    p = scores.masked_fill(~valid[:, None], -math.inf).softmax(-1)
    mixed = torch.einsum("bhs,bhsd->bhd", p, pair.v).flatten(1)
    return projected(mixed, state, "o")[:, None]


@exercise.right
def one_sample_after_another(target_row, pair, state, num_heads, valid, expected):
    compare(pair.identity, expected)
    out = []
    for b, row in enumerate(target_row):
        real = valid[b]
        if not real.any():
            raise ValueError("no visible key")
        q = projected(row, state, "q").view(num_heads, 1, -1)
        p = (q @ pair.k[b, :, real].mT / q.shape[-1] ** 0.5).softmax(-1)
        out.append(projected((p @ pair.v[b, :, real]).reshape(1, -1), state, "o"))
    return torch.stack(out)


@exercise.right
def without_a_graph(target_row, pair, state, num_heads, valid, expected):
    compare(pair.identity, expected)
    with torch.no_grad():
        return _read(target_row, pair, state, num_heads, valid)


@exercise.wrong
def memory_reprojected(target_row, pair, state, num_heads, valid, expected):
    """The step projected the source again."""
    compare(pair.identity, expected)
    k, v = (split(projected(pair.memory, state, role), num_heads) for role in "kv")
    return _read(target_row, pair, state, num_heads, valid, k, v)


@exercise.wrong(id="memory-reprojected")
def keys_reprojected(target_row, pair, state, num_heads, valid, expected):
    compare(pair.identity, expected)
    return _read(target_row, pair, state, num_heads, valid, split(projected(pair.memory, state, "k"), num_heads))


@exercise.wrong(id="memory-reprojected")
def values_reprojected(target_row, pair, state, num_heads, valid, expected):
    compare(pair.identity, expected)
    return _read(target_row, pair, state, num_heads, valid, v=split(projected(pair.memory, state, "v"), num_heads))


@exercise.wrong
def source_appended(target_row, pair, state, num_heads, valid, expected):
    """Cross K/V do not grow with decoding."""
    compare(pair.identity, expected)
    k, v = (torch.cat([old, split(projected(target_row, state, role), num_heads)], 2)
            for role, old in (("k", pair.k), ("v", pair.v)))
    if not valid.any(-1).all():
        raise ValueError("no visible key")
    return _read(target_row, pair, state, num_heads, F.pad(valid, (0, 1), value=True), k, v)


@exercise.wrong
def identity_unchecked(target_row, pair, state, num_heads, valid, expected):
    """A pair of another layer, release or adapter was read."""
    return _read(target_row, pair, state, num_heads, valid)


def _unasked(name, *fields):
    def program(target_row, pair, state, num_heads, valid, expected):
        compare(pair.identity, expected, [f for f in FIELDS if f not in fields])
        return _read(target_row, pair, state, num_heads, valid)
    program.__name__ = name
    exercise.wrong(program, id="identity-unchecked")


_unasked("only_sizes_checked", *(f for f in FIELDS if f not in ("kv_heads", "d_qk", "d_v", "source_len")))
_unasked("only_sizes_and_dtype_checked", *(f for f in FIELDS if f not in (
    "kv_heads", "d_qk", "d_v", "source_len", "dtype", "device")))
for _field in ("memory_digest", "layer", "projection_version", "adapter", "shard"):
    _unasked(f"{_field}_forgotten", _field)


@exercise.recognise("identity-unchecked")
def another_pair_was_read(trials):
    """All values are right, and the first refusal that is missing is one of an identity."""
    trial = next(t for t in trials if t.case.probe is refuses_identity)
    return not trial.passed and trial.message.endswith("was accepted")


@exercise.wrong
def triangle_on_source(target_row, pair, state, num_heads, valid, expected):
    """A decode step may read the whole valid source."""
    compare(pair.identity, expected)
    seen = torch.ones(1, valid.shape[1], dtype=torch.bool).tril() & valid
    return _read(target_row, pair, state, num_heads, seen if valid.any(-1).all() else valid)


@exercise.wrong(id="triangle-on-source")
def fused_attention_called_causal(target_row, pair, state, num_heads, valid, expected):
    compare(pair.identity, expected)
    if not valid.any(-1).all():
        raise ValueError("no visible key")
    q = split(projected(target_row, state, "q"), num_heads)
    heads = F.scaled_dot_product_attention(q, pair.k, pair.v, is_causal=True)
    return projected(merge(heads), state, "o")
