"""H query heads over G key/value heads, without a repeated key or value."""
import torch

from ... import expect, standard
from ...coordinates import head_map, visible_sets
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch, Observation
from ._attend import attend, heads_read, scattered
from ._grouped_programs import RIGHTS, WRONGS

NAME = "grouped_attention"
exercise = Exercise(
    NAME, step=3, points=5, minutes=11, difficulty=4, importance=5,
    summary="Attention of H query heads over G key/value heads that never repeats a key or a value.",
    hints=(
        "Four query heads read one key/value head. For that key/value head, is there a difference between four heads "
        "with T queries each and one head with 4·T queries?",
        "Give the query heads two axes, group and member. Which axes have to meet in the product with the keys, and "
        "can the member axis ride along with the queries?",
        "What has been regrouped for the product has its own scores for every query head. A mask may differ from query "
        "head to query head too: bring scores and mask into one order before you apply it.",
    ),
    hides="G = 1 and R = 1 hide tiled groups; a mask that all heads share hides a mask that was not regrouped; values "
          "alone hide every copy.",
)
NAMES = ("batch", "head", "query", "channel")
SIZES, OTHER = (2, 12, 3, 5, 7, 8, 8), (3, 8, 2, 4, 6, 3, 5)  # batch, H, G, T, S, D, D_v


def _inputs(sizes, seed=1):
    batch, heads, groups, queries, keys, width, wide = sizes
    return (standard.normal(batch, heads, queries, width, seed=seed),
            standard.normal(batch, groups, keys, width, seed=seed + 1),
            standard.normal(batch, groups, keys, wide, seed=seed + 2))


def oracle(q, k, v, visible=None):
    return attend(q, k, v, visible)[0]


def _close(lab, *args, **kwargs):
    expect.close(lab.call(NAME, *args, **kwargs), oracle(*args, **kwargs), "heads", NAMES)


def _map(lab, sizes):
    """Values that name their key/value head."""
    batch, heads, groups, queries, keys, width, wide = sizes
    q, k, _ = _inputs(sizes)
    markers = 10.0 ** torch.arange(groups, dtype=torch.float64)
    v = markers[None, :, None, None].expand(batch, groups, keys, wide).contiguous()
    got, want = lab.call(NAME, q, k, v), oracle(q, k, v)
    expect.shape(got, want.shape, "heads", "[B,H,T,D_v]")
    expect.dtype(got, want.dtype, "heads")
    found, size = head_map(got[0, :, 0, 0], markers), heads // groups
    wrong = [h for h in range(heads) if found[h] != h // size]
    if wrong:
        head = wrong[0]
        reads = "no single key/value head" if found[head] is None else f"key/value head {found[head]}"
        raise Mismatch(f"the values of query head {head} come from {reads}, expected {head // size}; by query head: "
                       f"{heads_read(found)}")
    expect.close(got, want, "heads", NAMES)


@exercise.case("values that name their head: which key/value head does each query head read? G: B2 H12 G3")
def which(lab):
    _map(lab, SIZES)


@exercise.case("real numbers, G: B2 H12 G3 T5 S7 D8")
def numbers(lab):
    _close(lab, *_inputs(SIZES))


@exercise.case("other sizes, values wider than keys: B3 H8 G2 T4 S6 D3 D_v5")
def other(lab):
    _close(lab, *_inputs(OTHER, seed=11))


def _averages(lab, visible, sizes=SIZES):
    """Equal scores and V[key] = 2^key: which keys does each query average?"""
    batch, heads, groups, queries, keys, width, wide = sizes
    q = torch.zeros(batch, heads, queries, width, dtype=torch.float64)
    _, k, _ = _inputs(sizes)
    v = (2.0 ** torch.arange(keys, dtype=torch.float64))[None, None, :, None].expand(batch, groups, keys, wide).clone()
    got, want = lab.call(NAME, q, k, v, visible), oracle(q, k, v, visible)
    expect.shape(got, want.shape, "heads", "[B,H,T,D_v]")
    expect.dtype(got, want.dtype, "heads")
    ours, theirs = (visible_sets(t[..., 0], keys) for t in (got, want))
    for at, (mine, due) in enumerate(zip(ours, theirs, strict=True)):
        if mine != due and due is not None:
            rest, query = divmod(at, queries)
            sample, head = divmod(rest, heads)
            averaged = "no plain average of keys" if mine is None else f"the average of keys {_set(mine)}"
            raise Mismatch(f"sample {sample}, query head {head}, query {query} shows {averaged}, expected that of "
                           f"{_set(due)}")
    expect.close(got, want, "heads", NAMES)


def _set(keys):
    return "{" + ",".join(map(str, sorted(keys))) + "}"


def _shifted(heads, queries, keys):
    """[1,H,T,S]: query head h sees key t + h (modulo S) and the one after it."""
    first = (torch.arange(heads)[:, None, None] + torch.arange(queries)[:, None]) % keys
    return ((torch.arange(keys) - first) % keys < 2)[None]


@exercise.case("a mask for every query head [1,H,T,S]")
def each_head(lab):
    _averages(lab, _shifted(12, 5, 7))


@exercise.case("a mask for every sample and query head [B,H,T,S]")
def everything(lab):
    _close(lab, *_inputs(SIZES, seed=21), scattered(2, 12, 5, 7))


@exercise.case("a padding mask [B,1,1,S]")
def padding(lab):
    _averages(lab, (torch.arange(7) < torch.tensor([[6], [4]]))[:, None, None])


@exercise.case("a mask for every query [1,1,T,S]")
def rectangle(lab):
    _averages(lab, torch.ones(5, 7, dtype=torch.bool).tril(2)[None, None])


standard.tensor_cases(exercise, lambda: (_inputs(SIZES, seed=31), {"visible": scattered(2, 12, 5, 7, seed=34)}),
                      oracle, NAMES)


@exercise.case("one key/value head for all, and one for each", CONTRACT)
def ends(lab):
    _close(lab, *_inputs((2, 6, 1, 4, 5, 3, 3), seed=41))
    _close(lab, *_inputs((2, 6, 6, 4, 5, 3, 3), seed=44))


def _copies(lab, visible):
    """No new storage of B·H·S·D elements or more, at B2 H12 G3 T2 S40 D16."""
    q, k, v = _inputs((2, 12, 3, 2, 40, 16, 16), seed=51)
    got = lab.call(NAME, q, k, v, visible, count=True)
    counts, full = lab.last.counts, 2 * 12 * 40 * 16
    large = [(size // 8, shape) for size, shape in zip(counts["new_storages"], counts["new_shapes"], strict=True)
             if size // 8 >= full]
    inside = [s for _, s in large if list(s[-2:]) == [16, 40]]
    lab.transcript.append(Observation("copies", value="none" if not large else "inside" if inside else "before"))
    expect.close(got, oracle(q, k, v, visible), "heads", NAMES)
    if large:
        where = (f"a transposed key of shape {inside[0]} among them: the product itself copied it" if inside
                 else f"the first one appears as {large[0][1]}")
        raise Mismatch(f"{len(large)} new tensors hold {large[0][0]:,} elements ({large[0][0] * 8:,} bytes) or more, "
                       f"as many as keys for all 12 query heads, B·H·S·D = {full:,}; compact keys have {full // 4:,}; "
                       f"{where}")


@exercise.case("allocates no tensor of B·H·S·D elements: B2 H12 G3 T2 S40 D16", CONTRACT)
def compact(lab):
    _copies(lab, None)


@exercise.case("nor under a mask", CONTRACT)
def compact_masked(lab):
    _copies(lab, scattered(2, 1, 1, 40, seed=60))


@exercise.case("refuses 12 query heads over 5 key/value heads", CONTRACT)
def uneven(lab):
    lab.raises(ValueError, "divisible", NAME, torch.ones(2, 12, 5, 8), torch.ones(2, 5, 7, 8), torch.ones(2, 5, 7, 8))


@exercise.case("refuses a query without a visible key, in one query head", CONTRACT)
def dead(lab):
    visible = scattered(2, 12, 5, 7)
    visible[1, 7, 3] = False
    lab.raises(ValueError, "no visible key", NAME, *(x.float() for x in _inputs(SIZES)), visible)


for _program in RIGHTS:
    exercise.right(_program)
for _id, _program in WRONGS:
    exercise.wrong(_program, id=_id)


@exercise.recognise("mask-not-regrouped")
def only_the_per_head_masks_fail(trials):
    """Right without a mask and under masks that all heads share; an error where query heads differ."""
    by = {t.case.probe: t for t in trials}
    shared = all(by[p].passed for p in (which, numbers, other, padding, rectangle))
    return shared and not by[each_head].passed and not by[everything].passed and all(
        t.transcript and (t.transcript[-1].error or "").startswith("RuntimeError")
        for t in (by[each_head], by[everything]))
