"""One key/value head for every query head."""
import torch
from einops import rearrange, repeat

from ... import expect, standard
from ...coordinates import address, coded
from ...exercise import Exercise

NAME = "repeat_kv"
exercise = Exercise(
    NAME, step=2, points=2, minutes=3, difficulty=2, importance=4,
    summary="Repeat keys or values so that every query head has its own: [B,G,S,D] becomes [B,G·R,S,D].",
    hints=(
        "Write down what the 12 query heads should find in their places, one key/value head each: 0, 0, 0, 0, 1, …",
        "torch has two repeats. One writes a whole row of heads again and again, the other one stutters.",
        "Which axis grows, and which one must keep its length, whatever the group size?",
    ),
    hides="G = 1 and R = 1 hide the tiled order; S = G·R hides a repeat along the tokens.",
)
NAMES = ("batch", "head", "token", "channel")


def oracle(kv, groups):
    """Head by head, as the map says."""
    return torch.stack([kv[:, h // groups] for h in range(kv.shape[1] * groups)], 1)


def _check(lab, kv, groups, axes):
    got, want = lab.call(NAME, kv, groups), oracle(kv, groups)
    expect.shape(got, want.shape, "the repeated heads", "[B,G·R,S,D]")
    expect.dtype(got, want.dtype, "the repeated heads")
    heads = [address(v, axes) for v in got[0, :, 0, 0].tolist()]
    if all(h and h["token"] == h["channel"] == h["batch"] == 0 for h in heads):
        order = [h["head"] for h in heads]
        wrong = [h for h in range(len(order)) if order[h] != h // groups]
        if wrong:
            raise expect.Mismatch(f"query head {wrong[0]} reads key/value head {order[wrong[0]]}, expected "
                                  f"{wrong[0] // groups}; your heads read {order}")
    expect.layout(got, want, axes, "the repeated heads", NAMES)


def _case(title, groups, strided=False, **axes):
    @exercise.case(title)
    def probe(lab):
        kv = coded(**axes)
        if strided:  # as a projection leaves it: tokens before heads in memory
            kv = kv.transpose(1, 2).contiguous().transpose(1, 2)
        _check(lab, kv, groups, axes)


_case("G: B2 G3 R4 S7 D8", 4, batch=2, head=3, token=7, channel=8)
_case("other sizes: B3 G4 R2 S5 D6", 2, batch=3, head=4, token=5, channel=6)
_case("from strided heads: B2 G3 R4 S7 D8", 4, strided=True, batch=2, head=3, token=7, channel=8)
_case("one key/value head for all: B2 G1 R5 S7 D8", 5, batch=2, head=1, token=7, channel=8)
standard.tensor_cases(exercise, lambda: ([standard.normal(2, 3, 7, 8, seed=1)], {"groups": 4}), oracle, NAMES)
_case("nothing to repeat: B2 G3 R1 S7 D8", 1, batch=2, head=3, token=7, channel=8)


@exercise.right
def stuttered(kv, groups):
    return kv.repeat_interleave(groups, dim=1)


@exercise.right
def expanded_and_folded(kv, groups):
    b, g, s, d = kv.shape
    return kv[:, :, None].expand(b, g, groups, s, d).reshape(b, g * groups, s, d)


@exercise.right
def by_the_map(kv, groups):
    return kv[:, [h // groups for h in range(kv.shape[1] * groups)]]


@exercise.right
def by_einops(kv, groups):
    return repeat(kv, "b g s d -> b (g r) s d", r=groups)


@exercise.right
def stacked_then_flattened(kv, groups):
    return torch.stack([kv] * groups, dim=2).flatten(1, 2)


@exercise.right
def by_index_select(kv, groups):
    heads = torch.arange(kv.shape[1] * groups) // groups
    return kv.index_select(1, heads)


@exercise.right
def tokens_tiled_and_cut_into_heads(kv, groups):
    b, g, s, d = kv.shape
    return kv.repeat(1, 1, groups, 1).reshape(b, g * groups, s, d)


@exercise.right
def by_gather_along(kv, groups):
    b, g, s, d = kv.shape
    index = (torch.arange(g * groups) // groups)[None, :, None, None].expand(b, -1, s, d)
    return kv.gather(1, index)


@exercise.right
def by_one_hot_product(kv, groups):
    assign = torch.eye(kv.shape[1], dtype=kv.dtype).repeat_interleave(groups, 0)
    return torch.einsum("hg,bgsd->bhsd", assign, kv)


@exercise.wrong
def tiled_heads(kv, groups):
    """`repeat` writes the row of heads again and again: query heads h and h + G share. That is the tiled order; your
    head layout differs from the contract."""
    return kv.repeat(1, groups, 1, 1)


@exercise.wrong(id="tiled-heads")
def concatenated(kv, groups):
    return torch.cat([kv] * groups, dim=1)


@exercise.wrong(id="tiled-heads")
def axis_before_the_heads(kv, groups):
    return repeat(kv, "b g s d -> b (r g) s d", r=groups)


@exercise.wrong
def sequence_repeated(kv, groups):
    """Keys were repeated along the tokens, as happens when the repeat runs before the transpose. At G = 1 even the
    attention output would stay equal, so look at the shape."""
    return kv.repeat_interleave(groups, dim=2)


@exercise.wrong(id="sequence-repeated")
def tokens_tiled(kv, groups):
    return kv.repeat(1, 1, groups, 1)


@exercise.wrong(id="sequence-repeated")
def tokens_pressed_into_heads(kv, groups):
    b, g, s, d = kv.shape
    return kv.repeat_interleave(groups, dim=2).reshape(b, g * groups, s, d)


@exercise.wrong(id="sequence-repeated")
def tiled_tokens_pressed_into_heads(kv, groups):
    b, g, s, d = kv.shape
    return kv.repeat(1, 1, groups, 1).view(b, g, s, groups, d).transpose(2, 3).reshape(b, g * groups, s, d)


@exercise.wrong
def groups_read_as_kv_heads(kv, groups):
    """`groups` is R, how many query heads share a key/value head; it was read as the number of query heads."""
    return kv.repeat_interleave(groups // kv.shape[1], dim=1)


@exercise.wrong
def channels_repeated(kv, groups):
    """The copies went into the channels: D belongs to the head width, the axis that grows is the head axis."""
    return kv.repeat_interleave(groups, dim=3)


@exercise.wrong(id="channels-repeated")
def pressed_into_heads(kv, groups):
    return rearrange(kv.repeat(1, 1, 1, groups), "b g s (d r) -> b (g r) s d", r=groups)
