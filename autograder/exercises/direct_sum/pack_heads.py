"""One stored weight from the maps of all heads."""
import torch

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise
from ...nested import match, nested_cases, structure

exercise = Exercise(
    "pack_heads", step=1, points=2, minutes=3, difficulty=2, importance=4,
    summary="Concatenate the maps of all heads into one stored weight, and their biases into one bias.",
    hints=(
        "A stored weight has one row for each channel that it writes. Whose rows come first in the packed weight?",
        "Every head reads all M channels. Which axis of [D_i, M] may grow, and which one do the heads share?",
        "Count the heads that have a bias: all, none and some are three different answers. Compare the widths that the "
        "heads read before you join anything.",
    ),
    hides="H=1 or D=1 hides interleaved rows; equal values hide every order.",
)

AXES = dict(head=3, channel=4, input=10)
LABELS = {"": "the result", 0: "weight", 1: "bias"}


def oracle(per_head):
    """weight[Σ D_j (j < i) + d] is row d of head i."""
    rows = [(i, d) for i, (weight, _) in enumerate(per_head) for d in range(weight.shape[0])]
    weight = torch.stack([per_head[i][0][d] for i, d in rows])
    if per_head[0][1] is None:
        return weight, None
    return weight, torch.stack([per_head[i][1][d] for i, d in rows])


def _coded_heads(heads, channel, input, bias):
    weights = coded(head=heads, channel=channel, input=input)
    biases = coded(head=heads, channel=channel) if bias else [None] * heads
    return list(zip(weights, biases, strict=True))


def _check(lab, bias, **axes):
    per_head = _coded_heads(axes["head"], axes["channel"], axes["input"], bias)
    want = oracle(per_head)
    got = lab.call("pack_heads", per_head)
    structure(got, want, "the result")
    expect.layout(got[0], want[0], axes, "weight", ("row", "input"),
                  split=(axes["head"], axes["channel"], axes["input"]))
    if bias:
        axes.pop("input")
        expect.layout(got[1], want[1], axes, "bias", ("row",), split=tuple(axes.values()))
    return got


@exercise.case("whole rows, head after head: H3 D4 M10")
def rows(lab):
    _check(lab, bias=False, **AXES)


@exercise.case("the biases in the same order: H4 D3 M5")
def biases(lab):
    _check(lab, bias=True, head=4, channel=3, input=5)


def _inputs():
    return ([(standard.normal(4, 10, seed=i), standard.normal(4, seed=10 + i)) for i in range(3)],), {}


nested_cases(exercise, _inputs, oracle, ("per_head",), LABELS)


@exercise.case("heads of different widths: 3, 5 and 2 rows", CONTRACT)
def uneven(lab):
    per_head = [(standard.normal(n, 7, seed=n), standard.normal(n, seed=20 + n)) for n in (3, 5, 2)]
    match(lab.call("pack_heads", per_head), oracle(per_head), LABELS)


@exercise.case("a bias that no head has stays None", CONTRACT)
def none(lab):
    got = _check(lab, bias=False, **AXES)
    expect.true(got[1] is None, "no head has a bias, and the packed map has one: with zeros it is another checkpoint")


@exercise.case("refuses heads of which only some have a bias", CONTRACT)
def some(lab):
    lab.raises(ValueError, "bias", "pack_heads", [(torch.ones(4, 10), None), (torch.ones(4, 10), torch.ones(4))])


@exercise.case("refuses heads that read rows of different width", CONTRACT)
def widths(lab):
    lab.raises(ValueError, "width", "pack_heads", [(torch.ones(4, 10), None), (torch.ones(4, 9), None)])


def _checked(per_head, biases=True):
    weights, bias = [w for w, _ in per_head], [b for _, b in per_head]
    if len({w.shape[1] for w in weights}) > 1:
        raise ValueError("the heads read rows of different width")
    if biases and any(b is None for b in bias) != all(b is None for b in bias):
        raise ValueError("only some heads have a bias")
    return weights, bias


@exercise.right
def cat(per_head):
    weights, biases = _checked(per_head)
    return torch.cat(weights, dim=0), None if biases[0] is None else torch.cat(biases)


@exercise.right
def preallocated_copy(per_head):
    weights, biases = _checked(per_head)
    rows = sum(w.shape[0] for w in weights)
    packed, at = weights[0].new_empty(rows, weights[0].shape[1]), 0
    bias = None if biases[0] is None else weights[0].new_empty(rows)
    for w, b in zip(weights, biases, strict=True):
        packed[at:at + w.shape[0]] = w
        if bias is not None:
            bias[at:at + w.shape[0]] = b
        at += w.shape[0]
    return packed, bias


@exercise.right
def rows_one_by_one(per_head):
    weights, biases = _checked(per_head)
    bias = None if biases[0] is None else torch.stack([x for b in biases for x in b])
    return torch.stack([row for w in weights for row in w]), bias


@exercise.right
def vstack_and_hstack(per_head):
    weights, biases = _checked(per_head)
    return torch.vstack(weights), None if biases[0] is None else torch.hstack(biases)


@exercise.right
def columns_of_the_logical_map(per_head):
    weights, biases = _checked(per_head)
    return torch.cat([w.T for w in weights], dim=1).T, None if biases[0] is None else torch.cat(biases)


def _interleaved(parts):
    return torch.stack(parts, dim=1).flatten(0, 1)


@exercise.wrong
def rows_interleaved(per_head):
    """Head layout differs from the contract: head rows were interleaved, (d h)."""
    weights, biases = _checked(per_head)
    return _interleaved(weights), None if biases[0] is None else _interleaved(biases)


@exercise.wrong(id="rows-interleaved")
def weight_rows_only(per_head):
    weights, biases = _checked(per_head)
    return _interleaved(weights), None if biases[0] is None else torch.cat(biases)


@exercise.wrong
def joined_on_inputs(per_head):
    """Heads add output rows, not input columns."""
    weights, biases = _checked(per_head)
    return torch.cat(weights, dim=1), None if biases[0] is None else torch.cat(biases)


@exercise.wrong(id="joined-on-inputs")
def biases_added_too(per_head):
    weights, biases = _checked(per_head)
    return torch.cat(weights, dim=1), None if biases[0] is None else sum(biases)


@exercise.wrong(id="joined-on-inputs")
def biases_stacked_too(per_head):
    weights, biases = _checked(per_head)
    return torch.cat(weights, dim=1), None if biases[0] is None else torch.stack(biases)


@exercise.wrong(id="joined-on-inputs")
def first_bias_kept(per_head):
    weights, biases = _checked(per_head)
    return torch.cat(weights, dim=1), biases[0]


def _zeros(weight, bias):
    return weight.new_zeros(weight.shape[0]) if bias is None else bias


@exercise.wrong
def bias_invented(per_head):
    """Zeros were added for a missing bias without being asked."""
    weights, biases = _checked(per_head, biases=False)
    return torch.cat(weights), torch.cat([_zeros(w, b) for w, b in zip(weights, biases, strict=True)])


@exercise.wrong(id="bias-invented")
def only_beside_others(per_head):
    weights, biases = _checked(per_head, biases=False)
    if all(b is None for b in biases):
        return torch.cat(weights), None
    return torch.cat(weights), torch.cat([_zeros(w, b) for w, b in zip(weights, biases, strict=True)])


@exercise.wrong(id="bias-invented")
def only_without_others(per_head):
    weights, biases = _checked(per_head)
    return torch.cat(weights), torch.cat([_zeros(w, b) for w, b in zip(weights, biases, strict=True)])


@exercise.recognise("bias-invented")
def zeros_where_no_bias_was(trials):
    """Right in every value, and a tensor of zeros, of whatever dtype, where None was due."""
    if any(not t.passed for t in trials if t.case.kind != CONTRACT):
        return False
    answers = [t.transcript[-1].value for t in trials if t.case.probe in (none, some) and not t.passed and t.transcript]
    return any(isinstance(a, (tuple, list)) and len(a) == 2 and isinstance(a[1], torch.Tensor) for a in answers)
