"""Instruments of the kit in a real browser, on a bare page with a model of four methods."""

import pytest
from nbconvert import HTMLExporter
from nbformat import v4
from playwright.sync_api import expect

from mha_lab.instruments import AttentionDesk, StrideExplorer, show
from mha_lab.instruments.static import picture_html

pytestmark = pytest.mark.browser

SPLIT = dict(chain="view(B, T, H, D).transpose(1, 2)", versus="view(B, H, T, D)")


def part(page, name):
    return page.locator(f"[data-part={name}]")


def cell(page, name, index):
    """The middle of a cell, on the page."""
    return page.evaluate("""([name, index]) => {
      const svg = document.querySelector(`[data-part=${name}] svg`), box = svg.getBoundingClientRect();
      const boxes = [...svg.querySelectorAll("path.on, path.off")].flatMap((path) =>
        [...path.getAttribute("d").matchAll(/M(\\d+) (\\d+)h(\\d+)v(\\d+)/g)].map((m) => m.slice(1).map(Number)));
      boxes.sort((a, b) => a[1] - b[1] || a[0] - b[0]);
      const [x, y, w, h] = boxes[index], scale = box.width / svg.viewBox.baseVal.width;
      return [box.left + scale * (x + w / 2 + 1), box.top + scale * (y + h / 2 + 1)];
    }""", [name, index])


def marked(page, name, kind):
    return [int(mark.get_attribute("data-index")) for mark in part(page, name).locator(f".{kind}").all()]


def control(page, name):
    return page.locator(f"[data-control={name}]")


def readout(page):
    return page.get_by_role("status").inner_text()


def saved(page):
    return page.evaluate("window.saved.at(-1).state")


def test_the_pointer_shows_partner_and_arithmetic(open_instrument):
    page = open_instrument(StrideExplorer(**SPLIT))
    page.mouse.move(*cell(page, "logical", 17))
    assert "[0, 1, 1, 1]: 0 + 0·60 + 1·4 + 1·12 + 1·1 = 17" in readout(page)
    assert marked(page, "logical", "here") == [17] and marked(page, "storage", "partner") == [17]
    page.mouse.move(*cell(page, "storage", 5))
    assert marked(page, "storage", "here") == [5] and marked(page, "logical", "partner") == [5]
    assert "is read by 1 logical cell(s): [0, 1, 0, 1]" in readout(page)
    page.mouse.move(2, 2)
    assert marked(page, "logical", "here") == [0]  # back to the walker


def test_the_keyboard_walks_and_types(open_instrument):
    page = open_instrument(StrideExplorer(**SPLIT))
    page.evaluate("document.addEventListener('keydown', (event) => event.preventDefault())")
    part(page, "logical").focus()
    for key in ("ArrowRight", "ArrowDown", "End", "ArrowUp"):
        page.keyboard.press(key)
    assert marked(page, "logical", "here") == [11] and "[0, 2, 0, 3]" in readout(page)
    control(page, "T").focus()
    page.keyboard.press("ArrowLeft")
    assert saved(page)["sizes"]["T"] == 4 and "[2, 3, 4, 4]" in part(page, "steps").inner_text()
    control(page, "walk").focus()
    page.keyboard.press("ArrowRight")
    assert saved(page)["walk"] == 1 and "logical [0, 0, 0, 1]" in readout(page)
    page.get_by_role("button", name="view(B, T, H, D)").focus()
    page.keyboard.press("Enter")
    assert saved(page)["step"] == 1 and "[2, 4, 3, 4]" in part(page, "logical").inner_text()


def test_a_refused_operation_is_an_explained_state(open_instrument):
    page = open_instrument(StrideExplorer(**SPLIT))
    control(page, "chain").fill("transpose(0, 1).view(B*T, H*D)")
    assert "view refuses: with strides (12, 60, 1)" in part(page, "refusal").inner_text()
    control(page, "chain").fill("transpose(0, 1).nonsense(")
    assert "cannot be read" in part(page, "refusal").inner_text()
    page.get_by_role("button", name="remove the last").click()
    assert saved(page)["chain"] == "transpose(0, 1)" and part(page, "refusal").count() == 0
    control(page, "add").select_option("contiguous()")
    assert saved(page)["chain"] == "transpose(0, 1).contiguous()"
    assert "copy of 480 bytes" in part(page, "steps").inner_text()
    assert "written by a copy" in part(page, "storage").inner_text()


def test_right_and_wrong_side_by_side_and_the_size_that_hides_it(open_instrument):
    page = open_instrument(StrideExplorer(**SPLIT))
    left, right = part(page, "logical").bounding_box(), part(page, "wrong").bounding_box()
    assert abs(left["y"] - right["y"]) < 2 and left["x"] < right["x"]
    assert "96 of 120 cells" in part(page, "wrong").inner_text()
    control(page, "T").focus()
    page.keyboard.press("Home")
    assert "such sizes hide the fault" in part(page, "wrong").inner_text()


def test_examples_and_extents(open_instrument):
    page = open_instrument(StrideExplorer())
    control(page, "example").select_option("repeat")
    assert saved(page)["chain"].startswith("unsqueeze(2).expand") and "of 36 cells" in part(page, "wrong").inner_text()
    for name in ("G", "T"):
        control(page, name).focus()
        for key in ("End", "Home"):
            page.keyboard.press(key)
            StrideExplorer(saved(page)["base"], saved(page)["sizes"], saved(page)["chain"])
    assert page.get_by_role("group").first.get_attribute("aria-label").startswith("The stride explorer. ")


def test_a_click_hides_a_pair_from_a_query(open_instrument):
    desk = AttentionDesk()
    page = open_instrument(desk)
    page.mouse.click(*cell(page, "mask", 3))
    cells = saved(page)["cells"]
    assert cells == "1110" + "1" * 31
    row = desk.weights(cells=cells)[0, 0].tolist()
    words = part(page, "head0").locator("svg .cell").all_text_contents()
    assert words[:6] == [f"{weight:.2f}" for weight in row[:3] + row[4:]]
    assert "s3 is hidden from t0" in readout(page)
    page.mouse.click(*cell(page, "head1", 3))
    assert saved(page)["cells"] == "1" * 35
    assert page.get_by_label("mask", exact=True).input_value() == ""


def test_the_mask_by_keyboard_and_presets(open_instrument):
    page = open_instrument(AttentionDesk())
    page.evaluate("document.addEventListener('keydown', (event) => event.preventDefault())")
    part(page, "head0").focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert saved(page)["cells"][8] == "0" and "s1 is hidden from t1" in readout(page)
    assert marked(page, "head0", "here") == [9] and marked(page, "mask", "partner") == [8]
    assert marked(page, "mean", "partner") == [9]
    control(page, "mask").select_option("bottom-right")
    assert saved(page)["cells"] == "" and part(page, "mask").locator("svg .cell", has_text="✓").count() == 25
    control(page, "mask").select_option("padding")
    control(page, "amount").focus()
    page.keyboard.press("End")
    assert "No visible key for t0, t1, t2, t3, t4" in part(page, "empty").inner_text()


def test_every_view_of_the_desk(open_instrument):
    desk = AttentionDesk()
    page = open_instrument(desk, mask="causal")
    for view, name in (("lens", "lens"), ("one", "one"), ("writes", "writes"), ("rank", "rank"), ("who", "mean")):
        page.locator(f"input[value={view}]").check()
        assert saved(page)["view"] == view and part(page, name).is_visible()
        if control(page, "query").is_visible():
            control(page, "query").focus()
            page.keyboard.press("ArrowRight")
            assert f"query t{saved(page)['query']}" in part(page, name).inner_text()
    assert saved(page)["query"] == 3
    control(page, "head").select_option("2")
    assert part(page, "head0").count() == 0 and part(page, "head2").is_visible()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("instrument", [StrideExplorer(**SPLIT), AttentionDesk()], ids=lambda one: one.name)
def test_names_contrast_and_screenshot(open_instrument, dark, instrument, tmp_path):
    page = open_instrument(instrument, dark=dark, width=1100)
    assert_accessible(page)
    page.screenshot(path=tmp_path / f"{instrument.name}-{dark}.png", full_page=True)


def test_meaning_is_not_in_colour_alone(open_instrument):
    """Hidden pairs are hatched, identities carry a label and a hatch, signs a hatch and a minus."""
    page = open_instrument(AttentionDesk(), mask="causal", view="writes")
    for name, key in (("mask", "off"), ("writes", "n1")):
        path = part(page, name).locator(f"path[data-fill={key}]").get_attribute("d")
        assert part(page, name).locator("path[fill^='url(#']").evaluate_all(
            "(all, d) => all.some((e) => e.getAttribute('d') === d)", path)
    page = open_instrument(StrideExplorer(**SPLIT))
    assert {"t0", "t1", "t4"} <= set(part(page, "logical").locator("svg .cell").all_text_contents())


def assert_accessible(page):
    """Every control has a name, every text contrasts with what it stands on."""
    assert page.locator("input, select").evaluate_all("all => all.every((input) => input.labels.length === 1)")
    assert page.locator("svg[role=img]").evaluate_all("all => all.every((svg) => svg.getAttribute('aria-label'))")
    assert page.locator("[tabindex='0']").evaluate_all("all => all.every((e) => e.getAttribute('aria-label'))")
    contrasts = page.evaluate("""() => {
      const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
      const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
      const light = (colour) => [.2126, .7152, .0722].reduce((sum, w, i) => sum + w * linear(colour[i] / 255), 0);
      const ratio = (a, b) => (Math.max(light(a), light(b)) + .05) / (Math.min(light(a), light(b)) + .05);
      const root = document.querySelector(".mha-kit"), paper = rgb(getComputedStyle(root).backgroundColor);
      const blend = ([r, g, b, a = 1]) => [r, g, b].map((v, i) => v * a + paper[i] * (1 - a));
      const ink = (e) => blend(rgb(getComputedStyle(e)[e.closest("svg") ? "fill" : "color"]));
      const plain = [...root.querySelectorAll("p, td, th, label, legend, svg :is(.head, .name, .ok, .bad, .say)")];
      return [plain.length, Math.min(...plain.map((e) => ratio(ink(e), paper)))];
    }""")
    assert contrasts[0] > 20 and contrasts[1] >= 4.5, contrasts


def test_it_fits_a_narrow_column_and_folds_the_still_picture(open_instrument):
    explorer = StrideExplorer(**SPLIT)
    still = picture_html(explorer.svg(), explorer.alt(), "mine")
    page = open_instrument(explorer, width=400, after=still, still_key="mine")
    assert page.evaluate("document.documentElement.scrollWidth <= 400")
    assert page.locator("details[data-mha-key=mine]").get_attribute("open") is None


def test_python_can_move_the_view(open_instrument):
    page = open_instrument(StrideExplorer(**SPLIT))
    page.evaluate("model.set('state', { ...model.get('state'), step: 0 })")
    assert "[2, 5, 12]" in part(page, "logical").inner_text()
    page.evaluate("stop()")


def test_still_pictures_need_no_javascript_and_survive_nbconvert(chromium, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    instruments = [StrideExplorer(**SPLIT), AttentionDesk()]
    for instrument in instruments:
        show(instrument)
    outputs = []
    for live, still in zip(shown[::2], shown[1::2], strict=True):
        bundle = live._repr_mimebundle_()
        outputs += [v4.new_output("display_data", data=bundle[0] if isinstance(bundle, tuple) else bundle),
                    v4.new_output("display_data", data={"text/html": still.data})]
        live.close()
    html, _ = HTMLExporter().from_notebook_node(v4.new_notebook(cells=[v4.new_code_cell("show()", outputs=outputs)]))
    context = chromium.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.set_content(html, wait_until="domcontentloaded")
    for instrument in instruments:
        image = page.get_by_role("img", name=instrument.alt(), exact=True)
        expect(image).to_be_visible()
        assert image.bounding_box()["width"] > 400
    context.close()
