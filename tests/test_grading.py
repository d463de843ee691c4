"""A lab folder in, a Report out: every way in which a learner's file can be, on the smallest exercise."""
import json

import pytest

from autograder.exercises import find
from autograder.report import Report

EXERCISE = find("identity_heads")
CHECK = "    if x.shape[-1] % num_heads: raise ValueError('not divisible')\n"
HEAD = "def identity_heads(x, num_heads):\n"
RIGHT = HEAD + CHECK + "    return x.unflatten(-1, (num_heads, -1))\n"
TOKENS = (HEAD + "    b, s, m = x.shape\n"
          "    return x.reshape(b, num_heads, s, m // num_heads).transpose(1, 2)\n")


@pytest.fixture
def check(grader, lab):
    return lambda source: grader.check([EXERCISE], lab("warmup", source))[0]


def test_a_right_program_passes_in_every_case(check):
    report = check(RIGHT)
    assert (report.status, report.score) == ("passed", 1)
    assert [c.status for c in report.cases] == ["passed"] * len(EXERCISE.cases)
    assert report.diagnosis is None and report.figure is None


def test_a_known_mistake_is_named_with_the_cell_that_shows_it(check):
    report = check(TOKENS)
    assert (report.status, report.score) == ("failed", 0)
    assert report.diagnosis.ids == ["tokens-as-heads"]
    assert "heads[0,0,1,0] holds batch 0 token 1 head 2 channel 0" in report.diagnosis.evidence
    assert "strides (60,4,20,1)" in report.diagnosis.evidence
    assert report.figure.holds[1][0] == "b0 t1 h2 c0" and report.figure.expected[1][0] == "b0 t0 h1 c0"


def test_a_mistake_that_nobody_wrote_down_gets_evidence_and_no_name(check):
    report = check(HEAD + CHECK + "    return x.unflatten(-1, (num_heads, -1)).flip(1)\n")
    assert report.status == "failed" and report.diagnosis is None
    assert "holds batch 0 token 4 head 0 channel 0" in report.cases[0].message


def test_a_missing_refusal_alone_is_not_called_by_another_name(check):
    report = check(HEAD + "    return x.unflatten(-1, (num_heads, -1))\n")
    assert report.status == "failed" and report.diagnosis is None
    assert [c.status for c in report.cases] == ["passed"] * 5 + ["failed"]
    assert "RuntimeError" in report.cases[-1].message and "ValueError" in report.cases[-1].message


@pytest.mark.parametrize("ending", ["x.mul_(1)", "x.add_(1)"])
def test_a_changed_input_is_named(check, ending):
    report = check(HEAD + CHECK + f"    out = x.clone().unflatten(-1, (num_heads, -1))\n    {ending}\n    return out\n")
    assert report.diagnosis.ids == ["mutates-input"]


@pytest.mark.parametrize("source, id_", [
    (HEAD + CHECK + "    return x.detach().unflatten(-1, (num_heads, -1))\n", "detaches-graph"),
    (HEAD + CHECK + "    return x.unflatten(-1, (num_heads, -1)).float()\n", "casts-to-float32"),
    (HEAD + "    return x.view(2, 5, 3, 4)\n", "hard-codes-sizes"),
    ("import torch\n" + HEAD + CHECK + "    return torch.zeros(*x.shape[:2], num_heads, x.shape[-1] // num_heads,"
     " dtype=x.dtype)\n", "shape-only-stub"),
])
def test_the_faults_of_every_exercise_are_named(check, source, id_):
    assert check(source).diagnosis.ids == [id_]


def test_the_stub_is_not_started(check):
    report = check(HEAD + "    raise NotImplementedError('identity_heads: write this in mha_lab/warmup.py')\n")
    assert (report.status, report.score) == ("not_started", 0)
    assert {c.status for c in report.cases} == {"not_started"}


def test_a_half_written_program_has_failed(check):
    report = check(HEAD + "    if x.shape[0] == 3: raise NotImplementedError\n"
                   "    return x.unflatten(-1, (num_heads, -1))\n")
    assert report.status == "failed"


@pytest.mark.parametrize("source, word", [
    (HEAD.replace(":", ""), "SyntaxError"),
    ("x = 1\n", "has no identity_heads"),
    ("import os\nos._exit(0)\n", "ended the interpreter"),
    ("raise RuntimeError('at import')\n", "at import"),
    (b"\xff\xfe\x00bad", "cannot be imported"),
    ("import sys\nsys.exit('PASSED')\n", "cannot be imported"),
])
def test_a_file_that_cannot_run_is_an_error_that_says_why(check, source, word):
    report = check(source)
    assert (report.status, report.score) == ("error", 0)
    assert word in report.cases[0].message


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(check):
    assert check(b"\xef\xbb\xbf" + RIGHT.replace("\n", "\r\n").encode()).status == "passed"


def test_a_missing_file_is_an_error(grader, tmp_path):
    report = grader.check([EXERCISE], tmp_path)[0]
    assert report.status == "error" and "is not there" in report.cases[0].message


def test_a_link_out_of_the_folder_is_not_followed(grader, lab, tmp_path):
    folder = lab("warmup", RIGHT)
    secret = tmp_path / "secret.py"
    secret.write_text("VALUE = 1\n")
    (folder / "mha_lab" / "leak.py").symlink_to(secret)
    (folder / "mha_lab" / "warmup.py").write_text("from mha_lab.leak import VALUE\n" + RIGHT)
    assert grader.check([EXERCISE], folder)[0].status == "error"


@pytest.mark.walls
@pytest.mark.parametrize("place", ["", "    "])
def test_a_worker_that_lies_about_errors_fails_closed(check, place):
    patch = (f"{place}import autograder.worker.executor as e, autograder.worker.serve as s\n"
             f"{place}e.describe = s.describe = lambda x: True\n")
    report = check(patch + "raise ValueError\n" if not place else HEAD + patch + "    raise ValueError\n")
    assert report.status in ("failed", "error") and report.score == 0 and report.diagnosis is None
    assert "could not be read" in report.cases[0].message


@pytest.mark.walls
def test_a_patched_torch_does_not_help(check):
    wrong = TOKENS.replace("return ", "return (").replace("(1, 2)", "(1, 2)).as_subclass(Always)")
    report = check("import torch\ntorch.equal = torch.allclose = lambda *a, **k: True\n"
                   "class Always(torch.Tensor):\n"
                   "    def __eq__(self, other): return torch.ones(1, dtype=torch.bool)\n" + wrong)
    assert report.status == "failed"


def test_a_report_survives_storage(check):
    report = check(TOKENS)
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    assert set(report.public()) == {"exercise", "session", "status", "score", "points", "cases", "diagnosis", "timing"}
