"""Which parameters of a module cannot change independently."""
import torch

from ... import expect
from ...exercise import Exercise
from ...lab import Opaque

exercise = Exercise(
    "tied_parameters", step=4, points=2, minutes=5, difficulty=3, importance=3, tensor=False,
    summary="Find the parameters that are one object or overlap in memory; copies and neighbours are not tied.",
    hints=(
        "Two names are tied when writing to one changes the other. You can find that out by trying, or by "
        "looking at addresses. Which is easier to undo?",
        "`named_parameters()` leaves out a parameter that it has met before. There is an argument for it.",
        "A parameter starts at `data_ptr()` and is numel · element_size bytes long. When do two such ranges share a "
        "byte? Sorted by their start, it is enough to look at neighbours and at how far you have come.",
    ),
    hides="without repeated objects the default of `named_parameters` is good enough; copies whose values differ hide "
          "a comparison of values; parameters with storages of their own hide a comparison of storages.",
)

ROLES = ("q_proj", "k_proj", "v_proj", "o_proj")


def _copies():
    """Four deep copies of one Linear(4, 4): equal values, four storages for the weights, four for the biases."""
    weight, bias = torch.arange(16, dtype=torch.float64), torch.arange(4, dtype=torch.float64)
    names = {f"{role}.{part}": 2 * i + j for i, role in enumerate(ROLES) for j, part in enumerate(("weight", "bias"))}
    parameters = [(2 * i + j, shape, stride, 0) for i in range(4) for j, (shape, stride) in enumerate(
        (((4, 4), (4, 1)), ((4,), (1,))))]
    return {"storages": [weight, bias] * 4, "parameters": parameters, "names": names}


def _one_linear():
    """One Linear(4, 4) under four names."""
    names = {f"{role}.{part}": j for role in ROLES for j, part in enumerate(("weight", "bias"))}
    return {"storages": [torch.arange(16.0), torch.arange(4.0)], "names": names,
            "parameters": [(0, (4, 4), (4, 1), 0), (1, (4,), (1,), 0)]}


def _slices(*starts, rows=12, size=4):
    """q, k and v as slices of `size` rows of 5 of one fused tensor, o on its own."""
    parameters = [(0, (size, 5), (5, 1), 5 * start) for start in starts] + [(1, (5, 4), (4, 1), 0)]
    return {"storages": [torch.arange(5.0 * rows), torch.arange(20.0) + 100], "parameters": parameters,
            "names": {f"{role}.weight": i for i, role in enumerate(ROLES)}}


def _shared_embedding():
    """An embedding that is the output map too: one object, two names, beside maps of their own."""
    storages = [torch.arange(12.0) + 100 * i for i in range(3)]
    return {"storages": storages, "parameters": [(i, (4, 3), (3, 1), 0) for i in range(3)],
            "names": {"embedding.weight": 0, "layer.q_proj.weight": 1, "layer.k_proj.weight": 2, "head.weight": 0}}


def _turned():
    """k is the transposed view of q: other values at every place but the diagonal, the same memory."""
    return {"storages": [torch.arange(12.0), torch.arange(12.0) + 50],
            "parameters": [(0, (4, 3), (3, 1), 0), (0, (3, 4), (1, 3), 0), (1, (4, 3), (3, 1), 0)],
            "names": {"q_proj.weight": 0, "k_proj.weight": 1, "v_proj.weight": 2}}


def _check(lab, recipe, *want):
    module = lab.specimen(recipe)
    got = lab.call("tied_parameters", module)
    groups = _groups(got)
    want = {frozenset(group) for group in want}
    for group in sorted(groups - want, key=sorted):
        real = next((w for w in want if w <= group or group <= w), None)
        raise expect.Mismatch(f"you report {_names(group)} as tied; "
                              + (f"tied are {_names(real)}" if real else "each of them can change alone"))
    for group in sorted(want - groups, key=sorted):
        raise expect.Mismatch(f"{_names(group)} cannot change independently, and you do not report them")


def _groups(got):
    kinds = (frozenset, set)
    good = isinstance(got, (list, tuple, set, frozenset)) and all(
        isinstance(g, kinds) and all(isinstance(n, str) for n in g) for g in got)
    if not good:
        kind = got.type if isinstance(got, Opaque) else type(got).__name__
        raise expect.Mismatch(f"the result is a {kind}, expected a list of frozensets of names")
    return {frozenset(g) for g in got if len(g) > 1}


def _names(group):
    return ", ".join(sorted(group))


@exercise.case("four deep copies of one Linear: nothing is tied")
def copies(lab):
    _check(lab, _copies())


@exercise.case("one Linear under four names: four weights are one, four biases are one")
def one_linear(lab):
    _check(lab, _one_linear(), [f"{r}.weight" for r in ROLES], [f"{r}.bias" for r in ROLES])


@exercise.case("disjoint slices of a fused tensor: nothing is tied")
def slices(lab):
    _check(lab, _slices(0, 4, 8))


@exercise.case("slices of a fused tensor, two of which overlap")
def overlapping(lab):
    _check(lab, _slices(0, 4, 6), ["k_proj.weight", "v_proj.weight"])


@exercise.case("an embedding that is also the output map")
def embedding(lab):
    _check(lab, _shared_embedding(), ["embedding.weight", "head.weight"])


@exercise.case("a transposed view is the same memory")
def turned(lab):
    _check(lab, _turned(), ["q_proj.weight", "k_proj.weight"])


def _every(module):
    return list(module.named_parameters(remove_duplicate=False))


def _range(p):
    return p.data_ptr(), p.data_ptr() + p.numel() * p.element_size()


def _overlap(p, q):
    (a, b), (c, d) = _range(p), _range(q)
    return a < d and c < b


def _grouped(named, tied):
    """Names in groups: a name joins every group in which it is tied to some member."""
    groups = []
    for name, p in named:
        near = [g for g in groups if any(tied(p, q) for _, q in g)]
        groups = [g for g in groups if g not in near] + [[(name, p), *(pair for g in near for pair in g)]]
    return [frozenset(n for n, _ in g) for g in groups if len(g) > 1]


@exercise.right
def identity_and_address_ranges(module):
    return _grouped(_every(module), lambda p, q: p is q or _overlap(p, q))


@exercise.right
def sorted_ranges(module):
    groups, reach = [], -1
    for begin, end, name in sorted((*_range(p), name) for name, p in _every(module)):
        if begin < reach:
            groups[-1].add(name)
        else:
            groups.append({name})
        reach = max(reach, end)
    return [frozenset(g) for g in groups if len(g) > 1]


@exercise.right
def in_place_probe(module):
    named = _every(module)
    groups = []
    with torch.no_grad():
        for _, p in named:
            before, own = {n: q.clone() for n, q in named}, p.clone()
            p.add_(1)
            touched = frozenset(n for n, q in named if not torch.equal(before[n], q))
            p.copy_(own)
            if len(touched) > 1 and touched not in groups:
                groups.append(touched)
    return groups


@exercise.right
def bytes_in_sets(module):
    owned = [(name, set(range(*_range(p), p.element_size()))) for name, p in _every(module)]
    groups = {frozenset(n for n, theirs in owned if mine & theirs) for _, mine in owned}
    return [g for g in groups if len(g) > 1]


@exercise.wrong
def deduplicated_names(module):
    """`named_parameters()` hides repeats unless told not to."""
    return _grouped(list(module.named_parameters()), _overlap)


@exercise.wrong(id="deduplicated-names")
def by_identity_among_the_deduplicated(module):
    return _grouped(list(module.named_parameters()), lambda p, q: p is q)


@exercise.wrong(id="deduplicated-names")
def by_first_address_among_the_deduplicated(module):
    return _grouped(list(module.named_parameters()), lambda p, q: p.data_ptr() == q.data_ptr())


def _equal(p, q):
    return p.shape == q.shape and torch.equal(p, q)


@exercise.wrong
def compares_values(module):
    """Deep copies start equal and are independent."""
    return _grouped(_every(module), _equal)


@exercise.wrong(id="compares-values")
def compares_values_of_the_deduplicated(module):
    return _grouped(list(module.named_parameters()), _equal)


@exercise.wrong(id="compares-values")
def values_or_memory(module):
    return _grouped(_every(module), lambda p, q: _equal(p, q) or _overlap(p, q))


def _storage(p):
    return p.untyped_storage().data_ptr()


@exercise.wrong
def same_storage_is_tied(module):
    """Disjoint slices of one fused tensor share a storage and no element."""
    return _grouped(_every(module), lambda p, q: _storage(p) == _storage(q))


@exercise.wrong(id="same-storage-is-tied")
def same_storage_of_the_deduplicated(module):
    return _grouped(list(module.named_parameters()), lambda p, q: _storage(p) == _storage(q))


@exercise.wrong
def counts_entries(module):
    """Four list entries may be one Linear."""
    entries = [name for name, _ in module.named_modules(remove_duplicate=False)]
    return [] if len(entries) == len(set(entries)) else [frozenset(entries)]
