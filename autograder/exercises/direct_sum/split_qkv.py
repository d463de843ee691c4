"""The three roles of a fused projection, as views."""
import torch

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise
from ...nested import match, nested_cases, structure
from .fuse_qkv import fused_rows

exercise = Exercise(
    "split_qkv", step=7, points=2, minutes=4, difficulty=2, importance=4,
    summary="Cut a fused projection into (weight, bias) of q, k and v, along its spans and without copying.",
    hints=(
        "The spans count rows of the stored weight. A slice of rows, what does it cost?",
        "Fifteen rows in all, and spans (0,6), (5,9), (9,15): do the lengths tell you that something is wrong?",
        "Spans tile the rows when the first starts at 0, each next one starts where the last ended, and the last ends "
        "at the number of rows. Check that before you cut; the bias is cut along the same spans, if there is one.",
    ),
    hides="D_v = D and G = H hide a cut into thirds; a total that fits hides a gap beside an overlap.",
)

PAIR = {0: "weight", 1: "bias"}
LABELS = {"": "the result"} | {i: {"": f"the pair of {r}", 0: f"the weight of {r}", 1: f"the bias of {r}"}
                               for i, r in enumerate("qkv")}
WIDE = {"q": (0, 12), "k": (12, 24), "v": (24, 42)}
GROUPED = {"q": (0, 8), "k": (8, 10), "v": (10, 15)}
EQUAL = {"q": (0, 4), "k": (4, 8), "v": (8, 12)}


def oracle(fused, spans):
    weight, bias = fused

    def rows(tensor, span):
        return None if tensor is None else torch.stack([tensor[r] for r in range(*span)])
    return tuple((rows(weight, spans[r]), rows(bias, spans[r])) for r in "qkv")


def _fused(spans, inputs, bias):
    rows = spans["v"][1]
    return coded(row=rows, input=inputs), coded(row=rows) if bias else None


def _check(lab, spans, inputs, bias, watch=()):
    fused = _fused(spans, inputs, bias)
    got, want = lab.call("split_qkv", fused, spans, watch=watch), oracle(fused, spans)
    widths = {r: b - a for r, (a, b) in spans.items()}
    for i in structure(got, want, "the result"):
        structure(got[i], want[i], f"the pair of {'qkv'[i]}")
        for j, what in enumerate(("weight", "bias")):
            named = f"the {what} of {'qkv'[i]}"
            if want[i][j] is None:
                continue
            part = expect.tensor(got[i][j], named)
            expect.true(part.shape == want[i][j].shape,
                        f"{named} is {list(part.shape)}, expected {list(want[i][j].shape)}: rows {spans['qkv'[i]][0]} "
                        f"to {spans['qkv'[i]][1] - 1}")
            fused_rows(part, want[i][j], widths, 1 if j else inputs, named)
    return got, fused


@exercise.case("spans of different widths: A, 12, 12 and 18 rows of 10")
def wide(lab):
    _check(lab, WIDE, 10, bias=False)


@exercise.case("the bias along the same spans: 8, 2 and 5 rows of 7")
def grouped(lab):
    _check(lab, GROUPED, 7, bias=True)


def _inputs():
    return ((standard.normal(42, 10, seed=1), standard.normal(42, seed=2)), WIDE), {}


nested_cases(exercise, _inputs, oracle, ("fused", "spans"), LABELS)


@exercise.case("three equal spans, 4 rows each", CONTRACT)
def equal(lab):
    fused = _fused(EQUAL, 12, True)
    match(lab.call("split_qkv", fused, EQUAL), oracle(fused, EQUAL), LABELS)


@exercise.case("a missing bias stays None", CONTRACT)
def none(lab):
    got, _ = _check(lab, WIDE, 10, bias=False)
    for role, pair in zip("qkv", got, strict=True):
        expect.true(pair[1] is None, f"the fused map has no bias, and {role} got one")


def _views(lab, got, given, part):
    for role, pair in zip("qkv", got, strict=True):
        expect.true(lab.last.shares_storage(pair[part], given[part]),
                    f"the {('weight', 'bias')[part]} of {role} lies in new memory; a slice of a tensor is a view")


@exercise.case("the weights are views: no byte is copied", CONTRACT)
def views(lab):
    got, given = _check(lab, WIDE, 10, bias=False, watch=("storage",))
    _views(lab, got, given, 0)


@exercise.case("the biases are views", CONTRACT)
def bias_views(lab):
    got, given = _check(lab, WIDE, 10, bias=True, watch=("storage",))
    _views(lab, got, given, 1)


BAD = {
    "a gap beside an overlap, though the total fits": {"q": (0, 12), "k": (13, 25), "v": (24, 42)},
    "a gap": {"q": (0, 12), "k": (14, 24), "v": (24, 42)},
    "an overlap": {"q": (0, 12), "k": (10, 24), "v": (24, 42)},
    "a total that is too small": {"q": (0, 12), "k": (12, 24), "v": (24, 40)},
    "a total that is too large": {"q": (0, 12), "k": (12, 24), "v": (24, 44)},
    "a first row that is left out": {"q": (1, 12), "k": (12, 24), "v": (24, 42)},
}


def _refuse(title, spans):
    @exercise.case(f"refuses spans with {title}", CONTRACT)
    def probe(lab):
        lab.raises(ValueError, "spans", "split_qkv", (coded(row=42, input=10), None), spans)
    return probe


REFUSALS = [_refuse(title, spans) for title, spans in BAD.items()]


def _tiled(fused, spans):
    edges = [e for r in "qkv" for e in spans[r]]
    if edges[0] or edges[1] != edges[2] or edges[3] != edges[4] or edges[5] != fused[0].shape[0]:
        raise ValueError("the spans do not tile the rows")


def _cut(fused, spans, roles="qkv"):
    weight, bias = fused
    return tuple((weight[slice(*spans[r])], None if bias is None else bias[slice(*spans[r])]) for r in roles)


@exercise.right
def slices(fused, spans):
    _tiled(fused, spans)
    return _cut(fused, spans)


@exercise.right
def torch_split(fused, spans):
    _tiled(fused, spans)
    sizes = [spans[r][1] - spans[r][0] for r in "qkv"]
    biases = [None] * 3 if fused[1] is None else fused[1].split(sizes)
    return list(zip(fused[0].split(sizes), biases, strict=True))


@exercise.right
def narrow(fused, spans):
    _tiled(fused, spans)
    return tuple(tuple(None if t is None else t.narrow(0, spans[r][0], spans[r][1] - spans[r][0]) for t in fused)
                 for r in "qkv")


@exercise.right
def tensor_split(fused, spans):
    _tiled(fused, spans)
    at = [spans["k"][0], spans["v"][0]]
    biases = [None] * 3 if fused[1] is None else torch.tensor_split(fused[1], at)
    return tuple(zip(torch.tensor_split(fused[0], at), biases, strict=True))


@exercise.wrong
def order_qvk(fused, spans):
    """The declared order is q, k, v."""
    _tiled(fused, spans)
    return _cut(fused, spans, "qvk")


@exercise.wrong(id="order-qvk")
def sizes_in_order_qvk(fused, spans):
    _tiled(fused, spans)
    q, k, v = (spans[r][1] - spans[r][0] for r in "qkv")
    weights = fused[0].split([q, v, k])
    biases = [None] * 3 if fused[1] is None else fused[1].split([q, v, k])
    return tuple((weights[i], biases[i]) for i in (0, 2, 1))


@exercise.wrong
def bias_invented(fused, spans):
    """A missing bias must stay missing."""
    weight, bias = fused
    return slices((weight, weight.new_zeros(weight.shape[0]) if bias is None else bias), spans)


@exercise.recognise("bias-invented")
def a_bias_where_none_was(trials):
    """Right in every value, and a tensor where None was due."""
    if any(not t.passed for t in trials if t.case.kind != CONTRACT):
        return False
    answers = [t.transcript[-1].value for t in trials if t.case.probe is none and not t.passed and t.transcript]
    return any(isinstance(a, (tuple, list)) and len(a) == 3 and any(isinstance(p, (tuple, list)) and len(p) == 2
               and isinstance(p[1], torch.Tensor) for p in a) for a in answers)


@exercise.wrong
def chunk_by_three(fused, spans):
    """Three equal chunks move rows between roles when V's width differs."""
    _tiled(fused, spans)
    weight, bias = fused
    return tuple(zip(weight.chunk(3), [None] * 3 if bias is None else bias.chunk(3), strict=True))


@exercise.wrong
def split_on_inputs(fused, spans):
    """The input axis is shared, never split."""
    _tiled(fused, spans)
    weight, bias = fused
    return tuple((weight[:, slice(*spans[r])], None if bias is None else bias[slice(*spans[r])]) for r in "qkv")


@exercise.wrong(id="split-on-inputs")
def split_on_inputs_by_sizes(fused, spans):
    _tiled(fused, spans)
    sizes = [spans[r][1] - spans[r][0] for r in "qkv"]
    biases = [None] * 3 if fused[1] is None else fused[1].split(sizes)
    return tuple(zip(fused[0].split(sizes, dim=1), biases, strict=True))


@exercise.wrong(id="split-on-inputs")
def thirds_of_the_inputs(fused, spans):
    _tiled(fused, spans)
    biases = [None] * 3 if fused[1] is None else _biases(fused, spans)
    return tuple(zip(fused[0].chunk(3, dim=1), biases, strict=True))


@exercise.wrong(id="split-on-inputs")
def thirds_of_the_inputs_and_of_the_bias(fused, spans):
    _tiled(fused, spans)
    biases = [None] * 3 if fused[1] is None else fused[1].chunk(3)
    return tuple(zip(fused[0].chunk(3, dim=1), biases, strict=True))


def _biases(fused, spans):
    return [fused[1][slice(*spans[r])] for r in "qkv"]


@exercise.wrong
def split_copies(fused, spans):
    """A slice of the fused tensor is a view."""
    return tuple((w.clone(), None if b is None else b.clone()) for w, b in slices(fused, spans))


@exercise.wrong(id="split-copies")
def only_weights_are_copied(fused, spans):
    return tuple((w.clone(), b) for w, b in slices(fused, spans))


@exercise.wrong(id="split-copies")
def only_biases_are_copied(fused, spans):
    return tuple((w, None if b is None else b.clone()) for w, b in slices(fused, spans))


@exercise.recognise("split-copies")
def in_new_memory(trials):
    """Right in every value, in new memory."""
    if any(not t.passed for t in trials if t.case.kind != CONTRACT):
        return False
    return any("lies in new memory" in t.message for t in trials if t.case.probe in (views, bias_views))


@exercise.wrong
def bad_spans_accepted(fused, spans):
    """A total that matches does not prove the spans."""
    return _cut(fused, spans)


@exercise.wrong(id="bad-spans-accepted")
def only_the_total_is_checked(fused, spans):
    if sum(b - a for a, b in spans.values()) != fused[0].shape[0]:
        raise ValueError("the spans do not have as many rows as the fused weight")
    return _cut(fused, spans)


@exercise.wrong(id="bad-spans-accepted")
def sizes_only(fused, spans):
    sizes = [spans[r][1] - spans[r][0] for r in "qkv"]
    biases = [None] * 3 if fused[1] is None else fused[1].split(sizes)
    return tuple(zip(fused[0].split(sizes), biases, strict=True))


@exercise.recognise("bad-spans-accepted")
def accepted(trials):
    """Right in every value, and some spans that do not tile the rows went through or ended in an error of torch."""
    if any(not t.passed for t in trials if t.case.kind != CONTRACT):
        return False
    return any(not t.passed and t.transcript and t.transcript[-1].error in (None, "RuntimeError")
               for t in trials if t.case.probe in REFUSALS)
