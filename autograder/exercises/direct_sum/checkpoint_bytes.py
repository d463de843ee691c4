"""The bytes of a layer's parameters."""
import torch

from ... import expect
from ...exercise import Exercise
from ._ledgers import answers, layer, number

exercise = Exercise(
    "checkpoint_bytes", step=13, points=1, minutes=2, difficulty=1, importance=3, tensor=False,
    summary="The bytes that the parameters of one layer take in a checkpoint, separate or fused.",
    hints=(
        "How many parameters does the layer have, and how many bytes does one take?",
        "A checkpoint holds what was learned. Does the length of a sequence change it?",
        "Fusing lays q, k and v one behind the other. How many rows has the fused weight, and how many had the three?",
    ),
    hides="H·D = M hides square formulas; fused=False hides what fusing is thought to do.",
)

CASES = {
    "float32 with biases: M6 H2 D_qk3 D_v2, 568 bytes": (6, 2, 3, 2, True, 4, False),
    "values narrower than keys: M512 H8 D_qk64 D_v48, 2 bytes, no bias": (512, 8, 64, 48, False, 2, False),
    "H·D is not M: M10 H3 D_qk4 D_v6, 4 bytes, biases": (10, 3, 4, 6, True, 4, False),
    "the same layer, fused": (10, 3, 4, 6, True, 4, True),
    "fused, no bias, 2 bytes: M20 H4 D_qk7 D_v5": (20, 4, 7, 5, False, 2, True),
}
PROBES = {}


def oracle(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    """The bytes of tensors that exist: a real state dict, or one whose q, k and v are concatenated."""
    maps = layer(d_model, num_heads, d_qk, d_v, bias).to_empty(device="cpu")
    tensors = [p.detach() for p in maps.parameters()]
    if fused:
        own = [[p.detach() for p in maps[r].parameters()] for r in "qkv"]
        tensors = [torch.cat(parts) for parts in zip(*own, strict=True)] + [p.detach() for p in maps["o"].parameters()]
    kind = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[bytes_per_parameter]
    return sum(t.to(kind).nbytes for t in tensors)


def _case(title, args):
    @exercise.case(title)
    def probe(lab):
        got, want = lab.call("checkpoint_bytes", *args[:-1], fused=args[-1]), oracle(*args)
        held = f"{got:,}" if number(got) else repr(got)[:60]
        expect.true(number(got) and got == want, f"checkpoint_bytes{args[:-1]}, fused={args[-1]}, is {held} bytes, "
                                                 f"expected {want:,} = {want // args[5]:,} parameters × {args[5]}")
    PROBES[probe] = args


for _title, _args in CASES.items():
    _case(_title, _args)


def _parts(d_model, num_heads, d_qk, d_v, bias):
    """(weights and biases of q, k and v; of o)."""
    qkv = num_heads * (2 * d_qk + d_v)
    return d_model * qkv + bias * qkv, num_heads * d_v * d_model + bias * d_model


@exercise.right
def formula(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    return sum(_parts(d_model, num_heads, d_qk, d_v, bias)) * bytes_per_parameter


@exercise.right
def of_meta_tensors(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    rows = [num_heads * d_qk] * 2 + [num_heads * d_v]
    shapes = [(n, d_model) for n in ([sum(rows)] if fused else rows)] + [(d_model, num_heads * d_v)]
    if bias:
        shapes += [shape[:1] for shape in shapes]
    return sum(torch.empty(s, device="meta").numel() for s in shapes) * bytes_per_parameter


@exercise.right
def head_by_head(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    total = bias * d_model
    for _ in range(num_heads):
        total += (2 * d_qk + d_v) * (d_model + bias) + d_v * d_model
    return total * bytes_per_parameter


@exercise.wrong
def four_squares(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    """4M² holds only when H·D_qk = H·D_v = M."""
    return 4 * (d_model**2 + bias * d_model) * bytes_per_parameter


@exercise.wrong(id="four-squares")
def with_real_biases(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    return (4 * d_model**2 + bias * (num_heads * (2 * d_qk + d_v) + d_model)) * bytes_per_parameter


@exercise.wrong
def qkv_only(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    """W_O was left out: 3M² is not the module."""
    return _parts(d_model, num_heads, d_qk, d_v, bias)[0] * bytes_per_parameter


@exercise.wrong(id="qkv-only")
def three_squares(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    return 3 * (d_model**2 + bias * d_model) * bytes_per_parameter


@exercise.wrong
def heads_always_cancel(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    """At fixed D the count grows with H."""
    return sum(_parts(d_model, 1, d_qk, d_v, bias)) * bytes_per_parameter


@exercise.wrong(id="heads-always-cancel")
def squares_whatever_the_heads(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    return 4 * (d_model**2 + bias * d_model) * bytes_per_parameter


@exercise.wrong(id="heads-always-cancel")
def squares_with_real_biases(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    return with_real_biases(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter)


@exercise.wrong(id="heads-always-cancel")
def heads_counted_from_the_model_width(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    return sum(_parts(d_model, d_model // d_qk, d_qk, d_v, bias)) * bytes_per_parameter


@exercise.wrong
def activations_counted(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    """A checkpoint stores parameters."""
    token = num_heads * (2 * d_qk + 2 * d_v) + d_model
    return (sum(_parts(d_model, num_heads, d_qk, d_v, bias)) + token) * bytes_per_parameter


@exercise.wrong
def fusion_shrinks(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    """Fusing concatenates; no byte is saved."""
    qkv, o = _parts(d_model, num_heads, d_qk, d_v, bias)
    return ((qkv // 3 if fused else qkv) + o) * bytes_per_parameter


def _answers(trials):
    """((arguments, bytes), ...) when every answer is a number."""
    seen = answers(trials, PROBES)
    return seen if seen and all(number(got) for _, got in seen) else []


@exercise.recognise("activations-counted")
def excess_of_rows(trials):
    """Too much by a constant number of activation rows: a·H·D_qk + b·H·D_v + c·M elements, the same in all cases."""
    seen = _answers(trials)
    if not seen or any(got <= oracle(*args) for args, got in seen):
        return False

    def excess(a, b, c, size):
        return all((got - oracle(*args)) == (a * args[1] * args[2] + b * args[1] * args[3] + c * args[0])
                   * (size or args[5]) for args, got in seen)
    return any(excess(a, b, c, size) for a in range(4) for b in range(4) for c in range(4) for size in (0, 1, 4))


@exercise.recognise("fusion-shrinks")
def smaller_when_fused(trials):
    """Right when separate, too small when fused."""
    seen = _answers(trials)
    return bool(seen) and all(got < oracle(*args) if args[-1] else got == oracle(*args) for args, got in seen)
