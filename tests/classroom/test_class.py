"""A class, graded by nbgrader through its own converters."""
import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.utils import determine_grade

from autograder.classroom.grade import grade_assignment

from .a_class import ALL, CLASS, NOTEBOOK, POINTS, SESSION, hand_in_class
from .helpers import Tags, hand_in, make_course, solution

RECORDED = {name: student for name, student in CLASS.items() if not student.problem}


@pytest.fixture(scope="module")
def wall_seconds():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MHA_WALL_SECONDS", "6")
        yield


@pytest.fixture(scope="module")
def graded(tmp_path_factory, walls, wall_seconds):
    """The course after one run of `mha grade` and `nbgrader generate_feedback`, and that run's summary."""
    course = make_course(tmp_path_factory.mktemp("class") / "course", SESSION)
    hand_in_class(course)
    seen = []
    summary = grade_assignment(course.folder, SESSION, walls=walls, on_report=seen.append)
    assert [p.done for p in seen] == list(range(1, seen[-1].total + 1)) and len(seen) == summary.made
    feedback = course.api.generate_feedback(SESSION)
    assert feedback["success"], feedback
    return course, summary


def page_of(course, student) -> str:
    return (course.path("feedback", student, SESSION) / "01-shape-machine.html").read_text(encoding="utf-8")


def test_a_class_is_large_enough():
    assert len(CLASS) >= 14


@pytest.mark.parametrize("name", RECORDED)
def test_the_gradebook_has_the_right_score(graded, name):
    course, _ = graded
    expected = {exercise: POINTS[exercise] * (exercise in RECORDED[name].passed) for exercise in ALL}
    assert course.auto_scores(SESSION)[name] == expected


@pytest.mark.parametrize("name", RECORDED)
def test_the_feedback_page_says_why(graded, name):
    page = page_of(graded[0], name)
    for words in RECORDED[name].says:
        assert words in page
    assert page.count('class="mha-report"') == len(ALL)


@pytest.mark.parametrize("name", RECORDED)
def test_nbgrader_reads_the_same_scores_from_the_graded_notebook(graded, name):
    nb = nbformat.read(graded[0].path("autograded", name, SESSION) / NOTEBOOK, as_version=4)
    scores = {c.metadata.nbgrader.grade_id: determine_grade(c) for c in nb.cells
              if c.cell_type == "code" and c.metadata.get("nbgrader", {}).get("grade")}
    assert scores == {e: (POINTS[e] * (e in RECORDED[name].passed), POINTS[e]) for e in ALL}


@pytest.mark.parametrize("name", CLASS)
def test_the_summary_has_a_row_for_everyone(graded, name):
    row = next(r for r in graded[1].rows if r.student == name)
    assert (row.score, row.max_score) == (CLASS[name].score, 16)
    assert (CLASS[name].problem in row.problem) if CLASS[name].problem else (row.problem, row.recorded) == ("", "now")


def test_a_submission_that_cannot_be_read_fails_alone(graded):
    course, summary = graded
    assert {r.student for r in summary.problems} == set(CLASS) - set(RECORDED)
    assert "no_json" not in course.auto_scores(SESSION)


def test_no_page_needs_a_network_or_runs_a_students_script(graded):
    for name in RECORDED:
        page = page_of(graded[0], name)
        assert "cdn" not in page.lower()
        for tag, attributes in Tags(page).found:
            assert tag not in ("script", "iframe", "object", "embed")
            assert not any(attribute.startswith("on") for attribute in attributes)
            assert tag == "a" or "://" not in attributes.get("src", "") + attributes.get("href", "")


def test_nothing_of_this_machine_is_in_a_page(graded):
    course, _ = graded
    for name in RECORDED:
        page = page_of(course, name)
        assert str(course.folder) not in page and str(Path(sys.prefix)) not in page


def test_the_fake_score_is_gone_from_the_graded_notebook(graded):
    text = (graded[0].path("autograded", "fake", SESSION) / NOTEBOOK).read_text()
    nb = json.loads(text)
    assert "16 of 16" not in json.dumps([c.get("outputs") for c in nb["cells"]])


def test_the_written_answer_waits_for_a_hand(graded):
    with graded[0].gradebook() as gradebook:
        answered = gradebook.find_grade("explain-01", SESSION, SESSION, "complete")
        empty = gradebook.find_grade("explain-01", SESSION, SESSION, "empty")
        assert (answered.needs_manual_grade, answered.max_score) == (True, 4)
        assert (empty.needs_manual_grade, empty.auto_score) == (False, 0)
        assert not any(g.needs_manual_grade for g in
                       (gradebook.find_grade(e, SESSION, SESSION, "complete") for e in ALL))


def test_the_class_report_counts_the_named_mistakes(graded):
    counts = json.loads((graded[0].folder / "reports" / SESSION / "class_report.json").read_text())
    mistakes = {e["exercise"]: e["mistakes"] for e in counts["exercises"]}
    assert mistakes["split_heads"] == {"relabelled-bytes": 1}
    assert mistakes["MultiHeadAttention"] == {"scale-by-model-width": 1}
    assert counts["submissions"] == len(CLASS)
    assert not any(name in json.dumps(counts["exercises"]) for name in ("complete", "crlf_bom"))


def test_a_second_run_makes_and_records_nothing(graded, walls, wall_seconds):
    course, first = graded
    before = {p: p.stat().st_mtime_ns for p in course.folder.glob("autograded/*/*/*")}
    again = grade_assignment(course.folder, SESSION, walls=walls)
    assert again.made == 0
    assert {r.student: (r.score, r.recorded) for r in again.rows if not r.problem} == {
        r.student: (r.score, "before") for r in first.rows if not r.problem}
    assert {p: p.stat().st_mtime_ns for p in course.folder.glob("autograded/*/*/*")} == before


def test_nbgraders_own_command_grades_a_late_submission(graded, walls):
    """`nbgrader autograde` alone: no grade phase came before it."""
    course, _ = graded
    source = solution("shapes").replace("### BEGIN SOLUTION", "# handed in late")
    hand_in(course, SESSION, "late", "shapes", source)
    command = [str(Path(sys.executable).with_name("nbgrader")), "autograde", SESSION, "--student", "late",
               f"--ReportCells.walls={walls}"]
    ran = subprocess.run(command, cwd=course.folder, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert course.auto_scores(SESSION)["late"] == POINTS
