"""A mask without a head axis, given one."""
import torch

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "insert_head_axis", step=4, points=2, minutes=4, difficulty=1, importance=4,
    summary="Let one mask serve every head: [B,T,T] becomes [B,1,T,T], and [B,1,S] becomes [B,1,1,S].",
    hints=(
        "Scores are [B,H,T,S]. Write the mask's axes below them: where is the gap?",
        "Broadcasting lines axes up from the right. An axis of size 1 is repeated; a missing one is added in front, "
        "and in front stands the batch.",
        "No value changes and no memory is needed; True means what it meant before. Look for the operation that "
        "adds an axis of size 1 at a place of your choice.",
    ),
    hides="B = H hides an axis in front: [1,B,T,T] broadcasts over [B,H,T,S] without an error. A square mask hides "
          "nothing here, an all-True mask hides polarity in nothing but its values.",
)

NAMES = ("batch", "head", "query", "key")


def oracle(mask):
    """out[b,0,t,s] = mask[b,t,s]"""
    return torch.stack([torch.stack([sample]) for sample in mask.unbind(0)])


def _random(*shape, seed):
    return standard.normal(*shape, seed=seed) > 0


def _boolean(lab, mask):
    got = lab.call("insert_head_axis", mask)
    want = oracle(mask)
    expect.shape(got, want.shape, "the mask", "[B,1,T,S]")
    expect.dtype(got, mask.dtype, "the mask")
    wrong = (got != want).nonzero()
    if len(wrong):
        b, _, t, s = at = wrong[0].tolist()
        expect.true(False, f"mask{at} says {got[tuple(at)].item()}: in sample {b} query {t} "
                           f"{'sees' if got[tuple(at)] else 'does not see'} key {s}, in the input it "
                           f"{'does' if want[tuple(at)] else 'does not'}; {len(wrong)} of {want.numel()} differ")


@exercise.case("one mask a query: [2,5,5] becomes [2,1,5,5]")
def per_query(lab):
    _boolean(lab, _random(2, 5, 5, seed=3))


@exercise.case("a padding mask: [2,1,7] becomes [2,1,1,7]")
def padding(lab):
    _boolean(lab, _random(2, 1, 7, seed=4))


@exercise.case("B=H=3, T=6: [3,6,6] becomes [3,1,6,6]")
def trap(lab):
    _boolean(lab, _random(3, 6, 6, seed=5))


@exercise.case("other sizes: [4,3,3] and [4,1,6]")
def other_sizes(lab):
    _boolean(lab, _random(4, 3, 3, seed=6))
    _boolean(lab, _random(4, 1, 6, seed=7))


@exercise.case("a float mask keeps its dtype, and every cell its place", CONTRACT)
def coded_mask(lab):
    axes = dict(batch=2, query=5, key=5)
    mask = coded(**axes)
    expect.layout(lab.call("insert_head_axis", mask), oracle(mask), axes, "mask", NAMES)


standard.tensor_cases(exercise, lambda: ([standard.normal(2, 5, 5, seed=8)], {}), oracle, NAMES, CONTRACT)


@exercise.case("the result is a view: no new memory", CONTRACT)
def view(lab):
    for mask in (_random(2, 5, 5, seed=9), _random(2, 1, 7, seed=10)):
        got = lab.call("insert_head_axis", mask, watch=("storage",))
        expect.dtype(expect.tensor(got), mask.dtype, "the mask")
        expect.shape(got, oracle(mask).shape, "the mask", "[B,1,T,S]")
        batch, query, key = mask.stride()
        expect.view_of(lab, got, mask, (batch, 0, query, key), "the mask")


@exercise.case("refuses a mask without exactly three axes", CONTRACT)
def refuses_axes(lab):
    lab.raises(ValueError, "three axes", "insert_head_axis", torch.ones(2, 7, dtype=torch.bool))
    lab.raises(ValueError, "three axes", "insert_head_axis", torch.ones(2, 1, 5, 5, dtype=torch.bool))


def _three(mask):
    if mask.dim() != 3:
        raise ValueError(f"the mask needs three axes [B,T,S], not {mask.dim()}")
    return mask


@exercise.right
def unsqueeze(mask):
    return _three(mask).unsqueeze(1)


@exercise.right
def indexed(mask):
    return _three(mask)[:, None]


@exercise.right
def indexed_by_ellipsis(mask):
    return _three(mask)[..., None, :, :]


@exercise.right
def viewed(mask):
    b, t, s = _three(mask).shape
    return mask.view(b, 1, t, s)


@exercise.right
def unflattened(mask):
    return _three(mask).unflatten(0, (-1, 1))


@exercise.right
def as_strided(mask):
    b, t, s = _three(mask).shape
    batch, query, key = mask.stride()
    return mask.as_strided((b, 1, t, s), (batch, batch, query, key))


@exercise.right
def einops(mask):
    import einops
    return einops.rearrange(_three(mask), "b t s -> b 1 t s")


@exercise.right
def expanded_and_turned(mask):
    return _three(mask).expand(1, -1, -1, -1).transpose(0, 1)


@exercise.wrong
def axis_in_front(mask):
    """[1,B,T,T] puts the batch on the head axis."""
    return _three(mask)[None]


@exercise.wrong
def axis_after_queries(mask):
    """The new axis split the query and key axes."""
    return _three(mask).unsqueeze(2)


@exercise.wrong(id="axis-after-queries")
def axis_after_keys(mask):
    return _three(mask).unsqueeze(-1)


@exercise.wrong
def polarity_flipped(mask):
    """Inserting an axis must not change what True means."""
    return ~_three(mask)[:, None]


@exercise.wrong(id="polarity-flipped")
def polarity_by_logical_not(mask):
    return _three(mask)[:, None].logical_not()


@exercise.wrong
def copies(mask):
    """A view is enough; broadcasting serves every head."""
    return _three(mask)[:, None].clone()
