"""Session 09: the answers in the real worker, frameworks as references, generated sizes, the figures of the text."""
import inspect
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import mha_lab.given as records
from autograder.diagnosis import diagnose
from autograder.exercise import Program
from autograder.exercises import find, select
from autograder.exercises.variants import _formulas
from autograder.exercises.variants import compose_dynamic as compose
from autograder.exercises.variants import overlap_heads as overlap
from autograder.exercises.variants import route_heads as route
from autograder.exercises.variants import talking_heads_attention as talking
from autograder.exercises.variants._counted import COUNTED
from autograder.standard import normal
from solutions import variants as answers

from .variants_spellings import PROGRAMS

SOLUTION = Path(inspect.getfile(answers)).read_text(encoding="utf-8")


# --- the course's answers ---

def test_the_answers_pass_through_the_real_worker(grader, lab):
    reports = grader.check(select("09"), lab("variants", SOLUTION))
    assert [(r.exercise, r.status, [c.message for c in r.cases]) for r in reports if r.status != "passed"] == []
    assert sum(r.score for r in reports) == 25


def test_wrong_programs_are_named_through_the_real_worker(grader, lab):
    wrong = SOLUTION.replace("F.pad(packed, (overlap, overlap))", "torch.cat([packed[..., packed.shape[-1] - overlap:],"
                             " packed, packed[..., :overlap]], -1)") \
        .replace("routed.topk(top_k, -1)", "routed.topk(top_k, 1)").replace(".scatter(-1,", ".scatter(1,") \
        .replace('"btsr,btrh->bhts", by_query, factors["q2"]',
                 '"bhts,btshg->bgts", scores, (factors["q1"] @ factors["q2"])[:, :, None] + torch.zeros('
                 '1, 1, scores.shape[3], 1, 1).to(scores)')
    names = "overlap_heads", "compose_dynamic", "route_heads"
    reports = grader.check(map(find, names), lab("variants", wrong))
    assert [r.diagnosis and r.diagnosis.ids for r in reports] == [["wraps-around"], ["dense-map"], ["tokens-selected"]]


@pytest.mark.parametrize("exercise, id_, program", PROGRAMS, ids=lambda p: getattr(p, "__name__", str(p)))
def test_a_program_is_known_in_other_words(exercise, id_, program):
    exercise = find(exercise)
    trials = exercise.try_program(Program(f"in other words {id(program)}", {exercise.name: program}, ""))
    found = diagnose(exercise, trials)
    failing = [(t.case.title, t.message) for t in trials if not t.passed]
    assert found.ids == [id_] if id_ else not failing, failing


def test_two_faults_of_one_ledger_are_both_named():
    def program(kind, **sizes):
        ledger = answers.variant_ledger(kind, **sizes)
        if kind == "moh":
            ledger["active_fraction"] = sizes["top_k"] / sizes["num_heads"]
            ledger["skipped_macs"] = answers.variant_ledger(kind, **sizes | {"dense": 0})["skipped_macs"]
            ledger["macs"] = ledger["router_macs"] - ledger["skipped_macs"]
        return ledger
    exercise = find("variant_ledger")
    found = diagnose(exercise, exercise.try_program(Program("two faults", {"variant_ledger": program}, "")))
    assert found.ids == ["routed-fraction", "mask-as-sparse"]


@pytest.mark.parametrize("name, mistake, where", [
    ("overlap_heads", "wraps-around", "heads[0,0,0,0] (head 0, token 0, channel 0 of 9) holds channel 3 of head 2 "
                                      "(sample 0, token 0), expected zero"),
    ("compose_dynamic", "key-terms-missing", "by the key's low-rank map"),
    ("compose_dynamic", "dense-map", "one storage of 58,080 bytes was made"),
    ("route_heads", "shared-compete", "token 0 of sample 0 selected the routed heads"),
    ("collaborative_scores", "mixed-twice", "in head 0"),
    ("classic_as_collaborative", "indicator-interleaved",
     "row 0 of mixing is (1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0), expected (1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)"),
    ("variant_ledger", "routed-fraction", "active_fraction (heads that count for a token) is 0.25, expected 0.625"),
])
def test_a_message_names_the_cell(name, mistake, where):
    exercise = find(name)
    messages = [t.message for t in exercise.try_program(exercise.program(mistake)) if not t.passed]
    assert any(where in m for m in messages), messages


def test_an_answer_of_another_kind_is_a_failure_with_a_name_for_the_place():
    exercise = find("route_heads")
    places = Program("places", {"route_heads": lambda x, router, num_shared, top_k: (
        answers.route_heads(x, router, num_shared, top_k)[0], torch.zeros(*x.shape[:2], top_k, dtype=torch.long))}, "")
    assert "selected has shape [2, 7, 2], expected [B,T,H_r] [2, 7, 5]" in exercise.try_case(places, 0).message


FAILURES = {
    "boundary padding left out": ("overlap_heads", "ends-narrowed"),
    "overlap counted as free view state": ("variant_ledger", "overlap-free"),
    "one H everywhere": ("talking_heads_attention", "one-head-count"),
    "P_l behind the softmax": ("talking_heads_attention", "mixed-after-softmax"),
    "mixed weights called a probability": ("talking_heads_attention", "weights-renormalised"),
    "a map for every pair stored": ("compose_dynamic", "dense-map"),
    "composed after minus infinity": ("compose_dynamic", "composed-after-mask"),
    "grouped composition called the full one": ("compose_dynamic", "composed-within-groups"),
    "shared heads missing in the active part": ("variant_ledger", "routed-fraction"),
    "a dense mask called sparse": ("variant_ledger", "mask-as-sparse"),
    "a compressed basis called exact": ("classic_as_collaborative", "compressed-basis"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_that_has_the_right_shape_is_a_wrong_program(failure):
    """Two failures are claims about a checkpoint and no program: zeros in W_O are measured below, the two routers of
    one name are told apart in the text."""
    name, id_ = FAILURES[failure]
    assert id_ in find(name).wrong_ids


# --- the record formats ---

def test_a_record_is_a_plain_mapping_with_the_keys_of_the_contract():
    x, router = route.inputs(**route.V)
    for given_router in (router, records.HeadRouter(**router)):
        assert torch.equal(answers.route_heads(x, given_router, 3, 2)[0], answers.route_heads(x, router, 3, 2)[0])
    assert set(records.HeadRouter.__annotations__) == set(router)
    assert set(records.ComposeFactors.__annotations__) == set(compose.factors(**compose.V))


# --- classic parity: every variant reduces to a layer of the framework ---

def _framework(heads=3, width=4, queries=6):
    """nn.MultiheadAttention without biases, its inputs, and its packed queries, keys and values."""
    torch.manual_seed(0)
    model = heads * width
    layer = nn.MultiheadAttention(model, heads, bias=False, batch_first=True, dtype=torch.float64).eval()
    x = normal(2, queries, model, seed=1)
    out, weights = layer(x, x, x, average_attn_weights=False)
    packed = [x @ w.T for w in layer.in_proj_weight.chunk(3)]
    return layer, x, [p.detach() for p in packed], out.detach(), weights.detach()


def test_no_overlap_and_identity_maps_are_the_framework_s_layer():
    layer, _, packed, out, weights = _framework()
    q, k, v = (answers.overlap_heads(p, 3, 0) for p in packed)
    eye = torch.eye(3, dtype=torch.float64)
    heads, seen = answers.talking_heads_attention(q, k, v, eye, eye)
    assert torch.allclose(seen, weights, atol=1e-12)
    assert torch.allclose(heads.transpose(1, 2).flatten(2) @ layer.out_proj.weight.T, out, atol=1e-12)


def test_zero_factors_full_width_and_even_gates_are_the_framework_s_layer():
    layer, x, (q, k, v), out, weights = _framework()
    state = dict(zip(("q_proj.weight", "k_proj.weight"), layer.in_proj_weight.chunk(3), strict=False))
    scores = answers.collaborative_scores(x, x, *answers.classic_as_collaborative(state, 3)) / math.sqrt(4)
    nothing = {n: torch.zeros_like(t) for n, t in compose.factors(2, 3, 6, 6, 2).items()}
    composed = answers.compose_dynamic(answers.compose_dynamic(scores, nothing).softmax(-1), nothing)
    assert torch.allclose(composed, weights, atol=1e-12)
    router = {n: torch.zeros(rows, 12, dtype=torch.float64) for n, rows in (("shared", 2), ("routed", 1), ("kind", 2))}
    gates, selected = answers.route_heads(x, router, 2, 1)
    assert selected.all() and torch.allclose(gates, torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64))
    router = {n: torch.zeros(2, 12, dtype=torch.float64) for n in ("shared", "routed", "kind")}
    assert torch.allclose(answers.route_heads(x, router, 2, 2)[0], torch.tensor(0.25, dtype=torch.float64))


def test_the_balance_is_that_of_a_published_router_without_its_scale():
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    logits = normal(2, 7, 5, seed=3)
    theirs = mixtral.load_balancing_loss_func((logits.flatten(0, 1),), num_experts=5, top_k=2)
    router = {"shared": torch.zeros(2, 5), "routed": torch.eye(5), "kind": torch.zeros(2, 5)}
    _, selected = answers.route_heads(logits, {n: w.double() for n, w in router.items()}, 2, 2)
    assert torch.isclose(5 * answers.balance_loss(logits.softmax(-1), selected), theirs.double(), atol=1e-6)


# --- what the text claims ---

def _overlapping_layer(packed, w_o, roles, r):
    q, k, v = (answers.overlap_heads(p, 3, r if role in roles else 0)
               for role, p in zip("qkv", packed, strict=True))
    q = q * math.sqrt(q.shape[-1] / 4)
    heads = F.scaled_dot_product_attention(q, k, v)
    zeros = (v.shape[-1] - 4) // 2
    return torch.einsum("bhtd,mhd->btm", heads, F.pad(w_o.unflatten(1, (3, 4)), (zeros, zeros)))


def test_zeros_in_the_new_rows_of_w_o_silence_borrowed_values_and_not_borrowed_queries_and_keys():
    layer, _, packed, out, _ = _framework()
    w_o = layer.out_proj.weight.detach()
    assert torch.allclose(_overlapping_layer(packed, w_o, "", 2), out, atol=1e-12)
    assert torch.allclose(_overlapping_layer(packed, w_o, "v", 2), out, atol=1e-12)
    for roles in ("qk", "qkv"):
        assert (_overlapping_layer(packed, w_o, roles, 2) - out).abs().max() > 1e-3


def test_mixing_before_softmax_is_not_mixing_after_it():
    before = torch.tensor([[4.0, 0.0], [0.0, 2.0]]).mean(0).softmax(-1)[0]
    after = torch.tensor([[4.0, 0.0], [0.0, 2.0]]).softmax(-1).mean(0)[0]
    assert f"{before:.2f} {after:.2f}" == "0.73 0.55"


@pytest.mark.parametrize("name, vanishes", [("overlap", True), ("talking", True), ("composed", False)])
def test_the_key_bias_is_seen_only_where_keys_condition_the_map(name, vanishes):
    x, y = normal(2, 6, 10, seed=1), normal(2, 7, 10, seed=2)
    w_q, w_k, w_v = (normal(12, 10, seed=s) for s in (3, 4, 5))
    bias = normal(12, seed=6).requires_grad_()
    r = 2 if name == "overlap" else 0
    q, k = (answers.overlap_heads(p, 3, r) for p in (x @ w_q.T, y @ w_k.T + bias))
    v = answers.overlap_heads(y @ w_v.T, 3, 0)
    if name == "talking":
        heads, _ = answers.talking_heads_attention(q, k, v, normal(3, 4, seed=7), normal(4, 3, seed=8))
    else:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if name == "composed":
            scores = answers.compose_dynamic(scores, compose.factors(2, 3, 6, 7, 2))
        heads = scores.softmax(-1) @ v
    grad = torch.autograd.grad(heads, bias, normal(*heads.shape, seed=9))[0]
    assert bool(grad.abs().max() < 1e-9) is vanishes


def test_no_basis_that_is_too_narrow_holds_all_heads():
    per_head = [normal(4, 20, seed=h).T @ normal(4, 20, seed=10 + h) for h in range(3)]
    singular = torch.linalg.svdvals(torch.cat(per_head))
    assert singular[11] > 0.1 * singular[0] and singular[12] < 1e-12 * singular[0]


def test_a_dense_fallback_asks_for_all_products_and_skipping_for_what_the_ledger_says():
    heads, tokens, model, width = 8, 16, 20, 4
    x, keys, values = normal(tokens, model), normal(heads, tokens, width, seed=1), normal(heads, tokens, width, seed=2)
    w_q, w_o = normal(heads, width, model, seed=3), normal(heads, model, width, seed=4)
    router = {n: normal(rows, model, seed=5 + rows) for n, rows in (("shared", 1), ("routed", 7), ("kind", 2))}
    gates, _ = answers.route_heads(x[None], router, 1, 2)

    def one(h, rows):
        weights = ((rows @ w_q[h].T) @ keys[h].T / math.sqrt(width)).softmax(-1)
        return (weights @ values[h]) @ w_o[h].T

    def dense():
        return sum(gates[0, :, h, None] * one(h, x) for h in range(heads))

    def skipping():
        out = torch.zeros_like(x)
        for h in range(heads):
            rows = gates[0, :, h].nonzero().flatten()
            out[rows] += gates[0, rows, h, None] * one(h, x[rows])
        return out

    assert torch.allclose(dense(), skipping())
    counts = []
    for program in (dense, skipping):
        with FlopCounterMode(display=False) as counter:
            program()
        counts.append(counter.get_total_flops() // 2)
    sizes = dict(batch=1, q_len=tokens, k_len=tokens, d_model=model, num_heads=heads, head_dim=width, num_shared=1,
                 top_k=2)
    assert counts[0] - counts[1] == answers.variant_ledger("moh", **sizes, dense=0)["skipped_macs"] > 0
    assert answers.variant_ledger("moh", **sizes, dense=1)["skipped_macs"] == 0


# --- the figures ---

def test_the_figures_of_the_course():
    ledger = answers.variant_ledger
    square = dict(batch=1, q_len=128, k_len=128)
    found = ledger("mohsa", **square, d_model=512, num_heads=8, head_dim=64, overlap=4)
    assert [found[k] for k in ("parameters", "local_macs", "output_macs")] == [32_768, 2_097_152, 4_194_304]
    small = ledger("talking", batch=1, q_len=5, k_len=7, logit_heads=2, softmax_heads=3, value_heads=4)
    assert small["macs"] == 630
    wide = ledger("talking", batch=1, q_len=4096, k_len=4096, logit_heads=32, softmax_heads=32, value_heads=32)
    assert (wide["parameters"], wide["logit_macs"]) == (2 * 1024, 17_179_869_184)
    dynamic = ledger("dcmha", **square, d_model=2048, num_heads=32, rank=2)
    assert dynamic["parameters"] == 1_376_256 and f"{dynamic['parameters'] / (12 * 2048**2):.3%}" == "2.734%"
    heads = dict(**square, d_model=512, num_heads=8, head_dim=64)
    assert ledger("moh", **heads, num_shared=2, top_k=2, dense=1)["parameters"] == 5_120
    shares = [ledger("moh", **square, d_model=4096, num_heads=32, head_dim=128, num_shared=shared, top_k=8,
                     dense=1)["active_fraction"] for shared in (0, 16)]
    assert shares == [0.25, 0.75]
    collab = {w: ledger("collab", **heads, width=w) for w in (256, 286, 287, 508, 509, 512)}
    assert [524_288 + collab[w]["parameters"] for w in (512, 256)] == [528_384, 264_192]
    assert [75_497_472 + collab[w]["macs"] for w in (512, 256)] == [134_742_016, 67_371_008]
    assert [collab[w]["parameters"] < 0 for w in (508, 509)] == [True, False]
    assert [collab[w]["macs"] < 0 for w in (286, 287)] == [True, False]


def test_the_penalty_at_both_ends():
    even = torch.full((1, 6, 6), 1 / 6)
    ring = ((torch.arange(6) - torch.arange(6)[:, None]) % 6 < 2)[None]
    assert torch.isclose(answers.balance_loss(even, ring), torch.tensor(1 / 3))
    two = torch.zeros(1, 5, 6)
    two[..., :2] = 0.5
    assert answers.balance_loss(two, two > 0) == 1


# --- generated sizes ---

@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.data())
def test_windows_of_any_sizes_and_strides_are_the_oracle_s(batch, heads, tokens, width, data):
    r = data.draw(st.integers(0, width))
    order = data.draw(st.permutations([0, 1, 2]))
    shape = (batch, tokens, heads * width)
    packed = normal(*[shape[i] for i in order]).permute([order.index(i) for i in range(3)])
    assert torch.equal(answers.overlap_heads(packed, heads, r), overlap.oracle(packed, heads, r))


@settings(max_examples=30, deadline=None)
@given(*[st.integers(1, 4)] * 8)
def test_talking_heads_of_any_counts_are_the_oracle_s(batch, logit_heads, softmax_heads, value_heads, queries, keys,
                                                      d_qk, d_v):
    sizes = batch, logit_heads, softmax_heads, value_heads, queries, keys, d_qk, d_v
    args = talking.inputs(*sizes)
    for got, want in zip(answers.talking_heads_attention(*args), talking.oracle(*args), strict=True):
        assert torch.allclose(got, want, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(*[st.integers(1, 4)] * 5)
def test_composition_of_any_sizes_is_the_oracle_s(batch, heads, queries, keys, rank):
    sizes = batch, heads, queries, keys, rank
    args = compose.scores(*sizes), compose.factors(*sizes)
    assert torch.allclose(answers.compose_dynamic(*args), compose.oracle(*args), atol=1e-10)


LEDGERS = {kind: list(inspect.signature(formula).parameters) for kind, formula in _formulas.ALL.items()}


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(LEDGERS)), st.data())
def test_ledgers_of_any_sizes_are_counted_ones(kind, data):
    sizes = {name: data.draw(st.integers(1, 9), name) for name in LEDGERS[kind]}
    if kind == "moh":
        sizes |= dict(dense=sizes["dense"] % 2, num_heads=sizes["num_shared"] + sizes["top_k"] + sizes["num_heads"])
    assert answers.variant_ledger(kind, **sizes) == COUNTED[kind](**sizes) == _formulas.ALL[kind](**sizes)
