"""The still pictures: well-formed, right numbers, a text alternative, and what a notebook keeps of `show`."""

import base64
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from nbconvert import HTMLExporter
from nbformat import v4

from mha_lab.instruments import ShapeMachine, show, write_svg
from mha_lab.instruments.shape_machine import STAGE_IDS

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("stage", [None, *STAGE_IDS])
@pytest.mark.parametrize("sizes", [dict(), dict(batch=1, q_len=1, k_len=1, d_model=1, num_heads=1),
                                   dict(q_len=32, k_len=16, d_model=768, num_heads=12)])
def test_pictures_are_well_formed_and_inside_their_frame(stage, sizes):
    machine = ShapeMachine(**sizes)
    root = ElementTree.fromstring(machine.svg(stage))
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text == machine.alt(stage)
    left, _, width, _ = map(int, root.get("viewBox").split())
    assert all(left <= int(cell.get("x")) and int(cell.get("x")) + int(cell.get("width")) <= left + width
               for cell in root.iter(f"{SVG}rect"))


def test_the_overview_holds_the_ledger():
    machine = ShapeMachine(batch=2, q_len=3, k_len=4, d_model=6, num_heads=2, d_v=2)
    words = texts(machine.svg())
    for stage in machine.stages():
        for fact in stage.tensors:
            at = words.index(fact.name)
            row = words[at:at + 10]
            assert f"({', '.join(map(str, fact.strides))})" in row
            assert f"{fact.elements:,}" in row and f"{fact.bytes:,}" in row
            for axis, size in zip(fact.axes, fact.shape, strict=True):
                assert f"{axis} {size}" in row
    assert "1,080" in words and "120 + 22" in words
    assert "✓ Right" in words and "✗ Wrong" in words


def test_the_alternative_text_has_the_numbers():
    alt = ShapeMachine(batch=2, q_len=3, k_len=4, d_model=6, num_heads=2, d_v=2).alt()
    assert "1,080 multiply-accumulates" in alt and "v_heads [2, 2, 4, 2]" in alt and "Wrong:" in alt


def test_tokens_differ_in_label_and_hatch_not_in_colour_alone():
    root = ElementTree.fromstring(ShapeMachine().svg("split"))
    assert {f"t{token}" for token in range(5)} <= set(texts(ElementTree.tostring(root, encoding="unicode")))
    shapes = list(root.iter())
    hatched = {}
    for box, after in zip(shapes, shapes[1:], strict=False):
        if box.get("data-token"):
            hatched.setdefault(box.get("data-token"), set()).add(after.get("class") == "hatch")
    assert hatched == {"0": {False}, "1": {True}, "2": {True}, "3": {True}, "4": {False}}


def test_write_svg(tmp_path):
    path = write_svg(tmp_path / "shape-machine.svg")
    assert path.read_text(encoding="utf-8").strip() == ShapeMachine().svg()
    assert write_svg(tmp_path / "merged.svg", ShapeMachine(q_len=3), "merged").read_text(
        encoding="utf-8").strip() == ShapeMachine(q_len=3).svg("merged")


@pytest.fixture
def outputs(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    return shown


def test_show_gives_the_live_view_and_a_separate_picture(outputs):
    machine = ShapeMachine(q_len=4)
    show(machine, stage="heads", head=2)
    live, still = outputs
    assert (live.q_len, live.stage, live.head) == (4, "heads", 2)
    data = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', still.data).group(1)
    assert base64.b64decode(data).decode() == machine.svg("heads", head=2)
    assert "<details open" in still.data and f'data-mha-key="{live.still_key}"' in still.data
    live.close()


def test_show_without_a_widget_library_still_shows_the_picture(outputs, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "mha_lab.instruments.view", raising=False)
    show(ShapeMachine())
    assert "anywidget" in outputs[0].data and "<img alt=" in outputs[1].data


def test_a_converted_notebook_keeps_the_picture(outputs):
    machine = ShapeMachine()
    show(machine)
    live, still = outputs
    bundle = live._repr_mimebundle_()
    bundle = bundle[0] if isinstance(bundle, tuple) else bundle
    cell = v4.new_code_cell("show(machine)", outputs=[
        v4.new_output("display_data", data=bundle), v4.new_output("display_data", data={"text/html": still.data})])
    html, _ = HTMLExporter().from_notebook_node(v4.new_notebook(cells=[cell]))
    assert f'<img alt="{machine.alt()[:40]}' in html
    live.close()


def test_the_package_is_cheap_to_import():
    code = ("import sys, mha_lab.instruments as i; "
            "print([m for m in ('torch', 'ipywidgets', 'anywidget', 'IPython') if m in sys.modules]); "
            "from mha_lab.instruments import ShapeMachine; ShapeMachine().svg(); "
            "print([m for m in ('ipywidgets', 'anywidget', 'IPython') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
