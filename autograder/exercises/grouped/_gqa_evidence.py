"""Reading a grouped module back: its state, what it returned, which keys it saw, and what its cache keeps alive."""
import torch

from ... import expect
from ...lab import Mismatch
from ..shapes import _mha_evidence as attention
from ._gqa_oracle import rows

OUTPUT, WEIGHTS = ("batch", "query", "channel"), ("batch", "head", "query", "key")
KEPT = ("batch", "key/value head", "token", "channel")


def state(shapes, sizes):
    """The parameters of a grouped checkpoint, by name and shape."""
    want, (_, heads, groups, width) = rows(sizes), sizes
    parts = [f"it has no {name}" for name in want if name not in shapes]
    parts += [f"{name} is {list(shapes[name])}, expected {list(shape)}" for name, shape in want.items()
              if name in shapes and tuple(shapes[name]) != shape]
    parts += [f"it has {name} {list(shape)} too" for name, shape in shapes.items() if name not in want][:4]
    expect.true(not parts, f"a checkpoint of {heads} query heads and {groups} key/value heads, {width} wide, does not "
                           f"fit the module's state: {'; '.join(parts)}")


def triple(got):
    """(output, probabilities, (k, v))."""
    found = f"{len(got)} values" if isinstance(got, (tuple, list)) else f"a {type(got).__name__}"
    expect.true(isinstance(got, (tuple, list)) and len(got) == 3,
                f"forward returned {found}, expected (output, probabilities, cache)")
    output, probabilities, cache = got
    kept = f"{len(cache)} values" if isinstance(cache, (tuple, list)) else "None" if cache is None else \
        f"a {type(cache).__name__}"
    expect.true(isinstance(cache, (tuple, list)) and len(cache) == 2,
                f"the cache that forward returned is {kept}, expected the pair (k, v)")
    return (expect.tensor(output, "output"), expect.tensor(probabilities, "probabilities"),
            tuple(expect.tensor(t, f"the cached {n}") for t, n in zip(cache, ("k", "v"), strict=True)))


def forms(got, want):
    """Shapes and dtypes of all four tensors."""
    for mine, oracle, what, axes in zip(_flat(got), _flat(want), ("output", "probabilities", "the cached k",
                                                                  "the cached v"),
                                        ("[B,T,M]", "[B,H,T,S]", "[B,G,S,D]", "[B,G,S,D]"), strict=True):
        expect.shape(mine, oracle.shape, what, axes)
        expect.dtype(mine, oracle.dtype, what)


def _flat(answer):
    return (*answer[:2], *answer[2])


def keys_seen(weights, want):
    """Which keys have a weight, where the contract gives none, and the other way round."""
    mine, due = weights > 1e-12, want > 1e-12
    wrong = (mine != due).nonzero()
    if len(wrong):
        b, h, t, _ = wrong[0].tolist()
        ours, theirs = ("{" + ",".join(map(str, s[b, h, t].nonzero().flatten().tolist())) + "}" for s in (mine, due))
        past = weights.shape[3] - weights.shape[2]
        place = f", which is row {past + t} after {past} cached rows," if past else ""
        raise Mismatch(f"sample {b}, query head {h}: new query {t}{place} sees keys {ours}, expected {theirs}")


def compare(got, want, width, loose=1e-9):
    """From the weights outwards."""
    forms(got, want)
    attention.rows(got[1])
    keys_seen(got[1], want[1])
    attention.scale(got[1], want[1], width)
    names, labels = (WEIGHTS, KEPT, KEPT, OUTPUT), ("probabilities", "the cached k", "the cached v", "output")
    for mine, oracle, what, axes in zip((got[1], *got[2], got[0]), (want[1], *want[2], want[0]), labels, names,
                                        strict=True):
        expect.close(mine, oracle, what, axes, atol=loose, rtol=loose)


def dense(shape, stride, shared, members):
    """Why the memory behind a cached tensor [B,G,S,D] is more than its elements; None when it is not.

    A buffer with room for more tokens is in order; so are k and v in one storage (`shared`).
    """
    due, after_tokens = 1, False
    for axis in sorted(range(4), key=lambda a: (stride[a], a)):
        if shape[axis] == 1:
            continue
        room = stride[axis] / due
        if shared and room == 2:
            due, shared, room = due * 2, False, 1
        spare = after_tokens and room > 1 and room != members
        if room != 1 and not spare:
            return f"neighbours along the {KEPT[axis]} axis lie {stride[axis]} elements apart, expected {due}"
        due, after_tokens = stride[axis] * shape[axis], axis == 2
    return None


def shares(layouts):
    return len({lay.storage for lay in layouts}) == 1


def strided(kept, layouts, members):
    """The cache keeps nothing alive beside its elements."""
    for name, tensor, lay in zip("kv", kept, layouts, strict=True):
        reason = dense(tuple(tensor.shape), tuple(lay.stride), shares(layouts), members)
        if reason:
            raise Mismatch(f"the cached {name} {list(tensor.shape)} has strides {tuple(lay.stride)}: {reason}; it is a "
                           "view that keeps a larger tensor alive")


def map_of_heads(output, groups):
    """For each output h the key/value head whose marker it shows."""
    markers = 10.0 ** torch.arange(groups, dtype=torch.float64)
    return [int((markers - value).abs().argmin()) if (markers - value).abs().min() < 1e-6 else None
            for value in output.tolist()]
