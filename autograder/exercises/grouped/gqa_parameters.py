"""Parameters of a grouped layer, and the share that grouping saves."""
import torch
from torch import nn

from ... import expect
from ...exercise import Exercise

NAME = "gqa_parameters"
exercise = Exercise(
    NAME, step=6, points=1, minutes=3, difficulty=2, importance=4, tensor=False,
    summary="The parameter ledger of a grouped layer, and what it saves against one with G = H.",
    hints=(
        "Write the shapes of the four stored weights. In which of them does H stand, in which G?",
        "What does the output map read: the heads that have queries, or the heads that have keys?",
        "A saving is a fraction: what the full layer has more, over what the full layer has. K and V alone, then all "
        "four.",
    ),
    hides="G = 1 at H = 2 hides a fixed half; H·D = M hides square maps; no biases hide biases of K and V.",
)
CASES = {
    "M12 H4 D3 G2": (12, 4, 2, 3),
    "one key/value head: M12 H4 D3 G1": (12, 4, 1, 3),
    "nothing grouped: M12 H4 D3 G4": (12, 4, 4, 3),
    "H·D is not M, with biases: M20 H12 G3 D8": (20, 12, 3, 8, True),
    "Llama-3-8B: M4096 H32 G8 D128": (4096, 32, 8, 128),
    "Qwen3-0.6B: M1024 H16 G8 D128": (1024, 16, 8, 128),
}
KEYS = ("q", "k", "v", "o", "weights", "biases", "total", "saved_kv", "saved_total")


def oracle(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    """Counted on modules without data."""
    def count(groups):
        rows = dict(q=num_heads, k=groups, v=groups)
        with torch.device("meta"):
            maps = {r: nn.Linear(d_model, n * head_dim, bias=bias) for r, n in rows.items()}
            maps["o"] = nn.Linear(num_heads * head_dim, d_model, bias=bias)
        return {r: sum(p.numel() for p in m.parameters()) for r, m in maps.items()}, sum(
            m.weight.numel() for m in maps.values())
    (roles, weights), (full, _) = count(num_kv_heads), count(num_heads)
    total, whole = sum(roles.values()), sum(full.values())
    return roles | {"weights": weights, "biases": total - weights, "total": total,
                    "saved_kv": 1 - (roles["k"] + roles["v"]) / (full["k"] + full["v"]),
                    "saved_total": 1 - total / whole}


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _case(title, args):
    @exercise.case(title)
    def probe(lab):
        got, want = lab.call(NAME, *args), oracle(*args)
        expect.true(isinstance(got, dict), f"the ledger is a {type(got).__name__}, expected a dict")
        missing, extra = [k for k in KEYS if k not in got], [k for k in got if k not in KEYS]
        expect.true(not missing, f"the ledger has no {', '.join(missing)}")
        expect.true(not extra, f"the ledger has {', '.join(map(str, extra))}, which the contract does not know")
        for key in KEYS:
            share = key.startswith("saved")
            fits = _number(got[key]) and abs(got[key] - want[key]) <= (1e-9 if share else 0)
            shown = (f"{got[key]:.6g}" if share else f"{got[key]:,}") if _number(got[key]) else repr(got[key])[:60]
            due = f"{want[key]:.6g}" if share else f"{want[key]:,} parameters"
            expect.true(fits, f"{NAME}{args}: {key} is {shown}, expected {due}{_how(key, args)}")


def _how(key, args):
    d_model, heads, groups, width, *bias = args
    rows = {"q": heads, "k": groups, "v": groups}.get(key)
    if rows:
        return f" = {d_model}·{rows}·{width}{f' + {rows}·{width}' if bias else ''}"
    if key == "o":
        return f" = {heads}·{width}·{d_model}{f' + {d_model}' if bias else ''}: it reads all {heads} query heads"
    return f" = 1 - {groups}/{heads}" if key == "saved_kv" else ""


for _title, _args in CASES.items():
    _case(_title, _args)


def _ledger(weights, biases, full):
    roles = {r: weights[r] + biases[r] for r in "qkvo"}
    total, kv, whole = sum(roles.values()), roles["k"] + roles["v"], 2 * full["kv"]
    return roles | {"weights": sum(weights.values()), "biases": sum(biases.values()), "total": total,
                    "saved_kv": 1 - kv / whole, "saved_total": 1 - total / (total - kv + whole)}


def _parts(d_model, num_heads, num_kv_heads, head_dim, bias):
    q, kv = num_heads * head_dim, num_kv_heads * head_dim
    weights = dict(q=d_model * q, k=d_model * kv, v=d_model * kv, o=q * d_model)
    return weights, dict(q=bias * q, k=bias * kv, v=bias * kv, o=bias * d_model), {"kv": d_model * q + bias * q}


@exercise.right
def formulas(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    return _ledger(*_parts(d_model, num_heads, num_kv_heads, head_dim, bias))


@exercise.right
def counting_meta_modules(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    def maps(groups):
        rows = {"q": num_heads, "k": groups, "v": groups}
        made = {r: nn.Linear(d_model, n * head_dim, bias, device="meta") for r, n in rows.items()}
        return made | {"o": nn.Linear(num_heads * head_dim, d_model, bias, device="meta")}
    ours, full = ({r: sum(p.numel() for p in m.parameters()) for r, m in maps(g).items()}
                  for g in (num_kv_heads, num_heads))
    biases = 0 if not bias else (num_heads + 2 * num_kv_heads) * head_dim + d_model
    total, whole = sum(ours.values()), sum(full.values())
    return ours | {"total": total, "biases": biases, "weights": total - biases,
                   "saved_kv": (full["k"] - ours["k"]) / full["k"], "saved_total": (whole - total) / whole}


@exercise.right
def head_by_head(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    one, row = head_dim * d_model, head_dim * bias
    roles = {"q": num_heads * (one + row), "k": num_kv_heads * (one + row), "v": num_kv_heads * (one + row),
             "o": num_heads * one + bias * d_model}
    biases = (num_heads + 2 * num_kv_heads) * row + bias * d_model
    saved = 2 * (num_heads - num_kv_heads) * (one + row)
    total = sum(roles.values())
    return roles | {"weights": total - biases, "biases": biases, "total": total,
                    "saved_kv": 1 - num_kv_heads / num_heads, "saved_total": saved / (total + saved)}


@exercise.wrong
def always_half(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    """MQA saves 1−1/H of the K/V maps, not half, and G groups save 1−G/H."""
    ledger = formulas(d_model, num_heads, num_kv_heads, head_dim, bias)
    return ledger | {"saved_kv": 0.5 if num_kv_heads < num_heads else 0.0}


@exercise.wrong(id="always-half")
def half_whatever_the_groups(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    return formulas(d_model, num_heads, num_kv_heads, head_dim, bias) | {"saved_kv": 0.5}


@exercise.wrong(id="always-half")
def half_of_the_total_too(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    return formulas(d_model, num_heads, num_kv_heads, head_dim, bias) | {"saved_kv": 0.5, "saved_total": 0.25}


@exercise.wrong(id="always-half")
def half_the_inverse_group(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    share = (1 - num_kv_heads / num_heads) / 2
    return formulas(d_model, num_heads, num_kv_heads, head_dim, bias) | {"saved_kv": share}


@exercise.wrong
def output_shrinks_too(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    """W_O still reads H·D channels: every query head has an output, only keys and values are shared."""
    weights, biases, full = _parts(d_model, num_heads, num_kv_heads, head_dim, bias)
    ledger = _ledger(weights | {"o": weights["k"]}, biases, full)
    whole = 2 * full["kv"] + weights["q"] + biases["q"] + weights["o"] + biases["o"]
    return ledger | {"saved_total": 1 - ledger["total"] / whole}


@exercise.wrong(id="output-shrinks-too")
def in_its_own_sums(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    weights, biases, full = _parts(d_model, num_heads, num_kv_heads, head_dim, bias)
    return _ledger(weights | {"o": weights["k"]}, biases, full)


@exercise.recognise("output-shrinks-too")
def smaller_output_map(trials):
    """q, k and v are right, o has G in place of H, wherever the two differ."""
    shown = False
    for trial, args in zip(trials, CASES.values(), strict=True):
        got = trial.transcript[-1].value if trial.transcript else None
        if not isinstance(got, dict) or not all(_number(got.get(r)) for r in "qkvo"):
            return False
        want = oracle(*args)
        d_model, heads, groups, width, *bias = args
        small = groups * width * d_model + (d_model if bias else 0)
        if any(got[r] != want[r] for r in "qkv") or got["o"] != small:
            return False
        shown |= groups != heads
    return shown


@exercise.wrong
def query_heads_counted(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    """K and V maps have G heads: their rows are G·D."""
    return formulas(d_model, num_heads, num_heads, head_dim, bias)


@exercise.wrong
def head_dim_from_hidden(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    """head_dim was given; M/H is only what it is when H·D = M."""
    return formulas(d_model, num_heads, num_kv_heads, d_model // num_heads, bias)


@exercise.wrong(id="head-dim-from-hidden")
def square_query_and_output(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    weights, biases, full = _parts(d_model, num_heads, num_kv_heads, head_dim, bias)
    return _ledger(weights | {"q": d_model**2, "o": d_model**2}, biases, full)


@exercise.wrong
def saved_share_is_what_is_left(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    """G/H is what is left of K and V; saved is the rest."""
    ledger = formulas(d_model, num_heads, num_kv_heads, head_dim, bias)
    return ledger | {"saved_kv": 1 - ledger["saved_kv"], "saved_total": 1 - ledger["saved_total"]}


@exercise.wrong(id="saved-share-is-what-is-left")
def only_of_k_and_v(d_model, num_heads, num_kv_heads, head_dim, bias=False):
    ledger = formulas(d_model, num_heads, num_kv_heads, head_dim, bias)
    return ledger | {"saved_kv": 1 - ledger["saved_kv"]}
