"""The value up-projection and the output map of every head, folded into one map."""
import torch
from einops import einsum, rearrange

from ... import expect, standard
from ...exercise import Exercise
from ._absorb import coded_values, compare

NAME = "absorb_values"
exercise = Exercise(
    NAME, step=10, points=2, minutes=4, difficulty=3, importance=4,
    summary="Fold W_UV into W_O, head by head: what an averaged latent row writes to the output.",
    hints=(
        "A head averages latent rows first and makes a value of the average. Which two maps does the average pass on "
        "its "
        "way to the output?",
        "Session 03: which part of the stored W_O belongs to head h, rows or columns?",
        "The result is [H,M,C], one stored map for every head: outputs first, latent channels last.",
    ),
    hides="M = H·D_v hides blocks of rows; H = 1 hides one map for all heads; C = M hides a transposed map.",
)
NAMES = ("head", "output", "latent channel")


def oracle(w_o, w_uv, num_heads):
    """Channel by channel: what latent channel c writes to output m through one head."""
    width = w_o.shape[1] // num_heads
    return torch.stack([sum(torch.outer(w_o[:, c], w_uv[c]) for c in range(h * width, (h + 1) * width))
                        for h in range(num_heads)])


def _inputs(heads, width, latent, model, seed=1):
    return standard.normal(model, heads * width, seed=seed), standard.normal(heads * width, latent, seed=seed + 1)


def _coded(lab, heads, width, latent, model):
    w_o, w_uv = coded_values(heads, width, latent, model)
    got, want = lab.call(NAME, w_o, w_uv, heads), oracle(w_o, w_uv, heads)
    expect.shape(got, want.shape, "absorbed", "[H,M,C]")
    expect.dtype(got, want.dtype, "absorbed")
    wrong = (~((got - want).abs() <= 1e-9)).nonzero()
    if len(wrong):
        h, m, c = wrong[0].tolist()
        value, due = got[h, m, c].item(), want[h, m, c].item()
        raise expect.Mismatch(f"absorbed[{h},{m},{c}] is {value:g}{_origin(value, w_o)}, expected {due:g}"
                              f"{_origin(due, w_o)}: head {h} writes through columns {h * width} to "
                              f"{(h + 1) * width - 1} of W_O")


def _origin(value, w_o):
    found = (w_o == value).nonzero().tolist()
    return f", which is W_O[{found[0][0]},{found[0][1]}]" if len(found) == 1 else ""


@exercise.case("a square W_O, where rows and columns fit alike: H3 D_v4 C5 M12")
def square(lab):
    _coded(lab, 3, 4, 5, 12)


@exercise.case("coded columns show whose block was taken: H3 D_v6 C7 M10")
def blocks(lab):
    _coded(lab, 3, 6, 7, 10)


@exercise.case("real numbers, latent narrower than a head: H3 D_v6 C4 M10")
def narrow(lab):
    compare(lab, NAME, oracle, NAMES, *_inputs(3, 6, 4, 10), 3)


@exercise.case("real numbers, other heads: H5 D_v2 C7 M6")
def other(lab):
    compare(lab, NAME, oracle, NAMES, *_inputs(5, 2, 7, 6, seed=3), 5)


standard.tensor_cases(exercise, lambda: (_inputs(3, 4, 5, 12, seed=5), {"num_heads": 3}), oracle, NAMES)


@exercise.case("outputs from averaged latent rows equal the outputs of explicit values")
def outputs(lab):
    w_o, w_uv = _inputs(3, 6, 5, 10, seed=7)
    latent = standard.normal(7, 5, seed=9)
    weights = standard.normal(3, 4, 7, seed=10).softmax(-1)
    got = lab.call(NAME, w_o, w_uv, 3)
    expect.shape(got, (3, 10, 5), "absorbed", "[H,M,C]")
    expect.dtype(got, torch.float64, "absorbed")
    mine = torch.einsum("hts,sc,hmc->tm", weights, latent, got.double())
    heads = torch.einsum("hts,shd->thd", weights, (latent @ w_uv.T).unflatten(-1, (3, 6)))
    expect.close(mine, heads.flatten(1) @ w_o.T, "the output that your maps give", ("query", "channel"))


def _blocks(w_o, w_uv, num_heads):
    return w_o.unflatten(1, (num_heads, -1)), w_uv.unflatten(0, (num_heads, -1))


@exercise.right
def by_einsum(w_o, w_uv, num_heads):
    return torch.einsum("mhd,hdc->hmc", *_blocks(w_o, w_uv, num_heads))


@exercise.right
def batched_product(w_o, w_uv, num_heads):
    o, v = _blocks(w_o, w_uv, num_heads)
    return o.transpose(0, 1) @ v


@exercise.right
def loop_over_heads(w_o, w_uv, num_heads):
    d = len(w_uv) // num_heads
    return torch.stack([w_o[:, h * d:(h + 1) * d] @ w_uv[h * d:(h + 1) * d] for h in range(num_heads)])


@exercise.right
def chunks(w_o, w_uv, num_heads):
    return torch.stack([o @ v for o, v in zip(w_o.chunk(num_heads, 1), w_uv.chunk(num_heads), strict=True)], 0)


@exercise.right
def by_einops(w_o, w_uv, num_heads):
    return einsum(rearrange(w_o, "m (h d) -> h m d", h=num_heads), rearrange(w_uv, "(h d) c -> h d c", h=num_heads),
                  "h m d, h d c -> h m c")


@exercise.right
def by_bmm(w_o, w_uv, num_heads):
    return torch.bmm(w_o.view(len(w_o), num_heads, -1).transpose(0, 1), w_uv.view(num_heads, -1, w_uv.shape[1]))


@exercise.right
def through_a_block_diagonal(w_o, w_uv, num_heads):
    wide = torch.block_diag(*w_uv.chunk(num_heads))
    return (w_o @ wide).unflatten(1, (num_heads, -1)).transpose(0, 1)


@exercise.right
def in_float64(w_o, w_uv, num_heads):
    return by_einsum(w_o.double(), w_uv.double(), num_heads).to(w_o.dtype)


@exercise.wrong
def output_block_of_rows(w_o, w_uv, num_heads):
    """W_O blocks are input columns: head h writes through columns h·D_v to h·D_v+D_v-1 of the stored map."""
    d = len(w_uv) // num_heads
    return torch.stack([w_o[h * d:(h + 1) * d].T @ w_uv[h * d:(h + 1) * d] for h in range(num_heads)])


@exercise.wrong(id="output-block-of-rows")
def rows_by_unflatten(w_o, w_uv, num_heads):
    return torch.einsum("hdm,hdc->hmc", w_o.unflatten(0, (num_heads, -1)), w_uv.unflatten(0, (num_heads, -1)))


@exercise.wrong(id="output-block-of-rows")
def rows_by_reshape(w_o, w_uv, num_heads):
    d = len(w_uv) // num_heads
    return torch.einsum("hdm,hdc->hmc", w_o.reshape(num_heads, d, -1), w_uv.unflatten(0, (num_heads, -1)))


@exercise.wrong(id="output-block-of-rows")
def rows_kept_as_outputs(w_o, w_uv, num_heads):
    d = len(w_uv) // num_heads
    return torch.stack([w_o.T[:, h * d:(h + 1) * d] @ w_uv[h * d:(h + 1) * d] for h in range(num_heads)])


@exercise.wrong
def one_map_for_all_heads(w_o, w_uv, num_heads):
    """Each head absorbs its own block: the sum over all heads is what comes out when every head has the same
    weights."""
    return (w_o @ w_uv).expand(num_heads, -1, -1)


@exercise.wrong(id="one-map-for-all-heads")
def without_a_head_axis(w_o, w_uv, num_heads):
    return w_o @ w_uv


@exercise.wrong(id="one-map-for-all-heads")
def first_block_for_all(w_o, w_uv, num_heads):
    o, v = _blocks(w_o, w_uv, num_heads)
    return (o[:, 0] @ v[0]).expand(num_heads, -1, -1)


@exercise.wrong(id="one-map-for-all-heads")
def first_value_block_for_all(w_o, w_uv, num_heads):
    o, v = _blocks(w_o, w_uv, num_heads)
    return o.transpose(0, 1) @ v[0]


@exercise.wrong(id="one-map-for-all-heads")
def first_output_block_for_all(w_o, w_uv, num_heads):
    o, v = _blocks(w_o, w_uv, num_heads)
    return o[:, 0] @ v


@exercise.wrong
def axes_swapped(w_o, w_uv, num_heads):
    """[H,C,M] in place of [H,M,C]: the map makes outputs of latent rows, and a stored map has its outputs first."""
    return by_einsum(w_o, w_uv, num_heads).mT


@exercise.wrong(id="axes-swapped")
def pressed_into_shape(w_o, w_uv, num_heads):
    return by_einsum(w_o, w_uv, num_heads).mT.reshape(num_heads, len(w_o), -1)


@exercise.wrong
def columns_interleaved(w_o, w_uv, num_heads):
    """Column r was given to head r mod H; heads are packed one behind the other, head-major."""
    return torch.einsum("mdh,dhc->hmc", w_o.unflatten(1, (-1, num_heads)), w_uv.unflatten(0, (-1, num_heads)))


@exercise.wrong(id="columns-interleaved")
def only_in_the_output_map(w_o, w_uv, num_heads):
    return torch.einsum("mdh,hdc->hmc", w_o.unflatten(1, (-1, num_heads)), w_uv.unflatten(0, (num_heads, -1)))
