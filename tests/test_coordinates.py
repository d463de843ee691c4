import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder.coordinates import address, block_order, coded, head_map, recover_strides, say, visible_sets

extents = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(extents)
def test_every_value_is_its_own_address(sizes):
    axes = {f"axis{i}": n for i, n in enumerate(sizes)}
    source = coded(**axes)
    for index in itertools.product(*map(range, sizes)):
        assert tuple(address(source[index].item(), axes).values()) == index


@pytest.mark.parametrize("value", [-1, 6, 1.5, float("nan"), float("inf")])
def test_what_is_no_address_is_said_to_be_none(value):
    axes = dict(token=2, head=3)
    assert address(value, axes) is None
    assert "no element of the input" in say(value, axes)


@given(extents, st.randoms())
def test_strides_and_offset_are_read_back(sizes, random):
    source = torch.arange(4000, dtype=torch.float64)
    strides = [random.randint(0, 20) for _ in sizes]
    view = source.as_strided(sizes, strides, 7)
    assert recover_strides(view) == (7, tuple(s if n > 1 else 0 for n, s in zip(sizes, strides, strict=True)))


def test_a_layout_that_is_not_affine_has_no_strides():
    assert recover_strides(torch.tensor([0.0, 1.0, 5.0])) is None
    assert recover_strides(torch.empty(0)) is None


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_a_uniform_average_of_powers_of_two_tells_its_keys(case):
    keys, seen = case
    mean = torch.tensor([sum(2.0**k for k in seen) / len(seen)], dtype=torch.float64)
    assert visible_sets(mean, keys) == [frozenset(seen)]


def test_an_ambiguous_average_is_not_guessed():
    assert visible_sets(torch.tensor([(1 + 4 + 64) / 3], dtype=torch.float64), 7) == [None]


def test_an_average_that_no_set_gives_is_none():
    assert visible_sets(torch.tensor([0.3, float("nan")], dtype=torch.float64), 4) == [None, None]


def test_head_map_reads_the_marker_of_each_head():
    markers = torch.tensor([10.0, 20.0, 30.0])
    assert head_map(torch.tensor([10.0, 10.0, 30.0, 25.0]), markers) == [0, 0, 2, None]


def test_block_order_reads_runs():
    rows = torch.tensor([1.0, 1, 2, 2, 2, 9]).reshape(6, 1)
    assert block_order(rows, {"q": 1.0, "k": 2.0}) == [("q", 2), ("k", 3), ("?", 1)]
