"""The live view in a real browser, on a bare page with a model of four methods."""

import pytest
from playwright.sync_api import expect

from mha_lab.instruments.shape_machine import STAGE_IDS, ShapeMachine
from mha_lab.instruments.static import picture_html

pytestmark = pytest.mark.browser


@pytest.fixture
def open_page(open_instrument):
    """open_page(machine, **state) shows a machine."""
    return lambda machine=None, **options: open_instrument(machine or ShapeMachine(), **options)


def control(page, name):
    return page.locator(f"[data-control={name}]")


def ledger(page) -> dict[str, list[str]]:
    rows = page.locator("table tr").all()
    return {row.locator("th, td").first.inner_text(): row.locator("th, td").all_inner_texts()[1:] for row in rows}


def picture_text(page) -> list[str]:
    return page.locator(".picture svg text").all_text_contents()


def test_every_step_shows_what_torch_says(open_page):
    machine = ShapeMachine(batch=2, q_len=3, k_len=4, d_model=6, num_heads=2, d_v=2)
    page = open_page(machine)
    for index, stage in enumerate(machine.stages()):
        expect(page.locator("button[aria-current=step]")).to_have_attribute("data-stage", STAGE_IDS[index])
        rows = ledger(page)
        facts = stage.tensors + (stage.wrong[:1] if stage.wrong else ())
        assert rows["strides"] == [f"({', '.join(map(str, fact.strides))})" for fact in facts]
        assert rows["elements"] == [f"{fact.elements:,}" for fact in facts]
        assert rows["MACs"] == [f"{fact.macs:,}" for fact in facts]
        assert rows["contiguous"] == ["yes" if fact.contiguous else "no" for fact in facts]
        assert page.locator(".picture svg").get_attribute("aria-label").startswith(stage.title)
        if index < 9:
            page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    assert "120 weights, 22 biases, 1,080 multiply-accumulates" in page.locator(".totals").inner_text()


def test_the_keyboard_moves_a_slider_and_everything_follows(open_page):
    page = open_page(stage="heads")
    # A notebook listens for arrow keys on the document, as here; the slider must get them first.
    page.evaluate("document.addEventListener('keydown', (event) => event.preventDefault())")
    before = picture_text(page)
    control(page, "q_len").focus()
    page.keyboard.press("ArrowRight")
    assert control(page, "q_len").get_attribute("aria-valuetext") == "6"
    assert "[2, 3, 6, 4]" in page.get_by_role("status").inner_text()
    assert ledger(page)["strides"][0] == "(72, 4, 12, 1)"
    assert picture_text(page) != before and "t5" in picture_text(page)
    assert page.evaluate("window.saved.at(-1).q_len") == 6
    page.locator("button[data-stage=scores]").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("window.saved.at(-1).stage") == "scores"
    assert "[2, 3, 6, 7]" in page.get_by_role("status").inner_text()


def test_the_pointer_drags_a_slider(open_page):
    page = open_page(stage="packed")
    box = control(page, "d_model").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] + 20, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    assert page.evaluate("window.saved.at(-1).d_model") == 768
    assert "[2, 5, 768]" in page.get_by_role("status").inner_text()


def test_controls_stay_legal(open_page):
    """H = 3 does not divide 14 and 16; whatever is set, the state that is saved is one that torch accepts."""
    page = open_page(stage="heads", head=2)
    control(page, "d_model").focus()
    page.keyboard.press("ArrowRight")
    saved = page.evaluate("window.saved.at(-1)")
    assert (saved["d_model"], saved["num_heads"], saved["head"]) == (14, 2, 1)
    for name in ("num_heads", "batch", "q_len", "k_len", "d_v", "d_model", "num_heads", "head"):
        control(page, name).focus()
        for key in ("End", "ArrowRight", "Home", "ArrowLeft", "End"):
            page.keyboard.press(key)
            saved = page.evaluate("window.saved.at(-1)")
            machine = ShapeMachine(**{key: saved[key] for key in (
                "batch", "q_len", "k_len", "d_model", "num_heads", "d_v", "cross")})
            assert 0 <= saved["head"] < machine.num_heads


def test_self_attention_ties_the_lengths(open_page):
    page = open_page(stage="scores")
    page.get_by_label("self (S = T)").check()
    expect(control(page, "k_len")).to_be_disabled()
    assert "[2, 3, 5, 5]" in page.get_by_role("status").inner_text()
    page.get_by_label("cross", exact=True).check()
    assert "[2, 3, 5, 7]" in page.get_by_role("status").inner_text()


def test_right_and_wrong_side_by_side(open_page):
    page = open_page(stage="heads", head=1)
    words = picture_text(page)
    assert "✓ Right" in words and "✗ Wrong" in words and "packed.view(B, H, T, D)" in words
    assert any("48 of 60" in word for word in words)
    page.get_by_label("K", exact=True).check()
    assert "packed.view(B, H, S, D)" in picture_text(page) and "s6" in picture_text(page)


def test_python_can_move_the_view(open_page):
    page = open_page()
    page.evaluate("model.set('stage', 'merged')")
    assert "Step 9 of 10" in page.get_by_role("status").inner_text()
    page.evaluate("stop()")


def test_value_width_follows_until_it_is_set(open_page):
    page = open_page(stage="head_output")
    expect(page.get_by_label("D_v = D")).to_be_checked()
    control(page, "d_v").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("D_v = D")).not_to_be_checked()
    assert "[2, 3, 5, 5]" in page.get_by_role("status").inner_text()
    page.get_by_label("D_v = D").check()
    assert page.evaluate("window.saved.at(-1).d_v") is None


def test_the_still_picture_folds_while_the_view_lives(open_page):
    machine = ShapeMachine()
    stills = "".join(picture_html(machine.svg(), machine.alt(), key) for key in ("mine", "other"))
    page = open_page(machine, after=stills, still_key="mine")
    assert page.locator("details[data-mha-key=mine]").get_attribute("open") is None
    assert page.locator("details[data-mha-key=other]").get_attribute("open") is not None
    assert page.locator("details[data-mha-key=other] img").evaluate("image => image.naturalWidth") > 500


def test_two_views_do_not_share_names(open_page):
    """Each widget loads its own copy of the module; radio groups and labels must still not meet."""
    page = open_page(stage="heads")
    page.evaluate("""async () => {
      const other = document.createElement("div");
      document.querySelector("main").append(other);
      const { default: widget } = await import(URL.createObjectURL(moduleBlob));
      widget.render({ model, el: other });
    }""")
    assert page.locator("input[type=radio]:checked").count() == 4
    ids = page.locator("[id]").evaluate_all("all => all.map((element) => element.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("dark", [False, True])
def test_names_roles_and_contrast(open_page, dark):
    page = open_page(stage="heads", dark=dark)
    for name in ("batch", "query tokens", "key tokens", "model width", "heads", "value width"):
        expect(page.get_by_role("slider", name=name, exact=False).first).to_be_visible()
    assert page.locator("input").evaluate_all("all => all.every((input) => input.labels.length === 1)")
    expect(page.get_by_role("status")).to_have_attribute("aria-live", "polite")
    expect(page.get_by_role("img")).to_have_attribute("aria-label", ShapeMachine().figure("heads", "q", 1)["alt"])
    contrasts = page.evaluate("""() => {
      const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
      const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
      const light = (colour) => [.2126, .7152, .0722].reduce((sum, w, i) => sum + w * linear(colour[i] / 255), 0);
      const ratio = (a, b) => (Math.max(light(a), light(b)) + .05) / (Math.min(light(a), light(b)) + .05);
      const root = document.querySelector(".mha-shape-machine");
      const paper = rgb(getComputedStyle(root).backgroundColor);
      const blend = ([r, g, b, a = 1]) => [r, g, b].map((v, i) => v * a + paper[i] * (1 - a));
      const ink = (e) => blend(rgb(getComputedStyle(e)[e.closest("svg") ? "fill" : "color"]));
      const plain = [...root.querySelectorAll("p, td, th, output, svg .head, svg .soft, svg .ok, svg .bad, svg .say")];
      const cells = [...root.querySelectorAll("svg rect.on")];
      const bars = [...root.querySelectorAll("svg rect[fill]:not(.on)")];
      return {
        text: Math.min(...plain.map((e) => ratio(ink(e), paper))),
        cells: Math.min(...cells.map((e) => ratio(rgb(getComputedStyle(e).fill), [17, 17, 17]))),
        bars: Math.min(...bars.map((e) => ratio(rgb(getComputedStyle(e).fill), [255, 255, 255]))),
        counts: [plain.length, cells.length, bars.length],
      };
    }""")
    assert min(contrasts["counts"]) > 5
    assert min(contrasts["text"], contrasts["cells"], contrasts["bars"]) >= 4.5, contrasts


def test_it_fits_a_narrow_column(open_page):
    page = open_page(stage="heads", width=400)
    assert page.evaluate("document.documentElement.scrollWidth <= 400")
    verdicts = page.locator(".picture svg :is(.ok, .bad)")
    assert verdicts.nth(0).bounding_box()["y"] < verdicts.nth(1).bounding_box()["y"] - 100
