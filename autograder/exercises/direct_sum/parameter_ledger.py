"""Every parameter of a layer, counted."""
from torch import nn

from ...exercise import CONTRACT, VALUES, Exercise
from ._ledgers import ROLES, answers, by_numbers, check, layer

exercise = Exercise(
    "parameter_ledger", step=11, points=2, minutes=4, difficulty=2, importance=4, tensor=False,
    summary="Count the weights and biases of the four maps, for heads of any width.",
    hints=(
        "Each map has reads × writes weights, and as many biases as it writes. List reads and writes of all four.",
        "W_O reads what the heads produce, H·D_v channels, and writes M. Which of the other three maps has the same "
        "number of weights?",
        "H cancels only while H·D = M. Keep H, D_qk and D_v apart and let the arguments decide; add the sums last.",
    ),
    hides="H·D_qk = H·D_v = M hides every square formula; bias=False hides the biases.",
)


def oracle(d_model, num_heads, d_qk, d_v, bias=True):
    """numel of a built layer."""
    maps = layer(d_model, num_heads, d_qk, d_v, bias)
    ledger = {role: sum(p.numel() for p in maps[role].parameters()) for role in ROLES}
    weights = sum(m.weight.numel() for m in maps.values())
    total = sum(ledger.values())
    return ledger | {"weights": weights, "biases": total - weights, "total": total}


def _how(d_model, num_heads, d_qk, d_v, bias=True):
    qk, v = f"{num_heads}·{d_qk}", f"{num_heads}·{d_v}"
    plus = {r: f" + {w}" if bias else "" for r, w in dict(q=qk, k=qk, v=v, o=d_model).items()}
    return {"q": f"{d_model}·{qk}{plus['q']}", "k": f"{d_model}·{qk}{plus['k']}", "v": f"{d_model}·{v}{plus['v']}",
            "o": f"{v}·{d_model}{plus['o']}"}


CASES = {
    "values narrower than keys: M512 H8 D_qk64 D_v48, no bias": ((512, 8, 64, 48, False), VALUES),
    "H·D is not M: M10 H3 D_qk4 D_v6, no bias": ((10, 3, 4, 6, False), VALUES),
    "eight full-width heads: M512 H8 D512, no bias": ((512, 8, 512, 512, False), VALUES),
    "with biases: M6 H2 D_qk3 D_v2": ((6, 2, 3, 2), CONTRACT),
    "equal widths, H·D = M: M512 H8 D64, no bias": ((512, 8, 64, 64, False), CONTRACT),
    "GPT-2 small, with biases: M768 H12 D64": ((768, 12, 64, 64, True), CONTRACT),
    "heads that fill part of M: M12 H2 D3 D_v5, with biases": ((12, 2, 3, 5, True), CONTRACT),
}
PROBES = {}


def _case(title, args, kind):
    @exercise.case(title, kind)
    def probe(lab):
        check(lab, "parameter_ledger", args, oracle(*args), "parameters", _how(*args))
    PROBES[probe] = args


for _title, (_args, _kind) in CASES.items():
    _case(_title, _args, _kind)


@exercise.case("H = 1, 2, 3, 6 at M12 with D = 12/H: the count stays", CONTRACT)
def same_count(lab):
    for heads in (1, 2, 3, 6):
        args = 12, heads, 12 // heads, 12 // heads, False
        check(lab, "parameter_ledger", args, oracle(*args), "parameters", _how(*args))


def _sums(roles, biases):
    weights = sum(roles.values())
    ledger = {r: n + biases[r] for r, n in roles.items()}
    return ledger | {"weights": weights, "biases": sum(biases.values()), "total": weights + sum(biases.values())}


def _widths(num_heads, d_qk, d_v):
    return num_heads * d_qk, num_heads * d_v


@exercise.right
def formulas(d_model, num_heads, d_qk, d_v, bias=True):
    qk, v = _widths(num_heads, d_qk, d_v)
    return _sums(dict(q=d_model * qk, k=d_model * qk, v=d_model * v, o=v * d_model),
                 dict(q=bias * qk, k=bias * qk, v=bias * v, o=bias * d_model))


@exercise.right
def counting_a_meta_module(d_model, num_heads, d_qk, d_v, bias=True):
    qk, v = _widths(num_heads, d_qk, d_v)
    maps = {r: nn.Linear(i, o, bias=bias, device="meta") for r, (i, o) in dict(
        q=(d_model, qk), k=(d_model, qk), v=(d_model, v), o=(v, d_model)).items()}
    return _sums({r: m.weight.numel() for r, m in maps.items()},
                 {r: 0 if m.bias is None else m.bias.numel() for r, m in maps.items()})


@exercise.right
def head_by_head(d_model, num_heads, d_qk, d_v, bias=True):
    roles, biases = dict.fromkeys(ROLES, 0), dict(q=0, k=0, v=0, o=bias * d_model)
    for _ in range(num_heads):
        for role, width in (("q", d_qk), ("k", d_qk), ("v", d_v), ("o", d_v)):
            roles[role] += d_model * width
            if role != "o":
                biases[role] += bias * width
    return _sums(roles, biases)


@exercise.wrong
def four_squares(d_model, num_heads, d_qk, d_v, bias=True):
    """4M² holds only when H·D_qk = H·D_v = M."""
    return _sums(dict.fromkeys(ROLES, d_model**2), dict.fromkeys(ROLES, bias * d_model))


@exercise.wrong
def qkv_only(d_model, num_heads, d_qk, d_v, bias=True):
    """W_O was left out: 3M² is not the module."""
    ledger = formulas(d_model, num_heads, d_qk, d_v, bias)
    weights = ledger["weights"] - d_model * num_heads * d_v
    biases = ledger["biases"] - bias * d_model
    return ledger | {"o": 0, "weights": weights, "biases": biases, "total": weights + biases}


@exercise.wrong(id="qkv-only")
def left_out_of_the_sums(d_model, num_heads, d_qk, d_v, bias=True):
    return qkv_only(d_model, num_heads, d_qk, d_v, bias) | {
        "o": formulas(d_model, num_heads, d_qk, d_v, bias)["o"]}


@exercise.wrong
def heads_always_cancel(d_model, num_heads, d_qk, d_v, bias=True):
    """At fixed D the count grows with H."""
    return formulas(d_model, 1, d_qk, d_v, bias)


@exercise.wrong(id="heads-always-cancel")
def heads_counted_from_the_model_width(d_model, num_heads, d_qk, d_v, bias=True):
    return formulas(d_model, d_model // d_qk, d_qk, d_v, bias)


def _squares(d_model, num_heads, d_qk, d_v, bias=True):
    numbers = dict.fromkeys(ROLES, {d_model**2})
    qk, v = _widths(num_heads, d_qk, d_v)
    widths = dict(q=qk, k=qk, v=v, o=d_model)
    return {r: n | {d_model**2 + w * bias for w in (d_model, widths[r])} for r, n in numbers.items()}


def _without_heads(d_model, num_heads, d_qk, d_v, bias=True):
    found = _squares(d_model, num_heads, d_qk, d_v, bias)
    for other in (heads_always_cancel, heads_counted_from_the_model_width):
        ledger = other(d_model, num_heads, d_qk, d_v, bias)
        for role in ROLES:
            found[role] = found[role] | {ledger[role], other(d_model, num_heads, d_qk, d_v, False)[role]}
    return found


by_numbers(exercise, "four-squares", PROBES, oracle, _squares)
by_numbers(exercise, "heads-always-cancel", PROBES, oracle, _without_heads)


@exercise.recognise("qkv-only")
def without_w_o(trials):
    """The total is that of q, k and v, in every case about values."""
    seen = answers(trials, PROBES)
    if not seen or not all(isinstance(got, dict) for _, got in seen):
        return False
    for args, got in seen:
        want = oracle(*args)
        if got.get("total") not in (want["q"] + want["k"] + want["v"], 3 * args[0]**2):
            return False
    return True
