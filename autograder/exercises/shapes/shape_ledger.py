"""Every shape of one attention call, written down before it runs."""
import torch
from torch import nn

from ... import expect
from ...exercise import CONTRACT, VALUES, Exercise

exercise = Exercise(
    "shape_ledger", step=5, points=2, minutes=6, difficulty=2, importance=4, tensor=False,
    summary="The fifteen shapes of a multi-head attention call, self or cross, with values as wide as you like.",
    hints=(
        "Start with the three inputs: whose length does each one carry, q_len or k_len?",
        "Scores compare each query with each key. The value mix has a row for every query, and the width of the "
        "values, which need not be the width of the keys.",
        "W_O reads what merging produced and writes rows of the model's width. How wide is the merged row if "
        "d_v is not d_model / num_heads?",
    ),
    hides="q_len = k_len hides square scores and keys of the query's length; d_v = D hides everything about values.",
)

KEYS = ("query_in", "key_in", "value_in", "q_packed", "k_packed", "v_packed", "q_heads", "k_heads", "v_heads",
        "scores", "probabilities", "head_output", "token_major", "merged", "output")
AXES = dict(zip(KEYS, ("B,T,M", "B,S,M", "B,S,M", "B,T,H·D", "B,S,H·D", "B,S,H·D_v", "B,H,T,D", "B,H,S,D", "B,H,S,D_v",
                       "B,H,T,S", "B,H,T,S", "B,H,T,D_v", "B,T,H,D_v", "B,T,H·D_v", "B,T,M"), strict=True))
CROSS, WIDE, SELF = (2, 5, 7, 12, 3), (2, 5, 7, 12, 3, 6), (3, 6, 6, 12, 3)


def oracle(batch, q_len, k_len, d_model, num_heads, d_v=None):
    """Shapes recorded from a forward pass on tensors without data."""
    width = d_model // num_heads
    d_v = d_v or width
    with torch.device("meta"):
        maps = [nn.Linear(d_model, num_heads * n) for n in (width, width, d_v)]
        w_o = nn.Linear(num_heads * d_v, d_model)
        query, memory = torch.empty(batch, q_len, d_model), torch.empty(batch, k_len, d_model)
    inputs = query, memory, memory
    packed = [w(x) for w, x in zip(maps, inputs, strict=True)]
    heads = [p.unflatten(-1, (num_heads, -1)).transpose(1, 2) for p in packed]
    scores = heads[0] @ heads[1].mT
    probabilities = scores.softmax(-1)
    mixed = probabilities @ heads[2]
    token_major = mixed.transpose(1, 2)
    merged = token_major.flatten(2)
    stages = (*inputs, *packed, *heads, scores, probabilities, mixed, token_major, merged, w_o(merged))
    return {key: tuple(stage.shape) for key, stage in zip(KEYS, stages, strict=True)}


def _check(lab, call, kwargs):
    sizes = call + tuple(kwargs.values())
    got, want = lab.call("shape_ledger", *call, **kwargs), oracle(*sizes)
    spelled = f"shape_ledger({', '.join(map(str, call))}{''.join(f', {k}={v}' for k, v in kwargs.items())})"
    expect.true(isinstance(got, dict), f"{spelled} is a {type(got).__name__}, expected a dict")
    missing, extra = [k for k in want if k not in got], [k for k in got if k not in want]
    expect.true(not missing, f"{spelled} has no {', '.join(missing)}")
    expect.true(not extra, f"{spelled} has {', '.join(map(str, extra))}, which the contract does not know")
    wrong = [k for k in KEYS if not _same_sizes(got[k], want[k])]
    if wrong:
        first = wrong[0]
        expect.true(False, f"{spelled}: {first} is {got[first]!r}, expected {want[first]}, axes [{AXES[first]}]"
                           + (f"; also wrong: {', '.join(wrong[1:])}" if wrong[1:] else ""))


def _same_sizes(got, want):
    return isinstance(got, (list, tuple)) and list(got) == list(want)


@exercise.case("cross-attention: B2, 5 queries, 7 keys, d_model 12, 3 heads")
def cross(lab):
    _check(lab, CROSS, {})


@exercise.case("values wider than keys: the same with d_v=6")
def wide(lab):
    _check(lab, WIDE[:5], {"d_v": 6})


@exercise.case("self-attention: B3, 6 queries, 6 keys, d_model 12, 3 heads")
def square(lab):
    _check(lab, SELF, {})


@exercise.case("other sizes, and values narrower than keys: B4 T1 S9 M20 H5, d_v=3")
def other_sizes(lab):
    _check(lab, (4, 1, 9, 20, 5), {"d_v": 3})


@exercise.case("one head of the whole width: B2 T5 S7 M12 H1", CONTRACT)
def one_head(lab):
    _check(lab, (2, 5, 7, 12, 1), {})


@exercise.case("every shape is a tuple", CONTRACT)
def tuples(lab):
    got = lab.call("shape_ledger", *CROSS)
    expect.true(isinstance(got, dict), f"the ledger is a {type(got).__name__}, expected a dict")
    for key, shape in got.items():
        expect.true(isinstance(shape, tuple), f"{key} is {shape!r}, a {type(shape).__name__}; shapes are tuples")


@exercise.case("refuses a width that the heads cannot share", CONTRACT)
def refuses(lab):
    lab.raises(ValueError, "divisible", "shape_ledger", 2, 5, 7, 13, 3)


def _divisible(d_model, num_heads):
    if d_model % num_heads:
        raise ValueError(f"d_model {d_model} is not divisible by num_heads {num_heads}")
    return d_model // num_heads


def _ledger(batch, q_len, k_len, d_model, heads, width, d_v):
    return {
        "query_in": (batch, q_len, d_model), "key_in": (batch, k_len, d_model), "value_in": (batch, k_len, d_model),
        "q_packed": (batch, q_len, heads * width), "k_packed": (batch, k_len, heads * width),
        "v_packed": (batch, k_len, heads * d_v), "q_heads": (batch, heads, q_len, width),
        "k_heads": (batch, heads, k_len, width), "v_heads": (batch, heads, k_len, d_v),
        "scores": (batch, heads, q_len, k_len), "probabilities": (batch, heads, q_len, k_len),
        "head_output": (batch, heads, q_len, d_v), "token_major": (batch, q_len, heads, d_v),
        "merged": (batch, q_len, heads * d_v), "output": (batch, q_len, d_model),
    }


@exercise.right
def literals(batch, q_len, k_len, d_model, num_heads, d_v=None):
    width = _divisible(d_model, num_heads)
    return _ledger(batch, q_len, k_len, d_model, num_heads, width, width if d_v is None else d_v)


@exercise.right
def on_meta_tensors(batch, q_len, k_len, d_model, num_heads, d_v=None):
    width = _divisible(d_model, num_heads)
    d_v = width if d_v is None else d_v
    new = {"device": "meta"}
    x, y = torch.empty(batch, q_len, d_model, **new), torch.empty(batch, k_len, d_model, **new)
    seen = {"query_in": x, "key_in": y, "value_in": y}
    for letter, source, n in (("q", x, width), ("k", y, width), ("v", y, d_v)):
        seen[f"{letter}_packed"] = source @ torch.empty(d_model, num_heads * n, **new)
        seen[f"{letter}_heads"] = seen[f"{letter}_packed"].view(*source.shape[:2], num_heads, n).transpose(1, 2)
    seen["scores"] = torch.einsum("bhtd,bhsd->bhts", seen["q_heads"], seen["k_heads"])
    seen["probabilities"] = seen["scores"].softmax(-1)
    seen["head_output"] = seen["probabilities"] @ seen["v_heads"]
    seen["token_major"] = seen["head_output"].transpose(1, 2).contiguous()
    seen["merged"] = seen["token_major"].view(batch, q_len, -1)
    seen["output"] = seen["merged"] @ torch.empty(num_heads * d_v, d_model, **new)
    return {name: tensor.shape for name, tensor in seen.items()}


@exercise.right
def from_a_table(batch, q_len, k_len, d_model, num_heads, d_v=None):
    width = _divisible(d_model, num_heads)
    d_v = d_v or width
    sizes = {"B": batch, "T": q_len, "S": k_len, "M": d_model, "H": num_heads, "D": width, "D_v": d_v,
             "H·D": d_model, "H·D_v": num_heads * d_v}
    return {key: tuple(sizes[a] for a in axes.split(",")) for key, axes in AXES.items()}


@exercise.wrong
def scores_are_square(batch, q_len, k_len, d_model, num_heads, d_v=None):
    """Both score axes used q_len; cross-attention is [B,H,T,S]."""
    square = (batch, num_heads, q_len, q_len)
    return literals(batch, q_len, k_len, d_model, num_heads, d_v) | {"scores": square, "probabilities": square}


@exercise.wrong(id="scores-are-square")
def only_scores_are_square(batch, q_len, k_len, d_model, num_heads, d_v=None):
    return literals(batch, q_len, k_len, d_model, num_heads, d_v) | {"scores": (batch, num_heads, q_len, q_len)}


@exercise.wrong
def value_width_is_key_width(batch, q_len, k_len, d_model, num_heads, d_v=None):
    """D_v was ignored."""
    return literals(batch, q_len, k_len, d_model, num_heads)


@exercise.wrong(id="value-width-is-key-width")
def value_heads_have_key_width(batch, q_len, k_len, d_model, num_heads, d_v=None):
    ledger = literals(batch, q_len, k_len, d_model, num_heads, d_v)
    return ledger | {"v_heads": ledger["k_heads"]}


@exercise.wrong
def merged_is_model_width(batch, q_len, k_len, d_model, num_heads, d_v=None):
    """Merged width is H·D_v, which need not be M."""
    return literals(batch, q_len, k_len, d_model, num_heads, d_v) | {"merged": (batch, q_len, d_model)}


@exercise.wrong
def keys_have_query_length(batch, q_len, k_len, d_model, num_heads, d_v=None):
    """K and V rows belong to the source."""
    short = literals(batch, q_len, q_len, d_model, num_heads, d_v)
    keys = ("k_packed", "v_packed", "k_heads", "v_heads")
    return literals(batch, q_len, k_len, d_model, num_heads, d_v) | {k: short[k] for k in keys}


@exercise.wrong(id="keys-have-query-length")
def key_heads_have_query_length(batch, q_len, k_len, d_model, num_heads, d_v=None):
    ledger = literals(batch, q_len, k_len, d_model, num_heads, d_v)
    return ledger | {"k_heads": ledger["q_heads"]}


def faults(sizes, got):
    """Which known mistakes account for every wrong entry of a ledger; an empty set if some entry is of another kind."""
    batch, q_len, k_len, d_model, heads, *d_v = sizes
    want, short, narrow = oracle(*sizes), oracle(batch, q_len, q_len, d_model, heads, *d_v), oracle(*sizes[:5])
    both = oracle(batch, q_len, q_len, d_model, heads)
    found = set()
    for key in KEYS:
        if key not in got or not isinstance(got[key], (list, tuple)):
            return set()
        shape = tuple(got[key])
        if shape == want[key]:
            continue
        names = set()
        if shape == short[key] or shape == both[key] != narrow[key]:
            names.add("scores-are-square" if key in ("scores", "probabilities") else "keys-have-query-length")
        if shape == narrow[key] or shape == both[key] != short[key]:
            names.add("merged-is-model-width" if key == "merged" else "value-width-is-key-width")
        if not names:
            return set()
        found |= names
    if "value-width-is-key-width" in found:
        found.discard("merged-is-model-width")  # a merged row of narrow values is as wide as the model
    return found


def _found(trials):
    failing = [t for t in trials if not t.passed and t.case.kind == VALUES]
    answers = [(t.signature, t.transcript[0].value) for t in failing]
    if not all(isinstance(value, dict) for _, value in answers):
        return set()
    each = [faults(sizes, value) for sizes, value in answers]
    return set().union(*each) if all(each) else set()


def _known_by_its_entries(name):
    exercise.recognise(name)(lambda trials: name in _found(trials))


for _name in exercise.wrong_ids:
    _known_by_its_entries(_name)
