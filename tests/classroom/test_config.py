import os
import sys
from pathlib import Path

from nbgrader.converters import Autograde, GenerateAssignment
from traitlets.config import Config
from traitlets.utils.importstring import import_item

from autograder.classroom import configure
from autograder.exercises import SESSIONS
from autograder.publish import course_root


def configured(folder):
    c = Config()
    configure(c, folder)
    return c


def test_paths_are_the_course_folders_own(tmp_path):
    c = configured(tmp_path)
    assert c.CourseDirectory.root == str(tmp_path)
    assert Path(c.Exchange.root).is_dir() and Path(c.Exchange.root).parent == tmp_path


def test_every_sessions_module_is_the_learners(tmp_path):
    kept = configured(tmp_path).Autograde.exclude_overwriting
    assert kept == {s.id: [f"mha_lab/{m}.py" for m in s.modules] for s in SESSIONS}
    assert kept["01-shape-machine"] == ["mha_lab/shapes.py"]


def test_every_preprocessor_can_be_imported_and_only_what_has_no_work_is_left_out(tmp_path):
    c = configured(tmp_path)
    for stock, name, replaced in ((Autograde, "sanitize_preprocessors", {"DeduplicateIds", "CheckCellMetadata"}),
                                  (Autograde, "autograde_preprocessors",
                                   {"Execute", "IgnorePattern", "ClearMetadataPreprocessor", "LimitOutput",
                                    "CheckCellMetadata", "SaveAutoGrades"}),
                                  (GenerateAssignment, "preprocessors", {"InstantiateTests"})):
        ours = [import_item(path) for path in c[stock.__name__][name]]
        theirs = set(stock.class_traits()[name].default_args[0])
        left = {t.__name__ for t in theirs if not any(issubclass(o, t) for o in ours)}
        assert left == replaced


def test_the_real_config_file_is_short_and_loads():
    path = course_root() / "course" / "nbgrader_config.py"
    c = Config()
    exec(compile(path.read_text(), path, "exec"), {"get_config": lambda: c, "__file__": str(path)})
    assert c.CourseDirectory.course_id == "mha" and c.CourseDirectory.root == str(path.parent)
    assert len(path.read_text().splitlines()) < 30


def test_alembic_is_found_where_the_environment_was_not_activated(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    configured(tmp_path)
    configured(tmp_path)
    assert os.environ["PATH"].split(os.pathsep) == ["/usr/bin", str(Path(sys.executable).parent)]


def test_an_unwritable_course_can_still_be_read(monkeypatch):
    assert configured(Path("/proc/no-such-course")).CourseDirectory.root == "/proc/no-such-course"
