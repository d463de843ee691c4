"""Adjoint flow: gradients by path, from autograd; the browser makes the same scenes."""
import itertools

import pytest
import torch
from playwright.sync_api import expect

from mha_lab.instruments.adjoint_flow import CALLS, DROPS, MASKS, AdjointFlow, M, T, total

from .kit import assert_agreement, needs_node

STATES = [{"call": call, "mask": mask, "cell": cell, "drop": drop}
          for call, mask, drop, cell in itertools.product(CALLS, MASKS, DROPS, (0, 5, 11))]


@needs_node
def test_the_browser_makes_the_same_scenes(tmp_path):
    flow = AdjointFlow()
    assert_agreement(flow, STATES, tmp_path)


def test_the_paths_add_up_to_the_gradient_of_one_tensor():
    flow = AdjointFlow()
    starts, way = flow._forward("self", "all")
    by_autograd = sum(torch.autograd.grad(way["output"].flatten()[6], list(starts.values())))
    whole = torch.tensor(total("self", flow.paths("self", cell=6), "")).view(T, M)
    assert torch.allclose(whole, by_autograd[0].float(), atol=1e-5)


def test_a_mask_cuts_paths_and_the_query_row_is_its_own():
    flow = AdjointFlow()
    causal = flow.paths("self", cell=0, mask="causal")          # row 0 sees key 0 only: its softmax is constant
    assert not any(causal["q"]) and not any(causal["k"])
    assert any(causal["v"][:M]) and not any(causal["v"][M:])
    scene = flow.scene(flow.state(call="self", mask="causal", cell=0, drop="k"))
    assert "would not show" in scene["alt"]


def test_a_forgotten_path_is_shown_beside_the_right_sum():
    flow = AdjointFlow()
    scene = flow.scene(flow.state(call="cross", drop="k"))
    parts = {part["id"]: part for part in scene["parts"]}
    assert parts["sum"]["verdict"] == "right" and parts["wrong"]["verdict"] == "wrong"
    assert parts["wrong"]["labels"] == parts["v"]["labels"] != parts["sum"]["labels"]
    assert flow.scene(flow.state(drop="last"))["alt"] == flow.scene(flow.state(drop="k"))["alt"]


def test_states_are_checked():
    with pytest.raises(ValueError, match="output numbers"):
        AdjointFlow().state(cell=T * M)
    with pytest.raises(ValueError, match="drop is one of"):
        AdjointFlow().state(drop="q")


@pytest.mark.browser
def test_a_click_and_the_keyboard_choose_an_output_number(open_instrument):
    page = open_instrument(AdjointFlow())
    grid = page.locator("[data-part=output]")
    grid.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(grid).to_have_attribute("aria-label", "output: output[0,1], 3 × 4 cells, arrow keys move")
    assert page.evaluate("window.saved.at(-1).state.cell") == 1
    page.get_by_role("radio", name="the key path").check()
    expect(page.locator("[data-part=wrong]")).to_be_visible()
    page.get_by_role("radio", name="self-attention").check()
    expect(page.locator("[data-part=say]")).to_contain_text("x gets their sum")
