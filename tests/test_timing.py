"""The judge of timed exercises: what it concludes from numbers, and what it makes of programs that try to fool it."""
import math
import random
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from timed_cheats import CHEATS, COMMON

from autograder import cpu_clock, timing
from autograder.exercise import Exercise
from autograder.exercises import find
from autograder.report import Report
from autograder.timing import Timer, enter
from autograder.verdicts import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, Round, Spent, Verdict, conclude

EXERCISE = find("grouped_decode")
CLOCK = "under the clock: at most 2 times as slow as the reference"
needs_accounts = pytest.mark.skipif(bool(cpu_clock.unavailable()), reason=cpu_clock.unavailable())


def rounds(program, reference=1.0, empty=0.0, noise=(1.0,), wall=None, meanwhile=0.0, count=15):
    """Rounds of a program so many times as slow as a reference of 10 ms; `noise` is the reference over itself."""
    made = []
    for i in range(count):
        factor = noise[i % len(noise)]
        times = [0.01 * reference * factor + empty, 0.01 * reference + empty, 0.01 * program + empty]
        walls = times if wall is None else [*times[:2], 0.01 * wall + empty]
        before, after, mine = (Spent(w, c) for w, c in zip(walls, times, strict=True))
        made.append(Round(mine, before, after, Spent(empty, empty), meanwhile * 0.02))
    return made


# --- what numbers say ---

@pytest.mark.parametrize("program, said", [(0.5, PASS), (1.0, PASS), (1.9, PASS), (2.1, FAIL), (8.0, FAIL)])
def test_a_quiet_machine_decides_near_the_limit(program, said):
    found = conclude(2.0, rounds(program))
    assert found.verdict == said and found.ratio == pytest.approx(program) and found.reason == ""


@pytest.mark.parametrize("program, said", [(1.2, PASS), (1.9, INCONCLUSIVE), (2.4, INCONCLUSIVE), (3.2, FAIL)])
def test_the_control_says_how_near_is_too_near(program, said):
    found = conclude(2.0, rounds(program, noise=(0.75, 1.0, 1.3, 1.0, 0.8)))
    assert found.verdict == said
    assert (said == INCONCLUSIVE) == ("too near the limit" in found.reason)


def test_a_reference_that_is_not_itself_decides_nothing():
    found = conclude(2.0, rounds(1.0, noise=(0.3, 3.0)))
    assert found.verdict == INCONCLUSIVE and "too busy" in found.reason


def test_what_carrying_costs_is_taken_off():
    assert conclude(2.0, rounds(3.0, empty=0.05)).ratio == pytest.approx(3.0)
    assert conclude(2.0, rounds(3.0, empty=0.05)).verdict == FAIL


def test_waiting_alone_fails_nobody_and_passes_nobody():
    waits = conclude(2.0, rounds(1.0, wall=9.0))
    assert waits.verdict == INCONCLUSIVE and "waiting time is not" in waits.reason
    hurries = conclude(2.0, rounds(9.0, wall=1.0))
    assert hurries.verdict == INCONCLUSIVE and "waiting time is not" in hurries.reason


def test_one_slow_round_is_nobody_s_fault():
    slow = rounds(1.0)
    slow[3] = replace(slow[3], program=Spent(5, 5))
    assert conclude(2.0, slow).verdict == PASS


def test_work_in_the_turn_of_the_reference_is_no_pass():
    found = conclude(2.0, rounds(1.0, meanwhile=0.5))
    assert found.verdict == INCONCLUSIVE and "50% of the time that was the reference's" in found.reason
    assert conclude(2.0, rounds(1.0, meanwhile=0.01)).verdict == PASS


def test_a_verdict_is_plain_data():
    data = conclude(2.0, rounds(1.23456)).to_dict()
    assert data["ratio"] == 1.235 and data["band"] == [1.0, 1.0] and data["rounds"] == 15 and data["device"] == "cpu"


# --- what a Report says ---

def entered(verdict):
    report = Report(EXERCISE.name, "07-kernels", "passed", 3, 3)

    def time_it():
        if isinstance(verdict, Exception):
            raise verdict
        return verdict
    enter(report, EXERCISE, time_it)
    return report


MEASURED = dict(ratio=1.5, band=(0.97, 1.03), wall_ratio=1.5, wall_band=(0.9, 1.1), cores=1.0, rounds=15, attempts=1)


def test_a_pass_keeps_the_points_and_shows_the_numbers():
    report = entered(Verdict(PASS, 2.0, **MEASURED))
    assert (report.status, report.score) == ("passed", 3) and report.cases[-1].status == "passed"
    line = "time: 1.50 times the reference, limit 2; the reference against itself: 0.97 to 1.03; pass"
    assert line in report.to_text() and line in report.to_html()
    assert report.public()["timing"]["ratio"] == 1.5 and Report.from_dict(report.to_dict()) == report


def test_too_slow_says_how_slow():
    report = entered(Verdict(FAIL, 2.0, **{**MEASURED, "ratio": 4.04}))
    assert (report.status, report.score) == ("failed", 0)
    assert "it takes 4.0 times as long as the reference; the limit is 2" in report.to_text()


@pytest.mark.parametrize("verdict", [Verdict(INCONCLUSIVE, 2.0, "too near", **MEASURED),
                                     Verdict(NOT_MEASURED, 2.0, "no clock here")])
def test_what_is_open_is_not_failed(verdict):
    report = entered(verdict)
    assert (report.status, report.score) == ("not_measured", 0) and report.cases[-1].status == "not_measured"
    assert verdict.reason in report.to_text() and "a teacher decides" in report.to_html()


def test_wrong_and_gone_under_the_clock():
    wrong = entered(timing.WrongUnderTheClock("an answer is 3 off"))
    assert (wrong.status, wrong.score) == ("failed", 0) and "an answer is 3 off" in wrong.to_text()
    gone = entered(timing.Gone("no answer within 60 s", "timeout"))
    assert (gone.status, gone.score) == ("timeout", 0)


# --- what is declared ---

def test_the_reference_stands_by_itself():
    for name in ("batched_attention", "attention_without_query_loop", "grouped_decode", "compiled_softmax"):
        exercise = find(name)
        namespace = {}
        exec(timing.module_of(exercise.timing), namespace)
        pools = timing._pools(exercise.timing)
        asked = timing._ask(exercise.timing, pools, random.Random(1))
        inputs = [pool[at:at + math.prod(shape)].view(shape)
                  for pool, at, shape in zip(pools, asked["at"][0], asked["shapes"], strict=True)]
        out = namespace[name](*inputs, **asked["fixed"])
        assert out.dtype == torch.float32 and not out.isnan().any()
        for program in exercise.rights:
            if program.id != "compiled":
                theirs = program.namespace[name](*inputs, **asked["fixed"])
                assert (theirs - out).abs().max() <= timing._bound(exercise.timing, pools, asked | {"factor": 1.0},
                                                                   {"outputs": [out]}), (name, program.id)


def test_another_device_is_not_measured_and_says_why():
    made = Exercise("f", step=1, points=1, minutes=1, difficulty=1, importance=1, summary="", hints=("", "", ""))

    @made.timed(2.0, {"x": (2, 3)}, device="cuda")
    def f(x):
        return x
    assert made.timing.reference is f
    with_clock = Timer("off")
    verdict = with_clock.judge(made, {})
    assert verdict.verdict == NOT_MEASURED and "cuda" in verdict.reason and verdict.ratio is None


def test_a_system_without_accounts_is_not_measured(monkeypatch):
    monkeypatch.setattr(cpu_clock, "unavailable", lambda: "no accounts here")
    assert Timer("off").judge(EXERCISE, {}).reason == "no accounts here"


# --- programs under the clock ---

@pytest.fixture
def judged(grader, lab, monkeypatch):
    """judged(source): the Report of a program. Half the cache and a few rounds: whether the clock is right is measured
    in benchmarks/timing_verdicts.py; here it must not be fooled."""
    for name, value in dict(ATTEMPTS=1, ROUNDS=5, FEWEST_ROUNDS=3, SECONDS=1.0).items():
        monkeypatch.setattr(timing, name, value)
    half = {"q": (1, 32, 1, 64), "k_cache": (1, 8, 1056, 64), "v_cache": (1, 8, 1056, 64)}
    monkeypatch.setattr(EXERCISE, "timing", replace(EXERCISE.timing, shapes=half, fixed={"length": 1024}))
    return lambda source: grader.check([EXERCISE], lab("timed", source))[0]


@needs_accounts
@pytest.mark.parametrize("kind, source", [c[1:] for c in CHEATS], ids=[c[0] for c in CHEATS])
def test_a_trick_gains_nothing(judged, kind, source):
    report = judged(COMMON + source + "\n")
    assert report.score == 0 and report.status != "passed", report.timing
    assert [c.name for c in report.cases if c.status != "passed"] == [CLOCK], report.to_text()
    if kind == "wrong":
        assert report.status == "failed" and report.timing is None, report.to_text()
    elif kind == "slow":
        assert report.timing["verdict"] in (FAIL, INCONCLUSIVE), report.to_text()
    else:
        assert report.status in ("error", "timeout") and report.timing is None


@needs_accounts
def test_an_honest_program_is_not_failed(judged):
    report = judged(COMMON + "big = right\n")
    assert report.status in ("passed", "not_measured"), report.to_text()
    assert report.timing["rounds"] >= 3 and report.timing["band"] and report.timing["limit"] == 2.0
    assert report.cases[-1].name == CLOCK


@needs_accounts
def test_a_reference_that_is_lost_is_not_held_against_the_program(judged, monkeypatch):
    monkeypatch.setattr(timing, "module_of", lambda _: b"def grouped_decode(*given, **more):\n    raise ValueError\n")
    report = judged(COMMON + "big = right\n")
    assert report.status == "not_measured" and "the reference did not answer" in report.timing["reason"]
    monkeypatch.setattr(timing, "module_of", lambda _: b"raise ValueError\n")
    assert judged(COMMON + "big = right\n").status == "not_measured"


@needs_accounts
def test_no_answer_in_time_is_left_open(grader, monkeypatch):
    impatient = Timer("auto")
    monkeypatch.setattr(impatient._sandbox, "limits", replace(impatient._sandbox.limits, wall=5.0))
    source = COMMON + "def big(*given):\n    time.sleep(60)\n"
    verdict = impatient.judge(EXERCISE, {"mha_lab/timed.py": source.encode()})
    impatient.close()
    assert verdict.verdict == INCONCLUSIVE and "no answer within 5 s" in verdict.reason and verdict.ratio is None


@needs_accounts
def test_wrong_values_cost_no_time(grader, lab, monkeypatch):
    monkeypatch.setattr(Timer, "judge", lambda *_: pytest.fail("was timed"))
    source = COMMON.replace("if q.shape[-1] < 64:", "if True:").replace("right(q, k_cache", "slow(q, k_cache")
    [report] = grader.check([EXERCISE], lab("timed", source))
    assert report.status == "failed" and report.timing is None


@needs_accounts
# --- the kernel's accounts ---

@needs_accounts
def test_the_account_is_of_the_whole_tree():
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    two = (f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {burn!r}])\n{burn}\n"
           "print('done', flush=True)\ntime.sleep(30)")
    with subprocess.Popen([sys.executable, "-c", two], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert cpu_clock.tree(process.pid) == {process.pid}
        assert 0.55 < cpu_clock.seconds(process.pid) < 2.0
        before = cpu_clock.seconds(process.pid)
        time.sleep(0.05)
        assert cpu_clock.seconds(process.pid) - before < 0.02
        process.kill()
    assert cpu_clock.seconds(process.pid) == 0.0
