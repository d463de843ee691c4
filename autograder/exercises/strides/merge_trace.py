"""What a merge does to the memory, step by step."""
from ... import expect
from ...coordinates import coded
from ...exercise import Exercise
from ...lab import Mismatch, Record
from .is_contiguous import compared_without_ones as row_major_layout
from .layouts import Stage
from .row_major_strides import from_the_end as row_major
from .transposed_layout import swapped_lists as transposed

exercise = Exercise(
    "merge_trace", step=9, points=2, minutes=5, difficulty=3, importance=4,
    exempt=("detaches-graph", "casts-to-float32", "shape-only-stub"),
    summary="Shape, strides, contiguity and storage at every step of a merge: where does the copy happen, if it does?",
    hints=(
        "Make the four tensors one after another, and write down what each says about itself.",
        "Which question tells whether two tensors lie in one storage? The address of the first *element* is another "
        "question: two slices of one storage differ there.",
        "Do not decide beforehand where the copy happens. Try heads that are stored by token, and heads of a single "
        "query.",
    ),
    hides="Plain heads hide a copy that is always reported; Q=1, H=1 or token-major storage hides one that never is; "
          "heads that begin at element 0 hide a comparison of addresses.",
)

FIELDS = ("name", "shape", "strides", "contiguous", "shares_storage")


def oracle(heads):
    """Observed on real tensors."""
    batch, count, queries, width = heads.shape
    tensors = [heads, heads.transpose(1, 2)]
    tensors.append(tensors[-1].contiguous())
    tensors.append(tensors[-1].view(batch, queries, count * width))
    shared = [True] + [a.untyped_storage()._cdata == b.untyped_storage()._cdata
                       for a, b in zip(tensors, tensors[1:], strict=False)]
    return [Stage(name, tuple(t.shape), t.stride(), t.is_contiguous(), same) for name, t, same in
            zip(("heads", "transpose", "contiguous", "view"), tensors, shared, strict=True)]


def _stages(got):
    if not isinstance(got, (list, tuple)) or not all(isinstance(s, Record) for s in got):
        raise Mismatch(f"merge_trace returned {_short(got)}, expected a list of Stage records")
    for stage in got:
        missing = [f for f in FIELDS if not hasattr(stage, f)]
        expect.true(not missing, f"a stage has no {', '.join(missing)}: {stage}")
    return got


def _same_strides(got, stage):
    """Equal where they are used; an axis of size 1 has any stride."""
    return isinstance(got, (list, tuple)) and len(got) == len(stage.strides) and all(
        isinstance(g, int) and (n == 1 or g == s) for g, s, n in zip(got, stage.strides, stage.shape, strict=True))


def _short(got):
    text = repr(got) if isinstance(got, (list, tuple, dict, str, type(None))) else f"a {type(got).__name__}"
    return text if len(text) < 90 else text[:87] + "..."


def _trace(lab, heads):
    got, want = _stages(lab.call("merge_trace", heads)), oracle(heads)
    expect.equal([s.name for s in got], [s.name for s in want], "the list of stage names")
    for mine, theirs in zip(got, want, strict=True):
        what = f"stage {theirs.name}:"
        expect.equal(mine.shape, theirs.shape, f"{what} shape")
        expect.true(_same_strides(mine.strides, theirs),
                    f"{what} strides are {_short(mine.strides)}, expected {theirs.strides}")
        expect.equal(mine.contiguous, theirs.contiguous, f"{what} contiguous")
        if theirs.name != "heads" and mine.shares_storage is not theirs.shares_storage:
            fact = ("nothing had to move and no memory was taken" if theirs.shares_storage
                    else f"{heads.numel()} elements were copied into new memory")
            raise Mismatch(f"{what} shares_storage is {mine.shares_storage} for heads {list(heads.shape)} with strides "
                           f"{heads.stride()}, offset {heads.storage_offset()}; {fact}")


def _case(title, make):
    exercise.case(title)(lambda lab: _trace(lab, make()))


_heads = dict(batch=2, head=3, query=5, channel=4)
_rows = dict(batch=2, query=5, head=3, channel=4)

_case("plain heads, B2 H3 Q5 D4: the bytes lie head by head", lambda: coded(**_heads))
_case("heads that are stored by token", lambda: coded(**_rows).transpose(1, 2))
_case("one query", lambda: coded(batch=2, head=3, query=1, channel=4))
_case("one head", lambda: coded(batch=4, head=1, query=3, channel=5))
_case("the K heads of a fused projection: stored by token, in rows three times as wide",
      lambda: coded(batch=2, query=5, span=3, head=3, channel=4)[:, :, 1].transpose(1, 2))
_case("the last two samples of four: stored by token, and the storage begins earlier",
      lambda: coded(batch=4, query=5, head=3, channel=4)[2:].transpose(1, 2))
_case("the last two samples of four, stored head by head", lambda: coded(batch=4, head=3, query=5, channel=4)[2:])


def _made(heads):
    moved = heads.transpose(1, 2)
    packed = moved.contiguous()
    return [("heads", heads), ("transpose", moved), ("contiguous", packed), ("view", packed.flatten(2))]


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()


def _traced(heads, shares):
    """Stages of real tensors; shares(before, tensor, name) answers the storage question."""
    stages, before = [], heads
    for name, t in _made(heads):
        stages.append(Stage(name, tuple(t.shape), t.stride(), t.is_contiguous(), shares(before, t, name)))
        before = t
    return stages


@exercise.right
def observed(heads):
    return _traced(heads, lambda before, t, name: _storage(before) == _storage(t))


@exercise.right
def storage_handles(heads):
    return _traced(heads, lambda before, t, name: before.untyped_storage()._cdata == t.untyped_storage()._cdata)


@exercise.right
def is_set_to(heads):
    """The first stage, which has none before it, is left open."""
    return _traced(heads, lambda before, t, name: None if name == "heads" else (
        name != "contiguous" or before.is_contiguous()))


@exercise.right
def calculated(heads):
    """Shapes and strides alone; no tensor is made."""
    shape, strides = tuple(heads.shape), heads.stride()
    moved = transposed(shape, strides, 1, 2)
    dense = row_major_layout(*moved)
    packed = (moved[0], moved[1] if dense else row_major(moved[0]))
    merged = (*moved[0][:2], moved[0][2] * moved[0][3])
    return [Stage("heads", shape, strides, row_major_layout(shape, strides), True),
            Stage("transpose", *moved, dense, True), Stage("contiguous", *packed, True, dense),
            Stage("view", merged, row_major(merged), True, True)]


@exercise.wrong
def copy_always_reported(heads):
    """`contiguous()` returns the same storage when nothing needs moving."""
    return _traced(heads, lambda before, t, name: name != "contiguous")


@exercise.wrong
def copy_never_reported(heads):
    """With Q>1 and head-major storage the bytes move."""
    return _traced(heads, lambda before, t, name: True)


@exercise.wrong
def first_element_address(heads):
    """Two slices of one storage have different `data_ptr()`."""
    return _traced(heads, lambda before, t, name: _storage(before) == t.data_ptr())


@exercise.wrong(id="first-element-address")
def storage_of_the_first_element(heads):
    return _traced(heads, lambda before, t, name: before.data_ptr() == _storage(t))


@exercise.wrong
def compared_with_the_heads(heads):
    """Each stage is compared with the one before it: after a copy, the view lies in the memory of the copy."""
    return _traced(heads, lambda before, t, name: _storage(heads) == _storage(t))


@exercise.wrong(id="first-element-address")
def addresses_compared_with_the_heads(heads):
    return _traced(heads, lambda before, t, name: heads.data_ptr() == t.data_ptr())


@exercise.wrong(id="first-element-address")
def address_in_the_storage_of_the_heads(heads):
    return _traced(heads, lambda before, t, name: _storage(heads) == t.data_ptr())


@exercise.wrong
def contiguity_forgotten(heads):
    """A transpose changes strides: the second stage is row-major only if the heads were stored by token."""
    return [Stage(s.name, s.shape, s.strides, True, s.shares_storage) for s in observed(heads)]


def _facts(trials):
    """What every trace said about storage, after the heads; nothing unless all of them came back whole."""
    found = []
    for trial in trials:
        got = trial.transcript[0].value if trial.transcript else None
        try:
            stages = _stages(got)
        except Mismatch:
            return []
        found.append([s.shares_storage is True for s in stages[1:]])
    return found


def _only_storage(trials):
    return all(t.passed or "shares_storage" in t.message for t in trials)


@exercise.recognise("copy-always-reported")
def always(trials):
    facts = _facts(trials)
    return bool(facts) and _only_storage(trials) and all(said[1:] == [False, True] for said in facts)


@exercise.recognise("copy-never-reported")
def never(trials):
    facts = _facts(trials)
    return bool(facts) and _only_storage(trials) and all(said[1:2] == [True] for said in facts)


@exercise.recognise("first-element-address")
def addresses(trials):
    facts = _facts(trials)
    moved = [t for t in trials if "last two samples" in t.case.title or "K heads" in t.case.title]
    return bool(facts) and _only_storage(trials) and any(not t.passed for t in moved) and all(
        t.passed for t in trials if t not in moved)
