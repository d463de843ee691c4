"""gqa_decode_triton: one new token against a cache, the keys split over programs and merged by log-sum-exp."""
from __future__ import annotations

import torch

from ... import expect
from ...exercise import CONTRACT
from ...standard import normal
from ...triton_lab import TritonExercise, Workload, all_read, guarded, run, sound, traffic
from ._attention import BLOCKS, agrees, attend, simulate
from ._decode_programs import merged, merged_by_kernel, parts_of, parts_of_heads, round_robin
from ._parts import CLOSE, faithful
from ._triton import cdiv

NAMES = ("batch", "head", "query", "channel")
# title: (B, H, G, S_max, length, splits, seed)
INPUTS = {"one split, the whole cache of 64 rows": (1, 12, 3, 64, 64, 1, 1),
          "three splits, 96 rows": (2, 12, 3, 96, 96, 3, 2),
          "70 of 80 rows are filled, one split": (1, 12, 3, 80, 70, 1, 3),
          "70 of 80 rows are filled, five splits": (1, 12, 3, 80, 70, 5, 4),
          "6 rows for five splits: some of them are empty": (1, 12, 3, 12, 6, 5, 5)}
EMPTY = list(INPUTS)[-1]

exercise = TritonExercise(
    "gqa_decode_triton", step=90, points=5, minutes=18, difficulty=5, importance=4,
    summary="one query a head against `length` cached rows, keys split over programs, heads of a group together",
    exempt=("detaches-graph",),
    hides="G = H or G = 1 hides a tiled head map; one split hides the merge; a full cache hides a wrong end; equal "
          "parts hide an average; scores near 0 hide a merge without its maximum",
    hints=("A program owns one group and one span of keys, and all R query heads of the group: then each cached row is "
           "loaded once.",
           "Two parts, each divided by its own sum, cannot be averaged: the part that saw the larger scores weighs "
           "more. Which one number per part says by how much?",
           "Store part/total and lse = maximum + log total for each split. Merge with weights exp(lse − largest lse), "
           "divided by their sum. An empty split stores zeros and −inf."))


def inputs(title, dtype=torch.float32):
    """(q, k_cache, v_cache, length, splits): NaN after `length` rows, keys that grow so that the maximum moves."""
    b, h, g, rows, length, splits, seed = INPUTS[title]
    q, k, v = normal(b, h, 1, 16, seed=10 * seed), normal(b, g, rows, 16, seed=10 * seed + 1), \
        normal(b, g, rows, 16, seed=10 * seed + 2)
    k = k * torch.linspace(0.5, 2.5, rows)[:, None].double()
    k[:, :, length:] = v[:, :, length:] = float("nan")
    return *(guarded(x.to(dtype)) for x in (q, k, v)), length, splits


def oracle(q, k, v, length, splits=1):
    repeats = q.shape[1] // k.shape[1]
    k, v = (torch.stack([x[:, h // repeats, :length] for h in range(q.shape[1])], 1) for x in (k, v))
    return attend(q, k, v)[0]


def _case(title):
    def probe(lab):
        q, k, v, length, splits = inputs(title)
        faithful(lab, "gqa_decode_triton", q, k, v, length, splits, want=oracle(q, k, v, length), what="heads",
                 names=NAMES)
    exercise.case(title)(probe)


for _title in INPUTS:
    _case(_title)


@exercise.case("a cache that is kept as [B,S,G,D], and a strided query")
def strided(lab):
    q = guarded(normal(2, 1, 12, 16, seed=61).float(), row_gap=4).transpose(1, 2)
    k, v = (guarded(normal(2, 32, 3, 16, seed=62 + i).float(), row_gap=1).transpose(1, 2) for i in range(2))
    faithful(lab, "gqa_decode_triton", q, k, v, 32, 2, want=oracle(q, k, v, 32), what="heads", names=NAMES)


@exercise.case("scores near two hundred: nothing overflows, in a part or in the merge")
def large(lab):
    q = guarded(torch.full((1, 12, 1, 16), 10.0))
    k, v = (guarded(normal(1, 3, 32, 16, seed=71 + i).float()) for i in range(2))
    k = guarded(k * 0.1 + 5.0)
    faithful(lab, "gqa_decode_triton", q, k, v, 32, 2, want=oracle(q, k, v, 32), what="heads", names=NAMES)


@exercise.case("each cached row is loaded once for its group", CONTRACT)
def bytes_moved(lab):
    q = guarded(normal(1, 12, 1, 16, seed=81).float())
    k, v = (guarded(normal(1, 3, 128, 16, seed=82 + i).float()) for i in range(2))
    run(lab, "gqa_decode_triton", q, k, v, 128, 2)
    sound(lab)
    for i, what in enumerate(("q", "k_cache", "v_cache")):
        all_read(lab, i, (q, k, v)[i].numel(), what)
    traffic(lab, 4 * (2 * q.numel() + k.numel() + v.numel()), 2.5,
            "The query heads of a group share their keys and values: one program takes them all.")


@exercise.case("float32 and float16 keep their dtype, and two calls agree", CONTRACT)
def dtypes(lab):
    title = list(INPUTS)[0]
    for dtype in (torch.float32, torch.float16):
        q, k, v, length, _ = inputs(title, dtype)
        want = oracle(q, k, v, length).to(dtype)
        for what in ("the result", "the second call's result"):
            got = expect.tensor(run(lab, "gqa_decode_triton", q, k, v, length, 2))
            expect.dtype(got, dtype, "heads")
            expect.close(got, want, what, NAMES, atol=2 * CLOSE[dtype], rtol=CLOSE[dtype])


@exercise.workload
def workload(size, seed, dtype):
    b, h, g, rows, d, splits = (2, 12, 3, 80, 16, 3) if size == "small" else (4, 32, 8, 8192, 128, 8)
    q = normal(b, h, 1, d, seed=seed).to(dtype)
    k, v = (normal(b, g, rows, d, seed=seed + i).to(dtype) for i in (1, 2))
    return Workload((q, k, v, rows - 3, splits), {}, (2 * q.numel() + 2 * b * g * (rows - 3) * d) * q.element_size(),
                    4 * b * h * rows * d, lambda *a: (oracle(*a).to(a[0].dtype),))


def _decoded(fault, q, k, v, length, splits, block):
    """The faulty online softmax in every span, merged as it should be."""
    repeats, span = q.shape[1] // k.shape[1], cdiv(length, splits)
    k, v = (x.double().repeat_interleave(repeats, 1)[:, :, :length] for x in (k, v))
    parts = [simulate(fault, q, k[:, :, i:i + span], v[:, :, i:i + span], False, 16, block)
             for i in range(0, length, span)]
    heads, lse = (torch.stack(x, 2) for x in zip(*parts, strict=True))
    return torch.einsum("bhst,bhstd->bhtd", (lse - lse.logsumexp(2, keepdim=True)).exp(), heads)


def _simulated(fault):
    def fits(trials):
        """Some size of block gives these answers in every case."""
        answers = {t.case.title: t.transcript[0].value for t in trials if t.case.title in INPUTS and t.transcript}
        if answers.keys() != INPUTS.keys() or all(agrees(answers[t], oracle(*inputs(t))) for t in INPUTS):
            return False
        order = sorted(INPUTS, key=lambda title: next(t.passed for t in trials if t.case.title == title))
        return any(all(agrees(answers[title], _decoded(fault, *inputs(title), block)) for title in order)
                   for block in BLOCKS)
    exercise.recognise(fault)(fits)


for _fault in ("accumulator-not-rescaled", "sum-not-rescaled", "tail-keys-counted"):
    _simulated(_fault)


@exercise.right
def merged_in_torch(q, k_cache, v_cache, length, splits):
    return merged(q, *parts_of(q, k_cache, v_cache, length, splits))


@exercise.right
def merged_in_a_second_kernel(q, k_cache, v_cache, length, splits):
    return merged_by_kernel(q, *parts_of(q, k_cache, v_cache, length, splits, block=64))


@exercise.right
def blocks_dealt_in_turn(q, k_cache, v_cache, length, splits):
    sums, totals, tops = round_robin(q, k_cache, v_cache, length, splits)
    weights = (tops - tops.amax(-1, keepdim=True)).exp()
    heads = (weights[..., None] * sums).sum(2) / (weights * totals).sum(2, keepdim=True)
    return heads[:, :, None].to(q.dtype)


@exercise.right
def on_a_slice_of_the_cache(q, k_cache, v_cache, length, splits):
    parts, lse = parts_of(q, k_cache[:, :, :length], v_cache[:, :, :length], length, splits, block=32)
    return torch.einsum("bhs,bhsd->bhd", (lse - lse.logsumexp(-1, keepdim=True)).exp(), parts)[:, :, None].to(q.dtype)


@exercise.wrong
def modulo_group(q, k_cache, v_cache, length, splits):
    """Head layout differs from the contract: query head h read key head h % G. It reads key head h // R."""
    return merged(q, *parts_of(q, k_cache, v_cache, length, splits, "tiled"))


@exercise.wrong
def splits_averaged(q, k_cache, v_cache, length, splits):
    """Parts are weighted by their log-sum-exp; a plain average gives every split the same say."""
    return parts_of(q, k_cache, v_cache, length, splits)[0].mean(2, keepdim=True).to(q.dtype)


@exercise.wrong
def empty_split_nan(q, k_cache, v_cache, length, splits):
    """An empty split has weight 0; here it divided 0 by 0, and 0 times NaN is NaN."""
    return merged(q, *parts_of(q, k_cache, v_cache, length, splits, "empty"))


@exercise.wrong
def merge_without_maximum(q, k_cache, v_cache, length, splits):
    """The merge overflows: subtract the largest log-sum-exp before exp."""
    parts, lse = parts_of(q, k_cache, v_cache, length, splits)
    weights = lse.exp()
    return ((weights / weights.sum(-1, keepdim=True))[..., None] * parts).sum(2, keepdim=True).to(q.dtype)


@exercise.wrong
def parts_added(q, k_cache, v_cache, length, splits):
    """The weights of the parts were not divided by their sum."""
    parts, lse = parts_of(q, k_cache, v_cache, length, splits)
    return ((lse - lse.amax(-1, keepdim=True)).exp()[..., None] * parts).sum(2, keepdim=True).to(q.dtype)


@exercise.wrong
def accumulator_not_rescaled(q, k_cache, v_cache, length, splits):
    """A new maximum rescales what was summed before: the accumulator kept the weights of an older maximum."""
    return merged(q, *parts_of(q, k_cache, v_cache, length, splits, "accumulator"))


@exercise.wrong
def sum_not_rescaled(q, k_cache, v_cache, length, splits):
    """The denominator needs the same factor as the accumulator when the maximum moves."""
    return merged(q, *parts_of(q, k_cache, v_cache, length, splits, "sum"))


@exercise.wrong
def tail_keys_counted(q, k_cache, v_cache, length, splits):
    """Keys past the end must be −inf: a lane without a key scored 0 and joined the sum."""
    return merged(q, *parts_of(q, k_cache, v_cache, length, splits, "tail"))


@exercise.wrong
def reads_unfilled_cache(q, k_cache, v_cache, length, splits):
    """Rows past `length` are not keys: the kernel went on to the end of the cache."""
    rows = k_cache.shape[2]
    return merged(q, *parts_of(q, k_cache, v_cache, length, splits, end=rows, span=cdiv(rows, splits)))


@exercise.wrong
def length_minus_one(q, k_cache, v_cache, length, splits):
    """The newest key was left out."""
    return merged(q, *parts_of(q, k_cache, v_cache, length - 1, splits))


@exercise.wrong
def remainder_dropped(q, k_cache, v_cache, length, splits):
    """length // splits keys for each split leave the remainder to nobody."""
    return merged(q, *parts_of(q, k_cache, v_cache, length, splits, span=length // splits))


@exercise.wrong
def scale_missing(q, k_cache, v_cache, length, splits):
    """Scores are divided by √D before the softmax."""
    return merged(q, *parts_of(q, k_cache, v_cache, length, splits, scale=1.0))


@exercise.wrong
def contiguous_assumed(q, k_cache, v_cache, length, splits):
    """Strides must come from the tensors: the kernel read the caches as if they were contiguous."""
    strides = (q[0].numel(), q.shape[-1], 1,
               *(n for x in (k_cache, v_cache) for n in (x[0].numel(), x[0, 0].numel(), x.shape[-1], 1)))
    return merged(q, *parts_of(q, k_cache, v_cache, length, splits, strides=strides))


@exercise.wrong
def cache_loaded_for_each_head(q, k_cache, v_cache, length, splits):
    """Right, and slow: a program for each query head loads the rows of its group R times."""
    return merged(q, *parts_of_heads(q, k_cache, v_cache, length, splits))


@exercise.wrong
def torch_did_it(q, k_cache, v_cache, length, splits):
    """torch computed the answer, and no kernel did."""
    k, v = (x[:, :, :length].float() for x in (k_cache, v_cache))
    grouped = q.float().unflatten(1, (k.shape[1], -1)).squeeze(3)
    weights = (grouped @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return (weights @ v).flatten(1, 2)[:, :, None].to(q.dtype)
