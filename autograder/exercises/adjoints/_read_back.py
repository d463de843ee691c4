"""Where a gradient went: sentences about paths, rows and heads, read from the numbers of an answer."""
import torch

from . import _attention, _parts

PATHS = {"q": "the query path", "k": "the key path", "v": "the value path"}


def reader(grad_output, target, source, state, heads, visible=None, alias=False):
    """{part: sentence or None for a wrong value of it}: for the rows, and for every weight."""
    paths, grads = _attention.routes(grad_output, target, source, state, heads, visible)
    if alias:
        ends = {"x": "qkv"}
    else:
        ends = {"target": "q", "source": "kv"}
    found = {name: lambda got, roles=roles: _ends(got, {r: paths[r] for r in roles}) for name, roles in ends.items()}
    found |= {name: lambda got, want=want: _weight(got, want, heads) for name, want in grads.items()}
    return found


def _ends(got, paths):
    held = _parts.shares(got, paths)
    if held is None:
        return None
    if not any(held.values()):
        return "no path arrives there: it is cut off"
    parts = [f"{value:.4g} times {PATHS[role]}" for role, value in held.items()]
    many = len(paths) > 1
    return f"it holds {' and '.join(parts)}; {'each of them' if many else 'that path'} belongs into it once"


def _weight(got, want, heads):
    if want.dim() == 2 and got.shape == want.mT.shape and torch.allclose(got.double(), want.mT):
        return "it is the transpose: [in,out], where the stored weight is [out,in]"
    if got.shape != want.shape or not got.isfinite().all():
        return None
    factor = (got.double() * want).sum() / (want * want).sum()
    if torch.allclose(got.double(), factor * want, atol=1e-9) and want.abs().max() > 1e-9:
        return f"all of it is {factor:.4g} times what it should be"
    axis = 0 if want.shape[0] % heads == 0 and want.shape[0] > want.shape[-1] or want.dim() == 1 else 1
    if want.shape[axis] % heads:
        return None
    pairs = zip(got.double().chunk(heads, axis), want.chunk(heads, axis), strict=True)
    wrong = [h for h, (a, b) in enumerate(pairs) if not torch.allclose(a, b, atol=1e-9)]
    if 0 < len(wrong) < heads:
        return f"the slice of head {wrong[0]} is wrong, that of head {min(set(range(heads)) - set(wrong))} is right"
    return None


def leak(got, visible):
    """(sample, source row, size) of a gradient that reached a row which no query sees; None without one.

    `got` is [B,S,M], `visible` broadcasts to [B,H,T,S].
    """
    unseen = ~visible.expand(got.shape[0], -1, -1, -1).any(1).any(1)
    sizes = got.abs().amax(-1) * unseen
    if not got.isfinite().all() or not sizes.max() > 1e-9:
        return None
    b, s = (sizes == sizes.max()).nonzero()[0].tolist()
    return b, s, sizes[b, s].item()


def one_head_each(state, heads):
    """The state with a W_O in which output channel c is written by head c mod H alone."""
    weight = state["o_proj.weight"].clone()
    d = weight.shape[1] // heads
    for c in range(weight.shape[0]):
        for h in range(heads):
            if h != c % heads:
                weight[c, h * d:(h + 1) * d] = 0
    return state | {"o_proj.weight": weight}


def one_unit(shape, sample, row, channel):
    g = torch.zeros(shape, dtype=torch.float64)
    g[sample, row, channel] = 1
    return g
