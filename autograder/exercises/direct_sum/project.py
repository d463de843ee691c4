"""An affine map, for both ways to store its weight."""
import torch
from torch.nn import functional as F

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "project", step=3, points=1, minutes=2, difficulty=1, importance=4,
    summary="Apply a map whose weight is stored [out,in] or [in,out], as its orientation says.",
    hints=(
        "Row 0 of an nn.Linear weight makes output channel 0. What makes output channel 0 of a Conv1D weight?",
        "Both orientations are one product with x on the left. For which of them does the weight have to be turned?",
        "Decide by the word and never by the shape: at 12 by 12 both orientations fit. What happens in your code when "
        "the word is misspelt?",
    ),
    hides="a square weight hides the orientation from every shape check; a symmetric one hides it from values too.",
)

NAMES = ("batch", "token", "output")


def oracle(x, weight, bias=None, orientation="out_in"):
    return F.linear(x, weight if orientation == "out_in" else weight.t(), bias)


def _check(lab, batch, tokens, width, outputs, orientation, bias=False):
    axes = dict(output=outputs, input=width) if orientation == "out_in" else dict(input=width, output=outputs)
    x = torch.eye(width, dtype=torch.float64)[torch.arange(batch * tokens) % width].reshape(batch, tokens, width)
    weight = coded(**axes)
    offset = standard.normal(outputs, seed=4) if bias else None
    got = lab.call("project", x, weight, offset, orientation)
    want = oracle(x, weight, offset, orientation)
    if bias:
        expect.close(got, want, "y", NAMES)
    else:
        expect.layout(got, want, axes, "y", NAMES)


@exercise.case("out_in, the storage of nn.Linear: A, 10 inputs, 12 outputs")
def stored(lab):
    _check(lab, 2, 7, 10, 12, "out_in")


@exercise.case("in_out, logical and Conv1D: A, 10 inputs, 12 outputs")
def logical(lab):
    _check(lab, 2, 7, 10, 12, "in_out")


@exercise.case("a square weight, out_in: X, 12 inputs, 12 outputs")
def square_stored(lab):
    _check(lab, 3, 6, 12, 12, "out_in")


@exercise.case("a square weight, in_out: X, 12 inputs, 12 outputs")
def square_logical(lab):
    _check(lab, 3, 6, 12, 12, "in_out")


@exercise.case("a bias belongs to the outputs in both orientations")
def biased(lab):
    for orientation in ("out_in", "in_out"):
        _check(lab, 2, 7, 10, 12, orientation, bias=True)


standard.tensor_cases(
    exercise, lambda: ([standard.normal(*n, seed=i) for i, n in enumerate(((2, 7, 10), (12, 10), (12,)))],
                       {"orientation": "out_in"}), oracle, NAMES)


@exercise.case("out_in is the default", CONTRACT)
def default(lab):
    x, weight = standard.normal(2, 7, 10, seed=1), standard.normal(12, 10, seed=2)
    expect.close(lab.call("project", x, weight), oracle(x, weight), "y", NAMES)


@exercise.case("refuses an orientation that is none", CONTRACT)
def refuses(lab):
    x, weight = standard.normal(2, 5, 6, seed=1), standard.normal(6, 6, seed=2)
    lab.raises(ValueError, "orientation", "project", x, weight, None, "outin")


def _known(orientation):
    if orientation not in ("out_in", "in_out"):
        raise ValueError(f"unknown orientation {orientation!r}")
    return orientation == "out_in"


def _plus(y, bias):
    return y if bias is None else y + bias


@exercise.right
def matmul(x, weight, bias=None, orientation="out_in"):
    return _plus(x @ (weight.T if _known(orientation) else weight), bias)


@exercise.right
def einsum(x, weight, bias=None, orientation="out_in"):
    return _plus(torch.einsum("...i,oi->...o" if _known(orientation) else "...i,io->...o", x, weight), bias)


@exercise.right
def linear(x, weight, bias=None, orientation="out_in"):
    return F.linear(x, weight if _known(orientation) else weight.mT, bias)


@exercise.right
def addmm_of_flat_rows(x, weight, bias=None, orientation="out_in"):
    logical = weight.t() if _known(orientation) else weight
    flat = x.reshape(-1, x.shape[-1])
    y = flat.mm(logical) if bias is None else torch.addmm(bias, flat, logical)
    return y.view(*x.shape[:-1], -1)


@exercise.right
def sum_of_products(x, weight, bias=None, orientation="out_in"):
    stored = weight if _known(orientation) else weight.t()
    return _plus((x.unsqueeze(-2) * stored).sum(-1), bias)


@exercise.right
def tensordot(x, weight, bias=None, orientation="out_in"):
    return _plus(torch.tensordot(x, weight, dims=([-1], [1 if _known(orientation) else 0])), bias)


@exercise.wrong
def always_transposes(x, weight, bias=None, orientation="out_in"):
    """A Conv1D weight is already [in,out]."""
    _known(orientation)
    return F.linear(x, weight, bias)


@exercise.wrong
def never_transposes(x, weight, bias=None, orientation="out_in"):
    """An `nn.Linear` weight must be transposed."""
    _known(orientation)
    return _plus(x @ weight, bias)


@exercise.wrong(id="never-transposes")
def swaps_the_two(x, weight, bias=None, orientation="out_in"):
    return _plus(x @ (weight if _known(orientation) else weight.T), bias)


@exercise.wrong
def guesses_from_shape(x, weight, bias=None, orientation="out_in"):
    """A square weight cannot tell its orientation."""
    _known(orientation)
    return _plus(x @ (weight if weight.shape[0] == x.shape[-1] else weight.T), bias)


@exercise.wrong(id="guesses-from-shape")
def transposed_if_it_fits(x, weight, bias=None, orientation="out_in"):
    _known(orientation)
    return _plus(x @ (weight.T if weight.shape[1] == x.shape[-1] else weight), bias)


@exercise.wrong
def unknown_accepted(x, weight, bias=None, orientation="out_in"):
    """A misspelt orientation fell back to a default."""
    return _plus(x @ (weight.T if orientation == "out_in" else weight), bias)


@exercise.wrong(id="unknown-accepted")
def falls_back_to_stored(x, weight, bias=None, orientation="out_in"):
    return _plus(x @ (weight if orientation == "in_out" else weight.T), bias)
