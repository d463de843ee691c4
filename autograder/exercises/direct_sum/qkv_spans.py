"""Where the three roles lie in a fused projection."""
from itertools import accumulate

from ... import expect
from ...exercise import Exercise

exercise = Exercise(
    "qkv_spans", step=5, points=1, minutes=2, difficulty=1, importance=4, tensor=False,
    summary="The half-open spans of q, k and v in the rows of a fused projection.",
    hints=(
        "How many rows does each role have? Queries have one block a head; what do keys and values follow?",
        "A span ends where the next one starts, as in range(start, stop): its length is stop - start.",
        "Three widths, not one: q and k share the width of a head but not always the number of heads; v may have a "
        "width of its own.",
    ),
    hides="D_v = D and G = H hide equal thirds; G = H hides query heads used for k and v.",
)

CASES = {
    "H8 D64 D_v48": ((8, 64, 48), {}, (512, 512, 384)),
    "H3 D4 D_v6": ((3, 4, 6), {}, (12, 12, 18)),
    "H12 D64, GPT-2 small": ((12, 64, 64), {}, (768, 768, 768)),
    "12 query heads and 3 key/value heads, D8": ((12, 8, 8), {"num_kv_heads": 3}, (96, 24, 24)),
    "8 query heads, one key/value head, D4 D_v6": ((8, 4, 6), {"num_kv_heads": 1}, (32, 4, 6)),
}


def _case(title, args, kwargs, widths):
    edges = [0, *accumulate(widths)]
    want = {role: (edges[i], edges[i + 1]) for i, role in enumerate("qkv")}

    @exercise.case(title)
    def probe(lab):
        got = lab.call("qkv_spans", *args, **kwargs)
        expect.true(isinstance(got, dict), f"the result is a {type(got).__name__}, expected a dict")
        expect.true(set(got) == set("qkv"), f"the keys are {sorted(map(str, got))}, expected k, q and v")
        for role, width in zip("qkv", widths, strict=True):
            span = got[role]
            expect.true(isinstance(span, (tuple, list)) and tuple(span) == want[role],
                        f"{role} lies in {span}, expected {want[role]}: {width} rows from row {want[role][0]} on")


for _title, (_args, _kwargs, _widths) in CASES.items():
    _case(_title, _args, _kwargs, _widths)


def _spans(q, k, v):
    return {"q": (0, q), "k": (q, q + k), "v": (q + k, q + k + v)}


@exercise.right
def literals(num_heads, d_qk, d_v, num_kv_heads=None):
    g = num_heads if num_kv_heads is None else num_kv_heads
    return _spans(num_heads * d_qk, g * d_qk, g * d_v)


@exercise.right
def accumulated(num_heads, d_qk, d_v, num_kv_heads=None):
    g = num_kv_heads or num_heads
    stops = list(accumulate((num_heads * d_qk, g * d_qk, g * d_v)))
    return dict(zip("qkv", zip([0, *stops], stops, strict=False), strict=True))


@exercise.right
def running_total(num_heads, d_qk, d_v, num_kv_heads=None):
    spans, at = {}, 0
    for role, heads, width in (("q", num_heads, d_qk), ("k", num_kv_heads, d_qk), ("v", num_kv_heads, d_v)):
        stop = at + (num_heads if heads is None else heads) * width
        spans[role], at = (at, stop), stop
    return spans


@exercise.wrong
def equal_thirds(num_heads, d_qk, d_v, num_kv_heads=None):
    """V may be narrower than Q and K."""
    return _spans(*[num_heads * d_qk] * 3)


@exercise.wrong(id="equal-thirds")
def value_width_of_the_keys(num_heads, d_qk, d_v, num_kv_heads=None):
    g = num_heads if num_kv_heads is None else num_kv_heads
    return _spans(num_heads * d_qk, g * d_qk, g * d_qk)


@exercise.wrong(id="equal-thirds")
def third_of_the_total(num_heads, d_qk, d_v, num_kv_heads=None):
    g = num_heads if num_kv_heads is None else num_kv_heads
    third = (num_heads * d_qk + g * (d_qk + d_v)) // 3
    return _spans(third, third, third)


@exercise.wrong(id="equal-thirds")
def third_of_the_total_of_all_heads(num_heads, d_qk, d_v, num_kv_heads=None):
    return _spans(*[num_heads * (2 * d_qk + d_v) // 3] * 3)


@exercise.wrong(id="equal-thirds")
def third_and_the_rest(num_heads, d_qk, d_v, num_kv_heads=None):
    g = num_heads if num_kv_heads is None else num_kv_heads
    total = num_heads * d_qk + g * (d_qk + d_v)
    return _spans(total // 3, total // 3, total - 2 * (total // 3))


@exercise.wrong
def inclusive_ends(num_heads, d_qk, d_v, num_kv_heads=None):
    """Spans are half-open."""
    g = num_heads if num_kv_heads is None else num_kv_heads
    return {role: (a, b - 1) for role, (a, b) in _spans(num_heads * d_qk, g * d_qk, g * d_v).items()}


@exercise.wrong(id="inclusive-ends")
def inclusive_and_touching(num_heads, d_qk, d_v, num_kv_heads=None):
    g = num_heads if num_kv_heads is None else num_kv_heads
    q, k, v = num_heads * d_qk - 1, g * d_qk, g * d_v
    return _spans(q, k, v)


@exercise.wrong
def kv_heads_ignored(num_heads, d_qk, d_v, num_kv_heads=None):
    """K and V spans follow G, not H."""
    return _spans(num_heads * d_qk, num_heads * d_qk, num_heads * d_v)
