"""A learner's workspace: made, updated, and never overwritten where it was edited."""
import json
import os
import subprocess
import sys

import pytest
from toy_course import SESSION, SOLUTIONS, TEXT, write_course

from autograder.exercises import SESSIONS
from autograder.publish import course_root
from autograder.publish import start as start_real
from autograder.stubs import PublishError
from autograder.workspace import MANIFEST, start

FILES = ["00-toy.ipynb", "mha_lab/__init__.py", "mha_lab/toy.py"]
NEWER = SOLUTIONS.replace('"""Twice x."""', '"""Two times x."""')


@pytest.fixture
def course(tmp_path):
    return write_course(tmp_path / "course-clone")


@pytest.fixture
def begin(course, tmp_path):
    """begin() starts tmp_path/work and gives (folder, result as lists of text)."""
    folder = tmp_path / "work"

    def run():
        result = start(folder, course, [SESSION])
        return folder, {name: [p.as_posix() for p in getattr(result, name)]
                        for name in ("created", "updated", "kept", "conflicts")}
    return run


def test_the_first_start_makes_everything(begin):
    folder, result = begin()
    assert result == {"created": FILES, "updated": [], "kept": [], "conflicts": []}
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == [MANIFEST, *FILES]
    assert "NotImplementedError" in (folder / "mha_lab/toy.py").read_text()
    assert "2 * x" not in "".join(p.read_text() for p in folder.rglob("*") if p.is_file())


def test_a_second_start_changes_nothing(begin):
    folder, _ = begin()
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert begin()[1] == {"created": [], "updated": [], "kept": FILES, "conflicts": []}
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def test_an_untouched_file_follows_the_course(begin, course):
    folder, _ = begin()
    write_course(course, solutions=NEWER)
    assert begin()[1]["updated"] == ["mha_lab/toy.py"]
    assert "Two times x." in (folder / "mha_lab/toy.py").read_text()


def test_an_edited_file_stays_and_the_newer_one_lies_beside_it_once(begin, course):
    folder, _ = begin()
    mine = folder / "mha_lab/toy.py"
    mine.write_text("mine")
    assert begin()[1] == {"created": [], "updated": [], "kept": FILES, "conflicts": []}  # nothing newer: no noise
    write_course(course, solutions=NEWER)
    assert begin()[1]["conflicts"] == ["mha_lab/toy.new.py"]
    assert mine.read_text() == "mine" and "Two times x." in (folder / "mha_lab/toy.new.py").read_text()
    assert begin()[1] == {"created": [], "updated": [], "kept": FILES, "conflicts": []}
    write_course(course, solutions=NEWER.replace("Two times", "2 times"))
    assert begin()[1]["conflicts"] == ["mha_lab/toy.new.py"]
    assert "2 times x." in (folder / "mha_lab/toy.new.py").read_text() and mine.read_text() == "mine"


def test_a_new_version_that_was_itself_edited_stays_too(begin, course):
    folder, _ = begin()
    (folder / "mha_lab/toy.py").write_text("mine")
    (folder / "mha_lab/toy.new.py").write_text("also mine")
    write_course(course, solutions=NEWER)
    assert begin()[1]["conflicts"] == ["mha_lab/toy.new2.py"]
    assert (folder / "mha_lab/toy.new.py").read_text() == "also mine"


def test_taking_the_new_version_makes_the_file_follow_again(begin, course):
    folder, _ = begin()
    (folder / "mha_lab/toy.py").write_text("mine")
    write_course(course, solutions=NEWER)
    begin()
    (folder / "mha_lab/toy.new.py").replace(folder / "mha_lab/toy.py")
    assert begin()[1]["conflicts"] == []
    write_course(course)
    assert begin()[1]["updated"] == ["mha_lab/toy.py"]


def test_outputs_alone_count_as_an_edit(begin, course):
    folder, _ = begin()
    path = folder / "00-toy.ipynb"
    book = json.loads(path.read_text())
    code = next(c for c in book["cells"] if c["cell_type"] == "code")
    code["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "seen"}]
    path.write_text(json.dumps(book))
    write_course(course, TEXT.replace("A row, doubled.", "A row, twice."))
    assert begin()[1]["conflicts"] == ["00-toy.new.ipynb"]
    assert "seen" in path.read_text()


def test_a_deleted_file_comes_back(begin):
    folder, _ = begin()
    (folder / "mha_lab/toy.py").unlink()
    assert begin()[1]["created"] == ["mha_lab/toy.py"]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"files": 3}', '{"files": {"00-toy.ipynb": 1}}'])
def test_without_a_readable_manifest_every_difference_is_the_learners(begin, course, damage):
    folder, _ = begin()
    (folder / MANIFEST).write_text(damage)
    (folder / "mha_lab/toy.py").write_text("mine")
    assert begin()[1]["conflicts"] == ["mha_lab/toy.new.py"]
    assert (folder / "mha_lab/toy.py").read_text() == "mine"
    assert begin()[1]["kept"] == FILES


def test_files_that_are_not_the_courses_are_left_alone(begin, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("notes")
    folder, _ = begin()
    assert (folder / "notes.txt").read_text() == "notes"


def test_places_that_cannot_be_a_workspace_are_refused(course, tmp_path):
    (tmp_path / "file").write_text("")
    (course / "mha_lab").mkdir()
    for folder, problem in [(tmp_path / "file", "is a file"), (course, "the course itself"),
                            (course / "mha_lab" / "mine", "course's own mha_lab/"),
                            (course / "course", "course's own course/"), (tmp_path / "file" / "below", "cannot write")]:
        with pytest.raises(PublishError, match=problem):
            start(folder, course, [SESSION])
    assert list((course / "mha_lab").iterdir()) == []
    start(course / "workspace", course, [SESSION])


def test_a_folder_where_a_file_belongs_and_one_that_is_closed(begin, tmp_path):
    (tmp_path / "work" / "mha_lab" / "toy.py").mkdir(parents=True)
    with pytest.raises(PublishError, match="is a folder"):
        begin()
    (tmp_path / "work" / "mha_lab" / "toy.py").rmdir()
    (tmp_path / "work").chmod(0o500)
    try:
        if os.access(tmp_path / "work", os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.raises(PublishError, match="cannot write"):
            begin()
    finally:
        (tmp_path / "work").chmod(0o700)


def test_the_real_workspace_and_what_wins_in_it(tmp_path):
    result = start_real(tmp_path / "work")
    assert {p.as_posix() for p in result.created} == {"mha_lab/__init__.py"} | {
        name for s in SESSIONS for name in (f"{s.id}.ipynb", *(f"mha_lab/{m}.py" for m in s.modules))}
    code = "import mha_lab.shapes as a, mha_lab.given as b, mha_lab.instruments; print(a.__file__); print(b.__file__)"
    shapes, given = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "work", text=True, check=True,
                                   capture_output=True, env=os.environ | {"PYTHONPATH": str(course_root())}
                                   ).stdout.splitlines()
    assert shapes == str(tmp_path / "work" / "mha_lab" / "shapes.py")
    assert given == str(course_root() / "mha_lab" / "given.py")
