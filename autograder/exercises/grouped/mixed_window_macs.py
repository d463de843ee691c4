"""The products of heads that see a window beside heads that see everything."""
from functools import cache

from ... import expect
from ...exercise import CONTRACT, Exercise

NAME = "mixed_window_macs"
exercise = Exercise(
    NAME, step=11, points=2, minutes=4, difficulty=3, importance=3, tensor=False,
    summary="Leading, exact causal and dense products of local and global heads.",
    hints=(
        "Draw the causal mask for T = 6 and W = 3 and count the visible cells of each row. Which rows are shorter?",
        "Three counts, one pair costs D products each: all rows full, the pairs that are visible, and every pair that "
        "a "
        "kernel touches when it skips nothing.",
        "The first W-1 rows miss a triangle. What is 1 + 2 + … + (W-1)?",
    ),
    hides="W = T hides every fault of a local head; D = 1 hides a forgotten width; one head of each kind hides swapped "
          "counts.",
)
CASES = {
    "T2048 W256, 6 local and 2 global heads, D64": (2048, 256, 6, 2, 64),
    "T6 W3, 2 local heads and 1 global, D5": (6, 3, 2, 1, 5),
    "only local heads: T40 W7, 5 heads, D3": (40, 7, 5, 0, 3),
    "only global heads: T30, 4 heads, D6": (30, 11, 0, 4, 6),
}
LATE = {
    "a window of one: every query sees itself": (9, 1, 3, 2, 4),
    "a window of the whole length": (9, 9, 3, 2, 4),
}
KEYS = ("leading", "exact_causal", "dense")


@cache
def oracle(length, window, local_heads, global_heads, head_dim):
    """Visible pairs counted in a mask, row by row."""
    local = sum(1 for q in range(length) for k in range(max(0, q - window + 1), q + 1))
    everything = sum(q + 1 for q in range(length))
    heads = local_heads + global_heads
    return {"leading": (local_heads * window + global_heads * length) * length * head_dim,
            "exact_causal": (local_heads * local + global_heads * everything) * head_dim,
            "dense": heads * length * length * head_dim}


def _how(key, length, window, local, whole, width):
    return {"leading": f"({local}·{length}·{window} + {whole}·{length}²)·{width}",
            "exact_causal": f"({local} heads of {length * window - window * (window - 1) // 2} visible pairs, {whole} "
                            f"of {length * (length + 1) // 2})·{width}",
            "dense": f"{local + whole}·{length}²·{width}"}[key]


def _case(title, args, kind="values"):
    @exercise.case(title, kind)
    def probe(lab):
        got, want = lab.call(NAME, *args), oracle(*args)
        expect.true(isinstance(got, dict), f"the result is a {type(got).__name__}, expected a dict")
        missing, extra = [k for k in KEYS if k not in got], [k for k in got if k not in KEYS]
        expect.true(not missing, f"the result has no {', '.join(missing)}")
        expect.true(not extra, f"the result has {', '.join(map(str, extra))}, which the contract does not know")
        for key in KEYS:
            number = isinstance(got[key], (int, float)) and not isinstance(got[key], bool)
            shown = f"{got[key]:,}" if number else repr(got[key])[:60]
            expect.true(number and got[key] == want[key], f"{NAME}{args}: {key} is {shown}, expected {want[key]:,} = "
                                                          f"{_how(key, *args)}")


for _title, _args in CASES.items():
    _case(_title, _args)
for _title, _args in LATE.items():
    _case(_title, _args, CONTRACT)


@exercise.case("refuses a window of T+1, of 0 and of -2", CONTRACT)
def refuses(lab):
    for window in (10, 0, -2):
        lab.raises(ValueError, "window", NAME, 9, window, 3, 2, 4)


def _checked(length, window):
    if window > length or window < 1:
        raise ValueError("the window does not fit")


def _ledger(local, whole, head_dim, leading, causal, dense):
    """Heads times pairs, for (local pairs, global pairs) of each kind."""
    return {key: (local * a + whole * b) * head_dim for key, (a, b) in zip(KEYS, (leading, causal, dense), strict=True)}


def _pairs(length, window):
    short = length * window - window * (window - 1) // 2
    return (length * window, length**2), (short, length * (length + 1) // 2), (length**2, length**2)


@exercise.right
def closed_forms(length, window, local_heads, global_heads, head_dim):
    _checked(length, window)
    return _ledger(local_heads, global_heads, head_dim, *_pairs(length, window))


@exercise.right
def sums(length, window, local_heads, global_heads, head_dim):
    _checked(length, window)
    local = sum(min(q + 1, window) for q in range(length))
    return _ledger(local_heads, global_heads, head_dim, (length * window, length * length),
                   (local, sum(range(1, length + 1))), (length * length, length * length))


@exercise.right
def masks(length, window, local_heads, global_heads, head_dim):
    import torch
    _checked(length, window)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    local = causal & ~torch.ones_like(causal).tril(-window)
    return _ledger(local_heads, global_heads, head_dim, (length * window, length**2),
                   (int(local.sum()), int(causal.sum())), (causal.numel(), causal.numel()))


@exercise.wrong
def window_squared(length, window, local_heads, global_heads, head_dim):
    """Each of T queries sees W keys: T·W, not W²."""
    _checked(length, window)
    (_, whole), causal, dense = _pairs(length, window)
    return _ledger(local_heads, global_heads, head_dim, (window**2, whole), causal, dense)


@exercise.wrong(id="window-squared")
def triangle_of_the_window(length, window, local_heads, global_heads, head_dim):
    _checked(length, window)
    (_, whole), (_, causal), dense = _pairs(length, window)
    return _ledger(local_heads, global_heads, head_dim, (window**2, whole), (window * (window + 1) // 2, causal), dense)


@exercise.wrong
def masked_dense_as_saving(length, window, local_heads, global_heads, head_dim):
    """A dense kernel computes masked pairs too: a mask hides a score that has already been paid for."""
    _checked(length, window)
    leading, causal, _ = _pairs(length, window)
    return _ledger(local_heads, global_heads, head_dim, leading, causal, leading)


@exercise.wrong(id="masked-dense-as-saving")
def the_visible_pairs(length, window, local_heads, global_heads, head_dim):
    _checked(length, window)
    leading, causal, _ = _pairs(length, window)
    return _ledger(local_heads, global_heads, head_dim, leading, causal, causal)


@exercise.wrong(id="masked-dense-as-saving")
def global_heads_only(length, window, local_heads, global_heads, head_dim):
    _checked(length, window)
    leading, causal, (_, whole) = _pairs(length, window)
    return _ledger(local_heads, global_heads, head_dim, leading, causal, (0, whole))


@exercise.wrong(id="masked-dense-as-saving")
def a_causal_half(length, window, local_heads, global_heads, head_dim):
    _checked(length, window)
    leading, causal, _ = _pairs(length, window)
    return _ledger(local_heads, global_heads, head_dim, leading, causal, (causal[1], causal[1]))


@exercise.wrong
def window_over_length(length, window, local_heads, global_heads, head_dim):
    """W cannot exceed T, and a window of no key is none: refuse it."""
    return _ledger(local_heads, global_heads, head_dim, *_pairs(length, window))


@exercise.wrong(id="window-over-length")
def cut_to_the_length(length, window, local_heads, global_heads, head_dim):
    if window < 1:
        raise ValueError("a window has a key")
    return closed_forms(length, min(window, length), local_heads, global_heads, head_dim)


@exercise.wrong(id="window-over-length")
def empty_window_accepted(length, window, local_heads, global_heads, head_dim):
    if window > length:
        raise ValueError("the window does not fit")
    return window_over_length(length, window, local_heads, global_heads, head_dim)


@exercise.wrong(id="window-over-length")
def zero_accepted(length, window, local_heads, global_heads, head_dim):
    if not 0 <= window <= length:
        raise ValueError("the window does not fit")
    return window_over_length(length, window, local_heads, global_heads, head_dim)


@exercise.wrong
def short_rows_forgotten(length, window, local_heads, global_heads, head_dim):
    """The first W-1 queries see fewer than W keys: T·W - W(W-1)/2 pairs are visible."""
    _checked(length, window)
    leading, (_, causal), dense = _pairs(length, window)
    return _ledger(local_heads, global_heads, head_dim, leading, (leading[0], causal), dense)


@exercise.wrong(id="short-rows-forgotten")
def one_row_off(length, window, local_heads, global_heads, head_dim):
    _checked(length, window)
    leading, (_, causal), dense = _pairs(length, window)
    short = length * window - window * (window + 1) // 2
    return _ledger(local_heads, global_heads, head_dim, leading, (short, causal), dense)


@exercise.wrong
def global_heads_not_causal(length, window, local_heads, global_heads, head_dim):
    """exact_causal counts no pair in which a query looks ahead, global heads included: T(T+1)/2."""
    _checked(length, window)
    leading, (local, _), dense = _pairs(length, window)
    return _ledger(local_heads, global_heads, head_dim, leading, (local, length**2), dense)


@exercise.wrong(id="global-heads-not-causal")
def without_the_diagonal(length, window, local_heads, global_heads, head_dim):
    _checked(length, window)
    leading, (local, _), dense = _pairs(length, window)
    return _ledger(local_heads, global_heads, head_dim, leading, (local, length * (length - 1) // 2), dense)
