"""Release, fetch, submit, collect: nbgrader's exchange in a folder of the course."""
import os

from nbgrader.apps import FetchAssignmentApp, SubmitApp

from autograder.classroom.grade import grade_assignment

from .helpers import solution

SESSION = "00-start"


def run(app_class, folder, config_folder, *argv):
    """An nbgrader command, in the student's folder, with the course's config."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        app = app_class.instance(config_file=str(config_folder / "nbgrader_config"))
        app.initialize([SESSION, "--student=ada", *argv])
        app.start()
    finally:
        app_class.clear_instance()
        os.chdir(before)


def test_from_release_to_feedback(course, tmp_path, walls):
    home = tmp_path / "home"
    home.mkdir()
    assert course.api.release_assignment(SESSION)["success"]
    run(FetchAssignmentApp, home, course.folder)
    fetched = {p.name for p in (home / SESSION).rglob("*") if p.is_file()}
    assert fetched == {"00-start.ipynb", "__init__.py", "warmup.py"}
    (home / SESSION / "mha_lab" / "warmup.py").write_text(solution("warmup"))
    run(SubmitApp, home, course.folder)

    assert course.api.collect(SESSION)["success"]
    summary = grade_assignment(course.folder, SESSION, walls=walls)
    assert [(r.student, r.score, r.problem) for r in summary.rows] == [("ada", 1, "")]
    assert course.api.generate_feedback(SESSION)["success"]
    assert course.api.release_feedback(SESSION)["success"]
    pages = list((course.folder / "exchange" / "mha" / "feedback").rglob("*.html"))
    assert len(pages) == 1 and "identity_heads: passed" in pages[0].read_text(encoding="utf-8")
