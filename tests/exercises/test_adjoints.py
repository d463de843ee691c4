"""Session 04: oracles that agree with measurements, answers that pass through the real worker, generated layouts."""
import inspect
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import mha_lab.given as primitive
from autograder.diagnosis import diagnose
from autograder.exercise import Program
from autograder.exercises import find, select
from autograder.exercises.adjoints import _affine, _attention, _parts, _read_back
from autograder.exercises.adjoints import key_bias_direction as null_direction
from autograder.exercises.adjoints import recomputed_attention as recompute
from autograder.standard import normal
from solutions import adjoints as answers

from .other_words import PROGRAMS

SOLUTION = Path(inspect.getfile(answers)).read_text(encoding="utf-8")


# --- the course's answers ---

def test_the_answers_pass_through_the_real_worker(grader, lab):
    reports = grader.check(select("04"), lab("adjoints", SOLUTION))
    assert [(r.exercise, r.status, [c.message for c in r.cases]) for r in reports if r.status != "passed"] == []
    assert sum(r.score for r in reports) == 23


def test_wrong_programs_are_named_through_the_real_worker(grader, lab):
    wrong = SOLUTION.replace('paths["k"] + paths["v"]', 'paths["v"]') \
        .replace("ctx.save_for_backward(q, k, v, visible)", "ctx.inputs = q, k, v, visible") \
        .replace("ctx.saved_tensors", "ctx.inputs") \
        .replace("f(x + step) - f(x - step)) / (2 * eps)", "f(x + step) - f(x)) / eps")
    names = "central_difference", "cross_attention_backward", "RecomputedAttention"
    reports = grader.check(map(find, names), lab("adjoints", wrong))
    assert [r.diagnosis.ids for r in reports] == [
        ["forward-difference"], ["source-from-values-only", "path-overwrites-path"], ["stashed-on-ctx"]]


@pytest.mark.parametrize("exercise, id_, program", PROGRAMS, ids=lambda p: getattr(p, "__name__", str(p)))
def test_a_mistake_is_known_in_other_words(exercise, id_, program):
    exercise = find(exercise)
    trials = exercise.try_program(Program(f"in other words {id(program)}", {exercise.name: program}, ""))
    found = diagnose(exercise, trials)
    failing = [(t.case.title, t.message) for t in trials if not t.passed]
    assert id_ in found.ids and len(found.ids) <= 2 if id_ else not failing, failing


@pytest.mark.parametrize("name, ids", [
    ("split_adjoint", {"relabelled-gradient", "flatten-without-swap"}),
    ("cross_attention_backward", {"source-from-values-only", "path-overwrites-path"}),
])
def test_what_no_case_can_tell_apart_is_one_program_in_two_spellings(name, ids):
    exercise = find(name)
    found = [set(diagnose(exercise, exercise.try_program(p)).ids) for p in exercise.wrongs if p.id in ids]
    assert ids in found


# --- the oracles ---

def test_the_oracle_of_an_affine_map_is_what_a_measurement_gives():
    x, g, w = _affine.inputs(2, 3, 4, 5)
    for number, (tensor, want) in enumerate(zip((x, w, normal(5, seed=9)), _affine.oracle(x, g, w), strict=True)):
        def loss(t, number=number):
            parts = [x, w, torch.zeros(5, dtype=torch.float64)]
            parts[number] = t
            return (F.linear(*parts) * g).sum()
        assert torch.allclose(answers.central_difference(loss, tensor), want, atol=1e-7)


@pytest.mark.parametrize("masked", [False, True])
def test_the_oracle_of_attention_is_what_a_measurement_gives(masked):
    state = _attention.state(_attention.FIXTURE)
    visible = _attention.rectangle(_attention.FIXTURE) if masked else None
    want = _attention.oracle(*_attention.rows(_attention.FIXTURE), state, 3, visible)
    for name, (at, slope) in _attention.measured(masked=masked, alias=False).items():
        assert abs(want[name][at].item() - slope) < 1e-7 * max(1, abs(slope)), name


def test_the_oracle_agrees_with_the_given_primitive():
    q, k, v, g = recompute.inputs(recompute.A)
    visible = recompute.rectangle(recompute.A)
    heads, grads = recompute.oracle(q, k, v, g, visible)
    given_heads, p = primitive.attend(*(t.detach() for t in (q, k, v)), visible)
    assert torch.allclose(heads, given_heads, atol=1e-12)
    for ours, theirs in zip(grads, primitive.local_backward(g, q, k, v, p), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_the_fixtures_leave_every_query_a_key_and_hide_one_row_from_all():
    for visible in (_attention.rectangle(_attention.FIXTURE), _attention.each_head(_attention.FIXTURE),
                    recompute.rectangle(recompute.A), recompute.rectangle(recompute.TRAP)):
        assert visible.any(-1).all() and not visible.all()
    assert not _attention.rectangle(_attention.FIXTURE)[1, 0, :, 2].any()


# --- reading back ---

def test_the_share_of_each_path_is_read_back():
    paths = {"k": normal(2, 3, seed=1), "v": normal(2, 3, seed=2)}
    assert _parts.shares(2 * paths["k"] + 0 * paths["v"], paths) == {"k": 2.0, "v": 0.0}
    assert _parts.shares(normal(2, 3, seed=3), paths) is None
    assert _parts.shares(normal(3, 2, seed=3), paths) is None


def test_the_rows_of_a_sum_are_read_back():
    x, g, _ = _affine.inputs(2, 4, 24, 7)
    grad = torch.einsum("bto,bti->oi", g[:, 1:], x[:, 1:])
    assert _affine.row_shares(grad, g, x).tolist() == [[0, 1, 1, 1]] * 2
    assert _affine.row_shares(g[1].sum(0) / 2, g).tolist() == [[0] * 4, [0.5] * 4]
    assert _affine.row_shares(g[:, 2].sum(0), g).tolist() == [[0, 0, 1, 0]] * 2
    assert _affine.row_shares(normal(7, 24), g, x) is None


def test_one_unit_passes_one_head():
    state = _read_back.one_head_each(_attention.state(_attention.FIXTURE), 3)
    g, target, source = _attention.rows(_attention.FIXTURE)
    for head in range(3):
        found = _attention.oracle(_read_back.one_unit(g.shape, 1, 2, head), target, source, state, 3)
        touched = found["v_proj.weight"].unflatten(0, (3, 8)).flatten(1).abs().sum(1) > 1e-12
        assert touched.tolist() == [h == head for h in range(3)]
        assert not found["target"][0].any() and found["target"][1].abs().sum(-1).nonzero().tolist() == [[2]]


# --- what the text claims ---

def test_a_constant_cotangent_cannot_see_a_wrong_split():
    packed = normal(2, 5, 18).requires_grad_()
    pair = packed.unflatten(-1, (3, 6)).transpose(1, 2), packed.view(2, 3, 5, 6)
    ones, random = torch.ones_like(pair[0]), normal(2, 3, 5, 6, seed=1)
    right, wrong = ([torch.autograd.grad(h, packed, g, retain_graph=True)[0] for g in (ones, random)] for h in pair)
    assert torch.equal(right[0], wrong[0]) and int((right[1] != wrong[1]).sum()) == 144


def test_the_key_bias_has_no_gradient_and_its_shift_is_what_softmax_ignores():
    sizes = _attention.FIXTURE
    for visible in (None, _attention.rectangle(sizes), _attention.each_head(sizes)):
        grads = answers.cross_attention_backward(*_attention.rows(sizes), _attention.state(sizes), 3, visible)
        assert grads["k_proj.bias"].abs().max() < 1e-12
        assert min(grads[f"{r}_proj.bias"].abs().max() for r in "qvo") > 0.1
    q, bias = normal(2, 3, 4, 6, seed=1), normal(18, seed=2)
    assert torch.allclose(answers.key_bias_direction(q, bias), null_direction.oracle(q, bias), atol=1e-12)


def test_values_of_zero_shut_every_gate_but_their_own():
    sizes, zeroed = _attention.FIXTURE, ("v_proj.weight", "v_proj.bias")
    state = _attention.state(sizes)
    state |= {name: torch.zeros_like(state[name]) for name in zeroed}
    grads = answers.cross_attention_backward(*_attention.rows(sizes), state, 3)
    weights = [r for r in "qkvo" if grads[f"{r}_proj.weight"].abs().max() > 1e-12]
    assert weights == ["v"] and not grads["target"].abs().max() > 1e-12 and not grads["source"].abs().max() > 1e-12


def test_a_recomputed_gradient_passes_the_framework_s_own_check():
    q, k, v, _ = recompute.inputs((1, 2, 3, 4, 2, 3))
    visible = recompute.rectangle((1, 2, 3, 4, 2, 3))

    def call(*rows):
        torch.manual_seed(4)
        return answers.RecomputedAttention.apply(*rows, visible, 0.3, True)
    with torch.random.fork_rng(devices=[]):
        assert torch.autograd.gradcheck(call, (q, k, v))


# --- generated layouts ---

SIZES = st.tuples(*[st.integers(1, 5)] * 4)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.permutations([0, 1, 2]), st.integers(0, 2**16))
def test_the_layout_adjoints_are_adjoints_from_any_strides(sizes, order, seed):
    b, h, s, d = sizes
    inverse = [order.index(i) for i in range(3)]
    rows = normal(*[(b, s, h * d)[i] for i in order], seed=seed).permute(inverse)
    assert rows.shape == (b, s, h * d)
    u = normal(b, h, s, d, seed=seed + 1)
    back, packed = answers.merge_adjoint(rows, h), answers.split_adjoint(u)
    assert torch.equal(answers.split_adjoint(back), rows) and torch.equal(answers.merge_adjoint(packed, h), u)
    assert torch.isclose((packed * rows).sum(), (u * back).sum())


@settings(max_examples=25, deadline=None)
@given(SIZES, st.integers(1, 4), st.integers(0, 2**16), st.booleans())
def test_the_gradients_of_any_sizes_are_autograd_s(sizes, width, seed, bias):
    b, h, s, d = sizes
    shape = dict(batch=b, heads=h, targets=width, sources=s, d_qk=d, d_v=width + 1, width=s + 1)
    state = _attention.state(shape, bias=bias, seed=seed)
    rows = _attention.rows(shape, seed=seed)
    got, want = answers.cross_attention_backward(*rows, state, h), _attention.oracle(*rows, state, h)
    assert got.keys() == want.keys() and all(torch.allclose(got[n], want[n], atol=1e-9) for n in want)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 2**16))
def test_a_central_difference_of_a_quadratic_is_exact_for_every_shape(shape, seed):
    x, a = normal(*shape, seed=seed), normal(*shape, seed=seed + 1)
    assert torch.allclose(answers.central_difference(lambda p: (a * p * p).sum(), x, 1e-3), 2 * a * x, atol=1e-9)
