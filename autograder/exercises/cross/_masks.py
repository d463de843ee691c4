"""What both conversions of a mask share: the visibility they are tried on, and the refusals."""
import torch

from ... import expect
from ...exercise import CONTRACT
from ...standard import normal
from ._calls import E, X

HEADS = dict(E, heads=4)


def patterns(sizes):
    """(title, visible) pairs: one mask for all heads, and one for each head, every row with a visible key."""
    b, h, t, s = (torch.arange(sizes[n]) for n in ("batch", "heads", "targets", "sources"))
    shared = (b[:, None, None] + 2 * t[:, None] + 3 * s) % 4 != 0
    each = (2 * b[:, None, None, None] + 5 * h[:, None, None] + 3 * t[:, None] + s) % 3 != 1
    return shared[:, None], each


def qkv(sizes, seed=0):
    """Heads of equal width."""
    b, h, d = sizes["batch"], sizes["heads"], sizes["d_qk"]
    return [normal(b, h, sizes[n], d, seed=seed + i) for i, n in enumerate(("targets", "sources", "sources"))]


def refusals(exercise, call):
    """Adds the two refusals. `call(visible)` gives the arguments."""
    @exercise.case("refuses a mask that is not boolean", CONTRACT)
    def refuses_numbers(lab):
        shared, _ = patterns(E)
        lab.raises(ValueError, "bool", exercise.name, *call(shared.double(), E))
        lab.raises(ValueError, "bool", exercise.name, *call(shared.long(), E))

    @exercise.case("refuses a query without a visible key", CONTRACT)
    def refuses_blind(lab):
        for visible in patterns(X):
            visible = visible.clone()
            visible[1, 0, 2] = False
            lab.raises(ValueError, "no visible key", exercise.name, *call(visible, X))


def checked(visible):
    if visible.dtype != torch.bool:
        raise ValueError("visibility has to be bool")
    if not visible.any(-1).all():
        raise ValueError("no visible key for some query")
    return visible


def masked(got, shape, what="the mask"):
    """A tensor of this shape."""
    expect.shape(expect.tensor(got, what), shape, what)
    return got
