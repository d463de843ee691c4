"""The head split, written down as a layout."""
import torch
from einops import rearrange

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "split_heads_as_strided", step=8, points=2, minutes=5, difficulty=3, importance=3,
    summary="Split the heads with one `as_strided` call that respects how the input lies.",
    hints=(
        "Write down the new axes, [B,H,S,D]. For each: how many elements of the *input* does one step of it move?",
        "Three of the four steps can be read off `packed.stride()`. The fourth jumps over one whole head.",
        "Do not compute a stride from a shape: the rows may be a slice of wider rows. Where does `as_strided` start "
        "if you say nothing, and where if you say 0?",
    ),
    hides="Fresh contiguous rows hide row-major strides, offset 0 and a channel stride of 1; H = D hides a head step "
          "of H.",
)

AXES = dict(batch=2, token=7, head=3, channel=4)
NAMES = ("batch", "head", "token", "channel")


def oracle(packed, num_heads):
    return rearrange(packed, "b s (h d) -> b h s d", h=num_heads)


def _check(lab, packed, heads, axes, **kwargs):
    got = lab.call("split_heads_as_strided", packed, num_heads=heads, **kwargs)
    expect.layout(got, oracle(packed, heads), axes, "heads", NAMES)
    return got


@exercise.case("fresh rows: B2 S7 H3 D4")
def fresh(lab):
    _check(lab, coded(**AXES).reshape(2, 7, 12), 3, AXES)


@exercise.case("the K slice of a fused [B,S,3M] tensor")
def fused(lab):
    axes = dict(batch=2, token=7, span=3, head=3, channel=4)
    _check(lab, coded(**axes).reshape(2, 7, 36)[..., 12:24], 3, axes)


@exercise.case("rows whose channels are not neighbours in memory")
def permuted(lab):
    axes = dict(batch=2, head=3, channel=4, token=7)
    _check(lab, coded(**axes).reshape(2, 12, 7).transpose(1, 2), 3, axes)


@exercise.case("every second token of the second sample on, B4 S6 H2 D5")
def stepped(lab):
    axes = dict(batch=5, token=12, head=2, channel=5)
    _check(lab, coded(**axes).reshape(5, 12, 10)[1:, ::2], 2, axes)


@exercise.case("B=H=3, S=6, D=4: sizes where confused axes fit")
def trap(lab):
    axes = dict(batch=3, token=6, head=3, channel=4)
    _check(lab, coded(**axes).reshape(3, 6, 12), 3, axes)


standard.tensor_cases(exercise, lambda: ([standard.normal(2, 7, 12, seed=8)], {"num_heads": 3}), oracle, NAMES,
                      CONTRACT)


@exercise.case("one as_strided call, and no new memory", CONTRACT)
def one_call(lab):
    axes = dict(batch=2, token=7, span=3, head=3, channel=4)
    packed = coded(**axes).reshape(2, 7, 36)[..., 12:24]
    got = _check(lab, packed, 3, axes, count=True)
    operators = lab.last.counts["operators"]
    expect.true(operators.get("as_strided") == 1,
                f"torch was asked for {', '.join(f'{n} {name}' for name, n in operators.items()) or 'nothing'}; "
                "the contract is one as_strided call")
    expect.view_of(lab, got, packed, (252, 4, 36, 1), "heads")


@exercise.right
def strides_of_the_input(packed, num_heads):
    b, s, w = packed.shape
    x, y, z = packed.stride()
    d = w // num_heads
    return packed.as_strided((b, num_heads, s, d), (x, d * z, y, z))


@exercise.right
def with_its_offset(packed, num_heads):
    d = packed.size(2) // num_heads
    strides = packed.stride(0), packed.stride(2) * d, packed.stride(1), packed.stride(2)
    return torch.as_strided(packed, (packed.size(0), num_heads, packed.size(1), d), strides, packed.storage_offset())


@exercise.right
def strides_asked_of_a_view(packed, num_heads):
    b, s, w = packed.shape
    x, y, z = packed.stride()
    plan = torch.empty_strided((b, s, w), (x, y, z), device="meta").unflatten(2, (num_heads, -1)).transpose(1, 2)
    return packed.as_strided(plan.shape, plan.stride())


@exercise.wrong
def row_major_assumed(packed, num_heads):
    """The input was the K slice of a fused tensor; its row stride is 3M."""
    b, s, w = packed.shape
    d = w // num_heads
    return packed.as_strided((b, num_heads, s, d), (s * w, d, w, 1))


@exercise.wrong(id="row-major-assumed")
def row_major_from_its_offset(packed, num_heads):
    b, s, w = packed.shape
    d = w // num_heads
    return packed.as_strided((b, num_heads, s, d), (s * w, d, w, 1), packed.storage_offset())


@exercise.wrong(id="row-major-assumed")
def row_major_from_zero(packed, num_heads):
    b, s, w = packed.shape
    d = w // num_heads
    return packed.as_strided((b, num_heads, s, d), (s * w, d, w, 1), 0)


@exercise.wrong
def offset_zero(packed, num_heads):
    """Starting at storage element 0 returns Q in place of K."""
    b, s, w = packed.shape
    x, y, z = packed.stride()
    d = w // num_heads
    return packed.as_strided((b, num_heads, s, d), (x, d * z, y, z), 0)


@exercise.wrong
def head_stride_is_h(packed, num_heads):
    """The step between heads is D channels."""
    b, s, w = packed.shape
    x, y, z = packed.stride()
    return packed.as_strided((b, num_heads, s, w // num_heads), (x, num_heads * z, y, z))


@exercise.wrong(id="head-stride-is-h")
def head_stride_is_bare_h(packed, num_heads):
    b, s, w = packed.shape
    x, y, z = packed.stride()
    return packed.as_strided((b, num_heads, s, w // num_heads), (x, num_heads, y, z))


@exercise.wrong(id="head-stride-is-h")
def head_stride_is_h_in_row_major_rows(packed, num_heads):
    b, s, w = packed.shape
    return packed.as_strided((b, num_heads, s, w // num_heads), (s * w, num_heads, w, 1))


@exercise.wrong
def relabelled_strides(packed, num_heads):
    """Row-major strides of [B,H,S,D] relabel bytes."""
    b, s, w = packed.shape
    d = w // num_heads
    return packed.as_strided((b, num_heads, s, d), (s * w, s * d, d, 1))


@exercise.wrong(id="relabelled-strides")
def relabelled_from_zero(packed, num_heads):
    b, s, w = packed.shape
    d = w // num_heads
    return packed.as_strided((b, num_heads, s, d), (s * w, s * d, d, 1), 0)


@exercise.wrong(id="relabelled-strides")
def relabelled_beside_the_batch(packed, num_heads):
    b, s, w = packed.shape
    d = w // num_heads
    return packed.as_strided((b, num_heads, s, d), (packed.stride(0), s * d, d, 1))


@exercise.wrong
def channel_stride_assumed(packed, num_heads):
    """Channels need not be neighbours in memory: a head is D steps of the channel stride away."""
    b, s, w = packed.shape
    d = w // num_heads
    return packed.as_strided((b, num_heads, s, d), (packed.stride(0), d, packed.stride(1), 1))


@exercise.wrong(id="channel-stride-assumed")
def head_step_in_elements(packed, num_heads):
    b, s, w = packed.shape
    x, y, z = packed.stride()
    d = w // num_heads
    return packed.as_strided((b, num_heads, s, d), (x, d, y, z))


@exercise.wrong
def view_and_transpose(packed, num_heads):
    """The heads are right, and `view` and `transpose` made them; here the layout is written down by hand."""
    return packed.unflatten(-1, (num_heads, -1)).transpose(1, 2)
