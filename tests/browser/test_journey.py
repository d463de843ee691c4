"""A learner's first minutes, in a real JupyterLab: run, not started, a named mistake, a pass, a slider."""
import pytest

from autograder.exercises import find
from autograder.publish import solution_source, start

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learner") / "workspace"
    start(folder)
    return folder


@pytest.fixture(scope="module")
def address(jupyter, workspace):
    return jupyter(workspace)


def run_all(page):
    page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")


def run_cell(page, text):
    """Run the code cell whose source is `text`, and give it."""
    index = page.evaluate(
        "(text) => { const cells = [...jupyterapp.shell.currentWidget.content.model.cells];"
        " return cells.findIndex(c => c.type === 'code' && c.sharedModel.source.trim() === text) }", text)
    assert index >= 0, f"no cell holds {text!r}"
    page.evaluate("(i) => { const n = jupyterapp.shell.currentWidget.content; n.activeCellIndex = i;"
                  " n.deselectAll(); return jupyterapp.commands.execute('notebook:run-cell') }", index)
    return page.locator(".jp-Notebook .jp-Cell").nth(index)


def test_the_first_ten_minutes(page, open_notebook, address, workspace, tmp_path):
    stub = workspace / "mha_lab" / "warmup.py"
    original = stub.read_text()
    head = original[:original.index("def identity_heads")]
    with open_notebook(address, "00-start.ipynb"):
        run_all(page)
        report = page.locator(".mha-report").first
        report.wait_for()
        assert report.get_attribute("data-status") == "not_started"

        stub.write_text(head + "def identity_heads(x, num_heads):\n    b, s, m = x.shape\n"
                        "    return x.reshape(b, num_heads, s, m // num_heads).transpose(1, 2)\n")
        cell = run_cell(page, 'check("identity_heads")')
        cell.locator('.mha-report[data-status="failed"]').wait_for()
        assert cell.locator(".mha-diagnosis code").first.inner_text() == "tokens-as-heads"
        assert cell.locator(".mha-cell").count() == 2
        marked = cell.locator(".mha-cell").evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
        assert len(set(marked)) == 2
        cell.locator(".mha-hint summary").click()
        assert cell.locator(".mha-hint").inner_text().startswith("Hint")
        cell.screenshot(path=tmp_path / "panel.png")
        explorer = cell.locator(".mha-stride-explorer")
        assert "hold another element" in explorer.locator("[data-part=wrong]").inner_text()

        stub.write_text(head + solution_source(find("identity_heads")))
        run_cell(page, 'check("identity_heads")').locator('.mha-report[data-status="passed"]').wait_for()


def test_the_shape_machine_moves(page, open_notebook, address, tmp_path):
    with open_notebook(address, "01-shape-machine.ipynb"):
        run_all(page)
        machine = page.locator(".mha-shape-machine").first
        machine.wait_for()
        slider, picture = machine.locator("[data-control=q_len]"), machine.locator(".picture svg")
        before = picture.get_attribute("aria-label"), slider.input_value()
        slider.scroll_into_view_if_needed()
        box = slider.bounding_box()
        page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] / 2, steps=5)
        page.mouse.up()
        page.wait_for_function("([e, was]) => e.getAttribute('aria-label') !== was",
                               arg=[picture.element_handle(), before[0]])
        assert slider.input_value() != before[1]
        machine.screenshot(path=tmp_path / "machine.png")
