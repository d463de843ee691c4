"""The triangle of a causal call whose last query belongs to the last key."""
import torch

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch

exercise = Exercise(
    "causal_visibility", step=2, points=2, minutes=4, difficulty=2, importance=5, tensor=False,
    summary="Which keys a causal query may see, with or without a cached prefix.",
    hints=(
        "The last query stands where the last key stands. Where does query 0 stand when four keys were there before "
        "this call?",
        "Give every query its position in the whole sequence, and every key its own. A query sees what is not later "
        "than itself.",
        "A comparison of two ranges broadcasts to a matrix; or cut the last rows out of the full triangle.",
    ),
    hides="A prefix of 0 makes the matrix square and hides a triangle that starts at the top left; one new token hides "
          "a missing mask and an offset that is one too large.",
)
CHUNKS = {"5 tokens, nothing cached": (5, 5), "3 new tokens after 4 cached": (3, 7), "1 new token after 4": (1, 5),
          "2 new tokens after 1": (2, 3)}


def oracle(q_len, k_len):
    """The last q_len rows of the full triangle, row by row."""
    return [[s <= t for s in range(k_len)] for t in range(k_len - q_len, k_len)]


def _check(lab, q_len, k_len):
    got = expect.tensor(lab.call("causal_visibility", q_len, k_len), "the mask")
    expect.shape(got, (q_len, k_len), "the mask", "[q_len,k_len]")
    want = torch.tensor(oracle(q_len, k_len))
    wrong = ((got != 0) != want).nonzero()
    if len(wrong):
        t, s = wrong[0].tolist()
        sees, here = (got[t] != 0).nonzero()[:, 0].tolist(), t + k_len - q_len
        raise Mismatch(f"with {k_len - q_len} cached keys, query {t} sees the keys {sees}; it stands at position "
                       f"{here} and key {s} {'is later' if s > here else 'is not later'}")
    expect.true(got.dtype == torch.bool, f"the mask is {str(got.dtype)[6:]}; visibility is boolean, a number would be "
                                         "added to a score")


def _case(title, sizes):
    @exercise.case(title)
    def probe(lab):
        _check(lab, *sizes)


for _title, _sizes in CHUNKS.items():
    _case(_title, _sizes)


@exercise.case("two calls agree", CONTRACT)
def again(lab):
    _check(lab, 4, 9)
    _check(lab, 4, 9)


@exercise.case("refuses fewer keys than queries", CONTRACT)
def refuses(lab):
    lab.raises(ValueError, "k_len", "causal_visibility", 5, 4)
    lab.raises(ValueError, "k_len", "causal_visibility", 1, 0)


def _checked(q_len, k_len):
    if k_len < q_len:
        raise ValueError(f"k_len {k_len} < q_len {q_len}")


@exercise.right
def compared_ranges(q_len, k_len):
    _checked(q_len, k_len)
    return torch.arange(k_len)[None] <= torch.arange(k_len - q_len, k_len)[:, None]


@exercise.right
def lower_triangle(q_len, k_len):
    _checked(q_len, k_len)
    return torch.ones(q_len, k_len, dtype=torch.bool).tril(diagonal=k_len - q_len)


@exercise.right
def not_an_upper_triangle(q_len, k_len):
    _checked(q_len, k_len)
    return ~torch.ones(q_len, k_len).triu(k_len - q_len + 1).bool()


@exercise.right
def flipped_triangle(q_len, k_len):
    _checked(q_len, k_len)
    return ~torch.ones(q_len, k_len, dtype=torch.bool).tril(-1).flip(0, 1)


@exercise.right
def rows_of_the_full_triangle(q_len, k_len):
    _checked(q_len, k_len)
    return torch.tril(torch.ones(k_len, k_len)).bool()[k_len - q_len:]


@exercise.right
def framework_bias(q_len, k_len):
    from torch.nn.attention.bias import causal_lower_right
    _checked(q_len, k_len)
    return causal_lower_right(q_len, k_len)._materialize(torch.device("cpu"))


@exercise.right
def loops(q_len, k_len):
    _checked(q_len, k_len)
    mask = torch.zeros(q_len, k_len, dtype=torch.bool)
    for i in range(q_len):
        mask[i, :i + k_len - q_len + 1] = True
    return mask


@exercise.wrong
def top_left_triangle(q_len, k_len):
    """With a prefix of 4 the first new query saw one key (SDPA's `is_causal` does this, checked)."""
    _checked(q_len, k_len)
    return torch.ones(q_len, k_len, dtype=torch.bool).tril()


@exercise.wrong
def diagonal_hidden(q_len, k_len):
    """A query must see its own key; with no prefix the first row is empty."""
    _checked(q_len, k_len)
    return torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len - 1)


@exercise.wrong
def one_future_key(q_len, k_len):
    """The offset is one too large."""
    _checked(q_len, k_len)
    return torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len + 1)


@exercise.wrong
def float_triangle(q_len, k_len):
    """The result must be boolean."""
    _checked(q_len, k_len)
    return torch.ones(q_len, k_len).tril(k_len - q_len)


@exercise.wrong(id="float-triangle")
def integer_triangle(q_len, k_len):
    _checked(q_len, k_len)
    return torch.ones(q_len, k_len, dtype=torch.int64).tril(k_len - q_len)


@exercise.wrong(id="float-triangle")
def double_triangle(q_len, k_len):
    _checked(q_len, k_len)
    return torch.ones(q_len, k_len, dtype=torch.float64).tril(k_len - q_len)
