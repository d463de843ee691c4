"""The command, as people type it."""
import json
import subprocess
import sys

import pytest

from autograder.exercises import all_exercises

RIGHT = """
def identity_heads(x, num_heads):
    if x.shape[-1] % num_heads:
        raise ValueError("not divisible")
    return x.unflatten(-1, (num_heads, -1))
"""


def mha(*args, cwd=None):
    return subprocess.run([sys.executable, "-m", "autograder.cli", *map(str, args)], capture_output=True, text=True,
                          cwd=cwd)


def test_check_exits_0_when_all_pass_and_prints_one_object(lab):
    done = mha("check", "identity_heads", "--lab", lab("warmup", RIGHT), "--json")
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)["exercises"]
    assert (report["exercise"], report["session"], report["status"], report["score"]) == (
        "identity_heads", "00-start", "passed", 1)
    assert report["diagnosis"] is None and report["timing"] is None


def test_check_exits_1_when_one_does_not_and_names_it(lab):
    folder = lab("warmup", RIGHT.replace("x.unflatten(-1, (num_heads, -1))",
                                         "x.view(*x.shape[:2], -1, num_heads)"))
    done = mha("check", "00", "--lab", folder)
    assert done.returncode == 1
    assert "This is: head-and-width-swapped" in done.stdout and "0 of 1 points" in done.stdout


@pytest.mark.parametrize("args, word", [
    (["check", "split_head", "--lab", "."], "did you mean split_heads"),
    (["check", "identity_heads", "--lab", "nowhere"], "holds no mha_lab"),
    (["check", "--walls", "paper"], "required or off"),
    (["check", "--no-such-flag"], "No such option"),
    (["hint", "nothing"], "no exercise"),
])
def test_what_cannot_run_exits_2_and_says_what_to_do(args, word, lab):
    done = mha(*args, cwd=lab("warmup", RIGHT))
    assert done.returncode == 2 and word in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_exercises_lists_the_contract():
    listed = json.loads(mha("exercises", "--json").stdout)["exercises"]
    assert [e["name"] for e in listed] == [e.name for e in all_exercises()]
    first = listed[0]
    assert set(first) == {"session", "module", "name", "points", "minutes", "difficulty", "wrong", "right"}
    assert first["wrong"] == ["channels-interleaved", "tokens-as-heads", "head-and-width-swapped", "floors-the-width"]


def test_start_check_hint_progress_solution_in_a_workspace(tmp_path):
    home = tmp_path / "lab"
    made = mha("start", home)
    assert made.returncode == 0 and (home / "00-start.ipynb").is_file(), made.stderr
    assert mha("check", "identity_heads", cwd=home).returncode == 1
    assert "Hint 1 of 3" in mha("hint", "identity_heads", cwd=home).stdout
    assert "Hint 2 of 3" in mha("hint", "identity_heads", cwd=home).stdout
    solved = mha("solution", "identity_heads").stdout
    assert "def identity_heads" in solved and "NotImplementedError" not in solved and "SOLUTION" not in solved
    stub = home / "mha_lab" / "warmup.py"
    stub.write_text(stub.read_text()[:stub.read_text().index("def identity_heads")] + solved)
    assert mha("check", "identity_heads", cwd=home).returncode == 0
    shown = mha("progress", cwd=home).stdout
    assert "identity_heads" in shown and "1 of" in shown


def test_doctor_names_each_part_and_its_cost():
    shown = mha("doctor").stdout
    for part in ("torch", "triton", "GPU", "sandbox", "CPU accounts", "nbgrader", "jupyterlab"):
        assert part in shown
