"""One new query against a cache that is filled up to a length, without repeating keys and values."""
import math

import torch
from torch.nn import functional as F

from ... import expect, standard
from ...coordinates import visible_sets
from ...exercise import CONTRACT, Exercise
from ...standard import normal

exercise = Exercise(
    "grouped_decode", step=3, points=3, minutes=9, difficulty=3, importance=5,
    summary="Attend with one new query of every head to the filled rows of a grouped cache, and leave K and V as small "
            "as they are stored.",
    hints=(
        "A cache is made for S_max tokens and holds `length` of them. Which rows exist, and what do you do with the "
        "others before the first product?",
        "Query heads 0 to R-1 read key/value head 0. Where do R query heads fit if T is 1 and k is [B,G,S,D]?",
        "q is [B,H,1,D] and becomes [B,G,R,D]: the group stands where the queries stood. Two products on the slices, "
        "and one reshape back.",
    ),
    hides="G=1 or R=1 hides a wrong group; a cache that is full hides every fault of the length; zeros in the rest, in "
          "place of NaN, hide a mask that multiplies.",
)

NAMES = ("batch", "head", "query", "channel")
B, H, G, D, S_MAX, LENGTH = 2, 12, 3, 8, 9, 6


def oracle(q, k_cache, v_cache, length):
    """Head by head on the filled rows."""
    group, heads = q.shape[1] // k_cache.shape[1], []
    for h in range(q.shape[1]):
        k, v = k_cache[:, h // group, :length], v_cache[:, h // group, :length]
        weights = torch.einsum("bd,bsd->bs", q[:, h, 0], k).div(math.sqrt(q.shape[-1])).exp()
        heads.append(torch.einsum("bs,bsd->bd", weights / weights.sum(-1, keepdim=True), v))
    return torch.stack(heads, dim=1)[:, :, None]


def make(batch=B, heads=H, groups=G, d=D, d_v=D, s_max=S_MAX, length=LENGTH, rest=math.nan, seed=0):
    """(q, k_cache, v_cache): rows past `length` hold `rest`."""
    q, k, v = (normal(batch, n, rows, width, seed=seed + i) for i, (n, rows, width) in enumerate(
        ((heads, 1, d), (groups, s_max, d), (groups, s_max, d_v))))
    k[:, :, length:], v[:, :, length:] = rest, rest
    return q, k, v


def _call(lab, given, length, **more):
    return lab.call("grouped_decode", *given, length=length, **more)


def _check(lab, length, **sizes):
    given = make(length=length, **sizes)
    expect.close(_call(lab, given, length), oracle(*given, length), "heads", NAMES)


@exercise.case("every head averages the filled rows of its own group: 4 of 6, the rest NaN")
def keys(lab):
    length, s_max = 4, 6
    q, k = torch.ones(1, H, 1, D, dtype=torch.float64), torch.zeros(1, G, s_max, D, dtype=torch.float64)
    v = 2.0 ** torch.arange(s_max, dtype=torch.float64).expand(1, G, s_max) + 1000 * torch.arange(G).reshape(1, G, 1)
    v = v[..., None].repeat(1, 1, 1, 2)
    v[..., 1] = torch.arange(G, dtype=torch.float64).reshape(1, G, 1)
    k[:, :, length:], v[:, :, length:] = math.nan, math.nan
    got = _call(lab, (q, k, v), length)
    expect.shape(got, (1, H, 1, 2), "heads")
    expect.dtype(got, torch.float64, "heads")
    for h in range(H):
        mean, group = got[0, h, 0].tolist()
        if mean != mean:
            raise expect.Mismatch(f"query head {h} is NaN: rows {length} to {s_max - 1} of the cache are not filled, "
                                  "and they were read")
        want = h // (H // G)
        if abs(group - want) > 1e-9:
            raise expect.Mismatch(f"query head {h} reads key/value head {group:.4g}, expected {want}")
        [seen] = visible_sets(torch.tensor(mean - 1000 * want), s_max)
        if seen != frozenset(range(length)):
            raise expect.Mismatch(f"query head {h} averages {_set(seen)}, expected {_set(range(length))}")


def _set(rows):
    return "no single set of rows" if rows is None else f"the rows {{{', '.join(map(str, sorted(rows)))}}}"


@exercise.case("G: B2 H12 G3 D8, 6 of 9 rows, the rest NaN")
def numbers(lab):
    _check(lab, LENGTH)


@exercise.case("value heads of another width, 7 of 11 rows, and in the rest what an earlier request left there")
def leftovers(lab):
    _check(lab, 7, d_v=5, s_max=11, rest=3.0, seed=10)


@exercise.case("other sizes: H4 G2, one row, and a full cache")
def ends(lab):
    _check(lab, 1, heads=4, groups=2, s_max=5, seed=20)
    _check(lab, 5, heads=4, groups=2, s_max=5, seed=30)


standard.tensor_cases(exercise, lambda: (list(make(seed=40)), {"length": LENGTH}), oracle, NAMES)


@exercise.case("K and V are not repeated: less new memory than B·H·length·D elements", CONTRACT)
def memory(lab):
    sizes, length = dict(batch=2, heads=12, groups=3, d=32, d_v=32, s_max=40), 24
    given = make(length=length, **sizes, seed=50)
    _call(lab, given, length, count=True, watch=("counts",))
    new = sum(lab.last.counts["new_storages"])
    compact = 2 * 8 * sizes["batch"] * sizes["groups"] * length * sizes["d"]
    bound = compact // 2 * (sizes["heads"] // sizes["groups"])
    expect.true(new < bound, f"{new:,} bytes of new memory were made, {new / compact:.2f} times the filled K and V "
                             f"({compact:,} bytes); K or V repeated for every query head alone is {bound:,}")


@exercise.case("refuses a length of 0, and one beyond the cache", CONTRACT)
def refuses(lab):
    for length in (0, S_MAX + 1):
        lab.raises(ValueError, "length", "grouped_decode", *make(), length=length)


def _filled(k_cache, v_cache, length):
    if not 1 <= length <= k_cache.shape[2]:
        raise ValueError(f"no cache has length {length}")
    return k_cache[:, :, :length], v_cache[:, :, :length]


def _grouped(q, k, v):
    scores = q.reshape(*k.shape[:2], -1, q.shape[-1]) @ k.mT / math.sqrt(q.shape[-1])
    return (scores.softmax(-1) @ v).reshape(*q.shape[:3], v.shape[-1])


@exercise.right
def sliced_and_folded(q, k_cache, v_cache, length):
    return _grouped(q, *_filled(k_cache, v_cache, length))


@exercise.right
def einsum(q, k_cache, v_cache, length):
    k, v = _filled(k_cache, v_cache, length)
    q = q.unflatten(1, (k.shape[1], -1))
    weights = (torch.einsum("bgrtd,bgsd->bgrts", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
    return torch.einsum("bgrts,bgsv->bgrtv", weights, v).flatten(1, 2)


@exercise.right
def sdpa_on_the_slice(q, k_cache, v_cache, length):
    k, v = _filled(k_cache, v_cache, length)
    folded = q.reshape(*k.shape[:2], -1, q.shape[-1])
    return F.scaled_dot_product_attention(folded, k, v).reshape(*q.shape[:3], v.shape[-1])


@exercise.right
def sdpa_grouped(q, k_cache, v_cache, length):
    return F.scaled_dot_product_attention(q, *_filled(k_cache, v_cache, length), enable_gqa=True)


@exercise.right
def group_by_group(q, k_cache, v_cache, length):
    k, v = _filled(k_cache, v_cache, length)
    per_group = zip(q.chunk(k.shape[1], 1), k.split(1, 1), v.split(1, 1), strict=True)
    return torch.cat([_grouped(*part) for part in per_group], dim=1)


@exercise.right
def narrowed_copies(q, k_cache, v_cache, length):
    """The filled rows, moved together once: that is as much as they are, not R times as much."""
    k, v = _filled(k_cache, v_cache, length)
    return _grouped(q, k.contiguous(), v.contiguous())


@exercise.wrong
def reads_unfilled_cache(q, k_cache, v_cache, length):
    """Rows past `length` are no keys: they hold nothing yet, and they were read."""
    _filled(k_cache, v_cache, length)
    return _grouped(q, k_cache, v_cache)


@exercise.wrong
def length_minus_one(q, k_cache, v_cache, length):
    """The newest key was left out: `length` counts it, and a slice up to `length - 1` ends before it."""
    k, v = _filled(k_cache, v_cache, length)
    return _grouped(q, k[:, :, :length - 1], v[:, :, :length - 1])


@exercise.wrong
def masked_not_skipped(q, k_cache, v_cache, length):
    """The unfilled rows were masked and still multiplied: a weight of 0 times NaN is NaN. Skip the rows."""
    _filled(k_cache, v_cache, length)
    k, v = k_cache, v_cache
    scores = q.reshape(*k.shape[:2], -1, q.shape[-1]) @ k.mT / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.arange(k.shape[2]) >= length, -torch.inf)
    return (scores.softmax(-1) @ v).reshape(*q.shape[:3], v.shape[-1])


@exercise.wrong(id="masked-not-skipped")
def added_mask(q, k_cache, v_cache, length):
    _filled(k_cache, v_cache, length)
    bias = q.new_zeros(k_cache.shape[2])
    bias[length:] = -torch.inf
    folded = q.reshape(*k_cache.shape[:2], -1, q.shape[-1])
    scores = folded @ k_cache.mT / math.sqrt(q.shape[-1]) + bias
    return (scores.softmax(-1) @ v_cache).reshape(*q.shape[:3], v_cache.shape[-1])


@exercise.wrong(id="masked-not-skipped")
def masked_in_sdpa(q, k_cache, v_cache, length):
    _filled(k_cache, v_cache, length)
    mask = (torch.arange(k_cache.shape[2]) < length).expand(1, 1, 1, -1)
    folded = q.reshape(*k_cache.shape[:2], -1, q.shape[-1])
    return F.scaled_dot_product_attention(folded, k_cache, v_cache, attn_mask=mask).reshape(
        *q.shape[:3], v_cache.shape[-1])


@exercise.wrong
def memory_repeated(q, k_cache, v_cache, length):
    """`repeat_interleave` (or a product over an expanded axis) built K and V for every query head: the cache is compact
    in storage and as wide as the queries in the call."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in _filled(k_cache, v_cache, length))
    return _plain(q, k, v)


@exercise.wrong(id="memory-repeated")
def expanded(q, k_cache, v_cache, length):
    k, v = (t[:, :, None].expand(-1, -1, q.shape[1] // t.shape[1], -1, -1).reshape(
        t.shape[0], q.shape[1], *t.shape[2:]) for t in _filled(k_cache, v_cache, length))
    return _plain(q, k, v)


@exercise.wrong(id="memory-repeated")
def product_over_an_inserted_axis(q, k_cache, v_cache, length):
    k, v = _filled(k_cache, v_cache, length)
    return _plain(q.unflatten(1, (k.shape[1], -1)), k[:, :, None], v[:, :, None]).flatten(1, 2)


@exercise.recognise("memory-repeated")
def too_much_memory(trials):
    return any(t.case.title.startswith("K and V are not repeated") and "times the filled K and V" in t.message
               for t in trials)


def _plain(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


@exercise.timed(2.0, {"q": (1, 32, 1, 64), "k_cache": (1, 8, 2112, 64), "v_cache": (1, 8, 2112, 64)},
                fixed={"length": 2048}, calls=2)
def grouped_decode(q, k_cache, v_cache, length):
    """Two products on the filled rows, the group in the place of the queries."""
    k, v = k_cache[:, :, :length], v_cache[:, :, :length]
    grouped = q.reshape(*k.shape[:2], -1, q.shape[-1])
    scores = grouped @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (scores.softmax(-1) @ v).reshape(*q.shape[:3], v.shape[-1])
