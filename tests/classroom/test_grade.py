"""The grade phase on a small class of session 00: killed, resumed, refused, and when something breaks."""
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest
from rich.console import Console

from autograder.classroom import grade, work
from autograder.classroom.grade import grade_assignment
from autograder.classroom.store import Stored
from autograder.classroom.work import Outcome
from autograder.exercises import find
from autograder.sandbox import SandboxError

from .helpers import hand_in, report, solution

SESSION = "00-start"
SLOW = "import time\n\ntime.sleep(0.5)\n"


@pytest.fixture
def judged(monkeypatch):
    """The jobs that a fake judge was given; it lets every program pass."""
    jobs = []

    def local(todo, workers):
        for job in todo:
            jobs.append(job)
            yield job, Outcome(Stored(report(exercise=job.exercise, points=find(job.exercise).points), 0.5))
    monkeypatch.setattr(work, "local", local)
    return jobs


def rows(summary):
    return {r.student: (r.score, r.recorded, r.problem) for r in summary.rows}


def test_the_same_program_is_judged_once(course, judged):
    for student in ("ada", "bob", "cy"):
        hand_in(course, SESSION, student)
    summary = grade_assignment(course.folder, SESSION, walls="off")
    assert len(judged) == summary.made == 1
    assert rows(summary) == dict.fromkeys(("ada", "bob", "cy"), (1, "now", ""))


def test_what_was_left_open_waits_for_a_hand(course, monkeypatch):
    def local(todo, workers):
        for job in todo:
            yield job, Outcome(Stored(report("not_measured", job.exercise, find(job.exercise).points), 0.5))
    monkeypatch.setattr(work, "local", local)
    hand_in(course, SESSION, "ada")
    summary = grade_assignment(course.folder, SESSION, walls="off")
    assert rows(summary) == {"ada": (0, "now", "")} and summary.rows[0].statuses == {"identity_heads": "not_measured"}
    with course.gradebook() as gradebook:
        [grade] = [g for g in gradebook.find_submission_notebook(SESSION, SESSION, "ada").grades
                   if g.name == "identity_heads"]
        assert grade.auto_score is None and grade.needs_manual_grade
        grade.manual_score = 1.0
        gradebook.db.commit()
    assert rows(grade_assignment(course.folder, SESSION, walls="off")) == {"ada": (0, "before", "")}
    with course.gradebook() as gradebook:
        [grade] = [g for g in gradebook.find_submission_notebook(SESSION, SESSION, "ada").grades
                   if g.name == "identity_heads"]
        assert grade.score == 1.0


def test_a_corrected_submission_is_judged_and_recorded_again_and_no_other(course, judged):
    ada, _ = (hand_in(course, SESSION, s, "warmup", f"x = '{s}'\n") for s in ("ada", "bob"))
    grade_assignment(course.folder, SESSION, walls="off")
    judged.clear()
    (ada / "mha_lab" / "warmup.py").write_text(solution("warmup"))
    summary = grade_assignment(course.folder, SESSION, walls="off")
    assert [b"identity_heads" in j.files["mha_lab/warmup.py"] for j in judged] == [True]
    assert rows(summary) == {"ada": (1, "now", ""), "bob": (1, "before", "")}


def test_a_lost_gradebook_entry_is_recorded_again(course, judged):
    hand_in(course, SESSION, "ada")
    grade_assignment(course.folder, SESSION, walls="off")
    with course.gradebook() as gradebook:
        gradebook.remove_submission(SESSION, "ada")
    summary = grade_assignment(course.folder, SESSION, walls="off")
    assert summary.made == 0 and rows(summary) == {"ada": (1, "now", "")}
    assert course.auto_scores(SESSION)["ada"] == {"identity_heads": 1}


def test_what_was_not_judged_is_not_recorded_and_others_are(course, monkeypatch):
    for student in ("ada", "bob"):
        hand_in(course, SESSION, student, "warmup", f"x = '{student}'\n")

    def local(todo, workers):
        for job in todo:
            lost = b"ada" in job.files["mha_lab/warmup.py"]
            yield job, Outcome(failure="the disk is full") if lost else Outcome(Stored(report(), 0.5))
    monkeypatch.setattr(work, "local", local)
    summary = grade_assignment(course.folder, SESSION, walls="off")
    assert rows(summary) == {"ada": (0, "", "the disk is full"), "bob": (1, "now", "")}
    assert "ada" not in course.auto_scores(SESSION)


def test_a_failing_record_is_one_students_row(course, judged):
    for student in ("ada", "bob"):
        folder = hand_in(course, SESSION, student)
    (folder / "timestamp.txt").write_text("yesterday, I think")
    summary = grade_assignment(course.folder, SESSION, walls="off")
    assert rows(summary)["ada"] == (1, "now", "")
    assert rows(summary)["bob"][1] == "" and rows(summary)["bob"][2]


def test_a_students_name_is_no_pattern(course, judged):
    for student in ("a[b]", "ab", "o'hara"):
        hand_in(course, SESSION, student)
    found = rows(grade_assignment(course.folder, SESSION, walls="off"))
    assert found.pop("a[b]") == (1, "", "nbgrader cannot take a student's name that has * ? or [ in it")
    assert {r[1] for r in found.values()} == {"now"}


def test_official_grading_refuses_without_walls(course, monkeypatch):
    hand_in(course, SESSION, "ada")
    monkeypatch.setattr("autograder.sandbox.walls_available", lambda: (False, "bubblewrap is not installed"))
    with pytest.raises(SandboxError, match="bubblewrap is not installed.*without walls"):
        grade_assignment(course.folder, SESSION)
    assert not course.auto_scores(SESSION)


def test_clear_words_for_what_is_not_there(course, tmp_path):
    with pytest.raises(LookupError, match="nbgrader_config.py"):
        grade_assignment(tmp_path, SESSION)
    with pytest.raises(LookupError, match="nbgrader generate_assignment 01-shape-machine"):
        grade_assignment(course.folder, "01-shape-machine")
    assert not grade_assignment(course.folder, SESSION).rows


def test_dask_takes_the_place_of_local_work(course, judged, monkeypatch):
    hand_in(course, SESSION, "ada")
    monkeypatch.setattr(work, "dask", lambda jobs, address: work.local(jobs, 1) if address == "tcp://x" else None)
    assert grade_assignment(course.folder, SESSION, dask="tcp://x", walls="off").made == 1


def test_the_summary_prints(course, judged):
    hand_in(course, SESSION, "ada [0")
    folder = hand_in(course, SESSION, "bob")
    (folder / "00-start.ipynb").unlink()
    console = Console(width=140, record=True)
    console.print(grade_assignment(course.folder, SESSION, walls="off"))
    text = console.export_text()
    assert "ada [0" in text and "00-start.ipynb is missing from the submission" in text
    assert "2 submissions, 0 recorded now, 1 new reports" in text


def running_with(mark: str) -> list[str]:
    """Processes that have this mark in their environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_killed_and_resumed(course, walls):
    students = [f"s{i}" for i in range(6)]
    for student in students:
        hand_in(course, SESSION, student, "warmup", solution("warmup") + f"\n# {student}\n{SLOW}")
    mark = uuid.uuid4().hex
    script = textwrap.dedent(f"""
        from autograder.classroom.grade import grade_assignment
        grade_assignment({str(course.folder)!r}, {SESSION!r}, workers=2, walls={walls!r},
                         on_report=lambda p: print(p.done, flush=True))
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
                          env=os.environ | {"MHA_TEST_MARK": mark}) as process:
        while process.stdout.readline().strip() != "2":
            assert process.poll() is None
        assert len(running_with(mark)) > 1
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while running_with(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running_with(mark)

    store = course.folder / "reports" / SESSION
    kept = {p: p.stat().st_mtime_ns for p in store.glob("identity_heads-*.json")}
    assert 2 <= len(kept) < len(students)
    summary = grade_assignment(course.folder, SESSION, walls=walls)
    assert summary.made == len(students) - len(kept)
    assert {p: p.stat().st_mtime_ns for p in kept} == kept
    assert rows(summary) == dict.fromkeys(students, (1, "now", ""))


def test_killed_while_recording(course, judged, monkeypatch):
    """A submission whose recording was cut off is recorded again, one that was finished is not."""
    for student in ("ada", "bob"):
        hand_in(course, SESSION, student)
    finished = []

    def die(row):
        finished.append(row.student)
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        grade_assignment(course.folder, SESSION, walls="off", on_record=die)
    assert finished == ["ada"]
    assert rows(grade_assignment(course.folder, SESSION, walls="off")) == {"ada": (1, "before", ""),
                                                                        "bob": (1, "now", "")}
    monkeypatch.setattr(grade.Recorder, "_autograde", lambda self, student: 1 / 0)
    (course.path("submitted", "bob", SESSION) / "timestamp.txt").write_text("2030-01-01 00:00:00 UTC")
    with pytest.raises(ZeroDivisionError):
        grade_assignment(course.folder, SESSION, walls="off")
    monkeypatch.undo()
    assert rows(grade_assignment(course.folder, SESSION, walls="off"))["bob"][1] == "now"
