"""The module: H query heads, G key/value heads, and a cache that chunks can go on with."""
from contextlib import contextmanager, suppress

import torch

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from . import _gqa_evidence as evidence
from ._attend import heads_read
from ._gqa_oracle import CLASSIC, ONE, OTHER, SMALLEST, VALID, G, answer, calls, coded_state, random_rows, random_state
from ._gqa_rights import RIGHTS
from ._gqa_wrongs import WRONGS

NAME = "GroupedQueryAttention"
exercise = Exercise(
    NAME, step=4, points=5, minutes=16, difficulty=5, importance=5,
    summary="Self-attention with grouped heads, and a cache that makes chunks equal one long pass.",
    hints=(
        "Write down the shapes of all four weights for H12 G3 D8 M20, then of what one call returns for 5 rows. Which "
        "of them know H, which know G?",
        "After 2 cached rows, 3 new ones arrive. Number all rows 0 to 4: which number has the first new row, and which "
        "keys may it see? Write the 3 by 5 mask by hand.",
        "Store what you projected, before anything is repeated; join it with the cache into new tensors. Masks have T "
        "rows and P + T columns, padding included. Refuse before you compute.",
    ),
    hides="P = 0 hides every fault of a mask beside a cache; chunks of one row hide a missing triangle; H = G hides a "
          "repeated cache; H·D = M hides a head width that was made up; T = S hides square masks.",
)
CACHE_CHANGED = "forward changed the cache that it was given"


def _built(lab, sizes, state, dtype=torch.float64, training=False, arguments=None):
    handle, shapes = lab.build(NAME, *(sizes if arguments is None else arguments),
                               load={"state": state, "dtype": dtype, "training": training})
    try:
        evidence.state(shapes, sizes)
    except Mismatch:
        with suppress(Mismatch):
            lab.method(handle, "__call__", standard.normal(2, 5, sizes[0], dtype=torch.float32))
        raise
    return handle


@contextmanager
def _cache_untouched(lab, kwargs):
    """Whatever a call with a cache comes to, the cache stays as it was."""
    before, failed = len(lab.mutated), None
    try:
        yield
    except Mismatch as m:
        failed = m
    if "cache" in kwargs and len(lab.mutated) > before:
        del lab.mutated[before:]
        raise Mismatch(f"{CACHE_CHANGED}; another sequence may go on from the same cache, so new rows belong into new "
                       "tensors")
    if failed:
        raise failed


def _called(lab, handle, x, **kwargs):
    with _cache_untouched(lab, kwargs):
        got = lab.method(handle, "__call__", x, **kwargs)
    return evidence.triple(got)


def _once(lab, sizes, tokens=5, arguments=None, causal=False, padded=False):
    call, = calls(sizes, (tokens,), causal, padded)
    handle = _built(lab, sizes, random_state(sizes), arguments=arguments)
    evidence.compare(_called(lab, handle, call.rows, **call.given), call.want, sizes[3])


def _chunks(lab, sizes, lengths, padded=False):
    """One sequence in chunks, each going on with the cache that the program returned for the one before."""
    handle, kept, at = _built(lab, sizes, random_state(sizes)), {}, 0
    for call in calls(sizes, lengths, padded=padded):
        got, at = _called(lab, handle, call.rows, **call.given, **kept), at + call.rows.shape[1]
        try:
            evidence.compare(got, call.want, sizes[3])
        except Mismatch as m:
            raise Mismatch(f"rows {at - call.rows.shape[1]} to {at - 1} of chunks {' + '.join(map(str, lengths))}: {m}",
                           m.figure) from None
        kept = {"cache": got[2]}
    whole, = calls(sizes, (at,), padded=padded)
    expect.close(got[0], whole.want[0][:, -lengths[-1]:], "the last chunk's output, against one pass over all rows,",
                 evidence.OUTPUT, atol=1e-9)


@exercise.case("a grouped checkpoint loads, every row sees every row: G, B2 H12 G3 T5 D8 M20")
def plain(lab):
    _once(lab, G)


@exercise.case("values that name their head: which key/value head does each query head read?")
def which(lab):
    x = random_rows(G)
    x[..., 0] = 1
    state = coded_state(G)
    got, want = _called(lab, _built(lab, G, state), x), answer(state, G, x)
    evidence.forms(got, want)
    found = evidence.map_of_heads(got[0][0, 0, :12], 3)
    wrong = [h for h in range(12) if found[h] != h // 4]
    if wrong:
        head = wrong[0]
        reads = "no single key/value head" if found[head] is None else f"key/value head {found[head]}"
        raise Mismatch(f"the values of query head {head} come from {reads}, expected {head // 4}; by query head: "
                       f"{heads_read(found)}")
    evidence.compare(got, want, G[3])


@exercise.case("other sizes, every row sees every row: B2 H8 G2 T4 D3 M10")
def other(lab):
    _once(lab, OTHER, tokens=4)


@exercise.case("causal, in one pass")
def causal(lab):
    _once(lab, G, causal=True)


@exercise.case("chunks of 2 + 3 rows")
def two_and_three(lab):
    _chunks(lab, G, (2, 3))


@exercise.case("chunks of 1 + 1 + 1 + 1 + 1 rows")
def one_by_one(lab):
    _chunks(lab, G, (1, 1, 1, 1, 1))


@exercise.case("chunks of 3 + 1 + 2 rows, other sizes: H8 G2 D3 M10")
def three(lab):
    _chunks(lab, OTHER, (3, 1, 2))


@exercise.case("padding [B,S], without a triangle")
def padded(lab):
    _once(lab, G, padded=True)


@exercise.case("padding in cached rows and in new ones: chunks of 2 + 3 rows")
def padded_chunks(lab):
    _chunks(lab, G, (2, 3), padded=True)


@exercise.case("as many key/value heads as query heads, sizes left out: H3 M12")
def classic(lab):
    _once(lab, CLASSIC, arguments=(12, 3), causal=True)


def _gradients(lab, which, names, what, sizes=G, arguments=None, **kwargs):
    state, x = random_state(sizes), random_rows(sizes).requires_grad_()
    leaves = {name: weight.clone().requires_grad_() for name, weight in state.items()}
    handle = _built(lab, sizes, state, training=True, arguments=arguments)
    got, want = _called(lab, handle, x, **kwargs), answer(leaves, sizes, x, **kwargs)
    detached = [*(t.detach() for t in want[:2]), tuple(t.detach() for t in want[2])]
    evidence.compare(got, detached, sizes[3])
    cotangent = standard.normal(*want[which].shape, seed=60)
    sources = {"x": x} | leaves
    theirs = torch.autograd.grad(want[which], [sources[n] for n in names], cotangent)
    grads = lab.backward((got[which], cotangent))
    for name, grad in zip(names, theirs, strict=True):
        expect.gradient(grads, x if name == "x" else name, grad, f"{name} (from {what})")


WEIGHTS = [f"{role}_proj.weight" for role in "qkvo"]


@exercise.case("gradients of the output reach the rows and all four maps")
def output_gradients(lab):
    _gradients(lab, 0, ["x", *WEIGHTS], "the output", causal=True, valid=VALID)


@exercise.case("gradients of the probabilities reach the rows, queries and keys")
def probability_gradients(lab):
    _gradients(lab, 1, ["x", *WEIGHTS[:2]], "the probabilities")


def _in_dtype(lab, dtype, loose, repeats=1):
    state = {name: weight.to(dtype) for name, weight in random_state(G).items()}
    handle = _built(lab, G, state, dtype=dtype)
    for call in calls(G, (2, 3), padded=True, dtype=dtype):
        given = call.given if call.cache is None else call.given | {"cache": call.cache}
        want = (*(t.to(dtype) for t in call.want[:2]), tuple(t.to(dtype) for t in call.want[2]))
        for _ in range(repeats):
            got = _called(lab, handle, call.rows, **given)
            evidence.forms(got, want)
            for mine, due, what in zip((*got[2], *got[:2]), (*want[2], *want[:2]), (
                    "the cached k", "the cached v", "output", "probabilities"), strict=True):
                expect.close(mine, due, what, atol=loose, rtol=loose)


@exercise.case("float32 and bfloat16: the dtype follows the input, and two calls agree", CONTRACT)
def dtypes(lab):
    _in_dtype(lab, torch.float32, 2e-5, repeats=2)
    _in_dtype(lab, torch.bfloat16, 8e-2, repeats=2)


@exercise.case("float16: what stands for a hidden score fits the dtype", CONTRACT)
def half(lab):
    _in_dtype(lab, torch.float16, 1e-2)


@exercise.case("one key/value head for four query heads, in chunks", CONTRACT)
def multi_query(lab):
    _chunks(lab, ONE, (2, 3))


@exercise.case("one head of width 1, in chunks", CONTRACT)
def smallest(lab):
    _chunks(lab, SMALLEST, (2, 3))


@exercise.case("the cache keeps B·G·S·D elements alive, and no larger tensor behind them", CONTRACT)
def compact(lab):
    handle = _built(lab, G, random_state(G))
    for call in calls(G, (5, 2)):
        got = _called(lab, handle, call.rows, **call.given, **({} if call.cache is None else {"cache": call.cache}))
        evidence.forms(got, call.want)
        evidence.strided(got[2], [lab.last.layout(t) for t in got[2]], 4)


def _refused(title, word, *calls):
    """Calls that must end in ValueError: each gives keyword arguments beside the rows."""
    @exercise.case(title, CONTRACT)
    def probe(lab):
        handle = _built(lab, G, random_state(G))
        for kwargs in calls:
            with _cache_untouched(lab, kwargs):
                lab.method_raises(ValueError, word, handle, "__call__", random_rows(G, 3), **kwargs)


def _cache(batch=2, heads=3, length=4, width=8, dtype=torch.float64):
    return standard.normal(batch, heads, length, width, seed=70, dtype=dtype)


def _pair(**change):
    return {"causal": True, "cache": (_cache(**change), _cache(**change))}


_refused("refuses a cache without causal", "causal", {"cache": (_cache(), _cache())})
_refused("refuses a cache of query-many heads, or of one head", "cache", _pair(heads=12), _pair(heads=1))
_refused("refuses a cache of another batch, width or dtype", "cache",
         _pair(batch=3), _pair(batch=1), _pair(width=6), _pair(dtype=torch.float32))
_refused("refuses a cache whose keys and values differ in length, or that is no [B,G,S,D]", "cache",
         {"causal": True, "cache": (_cache(), _cache(length=5))},
         {"causal": True, "cache": (_cache()[0], _cache()[0])})
_refused("refuses a query without a visible key", "no visible key",
         {"valid": torch.tensor([[True] * 3, [False] * 3])},
         {"causal": True, "valid": torch.tensor([[True] * 3, [False, True, True]])})


@exercise.case("refuses numbers of heads and widths that are zero or less", CONTRACT)
def positive(lab):
    for sizes in ((12, 0, 1), (12, 3, 0), (12, -3, 3), (12, 3, -3), (12, 3, 1, 0), (12, 3, 1, -8)):
        lab.build_raises(ValueError, "positive", NAME, *sizes)


@exercise.case("refuses what cannot be shared: (13,3,1), (12,3,2), and (20,12,5,8)", CONTRACT)
def divisible(lab):
    for sizes in ((13, 3, 1), (12, 3, 2), (20, 12, 5, 8)):
        lab.build_raises(ValueError, "divisible", NAME, *sizes)


for _program in RIGHTS:
    exercise.right(_program)
for _id, _program in WRONGS:
    exercise.wrong(_program, id=_id)


def _shapes(trials):
    """The weights that the module registered for fixture G, when they do not fit."""
    first = trials[0]
    shapes = first.transcript[0].value if first.transcript else None
    return shapes if not first.passed and isinstance(shapes, dict) and "does not fit" in first.message else {}


@exercise.recognise("kv-projected-full-width")
def full_width(trials):
    shapes = _shapes(trials)
    return any(shapes.get(f"{role}_proj.weight") == (96, 20) for role in "kv")


@exercise.recognise("head-dim-from-model")
def made_up_width(trials):
    return _shapes(trials).get("q_proj.weight") in ((12, 20), (20, 20))


@exercise.recognise("cache-changed-in-place")
def cache_changed(trials):
    return any(CACHE_CHANGED in t.message for t in trials)
