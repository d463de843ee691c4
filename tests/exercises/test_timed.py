"""Session 07, the timed half: what is counted, in other words and layouts; what is asked for and not granted."""
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import solutions.timed as answers
from autograder import lab as labs
from autograder.diagnosis import diagnose
from autograder.exercises import find
from autograder.exercises.timed import _attention, compiled_softmax, grouped_decode
from autograder.publish import course_root
from autograder.stubs import cut
from autograder.timing import Timer
from autograder.verdicts import PASS, Verdict

POINTS = dict(batched_attention=2, attention_without_query_loop=2, grouped_decode=3, compiled_softmax=2)
EXERCISES = [find(name) for name in POINTS]
LIMITS = dict(batched_attention=2.5, attention_without_query_loop=2.5, grouped_decode=2.0, compiled_softmax=2.0)


@pytest.fixture
def untimed(grader, monkeypatch):
    """The grader, with a clock that lets everything pass: timing has tests of its own."""
    timed = []

    def judge(self, exercise, files):
        timed.append(exercise.name)
        return Verdict(PASS, exercise.timing.limit, "", 1.0, (1.0, 1.0))
    monkeypatch.setattr(Timer, "judge", judge)
    return SimpleNamespace(check=grader.check, timed=timed)


def test_points_and_limits_are_those_of_the_course():
    assert {e.name: e.points for e in EXERCISES} == POINTS
    assert {e.name: e.timing.limit for e in EXERCISES} == LIMITS
    assert {e.timing.device for e in EXERCISES} == {"cpu"} and {e.module for e in EXERCISES} == {"timed"}


def test_the_answers_pass_in_the_worker_and_the_stub_is_not_started(untimed, lab):
    source = (course_root() / "solutions" / "timed.py").read_text(encoding="utf-8")
    reports = untimed.check(EXERCISES, lab("timed", source))
    assert [(r.exercise, r.cases) for r in reports if r.status != "passed"] == []
    assert untimed.timed == list(POINTS)
    reports = untimed.check(EXERCISES, lab("timed", cut(source, "timed")))
    assert {r.status for r in reports} == {"not_started"} and len(untimed.timed) == len(POINTS)


def test_what_was_refused_by_counting_is_not_timed(untimed, lab):
    source = ("import torch\nfrom torch.nn.functional import scaled_dot_product_attention as attend\n"
              "def attention_without_query_loop(q, k, v):\n"
              "    return torch.cat([attend(q[:, :, t:t + 1], k, v) for t in range(q.shape[2])], 2)\n")
    [report] = untimed.check([find("attention_without_query_loop")], lab("timed", source))
    assert report.diagnosis.ids == ["loop-over-queries"] and untimed.timed == []
    assert "33 products were dispatched, 1 for each of 33 queries" in report.diagnosis.evidence


def test_a_request_to_compile_is_not_granted_and_harms_nobody(untimed, lab):
    source = ("import torch\n@torch.compile(fullgraph=True, dynamic=True)\ndef fill(scores, visible):\n"
              "    return scores.masked_fill(~visible, -torch.inf)\n"
              "@torch.compile\ndef softmax(scores):\n    return scores.softmax(-1)\n"
              "def compiled_softmax(scores, visible):\n"
              "    if not visible.any(-1).all(): raise ValueError('no visible key')\n"
              "    return torch.compile(softmax, mode='max-autotune')(fill(scores, visible))\n")
    [report] = untimed.check([find("compiled_softmax")], lab("timed", source))
    assert report.status == "passed", report.to_text()


# --- the oracles, against frameworks ---

@settings(max_examples=20, deadline=None)
@given(st.tuples(*[st.integers(1, 5)] * 6), st.booleans())
def test_the_attention_oracle_is_fused_attention(sizes, masked):
    b, h, t, s, d, d_v = sizes
    q, k, v = _attention.make(b, h, t, s, d, d_v)
    visible = None
    if masked:
        visible = torch.rand(b, 1, t, s, generator=torch.Generator().manual_seed(s)) < 0.5
        visible[..., 0] = True
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    assert torch.allclose(_attention.oracle(q, k, v, visible), want, atol=1e-12)
    assert torch.allclose(answers.batched_attention(q, k, v, visible), want, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.tuples(*[st.integers(1, 4)] * 5), st.integers(1, 6), st.integers(0, 3))
def test_the_decode_oracle_is_fused_grouped_attention(sizes, length, spare):
    b, groups, r, d, d_v = sizes
    q, k, v = grouped_decode.make(b, groups * r, groups, d, d_v, length + spare, length)
    want = F.scaled_dot_product_attention(q, k[:, :, :length], v[:, :, :length], enable_gqa=True)
    assert torch.allclose(grouped_decode.oracle(q, k, v, length), want, atol=1e-12)
    assert torch.allclose(answers.grouped_decode(q, k, v, length), want, atol=1e-12)


def test_the_decode_oracle_is_a_llamas_attention():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k, v = grouped_decode.make(length=6)
    module = SimpleNamespace(num_key_value_groups=4, training=False)
    want, _ = llama.eager_attention_forward(module, q, k[:, :, :6], v[:, :, :6], None, scaling=1 / math.sqrt(8))
    assert torch.allclose(grouped_decode.oracle(q, k, v, 6), want.transpose(1, 2), atol=1e-6)  # its softmax is float32


@pytest.mark.parametrize("shift", [-5000.0, 0.0, 5000.0])
def test_the_softmax_oracle_is_a_softmax_of_visible_scores(shift):
    scores, visible = compiled_softmax.normal(2, 3, 4, 7) + shift, compiled_softmax.mask(2, 1, 4, 7)
    want = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
    assert torch.allclose(compiled_softmax.oracle(scores, visible), want, atol=1e-12)
    assert torch.equal(answers.compiled_softmax(scores, visible), want)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_every_layout_of_the_inputs_is_right(exercise):
    """Heads as a split makes them: [B,T,H,D] in memory, seen as [B,H,T,D]."""
    def strided(t):
        return t.transpose(1, 2).contiguous().transpose(1, 2) if t.dim() == 4 else t
    given_, kwargs = {
        "grouped_decode": (grouped_decode.make(), {"length": 6}),
        "compiled_softmax": ((compiled_softmax.normal(2, 3, 4, 7), compiled_softmax.mask(2, 3, 4, 7)), {}),
    }.get(exercise.name, (_attention.make(2, 3, 4, 7, 5), {}))
    for program in exercise.rights:
        if program.id == "compiled":
            continue
        function = program.namespace[exercise.name]
        want, got = function(*given_, **kwargs), function(*map(strided, given_), **kwargs)
        assert torch.allclose(got, want, atol=1e-12), program.id


# --- other words ---

HEAD = "import math\nimport torch\nfrom torch.nn import functional as F\n"
LOOPED = """
def NAME(q, k, v, visible=None):
    if visible is not None and not visible.any(-1).all():
        raise ValueError('no visible key')
    m = None if visible is None else visible.expand(*q.shape[:3], k.shape[2])
BODY
"""
DECODE = """
def grouped_decode(q, k_cache, v_cache, length):
    if length < 1 or length > k_cache.size(2):
        raise ValueError(f'length {length}')
    k, v = k_cache[:, :, :length], v_cache[:, :, :length]
    r = q.size(1) // k.size(1)
BODY
"""
SOFTMAX = """
def compiled_softmax(scores, visible):
    if (~visible).all(-1).any():
        raise ValueError('no visible key')
BODY
"""
BATCHED, NO_LOOP = LOOPED.replace("NAME", "batched_attention"), LOOPED.replace("NAME", "attention_without_query_loop")


def _body(template, text):
    return HEAD + template.replace("BODY", "\n".join(f"    {line}" for line in text.strip().splitlines()))


SPELLINGS = [
    ("batched_attention", "loop-over-heads", _body(BATCHED, """
out = []
for i in range(q.size(1)):
    s = torch.einsum('btd,bsd->bts', q[:, i], k[:, i]) * q.size(-1) ** -0.5
    if m is not None: s = s.masked_fill(~m[:, i], float('-inf'))
    out.append(torch.bmm(s.softmax(-1), v[:, i])[:, None])
return torch.cat(out, 1)""")),
    ("batched_attention", "loop-over-heads", _body(BATCHED, """
return torch.stack([torch.stack([F.scaled_dot_product_attention(
    q[b, h][None], k[b, h][None], v[b, h][None], None if m is None else m[b, h][None])[0]
    for h in range(q.size(1))]) for b in range(q.size(0))])""")),
    ("batched_attention", "pairwise-product-stored", _body(BATCHED, """
s = torch.mul(q.unsqueeze(3), k.unsqueeze(2)).sum(dim=-1) / math.sqrt(q.size(-1))
if m is not None: s = torch.where(m, s, -torch.inf)
return torch.einsum('bhts,bhsd->bhtd', s.softmax(-1), v)""")),
    ("attention_without_query_loop", "loop-over-queries", _body(NO_LOOP, """
out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
for b in range(q.size(0)):
    for h in range(q.size(1)):
        for t in range(q.size(2)):
            out[b, h, t] = (k[b, h] @ q[b, h, t] / math.sqrt(q.size(-1))).softmax(0) @ v[b, h]
return out""")),
    ("grouped_decode", "length-minus-one", _body(DECODE, """
k, v = k_cache[:, :, 0:length - 1], v_cache[:, :, 0:length - 1]
return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)""")),
    ("grouped_decode", "reads-unfilled-cache", _body(DECODE, """
s = torch.einsum('bgrd,bgsd->bgrs', q.reshape(q.size(0), -1, r, q.size(-1)), k_cache) / math.sqrt(q.size(-1))
return torch.einsum('bgrs,bgsd->bgrd', s.softmax(-1), v_cache).reshape(*q.shape[:3], v.shape[-1])""")),
    ("grouped_decode", "masked-not-skipped", _body(DECODE, """
s = torch.einsum('bgrd,bgsd->bgrs', q.reshape(q.size(0), -1, r, q.size(-1)), k_cache) / math.sqrt(q.size(-1))
s[..., length:] = float('-inf')
return torch.einsum('bgrs,bgsd->bgrd', s.softmax(-1), v_cache).reshape(*q.shape[:3], v.shape[-1])""")),
    ("grouped_decode", "memory-repeated", _body(DECODE, """
index = torch.arange(q.size(1)) // r
return F.scaled_dot_product_attention(q, k[:, index], v[:, index])""")),
    ("compiled_softmax", "no-maximum", _body(SOFTMAX, """
e = scores.exp().masked_fill(~visible, 0)
return e / e.sum(-1, keepdim=True)""")),
    ("compiled_softmax", "maximum-over-blocked", _body(SOFTMAX, """
e = (scores - scores.max(-1, keepdim=True).values).exp()
e = torch.where(visible, e, torch.zeros_like(e))
return e / e.sum(-1, keepdim=True)""")),
    ("compiled_softmax", "rows-not-keys", _body(SOFTMAX, """
s = torch.where(visible, scores, torch.tensor(float('-inf'), dtype=scores.dtype))
return F.softmax(s, dim=2)""")),
]
RIGHTS = [
    ("batched_attention", _body(BATCHED, """
from mha_lab.given import attend
return attend(q, k, v, visible)[0]""")),
    ("batched_attention", _body(BATCHED, """
s = torch.einsum('...td,...sd->...ts', q, k).div(math.sqrt(q.size(-1)))
s = s if m is None else torch.where(m, s, -torch.inf)
return torch.matmul(F.softmax(s, dim=-1, dtype=torch.float64).to(v.dtype), v)""")),
    ("attention_without_query_loop", _body(NO_LOOP, """
s = torch.bmm(q.reshape(-1, *q.shape[2:]), k.reshape(-1, *k.shape[2:]).transpose(1, 2)) / q.size(-1) ** 0.5
return torch.bmm(torch.softmax(s, 2), v.reshape(-1, *v.shape[2:])).reshape(*q.shape[:3], v.shape[-1])""")),
    ("grouped_decode", _body(DECODE, """
from einops import einsum, rearrange
grouped = rearrange(q, 'b (g r) t d -> b g (r t) d', r=r)
p = (einsum(grouped, k, 'b g r d, b g s d -> b g r s') * q.size(-1) ** -0.5).softmax(-1)
return rearrange(einsum(p, v, 'b g r s, b g s d -> b g r d'), 'b g r d -> b (g r) 1 d')""")),
    ("grouped_decode", _body(DECODE, """
heads = [F.scaled_dot_product_attention(q[:, h:h + 1], k[:, h // r:h // r + 1], v[:, h // r:h // r + 1])
         for h in range(q.size(1))]
return torch.cat(heads, 1)""")),
    ("compiled_softmax", _body(SOFTMAX, """
s = scores.masked_fill(visible.logical_not(), torch.finfo(scores.dtype).min)
return torch.where(visible, s.softmax(-1), 0.0).to(scores.dtype)""")),
    ("compiled_softmax", _body(SOFTMAX, """
return torch.log_softmax(torch.where(visible, scores, -torch.inf), dim=-1).exp()""")),
]


def _trials(name, source):
    namespace = {}
    exec(source, namespace)
    exercise = find(name)
    trials = []
    for case in exercise.cases:
        lab = labs.in_process(namespace)
        trials.append(exercise.attempt(case, lab))
        lab.close()
    return exercise, trials


@pytest.mark.parametrize("name, id, source", SPELLINGS, ids=[f"{n}-{i}-{k}" for k, (n, i, _) in enumerate(SPELLINGS)])
def test_a_wrong_program_in_other_words_has_the_same_name(name, id, source):
    exercise, trials = _trials(name, source)
    found = diagnose(exercise, trials)
    assert found and found.ids == [id], [(t.case.title, t.message) for t in trials if not t.passed]


@pytest.mark.parametrize("name, source", RIGHTS, ids=[f"{n}-{k}" for k, (n, _) in enumerate(RIGHTS)])
def test_a_right_program_in_other_words_is_right(name, source):
    _, trials = _trials(name, source)
    assert [(t.case.title, t.message) for t in trials if not t.passed] == []


def test_messages_name_the_number_the_head_and_the_rows():
    def messages(name, source):
        return " ".join(t.message for t in _trials(name, source)[1])
    assert "6 products were dispatched, 2 for each of 3 heads" in messages("batched_attention", SPELLINGS[0][2])
    assert "12 products were dispatched, 2 for each of 6 samples and heads" in messages(
        "batched_attention", SPELLINGS[1][2])
    stored = messages("batched_attention", SPELLINGS[2][2])
    assert "a storage of 1,774,080 bytes" in stored and 2 * 3 * 33 * 70 * 16 * 8 == 1_774_080
    short = messages("grouped_decode", SPELLINGS[4][2])
    assert "query head 0 averages the rows {0, 1, 2}, expected the rows {0, 1, 2, 3}" in short
    assert "rows 4 to 5 of the cache are not filled, and they were read" in messages("grouped_decode", SPELLINGS[5][2])
    assert "times the filled K and V (73,728 bytes)" in messages("grouped_decode", SPELLINGS[7][2])
    tiled = _body(DECODE, "return F.scaled_dot_product_attention(q, k.repeat(1, r, 1, 1), v.repeat(1, r, 1, 1))")
    assert "query head 1 reads key/value head 1, expected 0" in messages("grouped_decode", tiled)
    assert "the probabilities of query 0 sum to" in messages("compiled_softmax", SPELLINGS[10][2])


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_no_hint_gives_the_answer_away(exercise):
    source = (course_root() / "solutions" / "timed.py").read_text(encoding="utf-8")
    lines = {line.strip() for line in source.splitlines() if len(line.strip()) > 25 and "=" in line}
    said = " ".join([*exercise.hints, exercise.summary, *(p.why for p in exercise.wrongs)])
    assert not [line for line in lines if line in said]
