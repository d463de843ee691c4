"""The query map and the key up-projection of every head, folded into one map."""
import torch
from einops import einsum, rearrange

from ... import expect, standard
from ...exercise import Exercise
from ._absorb import coded_keys, compare, factor_note

NAME = "absorb_keys"
exercise = Exercise(
    NAME, step=9, points=3, minutes=5, difficulty=4, importance=4,
    summary="Fold W_UK into W_Q, head by head: queries that can be compared with latent rows.",
    hints=(
        "Write one head's score with both maps spelled out: (W_Q x) · (W_UK c). It is one number: which matrix stands "
        "between c and x?",
        "The inner product of the two maps runs over the head's own D rows, and over no other head's.",
        "The result is [H,C,M]: latent channel first, model channel last. Nothing is divided here: the scores are "
        "scaled "
        "where they are used.",
    ),
    hides="H = 1 hides one map for all heads; C = M hides a transposed map; equal heads hide whose block was taken.",
)
NAMES = ("head", "latent channel", "model channel")


def oracle(w_q, w_uk, num_heads):
    """Entry by entry: what latent channel c and model channel m give as a score."""
    width = w_q.shape[0] // num_heads
    heads = []
    for head in range(num_heads):
        rows = range(head * width, (head + 1) * width)
        heads.append(sum(torch.outer(w_uk[row], w_q[row]) for row in rows))
    return torch.stack(heads)


def _inputs(heads, width, latent, model, seed=1):
    return standard.normal(heads * width, model, seed=seed), standard.normal(heads * width, latent, seed=seed + 1)


@exercise.case("coded rows show whose block was taken: H3 D4 C5 M10")
def blocks(lab):
    w_q, w_uk = coded_keys(3, 4, 5, 10)
    got, want = lab.call(NAME, w_q, w_uk, 3), oracle(w_q, w_uk, 3)
    expect.shape(got, want.shape, "absorbed", "[H,C,M]")
    expect.dtype(got, want.dtype, "absorbed")
    factor_note(got, want)
    wrong = (~((got - want).abs() <= 1e-9)).nonzero()
    if len(wrong):
        h, c, m = wrong[0].tolist()
        value, due = got[h, c, m].item(), want[h, c, m].item()
        raise expect.Mismatch(f"absorbed[{h},{c},{m}] is {value:g}{_origin(value, w_q)}, expected {due:g}"
                              f"{_origin(due, w_q)}: latent channel {c} of head {h} meets row {4 * h + c} of W_Q, and "
                              f"head {h} owns rows {4 * h} to {4 * h + 3}")


def _origin(value, w_q):
    found = (w_q == value).nonzero().tolist()
    return f", which is W_Q[{found[0][0]},{found[0][1]}]" if len(found) == 1 else ""


@exercise.case("real numbers, latent narrower than a head: H3 D6 C4 M10")
def narrow(lab):
    compare(lab, NAME, oracle, NAMES, *_inputs(3, 6, 4, 10), 3)


@exercise.case("real numbers, other heads: H5 D2 C7 M6")
def other(lab):
    compare(lab, NAME, oracle, NAMES, *_inputs(5, 2, 7, 6, seed=3), 5)


standard.tensor_cases(exercise, lambda: (_inputs(3, 4, 5, 10, seed=5), {"num_heads": 3}), oracle, NAMES)


@exercise.case("scores from latent rows equal the scores of explicit keys")
def scores(lab):
    w_q, w_uk = _inputs(3, 4, 5, 10, seed=7)
    x, latent = standard.normal(6, 10, seed=9), standard.normal(7, 5, seed=10)
    got = lab.call(NAME, w_q, w_uk, 3)
    expect.shape(got, (3, 5, 10), "absorbed", "[H,C,M]")
    expect.dtype(got, torch.float64, "absorbed")
    mine = torch.einsum("sc,hcm,tm->hts", latent, got.double(), x)
    q, k = ((rows @ w.T).unflatten(-1, (3, 4)) for rows, w in ((x, w_q), (latent, w_uk)))
    expect.close(mine, torch.einsum("thd,shd->hts", q, k), "the scores that your maps give", ("head", "query", "key"))


def _heads(w_q, w_uk, num_heads):
    return w_q.unflatten(0, (num_heads, -1)), w_uk.unflatten(0, (num_heads, -1))


@exercise.right
def by_einsum(w_q, w_uk, num_heads):
    q, k = _heads(w_q, w_uk, num_heads)
    return torch.einsum("hdm,hdc->hcm", q, k)


@exercise.right
def batched_product(w_q, w_uk, num_heads):
    q, k = _heads(w_q, w_uk, num_heads)
    return k.mT @ q


@exercise.right
def loop_over_heads(w_q, w_uk, num_heads):
    d = len(w_q) // num_heads
    return torch.stack([w_uk[h * d:(h + 1) * d].T @ w_q[h * d:(h + 1) * d] for h in range(num_heads)])


@exercise.right
def chunks(w_q, w_uk, num_heads):
    return torch.stack([(q.T @ k).T for q, k in zip(w_q.chunk(num_heads), w_uk.chunk(num_heads), strict=True)])


@exercise.right
def by_einops(w_q, w_uk, num_heads):
    q, k = (rearrange(w, "(h d) n -> h d n", h=num_heads) for w in (w_q, w_uk))
    return einsum(k, q, "h d c, h d m -> h c m")


@exercise.right
def by_bmm(w_q, w_uk, num_heads):
    q, k = (w.view(num_heads, -1, w.shape[1]) for w in (w_q, w_uk))
    return torch.bmm(k.transpose(1, 2), q)


@exercise.right
def one_head_under_vmap(w_q, w_uk, num_heads):
    return torch.vmap(lambda q, k: k.T @ q)(*_heads(w_q, w_uk, num_heads))


@exercise.right
def in_float64(w_q, w_uk, num_heads):
    q, k = _heads(w_q.double(), w_uk.double(), num_heads)
    return (k.mT @ q).to(w_q.dtype)


@exercise.wrong
def one_map_for_all_heads(w_q, w_uk, num_heads):
    """Each head absorbs its own block: rows h·D to h·D+D-1 of both maps."""
    return (w_uk.T @ w_q).expand(num_heads, -1, -1)


@exercise.wrong(id="one-map-for-all-heads")
def without_a_head_axis(w_q, w_uk, num_heads):
    return w_uk.T @ w_q


@exercise.wrong(id="one-map-for-all-heads")
def first_block_for_all(w_q, w_uk, num_heads):
    q, k = _heads(w_q, w_uk, num_heads)
    return (k[0].T @ q[0]).expand(num_heads, -1, -1)


@exercise.wrong(id="one-map-for-all-heads")
def first_key_block_for_all(w_q, w_uk, num_heads):
    q, k = _heads(w_q, w_uk, num_heads)
    return k[0].T @ q


@exercise.wrong(id="one-map-for-all-heads")
def last_block_for_all(w_q, w_uk, num_heads):
    q, k = _heads(w_q, w_uk, num_heads)
    return torch.stack([k[-1].T @ q[-1]] * num_heads)


@exercise.wrong
def scaled_by_latent(w_q, w_uk, num_heads):
    """The scale stays √D_qk: absorbing changes where the product is computed, not the score. No division by √C, and
    none here at all."""
    return by_einsum(w_q, w_uk, num_heads) / w_uk.shape[1]**0.5


@exercise.wrong(id="scaled-by-latent")
def rescaled_from_head_to_latent(w_q, w_uk, num_heads):
    return by_einsum(w_q, w_uk, num_heads) * (len(w_q) / num_heads / w_uk.shape[1])**0.5


@exercise.wrong(id="scaled-by-latent")
def rescaled_from_latent_to_head(w_q, w_uk, num_heads):
    return by_einsum(w_q, w_uk, num_heads) / (len(w_q) / num_heads / w_uk.shape[1])**0.5


@exercise.wrong(id="scaled-by-latent")
def multiplied_by_its_root(w_q, w_uk, num_heads):
    return by_einsum(w_q, w_uk, num_heads) * w_uk.shape[1]**0.5


@exercise.wrong
def scale_absorbed_too(w_q, w_uk, num_heads):
    """1/√D went into the map; whoever divides the scores again, as attention does, divides by D."""
    return by_einsum(w_q, w_uk, num_heads) / (len(w_q) / num_heads)**0.5


@exercise.wrong
def axes_swapped(w_q, w_uk, num_heads):
    """[H,M,C] in place of [H,C,M]: the map turns model rows into latent ones, so a stored map has latent channels
    first."""
    return by_einsum(w_q, w_uk, num_heads).mT


@exercise.wrong(id="axes-swapped")
def pressed_into_shape(w_q, w_uk, num_heads):
    return by_einsum(w_q, w_uk, num_heads).mT.reshape(num_heads, w_uk.shape[1], -1)


@exercise.wrong
def rows_interleaved(w_q, w_uk, num_heads):
    """Row r was given to head r mod H; heads are packed one behind the other, head-major."""
    return torch.einsum("dhm,dhc->hcm", w_q.unflatten(0, (-1, num_heads)), w_uk.unflatten(0, (-1, num_heads)))


@exercise.wrong(id="rows-interleaved")
def only_in_the_keys(w_q, w_uk, num_heads):
    return torch.einsum("hdm,dhc->hcm", w_q.unflatten(0, (num_heads, -1)), w_uk.unflatten(0, (-1, num_heads)))
