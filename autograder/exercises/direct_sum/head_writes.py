"""The output as a sum of what each head writes."""
import torch
from torch.nn import functional as F

from ... import expect, standard
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "head_writes", step=9, points=3, minutes=5, difficulty=3, importance=5,
    summary="Write W_O as a sum: what each head adds to the output, [B,H,Q,D_v] becomes [B,H,Q,M].",
    hints=(
        "Concatenate heads (1,2) and (3,4) and project them with a 4 by 4 matrix on paper. Which entries of the "
        "matrix ever meet the numbers of head 0?",
        "The stored weight is [M, H·D_v]. One of its axes is shared out among the heads, and the other one is the "
        "output, which every head may write to.",
        "Each head is one small projection: its own D_v channels, its own block, M outputs. Nothing is added up here; "
        "the sum over heads comes after.",
    ),
    hides="M = H·D_v lets a cut along the output axis run; a symmetric W_O hides the transpose; equal heads hide "
          "which block served whom.",
)

NAMES = ("batch", "head", "query", "output")
LOGICAL = torch.tensor([[0.5, 0.1, 0, 0], [0, 0.5, 0.1, 0], [0.1, 0, 0.5, 0], [0, 0, 0.1, 0.5]], dtype=torch.float64)
WORKED_HEADS = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]], dtype=torch.float64)


def oracle(heads, w_o):
    """Merge with all other heads at zero, then project."""
    h, d = heads.shape[1], heads.shape[3]
    alone = torch.stack([F.pad(heads[:, i], (i * d, (h - 1 - i) * d)) for i in range(h)], dim=1)
    return F.linear(alone, w_o)


def _check(lab, heads, w_o):
    expect.close(lab.call("head_writes", heads, w_o), oracle(heads, w_o), "writes", NAMES)


@exercise.case("the worked example: heads (1,2) and (3,4) write (0.5,1.1,0.2,0) and (0.3,0,1.9,2)")
def worked(lab):
    w_o = LOGICAL.T.contiguous()
    got, want = lab.call("head_writes", WORKED_HEADS, w_o), oracle(WORKED_HEADS, w_o)
    expect.shape(got, want.shape, "writes", "[B,H,Q,M]")
    expect.dtype(got, want.dtype, "writes")
    for h in range(2):
        ours, theirs = (t[0, h, 0].tolist() for t in (got, want))
        expect.true(torch.allclose(got[0, h, 0], want[0, h, 0], atol=1e-10),
                    f"head {h} writes {_row(ours)}, expected {_row(theirs)}; all heads together write "
                    f"{_row(got[0, :, 0].sum(0).tolist())}, expected {_row(want[0, :, 0].sum(0).tolist())}")


def _row(values):
    return f"({', '.join(f'{v:.4g}' for v in values)})"


@exercise.case("one channel at a time shows the block of every head: X, B3 H3 Q6 D4 M12")
def blocks(lab):
    heads = torch.zeros(3, 3, 6, 4, dtype=torch.float64)
    for q in range(6):
        heads[:, :, q, q % 4] = 1
    w_o = torch.arange(144, dtype=torch.float64).reshape(12, 12)
    got, want = lab.call("head_writes", heads, w_o), oracle(heads, w_o)
    expect.shape(got, want.shape, "writes", "[B,H,Q,M]")
    expect.dtype(got, want.dtype, "writes")
    wrong = (~((got - want).abs() <= 1e-9)).nonzero()
    if len(wrong):
        b, h, q, m = wrong[0].tolist()
        value = got[b, h, q, m].item()
        known = 0 <= value < 144 and value == int(value)
        seen = f"W_O[{int(value) // 12},{int(value) % 12}]" if known else f"{value:g}"
        raise expect.Mismatch(f"channel {q % 4} of head {h} alone reaches output {m} through {seen}, expected "
                              f"W_O[{m},{h * 4 + q % 4}]: head {h} owns columns {4 * h} to {4 * h + 3}")


@exercise.case("real numbers, E: B2 H3 Q5 D4 M12")
def numbers(lab):
    _check(lab, standard.normal(2, 3, 5, 4, seed=5), standard.normal(12, 12, seed=6))


standard.tensor_cases(exercise, lambda: ([standard.normal(2, 2, 5, 6, seed=1), standard.normal(12, 12, seed=2)], {}),
                      oracle, NAMES)


@exercise.case("values wider than keys: A, B2 H3 Q5 D_v6 M10", CONTRACT)
def rectangular(lab):
    _check(lab, standard.normal(2, 3, 5, 6, seed=7), standard.normal(10, 18, seed=8))


@exercise.case("refuses a W_O that does not read H·D_v channels", CONTRACT)
def width(lab):
    for inputs in (17, 19):
        lab.raises(ValueError, "width", "head_writes", torch.ones(2, 3, 5, 6), torch.ones(10, inputs))


def _sizes(heads, w_o):
    h, d = heads.shape[1], heads.shape[3]
    if w_o.shape[1] != h * d:
        raise ValueError(f"w_o reads a width of {w_o.shape[1]}, expected {h * d}")
    return h, d


@exercise.right
def einsum(heads, w_o):
    h, d = _sizes(heads, w_o)
    return torch.einsum("bhqd,mhd->bhqm", heads, w_o.view(-1, h, d))


@exercise.right
def loop_over_column_blocks(heads, w_o):
    h, d = _sizes(heads, w_o)
    return torch.stack([F.linear(heads[:, i], w_o[:, i * d:(i + 1) * d]) for i in range(h)], dim=1)


@exercise.right
def block_diagonal_product(heads, w_o):
    h, d = _sizes(heads, w_o)
    b, _, q, _ = heads.shape
    merged = heads.transpose(1, 2).reshape(b, q, h * d)
    wide = torch.block_diag(*[w_o[:, i * d:(i + 1) * d] for i in range(h)])
    return F.linear(merged, wide).view(b, q, h, -1).transpose(1, 2)


@exercise.right
def batched_product(heads, w_o):
    h, d = _sizes(heads, w_o)
    return heads @ w_o.t().unflatten(0, (h, d))


@exercise.right
def chunks(heads, w_o):
    h, _ = _sizes(heads, w_o)
    parts = [x @ w.T for x, w in zip(heads.unbind(1), w_o.chunk(h, dim=1), strict=True)]
    return torch.stack(parts, 1)


@exercise.right
def masked_rows(heads, w_o):
    h, d = _sizes(heads, w_o)
    eye = torch.eye(h, dtype=heads.dtype)
    alone = torch.einsum("bhqd,hk->bhqkd", heads, eye).flatten(3)
    return F.linear(alone, w_o)


@exercise.wrong
def head_axis_on_output(heads, w_o):
    """A head owns D_v input columns of the stored W_O and may write to all M outputs."""
    h, d = _sizes(heads, w_o)
    return torch.stack([heads[:, i] @ w_o[i * d:(i + 1) * d] for i in range(h)], dim=1)


@exercise.wrong(id="head-axis-on-output")
def own_outputs_only(heads, w_o):
    h, d = _sizes(heads, w_o)
    b, _, q, _ = heads.shape
    merged = heads.transpose(1, 2).reshape(b, q, h * d)
    return torch.stack([F.linear(merged, rows) for rows in w_o.chunk(h, dim=0)], dim=1)


@exercise.wrong(id="head-axis-on-output")
def square_block(heads, w_o):
    h, d = _sizes(heads, w_o)
    return torch.stack([F.linear(heads[:, i], w_o[i * d:(i + 1) * d, i * d:(i + 1) * d]) for i in range(h)], dim=1)


@exercise.wrong(id="head-axis-on-output")
def rows_by_a_view(heads, w_o):
    h, d = _sizes(heads, w_o)
    return torch.einsum("bhqd,hdm->bhqm", heads, w_o.reshape(h, d, -1))


@exercise.wrong(id="head-axis-on-output")
def rows_of_the_transposed(heads, w_o):
    h, d = _sizes(heads, w_o)
    return torch.stack([F.linear(heads[:, i], w_o.T[:, i * d:(i + 1) * d]) for i in range(h)], dim=1)


@exercise.wrong
def one_block_for_all(heads, w_o):
    """Block 0 served every head."""
    _, d = _sizes(heads, w_o)
    return F.linear(heads, w_o[:, :d])


@exercise.wrong
def summed_before_projection(heads, w_o):
    """Raw head outputs were added first; each head has its own block."""
    h, d = _sizes(heads, w_o)
    together = heads.sum(1, keepdim=True).expand_as(heads)
    return torch.einsum("bhqd,mhd->bhqm", together, w_o.view(-1, h, d))


@exercise.wrong(id="summed-before-projection")
def through_block_0(heads, w_o):
    _, d = _sizes(heads, w_o)
    return F.linear(heads.sum(1), w_o[:, :d])


@exercise.wrong(id="summed-before-projection")
def through_block_0_with_a_head_axis(heads, w_o):
    _, d = _sizes(heads, w_o)
    return F.linear(heads.sum(1, keepdim=True), w_o[:, :d])


@exercise.wrong(id="summed-before-projection")
def through_block_0_for_every_head(heads, w_o):
    _, d = _sizes(heads, w_o)
    return F.linear(heads.sum(1, keepdim=True).expand_as(heads), w_o[:, :d])


@exercise.wrong(id="summed-before-projection")
def through_the_sum_of_blocks(heads, w_o):
    h, d = _sizes(heads, w_o)
    return F.linear(heads.sum(1), w_o.unflatten(1, (h, d)).sum(1))


@exercise.wrong(id="summed-before-projection")
def through_all_of_w_o(heads, w_o):
    _sizes(heads, w_o)
    return F.linear(heads.sum(1), w_o)


@exercise.wrong(id="summed-before-projection")
def through_every_block_without_query_axis_first(heads, w_o):
    h, d = _sizes(heads, w_o)
    return torch.einsum("bqd,mhd->bqm", heads.sum(1), w_o.view(-1, h, d))


@exercise.wrong
def summed_inside(heads, w_o):
    """The writes were already added; return one per head."""
    h, d = _sizes(heads, w_o)
    return torch.einsum("bhqd,mhd->bqm", heads, w_o.view(-1, h, d))


@exercise.wrong(id="summed-inside")
def with_an_axis_of_one(heads, w_o):
    h, d = _sizes(heads, w_o)
    return torch.einsum("bhqd,mhd->bqm", heads, w_o.view(-1, h, d)).unsqueeze(1)


@exercise.wrong(id="summed-inside")
def repeated_for_every_head(heads, w_o):
    h, d = _sizes(heads, w_o)
    total = torch.einsum("bhqd,mhd->bqm", heads, w_o.view(-1, h, d))
    return total.unsqueeze(1).repeat(1, h, 1, 1)


@exercise.wrong
def block_transposed(heads, w_o):
    """The worked example would give (0.7,1.3,1.6,2.3) in total."""
    h, d = _sizes(heads, w_o)
    return torch.einsum("bhqd,hdm->bhqm", heads, w_o.reshape(h, d, -1))


@exercise.wrong(id="block-transposed")
def transposed_within_its_square(heads, w_o):
    h, d = _sizes(heads, w_o)
    return torch.stack([F.linear(heads[:, i], w_o.T[:, i * d:(i + 1) * d]) for i in range(h)], dim=1)


@exercise.wrong(id="block-transposed")
def rows_in_place_of_columns(heads, w_o):
    h, d = _sizes(heads, w_o)
    return torch.stack([heads[:, i] @ w_o[i * d:(i + 1) * d] for i in range(h)], dim=1)
