"""Session 07, kernels: what the interpreter hides is seen, what a compiler refuses is named, time is never invented."""
import re

import pytest
import torch
from torch.nn import functional as F

from autograder import charts, triton_lab
from autograder.exercises import find, session
from autograder.exercises.kernels._attention import attend, simulate
from autograder.exercises.kernels.flash_attention_triton import INPUTS, inputs
from autograder.lab import Gone
from autograder.publish import course_root
from autograder.standard import normal
from autograder.triton_lab import Workload, conclude_time, guarded, judge_compilation, outside, race

KERNELS = [e for e in session("07").exercises if e.module == "kernels"]
TRITON = [e for e in KERNELS if isinstance(e, triton_lab.TritonExercise)]
needs_triton = pytest.mark.skipif(bool(triton_lab.missing()), reason=triton_lab.missing() or "Triton is there")
SOLUTION = (course_root() / "solutions" / "kernels.py").read_text(encoding="utf-8")


def changed(*pairs):
    """The course's answers with some lines replaced."""
    text = SOLUTION
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def check(grader, lab, name, *pairs):
    [report] = grader.check([find(name)], lab("kernels", changed(*pairs)))
    return report


# ---- without Triton


def test_without_triton_a_check_is_neither_passed_nor_failed(grader, lab, monkeypatch):
    monkeypatch.setattr(triton_lab.importlib.util, "find_spec", lambda name: None)
    folder = lab("kernels", SOLUTION)
    for report in grader.check(TRITON, folder):
        assert report.status == "not_measured" and not report.cases and report.diagnosis is None
        assert "pip install triton" in report.to_text() and "pip install triton" in report.to_html()


def test_the_rest_of_the_module_needs_no_triton(grader, lab):
    """A worker in which triton cannot be imported: the module can, and its other exercises are graded."""
    hidden = "import sys\nsys.modules['triton'] = None\n" + SOLUTION
    folder = lab("kernels", hidden.replace("from mha_lab.triton_given", "from mha_lab.triton_given"))
    reports = grader.check([find("roofline"), find("observe_backend")], folder)
    assert [r.status for r in reports] == ["passed", "passed"]


def test_a_kernel_without_triton_says_what_to_install(monkeypatch):
    import importlib
    import sys

    import mha_lab
    before = sys.modules.get("mha_lab.triton_given")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "mha_lab.triton_given", raising=False)
    try:
        given = importlib.import_module("mha_lab.triton_given")
        with pytest.raises(ImportError, match="pip install"):
            given.ready()
        assert given.triton.jit(test_a_kernel_without_triton_says_what_to_install).__name__
        assert given.triton.cdiv(33, 32) == 2 and [given.triton.next_power_of_2(n) for n in (1, 5, 64)] == [1, 8, 64]
    finally:
        sys.modules.pop("mha_lab.triton_given", None)
        if before is not None:
            sys.modules["mha_lab.triton_given"] = before
            mha_lab.triton_given = before


def test_the_grader_itself_never_imports_triton():
    import subprocess
    import sys
    code = ("import sys; from autograder.exercises import all_exercises; all_exercises(); "
            "sys.exit('triton' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], cwd=course_root()).returncode == 0


# ---- inputs and simulations


def test_guarded_tensors_lie_between_bands_of_nan():
    plain = normal(2, 3, 5, seed=1).float()
    inside = guarded(plain, row_gap=4, band=7)
    assert torch.equal(inside, plain) and inside.stride() == (27, 9, 1)
    whole = torch.empty(0).set_(inside.untyped_storage())
    assert int((~whole.isnan()).sum()) == 30 and whole[:7].isnan().all() and whole[-11:].isnan().all()


def test_an_online_softmax_without_a_fault_is_attention_for_every_block():
    for title in INPUTS:
        q, k, v, causal = inputs(title)
        heads, lse = attend(q, k, v, causal)
        keys = torch.arange(k.shape[2])
        mask = keys[None, :] <= torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] if causal else None
        framework = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask)
        assert torch.allclose(heads, framework, atol=1e-10)
        for block in (16, 64):
            mine = simulate("", q, k, v, causal, 16, block)
            assert torch.allclose(mine[0], heads, atol=1e-9) and torch.allclose(mine[1], lse, atol=1e-9)


# ---- words


def test_an_access_outside_is_said_with_its_element():
    fact = {"kind": "load", "kernel": "rows", "program": (3, 0, 0), "lanes": 28, "of": 128, "argument": "x",
            "element": 100, "elements": 100, "reach": 100}
    assert outside(fact, 1) == ("out of bounds: in rows, program (3, 0, 0), a load of 128 elements: the first one "
                                "outside is element 100 of `x`, which has 100")
    assert "is 2 before the start of `x`" in outside(fact | {"element": -2, "of": 1}, 3)
    assert "between the rows of `x`" in outside(fact | {"element": 7}, 1)
    assert "program (1, 0, 0) loads element 4 of `y`, which program (0, 0, 0) stored" in race(
        {"kind": "load", "kernel": "k", "program": (1, 0, 0), "other": (0, 0, 0), "argument": "y", "element": 4})


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda e: e.name)
def test_hints_and_sentences_hold_no_answer(exercise):
    for program in exercise.wrongs:
        assert "tl.store(" not in program.why and "```" not in program.why
    assert all("tl.store(" not in h for h in exercise.hints)


# ---- the verdict on time, from what a GPU worker would send


def _work(seed=0):
    x = normal(4, 8, seed=seed).float()
    return Workload((x,), {}, 1000, 10, lambda t: (t.softmax(-1),))


def _body(works, calls=5, seconds=2e-6, **more):
    outs = [works[0], works[(calls - 1) % len(works)]]
    return {"seconds": [seconds] * calls, "outputs": [list(w.oracle(*w.args)) for w in outs], "device": "a card",
            "copy_bandwidth": 1e9} | more


@pytest.mark.parametrize("seconds, wall, verdict", [
    (2e-6, 3e-6, "measured"), (0.5e-6, 1e-6, "invalid"), (9e-6, 3e-6, "inconclusive"), (2e-6, 1.0, "inconclusive")])
def test_a_time_is_believed_below_the_roof_and_beside_our_own_clock(seconds, wall, verdict):
    works = [_work(1), _work(2), _work(3)]
    fact = conclude_time(_body(works, seconds=seconds), wall, works[0], works, 5)
    assert fact["verdict"] == verdict and bool(fact["reason"]) == (verdict != "measured")
    if verdict == "measured":
        assert fact["of_roofline"] == pytest.approx(0.5)


def test_a_wrong_output_of_a_timed_call_is_no_time():
    works = [_work(1), _work(2), _work(3)]
    body = _body(works)
    body["outputs"][1] = body["outputs"][0]  # the answer of another call
    assert conclude_time(body, 3e-6, works[0], works, 5)["verdict"] == "invalid"


def test_a_failed_call_is_not_measured():
    error = {"error": {"message": "CUDA error"}}
    fact = conclude_time(error, 1.0, _work(), [_work()], 1)
    assert fact["verdict"] == "not_measured" and "CUDA error" in fact["reason"]


def test_a_chart_shows_bytes_until_there_is_a_time():
    traffic = {"loaded": 30, "stored": 10, "torch": 5, "minimum": 20, "ratio": 2.25}
    bars = charts.kernel_chart({"verdict": "not_measured", "traffic": traffic}, "mine")
    assert [bar.x[0] for bar in bars.data] == [20, 30, 10, 5] and "2.25 times" in bars.layout.title.text
    measured = {"verdict": "measured", "flops": 4000, "minimum_bytes": 1000, "seconds": 1e-6, "copy_bandwidth": 2e9,
                "of_roofline": 0.5, "device": "a card", "traffic": traffic}
    roof = charts.kernel_chart(measured, "mine")
    assert roof.data[1].x[0] == 4.0 and roof.data[1].y[0] == pytest.approx(4e9)
    assert roof.data[1].y[0] == pytest.approx(0.5 * 2e9 * 4.0)  # the point lies at half the slope
    assert charts.kernel_chart({"verdict": "not_measured", "traffic": None}) is None


# ---- compilation, judged from facts


class FakeLab:
    def __init__(self, **fact):
        self._fact = {"kernel": "k", "variant": 0, "target": 80, "seconds": 0.1, "shared": 0, "tf32": False,
                      "error": None} | fact

    def _exchange(self, body):
        return {"kernels": [self._fact], "error": None}, None

    def close(self):
        pass


@pytest.mark.parametrize("fact, name", [
    ({}, ""), ({"shared": 163 * 1024}, ""), ({"shared": 163 * 1024 + 1}, "shared-memory-exceeded"),
    ({"target": 90, "shared": 163 * 1024 + 1}, ""), ({"tf32": True}, "tf32-surprise"),
    ({"tf32": True, "variant": 1}, ""), ({"error": "CompilationError: no"}, "does-not-compile")])
def test_what_was_compiled_is_judged_against_the_card(fact, name):
    compiled = judge_compilation(find("softmax_triton"), lambda mode: FakeLab(**fact))
    assert compiled.name == name and bool(compiled.fault) == bool(name)


def test_a_child_that_dies_while_compiling_fails_closed():
    def gone(mode):
        raise Gone("no answer within 20 s")
    assert "no answer" in judge_compilation(find("softmax_triton"), gone).fault


# ---- the whole way, with Triton


@needs_triton
@pytest.mark.walls
@pytest.mark.parametrize("name", ["softmax_triton", "gqa_decode_triton"])
def test_an_answer_passes_is_compiled_and_has_no_time(grader, lab, name):
    report = check(grader, lab, name)
    assert report.status == "passed" and report.timing["verdict"] == (
        "not_measured" if not torch.cuda.is_available() else report.timing["verdict"])
    assert {k["target"] for k in report.timing["compiled"]} == {80, 90}
    assert 1 <= report.timing["traffic"]["ratio"] < 1.3
    assert re.search(r"GPU time: not measured \(no CUDA device", report.to_text()) or torch.cuda.is_available()


@needs_triton
@pytest.mark.parametrize("name, pairs, named", [
    ("softmax_triton", [("tl.max(x, axis=0))", "max(x))"), ("def softmax_kernel", "from builtins import max\n\n\n"
                        "@triton.jit\ndef softmax_kernel")], None),
    ("flash_attention_triton", [(', input_precision="ieee"', "")], "tf32-surprise"),
    ("softmax_triton", [("    row, lanes = tl.program_id(0), tl.arange(0, BLOCK)\n    x = ",
                         "    import math\n    row, lanes = tl.program_id(0), tl.arange(0, BLOCK)\n    x = ")],
     "does-not-compile")], ids=["not-python's-max", "tf32", "import-in-a-kernel"])
def test_what_the_interpreter_lets_through_is_named(grader, lab, name, pairs, named):
    report = check(grader, lab, name, *pairs)
    assert report.status != "passed" and report.score == 0
    if named:
        assert report.diagnosis.ids == [named] and named in report.to_text()


@needs_triton
def test_bfloat16_is_refused_where_the_interpreter_gets_it_wrong(grader, lab):
    report = check(grader, lab, "softmax_triton", (".to(tl.float32)", ".to(tl.bfloat16)"))
    assert report.status == "failed" and any("gets wrong" in c.message for c in report.cases)


@needs_triton
def test_a_mistake_is_named_for_other_blocks_than_ours(grader, lab):
    report = check(grader, lab, "flash_attention_triton", ("summed * rescale[:, None] + tl.dot", "summed + tl.dot"),
                   ("    block = 32\n    flash_kernel", "    block = 16\n    flash_kernel"))
    assert report.diagnosis and report.diagnosis.ids == ["accumulator-not-rescaled"]


def _message(name, id_, title=0):
    exercise = find(name)
    return exercise.try_case(exercise.program(id_), title).message


@needs_triton
def test_evidence_names_element_and_programs():
    assert _message("split_heads_triton", "tail-unmasked", 1) == (
        "out of bounds: in _tile, program (5, 1, 0), a store of 512 elements: the first one outside is element 3168 of "
        "`dst`, which has 3168")
    assert _message("split_heads_triton", "race-on-the-output").startswith(
        "a race: in _tile, program (3, 0, 0) stores other numbers to element 0 of `dst`, which program (0, 0, 0)")
    assert "token 0 head 0 channel 3, expected batch 0 token 0 head 0 channel 1" in _message(
        "split_heads_triton", "head-is-the-fast-axis")
    assert "3 accesses" not in _message("softmax_triton", "no-maximum", 2)


@needs_triton
@pytest.mark.parametrize("name, id_, ratio", [("softmax_triton", "three-passes", "2.5"),
                                              ("split_heads_triton", "copies-first", "2.00")])
def test_traffic_is_counted_in_bytes(name, id_, ratio):
    exercise = find(name)
    told = [t.message for t in exercise.try_program(exercise.program(id_)) if "times the minimum" in t.message]
    assert told and f": {ratio}" in told[0]


@needs_triton
def test_a_dummy_launch_does_not_hide_that_torch_did_the_work(grader, lab):
    fallback = ("    return probabilities\n", "    return torch.softmax(scores.double() * 1, -1).to(scores.dtype)\n")
    report = check(grader, lab, "softmax_triton", fallback)
    assert report.status == "failed" and report.diagnosis.ids == ["torch-did-it"]
