"""How much a head looks at the successor of the last occurrence; read from planted maps."""
import torch

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from ...standard import normal

NAME = "induction_score"
exercise = Exercise(
    NAME, step=9, points=2, minutes=4, difficulty=2, importance=3,
    summary="The mean mass that queries of a repeating sequence put on the token after their last occurrence.",
    hints=(
        "Write a sequence of period 4 under itself: A B C D A B C D. You stand at the second A, query 4. Which key "
        "holds what followed the first A?",
        "For query i that key is i - period + 1. Seen as a picture of queries by keys, all these cells lie on one "
        "diagonal; which?",
        "Queries of the first pass have nothing to look back to, so the diagonal must not begin before query `period`, "
        "and the mean has T - period members for each sample.",
    ),
    hides="Period 1 makes the successor the query itself; T = 2·period hides a mean over the wrong number of queries; "
          "one head hides which head a score belongs to.",
)


def maps(b, h, t, seed=0):
    """Random causal probabilities."""
    scores = normal(b, h, t, t, seed=seed)
    return scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def oracle(probabilities, period):
    """Cell by cell."""
    b, h, t, _ = probabilities.shape
    cells = [[probabilities[s, :, i, i - period + 1] for i in range(period, t)] for s in range(b)]
    return torch.stack([cell for sample in cells for cell in sample]).mean(0)


def planted(t, keys, heads=3):
    """Head h puts all of its mass on keys[h](i) for query i; where that is no key, on itself."""
    p = torch.zeros(2, heads, t, t, dtype=torch.float64)
    for head, key in enumerate(keys):
        for i in range(t):
            at = key(i)
            p[:, head, i, at if 0 <= at <= i else i] = 1
    return p


@exercise.case("planted heads: one looks at the successor, one at the token before, one at the same token")
def three_heads(lab):
    p = planted(11, (lambda i: i - 3, lambda i: i - 1, lambda i: i - 4))
    got = expect.tensor(lab.call(NAME, p, 4))
    expect.shape(got, (3,), "the scores", "[H]")
    kinds = "the successor of the last occurrence", "the previous token", "the same token, one period ago"
    for head, want in enumerate((1.0, 0.0, 0.0)):
        expect.true(abs(got[head].item() - want) < 1e-9,
                    f"head {head} puts all its mass on {kinds[head]}; its score is {got[head].item():.4f}, expected "
                    f"{want:.0f}")


@exercise.case("planted heads that look so from the second, and from the third pass on")
def late(lab):
    p = planted(11, (lambda i: i - 3 if i < 8 else i, lambda i: i - 3 if i >= 8 else i, lambda i: i - 3))
    got = lab.call(NAME, p, 4)
    expect.close(got, torch.tensor([4 / 7, 3 / 7, 1.0], dtype=torch.float64), "the scores", ("head",))


@exercise.case("random causal maps: B2 H3 T11, period 4")
def random(lab):
    p = maps(2, 3, 11, 1)
    expect.close(lab.call(NAME, p, 4), oracle(p, 4), "the scores", ("head",))


@exercise.case("other lengths: T9, period 2; T7, period 6")
def lengths(lab):
    for t, period, seed in ((9, 2, 2), (7, 6, 3)):
        p = maps(2, 3, t, seed)
        expect.close(lab.call(NAME, p, period), oracle(p, period), "the scores", ("head",))


@exercise.case("B=H=T=5: sizes where confused axes fit")
def trap(lab):
    p = maps(5, 5, 5, 4)
    expect.close(lab.call(NAME, p, 2), oracle(p, 2), "the scores", ("head",))


@exercise.case("period 1: the successor of the last occurrence is the query itself")
def period_one(lab):
    p = maps(2, 3, 6, 5)
    expect.close(lab.call(NAME, p, 1), oracle(p, 1), "the scores", ("head",))


standard.tensor_cases(exercise, lambda: ((maps(2, 3, 9, 6),), {"period": 4}), oracle, ("head",))


@exercise.case("refuses a period that leaves no query", CONTRACT)
def refuses(lab):
    for period in (9, 0, -2, 12):
        lab.raises(ValueError, "period", NAME, maps(2, 3, 9), period)


def check(p, period):
    if not 1 <= period < p.shape[-1]:
        raise ValueError(f"no query repeats at period {period}")


@exercise.right
def gather(probabilities, period):
    check(probabilities, period)
    t = probabilities.shape[-1]
    queries = torch.arange(period, t)
    index = (queries - period + 1).expand(*probabilities.shape[:2], -1)[..., None]
    return probabilities[:, :, period:].gather(-1, index).squeeze(-1).mean((0, 2))


@exercise.right
def diagonal(probabilities, period):
    check(probabilities, period)
    return torch.diagonal(probabilities, 1 - period, 2, 3)[..., 1:].mean(-1).mean(0)


@exercise.right
def indexed(probabilities, period):
    check(probabilities, period)
    i = torch.arange(period, probabilities.shape[-1])
    return probabilities[:, :, i, i - period + 1].transpose(0, 1).flatten(1).mean(1)


@exercise.right
def a_mask_of_cells(probabilities, period):
    check(probabilities, period)
    t = probabilities.shape[-1]
    i, j = torch.arange(t)[:, None], torch.arange(t)
    wanted = ((j == i - period + 1) & (i >= period)).to(probabilities.dtype)
    return torch.einsum("bhij,ij->h", probabilities, wanted) / (probabilities.shape[0] * (t - period))


@exercise.right
def a_loop(probabilities, period):
    check(probabilities, period)
    cells = [probabilities[:, :, i, i - period + 1] for i in range(period, probabilities.shape[-1])]
    return (sum(cells) / len(cells)).mean(0)


def at(offset, first=None):
    """The mean of key i - period + offset over queries from `first(period)` on."""
    def program(probabilities, period):
        check(probabilities, period)
        i = torch.arange((first or (lambda p: p))(period), probabilities.shape[-1])
        return probabilities[:, :, i, (i - period + offset).clamp(max=probabilities.shape[-1] - 1)].mean((0, 2))
    return program


@exercise.wrong
def previous_token(probabilities, period):
    """That is key i - 1, the token just before: another kind of head, which only helps an induction head."""
    check(probabilities, period)
    i = torch.arange(period, probabilities.shape[-1])
    return probabilities[:, :, i, i - 1].mean((0, 2))


@exercise.wrong(id="previous-token")
def before_the_last_occurrence(probabilities, period):
    check(probabilities, period)
    i = torch.arange(period + 1, probabilities.shape[-1])
    return probabilities[:, :, i, i - period - 1].mean((0, 2))


@exercise.wrong
def same_token(probabilities, period):
    """Key i - period holds the same token as query i; its successor stands one later."""
    return at(0)(probabilities, period)


@exercise.wrong
def first_pass_counted(probabilities, period):
    """Queries of the first pass were counted too; nothing repeats yet, so they have no last occurrence."""
    check(probabilities, period)
    return torch.diagonal(probabilities, 1 - period, 2, 3).mean((0, 2))


@exercise.wrong(id="first-pass-counted")
def divided_by_all_queries(probabilities, period):
    check(probabilities, period)
    return torch.diagonal(probabilities, 1 - period, 2, 3)[..., 1:].sum(-1).mean(0) / probabilities.shape[-1]


@exercise.wrong(id="first-pass-counted")
def wrapped_round(probabilities, period):
    check(probabilities, period)
    t = probabilities.shape[-1]
    i = torch.arange(t)
    return probabilities[:, :, i, (i - period + 1) % t].mean((0, 2))
