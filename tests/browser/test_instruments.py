"""The instruments in a real JupyterLab: keys reach them, the kernel hears of it, Python moves them, themes change."""
import nbformat
import pytest

pytestmark = pytest.mark.browser

CELLS = ["import torch\nfrom mha_lab.instruments import AttentionDesk, StrideExplorer, explore, show\n"
         "from mha_lab.instruments.live import InstrumentView",
         "explore(torch.arange(24).view(2, 3, 4).transpose(0, 1), names='tbd')",
         "desk = AttentionDesk().view(mask='causal')\ndesk",
         "print(desk.state['cells'][:8]); desk.state = {**desk.state, 'view': 'writes'}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("instruments")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(book, made / "instruments.ipynb")
    return made


def run(page, *indices):
    for index in indices:
        page.evaluate("(i) => { const n = jupyterapp.shell.currentWidget.content; n.activeCellIndex = i;"
                      " n.deselectAll(); return jupyterapp.commands.execute('notebook:run-cell') }", index)


def test_keys_kernel_and_themes(page, open_notebook, jupyter, folder, tmp_path):
    with open_notebook(jupyter(folder), "instruments.ipynb"):
        run(page, 0, 1, 2)
        explorer, desk = page.locator(".mha-stride-explorer"), page.locator(".mha-attention-desk")
        explorer.wait_for()
        desk.wait_for()
        assert "strides" in explorer.locator("[data-part=steps]").inner_text()
        assert "(4, 12, 1)" in explorer.locator("[data-part=steps]").inner_text()
        assert page.locator("details.mha-static").first.get_attribute("open") is None
        explorer.locator("[data-part=logical]").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert "logical [0, 1, 1]" in explorer.locator(".readout").inner_text()
        chain = explorer.locator("[data-control=chain]")
        chain.press_sequentially("reshape(3, 8)")  # j, k, r and friends are commands of JupyterLab
        assert chain.input_value() == "reshape(3, 8)"
        assert "copy of 192 bytes" in explorer.locator("[data-part=steps]").inner_text()

        desk.locator("[data-part=head0]").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert desk.locator("[data-part=mask] svg .cell", has_text="✓").count() == 16
        run(page, 3)
        page.locator(".jp-OutputArea-output pre", has_text="11000001").wait_for()
        desk.locator("[data-part=writes]").wait_for()
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            page.evaluate("(theme) => jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
            dark = theme.endswith("Dark")
            page.wait_for_function("(light) => document.body.dataset.jpThemeLight === light", arg=str(not dark).lower())
            page.screenshot(path=tmp_path / f"{theme}.png")
