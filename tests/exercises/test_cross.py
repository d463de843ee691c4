"""Session 05: answers through the real worker, frameworks as references, generated calls, and what messages say."""
import dataclasses
import inspect
import itertools
from pathlib import Path

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from torch import nn
from torch.nn import functional as F

import mha_lab.given as given_records
from autograder.diagnosis import diagnose
from autograder.exercise import Program
from autograder.exercises import find, select
from autograder.exercises.cross import _calls, _lifecycle, _manifests
from autograder.exercises.cross import decode_step as steps
from autograder.exercises.cross._identities import FIELDS, IDENTITY, OTHER
from autograder.exercises.cross._lifecycle_programs import EnumAndMethods
from autograder.histories import ANYTHING, Refusal
from autograder.standard import normal
from mha_lab.given import MANIFEST_RECORDS, MANIFEST_SCHEMA, Identity, as_dict, attend
from solutions import cross as answers

NUMBER = itertools.count()
SOLUTION = Path(inspect.getfile(answers)).read_text(encoding="utf-8")


def tried(name, program):
    exercise = find(name)
    trials = exercise.try_program(Program(f"another {next(NUMBER)}", {name: program}, ""))
    return diagnose(exercise, trials), [(t.case.title, t.message) for t in trials if not t.passed]


# --- through the worker ---

def test_the_answers_pass_through_the_real_worker(grader, lab):
    reports = grader.check(select("05"), lab("cross", SOLUTION))
    assert [(r.exercise, r.status, [c.message for c in r.cases]) for r in reports if r.status != "passed"] == []
    assert sum(r.score for r in reports) == 31


def test_wrong_programs_are_named_through_the_real_worker(grader, lab):
    wrong = SOLUTION.replace('("k", source), ("v", source)))', '("k", target), ("v", source)))') \
        .replace("torch.arange(q_len)[:, None] + k_len - q_len", "torch.arange(q_len)[:, None]") \
        .replace('broken["kv-source"], broken["cross-origin"] = k_id != v_id, q_id == k_id',
                 'broken["cross-origin"] = q_id == k_id') \
        .replace("attend(q.transpose(1, 2), pair.k, pair.v,", "attend(q.transpose(1, 2), pair.k, F.linear(pair.memory, "
                 "state['v_proj.weight'], state.get('v_proj.bias')).unflatten(-1, (num_heads, -1)).transpose(1, 2),") \
        .replace("if consumers > 0:", "if False:").replace("beam_to_source[order], tuple", "beam_to_source, tuple")
    names = {"cross_attention": "keys-from-target", "causal_visibility": "top-left-triangle",
             "validate_call": "mixed-sources-accepted", "decode_step": "memory-reprojected",
             "CrossKVLifecycle": "released-under-readers", "gather_for_beams": "map-kept"}
    reports = grader.check(map(find, names), lab("cross", wrong))
    assert {r.exercise: r.diagnosis and r.diagnosis.ids for r in reports} == {n: [i] for n, i in names.items()}


# --- frameworks as references ---

def test_cross_attention_is_what_a_translation_model_computes():
    bart = pytest.importorskip("transformers.models.bart.modeling_bart")
    config = pytest.importorskip("transformers").BartConfig(d_model=12, decoder_attention_heads=3,
                                                            attn_implementation="eager")
    module = bart.BartAttention(12, 3, is_decoder=True, config=config, layer_idx=0).double().eval()
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    state = {f"{role}_proj.{kind}": getattr(getattr(module, name), kind).detach()
             for role, name in names.items() for kind in ("weight", "bias")}
    target, source = _calls.rows(_calls.E)
    with torch.no_grad():
        want = module(target, key_value_states=source)[0]
    assert torch.allclose(answers.cross_attention(target, source, state, 3)[0], want, atol=1e-12)


visibilities = st.builds(
    lambda b, h, t, s, own, seed: (torch.rand(b, h if own else 1, t, s, generator=torch.Generator().manual_seed(seed))
                                   > .5).index_fill(-1, torch.tensor([seed % s]), True),
    st.integers(1, 3), st.just(2), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.integers(0, 99))


@settings(max_examples=25, deadline=None)
@given(visibilities)
def test_both_masks_mean_the_same_to_their_own_api(visible):
    b, _, t, s = visible.shape
    target, source = normal(b, t, 6, seed=1), normal(b, s, 6, seed=2)
    module = nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64).eval()
    with torch.no_grad():
        got, weights = module(target, source, source, attn_mask=answers.to_module_mask(visible, 2),
                              average_attn_weights=False)
        q, k, v = F._in_projection_packed(target, source, source, module.in_proj_weight, module.in_proj_bias)
        q, k, v = (x.unflatten(-1, (2, 3)).transpose(1, 2) for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=answers.to_sdpa_mask(visible))
        want = module.out_proj(mixed.transpose(1, 2).flatten(2))
    assert torch.allclose(got, want) and not weights[~visible.expand(b, 2, t, s)].any()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_causal_call_may_be_cut_into_chunks_anywhere(chunks):
    total = sum(chunks)
    q, k, v = (normal(1, 2, total, 3, seed=i) for i in range(3))
    whole, _ = attend(q, k, v, answers.causal_visibility(total, total)[None, None])
    done, parts = 0, []
    for new in chunks:
        end = done + new
        visible = answers.causal_visibility(new, end)[None, None]
        parts.append(attend(q[:, :, done:end], k[:, :, :end], v[:, :, :end], visible)[0])
        done = end
    assert torch.allclose(torch.cat(parts, 2), whole)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.integers(0, 99))
def test_steps_of_decoding_are_rows_of_the_full_call(batch, targets, sources, heads, seed):
    sizes = dict(batch=batch, heads=heads, targets=targets, sources=sources, d_qk=2, d_v=3, width=5)
    (target, source), state = _calls.rows(sizes, seed), _calls.state(sizes, seed=seed)
    made = Identity(**IDENTITY)
    pair = answers.project_source(source, state, heads, made)
    valid = torch.arange(sources) <= torch.arange(batch)[:, None]
    full, _ = answers.cross_attention(target, source, state, heads, answers.source_visibility(valid))
    rows = [answers.decode_step(target[:, t:t + 1], pair, state, heads, valid, made) for t in range(targets)]
    assert torch.allclose(torch.cat(rows, 1), full)


def test_the_source_gradient_is_the_sum_of_two_paths():
    target, source = _calls.rows(_calls.A)
    state, g = _calls.state(_calls.A), normal(2, 5, 10, seed=7)
    source.requires_grad_()
    whole = torch.autograd.grad(answers.cross_attention(target, source, state, 3)[0], source, g)[0]
    paths = []
    for kept in "kv":
        k, v = (torch.stack(_calls.whole(source if role == kept else source.detach(), state, role, 3), 1)
                for role in "kv")
        q = torch.stack(_calls.whole(target, state, "q", 3), 1)
        out = _calls.projected(_calls.merge(attend(q, k, v)[0]), state, "o")
        paths.append(torch.autograd.grad(out, source, g)[0])
    assert torch.allclose(whole, sum(paths)) and not torch.allclose(*paths)


# --- the manifest ---

BUNDLES = [*_manifests.VALID, *_manifests.INVALID, *_manifests.SMALL]


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda b: b.title)
def test_no_bundle_of_the_exercise_offends_the_schema(bundle):
    """What makes an impostor is between fields; a JSON Schema sees one at a time."""
    jsonschema.Draft202012Validator(MANIFEST_SCHEMA).validate(bundle.manifest)


def test_there_are_enough_bundles():
    assert len(_manifests.VALID) >= 12 and len(_manifests.INVALID) >= 24
    assert {c for b in BUNDLES for c in b.codes} == set(
        inspect.getmodule(find("validate_call").cases[0].probe).CODES)


def test_schema_records_and_bundles_have_the_same_fields():
    for name, kind in MANIFEST_RECORDS.items():
        fields = {f.name for f in dataclasses.fields(kind)}
        assert fields == set(MANIFEST_SCHEMA["properties"][name]["properties"]) == set(_manifests.base()[name])
        assert kind.__name__ == _manifests.RECORDS[name] and getattr(given_records, kind.__name__) is kind


@pytest.mark.parametrize("field, value", [("call.mode", "both"), ("call.dropout_p", 1.0), ("heads.q_heads", 0),
                                          ("runtime.score_accumulation_dtype", "int8")])
def test_the_schema_refuses_what_one_field_can_say(field, value):
    broken = _manifests.changed(_manifests.base(), {field: value})
    assert not jsonschema.Draft202012Validator(MANIFEST_SCHEMA).is_valid(broken)


def test_a_validator_over_plain_dicts_of_the_given_records_passes():
    rules = inspect.getmodule(find("validate_call").cases[0].probe)

    def given_dicts(manifest):
        plain = {name: as_dict(record) for name, record in manifest.items()}
        if not MANIFEST_RECORDS.keys() <= plain.keys():
            raise ValueError("every manifest has four records")
        return rules.table_of_predicates(plain)
    assert tried("validate_call", given_dicts) == (None, [])


def test_two_rules_forgotten_are_both_named():
    rules = inspect.getmodule(find("validate_call").cases[0].probe)
    kept = {c: r for c, r in rules.RULES.items() if c not in ("kv-source", "stochastic")}
    found, _ = tried("validate_call", lambda manifest: rules._by(kept, manifest))
    assert set(found.ids) == {"mixed-sources-accepted", "dropout-called-deterministic"}


def test_a_refusal_names_the_field_and_no_answer():
    found, failing = tried("validate_call", lambda manifest: answers.validate_call(
        manifest) if manifest.get("call") is None else [c for c in answers.validate_call(manifest) if c != "kv-source"])
    assert found.ids == ["mixed-sources-accepted"]
    assert "look at call.v_state_id = 'request-43:encoder-7'" in failing[0][1]


# --- identity and lifecycle ---

def test_every_field_of_the_identity_has_another_value():
    assert tuple(f.name for f in dataclasses.fields(Identity)) == FIELDS and len(FIELDS) == 17
    assert all(IDENTITY[f] != OTHER[f] for f in FIELDS)


@pytest.mark.parametrize("field", FIELDS)
def test_a_step_that_forgets_any_field_is_known(field):
    def program(target_row, pair, state, num_heads, valid, expected):
        same = dataclasses.replace(pair.identity, **{field: getattr(expected, field)})
        pair = dataclasses.replace(pair, identity=same)
        return answers.decode_step(target_row, pair, state, num_heads, valid, expected)
    found, failing = tried("decode_step", program)
    assert found.ids == ["identity-unchecked"] and len(failing) == 1
    assert failing[0][1] == (f"a pair whose {field} is {OTHER[field]!r}, where the call expects {IDENTITY[field]!r}, "
                             "was accepted")


def test_a_product_that_nobody_reads_is_counted_too():
    def program(target_row, pair, state, num_heads, valid, expected):
        pair.memory @ state["k_proj.weight"].T
        return answers.decode_step(target_row, pair, state, num_heads, valid, expected)
    _, failing = tried("decode_step", program)
    assert [title for title, _ in failing] == ["no product has a source row, W_K or W_V as a factor"]
    assert steps.counted.__name__ == "counted"


class Lifecycle(RuleBasedStateMachine):
    """The course's class beside the table, under any calls in any order."""

    def __init__(self):
        super().__init__()
        self.real, self.model = answers.CrossKVLifecycle(), _lifecycle.Model()

    def both(self, name, *args):
        refused = None
        try:
            want = getattr(self.model, name)(*args)
        except Refusal as refusal:
            refused = refusal.words
        try:
            got = getattr(self.real, name)(*args)
        except ValueError as error:
            assert refused is not None, (name, args, str(error))
            assert all(word.lower() in str(error).lower() for word in refused), (refused, str(error))
        else:
            assert refused is None, (name, args, refused)
            assert got == want

    @rule(name=st.sampled_from([n for n in _lifecycle.LEGAL if n not in ("attach", "project")]))
    def legal(self, name):
        self.both(*_unpacked(_lifecycle.LEGAL[name]))

    @rule()
    def project(self):
        self.both("project", _identity())

    @rule(fields=st.lists(st.sampled_from(FIELDS), max_size=2))
    def attach(self, fields):
        self.both("attach", _identity(*fields))

    @rule(row=st.lists(st.integers(-1, 2), min_size=1, max_size=4))
    def share(self, row):
        self.both("share_beams", tuple(row))

    @precondition(lambda self: self.model.beam_map is not None)
    @rule(order=st.permutations(range(4)), change=st.booleans())
    def reorder(self, order, change):
        order = tuple(order[:len(self.model.beam_map)])
        self.both("reorder", (order[0], *order[:-1]) if change else order)

    @rule(version=st.integers(11, 13))
    def consume(self, version):
        self.both("consume_training", version)

    @rule(field=st.sampled_from(FIELDS))
    def drift(self, field):
        self.both("drift", field, OTHER[field])

    @rule(consumers=st.integers(0, 2))
    def release(self, consumers):
        self.both("release", consumers)

    @invariant()
    def agree(self):
        assert (self.real.state, self.real.beam_map) == (self.model.state, self.model.beam_map)
        assert self.model.source is ANYTHING or self.real.source == self.model.source


def _unpacked(step):
    return step[0], *step[1]


def _identity(*fields):
    made = Identity(**IDENTITY | {f: OTHER[f] for f in fields})
    object.__setattr__(made, "_fields", IDENTITY | {f: OTHER[f] for f in fields})  # as the model reads a record
    return made


def test_the_answer_and_the_table_agree_under_generated_calls():
    run_state_machine_as_test(Lifecycle, settings=settings(max_examples=60, stateful_step_count=20, deadline=None))


def test_every_state_is_reached_and_every_transition_walked():
    histories = [*_lifecycle.every_state_and_call(), *_lifecycle.walks(100, 12, 5)]
    reached = {o.after[0] for h in histories for o in _lifecycle.modelled(_lifecycle.Model, h, ("state",))}
    assert reached >= set(_lifecycle.STATES) - {"EMPTY"}
    assert list(_lifecycle.PATHS) != [] and all(
        _lifecycle.modelled(_lifecycle.Model, [*path, ("read", ())], ("state",))[-1].after == (state,)
        for state, path in _lifecycle.PATHS.items())


class Careless(EnumAndMethods):
    """Faults beside each other, in another style."""

    def drift(self, field, value):
        self._require("PROJECTED", "ATTACHED", "BEAM_SHARED", "BEAM_EXPANDED", say="Drift is for inference.")
        if field != "layer":
            super().drift(field, value)

    def read(self):
        if self.state == "RELEASED":
            return self.source
        return super().read()


def test_two_faults_of_a_lifecycle_are_both_named_and_the_shortest_calls_shown():
    found, failing = tried("CrossKVLifecycle", Careless)
    assert set(found.ids) == {"drift-ignored", "read-after-release"}
    message = dict(failing)["all states and all calls"]
    assert message.startswith("in state PROJECTED, after bind(('source-a', 'source-b')); project(identity): "
                              "drift('layer', 4) went through")


def test_a_missing_word_is_shown_and_gets_no_name():
    class Wordless(EnumAndMethods):
        def bind(self, source):
            try:
                super().bind(source)
            except ValueError:
                raise ValueError(f"not in {self.state}") from None
    found, failing = tried("CrossKVLifecycle", Wordless)
    assert found is None and "(\"SOURCE_BOUND\" and \"bind\")" in failing[0][1]


# --- figures ---

def test_the_figures_of_the_map():
    assert answers.cross_kv_bytes(4, 512, 12, 64, 64, 2) == 6 * 2**20
    assert answers.cross_kv_bytes(4, 512, 12, 64, 64, 2, layers=6) == 36 * 2**20
    shapes = [answers.trace_call(k, 2, 5, 7, 8, 64, 64, 512)["shapes"]["probabilities"]
              for k in ("encoder_self", "decoder_self", "training_cross", "decode_cross")]
    assert shapes == [(2, 8, 7, 7), (2, 8, 5, 5), (2, 8, 5, 7), (2, 8, 1, 7)]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.data())
def test_a_beam_order_is_followed_row_by_row(sources, beams, data):
    n = sources * beams
    order = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n)))
    mapping = torch.arange(sources).repeat_interleave(beams)
    caches = normal(n, 1, 2, 3), normal(n, 1, 2, 4)
    cross = normal(sources, 1, 5, 3), normal(sources, 1, 5, 4)
    same, new, moved = answers.gather_for_beams(cross, mapping, caches, order)
    assert all(a is b for a, b in zip(same, cross, strict=True))
    for i, old in enumerate(order.tolist()):
        assert new[i] == old // beams and all(torch.equal(a[i], b[old]) for a, b in zip(moved, caches, strict=True))
