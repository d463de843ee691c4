"""Reading attention back: from weights and coded outputs to sentences about queries, keys and heads."""
import torch

from ... import expect
from ...coordinates import visible_sets


def state(shapes, d_model, bias=False):
    """The parameters of a packed checkpoint, by name and shape."""
    want = {f"{n}_proj.weight": (d_model, d_model) for n in "qkvo"}
    if bias:
        want |= {f"{n}_proj.bias": (d_model,) for n in "qkvo"}
    missing = [k for k in want if k not in shapes]
    extra = [f"{k} {list(v)}" for k, v in shapes.items() if k not in want]
    misshapen = [f"{k} is {list(shapes[k])}, expected {list(want[k])}" for k in want
                 if k in shapes and tuple(shapes[k]) != want[k]]
    parts = ([f"it has no {', '.join(missing)}"] if missing else []) + misshapen
    if extra:
        parts.append(f"it has {', '.join(extra[:4])}{' and more' if len(extra) > 4 else ''}")
    expect.true(not parts, "a packed checkpoint does not fit the module's state: " + "; ".join(parts))


def pair(got):
    """(output, probabilities): exactly two tensors."""
    expect.true(isinstance(got, (tuple, list)) and len(got) == 2,
                f"forward returned {_kind(got)}, expected the pair (output, probabilities)")
    return expect.tensor(got[0], "output"), expect.tensor(got[1], "probabilities")


def forms(got, want):
    """Shapes and dtypes of both answers."""
    for mine, oracle, what, axes in zip(got, want, ("output", "probabilities"), ("[B,T,M]", "[B,H,T,S]"), strict=True):
        expect.shape(mine, oracle.shape, what, axes)
        expect.dtype(mine, oracle.dtype, what)


def rows(weights):
    """Every query distributes over keys: its weights sum to one."""
    if _is_one(weights.sum(-1)):
        return
    b, h, t = (~_one(weights.sum(-1))).nonzero()[0].tolist()
    total = weights[b, h, t].sum().item()
    if _is_one(weights.sum(-2).nan_to_num(1.0)):
        expect.true(False, f"each key distributes over queries: in sample {b}, head {h} the weights of key 0 sum to "
                           f"{weights[b, h, :, 0].sum().item():.4g} over the queries, those of query {t} to "
                           f"{total:.4g} over the keys")
    if _is_one(weights.sum(1).nan_to_num(1.0)):
        expect.true(False, f"the heads share one unit for each pair: in sample {b}, query {t} and key 0 have weights "
                           f"{_list(weights[b, :, t, 0])} in the heads, and the row of head {h} sums to {total:.4g}")
    expect.true(False, f"the weights of sample {b}, head {h}, query {t} are {_list(weights[b, h, t])}: they sum to "
                       f"{total:.4g}, expected 1")


def scale(weights, want, width):
    """The factor on the scores, read from the logarithms of the weights."""
    if not (weights > 0).all():
        return
    mine, theirs = ((w.log() - w.log().mean(-1, keepdim=True)).double() for w in (weights, want))
    factor = (mine * theirs).sum() / (theirs * theirs).sum()
    if torch.allclose(mine, factor * theirs, atol=1e-6) and abs(factor - 1) > 1e-4:
        expect.true(False, f"the scores are {factor:.4g} times those of the contract: it divides by "
                           f"√{width} = {width ** 0.5:.4g}, the weights show a division by {width ** 0.5 / factor:.4g}")


def alike(weights, want):
    """Heads with equal weights, where the contract's heads differ."""
    first = weights[:, :1]
    if weights.shape[1] > 1 and torch.allclose(weights, first.expand_as(weights), atol=1e-9) \
            and not torch.allclose(want, want[:, :1].expand_as(want), atol=1e-6):
        expect.true(False, f"all {weights.shape[1]} heads have the same weights, although each has maps of its own: "
                           f"query 0 of sample 0 has {_list(weights[0, 0, 0])} in every head")


def unmerged(output, want, merged):
    """An output that is still the merged heads."""
    if torch.allclose(output, merged, atol=1e-9) and not torch.allclose(want, merged, atol=1e-6):
        expect.true(False, f"output[0,0] begins {_list(output[0, 0, :3])}: these are the merged heads, expected "
                           f"{_list(want[0, 0, :3])} after W_O")


def averages(output, weights, visible, width):
    """Which keys each query averaged, from values 2^key under equal scores."""
    batch, heads, queries, keys = weights.shape
    seen = visible.expand_as(weights)
    found = visible_sets(output[..., ::width], keys)  # [B,T,H]
    for b in range(batch):
        for h in range(heads):
            got = [found[(b * queries + t) * heads + h] for t in range(queries)]
            want = [frozenset(seen[b, h, t].nonzero().flatten().tolist()) for t in range(queries)]
            wrong = [t for t in range(queries) if got[t] != want[t]][:2]
            if not wrong:
                continue
            place = f"sample {b}, head {h}: "
            total = output[b, wrong[0], h * width + 2].item()
            if abs(total - 1) > 1e-6:
                expect.true(False, f"{place}the weights with which query {wrong[0]} mixes values sum to {total:.4g}, "
                                   f"expected 1 over its visible keys {_set(want[wrong[0]])}")
            if any(got[t] is None for t in wrong):
                t = wrong[0]
                blocked = [s for s in range(keys) if s not in want[t] and weights[b, h, t, s] != 0]
                if blocked:
                    expect.true(False, f"{place}query {t} gives the blocked key {blocked[0]} the weight "
                                       f"{weights[b, h, t, blocked[0]].item():.4g}, expected 0; it may see "
                                       f"{_set(want[t])}")
                expect.true(False, f"{place}query {t} has no plain average of keys, expected that of {_set(want[t])}")
            subject = f"queries {_and(wrong)} average" if len(wrong) > 1 else f"query {wrong[0]} averages"
            expect.true(False, f"{place}{subject} keys {_and(_set(got[t]) for t in wrong)}, expected "
                               f"{_and(_set(want[t]) for t in wrong)}")


def _one(sums):
    return (sums.double() - 1).abs() < 1e-6


def _is_one(sums):
    return bool(_one(sums).all())


def _kind(got):
    if isinstance(got, torch.Tensor):
        return f"one tensor {list(got.shape)}"
    return f"{len(got)} values" if isinstance(got, (tuple, list)) else f"a {type(got).__name__}"


def _list(values):
    return "[" + ", ".join(f"{v:.3g}" for v in values.tolist()) + "]"


def _set(keys):
    return "{" + ",".join(map(str, sorted(keys))) + "}"


def _and(items):
    return " and ".join(map(str, items))
