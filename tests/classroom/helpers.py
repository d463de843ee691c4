"""What the classroom tests share."""
import shutil
from html.parser import HTMLParser
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.classroom.course import Course
from autograder.exercises import session
from autograder.publish import course_root, session_files
from autograder.report import Report


def make_course(folder: Path, session_id: str) -> Course:
    """A course folder of its own, with one generated assignment."""
    folder.mkdir(parents=True)
    shutil.copy(course_root() / "course" / "nbgrader_config.py", folder)
    with open(folder / "nbgrader_config.py", "a") as f:
        f.write('\nc.Exchange.cache = str(Path(__file__).parent / "cache")\n')
    for name, content in session_files(course_root(), session(session_id), grading=True).items():
        path = folder / "source" / session_id / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    course = Course(folder)
    result = course.api.generate_assignment(session_id)
    assert result["success"], result
    return course


def hand_in(course: Course, assignment: str, student: str, module: str = "", source: str | bytes | None = None) -> Path:
    """A submission: the released assignment, with this source in place of the stub."""
    folder = course.path("submitted", student, assignment)
    shutil.copytree(course.path("release", ".", assignment), folder)
    if source is not None:
        data = source if isinstance(source, bytes) else source.encode()
        (folder / "mha_lab" / f"{module}.py").write_bytes(data)
    return folder


def solution(module: str) -> str:
    return (course_root() / "solutions" / f"{module}.py").read_text(encoding="utf-8")


def report(status="passed", exercise="identity_heads", points=1) -> Report:
    return Report(exercise, "00-start", status, points if status == "passed" else 0, points)


def grade_cell(name="identity_heads", points=1) -> NotebookNode:
    return new_code_cell(f'check("{name}")', metadata={"nbgrader": {
        "grade": True, "grade_id": name, "locked": True, "points": points, "schema_version": 3, "solution": False,
        "task": False, "cell_type": "code"}})


def answer_cell(source="*Your answer:*", name="explain-00", points=4) -> NotebookNode:
    return new_markdown_cell(source, metadata={"nbgrader": {
        "grade": True, "grade_id": name, "locked": False, "points": points, "schema_version": 3, "solution": True,
        "task": False, "cell_type": "markdown"}})


def notebook(*cells: NotebookNode) -> NotebookNode:
    return new_notebook(cells=list(cells))


class Tags(HTMLParser):
    """What a browser would make elements of."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
