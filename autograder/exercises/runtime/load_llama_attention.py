"""From a state dict to an attention layer: names, shapes, orientation, head maps, rotation, cache."""
from __future__ import annotations

import torch

from ... import expect
from ...exercise import CONTRACT, Exercise, Program
from ...lab import Handle, Mismatch
from ...standard import TOLERANCE, normal
from ._llama import CANONICAL, SQUARE, WIDE, Layer, answer, rows
from ._llama_programs import RIGHTS, WRONGS

NAME = "load_llama_attention"
exercise = Exercise(
    NAME, step=6, points=4, minutes=14, difficulty=4, importance=5,
    summary="Load one Llama attention layer: names and shapes checked, stored either way round, fused or not, both "
            "rotations, a grouped cache.",
    hints=(
        "First a table: which keys must be there, with which shapes, for this config? Compare it with the state dict "
        "in both directions before a single number moves.",
        "Bring every checkpoint into one form, [out,in] and q, k, v apart, and write the forward pass once. Biases go "
        "the way of their rows. What does an interleaved rotation ask of Q and K rows, or of the rotation?",
        "Project, split, rotate, cache, attend, merge, W_O. The cache is what enters the scores, before it is "
        "repeated; its length says where new rows stand, and where the triangle begins.",
    ),
    tensor=False,
    hides="Square weights hide a missing transpose; head_dim = hidden/heads hides a head width that is derived; G = H "
          "hides K and V of the wrong width; position 0 and D = 2 hide the rotation's pairs; one chunk hides what the "
          "cache holds.",
)
NAMES = "batch", "token", "channel"
CACHE = "batch", "KV head", "token", "channel"
BASE = Layer()


def _load(lab, layer, dtype=torch.float64, **changed):
    handle = lab.call(NAME, layer.state(dtype), layer.config | changed)
    if not isinstance(handle, Handle):
        raise Mismatch(f"{NAME} returned {handle!r}, expected a torch.nn.Module")
    return handle


def _forward(lab, handle, layer, x, whole=False, **options):
    """(output, k, v) of one call. The transcript keeps the output; `whole` keeps the cache too, whose channels have no
    agreed order where rows may be permuted."""
    got = lab.method(handle, "__call__", x, **options)
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not isinstance(got[1], (tuple, list)) or len(got[1]) != 2:
        raise Mismatch("forward does not return (output, (k, v))")
    output, (k, v) = got
    if not whole:
        lab.transcript[-1].value = [output]
    expect.shape(output, x.shape, "the output", "[B,T,M]")
    expect.dtype(output, x.dtype, "the output")
    past = options["cache"][0].shape[2] if options.get("cache") else 0
    want = x.shape[0], layer.kv_heads, past + x.shape[1], layer.head_dim
    for part, what in ((k, "k of the cache"), (v, "v of the cache")):
        expect.tensor(part, what)
        if tuple(part.shape) != want:
            lab.transcript[-1].value = [output, tuple(part.shape)]
            raise Mismatch(f"{what} has shape {list(part.shape)}, expected [B,G,S,D] {list(want)}: "
                           f"{part.numel() * part.element_size()} bytes where {torch.Size(want).numel() * 8} suffice")
    return output, k, v


def _try(lab, layer, x=None, causal=True, positions=None, **options):
    x = rows(layer) if x is None else x
    if positions is not None:
        options["positions"] = positions
    if not causal:
        options["causal"] = False
    handle = _load(lab, layer)
    output, k, v = _forward(lab, handle, layer, x, **options)
    want, keys, values = answer(layer, layer.parts(), x, positions, causal)
    expect.close(output, want, "the output", NAMES, atol=1e-4, rtol=1e-5)
    expect.close(v, values, "v of the cache", CACHE, atol=1e-6)
    if layer.rope == "half":
        expect.close(k, keys, "k of the cache", CACHE, atol=1e-4)


def loads(title, *layers, **options):
    @exercise.case(title)
    def tried(lab):
        for layer in layers:
            _try(lab, layer, **options)


loads("separate maps, [out,in], 12 query heads over 3: M20, H·D = 96", BASE)
loads("G = H with head_dim = M/H: every weight is square", SQUARE)
loads("G = H with wider heads: M12 H4 D10", WIDE)
loads("groups with head_dim = M/H: M24 H6 G2 D4", CANONICAL)
loads("Conv1D storage, [in,out]: square, and not", SQUARE.other(storage="conv1d"), BASE.other(storage="conv1d"))
loads("Conv1D storage with biases, fused", BASE.other(storage="conv1d", bias=True, fused="qkv"))
loads("biases on all four maps", BASE.other(bias=True))
loads("interleaved rotation", BASE.other(rope="interleaved"))
loads("interleaved rotation with biases", BASE.other(rope="interleaved", bias=True, seed=2))
loads("one fused projection, all q, then k, then v", BASE.other(fused="qkv"))
loads("one fused projection, group by group, with biases", BASE.other(fused="per_kv_group", bias=True))
loads("positions that do not start at 0", BASE, positions=torch.arange(7, 12))
loads("positions of each sample", BASE, positions=torch.tensor([[0, 1, 2, 3, 4], [6, 7, 8, 9, 10]]))
loads("far positions, at the base that is meant when none is given", BASE, positions=torch.arange(5) * 200)
loads("another base: 500000, as in Llama 3", BASE.other(base=500000.0), positions=torch.arange(5) * 40)
loads("without the triangle", BASE, causal=False)


def _chunks(lab, start):
    layer, x = BASE, rows(BASE)
    positions = None if start is None else torch.arange(start, start + 5)
    want, keys, values = answer(layer, layer.parts(), x, positions)
    handle = _load(lab, layer)
    told = [{} if start is None else {"positions": positions[part]} for part in (slice(0, 2), slice(2, 5))]
    first, k, v = _forward(lab, handle, layer, x[:, :2], whole=True, **told[0])
    expect.close(first, want[:, :2], "the output of the first chunk", NAMES, atol=1e-4)
    raw = torch.stack([x[:, :2] @ layer.parts()["k"][g].T for g in range(layer.kv_heads)], 1)
    if torch.allclose(k, raw, atol=1e-6):
        at = [0, 0, 1, 0] if start is None else [0, 0, 0, 0]
        raise Mismatch(f"the cached key of sample 0, KV head 0, token {at[2]} is the projected row, not rotated: "
                       f"channel 0 holds {k[tuple(at)].item():.4f}, rotated it is {keys[tuple(at)].item():.4f}")
    expect.close(k, keys[:, :, :2], "k of the cache", CACHE, atol=1e-4)
    second, k, v = _forward(lab, handle, layer, x[:, 2:], whole=True, cache=(k, v), **told[1])
    expect.close(second, want[:, 2:], "the output of the second chunk", NAMES, atol=1e-4)
    expect.close(k, keys, "k of the cache", CACHE, atol=1e-4)
    expect.close(v, values, "v of the cache", CACHE, atol=1e-6)


@exercise.case("chunks of 2 and 3 tokens with a cache are the whole sequence")
def chunks(lab):
    _chunks(lab, None)


@exercise.case("the same, at positions 4 to 8")
def chunks_elsewhere(lab):
    _chunks(lab, 4)


@exercise.case("chunks with an interleaved rotation")
def interleaved_chunks(lab):
    layer, x = BASE.other(rope="interleaved"), rows(BASE)
    want, _, _ = answer(layer, layer.parts(), x)
    handle = _load(lab, layer)
    _, k, v = _forward(lab, handle, layer, x[:, :2])
    second, *_ = _forward(lab, handle, layer, x[:, 2:], cache=(k, v))
    expect.close(second, want[:, 2:], "the output of the second chunk", NAMES, atol=1e-4)


@exercise.case("gradients reach the rows and every number of the checkpoint")
def gradients(lab):
    layer = BASE.other(bias=True, seed=4)
    x, parts = rows(layer).requires_grad_(), {n: p.requires_grad_() for n, p in layer.parts().items()}
    handle = _load(lab, layer)
    output, *_ = _forward(lab, handle, layer, x)
    want, *_ = answer(layer, parts, x)
    expect.close(output, want.detach(), "the output", NAMES, atol=1e-4)
    cotangent = normal(*want.shape, seed=77)
    theirs = torch.autograd.grad(want, [x, *parts.values()], cotangent)
    grads = lab.backward((output, cotangent))
    lab.transcript.pop()  # parameters have names and an order of their own
    expect.gradient(grads, x, theirs[0], "x", NAMES, atol=1e-4)
    for name, grad in grads.params.items():
        expect.true(grad is not None, f"no gradient reaches the parameter {name}")
    count, size = (sum(f(g) for g in grads.params.values()) for f in (torch.Tensor.numel, lambda g: g.square().sum()))
    expect.equal(count, sum(p.numel() for p in parts.values()), "the number of trainable parameters")
    expect.close(size.sqrt(), sum(g.square().sum() for g in theirs[1:]).sqrt(),
                 "the length of the gradient of all parameters", atol=1e-4, rtol=1e-5)


@exercise.case("float32: module and output have the dtype of the checkpoint", CONTRACT)
def dtypes(lab):
    x = rows(BASE, dtype=torch.float32)
    output, *_ = _forward(lab, _load(lab, BASE, torch.float32), BASE, x)
    want, *_ = answer(BASE, BASE.parts(), x.double())
    expect.close(output, want.float(), "the output", NAMES, atol=1e-4, rtol=TOLERANCE[torch.float32])


def _without(state, name):
    return {k: v for k, v in state.items() if k != name}


@exercise.case("refuses a missing weight", CONTRACT)
def refuses_missing(lab):
    for name in ("k_proj.weight", "o_proj.weight"):
        lab.raises(ValueError, name, NAME, _without(BASE.state(), name), BASE.config)


@exercise.case("refuses a missing bias", CONTRACT)
def refuses_missing_bias(lab):
    layer = BASE.other(bias=True)
    for name in ("q_proj.bias", "o_proj.bias"):
        lab.raises(ValueError, name, NAME, _without(layer.state(), name), layer.config)


@exercise.case("refuses a key that no one asked for", CONTRACT)
def refuses_unexpected(lab):
    biased = BASE.other(bias=True).state()
    lab.raises(ValueError, "v_proj.bias", NAME, BASE.state() | {"v_proj.bias": biased["v_proj.bias"]}, BASE.config)
    lab.raises(ValueError, "q_norm.weight", NAME, BASE.state() | {"q_norm.weight": torch.ones(8)}, BASE.config)


@exercise.case("refuses a wrong shape", CONTRACT)
def refuses_shape(lab):
    for name in ("q_proj.weight", "v_proj.weight", "o_proj.weight"):
        state = BASE.state()
        lab.raises(ValueError, "shape", NAME, state | {name: torch.cat([state[name], state[name][:1]])}, BASE.config)
    layer = BASE.other(bias=True)
    lab.raises(ValueError, "shape", NAME, layer.state() | {"k_proj.bias": torch.ones(23)}, layer.config)
    lab.raises(ValueError, "shape", NAME, BASE.state(), BASE.config | {"storage": "conv1d"})


for _name, _program in RIGHTS.items():
    exercise.rights.append(Program(_name, {NAME: _program}, ""))
_WHY = {id: why for id, _, why in WRONGS if why}
for _number, (_id, _program, _) in enumerate(WRONGS):
    _spelling = "" if _id not in [w.id for w in exercise.wrongs] else f"spelling-{_number}"
    exercise.wrongs.append(Program(_id, {NAME: _program}, _WHY[_id], _spelling))
