"""The packed product, head by head."""
import torch
from torch.nn import functional as F

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "project_per_head", step=2, points=2, minutes=3, difficulty=2, importance=5,
    summary="Give every head its own map of the whole row: [B,S,M] becomes [B,H,S,D].",
    hints=(
        "A packed weight has H·D rows. Which of them belong to head 1, and how many channels of x does one row read?",
        "Each head is an ordinary projection with a smaller weight, [D, M]. The bias has the same blocks of D.",
        "A weight that is cut along its rows into H blocks becomes [H, D, M]. With that, a loop of H small projections "
        "and a single product give the same numbers; only the place of the head axis is left to decide.",
    ),
    hides="H·D = M hides weight columns used as heads (the shapes fit); one head hides everything; a zero bias hides "
          "its slices.",
)

NAMES = ("batch", "head", "token", "channel")


def oracle(x, weight, bias, num_heads):
    """Packed product, then split."""
    packed = F.linear(x, weight, bias)
    b, s, width = packed.shape
    return packed.reshape(b, s, num_heads, width // num_heads).permute(0, 2, 1, 3)


def _one_hot(batch, tokens, width):
    """Rows that each let one input channel through; every channel is read by some row."""
    return torch.eye(width, dtype=torch.float64)[torch.arange(batch * tokens) % width].reshape(batch, tokens, width)


def _check(lab, batch, tokens, heads, channels, width, bias=False):
    axes = dict(head=heads, channel=channels, input=width)
    x, weight = _one_hot(batch, tokens, width), coded(**axes).reshape(heads * channels, width)
    offset = 10_000 * (1 + torch.arange(heads * channels, dtype=torch.float64)) if bias else None
    got = lab.call("project_per_head", x, weight, offset, heads)
    want = oracle(x, weight, offset, heads)
    if not bias:
        expect.layout(got, want, axes, "heads", NAMES)
        return
    expect.shape(got, want.shape, "heads")
    expect.dtype(got, want.dtype, "heads")
    ours, theirs = got.double().div(10_000, rounding_mode="floor"), want.div(10_000, rounding_mode="floor")
    wrong = (ours != theirs).nonzero()
    if len(wrong):
        b, h, s, d = wrong[0].tolist()
        entry = int(ours[b, h, s, d].nan_to_num(-1, -1, -1)) - 1
        raise expect.Mismatch(f"heads[{b},{h},{s},{d}] has bias entry {entry} added, expected entry {h * channels + d}"
                              if 0 <= entry < heads * channels else
                              f"heads[{b},{h},{s},{d}] has no entry of the bias added, expected {h * channels + d}")
    expect.close(got, want, "heads", NAMES)


@exercise.case("every head reads all channels through its own rows: E, B2 S7 H3 D4 M12")
def square(lab):
    _check(lab, 2, 7, 3, 4, 12)


@exercise.case("B=H=3, S=6, D4, M12: sizes where confused axes fit")
def trap(lab):
    _check(lab, 3, 6, 3, 4, 12)


@exercise.case("other sizes: B4 S5 H2 D6 M12")
def other_sizes(lab):
    _check(lab, 4, 5, 2, 6, 12)


@exercise.case("each head adds its own entries of the bias: B2 S7 H3 D4 M12")
def biased(lab):
    _check(lab, 2, 7, 3, 4, 12, bias=True)


standard.tensor_cases(
    exercise, lambda: ([standard.normal(*n, seed=i) for i, n in enumerate(((2, 7, 12), (12, 12), (12,)))],
                       {"num_heads": 3}), oracle, NAMES)


@exercise.case("a weight that is not square: A, B2 S7 H3 D4 M10, and values of D6", CONTRACT)
def rectangular(lab):
    _check(lab, 2, 7, 3, 4, 10)
    _check(lab, 2, 7, 3, 6, 10, bias=True)


def _blocks(weight, bias, num_heads):
    d = weight.shape[0] // num_heads
    return [(weight[h * d:(h + 1) * d], None if bias is None else bias[h * d:(h + 1) * d]) for h in range(num_heads)]


@exercise.right
def loop(x, weight, bias, num_heads):
    return torch.stack([F.linear(x, w, b) for w, b in _blocks(weight, bias, num_heads)], dim=1)


@exercise.right
def einsum_over_blocks(x, weight, bias, num_heads):
    heads = torch.einsum("bsm,hdm->bhsd", x, weight.view(num_heads, -1, weight.shape[1]))
    return heads if bias is None else heads + bias.view(num_heads, 1, -1)


@exercise.right
def one_product(x, weight, bias, num_heads):
    return F.linear(x, weight, bias).unflatten(-1, (num_heads, -1)).transpose(1, 2)


@exercise.right
def broadcast_product(x, weight, bias, num_heads):
    logical = weight.unflatten(0, (num_heads, -1)).mT
    heads = x[:, None] @ logical[None]
    return heads if bias is None else heads + bias.view(1, num_heads, 1, -1)


@exercise.right
def chunks(x, weight, bias, num_heads):
    biases = [None] * num_heads if bias is None else bias.chunk(num_heads)
    parts = [F.linear(x, w, b) for w, b in zip(weight.chunk(num_heads), biases, strict=True)]
    return torch.stack(parts, 1)


@exercise.right
def under_vmap(x, weight, bias, num_heads):
    weights = weight.unflatten(0, (num_heads, -1))
    if bias is None:
        return torch.vmap(F.linear, in_dims=(None, 0), out_dims=1)(x, weights)
    return torch.vmap(F.linear, in_dims=(None, 0, 0), out_dims=1)(x, weights, bias.unflatten(0, (num_heads, -1)))


@exercise.wrong
def raw_input_split(x, weight, bias, num_heads):
    """Each head read only its own slice of the row: that is a block-diagonal model."""
    parts, m = [], x.shape[-1] // num_heads
    for h, (w, b) in enumerate(_blocks(weight, bias, num_heads)):
        own = slice(h * m, (h + 1) * m)
        parts.append(F.linear(x[..., own], w[:, own], b))
    return torch.stack(parts, dim=1)


@exercise.wrong(id="raw-input-split")
def one_small_map_for_all_slices(x, weight, bias, num_heads):
    m, d = x.shape[-1] // num_heads, weight.shape[0] // num_heads
    slices = x.unflatten(-1, (num_heads, m)).transpose(1, 2)
    return F.linear(slices, weight[:d, :m], None if bias is None else bias[:d])


@exercise.wrong(id="raw-input-split")
def first_columns_of_every_head(x, weight, bias, num_heads):
    parts, m = [], x.shape[-1] // num_heads
    for h, (w, b) in enumerate(_blocks(weight, bias, num_heads)):
        parts.append(F.linear(x[..., h * m:(h + 1) * m], w[:, :m], b))
    return torch.stack(parts, dim=1)


@exercise.wrong(id="raw-input-split")
def slices_of_the_full_map(x, weight, bias, num_heads):
    parts = []
    for h, (w, b) in enumerate(_blocks(weight, bias, num_heads)):
        parts.append(F.linear(x.chunk(num_heads, dim=-1)[h], w, b))
    return torch.stack(parts, dim=1)


@exercise.wrong
def columns_are_heads(x, weight, bias, num_heads):
    """Head blocks are rows of the stored weight; square shapes hide it."""
    d = weight.shape[0] // num_heads
    parts = [x @ weight[:, h * d:(h + 1) * d] for h in range(num_heads)]
    heads = torch.stack(parts, dim=1)
    return heads if bias is None else heads + bias.view(num_heads, 1, -1)


@exercise.wrong(id="columns-are-heads")
def columns_transposed(x, weight, bias, num_heads):
    d = weight.shape[1] // num_heads
    parts = [F.linear(x, weight[:, h * d:(h + 1) * d], None if bias is None else bias[h * d:(h + 1) * d])
             for h in range(num_heads)]
    return torch.stack(parts, dim=1)


@exercise.wrong
def one_head_for_all(x, weight, bias, num_heads):
    """Every head used block 0."""
    w, b = _blocks(weight, bias, num_heads)[0]
    return torch.stack([F.linear(x, w, b)] * num_heads, dim=1)


@exercise.wrong(id="one-head-for-all")
def with_own_bias(x, weight, bias, num_heads):
    blocks = _blocks(weight, bias, num_heads)
    return torch.stack([F.linear(x, blocks[0][0], b) for _, b in blocks], dim=1)


@exercise.wrong
def bias_not_sliced(x, weight, bias, num_heads):
    """Each head needs its own slice of the bias."""
    return torch.stack([F.linear(x, w, bias) for w, _ in _blocks(weight, bias, num_heads)], dim=1)


@exercise.wrong(id="bias-not-sliced")
def first_slice_for_all(x, weight, bias, num_heads):
    first = None if bias is None else bias[:weight.shape[0] // num_heads]
    return torch.stack([F.linear(x, w, first) for w, _ in _blocks(weight, bias, num_heads)], dim=1)


@exercise.wrong(id="bias-not-sliced")
def one_entry_for_each_head(x, weight, bias, num_heads):
    heads = torch.stack([F.linear(x, w) for w, _ in _blocks(weight, bias, num_heads)], dim=1)
    return heads if bias is None else heads + bias[:num_heads].view(-1, 1, 1)


@exercise.wrong(id="bias-not-sliced")
def left_out(x, weight, bias, num_heads):
    return torch.stack([F.linear(x, w) for w, _ in _blocks(weight, bias, num_heads)], dim=1)
