"""CollabHead: all heads read one basis of queries and keys, and each weighs its coordinates in its own way."""
import torch
from torch.nn import functional as F

from ... import expect, standard
from ...exercise import VALUES, Exercise

exercise = Exercise(
    "collaborative_scores", step=6, points=3, minutes=6, difficulty=3, importance=3,
    summary="Score queries against keys in one shared basis, with a metric for each head: [B,T,M] and [B,S,M] become "
            "[B,H,T,S].",
    hints=(
        "Project both sides once, without a head axis. What is left that can make one head's scores differ from "
        "another's?",
        "A score is a sum over D̃ coordinates of query times key. A head puts a weight on each term of that sum, and "
        "on nothing else.",
        "Weigh either the queries or the keys with the head's row, or neither and let one `einsum` of three operands "
        "do it. Where would a row of 2, 0, −1 end up in the score?",
    ),
    hides="a mixing of zeros and ones hides mixing twice; equal rows hide one metric for all; D̃ = M lets a transposed "
          "basis run.",
)

NAMES = ("batch", "head", "query", "key")
V = dict(batch=2, heads=3, queries=6, keys=7, width=10, shared=5)
TRAP = dict(batch=3, heads=3, queries=6, keys=6, width=6, shared=6)


def inputs(batch, heads, queries, keys, width, shared, scale=0.4):
    """x_q, x_k, w_q, w_k, mixing."""
    return [standard.normal(batch, queries, width, seed=1), standard.normal(batch, keys, width, seed=2),
            scale * standard.normal(shared, width, seed=3), scale * standard.normal(shared, width, seed=4),
            standard.normal(heads, shared, seed=5)]


def oracle(x_q, x_k, w_q, w_k, mixing):
    """Head by head, as a bilinear form of the rows."""
    return torch.stack([x_q @ (w_q.T @ torch.diag(row) @ w_k) @ x_k.transpose(1, 2) for row in mixing], dim=1)


def _check(lab, given):
    expect.close(lab.call("collaborative_scores", *given), oracle(*given), "scores", NAMES)


@exercise.case("a compressed basis: B2 H3 T6 S7 M10, shared width 5")
def compressed(lab):
    _check(lab, inputs(**V))


@exercise.case("one coordinate at a time shows each head's metric")
def metric(lab):
    heads, shared = 3, 5
    eye = torch.eye(shared, dtype=torch.float64)
    mixing = torch.arange(1.0, 16.0, dtype=torch.float64).reshape(heads, shared) - 6
    rows = eye[None].clone()
    got = expect.tensor(lab.call("collaborative_scores", rows, rows.clone(), eye, eye.clone(), mixing), "scores")
    expect.shape(got, (1, heads, shared, shared), "scores", "[B,H,T,S]")
    want = torch.stack([torch.diag(row) for row in mixing])[None]
    wrong = (~((got - want).abs() <= 1e-9)).nonzero()
    if len(wrong):
        _, h, t, s = wrong[0].tolist()
        raise expect.Mismatch(f"a query that is 1 in coordinate {t} and a key that is 1 in coordinate {s} score "
                              f"{got[0, h, t, s].item():g} in head {h}, expected {want[0, h, t, s].item():g}, where "
                              f"mixing[{h}] is {[int(v) for v in mixing[h].tolist()]}")


@exercise.case("basis, width and lengths of one number: B3 H3 T6 S6 M6, shared width 6")
def trap(lab):
    _check(lab, inputs(**TRAP))


@exercise.case("full width and block rows are classic scores: H3 D4, shared width 12")
def classic(lab):
    given = inputs(**V | dict(shared=12))
    given[4] = torch.block_diag(*[torch.ones(1, 4, dtype=torch.float64)] * 3)
    q, k = (F.linear(x, w).unflatten(-1, (3, 4)).transpose(1, 2) for x, w in zip(given[:2], given[2:4], strict=True))
    expect.close(lab.call("collaborative_scores", *given), q @ k.mT, "scores", NAMES)


standard.tensor_cases(exercise, lambda: (inputs(**V, scale=0.2), {}), oracle, NAMES)


@exercise.right
def einsum(x_q, x_k, w_q, w_k, mixing):
    return torch.einsum("btm,cm,hc,cn,bsn->bhts", x_q, w_q, mixing, w_k, x_k)


@exercise.right
def scaled_queries(x_q, x_k, w_q, w_k, mixing):
    queries = F.linear(x_q, w_q)[:, None] * mixing[:, None]
    return queries @ F.linear(x_k, w_k)[:, None].mT


@exercise.right
def scaled_keys(x_q, x_k, w_q, w_k, mixing):
    keys = (x_k @ w_k.T).unsqueeze(1) * mixing[None, :, None]
    return torch.matmul((x_q @ w_q.T).unsqueeze(1), keys.transpose(-1, -2))


@exercise.right
def loop_over_heads(x_q, x_k, w_q, w_k, mixing):
    q, k = x_q @ w_q.T, x_k @ w_k.T
    return torch.stack([torch.bmm(q * row, k.transpose(1, 2)) for row in mixing], dim=1)


@exercise.right
def mixed_weights(x_q, x_k, w_q, w_k, mixing):
    per_head = mixing[:, :, None] * w_q
    return torch.einsum("btm,hcm->bhtc", x_q, per_head) @ F.linear(x_k, w_k).transpose(1, 2)[:, None]


@exercise.right
def coordinate_after_coordinate(x_q, x_k, w_q, w_k, mixing):
    scores = 0
    for c in range(mixing.shape[1]):
        pair = (x_q @ w_q[c])[:, None, :, None] * (x_k @ w_k[c])[:, None, None, :]
        scores = scores + mixing[None, :, c, None, None] * pair
    return scores


@exercise.wrong
def mixed_twice(x_q, x_k, w_q, w_k, mixing):
    """The metric weighed queries and keys. It applies once: with zeros and ones nobody sees it, with any other number
    it is squared."""
    return einsum(x_q, x_k, w_q, w_k, mixing.square())


def _shared_metric(row):
    def program(x_q, x_k, w_q, w_k, mixing):
        return einsum(x_q, x_k, w_q, w_k, row(mixing).expand_as(mixing))
    return program


@exercise.wrong
def one_metric(x_q, x_k, w_q, w_k, mixing):
    """One metric served all heads, so all heads score alike. The basis is shared; the row of mixing is each head's
    own."""
    return _shared_metric(lambda m: m[:1])(x_q, x_k, w_q, w_k, mixing)


@exercise.wrong(id="one-metric")
def summed_rows(x_q, x_k, w_q, w_k, mixing):
    return _shared_metric(lambda m: m.sum(0, keepdim=True))(x_q, x_k, w_q, w_k, mixing)


@exercise.wrong(id="one-metric")
def averaged_rows(x_q, x_k, w_q, w_k, mixing):
    return _shared_metric(lambda m: m.mean(0, keepdim=True))(x_q, x_k, w_q, w_k, mixing)


@exercise.wrong(id="one-metric")
def no_metric(x_q, x_k, w_q, w_k, mixing):
    return _shared_metric(lambda m: torch.ones_like(m[:1]))(x_q, x_k, w_q, w_k, mixing)


@exercise.wrong(id="one-metric")
def summed_without_a_head_axis(x_q, x_k, w_q, w_k, mixing):
    return torch.einsum("btc,c,bsc->bts", x_q @ w_q.T, mixing.sum(0), x_k @ w_k.T)


@exercise.wrong(id="one-metric")
def the_first_row_without_a_head_axis(x_q, x_k, w_q, w_k, mixing):
    return ((x_q @ w_q.T) * mixing[0]) @ (x_k @ w_k.T).mT


@exercise.recognise("one-metric")
def heads_that_agree(trials):
    """In every case about values all heads have the scores of one metric, which is not nothing."""
    values = [t for t in trials if t.case.kind == VALUES]
    answers = [t.transcript[0].value if t.transcript else None for t in values]
    return all(isinstance(a, torch.Tensor) and a.dim() == 4 and a.shape[1] == 3 and bool((a == a[:, :1]).all())
               and bool(a.any()) for a in answers) and not any(t.passed for t in values)
