"""Some heads leave a layer for good: tensors, biases, moments, numbers and names, or nothing at all."""
import torch

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from ...wording import spell
from . import _release
from ._prune_programs import RIGHTS
from ._prune_wrongs import WRONGS
from ._release import attention, coded_layer, coded_moments, fields, match_tensors, random_layer, release

exercise = Exercise(
    "prune_heads", step=6, points=5, minutes=12, difficulty=4, importance=5, exempt=("detaches-graph",),
    summary="Delete heads from a whole release: state, optimizer, head map and widths, as a transaction.",
    hints=(
        "List everything in the release that has a place for each head, and on which axis. What has none?",
        "Which rows does head 2 own in q, which in v, which columns in the stored W_O? And in a fused tensor, where "
        "does each of its three intervals begin?",
        "Build the places once from the old widths, and take them from a parameter and from its moments alike. Refuse "
        "before you begin, build new dicts of new tensors, and let the caller's be.",
    ),
    hides="4 heads to 2 hides an old head count, 3 to 2 does not; M = H·D_v hides the axis of W_O; D_v = D_qk hides "
          "widths taken from q; retained = [0,1] hides the head map.",
)
A, FOUR, TRAP = (3, 4, 6, 10), (4, 4, 6, 10), (3, 4, 4, 12)


def _call(lab, state, retained, sizes, **more):
    heads, d_qk, d_v, _ = sizes
    return lab.call("prune_heads", state, retained, heads, d_qk, d_v, **more)


def _state(lab, sizes, retained, bias, layout="separate"):
    state = coded_layer(sizes, bias, layout)
    more = {} if layout == "separate" else {"layout": layout}
    got = fields(_call(lab, state, retained, sizes, **more))
    match_tensors(got["state"], release(state, retained, sizes)["state"], "state", sizes, state)


@exercise.case("A, heads 0 and 2 of three stay, no biases")
def weights(lab):
    _state(lab, A, [0, 2], bias=False)


@exercise.case("A, with biases")
def biases(lab):
    _state(lab, A, [0, 2], bias=True)


@exercise.case("sizes that fit in the wrong places: H3 D4 M12")
def trap(lab):
    _state(lab, TRAP, [1, 2], bias=True)


@exercise.case("fused q, k and v, with biases")
def fused(lab):
    _state(lab, A, [0, 2], True, "fused")


def _numbers(lab, sizes, retained):
    state = coded_layer(sizes, False)
    want = release(state, retained, sizes)
    got = fields(_call(lab, state, retained, sizes))
    if got["num_heads"] != want["num_heads"]:
        raise Mismatch(f"of {sizes[0]} heads {retained} stay, and num_heads is {got['num_heads']!r}, expected "
                       f"{len(retained)}")
    for name in ("d_qk", "d_v"):
        expect.true(got[name] == want[name], f"{name} is {got[name]!r}, expected {want[name]}: a surviving head keeps "
                                             "its width")
    if got["head_map"] != want["head_map"]:
        raise Mismatch(f"of {sizes[0]} heads {retained} stay, and head_map is {got['head_map']!r}, expected "
                       f"{want['head_map']} (new head: old head)")
    expect.true(got["optimizer"] in (None, {}), "there was no optimizer, and the release has one")
    match_tensors(got["state"], want["state"], "state", sizes, state)


@exercise.case("the numbers and names of the new layer, three heads to two")
def numbers(lab):
    _numbers(lab, A, [0, 2])


@exercise.case("the numbers and names of the new layer, four heads to two, and to one")
def numbers_of_four(lab):
    _numbers(lab, FOUR, [1, 3])
    _numbers(lab, FOUR, [2])


def _moments(lab, sizes, retained, layout="separate", step=False):
    state = coded_layer(sizes, True, layout)
    optimizer = coded_moments(state, step)
    got = fields(_call(lab, state, retained, sizes, optimizer=optimizer, layout=layout))
    want = release(state, retained, sizes, optimizer)["optimizer"]
    for name in _release.structure(got["optimizer"], want, "optimizer"):
        match_tensors(got["optimizer"][name], want[name], f"optimizer[{name!r}]", sizes, optimizer[name], name)


@exercise.case("Adam's moments follow their parameters")
def moments(lab):
    _moments(lab, A, [0, 2])


@exercise.case("moments of a fused layer, and where M = H·D_v")
def more_moments(lab):
    _moments(lab, A, [1, 2], "fused")
    _moments(lab, TRAP, [0, 2])


def _same_function(lab, sizes, retained, layout):
    heads, d_qk, d_v, width = sizes
    state = random_layer(sizes, True, layout, seed=3)
    got = fields(_call(lab, state, retained, sizes, layout=layout))
    want = release(state, retained, sizes)
    for name in _release.structure(got["state"], want["state"], "state"):
        expect.shape(got["state"][name], want["state"][name].shape, f"state[{name!r}]")
        expect.dtype(got["state"][name], torch.float64, f"state[{name!r}]")
    for name in ("num_heads", "d_qk", "d_v"):
        expect.true(got[name] == want[name], f"{name} is {got[name]!r}, expected {want[name]}")
    target, memory = standard.normal(2, 5, width, seed=1), standard.normal(2, 7, width, seed=2)
    gates = [float(h in retained) for h in range(heads)]
    masked = attention(target, memory, state, heads, d_qk, d_v, gates)
    smaller = attention(target, memory, got["state"], got["num_heads"], got["d_qk"], got["d_v"])
    expect.close(smaller, masked, "the output of the released layer, against the masked one,",
                 ("batch", "query", "output"))


@exercise.case("the released layer computes what the masked one does", CONTRACT)
def parity(lab):
    _same_function(lab, A, [0, 2], "separate")
    _same_function(lab, FOUR, (1, 3), "fused")


@exercise.case("a step count has no head", CONTRACT)
def steps(lab):
    _moments(lab, A, [0, 2], step=True)


@exercise.case("the dtype follows each tensor, and two calls agree", CONTRACT)
def dtypes(lab):
    for dtype in (torch.float32, torch.bfloat16):
        state = random_layer(A, True, dtype=dtype)
        optimizer = {name: {"exp_avg": tensor.float()} for name, tensor in state.items()}
        want = release(state, [1], A, optimizer)
        for _ in range(2):
            got = fields(_call(lab, state, [1], A, optimizer=optimizer))
            match_tensors(got["state"], want["state"], "state", A)
            for name in _release.structure(got["optimizer"], want["optimizer"], "optimizer"):
                match_tensors(got["optimizer"][name], want["optimizer"][name], f"optimizer[{name!r}]", A, of=name)


REPLACED = "the baseline itself was changed"
MIXTURE = "an error left a mixture"
SHARED_MEMORY = "lies in the memory of the baseline"


def _untouched(lab, sentence):
    """Neither the dicts that were passed in nor their tensors."""
    if lab.rearranged:
        first = lab.rearranged[0]
        part = first[first.find("]") + 1:].removeprefix("['optimizer']")
        where = "state" if first.startswith("[0]") else "optimizer"
        raise Mismatch(f"{sentence}: {where}{part} is not what was passed in")


@exercise.case("the baseline stays as it was, for rollback", CONTRACT)
def baseline(lab):
    state = coded_layer(A, True)
    _call(lab, state, [0, 2], A, optimizer=coded_moments(state))
    _untouched(lab, REPLACED)


@exercise.case("the release has memory of its own", CONTRACT)
def memory(lab):
    for retained in ([0, 2], [0, 1]):
        state = coded_layer(A, True)
        optimizer = coded_moments(state, step=True)
        got = fields(_call(lab, state, retained, A, optimizer=optimizer))
        given = [*state.values(), *(t for tensors in optimizer.values() for t in tensors.values())]
        ours = {f"state[{n!r}]": t for n, t in got["state"].items()}
        for name, tensors in (got["optimizer"] or {}).items():
            ours |= {f"optimizer[{name!r}][{key!r}]": t for key, t in tensors.items()}
        for name, tensor in ours.items():
            if tensor.numel() and any(lab.last.shares_storage(tensor, g) for g in given):
                raise Mismatch(f"{name} {SHARED_MEMORY}: a step of training would change both")


@exercise.case("a tensor that is too small is an error, and the error leaves everything as it was", CONTRACT)
def transaction(lab):
    for broken in ("v_proj.weight", "o_proj.weight", "a moment"):
        state = coded_layer(A, True)
        optimizer = coded_moments(state)
        if broken == "a moment":
            optimizer["o_proj.weight"]["exp_avg_sq"] = torch.ones(10, 12, dtype=torch.float64)
        elif broken == "v_proj.weight":
            state[broken] = state[broken][:12].clone()
        else:
            state[broken] = state[broken][:, :12].clone()
        try:
            lab.raises(Exception, "", "prune_heads", state, [0, 2], *A[:3], optimizer=optimizer)
        except Mismatch:
            raise Mismatch(f"{broken} has 12 places, three heads of width 6 own 18; no error came, and the release is "
                           "short") from None
        _untouched(lab, MIXTURE)
        expect.true(not lab.mutated, f"{MIXTURE}: a tensor that was passed in has other values")


BAD = {"descending": [2, 0], "repeated": [0, 0, 2], "one beyond the last head": [0, 3],
       "far beyond the last head": [1, 7], "negative": [-1, 1], "empty": []}


def _refuse(title, retained):
    @exercise.case(f"refuses retained heads that are {title}", CONTRACT)
    def probe(lab):
        state = coded_layer(A, True)
        args, kwargs = (state, retained, *A[:3]), {"optimizer": coded_moments(state)}
        try:
            lab.raises(ValueError, "retained", "prune_heads", *args, **kwargs)
        except Mismatch as m:
            spelled = f"prune_heads(state, {retained}, num_heads=3, ...)"
            raise Mismatch(str(m).replace(spell("prune_heads", args, kwargs), spelled)) from None
        _untouched(lab, MIXTURE)
        expect.true(not lab.mutated, f"{MIXTURE}: a tensor that was passed in has other values")
    return probe


REFUSALS = [_refuse(title, retained) for title, retained in BAD.items()]


for _program in RIGHTS:
    exercise.right(_program)
for _program, _id in WRONGS:
    exercise.wrong(_program, id=_id)


def _numbers_given(trials):
    """(sizes, retained, release) of the first answer of each case about numbers."""
    first = {numbers: (A, [0, 2]), numbers_of_four: (FOUR, [1, 3])}
    for trial in trials:
        if trial.case.probe in first and trial.transcript and isinstance(trial.transcript[0].value, dict):
            yield *first[trial.case.probe], trial.transcript[0].value


@exercise.recognise("width-recomputed")
def another_width(trials):
    """M/(H-r), or the old rows shared out among fewer heads, in both layers."""
    seen = list(_numbers_given(trials))
    return len(seen) == 2 and all(any(
        got.get(name) != width and got.get(name) in (sizes[3] // len(kept), sizes[0] * width // len(kept))
        for name, width in zip(("d_qk", "d_v"), sizes[1:3], strict=True)) for sizes, kept, got in seen)


@exercise.recognise("head-count-stale")
def the_old_count(trials):
    seen = list(_numbers_given(trials))
    return len(seen) == 2 and all(got.get("num_heads") == sizes[0] for sizes, _, got in seen)


@exercise.recognise("source-modified")
def rearranged(trials):
    return any(t.message.startswith(REPLACED) for t in trials if not t.passed)


@exercise.recognise("half-applied")
def a_mixture(trials):
    """After an error the baseline is another one, though a success leaves it alone."""
    if any(t.message.startswith(REPLACED) for t in trials if not t.passed):
        return False
    return any(t.message.startswith(MIXTURE) for t in trials if not t.passed)


@exercise.recognise("baseline-shared")
def one_memory(trials):
    if any(not t.passed for t in trials if t.case.kind != CONTRACT):
        return False
    return any(SHARED_MEMORY in t.message for t in trials if not t.passed)


@exercise.recognise("unsorted-accepted")
def accepted(trials):
    """Right in every value, and some list was taken that is none."""
    if any(not t.passed for t in trials if t.case.kind != CONTRACT):
        return False
    return any("was accepted" in t.message for t in trials if t.case.probe in REFUSALS and not t.passed)


@exercise.recognise("short-release")
def no_error(trials):
    if any(not t.passed for t in trials if t.case.kind != CONTRACT):
        return False
    return any("the release is short" in t.message for t in trials if t.case.probe is transaction)
