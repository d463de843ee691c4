import shutil

import pytest

from autograder.grading import Grader
from autograder.sandbox import Limits, walls_available

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def pytest_collection_modifyitems(items):
    able, why = walls_available()
    for item in items:
        if CHROMIUM is None and item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason="no Chromium found"))
        if not able and item.get_closest_marker("walls"):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests that share something run in one process: an exercise's known programs, or a file's fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    class ByWhatTheyShare(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, test = nodeid.partition("::")
            if file.endswith("test_texts_run.py"):  # each is long, and shares nothing
                return nodeid
            if file.endswith("test_exercises.py") and "[" in test:
                return test.split("[")[1].split("-")[0].rstrip("]")
            return file
    return ByWhatTheyShare(config, log)


@pytest.fixture(scope="session")
def grader():
    with Grader("auto", Limits(wall=15)) as warm:
        yield warm


@pytest.fixture
def lab(tmp_path):
    """write(module, source) makes tmp_path/mha_lab/<module>.py and gives the lab folder."""
    def write(module, source):
        folder = tmp_path / "mha_lab"
        folder.mkdir(exist_ok=True)
        (folder / f"{module}.py").write_bytes(source if isinstance(source, bytes) else source.encode())
        return tmp_path
    return write


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[
            "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync"])
        yield browser
        browser.close()
