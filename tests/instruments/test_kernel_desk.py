"""The kernel desk: index lists that cover the tensors, traffic counted from them, and the browser beside it."""
import itertools

import pytest
import torch
from playwright.sync_api import expect

from mha_lab.instruments.kernel_desk import BLOCKS, COLS, ROWS, VARIANTS, D, H, KernelDesk, T

from .kit import assert_agreement, needs_node

RUNS = [(kernel, variant, block) for kernel, two in VARIANTS.items() for variant in two for block in BLOCKS]


@needs_node
def test_the_browser_makes_the_same_scenes(tmp_path):
    desk = KernelDesk()
    states = [desk.state(kernel=kernel, variant=variant, block=block, program=program, ridge=ridge)
              for (kernel, variant, block), program, ridge in itertools.product(RUNS, (0, 1), (1, 100))]
    assert_agreement(desk, states, tmp_path)


@pytest.mark.parametrize("kernel, variant, block", RUNS)
def test_every_output_cell_is_stored_by_one_program(kernel, variant, block):
    run = KernelDesk().run(kernel, variant, block)
    stored = [index for _, _, stores in run["programs"] for index in stores]
    assert sorted(stored) == list(range(len(run["out"][1]) * len(run["out"][2])))
    loaded = {index for _, loads, _ in run["programs"] for index in loads}
    assert loaded == set(range(len(run["in"][1]) * len(run["in"][2])))


def test_a_split_moves_each_number_to_where_torch_puts_it():
    packed = torch.arange(T * H * D)
    heads = packed.view(T, H, D).transpose(0, 1).reshape(-1)
    for variant, block in itertools.product(VARIANTS["split"], BLOCKS):
        for _, loads, stores in KernelDesk().run("split", variant, block)["programs"]:
            assert heads[stores].tolist() == loads


def test_traffic_is_counted_from_the_lists():
    desk = KernelDesk()
    assert desk.run("softmax", "one pass", 1)["moved"] == 2 * ROWS * COLS == desk.run("softmax", "one pass", 1)["least"]
    assert desk.run("softmax", "three passes", 2)["moved"] == 4 * ROWS * COLS
    grouped, each = (desk.run("decode", variant, 1)["moved"] for variant in VARIANTS["decode"])
    assert (grouped, each) == (112, 208)
    said = desk.alt(kernel="decode", variant="per query head")
    assert "4 programs move 208 numbers, the least is 112: 1.86 times" in said


def test_states_are_checked():
    with pytest.raises(ValueError, match="from 0 to 4"):
        KernelDesk().state(program=5)
    with pytest.raises(ValueError, match="kernels and variants"):
        KernelDesk().state(kernel="softmax", variant="per group")


@pytest.mark.browser
def test_a_cell_leads_to_its_program(open_instrument):
    page = open_instrument(KernelDesk())
    page.get_by_role("radio", name="grouped decoding").check()
    expect(page.locator("[data-part=say]")).to_contain_text("2 programs move 112 numbers")
    page.locator("[data-control=variant]").select_option("per query head")
    page.locator("[data-part=out]").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator("[data-part=say]")).to_contain_text("Program (3, 0) loads 48")
    expect(page.locator("[data-part=programs] tr[aria-current]")).to_contain_text("(3, 0)")
