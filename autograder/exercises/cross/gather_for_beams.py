"""Hypotheses move, sources stay."""
import torch

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from ...standard import normal

exercise = Exercise(
    "gather_for_beams", step=11, points=3, minutes=5, difficulty=3, importance=4, tensor=False,
    summary="Reorder the hypotheses of a beam search: target caches and the map follow the order, the source stays.",
    hints=(
        "Three things come in. For each ask: does it have one row a hypothesis, or one row a source?",
        "order[i] names the old row that becomes row i: read the old caches at these places. The map has a row for "
        "each hypothesis as well.",
        "An index serves where a copy would: nothing of the source moves, not even into a tensor of the same values.",
    ),
    hides="An order that is its own inverse hides an inverted one; beams that stay within their source hide a map that "
          "was kept; one beam a source hides a map rebuilt as row mod sources.",
)
SOURCES, BEAMS = 2, 3
CROSSED = (3, 0, 4, 4, 1, 2)  # not its own inverse, repeats a row, moves hypotheses to other sources
WITHIN = (1, 2, 0, 4, 5, 3)
CELL = ("hypothesis", "head", "position", "channel")


def _caches(rows, positions, seed):
    return tuple(normal(rows, 4, positions, d, seed=seed + i) for i, d in enumerate((5, 8)))


def _setting(order, sources=SOURCES, beams=BEAMS, seed=0, prefix=9):
    n = sources * beams
    each = torch.arange(sources).repeat_interleave(beams)
    return _caches(sources, 7, seed), each, _caches(n, prefix, seed + 10), torch.tensor(order)


def oracle(mapping, target, order):
    """(map, target caches), one row after another."""
    rows = order.tolist()
    return torch.stack([mapping[i] for i in rows]), [torch.stack([cache[i] for i in rows]) for cache in target]


def _parts(got):
    """(cross k, cross v, map, target k, target v)."""
    if not isinstance(got, (tuple, list)) or len(got) != 3 or not all(
            isinstance(got[i], (tuple, list)) and len(got[i]) == 2 for i in (0, 2)):
        raise Mismatch("the result is not ((k, v) of the sources, the map, (k, v) of the targets)")
    return (*got[0], got[1], *got[2])


def _run(lab, order, sources=SOURCES, beams=BEAMS, seed=0):
    cross, mapping, target, order = _setting(order, sources, beams, seed)
    k, v, new, *caches = _parts(lab.call("gather_for_beams", cross, mapping, target, order))
    want_map, want = oracle(mapping, target, order)
    for name, mine, right, old in zip(("k", "v"), caches, want, target, strict=True):
        try:
            expect.close(mine, right, f"the target's {name}", CELL, 0, 0)
        except Mismatch as m:
            raise Mismatch(f"{m}{_origin(mine, old, order)}", m.figure) from None
    for name, mine, right in zip(("k", "v"), (k, v), cross, strict=True):
        try:
            expect.close(mine, right, f"the source's {name}", ("source", *CELL[1:]), 0, 0)
        except Mismatch as m:
            raise Mismatch(f"{m}; there are {sources} sources, and an order of hypotheses does not touch them",
                           m.figure) from None
    expect.shape(new, want_map.shape, "the map", "[N]")
    wrong = (new != want_map).nonzero()
    if len(wrong):
        i = wrong[0, 0].item()
        raise Mismatch(f"the map is {new.tolist()}: hypothesis {i} was hypothesis {order[i].item()}, which reads "
                       f"source {mapping[order[i]].item()}")


def _origin(mine, old, order):
    """Which old hypothesis every row of a wrong cache was."""
    if not isinstance(mine, torch.Tensor) or mine.shape[1:] != old.shape[1:]:
        return ""
    found = [next((i for i, was in enumerate(old) if torch.equal(row, was)), None) for row in mine]
    return "" if None in found else f"; its rows are the old hypotheses {found}, the order asks for {order.tolist()}"


@exercise.case("2 sources with 3 beams each: some hypotheses move to the other source, one is taken twice")
def crossed(lab):
    _run(lab, CROSSED)


@exercise.case("an order within each source")
def within(lab):
    _run(lab, WITHIN, seed=100)


@exercise.case("3 sources with 2 beams each")
def other_sizes(lab):
    _run(lab, (5, 2, 0, 1, 1, 3), 3, 2, seed=200)


@exercise.case("the source lies where it lay, the target caches in new memory", CONTRACT)
def memory(lab):
    cross, mapping, target, order = _setting(CROSSED, seed=300)
    k, v, _, *caches = _parts(lab.call("gather_for_beams", cross, mapping, target, order, watch=("storage",)))
    facts = lab.last
    for name, mine, given in zip(("k", "v"), (k, v), cross, strict=True):
        here = tuple(facts.layout(mine).stride) == given.stride() and mine.shape == given.shape
        expect.true(facts.shares_storage(mine, given) and here,
                    f"the source's {name} was copied: {mine.numel() * mine.element_size()} bytes where an index serves")
    for name, mine, given in zip(("k", "v"), caches, target, strict=True):
        expect.true(not facts.shares_storage(mine, given), f"the target's {name} lies in the old cache's memory")


@exercise.case("refuses an order that names a hypothesis that is not there, or not all rows", CONTRACT)
def refuses(lab):
    for order in ((0, 1, 2, 3, 4, 6), (9, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, -1), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 5)):
        lab.raises(ValueError, "order", "gather_for_beams", *_setting(order))


def _checked(mapping, order):
    if len(order) != len(mapping) or min(order.tolist()) < 0 or max(order.tolist()) >= len(mapping):
        raise ValueError(f"order: one of the rows 0 to {len(mapping) - 1} for each hypothesis")


@exercise.right
def advanced_indexing(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    return cross_kv, beam_to_source[order], tuple(t[order] for t in target_kv)


@exercise.right
def index_select(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    k, v = target_kv
    return cross_kv, beam_to_source.index_select(0, order), (k.index_select(0, order), v.index_select(0, order))


@exercise.right
def a_loop(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    new_map, caches = torch.empty_like(beam_to_source), [torch.empty_like(t) for t in target_kv]
    for i, old in enumerate(order.tolist()):
        new_map[i] = beam_to_source[old]
        for cache, was in zip(caches, target_kv, strict=True):
            cache[i] = was[old]
    return (cross_kv[0], cross_kv[1]), new_map, tuple(caches)


@exercise.right
def selection_matrix(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    rows = torch.nn.functional.one_hot(order, len(beam_to_source))
    caches = tuple(torch.einsum("ij,jhpd->ihpd", rows.to(t.dtype), t) for t in target_kv)
    return cross_kv, rows @ beam_to_source, caches


@exercise.right
def gathered(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    caches = [t.gather(0, order.view(-1, 1, 1, 1).expand_as(t)) for t in target_kv]
    return list(cross_kv), beam_to_source.gather(0, order), caches


def _moved(target_kv, order):
    return tuple(t[order] for t in target_kv)


@exercise.wrong
def reorder_skipped(cross_kv, beam_to_source, target_kv, order):
    """Target caches kept the old hypotheses."""
    _checked(beam_to_source, order)
    return cross_kv, beam_to_source[order], tuple(t.clone() for t in target_kv)


@exercise.wrong(id="reorder-skipped")
def only_keys_reordered(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    return cross_kv, beam_to_source[order], (target_kv[0][order], target_kv[1])


@exercise.wrong(id="reorder-skipped")
def caches_returned(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    return cross_kv, beam_to_source[order], target_kv


@exercise.wrong
def source_permuted(cross_kv, beam_to_source, target_kv, order):
    """The shared source tensor was permuted."""
    _checked(beam_to_source, order)
    beams = len(order) // len(cross_kv[0])
    rows = beam_to_source[order][::beams]
    return tuple(x[rows] for x in cross_kv), beam_to_source[order], _moved(target_kv, order)


@exercise.wrong(id="source-permuted")
def first_rows_of_the_order(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    sources = len(cross_kv[0])
    return tuple(x[order[:sources] % sources] for x in cross_kv), beam_to_source[order], _moved(target_kv, order)


@exercise.wrong
def order_inverted(cross_kv, beam_to_source, target_kv, order):
    """Row i takes row order[i], not the reverse."""
    _checked(beam_to_source, order)
    back = order.argsort()
    return cross_kv, beam_to_source[back], _moved(target_kv, back)


@exercise.wrong(id="order-inverted")
def scattered(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    new_map, caches = beam_to_source.clone(), [t.clone() for t in target_kv]
    for old, new in enumerate(order.tolist()):
        new_map[new] = beam_to_source[old]
        for cache, was in zip(caches, target_kv, strict=True):
            cache[new] = was[old]
    return cross_kv, new_map, tuple(caches)


@exercise.wrong(id="order-inverted")
def scattered_caches(cross_kv, beam_to_source, target_kv, order):
    _, _, caches = scattered(cross_kv, beam_to_source, target_kv, order)
    return cross_kv, beam_to_source[order], caches


@exercise.wrong
def map_kept(cross_kv, beam_to_source, target_kv, order):
    """The beam-to-source map was not reordered."""
    _checked(beam_to_source, order)
    return cross_kv, beam_to_source, _moved(target_kv, order)


@exercise.wrong
def sources_tiled(cross_kv, beam_to_source, target_kv, order):
    """The map was rebuilt as row mod sources; beam g of source n is row n·N_b+g."""
    _checked(beam_to_source, order)
    return cross_kv, torch.arange(len(order)) % len(cross_kv[0]), _moved(target_kv, order)


@exercise.wrong(id="sources-tiled")
def order_mod_sources(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    return cross_kv, order % len(cross_kv[0]), _moved(target_kv, order)


@exercise.wrong
def source_expanded(cross_kv, beam_to_source, target_kv, order):
    """Physical copies were made where an index serves."""
    _checked(beam_to_source, order)
    new = beam_to_source[order]
    return tuple(x[new] for x in cross_kv), new, _moved(target_kv, order)


@exercise.wrong(id="source-expanded")
def expanded_before_the_order(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    return tuple(x[beam_to_source] for x in cross_kv), beam_to_source[order], _moved(target_kv, order)


@exercise.wrong(id="source-expanded")
def cloned(cross_kv, beam_to_source, target_kv, order):
    _checked(beam_to_source, order)
    return tuple(x.clone() for x in cross_kv), beam_to_source[order], _moved(target_kv, order)
