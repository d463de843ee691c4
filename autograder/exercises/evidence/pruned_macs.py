"""What a call and a layer save by fewer heads."""
from ...exercise import Exercise
from ..direct_sum import _ledgers
from ..direct_sum._ledgers import counted_macs, layer

exercise = Exercise(
    "pruned_macs", step=7, points=1, minutes=3, difficulty=2, importance=4, tensor=False,
    summary="Count what fewer heads save in products and parameters, and what a mask saves.",
    hints=(
        "A dense layer multiplies by the gate 0 at the end. Which of its products were left out?",
        "For one head: which of the four projections run over query rows and which over source rows? Which widths do "
        "they have?",
        "Two ledgers of the same call, with and without the heads, and their difference. Which bias has no head?",
    ),
    hides="T = S hides the length of K and V; D_v = D_qk hides the widths; one removed head hides a missing factor.",
)
SIZES = ("batch", "q_len", "k_len", "d_model", "d_qk", "d_v", "removed", "physical")


def oracle(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    """Two real layers on tensors without data, counted, and their difference."""
    if not physical:
        return dict.fromkeys(("projection", "attention", "weights", "biases"), 0)
    counts = []
    for heads in (removed + 2, 2):
        macs = counted_macs(batch, q_len, k_len, d_model, heads, d_qk, d_v)
        maps = layer(d_model, heads, d_qk, d_v, bias=True)
        counts.append({"projection": sum(macs[r] for r in "qkvo"), "attention": macs["scores"] + macs["values"],
                       "weights": sum(m.weight.numel() for m in maps.values()),
                       "biases": sum(m.bias.numel() for m in maps.values())})
    return {key: counts[0][key] - counts[1][key] for key in counts[0]}


def _how(B, T, S, M, d_qk, d_v, removed, physical):
    if not physical:
        return dict.fromkeys(("projection", "attention", "weights", "biases"), "no shape is smaller")
    return {"projection": f"{removed}·{B}·{M}·({T}·{d_qk} + {S}·{d_qk} + {S}·{d_v} + {T}·{d_v})",
            "attention": f"{removed}·{B}·{T}·{S}·({d_qk} + {d_v})",
            "weights": f"{removed}·2·{M}·({d_qk} + {d_v})", "biases": f"{removed}·(2·{d_qk} + {d_v})"}


CASES = {
    "one head of B2 T3 S4 M6 D_qk3 D_v2, cut out": (2, 3, 4, 6, 3, 2, 1, True),
    "the same head, masked": (2, 3, 4, 6, 3, 2, 1, False),
    "three heads of B3 T5 S7 M10 D_qk4 D_v6, cut out": (3, 5, 7, 10, 4, 6, 3, True),
    "two heads masked": (3, 5, 7, 10, 4, 6, 2, False),
    "one head of the classic layer: M512 D64": (1, 128, 128, 512, 64, 64, 1, True),
    "no head at all": (2, 5, 3, 8, 4, 2, 0, True),
}


def _case(title, args):
    @exercise.case(title)
    def probe(lab):
        _ledgers.check(lab, "pruned_macs", args, oracle(*args), "less", _how(*args))


for _title, _args in CASES.items():
    _case(_title, _args)


def _ledger(projection, attention, weights, biases, removed, physical):
    gone = removed if physical else 0
    return {"projection": gone * projection, "attention": gone * attention, "weights": gone * weights,
            "biases": gone * biases}


@exercise.right
def formula(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    width = d_qk + d_v
    return _ledger(batch * d_model * width * (q_len + k_len), batch * q_len * k_len * width, 2 * d_model * width,
                   d_qk + width, removed, physical)


@exercise.right
def difference_of_ledgers(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    def ledger(heads):
        qk, v = heads * d_qk, heads * d_v
        return {"projection": batch * d_model * (q_len * qk + k_len * qk + k_len * v + q_len * v),
                "attention": batch * heads * q_len * k_len * (d_qk + d_v), "weights": 2 * d_model * (qk + v),
                "biases": 2 * qk + v + d_model}
    before, after = ledger(8), ledger(8 - removed * physical)
    return {key: before[key] - after[key] for key in before}


@exercise.right
def head_by_head(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    saved = dict.fromkeys(("biases", "weights", "attention", "projection"), 0)
    if physical:
        for _ in range(removed):
            for rows, width in ((q_len, d_qk), (k_len, d_qk), (k_len, d_v), (q_len, d_v)):
                saved["projection"] += batch * rows * d_model * width
                saved["weights"] += d_model * width
            saved["biases"] += d_qk + d_qk + d_v
            saved["attention"] += batch * q_len * (d_qk * k_len + k_len * d_v)
    return saved


@exercise.wrong
def mask_saves_work(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    """A dense mask leaves every shape and MAC."""
    return formula(batch, q_len, k_len, d_model, d_qk, d_v, removed, True)


@exercise.wrong(id="mask-saves-work")
def products_but_no_parameters(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    saved = formula(batch, q_len, k_len, d_model, d_qk, d_v, removed, True)
    return saved if physical else saved | {"weights": 0, "biases": 0}


@exercise.wrong(id="mask-saves-work")
def attention_only(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    saved = formula(batch, q_len, k_len, d_model, d_qk, d_v, removed, True)
    return saved if physical else saved | {"projection": 0, "weights": 0, "biases": 0}


@exercise.wrong
def output_bias_saved(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    """b_O stays."""
    saved = formula(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical)
    return saved | {"biases": saved["biases"] + d_model * bool(physical)}


@exercise.wrong(id="output-bias-saved")
def once_a_head(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    saved = formula(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical)
    return saved | {"biases": saved["biases"] + removed * d_model * bool(physical)}


@exercise.wrong(id="output-bias-saved")
def as_wide_as_a_value(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    saved = formula(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical)
    return saved | {"biases": removed * 2 * (d_qk + d_v) * bool(physical)}


@exercise.wrong
def keys_use_query_length(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    """K and V rows are S."""
    saved = formula(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical)
    return saved | {"projection": removed * bool(physical) * batch * d_model * 2 * q_len * (d_qk + d_v)}


@exercise.wrong(id="keys-use-query-length")
def in_the_scores_too(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    return formula(batch, q_len, q_len, d_model, d_qk, d_v, removed, physical)


@exercise.wrong
def one_head_only(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    """The saving of one head was not multiplied by how many were removed."""
    return formula(batch, q_len, k_len, d_model, d_qk, d_v, min(removed, 1), physical)


@exercise.wrong
def flops_not_macs(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical):
    """One multiply-accumulate counts once here."""
    saved = formula(batch, q_len, k_len, d_model, d_qk, d_v, removed, physical)
    return saved | {key: 2 * saved[key] for key in ("projection", "attention")}
