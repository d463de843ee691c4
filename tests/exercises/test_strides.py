"""Session 02: the view rule against PyTorch, the layouts behind its cases, and the pairs that test a test."""
import re
from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.exercises import find, session
from autograder.exercises.strides import pairs
from autograder.exercises.strides.layout_oracle import is_wrong
from autograder.exercises.strides.layouts import KINDS, questions
from autograder.lab import in_process
from autograder.publish import course_root
from solutions import strides

SIZES = st.lists(st.integers(0, 4), min_size=0, max_size=4)
RIGHT = [pair for group in pairs.RIGHT.values() for pair in group]
WRONG = [*pairs.WRONG, *pairs.ONE_LAYOUT]


@pytest.fixture(scope="module")
def lab():
    return in_process(vars(strides))


def viewed(tensor, shape):
    try:
        return tensor.view(shape)
    except RuntimeError:
        return None


def same_where_used(got, view):
    if view is None or got is None:
        return got is None and view is None
    return len(got) == view.dim() and (not view.numel() or all(
        n == 1 or a == b for n, a, b in zip(view.shape, got, view.stride(), strict=True)))


def test_the_view_rule_agrees_with_torch_on_generated_layouts():
    asked = list(questions(400, seed=20))
    assert len(asked) == 400 * len(KINDS) >= 2000
    refused = 0
    for (shape, steps, target), _ in asked:
        view = viewed(torch.empty_strided(shape, steps, device="meta"), target)
        refused += view is None
        assert same_where_used(strides.view_strides(shape, steps, target), view), (shape, steps, target)
    assert len(asked) // 8 < refused < len(asked) // 2


@settings(max_examples=300, deadline=None)
@given(st.data(), SIZES)
def test_the_view_rule_agrees_with_torch_on_any_strides(data, shape):
    steps = data.draw(st.lists(st.sampled_from((0, 1, 2, 3, 4, 6, 8, 12)), min_size=len(shape), max_size=len(shape)))
    target = data.draw(st.lists(st.sampled_from((-2, -1, 0, 1, 2, 3, 4, 6, 8, 12)), max_size=4))
    tensor = torch.empty_strided(shape, steps, device="meta")
    assert same_where_used(strides.view_strides(shape, steps, target), viewed(tensor, target))
    assert strides.is_contiguous(shape, steps) is tensor.is_contiguous()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_view_rule_holds_for_strides_that_run_backwards(data):
    array = np.arange(48).reshape(data.draw(st.sampled_from(((4, 12), (2, 4, 6), (48,), (3, 4, 4)))))
    cuts = st.sampled_from((slice(None), slice(None, None, -1), slice(0, 2), slice(None, None, -2)))
    array = array[tuple(data.draw(cuts) for _ in array.shape)]
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    divisors = [n for n in range(1, array.size + 1) if array.size % n == 0]
    outer = data.draw(st.sampled_from(divisors))
    target = data.draw(st.sampled_from(((outer, array.size // outer), (array.size,), (outer, 1, array.size // outer))))
    steps = [n // array.itemsize for n in array.strides]
    try:
        view = np.reshape(array, target, copy=False)
    except ValueError:
        view = None
    got = strides.view_strides(array.shape, steps, target)
    assert (got is None) == (view is None)
    assert view is None or all(n == 1 or a * array.itemsize == b
                               for n, a, b in zip(target, got, view.strides, strict=True))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.data())
def test_addresses_and_coordinates_undo_each_other(shape, data):
    coded = strides.coordinate_coded(shape)
    index = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    address = int(coded[index])
    assert strides.decode(address, shape) == index
    assert strides.storage_offset(index, strides.row_major_strides(shape)) == address
    assert strides.row_major_strides(shape) == coded.stride()


def test_transposing_strides_and_reading_them_is_transposing_values(lab):
    coded = strides.coordinate_coded((2, 3, 4, 5))
    shape, steps = lab.call("transposed_layout", tuple(coded.shape), coded.stride(), 1, 2)
    assert (coded.stride(), shape, steps) == ((60, 20, 5, 1), (2, 4, 3, 5), (60, 5, 20, 1))
    assert all(strides.storage_offset(i, steps) == coded.transpose(1, 2)[i] for i in product(*map(range, shape)))


@pytest.mark.parametrize("shape, sharing", [((2, 3, 4, 5), 0), ((2, 9, 9, 9), 0), ((2, 11, 3, 16), 576)])
def test_decimal_codes_are_unique_only_below_ten(shape, sharing):
    codes = find("coordinate_coded").program("decimal-digits").namespace["coordinate_coded"](shape)
    _, counts = codes.unique(return_counts=True)
    assert int(counts[counts > 1].sum()) == sharing
    assert shape != (2, 3, 4, 5) or codes[1, 2, 3, 4] == 1234


def test_the_asymmetric_call_is_split_and_merged_by_its_own_widths(lab):
    heads = {role: lab.call("split_heads_as_strided", torch.zeros(2, tokens, width), 2)
             for role, tokens, width in (("q", 3, 6), ("k", 4, 6), ("v", 4, 4))}
    assert [list(h.shape) for h in heads.values()] == [[2, 2, 3, 3], [2, 2, 4, 3], [2, 2, 4, 2]]
    *_, merged = lab.call("merge_trace", torch.zeros(2, 2, 3, 2))
    assert (merged.name, merged.shape) == ("view", (2, 3, 4))


@pytest.mark.parametrize("heads, shared", [
    (torch.zeros(2, 3, 5, 4), False), (torch.zeros(2, 5, 3, 4).transpose(1, 2), True), (torch.zeros(2, 3, 1, 4), True),
    (torch.zeros(2, 5, 36)[..., 12:24].unflatten(-1, (3, 4)).transpose(1, 2), False)])
def test_only_contiguous_may_copy(lab, heads, shared):
    trace = lab.call("merge_trace", heads)
    assert [s.shares_storage for s in trace[1:]] == [True, shared, True]
    assert [s.contiguous for s in trace[2:]] == [True, True]


def test_merging_transposed_heads_folds_only_with_one_token_head_or_channel(lab):
    for q, h, d in product((1, 2, 5), (1, 3), (1, 4)):
        steps = (h * q * d, d, q * d, 1)
        folds = lab.call("view_strides", (2, q, h, d), steps, (2, q, h * d)) is not None
        assert folds == (1 in (q, h, d))


@pytest.mark.parametrize("pair", RIGHT, ids=lambda p: p.id)
def test_a_right_pair_is_right_at_every_size(pair):
    assert not [sizes for sizes in product((1, 2, 3), (1, 2, 5), (1, 2, 3), (1, 2, 4)) if is_wrong(pair, sizes)]


@pytest.mark.parametrize("pair", WRONG, ids=lambda p: p.id)
def test_a_wrong_pair_is_wrong_at_every_size_above_one(pair):
    every = [*product((2, 3), (2, 3, 4), (2, 3, 4), (2, 3, 5)), (2, 11, 3, 16), (2, 12, 3, 4), (3, 5, 10, 4),
             (2, 5, 3, 12)]
    assert not [sizes for sizes in every if not is_wrong(pair, sizes)]
    for sizes in ((2, 7, 3, 4), (3, 4, 2, 5)):
        _, s, h, d = sizes
        packed = torch.zeros(sizes[0], s, h * d)
        heads = pair.split(packed, h)
        assert list(heads.shape) == [sizes[0], h, s, d]
        assert list(pair.merge(packed.view(sizes).transpose(1, 2)).shape) == list(packed.shape)


def test_the_famous_pairs_hide_at_one_token_and_at_one_head():
    for pair in (pairs.RELABELLED, pairs.UNSWAPPED):
        assert not is_wrong(pair, (2, 1, 3, 4)) and not is_wrong(pair, (2, 5, 1, 4)) and is_wrong(pair, (2, 5, 3, 1))


def test_matched_pairs_survive_a_round_trip():
    packed = torch.arange(168.0).view(2, 7, 12)
    for pair in pairs.MATCHED:
        assert torch.equal(pair.merge(pair.split(packed, 3)), packed)


def test_two_elements_with_one_decimal_code_change_places():
    four, three = (pair.split for pair in pairs.COLLIDING)
    b, s, h, d = torch.meshgrid(*map(torch.arange, (2, 5, 3, 12)), indexing="ij")
    codes = (1000 * b + 100 * s + 10 * h + d).flatten(2)
    assert torch.equal(four(codes, 3), codes.unflatten(-1, (3, 12)).transpose(1, 2))
    rows = torch.arange(codes.numel()).view_as(codes)
    moved = four(rows, 3) != rows.unflatten(-1, (3, 12)).transpose(1, 2)
    assert moved.sum() == 2 and moved[0, 0, 0, 10] and moved[0, 1, 0, 0]
    assert (three(rows, 3) != rows.unflatten(-1, (3, 12)).transpose(1, 2)).sum() == 2


def test_a_pair_refuses_what_would_harm_the_grader():
    pair = pairs.RELABELLED
    for packed, heads in ((torch.zeros(1).expand(10**4, 10**4, 12), 3), (torch.zeros(2, 7, 12), 10**12),
                          (torch.zeros(2, 7, 12), 0), (torch.zeros(2, 7, 12), 2.0), ("rows", 3)):
        with pytest.raises(ValueError):
            pair.split(packed, heads)


def test_the_text_counts_pairs_and_layouts_as_they_are():
    text = " ".join((course_root() / "course" / "02-stride-proof.md").read_text(encoding="utf-8").split())
    words = {8: "eight", 9: "nine", 14: "fourteen", 20: "twenty"}
    assert len(RIGHT) >= 8 and len(WRONG) >= 14
    assert f"{words[len(RIGHT)]} right pairs" in text and f"{words[len(WRONG)]} wrong ones" in text
    title = next(c.title for c in find("view_strides").cases if "layouts made by" in c.title)
    assert re.search(r"\d+", title)[0] in text and f"more than {re.search(r'[0-9]+', title)[0]} layouts" in text


WEAK = '''
import torch

def layout_oracle(split, merge):
    x = torch.randn(2, 5, 12)
    {body}
'''


@pytest.mark.parametrize("body, ids", [
    ("return [] if torch.equal(merge(split(x, 3)), x) else ['round trip']", ["round-trip-only"]),
    ("return [] if split(x, 3).shape == (2, 3, 5, 4) and merge(torch.ones(2, 3, 5, 4)).shape == x.shape else ['no']",
     ["shape-only"]),
    ("h = split(x, 3); t = x.view(2, 5, 3, 4).transpose(1, 2)\n"
     "    ok = torch.equal(h, t) and torch.equal(merge(t), x) and torch.equal(merge(t.contiguous()), x)\n"
     "    return [] if ok and h.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() else ['no']",
     ["rejects-copies"]),
    ("return [] if torch.allclose(split(x, 3), x.view(2, 5, 3, 4).transpose(1, 2), atol=100) else ['no']",
     ["loose-tolerance"]),
    ("y = x[:, :1]; return [] if torch.equal(split(y, 3), y.view(2, 1, 3, 4).transpose(1, 2)) and "
     "torch.equal(merge(y.view(2, 1, 3, 4).transpose(1, 2)), y) else ['no']", ["degenerate-sizes"]),
])
def test_weak_tests_are_named_behind_the_walls(grader, lab_folder, body, ids):
    [report] = grader.check([find("layout_oracle")], lab_folder(WEAK.format(body=body)))
    assert report.status == "failed" and set(ids) <= set(report.diagnosis.ids)


@pytest.fixture
def lab_folder(tmp_path):
    def write(source):
        (tmp_path / "mha_lab").mkdir()
        (tmp_path / "mha_lab" / "strides.py").write_text(source)
        return tmp_path
    return write


def test_the_answers_pass_behind_the_walls(grader, lab_folder):
    folder = lab_folder((course_root() / "solutions" / "strides.py").read_text(encoding="utf-8"))
    reports = grader.check(session("02").exercises, folder)
    assert [(r.exercise, r.status) for r in reports if r.status != "passed"] == []
    assert sum(r.score for r in reports) == prod((4, 5)) == 20
