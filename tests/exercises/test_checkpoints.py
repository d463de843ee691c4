"""Real checkpoint layouts: tiny random attention modules of `transformers` give outputs that conversions must reach.

Rotations are the identity here (cos 1, sin 0): positions are the subject of session 10, the layout of this one.
"""
import pytest
import torch
from torch.nn import functional as F

import solutions.direct_sum as answers
from autograder import lab as labs
from autograder.exercises import find
from mha_lab.given import attend

transformers = pytest.importorskip("transformers")
WIDTH, HEADS, TOKENS = 24, 6, 5


def rows():
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


def no_rotation(head_dim):
    return torch.ones(1, TOKENS, head_dim), torch.zeros(1, TOKENS, head_dim)


def everything_visible():
    return torch.zeros(1, 1, TOKENS, TOKENS)


def randomised(module):
    """Numbers for every parameter: a bias that starts at zero proves nothing."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)) / 4)
    return module.eval()


def layer(x, q, k, v, o, heads, kv_heads):
    """The layer of pairs (stored weight, bias or None), by the answers of this session."""
    q, k, v = (answers.project_per_head(x, *pair, n) for pair, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
    writes = answers.head_writes(attend(q, k, v)[0], o[0]).sum(1)
    return writes if o[1] is None else writes + o[1]


def convert(fused, heads, kv_heads, head_dim, source, reorder=answers.reorder_fused_qkv):
    """((weight, bias) of q, of k, of v) of a fused projection in another order."""
    weight, bias = (None if t is None else reorder(t, heads, kv_heads, head_dim, source, "qkv") for t in fused)
    return answers.split_qkv((weight, bias), answers.qkv_spans(heads, head_dim, head_dim, kv_heads))


def close(a, b):
    return torch.allclose(a, b, atol=2e-5, rtol=1e-4)


def neox(bias=True):
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention
    config = transformers.GPTNeoXConfig(hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=1,
                                        intermediate_size=8, vocab_size=11, attention_bias=bias,
                                        attn_implementation="eager")
    module = randomised(GPTNeoXAttention(config, layer_idx=0))
    with torch.no_grad():
        out = module(rows(), everything_visible(), position_embeddings=no_rotation(WIDTH // HEADS))[0]
    return module, out


@pytest.mark.parametrize("bias", [True, False])
def test_gpt_neox_interleaves_by_head(bias):
    module, want = neox(bias)
    fused = module.query_key_value.weight, module.query_key_value.bias
    q, k, v = convert(fused, HEADS, HEADS, WIDTH // HEADS, "per_head")
    assert close(layer(rows(), q, k, v, (module.dense.weight, module.dense.bias), HEADS, HEADS), want)


@pytest.mark.parametrize("mistake", ["flat-three-way-split", "rows-not-blocks", "inverse-direction"])
def test_a_wrong_reading_of_gpt_neox_keeps_every_shape_and_changes_the_output(mistake):
    module, want = neox()
    fused = module.query_key_value.weight, module.query_key_value.bias
    wrong = find("reorder_fused_qkv").program(mistake).namespace["reorder_fused_qkv"]
    q, k, v = convert(fused, HEADS, HEADS, WIDTH // HEADS, "per_head", wrong)
    got = layer(rows(), q, k, v, (module.dense.weight, module.dense.bias), HEADS, HEADS)
    assert got.shape == want.shape and not close(got, want)


def falcon(kv_heads, new=True, bias=True):
    from transformers.models.falcon.modeling_falcon import FalconAttention
    config = transformers.FalconConfig(hidden_size=WIDTH, num_attention_heads=HEADS, num_kv_heads=kv_heads, bias=bias,
                                       num_hidden_layers=1, vocab_size=11, new_decoder_architecture=new,
                                       multi_query=not new, attn_implementation="eager")
    module = randomised(FalconAttention(config, layer_idx=0))
    with torch.no_grad():
        out = module(rows(), None, everything_visible(), position_embeddings=no_rotation(WIDTH // HEADS))[0]
    return module, out


@pytest.mark.parametrize("kv_heads, new, source", [(2, True, "per_kv_group"), (3, True, "per_kv_group"),
                                                   (1, False, "qkv"), (1, False, "per_kv_group")])
def test_falcon_groups_queries_with_their_key_and_value(kv_heads, new, source):
    """With one key/value head, as in the first Falcon, the group order is the order qkv."""
    module, want = falcon(kv_heads, new)
    fused = module.query_key_value.weight, module.query_key_value.bias
    q, k, v = convert(fused, HEADS, kv_heads, WIDTH // HEADS, source)
    assert close(layer(rows(), q, k, v, (module.dense.weight, module.dense.bias), HEADS, kv_heads), want)


@pytest.mark.parametrize("mistake", ["group-read-as-per-head:one-query-in-each-group", "group-read-as-per-head",
                                     "group-read-as-per-head:key-and-value-after-the-first-query",
                                     "flat-three-way-split", "groups-tiled", "rows-not-blocks", "inverse-direction"])
def test_a_wrong_reading_of_falcon_does_not_reach_its_output(mistake):
    module, want = falcon(2)
    fused = module.query_key_value.weight, module.query_key_value.bias
    wrong = next(p for p in find("reorder_fused_qkv").wrongs if p.label == mistake).namespace["reorder_fused_qkv"]
    try:
        q, k, v = convert(fused, HEADS, 2, WIDTH // HEADS, "per_kv_group", wrong)
        got = layer(rows(), q, k, v, (module.dense.weight, module.dense.bias), HEADS, 2)
    except (RuntimeError, ValueError):
        return
    assert not close(got, want)


def gpt2():
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
    config = transformers.GPT2Config(n_embd=WIDTH, n_head=HEADS, n_layer=1, vocab_size=11, attn_implementation="eager")
    module = randomised(GPT2Attention(config, layer_idx=0))
    with torch.no_grad():
        return module, module(rows(), attention_mask=everything_visible())[0]


def test_gpt2_stores_logical_maps():
    module, want = gpt2()
    assert module.c_attn.weight.shape == (WIDTH, 3 * WIDTH)
    x = rows()
    packed = answers.project(x, module.c_attn.weight, module.c_attn.bias, "in_out")
    assert close(packed, module.c_attn(x))
    pairs = answers.split_qkv((module.c_attn.weight.T, module.c_attn.bias), answers.qkv_spans(HEADS, 4, 4))
    got = layer(x, *pairs, (module.c_proj.weight.T, module.c_proj.bias), HEADS, HEADS)
    assert close(got, want)


def test_the_square_output_map_of_gpt2_fits_the_wrong_way_round_too():
    module, want = gpt2()
    pairs = answers.split_qkv((module.c_attn.weight.T, module.c_attn.bias), answers.qkv_spans(HEADS, 4, 4))
    got = layer(rows(), *pairs, (module.c_proj.weight, module.c_proj.bias), HEADS, HEADS)
    assert got.shape == want.shape and not close(got, want)


def llama(kv_heads):
    from transformers.models.llama.modeling_llama import LlamaAttention
    config = transformers.LlamaConfig(hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=kv_heads,
                                      head_dim=8, num_hidden_layers=1, intermediate_size=8, vocab_size=11,
                                      attn_implementation="eager")
    module = randomised(LlamaAttention(config, layer_idx=0))
    with torch.no_grad():
        return module, module(rows(), position_embeddings=no_rotation(8), attention_mask=everything_visible())[0]


def state_of(module):
    return {name: p.detach() for name, p in module.named_parameters()}


@pytest.mark.parametrize("kv_heads", [6, 2])
def test_llama_keeps_separate_stored_maps_without_biases(kv_heads):
    """Its heads are 8 wide here, so that W_O is 24 by 48 and not square."""
    module, want = llama(kv_heads)
    q, k, v, o = ((module.get_submodule(f"{r}_proj").weight, None) for r in "qkvo")
    assert close(layer(rows(), q, k, v, o, HEADS, kv_heads), want)
    fused = answers.fuse_qkv(q, k, v)
    assert fused[1] is None and fused[0].shape[0] == (HEADS + 2 * kv_heads) * 8
    grouped = answers.reorder_fused_qkv(fused[0], HEADS, kv_heads, 8, "qkv", "per_kv_group")
    again = convert((grouped, None), HEADS, kv_heads, 8, "per_kv_group")
    assert all(torch.equal(a[0], b[0]) for a, b in zip(again, (q, k, v), strict=True))


def test_llama_with_its_heads_in_another_order_is_the_same_layer():
    module, want = llama(6)
    module.load_state_dict(answers.permute_heads(state_of(module), (3, 5, 0, 1, 4, 2)))
    with torch.no_grad():
        again = module(rows(), position_embeddings=no_rotation(8), attention_mask=everything_visible())[0]
    assert close(again, want)


def test_llama_on_two_ranks_is_the_same_layer():
    module, want = llama(6)
    lab = labs.in_process({"tensor_parallel_attention": answers.tensor_parallel_attention})
    for rank in lab.ranks("tensor_parallel_attention", rows(), state_of(module), HEADS):
        assert close(rank.value, want) and rank.collectives == {"allreduce": 1}


@pytest.mark.parametrize("kv_heads", [6, 2])
def test_the_ledger_counts_what_transformers_built(kv_heads):
    module, _ = llama(kv_heads)
    ledger = answers.parameter_ledger(WIDTH, HEADS, 8, 8, bias=False)
    counted = {r: module.get_submodule(f"{r}_proj").weight.numel() for r in "qkvo"}
    assert counted["q"] == ledger["q"] and counted["o"] == ledger["o"]
    assert counted["k"] == counted["v"] == ledger["k"] * kv_heads // HEADS
    neox_module, _ = neox()
    assert sum(p.numel() for p in neox_module.parameters()) == answers.parameter_ledger(WIDTH, HEADS, 4, 4)["total"]
    assert F.linear(rows(), neox_module.query_key_value.weight).shape[-1] == answers.qkv_spans(HEADS, 4, 4)["v"][1]
