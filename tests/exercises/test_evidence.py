"""Session 08: oracles against frameworks and measurements, a real optimizer that goes on, the figures of the text."""
import copy
import inspect
import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from autograder import lab as labs
from autograder.diagnosis import diagnose
from autograder.exercise import VALUES, Program
from autograder.exercises import find, select
from autograder.exercises.evidence import _release, check_pipeline, gate_sensitivity, hard_concrete
from autograder.exercises.evidence import supports as supports_exercise
from autograder.publish import course_root
from autograder.standard import normal
from mha_lab import given as records
from mha_lab import induction
from solutions import evidence as answers

from .evidence_spellings import PROGRAMS

SOLUTION = Path(inspect.getfile(answers)).read_text(encoding="utf-8")
TEXT = (course_root() / "course" / "08-head-evidence.md").read_text(encoding="utf-8")


# --- the course's answers ---

def test_the_answers_pass_through_the_real_worker(grader, lab):
    reports = grader.check(select("08"), lab("evidence", SOLUTION))
    assert [(r.exercise, r.status, [c.message for c in r.cases]) for r in reports if r.status != "passed"] == []
    assert sum(r.score for r in reports) == 23


def test_wrong_programs_are_named_through_the_real_worker(grader, lab):
    wrong = SOLUTION.replace("slopes.abs().mean(0)", "slopes.mean(0).abs()") \
        .replace('places["o_proj.weight"] = (1, v)', 'places["o_proj.weight"] = (0, v)') \
        .replace("*heads.shape[:2], 1, 1, generator", "*heads.shape, generator") \
        .replace('"gradient": "local_dependence"', '"gradient": "removal_effect"')
    names = "gate_sensitivity", "head_dropout", "prune_heads", "supports"
    reports = grader.check(map(find, names), lab("evidence", wrong))
    assert [r.diagnosis.ids for r in reports] == [
        ["signed-average"], ["elements-dropped"], ["wo-output-axis"], ["slope-is-removal"]]


def test_a_baseline_that_was_changed_is_seen_through_the_real_worker(grader, lab):
    wrong = SOLUTION.replace('    return {"state": {name: cut(name, tensor) for name, tensor in state.items()}',
                             '    for name in list(state):\n        state[name] = cut(name, state[name])\n'
                             '    return {"state": state')
    [report] = grader.check([find("prune_heads")], lab("evidence", wrong))
    assert report.diagnosis.ids == ["source-modified"] and "state['q_proj.weight']" in report.diagnosis.evidence


@pytest.mark.parametrize("exercise, id_, program", PROGRAMS, ids=lambda p: getattr(p, "__name__", str(p)))
def test_a_program_is_known_in_other_words(exercise, id_, program):
    exercise = find(exercise)
    trials = exercise.try_program(Program(f"in other words {id(program)}", {exercise.name: program}, ""))
    failing = [(t.case.title, t.message) for t in trials if not t.passed]
    found = diagnose(exercise, trials)
    assert found and id_ in found.ids and len(found.ids) <= 2 if id_ else not failing, failing


@pytest.mark.parametrize("name", [e.name for e in select("08")])
def test_no_wrong_program_fails_by_an_accident_of_its_spelling(name):
    exercise = find(name)
    values = [i for i, case in enumerate(exercise.cases) if case.kind == VALUES]
    for program in exercise.wrongs:
        errors = {o.error for i in values for o in exercise.try_case(program, i).transcript if o.error}
        assert not {e.split(":")[0] for e in errors} & {"TypeError", "NameError", "AttributeError", "UnboundLocalError"}


# --- scores and interactions ---

def test_the_gate_score_is_what_moving_a_gate_measures():
    sizes = dict(examples=4, rows=3, heads=3, d_v=2, width=5)
    _, heads, w_o = gate_sensitivity.inputs(**sizes, seed=3)

    def loss_of(output):
        return output.sin().sum((1, 2))
    merged = heads.transpose(1, 2).flatten(2)
    output = (merged @ w_o.T).requires_grad_()
    grad = torch.autograd.grad(loss_of(output).sum(), output)[0]
    measured = gate_sensitivity.measured(loss_of, heads, w_o).detach()
    assert torch.allclose(gate_sensitivity.slopes(grad, heads, w_o), measured, atol=1e-8)
    assert torch.allclose(answers.gate_sensitivity(grad, heads, w_o), measured.abs().mean(0), atol=1e-8)


def test_the_message_says_how_the_examples_pull():
    exercise = find("gate_sensitivity")
    trials = exercise.try_program(exercise.program("signed-average"))
    shown = next(t.message for t in trials if t.case.probe is gate_sensitivity.opposite)
    assert "the gate of head 0 pulls the examples' losses by" in shown and "+" in shown and "-" in shown


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 2**16), st.data())
def test_the_interaction_of_a_quadratic_is_its_cross_term(heads, seed, data):
    i, j = data.draw(st.permutations(range(heads)))[:2]
    matrix, gates = normal(heads, heads, seed=seed), normal(heads, seed=seed + 1)

    def loss(g):
        return g @ matrix @ g
    cross = (matrix[i, j] + matrix[j, i]) * gates[i] * gates[j]
    assert math.isclose(answers.interaction(loss, gates, i, j), cross.item(), abs_tol=1e-9)


# --- gates ---

def test_the_closed_forms_are_the_quantiles_of_a_sample():
    u = torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    figures = (-3, 0.1976, 0.0100, 0), (0, 0.8318, 0.1682, 0.5), (3, 0.9900, 0.8024, 1)
    for log_alpha, p_open, p_one, at_test in figures:
        one = torch.tensor(float(log_alpha), dtype=torch.float64)
        gate = answers.hard_concrete(one.expand(len(u)), u)
        expected = answers.expected_open_heads(one)
        assert round(expected.item(), 4) == p_open and abs((gate > 0).double().mean() - p_open) < 0.005
        assert abs((gate == 1).double().mean() - p_one) < 0.005
        assert abs(answers.hard_concrete(one) - at_test) < 1e-9
        assert torch.allclose(gate, hard_concrete.oracle(one.expand(len(u)), u), atol=1e-12)


def test_the_number_of_open_heads_has_the_gradient_that_is_measured():
    log_alpha = normal(5, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(answers.expected_open_heads, (log_alpha,))


# --- head dropout ---

@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.floats(0, 0.9),
       st.integers(0, 2**16))
def test_a_mask_is_one_number_a_head(b, h, t, d, p, seed):
    heads = normal(b, h, t, d, seed=seed).abs() + 1
    out = answers.head_dropout(heads, p, True, torch.Generator().manual_seed(seed))
    factor = out / heads
    assert torch.allclose(factor, factor[:, :, :1, :1].expand_as(factor))
    assert all(f == 0 or math.isclose(f, 1 / (1 - p)) for f in factor.flatten().tolist())
    assert torch.equal(answers.head_dropout(heads, p, False), heads)


# --- surgery ---

def _module(heads, width, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.MultiheadAttention(width, heads, batch_first=True, dtype=torch.float64)
        nn.init.normal_(module.in_proj_bias), nn.init.normal_(module.out_proj.bias)
    return module.requires_grad_(False)


def test_the_release_computes_what_torch_s_own_module_does_with_silent_values():
    """nn.MultiheadAttention with W_V and b_V of head 1 at zero, fused, against the layer without that head."""
    H, D, M = 4, 3, 12
    module = _module(H, M)
    state = {"qkv_proj.weight": module.in_proj_weight, "qkv_proj.bias": module.in_proj_bias,
             "o_proj.weight": module.out_proj.weight, "o_proj.bias": module.out_proj.bias}
    x = normal(2, 5, M, seed=4)
    retained = [0, 2, 3]
    got = answers.prune_heads({k: v.detach() for k, v in state.items()}, retained, H, D, D, layout="fused")
    silent = copy.deepcopy(module)
    silent.in_proj_weight[2 * M + D:2 * M + 2 * D] = 0
    silent.in_proj_bias[2 * M + D:2 * M + 2 * D] = 0
    want = silent(x, x, x, need_weights=False)[0]
    q, k, v = F.linear(x, got["state"]["qkv_proj.weight"], got["state"]["qkv_proj.bias"]).chunk(3, -1)
    split = [t.unflatten(-1, (got["num_heads"], -1)).transpose(1, 2) for t in (q, k, v)]
    merged = F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
    written = F.linear(merged, got["state"]["o_proj.weight"], got["state"]["o_proj.bias"])
    assert torch.allclose(written, want, atol=1e-12)
    assert torch.allclose(_release.attention(x, x, got["state"], 3, D, D), want, atol=1e-12)


def test_adam_goes_on_with_the_moments_of_the_release_as_if_the_head_had_never_learned():
    """A real torch.optim.Adam: after surgery, a step on the small layer is the step on the rows that are left."""
    sizes = (3, 4, 6, 10)
    parameters = {name: tensor.requires_grad_() for name, tensor in _release.random_layer(sizes, True).items()}
    adam = torch.optim.Adam(parameters.values(), 0.1)

    def step(optimizer, tensors, grads):
        for tensor, grad in zip(tensors, grads, strict=True):
            tensor.grad = grad
        optimizer.step()
    first, second = ([normal(*p.shape, seed=20 * turn + i) for i, p in enumerate(parameters.values())]
                     for turn in (1, 2))
    step(adam, parameters.values(), first)
    release = answers.prune_heads({n: p.detach().clone() for n, p in parameters.items()}, [0, 2], 3, 4, 6,
                                  {n: {k: v.clone() for k, v in adam.state[p].items()} for n, p in parameters.items()})
    small = {name: tensor.requires_grad_() for name, tensor in release["state"].items()}
    resumed = torch.optim.Adam(small.values(), 0.1)
    for name, tensor in small.items():
        resumed.state[tensor] = release["optimizer"][name]
    step(adam, parameters.values(), second)
    step(resumed, small.values(), [_release.cut(n, g, [0, 2], sizes) for n, g in zip(parameters, second, strict=True)])
    for name, tensor in small.items():
        assert torch.allclose(tensor, _release.cut(name, parameters[name], [0, 2], sizes), atol=1e-12), name


def test_a_stale_moment_breaks_the_next_step():
    sizes = (3, 4, 6, 10)
    state = _release.random_layer(sizes, False)
    small = answers.prune_heads(state, [0, 2], 3, 4, 6)["state"]["q_proj.weight"].requires_grad_()
    adam = torch.optim.Adam([small], 0.1)
    old = torch.zeros_like(state["q_proj.weight"])
    adam.state[small] = {"step": torch.tensor(1.0), "exp_avg": old, "exp_avg_sq": old.clone()}
    small.grad = torch.ones_like(small)
    with pytest.raises(RuntimeError):
        adam.step()


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.booleans(), st.booleans(),
       st.data())
def test_any_release_is_cut_place_by_place(heads, d_qk, d_v, width, bias, fused, data):
    sizes, layout = (heads, d_qk, d_v, width), "fused" if fused else "separate"
    retained = sorted(data.draw(st.sets(st.integers(0, heads - 1), min_size=1)))
    state = _release.coded_layer(sizes, bias, layout)
    moments = _release.coded_moments(state, step=True)
    got = answers.prune_heads(state, retained, heads, d_qk, d_v, moments, layout)
    want = _release.release(state, retained, sizes, moments)
    assert all(torch.equal(got["state"][n], t) for n, t in want["state"].items())
    assert all(torch.equal(got["optimizer"][n][k], t) for n, ts in want["optimizer"].items() for k, t in ts.items())
    assert {k: v for k, v in got.items() if k not in ("state", "optimizer")} == {
        k: v for k, v in want.items() if k not in ("state", "optimizer")}


@pytest.mark.parametrize("id_, words", [
    ("wo-not-sliced", ("o_proj.weight", "[10, 18]", "[10, 12]")),
    ("bias-kept", ("q_proj.bias", "[12]", "[8]", "heads own its rows")),
    ("labels-kept", ("head_map is {0: 0, 2: 2}", "expected {0: 0, 1: 2}")),
    ("head-count-stale", ("of 3 heads [0, 2] stay", "num_heads is 3", "expected 2")),
    ("one-fused-interval", ("qkv_proj.weight", "of old head", "channel")),
    ("unsorted-accepted", ("prune_heads(state, [2, 0], num_heads=3, ...) was accepted", "retained")),
    ("half-applied", ("an error left a mixture", "state['q_proj.weight']")),
])
def test_a_message_names_the_tensor_and_the_head(id_, words):
    exercise = find("prune_heads")
    evidence = diagnose(exercise, exercise.try_program(exercise.program(id_))).evidence
    assert all(word in evidence for word in words), evidence


def test_llama_s_own_layer_is_pruned_by_groups():
    """With shared keys and values, what a query head owns alone is its rows of W_Q and its columns of W_O."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                      intermediate_size=16, num_hidden_layers=1, vocab_size=11)
    attention = transformers.models.llama.modeling_llama.LlamaAttention(config, 0)
    shapes = {name: tuple(tensor.shape) for name, tensor in attention.state_dict().items()}
    assert shapes == {"q_proj.weight": (32, 32), "k_proj.weight": (16, 32), "v_proj.weight": (16, 32),
                      "o_proj.weight": (32, 32)}
    assert "2 * 4096 * 128" in TEXT and 2 * 4096 * 128 == 1_048_576


# --- ledgers, claims, logs ---

def test_the_figures_of_one_deleted_head():
    assert answers.pruned_macs(2, 3, 4, 6, 3, 2, 1, True) == {
        "projection": 420, "attention": 120, "weights": 60, "biases": 8}
    assert answers.pruned_macs(1, 128, 128, 512, 64, 64, 1, True)["weights"] == 131_072
    assert not any(answers.pruned_macs(2, 3, 4, 6, 3, 2, 1, False).values())


def test_the_whole_table_of_claims_is_the_one_in_the_text():
    carried = {(kind, claim) for kind, claim in itertools.product(records.KINDS, records.CLAIMS)
               if answers.supports(supports_exercise.record(kind), claim)[0]}
    assert carried == set(supports_exercise.CARRIED.items()) and len(carried) == 7
    rows = [line.split("|") for line in TEXT.splitlines() if line.startswith("| `")]
    told = {(kind.strip(" `"), carries.split("`")[1]) for _, kind, _, carries, *_ in
            (cells for cells in rows if len(cells) > 4) if "`" in carries}
    assert told == carried
    assert set(supports_exercise.KINDS) == set(records.KINDS) and supports_exercise.CLAIMS == records.CLAIMS
    assert set(supports_exercise.record("map")) == records.Evidence.__required_keys__


def test_any_log_is_judged_as_the_places_in_it_say():
    assert set(check_pipeline.ALL) == set(records.STEPS)
    numbers = torch.Generator().manual_seed(0)
    names = list(check_pipeline.ALL)
    for _ in range(600):
        size = int(torch.randint(0, 16, (), generator=numbers))
        steps = [names[int(i)] for i in torch.randint(0, len(names), (size,), generator=numbers)]
        log = check_pipeline.log(*steps)
        for one in log:
            if torch.rand((), generator=numbers) < 0.1:
                one["reads"] = [records.SPLITS[int(torch.randint(0, 4, (), generator=numbers))]]
            if one["step"] == "release" and torch.rand((), generator=numbers) < 0.3:
                one["baseline"] = None
        assert answers.check_pipeline(log) == check_pipeline.oracle(log), log


def test_the_log_in_the_text_breaks_no_rule():
    source = TEXT[TEXT.index("log = [\n"):]
    log = eval(source[len("log = "):source.index("\n]") + 2])
    assert answers.check_pipeline(log) == []
    assert all(set(one) <= set(records.Step.__annotations__) for one in log)


@pytest.mark.parametrize("name", [e.name for e in select("08")])
def test_no_message_gives_the_answer_away(name):
    exercise = find(name)
    own = inspect.getsource(getattr(answers, name)).split("### BEGIN SOLUTION")[1]
    lines = [line.strip() for line in own.splitlines() if len(line.strip()) > 25]
    for program in exercise.wrongs[:6]:
        for trial in exercise.try_program(program):
            assert not any(line in trial.message for line in lines)
    assert not any(line in hint for hint in exercise.hints for line in lines)


# --- what the worker sees ---

def test_a_replaced_entry_is_seen_and_a_generator_arrives_seeded():
    def replace(state, inner):
        inner["a"].append(1)
        state["x"] = state["x"].clone()
        return 0

    def reads(state, inner):
        return list(state), dict(inner)

    def draw(generator):
        return torch.rand(3, generator=generator)
    lab = labs.in_process({"replace": replace, "reads": reads, "draw": draw})
    lab.call("reads", {"x": torch.ones(2)}, {"a": []})
    assert lab.rearranged == [] and lab.mutated == []
    lab.call("replace", {"x": torch.ones(2)}, {"a": []})
    assert lab.rearranged == ["[0]['x']", "[1]['a']"] and lab.mutated == []
    drawn = lab.call("draw", torch.Generator().manual_seed(9))
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(9)))
    lab.close()


# --- the experiment ---

SMALL = induction.Setup(steps=3, batch=4)


def test_sequences_repeat_and_splits_differ():
    data = induction.split(SMALL, "test", 64, seed=1)
    for tokens, period, known in zip(data.tokens, data.period.tolist(), data.repeated, strict=True):
        assert len(set(tokens[:period].tolist())) == period
        assert torch.equal(tokens[period:], tokens[:-period])
        assert known.tolist() == [place >= period for place in range(1, len(tokens))]
    other = induction.split(SMALL, "calibration", 64, seed=1)
    assert not {tuple(t) for t in data.tokens.tolist()} & {tuple(t) for t in other.tokens.tolist()}


def test_a_training_is_repeatable_and_a_copy_leaves_the_model_alone():
    a, b = (induction.train(SMALL, 2).state_dict() for _ in range(2))
    assert all(torch.equal(a[n], b[n]) for n in a)
    model = induction.train(SMALL, 2)
    induction.fine_tune(model, [(1, 0)], 2, 2)
    assert all(torch.equal(t, a[n]) for n, t in model.state_dict().items())


def test_the_slopes_of_the_experiment_are_the_gate_scores_of_the_exercise():
    model, data = induction.train(SMALL, 0).double(), induction.split(SMALL, "test", 6)
    caught = {}

    def remember(module, arguments, result):
        caught["out"] = result[0].requires_grad_()
        return caught["out"], result[1]
    hook = model.layers[1].register_forward_hook(remember)
    loss = induction.losses(model, data)
    hook.remove()
    grad = torch.autograd.grad(loss.sum(), caught["out"])[0]
    layer, tokens = model.layers[1], data.tokens[:, :-1]
    x = model.tokens(tokens)
    x = x + model.layers[0](x, model.positions.weight)[0]
    maps = layer(x, model.positions.weight)[1]
    heads = maps @ layer.v_proj(x).unflatten(-1, (4, -1)).transpose(1, 2)
    want = answers.gate_sensitivity(grad, heads, layer.o_proj.weight)
    assert torch.allclose(induction.slopes(model, data)[1].double(), want, atol=1e-6)


def test_a_pruned_layer_of_the_experiment_is_the_masked_one():
    model = induction.train(SMALL, 1).double()
    state = induction.layer_state(model, 0)
    assert set(state) == {f"{r}_proj.weight" for r in "qkvo"}
    small = answers.prune_heads(state, [1, 3], 4, 8, 8)
    x, positions = normal(2, 9, 32), normal(9, 32, seed=1)
    want, _ = model.layers[0](x, positions, torch.tensor([0.0, 1, 0, 1], dtype=torch.float64))
    layer = induction.Layer(induction.Setup(heads=2)).double()
    layer.load_state_dict(small["state"])
    assert torch.allclose(layer(x, positions)[0], want, atol=1e-12)


def test_the_text_quotes_the_record():
    """Every number that section 9 states in words is in the record, rounded as it is there."""
    record = induction.measured()
    assert record["seeds"] == list(range(8)) and record["setup"]["steps"] == induction.Setup().steps
    over = record["over_seeds"]
    section = " ".join(TEXT[TEXT.index("## 9 "):TEXT.index("## 10 ")].split())
    for key in ("loss_one_layer", "rise_without_all_induction_heads", "rise_without_the_best_induction_head",
                "sum_of_their_single_rises", "rise_with_only_the_best_of_them", "loss_intact_and_trained_on",
                "loss_with_only_the_best_and_trained_on", "rank_correlation_slope_and_rise",
                "largest_rise_of_one_head", "first_order_prediction_for_it", "rise_without_previous_heads",
                "rise_without_the_other_heads_of_layer_0"):
        assert f"{over[key]['mean']:.2f}" in section, (key, over[key]["mean"])
    timed = record["timed_layer"]
    assert f"{timed['smaller_over_dense']:.2f}" in section and f"{timed['masked_over_dense']:.2f}" in section
    for found in over.values():
        assert found["smallest"] - 1e-4 <= found["mean"] <= found["largest"] + 1e-4
        assert found["low"] <= found["mean"] <= found["high"]


def test_the_interval_is_student_s(monkeypatch):
    import importlib.util
    path = course_root() / "benchmarks" / "induction_heads.py"
    spec = importlib.util.spec_from_file_location("induction_heads", path)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    for freedom, point in ((1, 12.706), (4, 2.776), (7, 2.365), (30, 2.042)):
        assert abs(bench.student(freedom) - point) < 2e-3 * point
    found = bench.summary([1.0, 2.0, 3.0])
    assert found["mean"] == 2 and abs(found["high"] - (2 + 4.3027 / 3**0.5)) < 2e-3
    assert json.loads(json.dumps(found)) == found
    assert bench._ranks([1.0, 2.0, 3.0], [10.0, 20.0, 15.0]) == pytest.approx(0.5)
