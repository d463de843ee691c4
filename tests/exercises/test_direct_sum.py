"""Session 03: figures from the course's own answers, wrong programs in other words, answers that are no answers."""
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import solutions.direct_sum as answers
from autograder import lab as labs
from autograder.diagnosis import diagnose
from autograder.exercises import find, select, session
from autograder.exercises.direct_sum import permute_heads as permuting
from autograder.exercises.direct_sum._parallel import TWO, fixture, oracle
from autograder.exercises.direct_sum.reorder_fused_qkv import tags
from autograder.publish import course_root, stub
from mha_lab.given import attend

from .direct_sum_spellings import SPELLINGS

EXERCISES = select("03")
POINTS = dict(pack_heads=2, project_per_head=2, project=1, tied_parameters=2, qkv_spans=1, fuse_qkv=1, split_qkv=2,
              reorder_fused_qkv=4, head_writes=3, permute_heads=3, parameter_ledger=2, mac_ledger=2, checkpoint_bytes=1,
              heterogeneous_heads=3, tensor_parallel_attention=5)


def test_the_session_has_the_exercises_and_points_of_the_course():
    assert {e.name: e.points for e in EXERCISES} == POINTS


def test_the_answers_pass_in_the_worker_and_the_stub_is_not_started(grader, lab):
    text = (course_root() / "solutions" / "direct_sum.py").read_text()
    reports = grader.check(EXERCISES, lab("direct_sum", text))
    assert [(r.exercise, r.cases) for r in reports if r.status != "passed"] == []
    reports = grader.check(EXERCISES, lab("direct_sum", stub(course_root(), session("03"))))
    assert {r.status for r in reports} == {"not_started"}


def _named(name, source):
    namespace = {"torch": torch, "F": F}
    exec(source, namespace)
    exercise = find(name)
    lab_trials = [_try(exercise, case, namespace) for case in exercise.cases]
    return diagnose(exercise, lab_trials)


def _try(exercise, case, namespace):
    lab = labs.in_process(namespace)
    try:
        return exercise.attempt(case, lab)
    finally:
        lab.close()


@pytest.mark.parametrize("name, id, source", SPELLINGS, ids=[f"{n}-{i}-{k}" for k, (n, i, _) in enumerate(SPELLINGS)])
def test_a_wrong_program_in_other_words_has_the_same_name(name, id, source):
    found = _named(name, source)
    assert found and id in found.ids and len(found.ids) <= 2


HARD_CODED = """
def tensor_parallel_attention(x, state, num_heads, group):
    import torch.distributed as dist
    r = dist.get_rank(group)
    q, k, v = (F.linear(x, state[f"{n}_proj.weight"].view(2, 12, 10)[r]).reshape(5, 7, 3, 4).transpose(1, 2)
               + (state[f"{n}_proj.bias"].view(2, 3, 1, 4)[r] if f"{n}_proj.bias" in state else 0) for n in "qkv")
    merged = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(5, 7, 12)
    out = merged @ state["o_proj.weight"][:, 12 * r:12 * r + 12].T
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)
"""


def test_sizes_written_into_the_parallel_layer_are_named():
    assert _named("tensor_parallel_attention", HARD_CODED).ids == ["hard-codes-sizes"]


GARBAGE = [None, "text", float("nan"), [], {}, (None, None), [torch.ones(2), torch.ones(3)], torch.ones(0),
           torch.tensor(float("nan")), {"q": (1,), "k": None}, [{"a", "b"}], object()]
CHANGES = [lambda t: t * float("nan"), lambda t: t.flatten(), lambda t: t[:1], lambda t: t.to(torch.int64),
           lambda t: t.sum(), lambda t: t.to(torch.complex64), lambda t: t + 1e300, lambda t: t.new_zeros(0)]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_an_answer_that_is_none_fails_without_an_error_of_ours(exercise):
    right = exercise.rights[0].namespace[exercise.name]
    programs = [lambda *a, _v=value, **k: _v for value in GARBAGE]
    programs += [lambda *a, _c=change, **k: tree_map(
        lambda t: _c(t) if isinstance(t, torch.Tensor) else None, right(*a, **k)) for change in CHANGES]
    if not exercise.replayed:
        programs = programs[1::6]
    for program in programs:
        trials = [_try(exercise, case, {exercise.name: program}) for case in exercise.cases]
        assert not all(t.passed for t in trials)
        diagnose(exercise, trials)


# Figures that must come out, from the answers.

def test_spans():
    assert answers.qkv_spans(8, 64, 48) == {"q": (0, 512), "k": (512, 1024), "v": (1024, 1408)}
    assert answers.qkv_spans(8, 64, 64)["v"][1] == 1536


def test_parameters():
    narrow = answers.parameter_ledger(512, 8, 64, 48, bias=False)
    assert [narrow[r] for r in "qkvo"] == [262_144, 262_144, 196_608, 196_608] and narrow["total"] == 917_504
    equal = answers.parameter_ledger(512, 8, 64, 64, bias=False)
    assert equal["total"] == 1_048_576
    assert answers.parameter_ledger(512, 8, 64, 64)["total"] - equal["total"] == 2_048
    full = answers.parameter_ledger(512, 8, 512, 512, bias=False)
    assert full["total"] == 8_388_608 and sum(full[r] for r in "qkv") == 6_291_456
    assert sum(equal[r] for r in "qkv") == 786_432
    small = answers.parameter_ledger(6, 2, 3, 2)
    assert [small[r] for r in "qkvo"] == [42, 42, 28, 30]
    assert (small["weights"], small["biases"], small["total"]) == (120, 22, 142)
    assert {answers.parameter_ledger(12, h, 12 // h, 12 // h, False)["total"] for h in (1, 2, 3, 6)} == {576}
    gpt2 = answers.parameter_ledger(768, 12, 64, 64)
    assert gpt2["o"] == 589_824 + 768 == 590_592


def test_bytes():
    assert answers.checkpoint_bytes(6, 2, 3, 2, True, 4) == 568 == answers.checkpoint_bytes(6, 2, 3, 2, True, 4, True)
    assert answers.qkv_spans(2, 3, 2)["v"][1] == 16


def test_macs():
    small = answers.mac_ledger(2, 3, 4, 6, 2, 3, 2)
    assert list(small.values()) == [216, 288, 192, 144, 96, 144, 1_080]
    classic = answers.mac_ledger(1, 128, 128, 512, 8, 64, 64)
    assert sum(classic[r] for r in "qkvo") == 134_217_728 and classic["scores"] + classic["values"] == 16_777_216
    even = answers.mac_ledger(1, 1024, 1024, 512, 8, 64, 64)
    assert sum(even[r] for r in "qkvo") == even["scores"] + even["values"]
    assert 2 * answers.mac_ledger(1, 1, 1, 768, 12, 64, 64)["o"] == 1_179_648


def test_the_worked_example_of_w_o():
    logical = torch.tensor([[0.5, 0.1, 0, 0], [0, 0.5, 0.1, 0], [0.1, 0, 0.5, 0], [0, 0, 0.1, 0.5]])
    heads = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]])
    first, second = answers.head_writes(heads, logical.T)[0, :, 0]
    torch.testing.assert_close(first, torch.tensor([0.5, 1.1, 0.2, 0]))
    torch.testing.assert_close(second, torch.tensor([0.3, 0, 1.9, 2.0]))
    torch.testing.assert_close(first + second, torch.tensor([0.8, 1.1, 2.1, 2.0]))
    torch.testing.assert_close(answers.head_writes(heads, logical)[0, :, 0].sum(0), torch.tensor([0.7, 1.3, 1.6, 2.3]))


def test_a_bias_on_every_rank_is_exactly_one_bias_too_much():
    lab = labs.in_process(find("tensor_parallel_attention").program("bias-on-every-rank").namespace)
    x, state, heads = fixture(TWO, bias=True)
    for rank in lab.ranks("tensor_parallel_attention", x, state, heads):
        excess = rank.value - oracle(x, state, heads)
        torch.testing.assert_close(excess, state["o_proj.bias"].expand_as(excess), atol=1e-12, rtol=0)


def test_the_inverse_order_on_w_o_hides_for_an_order_that_is_its_own_inverse():
    """Claim 18: as a gather, W_O takes the same order."""
    program = find("permute_heads").program("wo-inverse-order").namespace["permute_heads"]
    state = permuting.make_state(3, 4, 6, 10, True, permuting.random_number)
    for order, same in ((permuting.SELF_INVERSE, True), (permuting.ORDER, False)):
        new, right = program(state, order), answers.permute_heads(state, order)
        assert torch.equal(new["o_proj.weight"], right["o_proj.weight"]) is same


# Generated sizes.

@given(st.data())
@settings(max_examples=40, deadline=None)
def test_every_conversion_of_a_fused_weight_is_a_lookup_of_its_tags(data):
    groups, d = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    heads = groups * data.draw(st.integers(1, 3))
    orders = ["qkv", "per_kv_group"] + (["per_head"] if heads == groups else [])
    source, target = data.draw(st.sampled_from(orders)), data.draw(st.sampled_from(orders))
    weight = torch.randn((heads + 2 * groups) * d, 3)
    got = answers.reorder_fused_qkv(weight, heads, groups, d, source, target)
    at = {tag: i for i, tag in enumerate(tags(heads, groups, d, source))}
    assert torch.equal(got, torch.stack([weight[at[tag]] for tag in tags(heads, groups, d, target)]))
    assert torch.equal(answers.reorder_fused_qkv(got, heads, groups, d, target, source), weight)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.booleans())
@settings(max_examples=30, deadline=None)
def test_fused_split_packed_and_per_head_are_one_thing(heads, d, d_v, width, bias):
    rows = [heads * d, heads * d, heads * d_v]
    pairs = [(torch.randn(n, width), torch.randn(n) if bias else None) for n in rows]
    fused, spans = answers.fuse_qkv(*pairs), answers.qkv_spans(heads, d, d_v)
    for (w, b), (again, again_b) in zip(pairs, answers.split_qkv(fused, spans), strict=True):
        assert torch.equal(w, again) and (b is None) is (again_b is None) and (b is None or torch.equal(b, again_b))
    weight, b = pairs[2]
    per_head = list(zip(weight.chunk(heads), b.chunk(heads) if bias else [None] * heads, strict=True))
    packed, packed_bias = answers.pack_heads(per_head)
    assert torch.equal(packed, weight) and (packed_bias is None or torch.equal(packed_bias, b))
    x = torch.randn(2, 3, width)
    each = torch.stack([F.linear(x, *pair) for pair in per_head], dim=1)
    torch.testing.assert_close(answers.project_per_head(x, packed, packed_bias, heads), each)
    logical = answers.project(x, packed.T, packed_bias, "in_out")
    torch.testing.assert_close(answers.project(x, packed, packed_bias), logical)


@given(st.permutations(range(4)))
@settings(max_examples=24, deadline=None)
def test_any_order_of_heads_leaves_the_output_and_permutes_the_writes(order):
    state = permuting.make_state(4, 3, 5, 7, True, permuting.random_number)
    new = answers.permute_heads(state, order)
    target, memory = torch.randn(2, 3, 7, dtype=torch.float64), torch.randn(2, 6, 7, dtype=torch.float64)

    def writes(state):
        q, k, v = (F.linear(x, state[f"{r}_proj.weight"], state[f"{r}_proj.bias"]).unflatten(-1, (4, -1))
                   .transpose(1, 2) for r, x in (("q", target), ("k", memory), ("v", memory)))
        return answers.head_writes(attend(q, k, v)[0], state["o_proj.weight"])
    before, after = writes(state), writes(new)
    torch.testing.assert_close(after, before[:, order])
    torch.testing.assert_close(after.sum(1), before.sum(1))


@pytest.mark.parametrize("heads, d_qk, d_v, width, bias", itertools.product(
    (1, 3), (2, 5), (4,), (7, 10), (True, False)))
def test_the_ledgers_agree_with_each_other(heads, d_qk, d_v, width, bias):
    ledger = answers.parameter_ledger(width, heads, d_qk, d_v, bias)
    assert ledger["total"] == ledger["weights"] + ledger["biases"] == sum(ledger[r] for r in "qkvo")
    assert answers.checkpoint_bytes(width, heads, d_qk, d_v, bias, 2) == 2 * ledger["total"]
    one_token = answers.mac_ledger(1, 1, 1, width, heads, d_qk, d_v)
    assert sum(one_token[r] for r in "qkvo") == ledger["weights"]
