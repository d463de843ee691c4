"""Attention of published models: tiny random modules of `transformers`, whose outputs the session's answers must reach.

Rotations are the identity here (cos 1, sin 0), but for the rotary part of DeepSeek-V2, which is the point there.
"""
import pytest
import torch
from torch.nn import functional as F

from autograder.exercises import find
from autograder.standard import normal
from mha_lab.models import PUBLISHED
from solutions import grouped as answers

transformers = pytest.importorskip("transformers")
WIDTH, HEADS, HEAD_DIM, TOKENS = 24, 6, 8, 7
FAMILIES = {"llama": ("Llama", {}), "gemma": ("Gemma", {}), "mistral": ("Mistral", {"sliding_window": None}),
            "qwen2": ("Qwen2", {}), "qwen3": ("Qwen3", {})}


def rows(tokens=TOKENS):
    return normal(2, tokens, WIDTH, seed=1, dtype=torch.float32)


def triangle(tokens):
    return torch.full((1, 1, tokens, tokens), -torch.inf).triu(1)


def published(family, kv_heads):
    """A random attention module of a family, and its causal output."""
    name, more = FAMILIES[family]
    package = __import__(f"transformers.models.{family}.modeling_{family}", fromlist=["x"])
    config = getattr(transformers, f"{name}Config")(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=kv_heads, head_dim=HEAD_DIM,
        num_hidden_layers=1, intermediate_size=8, vocab_size=11, attn_implementation="eager", **more)
    module = getattr(package, f"{name}Attention")(config, layer_idx=0).eval()
    with torch.no_grad():
        for i, (key, parameter) in enumerate(module.named_parameters()):
            # Qwen2 has biases of q, k and v, Qwen3 norms of q and k: neither belongs to the layer of this session
            parameter.copy_(torch.zeros(()) if key.endswith("bias") else normal(
                *parameter.shape, seed=i, dtype=torch.float32) / 4)
        for norm in ("q_norm", "k_norm"):
            if hasattr(module, norm):
                setattr(module, norm, torch.nn.Identity())
        turn = torch.ones(1, TOKENS, HEAD_DIM), torch.zeros(1, TOKENS, HEAD_DIM)
        return module, module(rows(), position_embeddings=turn, attention_mask=triangle(TOKENS))[:2]


def loaded(module, kv_heads, make=answers.GroupedQueryAttention):
    ours = make(WIDTH, HEADS, kv_heads, HEAD_DIM)
    ours.load_state_dict({f"{r}_proj.weight": module.get_submodule(f"{r}_proj").weight.detach() for r in "qkvo"})
    return ours


def close(a, b):
    return torch.allclose(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_of_the_family_loads_and_gives_its_output(family, kv_heads):
    module, (want, weights) = published(family, kv_heads)
    ours = loaded(module, kv_heads)
    with torch.no_grad():
        output, probabilities, _ = ours(rows(), causal=True)
        assert close(output, want) and close(probabilities, weights)
        cache, outputs = None, []
        for part in rows().split([2, 3, 1, 1], 1):
            out, _, cache = ours(part, causal=True, cache=cache)
            outputs.append(out)
        assert close(torch.cat(outputs, 1), want)


@pytest.mark.parametrize("mistake", ["tiled-groups"])
def test_the_tiled_order_loads_too_and_gives_another_output(mistake):
    module, (want, _) = published("llama", 2)
    wrong = find("GroupedQueryAttention").program(mistake).namespace["GroupedQueryAttention"]
    with torch.no_grad():
        output = loaded(module, 2, wrong)(rows(), causal=True)[0]
    assert output.shape == want.shape and not close(output, want)


def test_repeat_kv_is_that_of_the_llama_code():
    from transformers.models.llama.modeling_llama import repeat_kv
    kv = normal(2, 3, 5, 4)
    assert torch.equal(answers.repeat_kv(kv, 4), repeat_kv(kv, 4))


def test_ledgers_count_what_transformers_builds():
    module, _ = published("gemma", 2)
    ledger = answers.gqa_parameters(WIDTH, HEADS, 2, HEAD_DIM)
    assert {r: module.get_submodule(f"{r}_proj").weight.numel() for r in "qkvo"} == {r: ledger[r] for r in "qkvo"}


def test_the_calculator_counts_the_cache_that_transformers_fills():
    config = transformers.LlamaConfig(hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=2,
                                      head_dim=HEAD_DIM, num_hidden_layers=3, intermediate_size=8, vocab_size=11,
                                      attn_implementation="eager")
    model = transformers.LlamaModel(config).eval()
    with torch.no_grad():
        cache = model(torch.arange(10).view(2, 5), use_cache=True).past_key_values
    held = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
    sizes = {"layers": 3, "hidden": WIDTH, "heads": HEADS, "kv_heads": 2, "head_dim": HEAD_DIM}
    assert answers.kv_cache_bytes(sizes, 2, 5, bytes_per_element=4) == held


@pytest.mark.parametrize("heads_alike", [True, False])
def test_a_pooled_checkpoint_is_the_same_layer_where_the_heads_of_a_group_agree(heads_alike):
    module, (want, _) = published("llama", 6)
    with torch.no_grad():
        if heads_alike:
            for role in "kv":
                weight = module.get_submodule(f"{role}_proj").weight
                weight.copy_(weight.unflatten(0, (2, 3, HEAD_DIM))[:, :1].expand(2, 3, HEAD_DIM, WIDTH).flatten(0, 2))
            want = loaded(module, 6)(rows(), causal=True)[0]
        pooled = answers.mean_pool_kv({n: p.detach() for n, p in module.named_parameters()}, HEADS, 2)
        ours = answers.GroupedQueryAttention(WIDTH, HEADS, 2, HEAD_DIM)
        ours.load_state_dict(pooled)
        assert close(ours(rows(), causal=True)[0], want) is heads_alike


LATENT, NOPE, ROPE, VALUE = 10, 8, 4, 6


def deepseek():
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention, DeepseekV2RotaryEmbedding
    config = transformers.DeepseekV2Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=None, kv_lora_rank=LATENT,
        qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=VALUE, head_dim=ROPE, num_hidden_layers=1,
        intermediate_size=8, vocab_size=11, attn_implementation="eager")
    module = DeepseekV2Attention(config, layer_idx=0).eval()
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=i, dtype=torch.float32) / 4)
        turn = DeepseekV2RotaryEmbedding(config)(rows(), torch.arange(TOKENS)[None])
        out = module(rows(), attention_mask=triangle(TOKENS), position_embeddings=turn)[0]
    return module, turn, out


def absorbed_output(module, turn, absorb_keys, absorb_values, rotated=True):
    """The layer from latent rows and one rotary key: no key and no value of a head is ever made."""
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import apply_rotary_emb
    x = rows()
    w_q, w_qr = module.q_proj.weight.unflatten(0, (HEADS, NOPE + ROPE)).split([NOPE, ROPE], 1)
    w_uk, w_uv = module.kv_b_proj.weight.unflatten(0, (HEADS, NOPE + VALUE)).split([NOPE, VALUE], 1)
    keys = absorb_keys(w_q.flatten(0, 1), w_uk.flatten(0, 1), HEADS)
    values = absorb_values(module.o_proj.weight, w_uv.flatten(0, 1), HEADS)
    latent, k_rope = module.kv_a_proj_with_mqa(x).split([LATENT, ROPE], -1)
    latent = module.kv_a_layernorm(latent)
    q_rope = torch.einsum("btm,hrm->bhtr", x, w_qr)
    k_rope = k_rope[:, None]
    if rotated:
        q_rope, k_rope = apply_rotary_emb(q_rope, k_rope, turn)
    content = torch.einsum("bsc,hcm,btm->bhts", latent, keys, x)
    scores = (content + q_rope @ k_rope.mT) * (NOPE + ROPE)**-0.5 + triangle(TOKENS)
    cached = latent.shape[-1] + k_rope.shape[-1]
    return torch.einsum("bhts,bsc,hmc->btm", scores.softmax(-1), latent, values), cached


def test_absorption_gives_the_output_of_deepseek_v2():
    module, turn, want = deepseek()
    with torch.no_grad():
        got, cached = absorbed_output(module, turn, answers.absorb_keys, answers.absorb_values)
        assert close(got, want)
        assert cached == answers.mla_cache_elements(LATENT, ROPE, HEADS)
        unturned, _ = absorbed_output(module, turn, answers.absorb_keys, answers.absorb_values, rotated=False)
        assert not close(unturned, want)


@pytest.mark.parametrize("name, mistake", [
    ("absorb_keys", "one-map-for-all-heads"), ("absorb_keys", "scaled-by-latent"), ("absorb_keys", "rows-interleaved"),
    ("absorb_values", "one-map-for-all-heads"), ("absorb_values", "columns-interleaved")])
def test_a_wrong_absorption_does_not(name, mistake):
    module, turn, want = deepseek()
    maps = {"absorb_keys": answers.absorb_keys, "absorb_values": answers.absorb_values}
    maps[name] = find(name).program(mistake).namespace[name]
    with torch.no_grad():
        got, _ = absorbed_output(module, turn, **maps)
    assert got.shape == want.shape and not close(got, want)


def test_a_rotation_between_the_maps_has_no_absorbed_map():
    """Rotate the content part as well: the absorbed map of the unrotated layer misses. One matrix for each pair does
    not, and there are as many different ones as there are distances."""
    heads, d, latent = 3, 4, 5
    w_q, w_uk = normal(heads, d, WIDTH, seed=1), normal(heads, d, latent, seed=2)
    x, c = normal(6, WIDTH, seed=3), normal(7, latent, seed=4)

    def turn(p):
        angle = p / 10.0 ** torch.arange(d // 2, dtype=torch.float64)
        cos, sin = torch.diag(angle.cos()), torch.diag(angle.sin())
        return torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)])
    pairs = [(t, s) for t in range(6) for s in range(7)]
    true = torch.stack([(turn(t) @ w_q[0] @ x[t]) @ (turn(s) @ w_uk[0] @ c[s]) for t, s in pairs])
    absorbed = answers.absorb_keys(w_q.flatten(0, 1), w_uk.flatten(0, 1), heads)[0]
    fixed = torch.stack([c[s] @ absorbed @ x[t] for t, s in pairs])
    middle = {pair: w_uk[0].T @ turn(pair[1]).T @ turn(pair[0]) @ w_q[0] for pair in pairs}
    each = torch.stack([c[s] @ middle[t, s] @ x[t] for t, s in pairs])
    assert torch.allclose(each, true) and not torch.allclose(fixed, true, rtol=0.05)
    by_distance = {}
    for (t, s), matrix in middle.items():
        assert torch.allclose(by_distance.setdefault(t - s, matrix), matrix)
    assert len(by_distance) == 12
    assert not any(torch.allclose(by_distance[a], by_distance[b]) for a in by_distance for b in by_distance if a < b)


def test_defaults_of_transformers_are_the_published_sizes():
    """Only where a configuration class says that its defaults are those of the model."""
    for name, config in (("Llama-2-7B", transformers.LlamaConfig()), ("Mistral-7B v0.1", transformers.MistralConfig()),
                         ("Gemma-7B", transformers.GemmaConfig()), ("Gemma-2-2B", transformers.Gemma2Config())):
        model = PUBLISHED[name]
        assert (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim) == (
            config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.num_key_value_heads,
            config.head_dim), name
    config, model = transformers.DeepseekV2Config(), PUBLISHED["DeepSeek-V2"]
    assert (model.latent, model.rope_dim, model.head_dim, model.v_head_dim) == (
        config.kv_lora_rank, config.qk_rope_head_dim, config.qk_nope_head_dim + config.qk_rope_head_dim,
        config.v_head_dim)
    gpt2, model = transformers.GPT2Config(), PUBLISHED["GPT-2 small"]
    assert (model.layers, model.hidden, model.heads, model.context) == (gpt2.n_layer, gpt2.n_embd, gpt2.n_head,
                                                                        gpt2.n_positions)


def test_llama_on_f_linear_is_what_the_loaded_state_says():
    """The state names are those of the checkpoint: nothing was renamed on the way."""
    module, _ = published("llama", 2)
    assert {n for n, _ in module.named_parameters()} == set(answers.GroupedQueryAttention(
        WIDTH, HEADS, 2, HEAD_DIM).state_dict())
    assert F.linear(rows(), module.k_proj.weight).shape[-1] == 2 * HEAD_DIM
