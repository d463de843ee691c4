"""Session 06: oracles against frameworks, answers through the real worker, every chunking, figures, and messages."""
import inspect
import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from autograder.diagnosis import diagnose
from autograder.exercise import Program
from autograder.exercises import find, select
from autograder.exercises.grouped import _attend, _gqa_oracle
from autograder.exercises.grouped._gqa_base import Base
from autograder.exercises.grouped._gqa_evidence import dense
from autograder.standard import normal
from autograder.worker.counting import Counter
from mha_lab.given import attend
from mha_lab.models import PUBLISHED
from solutions import grouped as answers

SOLUTION = Path(inspect.getfile(answers)).read_text(encoding="utf-8")


def chunkings(total):
    for count in range(total):
        for cuts in itertools.combinations(range(1, total), count):
            yield [b - a for a, b in zip((0, *cuts), (*cuts, total), strict=True)]


def layer(sizes, seed=20):
    module = answers.GroupedQueryAttention(*sizes).double()
    module.load_state_dict(_gqa_oracle.random_state(sizes, seed))
    return module


# --- through the real worker ---

def test_the_answers_pass_through_the_real_worker(grader, lab):
    reports = grader.check(select("06"), lab("grouped", SOLUTION))
    assert [(r.exercise, r.status, [c.message for c in r.cases]) for r in reports if r.status != "passed"] == []
    assert sum(r.score for r in reports) == 25


def test_wrong_programs_are_named_through_the_real_worker(grader, lab):
    wrong = SOLUTION
    for right, mistake in (
            ("return query_head // (num_heads // num_kv_heads)", "return query_head % num_kv_heads"),
            ("kv.repeat_interleave(groups, dim=1)", "kv.repeat(1, groups, 1, 1)"),
            ("visible.tril(keys - new)", "visible.tril()"),
            ('channels = config["kv_heads"]', 'channels = config["heads"]'),
            ("return latent + rope_dim", "return 2 * latent + rope_dim"),
            ("groups.mean(1)", "groups[:, 0]")):
        assert right in wrong
        wrong = wrong.replace(right, mistake)
    names = ("kv_head_for", "repeat_kv", "GroupedQueryAttention", "kv_cache_bytes", "mla_cache_elements",
             "mean_pool_kv")
    reports = grader.check(map(find, names), lab("grouped", wrong))
    assert [r.diagnosis.ids for r in reports] == [
        ["modulo"], ["tiled-heads"], ["triangle-top-left"], ["query-heads-counted"], ["two-latents"],
        ["first-head-kept"]]


def test_copies_are_counted_in_the_real_worker(grader, lab):
    repeated = SOLUTION.replace("    folded = q.reshape(batch, groups, -1, width)\n    scores = (folded @ k.transpose",
                                "    k = k.repeat_interleave(heads // groups, 1)\n    scores = (q @ k.transpose")
    assert repeated != SOLUTION
    report, = grader.check([find("grouped_attention")], lab("grouped", repeated))
    assert report.diagnosis.ids == ["memory-repeated"]
    assert "15,360 elements (122,880 bytes)" in report.diagnosis.evidence


# --- oracles ---

def test_the_oracle_of_grouped_attention_is_what_sdpa_computes():
    q, k, v = normal(2, 12, 5, 8), normal(2, 3, 7, 8, seed=1), normal(2, 3, 7, 6, seed=2)
    visible = _attend.scattered(2, 12, 5, 7)
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
    torch.testing.assert_close(_attend.attend(q, k, v, visible)[0], want)


def test_with_as_many_key_heads_as_query_heads_oracle_and_answer_are_the_framework_s_module():
    """Values and the gradients of the rows and all four maps."""
    sizes = _gqa_oracle.CLASSIC
    state, x, cotangent = _gqa_oracle.random_state(sizes), normal(2, 5, 12, seed=1), normal(2, 5, 12, seed=2)
    module = nn.MultiheadAttention(12, 3, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([state[f"{r}_proj.weight"] for r in "qkv"]))
        module.out_proj.weight.copy_(state["o_proj.weight"])
    x = x.requires_grad_()
    blocked = ~torch.ones(5, 5, dtype=torch.bool).tril()
    want, weights = module(x, x, x, attn_mask=blocked, average_attn_weights=False)
    grads = torch.autograd.grad(want, [x, module.in_proj_weight, module.out_proj.weight], cotangent)
    leaves = {n: w.clone().requires_grad_() for n, w in state.items()}
    ours = _gqa_oracle.answer(leaves, sizes, x, causal=True)
    theirs = layer(sizes)
    got = theirs(x, causal=True)
    for output, probabilities, _ in (ours, got):
        torch.testing.assert_close(output, want)
        torch.testing.assert_close(probabilities, weights)
    for output, parameters in ((ours[0], list(leaves.values())), (got[0], list(theirs.parameters()))):
        gx, gq, gk, gv, go = torch.autograd.grad(output, [x, *parameters], cotangent)
        for a, b in zip((gx, torch.cat([gq, gk, gv]), go), grads, strict=True):
            torch.testing.assert_close(a, b)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_grouped_attention_of_any_sizes_is_attention_over_repeated_heads(data):
    batch, groups, members, t, s, d, d_v = (data.draw(st.integers(1, n)) for n in (3, 4, 4, 5, 6, 5, 5))
    q, k, v = torch.randn(batch, groups * members, t, d), torch.randn(batch, groups, s, d), torch.randn(
        batch, groups, s, d_v)
    visible = torch.rand(data.draw(st.sampled_from([1, batch])), data.draw(st.sampled_from([1, groups * members])), t,
                         s) > 0.4
    visible[..., 0] = True
    if data.draw(st.booleans()):
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    want = attend(q, *(answers.repeat_kv(x, members) for x in (k, v)), visible)[0]
    torch.testing.assert_close(answers.grouped_attention(q, k, v, visible), want)
    heads = [answers.kv_head_for(h, groups * members, groups) for h in range(groups * members)]
    assert torch.equal(answers.repeat_kv(k, members), k[:, heads])


@pytest.mark.parametrize("sizes", [_gqa_oracle.G, _gqa_oracle.CLASSIC, _gqa_oracle.ONE])
def test_every_chunking_equals_one_pass(sizes):
    module, x = layer(sizes), normal(2, 5, sizes[0], seed=1)
    valid = torch.ones(2, 5, dtype=torch.bool)
    valid[1, 2] = False
    with torch.no_grad():
        full, _, kept = module(x, causal=True, valid=valid)
        for lengths in chunkings(5):
            cache, outputs, at = None, [], 0
            for rows in x.split(lengths, 1):
                at += rows.shape[1]
                out, _, cache = module(rows, causal=True, cache=cache, valid=valid[:, :at])
                outputs.append(out)
            torch.testing.assert_close(torch.cat(outputs, 1), full)
            for a, b in zip(cache, kept, strict=True):
                torch.testing.assert_close(a, b)


def test_which_chunks_hide_which_triangle():
    """Claim 43: 2 + 3 catches both; one row at a time hides a missing one."""
    x, found = normal(2, 5, 20, seed=1), {}
    full = layer(_gqa_oracle.G)(x, causal=True)[0]
    for mistake in ("triangle-top-left", "mask-skipped-with-cache"):
        make = find("GroupedQueryAttention").program(mistake).namespace["GroupedQueryAttention"]
        module = make(*_gqa_oracle.G).double()
        module.load_state_dict(_gqa_oracle.random_state(_gqa_oracle.G))
        for lengths in ((2, 3), (1, 1, 1, 1, 1)):
            cache, outputs = None, []
            for rows in x.split(lengths, 1):
                out, _, cache = module(rows, causal=True, cache=cache)
                outputs.append(out)
            found[mistake, lengths] = torch.allclose(torch.cat(outputs, 1), full)
    assert [*found.values()] == [False, False, False, True]


# --- other words for known programs, and right ones that must pass ---

def found(name, program):
    exercise = find(name)
    trials = exercise.try_program(Program(f"in other words {id(program)}", {name: program}, ""))
    diagnosis = diagnose(exercise, trials)
    return (diagnosis.ids if diagnosis else [], [(t.case.title, t.message) for t in trials if not t.passed])


def by_position(q, k, v, visible=None):
    answers.grouped_attention(q[:, :, :1], k, v, None if visible is None else visible[:, :, :1] | True)
    if visible is not None and (~visible).all(-1).any():
        raise ValueError("no visible key here")
    out = torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    members = q.shape[1] // k.shape[1]
    seen = torch.ones(1, 1, 1, 1, dtype=torch.bool) if visible is None else visible
    seen = seen.expand(*q.shape[:3], k.shape[2])
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        scores = q[b, h] @ k[b, h // members].T / q.shape[-1]**0.5
        out[b, h] = scores.masked_fill(~seen[b, h], -torch.inf).softmax(-1) @ v[b, h // members]
    return out


def head_first_mask(q, k, v, visible=None):
    """The mask folded to [B,G,R·T,S]."""
    batch, heads, queries, width = q.shape
    groups, keys = k.shape[1:3]
    answers.grouped_attention(q, k, v, visible)
    folded = q.reshape(batch, groups, -1, width) @ k.mT / width**0.5
    if visible is not None:
        mask = torch.zeros(visible.shape, dtype=q.dtype).masked_fill(~visible, -torch.inf)
        folded = folded + mask.expand(batch, heads, queries, keys).reshape(batch, groups, -1, keys)
    return (folded.softmax(-1) @ v).reshape(batch, heads, queries, -1)


def repeated_values_only(q, k, v, visible=None):
    members = q.shape[1] // k.shape[1]
    answers.grouped_attention(q, k, v, visible)
    scores = (q.unflatten(1, (-1, members)).flatten(2, 3) @ k.mT / q.shape[-1]**0.5).unflatten(2, (members, -1))
    scores = scores.flatten(1, 2)
    weights = (scores if visible is None else scores.masked_fill(~visible, -torch.inf)).softmax(-1)
    return weights @ v.repeat_interleave(members, 1)


class StoredAsList(Base):
    def kept(self, k, v, cache):
        return [k, v]


class ContiguousRows(Base):
    def project(self, x):
        q, k, v = super().project(x)
        return q.contiguous(), k.contiguous(), v.contiguous()


class RepeatsWithExpand(Base):
    def repeated(self, x):
        return x[:, :, None].expand(-1, -1, self.members, -1, -1).flatten(1, 2)


class CausalByLoop(Base):
    def triangle(self, new, keys, cache):
        rows = [[column <= keys - new + row for column in range(keys)] for row in range(new)]
        return torch.tensor(rows)


class IsCausalOnPromptsOnly(Base):
    """SDPA gets `is_causal` where there is neither a cache nor padding, a mask otherwise."""

    def mix(self, q, k, v, weights, seen, causal):
        if causal and seen.dim() == 2 and q.shape[2] == k.shape[2]:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen.expand(weights.shape), enable_gqa=True)


class KeepsFusedRow(Base):
    """k and v are views of one wide projection, cached as they are."""

    def project(self, x):
        row = F.linear(x, torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]))
        heads = self.split(row, self.heads + 2 * self.groups)
        return heads.split([self.heads, self.groups, self.groups], 1)


class TriangleForOneRow(Base):
    """The triangle is left out for chunks, kept for prompts and one row."""

    def triangle(self, new, keys, cache):
        return torch.ones(new, keys, dtype=torch.bool) if cache is not None else super().triangle(new, keys, cache)


@pytest.mark.parametrize("name, program, ids", [
    ("grouped_attention", by_position, None), ("grouped_attention", head_first_mask, None),
    ("GroupedQueryAttention", StoredAsList, None), ("GroupedQueryAttention", ContiguousRows, None),
    ("GroupedQueryAttention", RepeatsWithExpand, None), ("GroupedQueryAttention", CausalByLoop, None),
    ("GroupedQueryAttention", IsCausalOnPromptsOnly, None),
    ("kv_head_for", lambda query_head, num_heads, num_kv_heads: answers.kv_head_for(
        query_head, num_heads, num_kv_heads) and int(query_head / num_heads * num_kv_heads + 1e-9), None),
    ("repeat_kv", lambda kv, groups: kv.unsqueeze(2).repeat(1, 1, groups, 1, 1).flatten(1, 2), None),
    ("absorb_keys", lambda w_q, w_uk, num_heads: torch.stack(
        [(a.T @ b).T for a, b in zip(w_q.chunk(num_heads), w_uk.chunk(num_heads), strict=True)]), None),
    ("absorb_values", lambda w_o, w_uv, num_heads: torch.einsum(
        "mhd,hdc->hmc", w_o.reshape(len(w_o), num_heads, -1), w_uv.reshape(num_heads, -1, w_uv.shape[1])), None),
    ("grouped_attention", repeated_values_only, "memory-repeated"),
    ("GroupedQueryAttention", KeepsFusedRow, "cache-strided-by-queries"),
    ("GroupedQueryAttention", TriangleForOneRow, "mask-skipped-with-cache"),
])
def test_a_program_in_other_words(name, program, ids):
    named, failing = found(name, program)
    assert ids in named if ids else not failing, (named, failing)


@pytest.mark.parametrize("stride, shared, fits", [
    ((168, 56, 8, 1), False, True),         # heads first
    ((168, 8, 24, 1), False, True),         # tokens first, as a projection leaves it
    ((336, 8, 48, 1), True, True),          # keys and values of one projection
    ((1536, 512, 8, 1), False, True),       # room for 64 tokens, heads first
    ((1536, 8, 24, 1), False, True),        # room for 64 tokens, tokens first
    ((168, 56, 1, 7), False, True),         # channels first
    ((672, 8, 96, 1), False, False),        # a row of 12 heads
    ((1008, 8, 144, 1), False, False),      # a row of queries, keys and values
    ((672, 224, 8, 1), False, False),       # every fourth of 12 heads
    ((336, 8, 48, 1), False, False),        # twice the row, and nobody uses the other half
])
def test_what_a_cache_may_look_like_in_memory(stride, shared, fits):
    assert (dense((2, 3, 7, 8), stride, shared, 4) is None) is fits


# --- messages ---

@pytest.mark.parametrize("name, mistake, says", [
    ("kv_head_for", "modulo", "query head 1 of 12 reads key/value head 1, expected 0"),
    ("repeat_kv", "tiled-heads", "query head 1 reads key/value head 1, expected 0"),
    ("repeat_kv", "sequence-repeated", "[2, 3, 28, 8], expected [B,G·R,S,D] [2, 12, 7, 8]"),
    ("grouped_attention", "tiled-groups", "the values of query head 1 come from key/value head 1, expected 0"),
    ("grouped_attention", "mask-not-regrouped", "RuntimeError"),
    ("grouped_attention", "broadcast-matmul", "the product itself copied it"),
    ("GroupedQueryAttention", "triangle-top-left", "new query 0, which is row 2 after 2 cached rows, sees keys {0}, "
                                                   "expected {0,1,2}"),
    ("GroupedQueryAttention", "valid-covers-new-only", "expected"),
    ("GroupedQueryAttention", "cache-repeated", "the cached k has shape [2, 12, 5, 8], expected [B,G,S,D] "
                                                "[2, 3, 5, 8]"),
    ("GroupedQueryAttention", "kv-projected-full-width", "k_proj.weight is [96, 20], expected [24, 20]"),
    ("GroupedQueryAttention", "first-token-not-cached", "the cache that forward returned is None"),
    ("GroupedQueryAttention", "cache-without-causal", "forward(a tensor [2, 3, 20], cache=(a tensor [2, 3, 4, 8], a "
                                                      "tensor [2, 3, 4, 8])) was accepted"),
    ("kv_cache_bytes", "head-dim-from-hidden", "expected 229,376,000"),
    ("gqa_parameters", "output-shrinks-too", "it reads all 4 query heads"),
    ("mean_pool_kv", "strided-groups", "group 0 is the mean of heads [0, 3, 6, 9], expected the mean of heads "
                                       "[0, 1, 2, 3]"),
    ("mean_pool_kv", "first-head-kept", "group 0 is head 0 alone"),
    ("absorb_keys", "scaled-by-latent", "1/√5"),
    ("absorb_values", "output-block-of-rows", "head 0 writes through columns 0 to 3 of W_O"),
    ("mixed_window_macs", "window-squared", "expected 738,197,504"),
])
def test_a_message_names_the_place(name, mistake, says):
    exercise = find(name)
    trials = exercise.try_program(exercise.program(mistake))
    assert says in diagnose(exercise, trials).evidence or any(says in t.message for t in trials), [
        t.message for t in trials]


def test_no_hint_and_no_reason_gives_an_answer_away():
    for exercise in select("06"):
        words = " ".join([*exercise.hints, exercise.summary])
        for spoiler in ("query_head //", "// (num_heads", "repeat_interleave(", "einsum(", "latent + rope", "tril(",
                        ".mean(1)", "W(W-1)/2"):
            assert spoiler not in words, (exercise.name, spoiler)


# --- figures of the map ---

def test_the_cache_of_eighty_layers():
    config = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 64}
    assert answers.kv_cache_bytes(config, 1, 2048) == 5_368_709_120 == 5 * 2**30
    assert answers.kv_cache_bytes(config | {"kv_heads": 8}, 1, 2048) == 671_088_640 == 0.625 * 2**30


def test_parameters_and_cache_elements_of_the_small_layers():
    for groups, total, elements in ((4, 576, 240), (2, 432, 120), (1, 360, 60)):
        ledger = answers.gqa_parameters(12, 4, groups, 3)
        module = answers.GroupedQueryAttention(12, 4, groups)
        assert ledger["total"] == total == sum(p.numel() for p in module.parameters())
        _, _, cache = module(torch.randn(2, 5, 12))
        assert sum(t.numel() for t in cache) == elements
    assert (ledger["saved_kv"], ledger["saved_total"]) == (0.75, 0.375)
    llama = answers.gqa_parameters(4096, 32, 8, 128)
    assert (llama["q"], llama["k"], llama["v"], llama["o"]) == (16_777_216, 4_194_304, 4_194_304, 16_777_216)


def test_latent_attention_of_deepseek_v2():
    assert answers.mla_cache_elements(512, 64, 128) == 576 == 2.25 * 2 * 128
    assert 2 * 128 * 128 == 32_768


def test_windows():
    assert answers.mixed_window_macs(2048, 256, 6, 2, 64) == {
        "leading": 738_197_504, "exact_causal": 457_359_360, "dense": 2_147_483_648}


@pytest.mark.parametrize("sizes, word", [
    ((12, 0, 1), "positive"), ((13, 3, 1), "divisible"), ((12, 3, 2), "divisible")])
def test_invalid_configurations(sizes, word):
    with pytest.raises(ValueError, match=word):
        answers.GroupedQueryAttention(*sizes)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 3), st.integers(0, 3), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_exact_causal_counts_the_cells_of_a_mask(length, window, local, whole, width):
    window = min(window, length)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    seen = causal & ~torch.ones_like(causal).tril(-window)
    got = answers.mixed_window_macs(length, window, local, whole, width)
    assert got["exact_causal"] == (local * int(seen.sum()) + whole * int(causal.sum())) * width
    assert got["exact_causal"] <= got["leading"] <= got["dense"]


# --- absorption ---

def test_absorption_is_exact_without_a_rotation_and_not_with_one():
    heads, d, d_v, latent, width = 3, 4, 6, 5, 10
    w_q, w_uk, w_uv, w_o = normal(heads * d, width), normal(heads * d, latent, seed=1), normal(
        heads * d_v, latent, seed=2), normal(width, heads * d_v, seed=3)
    x, c = normal(6, width, seed=4), normal(7, latent, seed=5)
    q, k, v = (F.linear(r, w).unflatten(-1, (heads, -1)).transpose(0, 1)[None] for r, w in (
        (x, w_q), (c, w_uk), (c, w_uv)))
    want = F.linear(attend(q, k, v)[0][0].transpose(0, 1).flatten(1), w_o)
    scores = torch.einsum("sc,hcm,tm->hts", c, answers.absorb_keys(w_q, w_uk, heads), x) / d**0.5
    got = torch.einsum("hts,sc,hmc->tm", scores.softmax(-1), c, answers.absorb_values(w_o, w_uv, heads))
    torch.testing.assert_close(got, want)

    def turned(rows, at):
        angle = at[:, None] / 10.0 ** torch.arange(d // 2)
        a, b = rows[..., :d // 2], rows[..., d // 2:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    rotated = turned(q, torch.arange(6) + 1.0) @ turned(k, torch.arange(7) + 1.0).mT / d**0.5
    assert (rotated[0] - scores).norm() > 0.3 * scores.norm()


def test_a_counted_storage_has_a_shape():
    x = torch.randn(2, 3, 4)
    with Counter() as counter:
        x.repeat_interleave(5, 1).relu().add_(1)
    facts = counter.facts()
    assert facts["new_shapes"] == [[2, 3, 5, 4], [2, 15, 4]] and facts["new_storages"] == [480, 480]


# --- published sizes ---

def test_published_models_are_consistent():
    for name, model in PUBLISHED.items():
        assert name == model.name and model.heads % model.kv_heads == 0 and model.source.startswith("config.json of")
        assert (model.window is None) == (model.local_layers == 0)
        if not model.latent:
            assert model.head_dim == model.v_head_dim
