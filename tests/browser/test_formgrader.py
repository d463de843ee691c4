"""A teacher's view: formgrader opens in JupyterLab, on a class that was graded."""
import pytest

from autograder.classroom.grade import grade_assignment
from autograder.sandbox import walls_available
from tests.classroom.helpers import hand_in, make_course, solution

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    made = make_course(tmp_path_factory.mktemp("teacher") / "course", "00-start")
    hand_in(made, "00-start", "ada", "warmup", solution("warmup"))
    grade_assignment(made.folder, "00-start", walls="required" if walls_available()[0] else "off")
    return made


def test_formgrader_opens_and_shows_the_class(page, jupyter, course, tmp_path):
    address = jupyter(course.folder)
    page.goto(f"{address}/lab?token=learner&reset")
    page.wait_for_function("window.jupyterapp !== undefined")
    page.evaluate("() => jupyterapp.restored")
    page.get_by_role("menuitem", name="Nbgrader").click()
    page.get_by_role("menuitem", name="Formgrader").first.click()
    frame = page.frame_locator("iframe[src*=formgrader]")
    frame.get_by_role("link", name="00-start").first.wait_for()
    page.screenshot(path=tmp_path / "formgrader.png")
    page.goto(f"{address}/formgrader/manage_submissions/00-start")
    row = page.locator("tr", has_text="ada")
    row.wait_for()
    page.screenshot(path=tmp_path / "submissions.png")
    assert "1 / 5" in row.inner_text().replace("\t", " ")
