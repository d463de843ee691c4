"""Attention whose heads have widths of their own."""
import math

import torch
from torch.nn import functional as F

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from ...nested import nested_cases

exercise = Exercise(
    "heterogeneous_heads", step=14, points=3, minutes=5, difficulty=3, importance=3,
    summary="Attention with heads of different widths: each with its own scale and its own block of W_O.",
    hints=(
        "Write it for one head first: three small projections, one attention call, one write through a block of W_O. "
        "Which lines depend on the head's widths?",
        "A head of width 3 and one of width 6 see dot products of different size. What does each divide by?",
        "The blocks of W_O lie side by side, each as wide as its head's values. Where does block 2 start when the "
        "blocks before it are 4 and 2 wide? `given.attend` is the middle of one head.",
    ),
    hides="equal widths hide the scale and every block offset; one key hides every scale.",
)

NAMES = ("batch", "query", "output")
WIDTHS = (3, 4), (5, 2), (6, 7)
TURNED = (6, 7), (3, 4), (5, 2)


def oracle(x_q, x_kv, heads, w_o):
    """Head by head, sample by sample, query by query."""
    out, at = 0, 0
    for w_q, w_k, w_v in heads:
        q, k, v = (torch.einsum("bsm,dm->bsd", x, w) for x, w in ((x_q, w_q), (x_kv, w_k), (x_kv, w_v)))
        scores = torch.einsum("btd,bsd->bts", q, k) / math.sqrt(w_q.shape[0])
        weights = scores.softmax(-1)
        out = out + torch.einsum("bts,bsd,md->btm", weights, v, w_o[:, at:at + w_v.shape[0]])
        at += w_v.shape[0]
    return out


def make(batch, q_len, k_len, width, widths, seed=0):
    """(x_q, x_kv, heads, w_o) of random numbers; small maps, so that no softmax is a hard choice."""
    heads = [tuple(standard.normal(n, width, seed=seed + 10 * i + j) / width**0.5 for j, n in enumerate((d, d, d_v)))
             for i, (d, d_v) in enumerate(widths)]
    return (standard.normal(batch, q_len, width, seed=seed + 1), standard.normal(batch, k_len, width, seed=seed + 2),
            heads, standard.normal(width, sum(d_v for _, d_v in widths), seed=seed + 3) / 4)


def _only(head, widths, width, k_len):
    """Inputs in which one head alone has values: channel 0 of key 0. Its query meets key 0 with a dot product of 2."""
    heads = []
    for i, (d, d_v) in enumerate(widths):
        w_q, w_k, w_v = (torch.zeros(n, width, dtype=torch.float64) for n in (d, d, d_v))
        w_q[0, 2], w_k[0, 0], w_v[0, 0] = 1, 2, float(i == head)
        heads.append((w_q, w_k, w_v))
    eye = torch.eye(width, dtype=torch.float64)
    return eye[2].reshape(1, 1, width), eye[:k_len].reshape(1, k_len, width), heads


def _asked(lab, widths, width, k_len, w_o):
    """One call a head; [1,1,M] of each."""
    found = []
    for head in range(len(widths)):
        got = lab.call("heterogeneous_heads", *_only(head, widths, width, k_len), w_o)
        expect.shape(got, (1, 1, width), "the output")
        expect.dtype(got, torch.float64, "the output")
        found.append(got[0, 0])
    return found


@exercise.case("every head divides its scores by the root of its own width: 3, 5 and 6")
def scales(lab):
    width = 16
    w_o = torch.eye(width, 13, dtype=torch.float64)
    found = [_divisor(out) for out in _asked(lab, WIDTHS, width, 2, w_o)]
    for head, ((d, _), divisor) in enumerate(zip(WIDTHS, found, strict=True)):
        if divisor is None:
            raise expect.Mismatch(f"head {head} alone has values, and the output does not show its weights")
        if abs(divisor - math.sqrt(d)) > 1e-6:
            raise expect.Mismatch(f"head {head} has width {d} and divides its scores by {divisor:.4f} = "
                                  f"√{divisor**2:.4g}, expected √{d}")


def _divisor(out):
    """The weight of key 0 is the sigmoid of 2/divisor: the keys' dot products are 2 and 0."""
    weight = out.double().sum().item()
    if not 0.5 < weight < 1:
        return None
    return 2 / math.log(weight / (1 - weight))


@exercise.case("every head writes through its own columns of W_O: values of width 7, 4 and 2")
def columns(lab):
    width = 16
    w_o = torch.arange(width * 13, dtype=torch.float64).reshape(width, 13)
    found = [_column(out) for out in _asked(lab, TURNED, width, 1, w_o)]
    for head, (column, due) in enumerate(zip(found, (0, 7, 11), strict=True)):
        if column != due:
            shown = f"column {column}" if column is not None else "no single column"
            raise expect.Mismatch(f"channel 0 of head {head} goes through {shown} of W_O, expected column {due}; the "
                                  f"values before it are {', '.join(str(v) for _, v in TURNED[:head])} wide")


def _column(out):
    first = out[0].item()
    steps = out - out[0]
    coded = 13 * torch.arange(len(out), dtype=torch.float64)
    return int(first) if 0 <= first < 13 and first == int(first) and torch.equal(steps.double(), coded) else None


def _check(lab, *args):
    expect.close(lab.call("heterogeneous_heads", *args), oracle(*args), "the output", NAMES)


@exercise.case("real numbers: A, B2 T5 S7 M10, widths (3,4), (5,2), (6,7)")
def numbers(lab):
    _check(lab, *make(2, 5, 7, 10, WIDTHS))


@exercise.case("two other heads: B3 T6 S6 M8, widths (4,3), (2,5)")
def two(lab):
    _check(lab, *make(3, 6, 6, 8, ((4, 3), (2, 5)), seed=50))


nested_cases(exercise, lambda: (make(2, 5, 7, 10, WIDTHS, seed=100), {}), oracle, ("x_q", "x_kv", "heads", "w_o"),
             {"": "the output"})


@exercise.case("equal widths are the classic layer: three heads of (4,4)", CONTRACT)
def equal(lab):
    _check(lab, *make(2, 5, 7, 12, ((4, 4),) * 3, seed=200))


@exercise.case("refuses a W_O that does not read the values of all heads", CONTRACT)
def refuses(lab):
    x_q, x_kv, heads, w_o = make(2, 5, 7, 10, WIDTHS)
    for other in (w_o[:, :12], torch.cat([w_o, w_o[:, :1]], dim=1)):
        lab.raises(ValueError, "width", "heterogeneous_heads", x_q, x_kv, heads, other)


def _sum(heads, w_o):
    if w_o.shape[1] != sum(w_v.shape[0] for *_, w_v in heads):
        raise ValueError("w_o does not have the width of all values")


def _attend(x_q, x_kv, head, scale=None):
    w_q, w_k, w_v = head
    q, k, v = F.linear(x_q, w_q), F.linear(x_kv, w_k), F.linear(x_kv, w_v)
    return (q @ k.mT / (math.sqrt(w_q.shape[0]) if scale is None else scale)).softmax(-1) @ v


def _starts(heads):
    starts = [0]
    for *_, w_v in heads:
        starts.append(starts[-1] + w_v.shape[0])
    return starts[:-1]


def _output(x_q, x_kv, heads, w_o, scale=None, starts=None):
    _sum(heads, w_o)
    starts = _starts(heads) if starts is None else starts
    return sum(F.linear(_attend(x_q, x_kv, h, scale), w_o[:, s:s + h[2].shape[0]])
               for h, s in zip(heads, starts, strict=True))


@exercise.right
def loop_of_writes(x_q, x_kv, heads, w_o):
    return _output(x_q, x_kv, heads, w_o)


@exercise.right
def loop_and_concatenation(x_q, x_kv, heads, w_o):
    _sum(heads, w_o)
    return torch.cat([_attend(x_q, x_kv, head) for head in heads], dim=-1) @ w_o.T


@exercise.right
def framework_call_for_each_head(x_q, x_kv, heads, w_o):
    _sum(heads, w_o)
    mixed = [F.scaled_dot_product_attention(F.linear(x_q, w_q)[:, None], F.linear(x_kv, w_k)[:, None],
                                            F.linear(x_kv, w_v)[:, None])[:, 0] for w_q, w_k, w_v in heads]
    return F.linear(torch.cat(mixed, -1), w_o)


def _padded(heads, i, to):
    return torch.stack([F.pad(head[i], (0, 0, 0, to - head[i].shape[0])) for head in heads])


def _packed(x_q, x_kv, heads, scales):
    """All heads in one batch, padded with zeros: [B,H,T,widest D_v]."""
    d, d_v = (max(head[i].shape[0] for head in heads) for i in (0, 2))
    w_q, w_k, w_v = _padded(heads, 0, d), _padded(heads, 1, d), _padded(heads, 2, d_v)
    q, k, v = (torch.einsum("bsm,hdm->bhsd", x, w) for x, w in ((x_q, w_q), (x_kv, w_k), (x_kv, w_v)))
    return (q @ k.mT / scales.view(-1, 1, 1)).softmax(-1) @ v


def _unpadded(mixed, heads, w_o):
    parts = [mixed[:, i, :, :head[2].shape[0]] for i, head in enumerate(heads)]
    return F.linear(torch.cat(parts, -1), w_o)


@exercise.right
def padded_packing_with_own_scales(x_q, x_kv, heads, w_o):
    _sum(heads, w_o)
    scales = torch.tensor([w_q.shape[0] for w_q, *_ in heads], dtype=torch.float64).sqrt().to(x_q.dtype)
    return _unpadded(_packed(x_q, x_kv, heads, scales), heads, w_o)


@exercise.right
def batches_of_equal_width(x_q, x_kv, heads, w_o):
    _sum(heads, w_o)
    groups, starts = {}, _starts(heads)
    for i, head in enumerate(heads):
        groups.setdefault((head[0].shape[0], head[2].shape[0]), []).append(i)
    out = 0
    for (d, _), members in groups.items():
        batch = [heads[i] for i in members]
        mixed = _packed(x_q, x_kv, batch, torch.full((len(batch),), math.sqrt(d), dtype=x_q.dtype))
        for j, i in enumerate(members):
            out = out + F.linear(mixed[:, j], w_o[:, starts[i]:starts[i] + heads[i][2].shape[0]])
    return out


@exercise.right
def blocks_by_split(x_q, x_kv, heads, w_o):
    _sum(heads, w_o)
    out = x_q.new_zeros(*x_q.shape[:2], w_o.shape[0])
    for head, block in zip(heads, w_o.split([h[2].shape[0] for h in heads], dim=1), strict=True):
        out = out + _attend(x_q, x_kv, head) @ block.T
    return out


@exercise.wrong
def one_scale(x_q, x_kv, heads, w_o):
    """Each head scales by its own width."""
    return _output(x_q, x_kv, heads, w_o, scale=math.sqrt(heads[0][0].shape[0]))


@exercise.wrong(id="one-scale")
def of_the_mean_width(x_q, x_kv, heads, w_o):
    return _output(x_q, x_kv, heads, w_o, scale=math.sqrt(sum(h[0].shape[0] for h in heads) / len(heads)))


@exercise.wrong(id="one-scale")
def of_the_model_width(x_q, x_kv, heads, w_o):
    return _output(x_q, x_kv, heads, w_o, scale=math.sqrt(x_q.shape[-1]))


@exercise.wrong
def padded_scale(x_q, x_kv, heads, w_o):
    """Padding must not change the scale."""
    _sum(heads, w_o)
    widest = max(h[0].shape[0] for h in heads)
    scales = torch.full((len(heads),), math.sqrt(widest), dtype=x_q.dtype)
    return _unpadded(_packed(x_q, x_kv, heads, scales), heads, w_o)


@exercise.wrong
def equal_offsets(x_q, x_kv, heads, w_o):
    """W_O blocks start at the running sum of D_v."""
    return _output(x_q, x_kv, heads, w_o, starts=[i * w_o.shape[1] // len(heads) for i in range(len(heads))])


@exercise.wrong(id="equal-offsets")
def at_floored_thirds(x_q, x_kv, heads, w_o):
    return _output(x_q, x_kv, heads, w_o, starts=[i * (w_o.shape[1] // len(heads)) for i in range(len(heads))])


@exercise.wrong(id="equal-offsets")
def at_multiples_of_the_own_width(x_q, x_kv, heads, w_o):
    return _output(x_q, x_kv, heads, w_o, starts=[i * h[2].shape[0] for i, h in enumerate(heads)])


@exercise.wrong(id="equal-offsets")
def at_multiples_of_the_first_width(x_q, x_kv, heads, w_o):
    return _output(x_q, x_kv, heads, w_o, starts=[i * heads[0][2].shape[0] for i in range(len(heads))])


@exercise.wrong(id="equal-offsets")
def equal_chunks(x_q, x_kv, heads, w_o):
    _sum(heads, w_o)
    return sum(F.linear(_attend(x_q, x_kv, h), w) for h, w in zip(heads, w_o.chunk(len(heads), 1), strict=True))


def _read(trials, probe, decode):
    """What each call of a case says, or None where one ended in an error."""
    trial = next(t for t in trials if t.case.probe is probe)
    values = [o.value for o in trial.transcript if o.error is None and isinstance(o.value, torch.Tensor)]
    if len(values) != 3 or any(v.shape != (1, 1, 16) for v in values):
        return None
    return [decode(v[0, 0]) for v in values]


def _one_divisor(trials):
    divisors = _read(trials, scales, _divisor)
    if not divisors or None in divisors or max(divisors) - min(divisors) > 1e-6:
        return None
    return divisors[0]


@exercise.recognise("one-scale")
def the_same_for_all(trials):
    """One divisor for heads of width 3, 5 and 6, which is not 1: that would be none at all."""
    divisor = _one_divisor(trials)
    return divisor is not None and abs(divisor - 1) > 1e-6


@exercise.recognise("padded-scale")
def that_of_the_widest(trials):
    """The root of the widest head's width for all."""
    divisor = _one_divisor(trials)
    return divisor is not None and abs(divisor - math.sqrt(6)) < 1e-6


@exercise.recognise("equal-offsets")
def evenly_spaced(trials):
    """Blocks that start at multiples of one width, or of the head's own."""
    starts = _read(trials, columns, _column)
    if not starts or None in starts or starts[0]:
        return False
    return starts != [0, 7, 11] and (starts[2] == 2 * starts[1] or starts == [0, 4, 4] or starts[2] == 2 * 13 // 3)
