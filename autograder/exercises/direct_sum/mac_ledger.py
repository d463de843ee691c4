"""Every multiply-accumulate of one call, counted."""
import torch

from ...exercise import CONTRACT, VALUES, Exercise
from ._ledgers import answers, by_numbers, check, counted_macs

exercise = Exercise(
    "mac_ledger", step=12, points=2, minutes=4, difficulty=3, importance=4, tensor=False,
    summary="Count the multiply-accumulates of projections, scores and value mix, for self- and cross-attention.",
    hints=(
        "A product [rows, inner] × [inner, columns] costs rows · inner · columns. Write the six products of one call "
        "with their sizes.",
        "Which products run over target rows, which over source rows, and which over pairs of them?",
        "Scores and value mix each have B·H·T·S pairs; the inner axis of the one is D_qk, the columns of the other are "
        "D_v. One multiply-accumulate counts once.",
    ),
    hides="T = S hides swapped lengths; D_v = D_qk hides widths; H·D = M hides square formulas.",
)

KEYS = ("q", "k", "v", "scores", "values", "o")


def _how(B, T, S, M, H, d_qk, d_v):
    return {"q": f"{B}·{T}·{M}·{H}·{d_qk}", "k": f"{B}·{S}·{M}·{H}·{d_qk}", "v": f"{B}·{S}·{M}·{H}·{d_v}",
            "scores": f"{B}·{H}·{T}·{S}·{d_qk}", "values": f"{B}·{H}·{T}·{S}·{d_v}", "o": f"{B}·{T}·{H}·{d_v}·{M}"}


CASES = {
    "cross-attention, all sizes distinct: B2 T5 S7 M10 H3 D_qk4 D_v6": ((2, 5, 7, 10, 3, 4, 6), VALUES),
    "more source than target: B3 T2 S11 M20 H4 D_qk7 D_v5": ((3, 2, 11, 20, 4, 7, 5), VALUES),
    "small: B2 T3 S4 M6 H2 D_qk3 D_v2, 1,080 in all": ((2, 3, 4, 6, 2, 3, 2), CONTRACT),
    "the classic layer: B1 T=S=128 M512 H8 D64": ((1, 128, 128, 512, 8, 64, 64), CONTRACT),
    "one new token: B1 T1 S1024 M768 H12 D64": ((1, 1, 1024, 768, 12, 64, 64), CONTRACT),
}
PROBES = {}


def _case(title, args, kind):
    @exercise.case(title, kind)
    def probe(lab):
        check(lab, "mac_ledger", args, counted_macs(*args), "MACs", _how(*args))
    PROBES[probe] = args


for _title, (_args, _kind) in CASES.items():
    _case(_title, _args, _kind)


def _with_total(ledger):
    return ledger | {"total": sum(ledger.values())}


@exercise.right
def formulas(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    pairs = batch * num_heads * q_len * k_len
    qk, v = num_heads * d_qk, num_heads * d_v
    return _with_total({"q": batch * q_len * d_model * qk, "k": batch * k_len * d_model * qk,
                        "v": batch * k_len * d_model * v, "scores": pairs * d_qk, "values": pairs * d_v,
                        "o": batch * q_len * v * d_model})


@exercise.right
def products_of_sizes(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    qk, v = num_heads * d_qk, num_heads * d_v
    products = {"q": (batch * q_len, d_model, qk), "k": (batch * k_len, d_model, qk), "v": (batch * k_len, d_model, v),
                "scores": (batch * num_heads * q_len, d_qk, k_len), "values": (batch * num_heads * q_len, k_len, d_v),
                "o": (batch * q_len, v, d_model)}
    return _with_total({k: a * b * c for k, (a, b, c) in products.items()})


@exercise.right
def counted_on_a_meta_module(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    from torch.utils.flop_counter import FlopCounterMode
    new = {"device": "meta"}
    x, y = torch.empty(batch * q_len, d_model, **new), torch.empty(batch * k_len, d_model, **new)
    qk, v = num_heads * d_qk, num_heads * d_v
    heads = batch * num_heads
    products = {"q": (x, torch.empty(d_model, qk, **new)), "k": (y, torch.empty(d_model, qk, **new)),
                "v": (y, torch.empty(d_model, v, **new)),
                "scores": (torch.empty(heads, q_len, d_qk, **new), torch.empty(heads, d_qk, k_len, **new)),
                "values": (torch.empty(heads, q_len, k_len, **new), torch.empty(heads, k_len, d_v, **new)),
                "o": (torch.empty(batch * q_len, v, **new), torch.empty(v, d_model, **new))}
    ledger = {}
    for key, (a, b) in products.items():
        with FlopCounterMode(display=False) as counter:
            a @ b
        ledger[key] = counter.get_total_flops() // 2
    return _with_total(ledger)


def _projections(batch, q_len, k_len, d_model, qk, v):
    return {"q": batch * q_len * d_model * qk, "k": batch * k_len * d_model * qk, "v": batch * k_len * d_model * v,
            "o": batch * q_len * v * d_model}


@exercise.wrong
def four_squares(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    """4M² holds only when H·D_qk = H·D_v = M."""
    right = formulas(batch, q_len, k_len, d_model, num_heads, d_qk, d_v)
    right.pop("total")
    return _with_total(right | _projections(batch, q_len, k_len, d_model, d_model, d_model))


@exercise.wrong
def qkv_only(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    """W_O was left out: 3M² is not the module."""
    right = formulas(batch, q_len, k_len, d_model, num_heads, d_qk, d_v)
    return right | {"o": 0, "total": right["total"] - right["o"]}


@exercise.wrong(id="qkv-only")
def left_out_of_the_sum(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    right = formulas(batch, q_len, k_len, d_model, num_heads, d_qk, d_v)
    return right | {"total": right["total"] - right["o"]}


@exercise.wrong
def heads_always_cancel(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    """At fixed D the count grows with H."""
    return formulas(batch, q_len, k_len, d_model, 1, d_qk, d_v)


@exercise.wrong(id="heads-always-cancel")
def no_heads_in_the_pairs(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    ledger = formulas(batch, q_len, k_len, d_model, num_heads, d_qk, d_v)
    ledger.pop("total")
    pairs = batch * q_len * k_len
    return _with_total(ledger | {"scores": pairs * d_qk, "values": pairs * d_v})


@exercise.wrong
def keys_use_query_length(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    """K and V are projected over S rows."""
    ledger = formulas(batch, q_len, k_len, d_model, num_heads, d_qk, d_v)
    ledger.pop("total")
    rows = batch * q_len * d_model * num_heads
    return _with_total(ledger | {"k": rows * d_qk, "v": rows * d_v})


@exercise.wrong
def scores_square(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    """The score product is B·H·T·S·D_qk."""
    ledger = formulas(batch, q_len, k_len, d_model, num_heads, d_qk, d_v)
    ledger.pop("total")
    return _with_total(ledger | {"scores": batch * num_heads * q_len * q_len * d_qk})


@exercise.wrong
def values_use_dqk(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    """The value product has width D_v."""
    ledger = formulas(batch, q_len, k_len, d_model, num_heads, d_qk, d_v)
    ledger.pop("total")
    return _with_total(ledger | {"values": batch * num_heads * q_len * k_len * d_qk})


@exercise.wrong
def flops_not_macs(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    """One multiply-accumulate counts once here."""
    return {k: 2 * n for k, n in formulas(batch, q_len, k_len, d_model, num_heads, d_qk, d_v).items()}


def _squares(B, T, S, M, H, d_qk, d_v):
    square = {k: {n} for k, n in _projections(B, T, S, M, M, M).items()}
    return square | {"scores": {B * T * S * M}, "values": {B * T * S * M}}


def _no_heads(B, T, S, M, H, d_qk, d_v):
    one = formulas(B, T, S, M, 1, d_qk, d_v)
    square = _projections(B, T, S, M, M, M)
    return {k: {one[k]} | ({square[k]} if k in square else {B * T * S * M}) for k in KEYS}


def _query_rows(B, T, S, M, H, d_qk, d_v):
    return {"k": {B * T * M * H * d_qk}, "v": {B * T * M * H * d_v}}


def _square_scores(B, T, S, M, H, d_qk, d_v):
    return {"scores": {B * H * n * n * d_qk for n in (T, S)},
            "values": {B * H * n * n * d_v for n in (T, S)}}


def _key_width(B, T, S, M, H, d_qk, d_v):
    return {"values": {B * H * T * S * d_qk}, "v": {B * S * M * H * d_qk}, "o": {B * T * H * d_qk * M}}


def _doubled(B, T, S, M, H, d_qk, d_v):
    return {k: {2 * n} for k, n in formulas(B, T, S, M, H, d_qk, d_v).items()}


for _id, _numbers in (("four-squares", _squares), ("heads-always-cancel", _no_heads),
                      ("keys-use-query-length", _query_rows), ("scores-square", _square_scores),
                      ("values-use-dqk", _key_width), ("flops-not-macs", _doubled)):
    by_numbers(exercise, _id, PROBES, formulas, _numbers)


@exercise.recognise("qkv-only")
def without_w_o(trials):
    """All other terms are right, and the total lacks the output map."""
    seen = answers(trials, PROBES)
    if not seen or not all(isinstance(got, dict) for _, got in seen):
        return False
    return all(got.get("total") == want["total"] - want["o"] and all(got.get(k) == want[k] for k in KEYS if k != "o")
               for want, got in ((formulas(*args), got) for args, got in seen))
