"""One stored projection in place of three."""
import torch

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise
from ...nested import match, nested_cases, structure

exercise = Exercise(
    "fuse_qkv", step=6, points=1, minutes=2, difficulty=1, importance=4,
    summary="Join the stored maps of q, k and v into one, rows of q first, then k, then v.",
    hints=(
        "All three maps read the same M channels and write channels of their own. Along which axis do they join?",
        "Stored weights are [out, in]. A fused product makes the q channels first, then those of k, then those of v.",
        "The biases join in the same order, when there are three of them. With none the result has none; what is "
        "left to do when there are one or two?",
    ),
    hides="equal weights hide the order; D_v = D hides it from the shape, and so does every total.",
)

LABELS = {"": "the result", 0: "weight", 1: "bias"}
WIDTHS = dict(q=12, k=12, v=18)


def oracle(q, k, v):
    """Row by row."""
    rows = [(pair, r) for pair in (q, k, v) for r in range(pair[0].shape[0])]
    weight = torch.stack([pair[0][r] for pair, r in rows])
    return weight, None if q[1] is None else torch.stack([pair[1][r] for pair, r in rows])


def roles(widths, inputs, bias):
    """Pairs whose weights are addresses of one coded tensor [row, input], rows of q first."""
    rows = sum(widths.values())
    weights = coded(row=rows, input=inputs).split(list(widths.values()))
    biases = coded(row=rows).split(list(widths.values())) if bias else [None] * 3
    return [(w.clone(), None if b is None else b.clone()) for w, b in zip(weights, biases, strict=True)]


def which(row, widths):
    """A row of the fused order in words."""
    for role, width in widths.items():
        if row < width:
            return f"row {row} of {role}"
        row -= width
    raise LookupError(row)


def fused_rows(got, want, widths, inputs, what="the fused weight"):
    """Values are addresses [row, input]; the first wrong row is named by role."""
    expect.shape(got, want.shape, what)
    expect.dtype(got, want.dtype, what)
    wrong = (got != want).reshape(got.shape[0], -1).any(1).nonzero()
    if len(wrong):
        at = wrong[0].item()
        held = got.reshape(got.shape[0], -1)[at, 0].item() / inputs
        known = 0 <= held < sum(widths.values()) and held == int(held)
        text = which(int(held), widths) if known else f"{held * inputs:g}, which is no row of the roles"
        raise expect.Mismatch(f"row {at} of {what} holds {text}, expected {which(at, widths)}")


def _check(lab, widths, inputs, bias):
    q, k, v = roles(widths, inputs, bias)
    want = oracle(q, k, v)
    got = lab.call("fuse_qkv", q, k, v)
    structure(got, want, "the result")
    fused_rows(expect.tensor(got[0], "the fused weight"), want[0], widths, inputs)
    if bias:
        fused_rows(expect.tensor(got[1], "the fused bias"), want[1], widths, 1, "the fused bias")
    return got


@exercise.case("rows of q, then k, then v: A, 12, 12 and 18 rows of 10")
def weights(lab):
    _check(lab, WIDTHS, 10, bias=False)


@exercise.case("biases in the same order: 8, 4 and 6 rows of 7")
def biases(lab):
    _check(lab, dict(q=8, k=4, v=6), 7, bias=True)


def _inputs():
    widths = WIDTHS.values()
    return tuple((standard.normal(n, 10, seed=i), standard.normal(n, seed=9 + i)) for i, n in enumerate(widths)), {}


nested_cases(exercise, _inputs, oracle, ("q", "k", "v"), LABELS)


@exercise.case("three equal widths, 12 rows each", CONTRACT)
def equal_widths(lab):
    q, k, v = roles(dict(q=12, k=12, v=12), 12, True)
    match(lab.call("fuse_qkv", q, k, v), oracle(q, k, v), LABELS)


@exercise.case("a bias that no role has stays None", CONTRACT)
def none(lab):
    got = _check(lab, WIDTHS, 10, bias=False)
    expect.true(got[1] is None, "no role has a bias, and the fused map has one: with zeros it is another checkpoint")


@exercise.case("refuses roles of which only some have a bias", CONTRACT)
def some(lab):
    w, b = torch.ones(4, 10, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    lab.raises(ValueError, "bias", "fuse_qkv", (w, b), (w, None), (w, b))


@exercise.case("refuses roles that read rows of different width", CONTRACT)
def widths(lab):
    wide, narrow = torch.ones(4, 10), torch.ones(4, 9)
    lab.raises(ValueError, "width", "fuse_qkv", (wide, None), (narrow, None), (wide, None))


def _checked(*pairs, biases=True):
    weights, bias = [w for w, _ in pairs], [b for _, b in pairs]
    if len({w.shape[1] for w in weights}) > 1:
        raise ValueError("the roles read rows of different width")
    if biases and any(b is None for b in bias) != all(b is None for b in bias):
        raise ValueError("only some roles have a bias")
    return weights, bias


@exercise.right
def cat(q, k, v):
    weights, biases = _checked(q, k, v)
    return torch.cat(weights), None if biases[0] is None else torch.cat(biases)


@exercise.right
def preallocated_slices(q, k, v):
    weights, biases = _checked(q, k, v)
    rows = [w.shape[0] for w in weights]
    fused = weights[0].new_empty(sum(rows), weights[0].shape[1])
    bias = None if biases[0] is None else weights[0].new_empty(sum(rows))
    at = 0
    for n, w, b in zip(rows, weights, biases, strict=True):
        fused[at:at + n] = w
        if bias is not None:
            bias[at:at + n] = b
        at += n
    return fused, bias


@exercise.right
def vstack(q, k, v):
    weights, biases = _checked(q, k, v)
    return torch.vstack(weights), None if biases[0] is None else torch.hstack(biases)


@exercise.right
def logical_columns(q, k, v):
    weights, biases = _checked(q, k, v)
    return torch.cat([w.T for w in weights], 1).T, None if biases[0] is None else torch.cat(biases)


@exercise.wrong
def order_qvk(q, k, v):
    """The declared order is q, k, v."""
    return cat(q, v, k)


@exercise.wrong(id="order-qvk")
def order_kqv(q, k, v):
    return cat(k, q, v)


@exercise.wrong(id="order-qvk")
def order_vkq(q, k, v):
    return cat(v, k, q)


@exercise.wrong(id="order-qvk")
def order_kvq(q, k, v):
    return cat(k, v, q)


@exercise.wrong(id="order-qvk")
def weights_only(q, k, v):
    return cat(q, v, k)[0], cat(q, k, v)[1]


@exercise.wrong(id="order-qvk")
def biases_only(q, k, v):
    return cat(q, k, v)[0], cat(q, v, k)[1]


def _zeros(weight, bias):
    return weight.new_zeros(weight.shape[0]) if bias is None else bias


@exercise.wrong
def bias_invented(q, k, v):
    """A missing bias must stay missing."""
    weights, biases = _checked(q, k, v, biases=False)
    return torch.cat(weights), torch.cat([_zeros(w, b) for w, b in zip(weights, biases, strict=True)])


@exercise.wrong(id="bias-invented")
def only_beside_others(q, k, v):
    weights, biases = _checked(q, k, v, biases=False)
    if all(b is None for b in biases):
        return torch.cat(weights), None
    return torch.cat(weights), torch.cat([_zeros(w, b) for w, b in zip(weights, biases, strict=True)])


@exercise.wrong(id="bias-invented")
def only_without_others(q, k, v):
    weights, biases = _checked(q, k, v)
    return torch.cat(weights), torch.cat([_zeros(w, b) for w, b in zip(weights, biases, strict=True)])


@exercise.recognise("bias-invented")
def a_bias_where_none_was(trials):
    """Right in every value, and a tensor where None was due, or where the call was to be refused."""
    if any(not t.passed for t in trials if t.case.kind != CONTRACT):
        return False
    answers = [t.transcript[-1].value for t in trials if t.case.probe in (none, some) and not t.passed and t.transcript]
    return any(isinstance(a, (tuple, list)) and len(a) == 2 and isinstance(a[1], torch.Tensor) for a in answers)


@exercise.wrong
def split_on_inputs(q, k, v):
    """The input axis is shared, never split."""
    weights, biases = _checked(q, k, v)
    return torch.cat(weights, dim=1), None if biases[0] is None else torch.cat(biases)
