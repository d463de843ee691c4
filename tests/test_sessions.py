"""A session may be written in several modules: each is a folder of exercises, a file of stubs, a file handed in."""
from types import SimpleNamespace

import pytest

from autograder import classroom, exercises, publish
from autograder.exercises import Session, find, select, session


@pytest.fixture
def both(monkeypatch):
    """One session in the place of the two real ones whose modules it has."""
    made = Session("00-start", "Both", "warmup", 85, more=("shapes",))
    monkeypatch.setattr(exercises, "SESSIONS", (made,))
    owners = [(e, e.session, e.module) for e in exercises.all_exercises()]
    exercises.all_exercises.cache_clear()
    yield made
    exercises.all_exercises.cache_clear()
    for exercise, of, module in owners:
        exercise.session, exercise.module = of, module


def test_a_session_of_one_module_has_that_module():
    assert Session("00-start", "Start", "warmup", 10).modules == ("warmup",)


def test_an_exercise_belongs_to_the_module_that_it_lies_in(both):
    assert both.modules == ("warmup", "shapes")
    assert find("identity_heads").module == "warmup" and find("split_heads").module == "shapes"
    assert {e.session for e in both.exercises} == {"00-start"}
    assert [e.step for e in both.exercises] == sorted(e.step for e in both.exercises)


def test_a_module_names_its_own_exercises_and_a_session_all(both):
    assert session("shapes") is session("warmup") is session("00") is both
    assert [e.name for e in select("warmup")] == ["identity_heads"]
    assert {e.module for e in select("shapes")} == {"shapes"}
    assert select("00-start") == list(both.exercises)


def test_every_module_has_its_stub_in_a_workspace_and_a_release(both, monkeypatch):
    monkeypatch.setattr(publish, "notebook", lambda *_: "{}")
    files = publish.session_files(publish.course_root(), both, grading=True)
    assert files.keys() == {"00-start.ipynb", "mha_lab/__init__.py", "mha_lab/warmup.py", "mha_lab/shapes.py"}
    assert b"identity_heads: write this" in files["mha_lab/warmup.py"]
    assert b"split_heads: write this in mha_lab/shapes.py" in files["mha_lab/shapes.py"]
    assert publish.stub(publish.course_root(), both) == files["mha_lab/warmup.py"].decode()


def test_drift_is_seen_in_every_module(both, monkeypatch, tmp_path):
    monkeypatch.setattr(publish, "notebook", lambda *_: "{}")
    monkeypatch.setattr(publish, "_figures", dict)
    (tmp_path / "solutions").mkdir()
    for module in both.modules:
        (tmp_path / "solutions" / f"{module}.py").write_text("def f():\n    ### BEGIN SOLUTION\n    1\n"
                                                             "    ### END SOLUTION\n")
    assert set(map(str, publish.build(tmp_path, check=True, sessions=[both]))) == {
        "mha_lab/warmup.py", "mha_lab/shapes.py"}


def test_the_answer_comes_from_the_module_of_the_exercise(both):
    assert "def split_heads" in publish.solution_source(find("split_heads"))


def test_a_submission_keeps_every_module(both, tmp_path):
    settings = SimpleNamespace(**{name: SimpleNamespace() for name in (
        "CourseDirectory", "Exchange", "ExchangeSubmit", "GenerateAssignment", "Autograde", "GenerateFeedback",
        "HTMLExporter")})
    classroom.configure(settings, tmp_path)
    assert settings.Autograde.exclude_overwriting == {"00-start": ["mha_lab/warmup.py", "mha_lab/shapes.py"]}
