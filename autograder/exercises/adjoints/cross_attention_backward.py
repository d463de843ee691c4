"""All gradients of one cross-attention call, composed from its adjoints."""
import torch

from ...exercise import CONTRACT, VALUES, Exercise
from ...lab import Mismatch
from . import _attention, _parts, _read_back
from ._attention import FIXTURE, SQUARE
from ._cross_programs import RIGHTS, WRONGS

NAME = "cross_attention_backward"
exercise = Exercise(
    NAME, step=6, points=5, minutes=14, difficulty=4, importance=5, exempt=_parts.NOT_DIFFERENTIATED,
    summary="Send the gradient of the output of a cross-attention call back to target, source and every parameter.",
    hints=(
        "Draw the call as a graph from the two inputs to the output, and walk it from its end. Write beside each edge "
        "which of your adjoints undoes it; the middle, softmax and all, is given as `local_backward`.",
        "You need the forward tensors again: projected heads, probabilities, merged rows. Count the edges that leave "
        "target, and the edges that leave source. As many must come back.",
        "Where several edges meet in one tensor, their gradients add. Check a single path first: set W_V to zero and "
        "see which gradients must vanish.",
    ),
    hides="A path of zeros hides a missing sum; a cotangent of ones hides that it was ignored; D = 1 hides the scale; "
          "an all-visible mask hides leaks; square weights hide transposes.",
)
UNMASKED = "no mask: B2 H3 T4 S5 M7, D_qk 6, D_v 8"
MASKED = "a rectangular mask [B,1,T,S] that hides one source row from everybody"


def _call(lab, g, target, source, state, heads, visible=None):
    masks = {} if visible is None else {"visible": visible}
    got = lab.call(NAME, g, target, source, state, heads, **masks)
    return _parts.keyed(got, ("target", "source", *state))


def _axes(state):
    rows = {"target": ("sample", "query", "channel"), "source": ("sample", "row", "channel")}
    return rows | {name: ("out", "in")[:t.dim()] for name, t in state.items()}


def _explained(lab, g, target, source, state, heads, visible=None):
    got = _call(lab, g, target, source, state, heads, visible)
    want = _attention.oracle(g, target, source, state, heads, visible)
    try:
        _parts.check(got, want, _axes(state),
                     _read_back.reader(g, target, source, state, heads, visible))
    except Mismatch as m:
        if visible is not None and _same_shape(got["source"], want["source"]) and (
                at := _read_back.leak(got["source"], visible)):
            raise Mismatch(f"no query sees row {at[1]} of source {at[0]}, and its gradient is not zero: up to "
                           f"{at[2]:.4g}; {m}", m.figure) from None
        raise


def _same_shape(got, want):
    return isinstance(got, torch.Tensor) and got.shape == want.shape


@exercise.case(UNMASKED)
def unmasked(lab):
    _explained(lab, *_attention.rows(FIXTURE), _attention.state(FIXTURE), 3)


@exercise.case("one unit at one output channel: which head it passes, and by which paths it arrives")
def units(lab):
    state = _read_back.one_head_each(_attention.state(FIXTURE), 3)
    g, target, source = _attention.rows(FIXTURE)
    for head, (sample, row) in enumerate(((0, 1), (1, 3), (1, 0))):
        unit = _read_back.one_unit(g.shape, sample, row, head)
        try:
            _explained(lab, unit, target, source, state, 3)
        except Mismatch as m:
            raise Mismatch(f"one unit at sample {sample}, query {row}, through head {head} alone: {m}",
                           m.figure) from None


@exercise.case("B=H=3, T=S=6, M = H·D = 12, no biases: sizes where confused axes fit")
def trap(lab):
    _explained(lab, *_attention.rows(SQUARE), _attention.state(SQUARE, bias=False), 3)


@exercise.case(MASKED)
def masked(lab):
    _explained(lab, *_attention.rows(FIXTURE), _attention.state(FIXTURE), 3, _attention.rectangle(FIXTURE))


@exercise.case("a mask for each head [1,H,T,S]")
def masked_by_head(lab):
    _explained(lab, *_attention.rows(FIXTURE, seed=40), _attention.state(FIXTURE), 3, _attention.each_head(FIXTURE))


@exercise.case("central differences at one named coordinate of every part", CONTRACT)
def measured(lab):
    state = _attention.state(FIXTURE)
    got = _call(lab, *_attention.rows(FIXTURE), state, 3, _attention.rectangle(FIXTURE))
    _parts.near(got, _attention.measured(masked=True, alias=False))


def _in_dtype(lab, dtype):
    state = {k: v.to(dtype) for k, v in _attention.state(FIXTURE).items()}
    rows = [t.to(dtype) for t in _attention.rows(FIXTURE)]
    return _call(lab, *rows, state, 3), _attention.oracle(*rows, state, 3)


_parts.dtypes(exercise, _in_dtype)

for _program in RIGHTS:
    exercise.right(_program)
for _id, _program in WRONGS:
    exercise.wrong(_program, id=_id)

_parts.recognise_by_part(exercise)


@exercise.recognise("masked-pairs-leak")
def right_until_a_mask_comes(trials):
    masked = [t for t in trials if t.case.title == MASKED and not t.passed]
    others = [t for t in trials if t.case.kind == VALUES and "mask for" not in t.case.title and t.case.title != MASKED]
    return bool(masked) and all(t.passed for t in others) and masked[0].message.startswith("no query sees row")
