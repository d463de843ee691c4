import shutil

import pytest

from autograder.classroom.course import Course
from autograder.sandbox import walls_available

from .helpers import make_course


@pytest.fixture(scope="session")
def walls():
    """Official grading's walls where this machine has them."""
    return "required" if walls_available()[0] else "off"


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    return make_course(tmp_path_factory.mktemp("generated") / "course", "00-start")


@pytest.fixture
def course(generated, tmp_path):
    """A course of its own, with session 00 generated."""
    shutil.copytree(generated.folder, tmp_path / "course")
    return Course(tmp_path / "course")
