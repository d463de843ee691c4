"""flash_attention_triton: an online softmax over blocks of keys, and the log-sum-exp of every row."""
from __future__ import annotations

import math

import torch

from ... import expect
from ...exercise import CONTRACT
from ...standard import normal
from ...triton_lab import TritonExercise, Workload, all_read, guarded, run, sound, sound_beside, traffic
from ._attention import BLOCKS, agrees, attend, simulate
from ._flash_programs import flash
from ._parts import CLOSE, close
from ._triton import cdiv, jit, tl

NAMES = ("batch", "head", "query", "channel")
ONE_BLOCK = "16 queries, 16 keys: one block"
MANY = "256 keys: several blocks, and the maximum moves"
TAIL = "33 queries, 70 keys: the last block is partly empty"
CAUSAL = "causal, 64 queries and 64 keys"
SHORT = "causal, 33 queries against 70 keys: the triangle ends at the lower right"
# title: (B, H, T, S, D, causal, seed)
INPUTS = {ONE_BLOCK: (1, 2, 16, 16, 16, False, 1), MANY: (1, 2, 16, 256, 16, False, 2),
          TAIL: (2, 3, 33, 70, 16, False, 3), CAUSAL: (1, 2, 64, 64, 16, True, 4), SHORT: (1, 2, 33, 70, 16, True, 5)}

exercise = TritonExercise(
    "flash_attention_triton", step=80, points=5, minutes=20, difficulty=5, importance=5,
    summary="attention [B,H,T,D] by blocks of keys with an online softmax, and the log-sum-exp [B,H,T]",
    exempt=("detaches-graph",),
    hides="one block of keys hides every rescaling; S a multiple of the block hides tail keys; T = S hides where the "
          "triangle ends; scores near 0 hide the maximum",
    hints=("A program owns a block of queries and three running things for each: the largest score so far, the sum of "
           "exp(score − maximum), and the same sum weighted with V.",
           "When a block brings a larger maximum, everything that was summed before was divided by the wrong number. "
           "By which factor do both sums change?",
           "new = max(old, block's max); factor = exp(old − new). total = total·factor + Σp; acc = acc·factor + p@V. "
           "Keys past S get −inf before the maximum is taken; divide by total once, at the end; lse = maximum + log "
           "total."))


def inputs(title, dtype=torch.float32):
    """(q, k, v, causal), each between bands of NaN; keys grow along the sequence, so that the maximum moves."""
    b, h, t, s, d, causal, seed = INPUTS[title]
    grow = torch.linspace(0.5, 2.5, s)[:, None].double()
    q, k, v = (normal(b, h, n, d, seed=10 * seed + i) for i, n in enumerate((t, s, s)))
    return *(guarded(x.to(dtype)) for x in (q, k * grow, v)), causal


def compare(lab, q, k, v, causal, what=""):
    """A watched call: heads, log-sum-exp, and where the kernels reached."""
    got = run(lab, "flash_attention_triton", q, k, v, **({"causal": True} if causal else {}))
    heads, lse = attend(q, k, v, causal)
    with sound_beside(lab):
        expect.true(isinstance(got, (tuple, list)) and len(got) == 2,
                    "the result is not a pair: the heads, and the log-sum-exp of every row")
        close(got[0], heads, q.dtype, "heads", NAMES)
        expect.shape(got[1], lse.shape, "lse")
        close(got[1].to(q.dtype), lse, q.dtype, "lse", NAMES)
    return got


def _case(title):
    def probe(lab):
        compare(lab, *inputs(title))
    exercise.case(title)(probe)


for _title in INPUTS:
    _case(_title)


@exercise.case("heads that are views of packed rows, B=H=3, D=32")
def strided(lab):
    q, k, v = (guarded(normal(3, 32, 3, 32, seed=60 + i).float(), row_gap=1).transpose(1, 2) for i in range(3))
    compare(lab, q, k, v, False)


@exercise.case("scores near two hundred: nothing overflows")
def large(lab):
    q, k, v = (guarded(normal(1, 2, n, 16, seed=70 + i).float()) for i, n in enumerate((16, 64, 64)))
    q = guarded(q * 0 + 10.0)
    k = guarded(k * 0.1 + 5.0)
    compare(lab, q, k, v, False)


@exercise.case("K and V are loaded once for a block of queries", CONTRACT)
def bytes_moved(lab):
    q, k, v = (guarded(normal(1, 2, n, 16, seed=80 + i).float()) for i, n in enumerate((64, 64, 64)))
    run(lab, "flash_attention_triton", q, k, v)
    sound(lab)
    for i, what in enumerate(("q", "k", "v")):
        all_read(lab, i, (q, k, v)[i].numel(), what)
    minimum = 4 * (q.numel() + k.numel() + v.numel() + q.numel() + 2 * 64)
    traffic(lab, minimum, 4.0, "A program that owns 16 queries or more reads K and V once for all of them, and no "
                               "matrix of scores is stored.")


@exercise.case("float32 and float16 keep their dtype, and two calls agree", CONTRACT)
def dtypes(lab):
    for dtype in (torch.float32, torch.float16):
        q, k, v, _ = inputs(ONE_BLOCK, dtype)
        want = attend(q, k, v)[0].to(dtype)
        for what in ("the result", "the second call's result"):
            got = run(lab, "flash_attention_triton", q, k, v)
            first = expect.tensor(got[0] if isinstance(got, (tuple, list)) and got else got)
            expect.dtype(first, dtype, "heads")
            expect.close(first, want, what, NAMES, atol=2 * CLOSE[dtype], rtol=CLOSE[dtype])


@exercise.workload
def workload(size, seed, dtype):
    b, h, t, s, d = (2, 3, 33, 70, 16) if size == "small" else (1, 16, 2048, 2048, 64)
    q, k, v = (normal(b, h, n, d, seed=seed + i).to(dtype) for i, n in enumerate((t, s, s)))
    moved = (2 * q.numel() + k.numel() + v.numel()) * q.element_size() + 4 * b * h * t

    def whole(q, k, v):
        heads, lse = attend(q, k, v)
        return heads.to(q.dtype), lse.float()
    return Workload((q, k, v), {}, moved, 4 * b * h * t * s * d, whole)


def _simulated(fault):
    def fits(trials):
        """Some pair of block sizes gives these answers in every case."""
        answers = {t.case.title: t.transcript[0].value for t in trials if t.case.title in INPUTS and t.transcript}
        if answers.keys() != INPUTS.keys() or all(_like(answers[t], attend(*inputs(t))) for t in INPUTS):
            return False
        order = sorted(INPUTS, key=lambda title: next(t.passed for t in trials if t.case.title == title))
        return any(all(_like(answers[title], simulate(fault, *inputs(title), bq, bk)) for title in order)
                   for bk in BLOCKS for bq in (BLOCKS if fault == "diagonal-block-skipped" else BLOCKS[:1]))
    exercise.recognise(fault)(fits)


def _like(got, want):
    return isinstance(got, (tuple, list)) and len(got) == 2 and all(map(agrees, got, want))


for _fault in ("accumulator-not-rescaled", "sum-not-rescaled", "tail-keys-counted", "diagonal-block-skipped",
               "last-block-dropped"):
    _simulated(_fault)


@exercise.right
def blocks_of_32(q, k, v, causal=False):
    return flash(q, k, v, causal)


@exercise.right
def blocks_of_16_and_64(q, k, v, causal=False):
    return flash(q, k, v, causal, block=(16, 64))


@exercise.right
def all_keys_in_one_block(q, k, v, causal=False):
    return flash(q, k, v, causal, block=(16, 256))


@jit
def _base_two(q, k, v, out, lse, heads, queries, keys, q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, v_b, v_h, v_s, v_d,
              scale, D: tl.constexpr, Q: tl.constexpr, CAUSAL: tl.constexpr):
    block, row = tl.program_id(0), tl.program_id(1)
    q += row // heads * q_b + row % heads * q_h
    k += row // heads * k_b + row % heads * k_h
    v += row // heads * v_b + row % heads * v_h
    t, d = block * Q + tl.arange(0, Q), tl.arange(0, D)
    query = tl.load(q + t[:, None] * q_t + d[None, :] * q_d, mask=t[:, None] < queries, other=0.0)
    query = (query * (scale * 1.4426950408889634)).to(query.dtype)
    top = tl.full([Q], -1e30, tl.float32)
    total = tl.full([Q], 0.0, tl.float32)
    acc = tl.zeros([Q, D], tl.float32)
    for start in range(0, keys, Q):
        s = start + tl.arange(0, Q)
        key = tl.load(k + s[None, :] * k_s + d[:, None] * k_d, mask=s[None, :] < keys, other=0.0)
        x = tl.dot(query, key, input_precision="ieee")
        visible = (s < keys)[None, :]
        if CAUSAL:
            visible = visible & (t[:, None] - s[None, :] >= queries - keys)
        x = x + tl.where(visible, 0.0, -1e30)
        new = tl.maximum(top, tl.max(x, 1))
        p = tl.where(visible, tl.exp2(x - new[:, None]), 0.0)
        factor = tl.exp2(top - new)
        total = total * factor + tl.sum(p, 1)
        value = tl.load(v + s[:, None] * v_s + d[None, :] * v_d, mask=s[:, None] < keys, other=0.0)
        acc = tl.dot(p.to(value.dtype), value, acc=acc * factor[:, None], input_precision="ieee")
        top = new
    tl.store(out + (row * queries + t[:, None]) * D + d[None, :], acc / total[:, None], mask=t[:, None] < queries)
    tl.store(lse + row * queries + t, (top + tl.log2(total)) * 0.6931471805599453, mask=t < queries)


@exercise.right
def powers_of_two(q, k, v, causal=False):
    b, h, t, d = q.shape
    out, lse = torch.zeros(b, h, t, d, dtype=q.dtype), torch.zeros(b, h, t)
    _base_two[(cdiv(t, 32), b * h)](q, k, v, out, lse, h, t, k.shape[2], *q.stride(), *k.stride(), *v.stride(),
                                    d ** -0.5, D=d, Q=32, CAUSAL=causal)
    return out, lse


@exercise.wrong
def accumulator_not_rescaled(q, k, v, causal=False):
    """A new maximum rescales what was summed before: the accumulator kept the weights of an older maximum."""
    return flash(q, k, v, causal, "accumulator")


@exercise.wrong
def sum_not_rescaled(q, k, v, causal=False):
    """The denominator needs the same factor as the accumulator when the maximum moves."""
    return flash(q, k, v, causal, "sum")


@exercise.wrong
def tail_keys_counted(q, k, v, causal=False):
    """Keys past S must be −inf: a lane without a key scored 0 and joined the sum."""
    return flash(q, k, v, causal, "tail")


@exercise.wrong
def diagonal_block_skipped(q, k, v, causal=False):
    """The diagonal block is partly visible: the loop ended before it."""
    return flash(q, k, v, causal, "diagonal" if causal else "")


@exercise.wrong
def triangle_top_left(q, k, v, causal=False):
    """With T < S the triangle ends at the lower right: query t sees keys up to t + S − T."""
    return flash(q, k, v, causal, shift=0)


@exercise.wrong
def causal_off_by_one(q, k, v, causal=False):
    """Every query was hidden from its own key, or saw one key of its future."""
    return flash(q, k, v, causal, shift=k.shape[2] - q.shape[2] + 1)


@exercise.wrong(id="causal-off-by-one")
def own_key_hidden(q, k, v, causal=False):
    return flash(q, k, v, causal, shift=k.shape[2] - q.shape[2] - 1)


@exercise.wrong
def scale_missing(q, k, v, causal=False):
    """Scores are divided by √D before the softmax."""
    return flash(q, k, v, causal, scale=1.0)


@exercise.wrong
def scale_by_width(q, k, v, causal=False):
    """Scores were divided by D, not by √D."""
    return flash(q, k, v, causal, scale=1 / q.shape[-1])


@exercise.wrong
def no_maximum(q, k, v, causal=False):
    """Large scores overflow: the running maximum is subtracted before exp."""
    return flash(q, k, v, causal, "maximum")


@exercise.wrong
def last_block_dropped(q, k, v, causal=False):
    """The loop bound is wrong: the last, partly filled block of keys was never read."""
    return flash(q, k, v, causal, "dropped")


@exercise.wrong
def contiguous_assumed(q, k, v, causal=False):
    """Strides must come from the tensors: the kernel read them as if they were contiguous."""
    return flash(q, k, v, causal, strides=tuple(
        n for x in (q, k, v) for n in (x[0].numel(), x[0, 0].numel(), x.shape[-1], 1)))


@exercise.wrong
def tail_unmasked(q, k, v, causal=False):
    """The last block of queries wrote past its head: lanes beyond T are masked in the store as well."""
    return flash(q, k, v, causal, "unmasked")


@exercise.wrong
def never_divided(q, k, v, causal=False):
    """The accumulator was stored as it is; it is divided by the sum once, at the end."""
    return flash(q, k, v, causal, "undivided")


@exercise.wrong
def lse_without_maximum(q, k, v, causal=False):
    """The log-sum-exp is the maximum plus the logarithm of the sum; the maximum was left out."""
    return flash(q, k, v, causal, "lse")


@exercise.wrong
def keys_loaded_for_each_query(q, k, v, causal=False):
    """Right, and slow: each program owned very few queries, so that K and V were loaded again and again."""
    return flash(q, k, v, causal, block=(4, 64))


@exercise.wrong
def torch_did_it(q, k, v, causal=False):
    """torch computed the answer, and no kernel did."""
    flash(q[:1, :1, :1], k[:1, :1, :1], v[:1, :1, :1])
    scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
    if causal:
        t, s = scores.shape[-2:]
        scores = scores.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(s - t), -float("inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)
