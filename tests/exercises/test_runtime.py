"""Session 10 beside its own cases: other frameworks' layers, real traces, planted heads, and what messages say."""
import dataclasses
import itertools
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import solutions.runtime as answers
from autograder import lab as labs
from autograder.diagnosis import diagnose
from autograder.exercise import Program
from autograder.exercises import find, select
from autograder.exercises.runtime._llama import Layer, answer, rows
from autograder.exercises.runtime.fastpath_eligible import Facts, observed
from autograder.worker.scribe import Scribe
from mha_lab.given import ATTENTION_OPERATORS, FASTPATH_REASONS, FastpathCall, operators

NUMBERS = itertools.count()  # a program is tried once under one label
DEVIATIONS = [{"num_heads": 3}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"batch_first": False},
              {"dropout": 0.3}, {"training": True}, {"parameters_require_grad": False}, {"axes": 2},
              {"query_key_value": "equal values"}, {"query_key_value": "different"}, {"input_requires_grad": True},
              {"grad_enabled": True}, {"cpu_autocast": True}, {"key_padding_mask": "bool"}, {"attn_mask": "bool"},
              {"key_padding_mask": "float"}, {"attn_mask": "float"}, {"need_weights": False},
              {"fastpath_enabled": False}]


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trials(name, program):
    return find(name).try_program(Program(f"tried {next(NUMBERS)}", {name: program}, ""))


def failures(name, program):
    return [(t.case.title, t.message) for t in trials(name, program) if not t.passed]


def diagnosis(name, program):
    return diagnose(find(name), trials(name, program))


# The answers, in the real worker


def test_the_answers_pass_through_the_real_worker(grader, lab):
    source = Path(answers.__file__).read_text(encoding="utf-8")
    reports = grader.check(select("10"), lab("runtime", source))
    assert [(r.exercise, r.status, [c.message for c in r.cases]) for r in reports if r.status != "passed"] == []
    assert sum(r.score for r in reports) == 27


def test_wrong_programs_are_named_through_the_real_worker(grader, lab):
    source = Path(answers.__file__).read_text(encoding="utf-8")
    for right, wrong in (("k, v = (torch.cat(pair, 2) for pair in zip(cache, (k, v), strict=True))\n        past",
                          "pass\n        past"),
                         ("positions = torch.arange(fed, tokens.shape[1], device=prompt.device)", "positions = None"),
                         ("return p if training else 0.0", "return p"),
                         ('"observed_backend": next((name for name in ATTENTION_OPERATORS if name in seen), None)',
                          '"observed_backend": requested_backend')):
        assert source.count(right) == 1
        source = source.replace(right, wrong)
    names = "TinyLM", "generate", "attention_dropout_p", "dropout_attention", "observation_record"
    reports = grader.check(map(find, names), lab("runtime", source))
    assert [r.diagnosis and r.diagnosis.ids for r in reports] == [
        ["cache-unused"], ["positions-restart"], ["always-on"], ["always-on"], ["observed-from-request"]]


# The fast path


def test_the_record_of_the_lab_and_the_facts_of_the_grader_are_one_list():
    assert [(f.name, f.default) for f in dataclasses.fields(FastpathCall)] == \
        [(f.name, f.default) for f in dataclasses.fields(Facts)]


@pytest.mark.parametrize("changes", [{}, *DEVIATIONS], ids=str)
def test_rules_and_profiler_agree_on_every_single_fact(changes):
    eligible, reasons = answers.fastpath_eligible(dataclasses.asdict(FastpathCall(**changes)))
    assert eligible == observed(Facts(**changes)) == (not reasons) and set(reasons) <= set(FASTPATH_REASONS)


def test_rules_and_profiler_agree_on_pairs_of_facts():
    for one, other in random.Random(10).sample(list(itertools.combinations(DEVIATIONS, 2)), 60):
        facts = Facts(**one | other)
        assert answers.fastpath_eligible(dataclasses.asdict(facts))[0] == observed(facts), facts


def test_the_profiler_sees_what_the_dispatch_mode_of_the_grader_sees():
    module, x = nn.MultiheadAttention(12, 4, batch_first=True).eval(), torch.randn(2, 5, 12)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            ran = operators(lambda: module(x, x, x))
        assert ("_native_multi_head_attention" in ran) == observed(Facts(grad_enabled=grad)) == (not grad)


# Backends


@pytest.mark.parametrize("call, want", [
    (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), "_scaled_dot_product_flash_attention_for_cpu"),
    (lambda q, k, v: F.scaled_dot_product_attention(q, k, v[..., :3]), "_scaled_dot_product_attention_math"),
    (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), "_scaled_dot_product_attention_math"),
    (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, None)])
def test_an_observation_is_what_ran(call, want):
    record = answers.observation_record(call, [draw(i, 2, 3, 5, 4) for i in range(3)], requested_backend="flash")
    assert record["observed_backend"] == want and record["requested_backend"] == "flash"
    assert want is None or want in ATTENTION_OPERATORS


def test_autocast_and_no_grad_stand_in_the_record():
    inputs = [torch.randn(2, 3, 5, 4) for _ in range(3)]
    with torch.no_grad(), torch.autocast("cpu"):
        record = answers.observation_record(F.scaled_dot_product_attention, inputs)
    assert (record["autograd"], record["autocast"], record["training"]) == (False, True, None)


def test_a_wrong_field_is_named_with_both_values():
    def program(fn, inputs, **options):
        record = answers.observation_record(fn, inputs, **options)
        return record | {"strides": [x.contiguous().stride() for x in inputs]}
    title, message = failures("observation_record", program)[0]
    assert message.startswith("strides says [(60, 20, 4, 1), (60, 20, 4, 1), (60, 20, 4, 1)], expected "
                              "((60, 20, 4, 1), (60, 4, 12, 1)")
    assert diagnosis("observation_record", program) is None


# Dropout


def test_the_module_in_training_is_the_named_mistake():
    def like_the_module(q, k, v, p, training):
        if not 0 <= p < 1:
            raise ValueError("probability")
        weights = F.dropout((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1), p, training)
        return weights @ v, weights
    found = diagnosis("dropout_attention", like_the_module)
    assert found.ids == ["dropped-weights-returned"] and "sum to" in found.evidence


def test_one_mask_for_all_heads_has_no_name():
    def shared(q, k, v, p, training):
        if not 0 <= p < 1:
            raise ValueError("probability")
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        keep = torch.bernoulli(torch.full_like(weights[:, :1], 1 - p)) / (1 - p) if training else 1
        return (weights * keep) @ v, weights
    assert failures("dropout_attention", shared) == []  # a draw that is shared by heads is a policy, not a fault


# Rotation


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rotation_is_that_of_transformers(style):
    transformers = pytest.importorskip("transformers")
    if style == "half":
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding as Angles
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
        config = transformers.LlamaConfig(hidden_size=24, num_attention_heads=3, head_dim=8)
    else:
        from transformers.models.cohere.modeling_cohere import CohereRotaryEmbedding as Angles
        from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb
        config = transformers.CohereConfig(hidden_size=24, num_attention_heads=3, eos_token_id=None)
    x, at = draw(1, 2, 3, 5, 8).float(), torch.arange(3, 8)
    cos, sin = Angles(config)(x, at[None])
    want, _ = apply_rotary_pos_emb(x, x, cos, sin)
    base = config.rope_parameters["rope_theta"]
    assert base == (10000.0 if style == "half" else 500000.0)
    assert torch.allclose(answers.apply_rope(x, at, base, style), want, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 2000), st.sampled_from(["half", "interleaved"]))
def test_scores_know_the_distance_only(m, n, shift, style):
    q, k = draw(2, 1, 1, 1, 6), draw(3, 1, 1, 1, 6)

    def score(shift):
        return (answers.apply_rope(q, torch.tensor([m + shift]), style=style)
                * answers.apply_rope(k, torch.tensor([n + shift]), style=style)).sum()
    assert torch.allclose(score(0), score(shift), atol=1e-9)


def test_a_rotation_by_another_angle_is_read_back_in_radians():
    def degrees(x, positions, base=10000.0, style="half"):
        answers.apply_rope(x[..., :1, :], positions[..., :1], base, style)
        return answers.apply_rope(x, positions * 2, base, style)
    _, message = failures("apply_rope", degrees)[0]
    assert "token 1 (position 1), pair 0 = channels 0 and 4: turned by 2.0000, expected 1.0000 rad" in message


# Loading


@pytest.mark.parametrize("layer", [Layer(storage="conv1d", bias=True, rope="interleaved", fused="per_kv_group"),
                                   Layer(storage="conv1d", fused="qkv", seed=3), Layer(heads=6, kv_heads=1)], ids=str)
def test_every_convention_at_once(layer):
    x = rows(layer)
    got, _ = answers.load_llama_attention(layer.state(), layer.config)(x)
    assert torch.allclose(got, answer(layer, layer.parts(), x)[0], atol=1e-9)


def llama(bias, kv_heads=2):
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
    config = transformers.LlamaConfig(hidden_size=24, num_attention_heads=6, num_key_value_heads=kv_heads, head_dim=8,
                                      num_hidden_layers=1, intermediate_size=8, vocab_size=11, attention_bias=bias,
                                      attn_implementation="eager")
    torch.manual_seed(5)
    return LlamaAttention(config, 0).double().eval(), LlamaRotaryEmbedding(config).double()


def told(**changes):
    return {"hidden": 24, "heads": 6, "kv_heads": 2, "head_dim": 8, "bias": False, "rope": "half", "storage": "linear",
            "fused": None} | changes


def causal(tokens):
    return torch.full((tokens, tokens), -torch.inf, dtype=torch.float64).triu(1)[None, None]


@pytest.mark.parametrize("bias, kv_heads", [(True, 2), (False, 3), (False, 6)])
def test_llama_of_transformers_has_equal_outputs_and_gradients(bias, kv_heads):
    layer, angles = llama(bias, kv_heads)
    x, g = draw(6, 2, 5, 24).requires_grad_(), draw(7, 2, 5, 24)
    want = layer(x, position_embeddings=angles(x, torch.arange(5)[None]), attention_mask=causal(5))[0]
    module = answers.load_llama_attention(layer.state_dict(), told(bias=bias, kv_heads=kv_heads))
    got, _ = module(x)
    assert torch.allclose(got, want, atol=1e-6)
    theirs = dict(zip(["x", *dict(layer.named_parameters())],
                      torch.autograd.grad(want, [x, *layer.parameters()], g), strict=True))
    ours = dict(zip(["x", *dict(module.named_parameters())],
                    torch.autograd.grad(got, [x, *module.parameters()], g), strict=True))
    assert theirs.keys() == ours.keys()
    for name, grad in theirs.items():
        assert torch.allclose(ours[name], grad, atol=1e-5), name


def test_llama_with_the_cache_of_transformers_is_our_two_chunks():
    layer, angles = llama(False)
    from transformers import DynamicCache
    x, cache = draw(8, 2, 5, 24), DynamicCache()
    module = answers.load_llama_attention(layer.state_dict(), told())
    kept = None
    for part, mask in ((slice(0, 2), causal(2)), (slice(2, 5), causal(5)[:, :, 2:])):
        at = torch.arange(5)[part][None]
        want = layer(x[:, part], position_embeddings=angles(x, at), attention_mask=mask, past_key_values=cache)[0]
        got, kept = module(x[:, part], cache=kept)
        assert torch.allclose(got, want, atol=1e-6)
    for ours, theirs in zip(kept, (cache.layers[0].keys, cache.layers[0].values), strict=True):
        assert ours.shape == (2, 2, 5, 8) and torch.allclose(ours, theirs, atol=1e-6)


def test_phi3_keeps_its_projections_fused():
    transformers = pytest.importorskip("transformers")
    from transformers.models.phi3.modeling_phi3 import Phi3Attention, Phi3RotaryEmbedding
    config = transformers.Phi3Config(hidden_size=24, num_attention_heads=6, num_key_value_heads=2, num_hidden_layers=1,
                                     intermediate_size=8, vocab_size=11, attn_implementation="eager", pad_token_id=0)
    layer, angles = Phi3Attention(config, 0).double().eval(), Phi3RotaryEmbedding(config).double()
    x = draw(9, 2, 5, 24)
    with torch.no_grad():
        want = layer(x, position_embeddings=angles(x, torch.arange(5)[None]), attention_mask=causal(5))[0]
        got, _ = answers.load_llama_attention(layer.state_dict(), told(head_dim=4, fused="qkv"))(x)
    assert torch.allclose(got, want, atol=1e-6)


def test_cohere_rotates_interleaved_pairs():
    transformers = pytest.importorskip("transformers")
    from transformers.models.cohere.modeling_cohere import CohereAttention, CohereRotaryEmbedding
    config = transformers.CohereConfig(hidden_size=48, num_attention_heads=6, num_key_value_heads=2,
                                       num_hidden_layers=1, intermediate_size=8, vocab_size=11,
                                       attn_implementation="eager", eos_token_id=None)
    layer, angles = CohereAttention(config, 0).double().eval(), CohereRotaryEmbedding(config).double()
    x, at = draw(10, 2, 5, 48), torch.arange(3, 8)
    with torch.no_grad():
        want = layer(x, position_embeddings=angles(x, at[None]), attention_mask=causal(5))[0]
        state = layer.state_dict()
        outputs = {style: answers.load_llama_attention(state, told(hidden=48, rope=style, base=500000.0))(x, at)[0]
                   for style in ("half", "interleaved")}
    assert torch.allclose(outputs["interleaved"], want, atol=1e-5)
    assert not torch.allclose(outputs["half"], want, atol=1e-3)


def test_the_cached_key_that_is_not_rotated_is_shown_with_both_values():
    program = find("load_llama_attention").program("cached-before-rope")
    message = next(t.message for t in find("load_llama_attention").try_program(program)
                   if t.case.title.startswith("chunks of 2"))
    assert "token 1 is the projected row, not rotated: channel 0 holds" in message


def test_a_repeated_cache_is_counted_in_bytes():
    program = find("load_llama_attention").program("repeated-cache")
    message = find("load_llama_attention").try_program(program)[0].message
    assert "[2, 12, 5, 8], expected [B,G,S,D] [2, 3, 5, 8]: 7680 bytes where 1920 suffice" in message


# Writing


def initial_state():
    torch.manual_seed(29)
    tokens, positions = nn.Embedding(5, 16).weight, torch.randn(1, 8, 16) * 0.01
    maps = {f"{role}_proj.weight": nn.Linear(16, 16, bias=False).weight for role in "qkvo"}
    norm, head = nn.LayerNorm(16), nn.Linear(16, 5)
    return {"tokens.weight": tokens, "positions.weight": positions[0], "norm.weight": norm.weight,
            "norm.bias": norm.bias, "head.weight": head.weight, "head.bias": head.bias} | maps


TEXT = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3], [1, 2, 3, 4, 0, 1, 2, 3, 4]])


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the figures are those of PyTorch 2.13")
@pytest.mark.parametrize("heads, first, last", [(1, "1.7582", "0.0027"), (4, "1.7578", "0.0026")])
def test_the_figures_of_the_two_runs(heads, first, last):
    model = answers.TinyLM(5, 16, heads, 8)
    model.load_state_dict(initial_state())
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    for _ in range(25):
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(TEXT)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert (f"{losses[0]:.4f}", f"{losses[-1]:.4f}") == (first, last)


def test_the_leak_is_named_with_the_row_that_saw_it():
    message = failures("TinyLM", find("TinyLM").program("sees-the-future").namespace["TinyLM"])[0][1]
    assert "token 3 was changed, and the logits of row 0 changed with it" in message


def test_a_module_with_another_state_is_told_which_names_are_missing():
    class Renamed(answers.TinyLM):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.embedding = self.tokens
            del self.tokens
    message = failures("TinyLM", Renamed)[0][1]
    assert "missing tokens.weight [11, 12]; unexpected embedding.weight [11, 12]" in message


def test_gpt2_writes_through_generate_as_through_its_own_loop():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=12, n_head=3, n_layer=2, vocab_size=17, n_positions=32,
                                     attn_implementation="eager", bos_token_id=0, eos_token_id=None)
    torch.manual_seed(7)
    model = transformers.GPT2LMHeadModel(config).train()

    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens, positions, cache):
            out = self.model(tokens, position_ids=positions.expand(tokens.shape), past_key_values=cache, use_cache=True)
            return out.logits, out.past_key_values

    prompt = torch.tensor([[3, 1, 4], [1, 5, 9]])
    adapter = Adapter().train()
    got = answers.generate(adapter, prompt, 6)
    assert adapter.training and model.training
    model.eval()
    tokens = prompt
    with torch.no_grad():
        for _ in range(6):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(got, tokens)


def test_a_mode_is_put_back_when_the_model_raises():
    class Broken(nn.Module):
        def forward(self, *args):
            raise RuntimeError("broken")
    model = Broken().train()
    with pytest.raises(RuntimeError):
        answers.generate(model, torch.zeros(1, 2, dtype=torch.int64), 1)
    assert model.training


def test_the_scribe_shows_what_it_was_shown():
    message = failures("generate", find("generate").program("positions-restart").namespace["generate"])[0][1]
    assert "5 rows from position 0 with 0 cached; 1 row from position 0 with 5 cached" in message
    message = failures("generate", find("generate").program("cache-unused").namespace["generate"])[0][1]
    assert message.startswith("26 rows ran for a prompt of 5 and 4 new tokens; with a cache 9 suffice")


def test_the_scribe_forgets_nothing():
    """Any row that is missing, doubled or misplaced changes what it writes next."""
    tokens = torch.tensor([[5, 11, 2, 40]])
    model = Scribe(97, False)
    whole = model(tokens, torch.arange(4))[0][:, -1].argmax(-1)
    for rows_, places in (([1, 2, 3], [1, 2, 3]), ([0, 1, 2, 3], [0, 1, 2, 0]), ([0, 1, 2, 2, 3], [0, 1, 2, 2, 3])):
        changed = model(tokens[:, rows_], torch.tensor(places))[0][:, -1].argmax(-1)
        assert not torch.equal(changed, whole)


# Induction, publication


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(3, 12), st.data())
def test_a_planted_share_is_the_score(heads, tokens, data):
    period = data.draw(st.integers(1, tokens - 1))
    share = torch.rand(heads, generator=torch.Generator().manual_seed(tokens), dtype=torch.float64)
    p = torch.zeros(2, heads, tokens, tokens, dtype=torch.float64)
    for i in range(tokens):
        p[:, :, i, i] = 1
        if i >= period and period > 1:
            p[:, :, i, i] -= share
            p[:, :, i, i - period + 1] += share
    want = share if period > 1 else torch.ones(heads, dtype=torch.float64)
    assert torch.allclose(answers.induction_score(p, period), want)


def test_a_record_with_a_problem_is_shown_with_its_fields():
    def silent(records):
        return []
    message = failures("check_publication", silent)[0][1]
    assert "the list for record 0 (" in message and "alt=''" in message and "expected ['0: alt']" in message


def test_an_engine_call_may_ask_for_modes_and_hear_whether_numbers_were_drawn():
    def program(x):
        return (x + torch.rand(()) if x.numel() > 1 else x, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
    lab = labs.in_process({"program": program})
    try:
        assert lab.call("program", torch.zeros(1), modes={"grad": False, "autocast": True})[1:] == (False, True)
        assert not lab.last.drew
        assert lab.call("program", torch.zeros(2))[1:] == (True, False)
        assert lab.last.drew
    finally:
        lab.close()
