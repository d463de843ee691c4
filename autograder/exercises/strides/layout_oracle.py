"""The learner's own test of head layouts, tested."""
from dataclasses import dataclass

import torch

from ...exercise import Exercise
from ...lab import Mismatch, Observation
from .pairs import (
    COLLIDING,
    COPYING,
    FAST_HEAD,
    LAST_TWO,
    MATCHED,
    ONE_LAYOUT,
    PADDED,
    RELABELLED,
    REPEATED,
    RIGHT,
    UNFILLED,
    UNSWAPPED,
    VIEWING,
    WRONG,
)

exercise = Exercise(
    "layout_oracle", step=10, points=5, minutes=10, difficulty=4, importance=5, tensor=False,
    summary="Write the test: it accepts every right pair of split and merge, and complains about every wrong one.",
    hints=(
        "What could a wrong pair do so that your test still sees what it hopes to see? Try it against layouts with the "
        "right shape, and against a split and a merge whose errors cancel.",
        "Give every element a value of its own, know for each cell of a result which value belongs there, and compare "
        "split and merge each with that, not with each other.",
        "Choose sizes that all differ and exceed 1. Compare exactly. Demand values, not memory: a copy is right, a "
        "strided view is right. Let `merge` see heads that are contiguous and heads that are not, and be ready for a "
        "pair that raises.",
    ),
    hides="One token, one head or one channel make layouts coincide; equal values, sums and norms do not see a "
          "permutation; a round trip does not see two errors that cancel.",
)


@dataclass
class Verdict(Observation):
    """What the learner's test said of one pair: `value` is True for a complaint. With what it fed to `split`."""

    inputs: tuple = ()
    broke: bool = False
    complaints: int = 0


@dataclass(frozen=True)
class Fed:
    """One call of `split`: tokens, heads, and how many different values the rows had, of how many elements."""

    tokens: int
    heads: int
    different: int
    elements: int


def _verdict(lab, pair):
    """(whether the test complained, what it said); (None, why) for a test that broke."""
    inputs, said = [], ()

    def split(packed, num_heads):
        heads = pair.split(packed, num_heads)
        inputs.append(Fed(packed.shape[1], num_heads, len(packed.unique()), packed.numel()))
        return heads

    try:
        said = lab.call("layout_oracle", split, pair.merge)
        broke = not isinstance(said, (list, tuple)) or not all(isinstance(s, str) for s in said)
        text = f"it returned {_short(said)}, not a list of messages" if broke else "; ".join(said)
        complained = None if broke else bool(said)
    except Mismatch as m:
        complained, broke, text = None, True, str(m)
    lab.transcript[-1] = Verdict(pair.id, broke or complained, None, tuple(inputs), broke, 0 if broke else len(said))
    return complained, text


def _short(value):
    text = value if isinstance(value, str) else repr(value) if value is None else f"a {type(value).__name__}"
    return f"{text[:60]}..." if len(text) > 63 else text


def _complains_about_none(kind):
    @exercise.case(f"right pairs, {len(RIGHT[kind])}: {kind}")
    def right_pairs(lab):
        wrong = []
        for pair in RIGHT[kind]:
            complained, said = _verdict(lab, pair)
            if complained is None:
                wrong.append(f"your test breaks on a right pair ({pair.say}): {said}")
            elif complained:
                wrong.append(f"your test complains about a right pair: {pair.say}. It says \"{_short(said)}\"")
        if wrong:
            raise Mismatch(wrong[0] + (f" (so it does with {len(wrong) - 1} more)" if len(wrong) > 1 else ""))


def _complains_about_each(title, candidates):
    @exercise.case(title)
    def wrong_pairs(lab):
        missed = []
        for pair in candidates:
            complained, said = _verdict(lab, pair)
            if complained is None:
                missed.append(f"your test breaks on a wrong pair ({pair.say}): {said}")
            elif not complained:
                missed.append(f"your test accepts a wrong pair: {pair.say}{_seen(pair)}")
        if missed:
            raise Mismatch(missed[0] + (f". {len(missed)} of {len(candidates)} wrong pairs pass" if len(missed) > 1
                                        else ""))


def _seen(pair):
    """The cell where a pair goes wrong, at B2 S7 H3 D4."""
    sizes = 2, 7, 3, 4
    for what, holds, want in _results(pair, sizes):
        if holds is None:
            return f"; {what} raises"
        if not torch.equal(holds, want):
            at = (holds != want).nonzero()[0].tolist()
            return (f"; at B2 S7 H3 D4, {what}{at} is element {holds[tuple(at)]:g} of the rows, "
                    f"expected {want[tuple(at)]:g}")
    return ""


def _results(pair, sizes):
    """The oracle: [(what, result or None, truth)] of a pair on coded rows, by the indices of the contract."""
    b, s, h, d = (torch.arange(n).view(-1, *[1] * (3 - axis)) for axis, n in enumerate(sizes))
    _, S, H, D = sizes
    packed = ((b * S + s) * H * D + h * D + d).flatten(2).double()
    heads = packed[b.view(-1, 1, 1, 1), s.view(1, 1, -1, 1), h.view(1, -1, 1, 1) * D + d]
    strided = packed.view(sizes).transpose(1, 2)
    calls = (("heads", lambda: pair.split(packed, H), heads), ("merged", lambda: pair.merge(strided), packed),
             ("merged", lambda: pair.merge(heads), packed))
    found = []
    for what, call, want in calls:
        try:
            found.append((what, call(), want))
        except Exception:
            found.append((what, None, want))
    return found


def is_wrong(pair, sizes) -> bool:
    """Whether the pair breaks the contract at these sizes (B, S, H, D)."""
    return any(got is None or not torch.equal(got, want) for _, got, want in _results(pair, sizes))


for _kind in RIGHT:
    _complains_about_none(_kind)
_complains_about_each(f"{len(WRONG)} wrong pairs, all of the right shape", WRONG)
_complains_about_each("wrong pairs that are right for heads of one layout, contiguous or strided", ONE_LAYOUT)


def _test(sizes=(2, 7, 3, 4), code=None, same=torch.equal, each=None, layouts=(False, True)):
    """A test in the manner of the right ones; a wrong one changes a single part of it."""
    b, s, h, d = sizes

    def layout_oracle(split, merge):
        rows = torch.arange(b * s * h * d, dtype=torch.float64).view(b, s, h, d) if code is None else code(*sizes)
        packed, heads = rows.reshape(b, s, h * d), rows.transpose(1, 2)
        questions = [("split", lambda: split(packed, h), heads)]
        given = [heads.contiguous() if contiguous else heads for contiguous in layouts]
        questions += [("merge", lambda x=x: merge(x), packed) for x in given]
        messages = []
        for what, call, want in questions:
            try:
                got = call()
            except Exception as e:
                messages.append(f"{what} raised {e}")
                continue
            if got.shape != want.shape:
                messages.append(f"{what} has another shape")
            elif not same(got, want):
                messages.append(f"{what} is wrong")
            elif each and not each(got, rows):
                messages.append(f"{what} has the wrong memory")
        return messages
    return layout_oracle


def _named(name, function):
    function.__name__ = name
    return function


exercise.right(_named("coordinate_code", _test()))
exercise.right(_named("code_with_two_digit_indices", _test(sizes=(2, 11, 3, 16))))
exercise.right(_named("whole_numbers", _test(code=lambda b, s, h, d: torch.arange(b * s * h * d).view(b, s, h, d))))
exercise.right(_named("tight_tolerance", _test(same=torch.allclose)))
exercise.right(_named("decimal_code_below_ten", _test(
    code=lambda b, s, h, d: sum(w * torch.arange(n).view(-1, *[1] * i) for w, n, i in (
        (1000, b, 3), (100, s, 2), (10, h, 1), (1, d, 0))), sizes=(2, 5, 3, 4))))


@exercise.right
def per_element_loops(split, merge):
    b, s, h, d = 2, 3, 4, 5
    packed = torch.arange(b * s * h * d).double().reshape(b, s, h * d)
    want = torch.empty(b, h, s, d).double()
    for i in range(b):
        for j in range(s):
            for k in range(h):
                for c in range(d):
                    want[i, k, j, c] = packed[i, j, k * d + c]
    try:
        heads, back, again = split(packed, h), merge(want), merge(packed.view(b, s, h, d).transpose(1, 2))
    except Exception as e:
        return [str(e)]
    return [f"element {i}" for got, truth in ((heads, want), (back, packed), (again, packed))
            for i in range(packed.numel()) if got.reshape(-1)[i] != truth.reshape(-1)[i]]


@exercise.right
def two_random_inputs(split, merge):
    messages = []
    for seed, (b, s, h, d) in enumerate(((2, 7, 3, 4), (3, 5, 2, 6))):
        packed = torch.randn(b, s, h * d, generator=torch.Generator().manual_seed(seed))
        heads = torch.stack([packed[..., i * d:(i + 1) * d] for i in range(h)], 1)
        for given, want in ((heads, packed), (heads.transpose(1, 2).contiguous().transpose(1, 2), packed)):
            try:
                if not torch.equal(split(packed, h), heads):
                    messages.append("split")
                if not torch.equal(merge(given), want):
                    messages.append("merge")
            except Exception as e:
                messages.append(repr(e))
    return messages


def _weak(id_, sentence, **spellings):
    for name, function in spellings.items():
        function.__doc__ = sentence
        exercise.wrong(id=id_)(_named(name, function))


def _decimal(b, s, h, d):
    return sum(w * torch.arange(n).view(-1, *[1] * i) for w, n, i in ((1000, b, 3), (100, s, 2), (10, h, 1), (1, d, 0)))


def _decimal_rows(b, s, h, d):
    code = 100 * torch.arange(b)[:, None, None] + 10 * torch.arange(s)[:, None] + torch.arange(h * d)
    return code.view(b, s, h, d)


def _round_trip(split, merge):
    packed = torch.arange(168.0).view(2, 7, 12)
    return [] if torch.equal(merge(split(packed, 3)), packed) else ["the round trip changes the rows"]


def _copies_refused(split, merge):
    packed = torch.arange(168.0).view(2, 7, 12)
    messages = STRONG(split, merge)
    merged = merge(split(packed, 3))
    if merged.untyped_storage().data_ptr() != packed.untyped_storage().data_ptr():
        messages.append("memory was copied")
    return messages


def _copies_of_heads_refused(split, merge):
    packed = torch.arange(168.0).view(2, 7, 12)
    heads = split(packed, 3)
    return STRONG(split, merge) + (["copied"] if heads.data_ptr() != packed.data_ptr() else [])


def _escaping(split, merge):
    b, s, h, d = 2, 7, 3, 4
    rows = torch.arange(168.0).view(b, s, h, d)
    packed, heads = rows.view(b, s, -1), rows.transpose(1, 2)
    results = (split(packed, h), heads), (merge(heads), packed), (merge(heads.contiguous()), packed)
    return ["wrong" for got, want in results if not torch.equal(got, want)]


STRONG = _test()

_weak("shape-only", "Every wrong layout here has the right shape.",
      shape_only=_test(same=lambda got, want: True), shapes_of_zeros=_test(same=lambda g, w: True, code=torch.zeros))
_weak("round-trip-only", "A wrong split undone by a matching wrong merge returns the input.",
      round_trip_only=_round_trip)
_weak("constant-input", "Equal values cannot show who moved.",
      constant_input=_test(code=torch.ones), zeros=_test(code=torch.zeros))
_weak("sum-or-norm", "Sums do not change under a permutation.",
      sum_or_norm=_test(same=lambda got, want: torch.allclose(got.sum(), want.sum())),
      norms=_test(same=lambda got, want: torch.allclose(got.norm(), want.norm())),
      sorted_values=_test(same=lambda got, want: torch.equal(got.flatten().sort()[0], want.flatten().sort()[0])))
_weak("degenerate-sizes", "With one token or one head the layouts coincide.",
      degenerate_sizes=_test(sizes=(2, 1, 3, 4)), one_head=_test(sizes=(2, 7, 1, 4)), one_of_each=_test((2, 1, 1, 4)),
      one_sample_and_token=_test(sizes=(1, 1, 3, 4)))
_weak("digits-collide", "The decimal code repeats values at ten and above.",
      digits_collide=_test(sizes=(2, 11, 3, 16), code=_decimal), wide_heads=_test(sizes=(2, 5, 3, 12), code=_decimal),
      digits_of_rows=_test(code=_decimal_rows), long_sequence=_test(sizes=(2, 12, 3, 4), code=_decimal))
_weak("loose-tolerance", "A tolerance larger than the spacing of the codes hides swaps.",
      loose_tolerance=_test(same=lambda g, w: torch.allclose(g, w, atol=1.0)),
      ten_steps=_test(same=lambda g, w: torch.allclose(g, w, atol=10.0)),
      relative=_test(same=lambda g, w: torch.allclose(g, w, rtol=0.05)))
_weak("rejects-copies", "A copying merge is right.", rejects_copies=_copies_refused,
      rejects_copied_heads=_copies_of_heads_refused)
_weak("rejects-views", "A strided result is right; do not demand contiguity.",
      rejects_views=_test(each=lambda got, rows: got.is_contiguous()))
_weak("heads-of-one-layout", "`merge` was tried on one layout of heads only; both contiguous and strided ones occur.",
      strided_only=_test(layouts=(False,)), contiguous_only=_test(layouts=(True,)))
_weak("raising-pair-escapes", "A pair that raises is wrong: its exception ends up in a message, not in yours.",
      raising_pair_escapes=_escaping)


class _Seen:
    """All verdicts of a trial, by the ids of the pairs."""

    def __init__(self, trials):
        verdicts = [o for t in trials for o in t.transcript if isinstance(o, Verdict)]
        self.complained = {o.asked for o in verdicts if o.value}
        self.broke = {o.asked for o in verdicts if o.broke}
        self.accepted = _ids(WRONG) - self.complained
        self.one_layout = _ids(ONE_LAYOUT) - self.complained
        self.inputs = [fed for o in verdicts for fed in o.inputs]
        self.constant = all(fed.different == 1 for fed in self.inputs)
        self.refused = {kind: _ids(RIGHT[kind]) & self.complained - self.broke for kind in RIGHT}
        self.complaints = {kind: [o.complaints for o in verdicts if o.asked in _ids(RIGHT[kind])] for kind in RIGHT}

    def more_about(self, kind, other) -> bool:
        """All of these right pairs drew more complaints than any of those, which differ from them only in memory."""
        return min(self.complaints[kind], default=0) > max(self.complaints[other], default=0)


def _ids(pairs):
    return {pair.id for pair in pairs}


def _recognise(id_):
    def add(fits):
        exercise.recognise(id_)(lambda trials: any(not t.passed for t in trials) and fits(_Seen(trials)))
        return fits
    return add


PERMUTED = _ids((RELABELLED, UNSWAPPED, *FAST_HEAD, LAST_TWO, *MATCHED))
CHANGED = _ids((REPEATED, UNFILLED))


@_recognise("shape-only")
def all_accepted(seen):
    return seen.accepted == _ids(WRONG)


@_recognise("constant-input")
def equal_values(seen):
    return seen.constant and bool(seen.accepted) and UNFILLED.id not in seen.accepted


@_recognise("sum-or-norm")
def permutations_accepted(seen):
    return not seen.constant and seen.accepted >= PERMUTED and not seen.accepted & CHANGED


@_recognise("round-trip-only")
def matched_accepted(seen):
    return not seen.constant and seen.accepted == _ids(MATCHED)


@_recognise("degenerate-sizes")
def one_token_or_head(seen):
    few = all(fed.tokens == 1 or fed.heads == 1 for fed in seen.inputs)
    return few and not seen.constant and _ids((RELABELLED, UNSWAPPED)) <= seen.accepted != _ids(WRONG)


@_recognise("digits-collide")
def repeated_codes(seen):
    repeated = all(fed.different < fed.elements for fed in seen.inputs)
    return repeated and bool(seen.accepted) and seen.accepted <= _ids(COLLIDING)


@_recognise("loose-tolerance")
def small_swaps_accepted(seen):
    return (not seen.constant and LAST_TWO.id in seen.accepted != _ids(WRONG) and not permutations_accepted(seen))


@_recognise("rejects-copies")
def copies_refused(seen):
    return bool(seen.refused[COPYING]) and (not seen.refused[VIEWING] or seen.more_about(COPYING, VIEWING))


@_recognise("rejects-views")
def views_refused(seen):
    strided = seen.refused[VIEWING] | seen.refused[PADDED]
    return bool(strided) and (not seen.refused[COPYING] or seen.more_about(VIEWING, COPYING))


@_recognise("heads-of-one-layout")
def one_layout_accepted(seen):
    return bool(seen.one_layout) and not seen.accepted and not any(seen.refused.values())


@_recognise("raising-pair-escapes")
def exception_escapes(seen):
    return bool(seen.broke) and seen.broke <= {"view-of-transposed"} and not (seen.accepted | seen.one_layout)
