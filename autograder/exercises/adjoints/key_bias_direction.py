"""The direction of the key bias along which nothing changes."""
import math

import torch
from einops import einsum, rearrange
from torch.nn import functional as F

from ... import expect, standard
from ...exercise import Exercise
from ...standard import normal

exercise = Exercise(
    "key_bias_direction", step=8, points=2, minutes=4, difficulty=3, importance=3,
    summary="The constant that the key bias adds to each row of scaled scores, one for each head and query.",
    hints=(
        "Write one score with the bias in it: q·(k + b)/√D. Which part of it does not contain k?",
        "The bias is packed like a row of K: which of its H·D entries belong to head h?",
        "There is one number for each head and query. Keep a last axis of extent 1, so that it broadcasts along the "
        "keys of a row of scores.",
    ),
    hides="One head hides an unsliced bias and a sum over heads; a zero bias, which is how many layers start, hides "
          "everything.",
)
NAMES = ("batch", "head", "query", "one")


def oracle(q_heads, key_bias):
    """Scores with the bias less scores without it, for one arbitrary key; in the dtype of the queries."""
    _, heads, _, width = q_heads.shape
    q, bias = q_heads.double(), key_bias.double()
    key = normal(1, heads, 1, width, seed=9)
    with_bias = key + bias.reshape(1, heads, 1, width)
    score = [(q * k).sum(-1, keepdim=True) / math.sqrt(width) for k in (key, with_bias)]
    return (score[1] - score[0]).to(q_heads.dtype)


def _evidence(got, q, bias):
    """Mismatch with a sentence about what the shift holds; silent where it says nothing."""
    batch, heads, queries, width = q.shape
    if isinstance(got, torch.Tensor) and got.shape == (batch, heads, queries, 1):
        want = oracle(q, bias)
        ratio = (got / want).double()
        if torch.allclose(ratio, ratio.flatten()[0].expand_as(ratio)) and abs(ratio.flatten()[0] - 1) > 1e-6:
            expect.true(False, f"every shift is {ratio.flatten()[0].item():.4g} times the one of the scaled scores "
                               f"(√D is {math.sqrt(width):.4g})")
        for head in range(1, heads):
            used = [h for h in range(heads) if torch.allclose(
                got[:, head, :, 0].double(), (q[:, head] @ bias.reshape(heads, width)[h] / math.sqrt(width)).double())]
            if used and used != [head]:
                first, own = used[0] * width, head * width
                expect.true(False, f"head {head} met the entries {first} to {first + width - 1} of the key bias; its "
                                   f"own are {own} to {own + width - 1}")


def _case(lab, batch, heads, queries, width, seed):
    q, bias = normal(batch, heads, queries, width, seed=seed), normal(heads * width, seed=seed + 1)
    got = lab.call("key_bias_direction", q, bias)
    expect.shape(got, (batch, heads, queries, 1), "the shift", "[B,H,Q,1]")
    expect.dtype(got, q.dtype, "the shift")
    _evidence(got, q, bias)
    expect.close(got, oracle(q, bias), "the shift", NAMES)


@exercise.case("one shift for each head and query: B2 H3 Q4 D6")
def fixture(lab):
    _case(lab, 2, 3, 4, 6, seed=1)


@exercise.case("B=H=3, Q=6, D=4: sizes where confused axes fit")
def trap(lab):
    _case(lab, 3, 3, 6, 4, seed=3)


@exercise.case("softmax does not see it: scores with the bias and scores plus your shift give one distribution")
def equal_softmax(lab):
    q, k, bias = normal(2, 3, 4, 6, seed=5), normal(2, 3, 5, 6, seed=6), normal(18, seed=7)
    shift = lab.call("key_bias_direction", q, bias)
    expect.shape(shift, (2, 3, 4, 1), "the shift", "[B,H,Q,1]")
    expect.dtype(shift, q.dtype, "the shift")
    scores = q @ k.mT / math.sqrt(6)
    biased = q @ (k + bias.reshape(1, 3, 1, 6)).mT / math.sqrt(6)
    expect.close(scores + shift, biased, "scores plus your shift", ("batch", "head", "query", "key"))
    expect.close(biased.softmax(-1), scores.softmax(-1), "softmax")


standard.tensor_cases(exercise, lambda: ([normal(2, 3, 4, 6, seed=1), normal(18, seed=2)], {}),
                      lambda q, b: _differentiable(q, b), NAMES)


def _differentiable(q, bias):
    per_head = rearrange(bias, "(h d) -> h d", h=q.shape[1])
    return einsum(q, per_head, "b h q d, h d -> b h q").unsqueeze(-1) / q.shape[-1]**0.5


@exercise.right
def einsum_of_heads(q_heads, key_bias):
    b = key_bias.view(q_heads.shape[1], -1)
    return torch.einsum("bhqd,hd->bhq", q_heads, b)[..., None] / math.sqrt(q_heads.shape[-1])


@exercise.right
def dot_product_of_each_head(q_heads, key_bias):
    d = q_heads.shape[-1]
    rows = [q_heads[:, h] @ key_bias[h * d:(h + 1) * d] for h in range(q_heads.shape[1])]
    return torch.stack(rows, dim=1).unsqueeze(-1) * d ** -0.5


@exercise.right
def one_more_key(q_heads, key_bias):
    _, h, _, d = q_heads.shape
    return q_heads @ key_bias.reshape(h, d, 1) / d ** 0.5


@exercise.right
def product_and_sum(q_heads, key_bias):
    _, h, _, d = q_heads.shape
    return (q_heads * key_bias.unflatten(0, (h, d))[None, :, None]).sum(-1, keepdim=True).div(math.sqrt(d))


@exercise.right
def einops(q_heads, key_bias):
    return _differentiable(q_heads, key_bias)


@exercise.right
def one_head_under_vmap(q_heads, key_bias):
    _, h, _, d = q_heads.shape
    dots = torch.vmap(lambda q, b: F.linear(q, b[None]), in_dims=(1, 0), out_dims=1)(q_heads, key_bias.view(h, d))
    return dots / math.sqrt(d)


@exercise.right
def scaled_before_the_product(q_heads, key_bias):
    _, h, _, d = q_heads.shape
    return torch.matmul(q_heads / math.sqrt(d), key_bias.view(1, h, d, 1))


@exercise.wrong
def per_key_shift(q_heads, key_bias):
    """The shift does not depend on the key; that is why it cancels."""
    _, h, _, d = q_heads.shape
    return q_heads * key_bias.view(1, h, 1, d) / math.sqrt(d)


@exercise.wrong(id="per-key-shift")
def as_wide_as_the_scores(q_heads, key_bias):
    return one_more_key(q_heads, key_bias).expand(-1, -1, -1, q_heads.shape[2])


@exercise.wrong(id="per-key-shift")
def along_the_keys(q_heads, key_bias):
    return one_more_key(q_heads, key_bias).mT


@exercise.wrong
def unsliced_bias(q_heads, key_bias):
    """Head h uses its D entries only."""
    return q_heads @ key_bias[:, None] / math.sqrt(q_heads.shape[-1])


@exercise.wrong(id="unsliced-bias")
def first_entries_for_all(q_heads, key_bias):
    d = q_heads.shape[-1]
    return (q_heads @ key_bias[:d])[..., None] / math.sqrt(d)


@exercise.wrong(id="unsliced-bias")
def last_entries_for_all(q_heads, key_bias):
    d = q_heads.shape[-1]
    return (q_heads @ key_bias[-d:])[..., None] / math.sqrt(d)


@exercise.wrong(id="unsliced-bias")
def every_slice_for_all(q_heads, key_bias):
    _, h, _, d = q_heads.shape
    return (q_heads @ key_bias.view(h, d).sum(0))[..., None] / math.sqrt(d)


@exercise.wrong
def summed_over_heads(q_heads, key_bias):
    """Each head has its own shift."""
    return one_more_key(q_heads, key_bias).sum(1, keepdim=True)


@exercise.wrong(id="summed-over-heads")
def one_dot_of_packed_rows(q_heads, key_bias):
    return (q_heads.transpose(1, 2).flatten(2) @ key_bias)[..., None] / math.sqrt(q_heads.shape[-1])


@exercise.wrong(id="summed-over-heads")
def the_sum_for_every_head(q_heads, key_bias):
    return one_more_key(q_heads, key_bias).sum(1, keepdim=True).expand(-1, q_heads.shape[1], -1, -1)


@exercise.wrong(id="summed-over-heads")
def summed_without_the_axis(q_heads, key_bias):
    return one_more_key(q_heads, key_bias).sum(1)


def _first_shape(trials):
    value = trials[0].transcript[-1].value if trials[0].transcript else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


@exercise.recognise("per-key-shift")
def more_than_one_number_a_row(trials):
    shape = _first_shape(trials)
    return shape is not None and shape[:2] == (2, 3) and len(shape) == 4 and shape != (2, 3, 4, 1)


@exercise.recognise("unsliced-bias")
def the_whole_bias_met_one_head(trials):
    first = trials[0]
    raised = bool(first.transcript) and first.transcript[0].error == "RuntimeError"
    return raised and "6" in first.message and "18" in first.message


@exercise.recognise("summed-over-heads")
def no_head_axis(trials):
    return _first_shape(trials) in {(2, 1, 4, 1), (2, 4, 1), (2, 4), (2, 1, 4), (4, 1)}
