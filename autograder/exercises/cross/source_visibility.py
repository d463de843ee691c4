"""Which source rows are real, for every head and every target row."""
import torch

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from ._calls import E, X, valid_rows

exercise = Exercise(
    "source_visibility", step=3, points=1, minutes=2, difficulty=1, importance=4, tensor=False,
    summary="Validity of source rows [B,S] as a mask [B,1,1,S] of a cross-attention call.",
    hints=(
        "Scores are [B,H,T,S]. Which two of these axes does the validity of a source row know?",
        "An axis of size 1 is shared by everybody. Two are missing, and both stand between batch and source.",
        "No value changes and no memory is needed: index with None, or unsqueeze.",
    ),
    hides="B = H hides a batch on the head axis from every shape check, T = S hides padding on the query axis, an "
          "all-valid source hides polarity.",
)


def oracle(valid):
    """out[b,0,0,s] = valid[b,s]"""
    return torch.stack([row.expand(1, 1, -1) for row in valid])


def _check(lab, valid, **how):
    got, want = expect.tensor(lab.call("source_visibility", valid, **how), "the mask"), oracle(valid)
    expect.shape(got, want.shape, "the mask", "[B,1,1,S]")
    expect.dtype(got, torch.bool, "the mask")
    wrong = (got != want).nonzero()
    if len(wrong):
        b, _, _, s = at = wrong[0].tolist()
        raise Mismatch(f"mask{at} is {got[tuple(at)].item()}: source row {s} of sample {b} is "
                       f"{'a real one' if want[tuple(at)] else 'padding'}, and True means visible")
    return got


@exercise.case("2 samples with 7 source rows")
def rectangle(lab):
    _check(lab, valid_rows(E))


@exercise.case("3 samples with 6 source rows, as many as heads and target rows")
def trap(lab):
    _check(lab, valid_rows(X))


@exercise.case("4 samples with 3 rows")
def other_sizes(lab):
    _check(lab, valid_rows(dict(batch=4, sources=3)))


@exercise.case("the result is a view: no new memory", CONTRACT)
def view(lab):
    valid = valid_rows(E)
    got = _check(lab, valid, watch=("storage",))
    batch, source = valid.stride()
    expect.view_of(lab, got, valid, (batch, 0, 0, source), "the mask")


@exercise.case("refuses anything but two axes", CONTRACT)
def refuses(lab):
    lab.raises(ValueError, "two axes", "source_visibility", torch.ones(2, 1, 7, dtype=torch.bool))
    lab.raises(ValueError, "two axes", "source_visibility", torch.ones(7, dtype=torch.bool))


def _two(valid):
    if valid.dim() != 2:
        raise ValueError("validity has two axes, [B,S]")
    return valid


@exercise.right
def indexed(valid):
    return _two(valid)[:, None, None, :]


@exercise.right
def unsqueezed_twice(valid):
    return _two(valid).unsqueeze(1).unsqueeze(1)


@exercise.right
def unsqueezed_from_the_end(valid):
    return _two(valid).unsqueeze(-2).unsqueeze(-2)


@exercise.right
def viewed(valid):
    b, s = _two(valid).shape
    return valid.view(b, 1, 1, s)


@exercise.right
def unflattened(valid):
    return _two(valid).unflatten(0, (-1, 1, 1))


@exercise.right
def rearranged(valid):
    from einops import rearrange
    return rearrange(_two(valid), "b s -> b 1 1 s")


@exercise.wrong
def query_axis(valid):
    """Padding was put on the query axis."""
    return _two(valid)[:, None, :, None]


@exercise.wrong
def inverted(valid):
    """True must stay visible."""
    return ~_two(valid)[:, None, None]


@exercise.wrong(id="inverted")
def inverted_first(valid):
    return _two(valid).logical_not().unsqueeze(1).unsqueeze(1)


@exercise.wrong
def heads_axis_missing(valid):
    """[B,1,S] puts the batch on the head axis."""
    return _two(valid)[:, None]


@exercise.wrong(id="heads-axis-missing")
def batch_on_the_head_axis(valid):
    return _two(valid)[None, :, None]
