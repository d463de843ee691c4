"""The cache desk: exact bytes for every scheme, published sizes, and the browser beside it."""
import itertools

import pytest
import torch
from playwright.sync_api import expect

from mha_lab.instruments.cache_desk import CHOICES, LENGTHS, SCHEMES, VIEWS, CacheDesk, sizes_of
from mha_lab.models import PUBLISHED

from .kit import assert_agreement, needs_node


def parts(desk, **changes):
    return {part["id"]: part for part in desk.scene(desk.state(**changes))["parts"]}


@needs_node
def test_the_browser_makes_the_same_scenes(tmp_path):
    desk = CacheDesk()
    states = [desk.state(model=model) for model in PUBLISHED]
    sizes = ((512, 256, 1), (2**20, 1024, 16), (4096, 509, 7))
    states += [desk.state(view=view, length=length, width=width, window=window, local=window % 9)
               for view, (length, width, window) in itertools.product(VIEWS, sizes)]
    assert_agreement(desk, states, tmp_path)


def test_bytes_are_those_of_real_tensors():
    desk = CacheDesk()
    s = desk.state(layers=2, heads=6, kv_heads=3, d_qk=5, d_v=7, length=11, batch=2, bytes=2, latent=9, rope_dim=4)
    with torch.device("meta"):
        def both(heads):
            return sum(2 * torch.empty(2, heads, 11, d, dtype=torch.bfloat16).nbytes for d in (5, 7))
        latent = 2 * torch.empty(2, 11, 9 + 4, dtype=torch.bfloat16).nbytes
    assert [desk.bytes_of(scheme, s) for scheme in SCHEMES] == [both(6), both(3), both(1), latent]


def test_the_known_figures_come_out():
    desk = CacheDesk()
    big = dict(layers=80, heads=64, d_qk=128, d_v=128, length=2048)
    assert desk.bytes_of("GQA", desk.state(**big, kv_heads=64)) == 5 * 2**30
    assert desk.bytes_of("GQA", desk.state(**big, kv_heads=8)) == 671_088_640
    deepseek = desk.state(model="DeepSeek-V2", length=1024, bytes=1)
    assert desk.bytes_of("MLA", deepseek) == 60 * 1024 * 576
    assert parts(desk, view="window-map")["macs"]["rows"][1][1:] == ["738,197,504", "457,359,360", "2,147,483,648"]
    shared = parts(desk, view="shared-width", width=256)
    assert [part["items"][1][2] for part in (shared["weights"], shared["macs"])] == ["264,192", "67,371,008"]
    assert parts(desk, view="forbidden-map", length=4096)["maps"]["items"][0][2] == "32.000 GiB"
    crossing = {label: value for label, value, *_ in parts(desk, view="crossover")["macs"]["items"]}
    assert crossing["S 1024 projections"] == crossing["S 1024 attention"]


def test_a_window_bounds_what_local_layers_keep():
    desk = CacheDesk()
    mistral = desk.state(model="Mistral-7B v0.1", length=32768)
    assert desk.bytes_of("GQA", mistral) == desk.bytes_of("GQA", mistral, 4096) * 1
    gemma = desk.state(model="Gemma-2-2B", length=8192)
    assert desk.bytes_of("GQA", gemma) == 13 * (8192 + 4096) * 4 * 512 * 2


def test_states_are_checked_and_a_size_of_your_own_leaves_the_model():
    desk = CacheDesk()
    assert desk.state(layers=3)["model"] == "" and desk.state(model="GPT-2 small")["heads"] == 12
    with pytest.raises(ValueError, match="not divisible by 5"):
        desk.state(kv_heads=5)
    with pytest.raises(ValueError, match="there is no model"):
        desk.state(model="GPT-9")
    with pytest.raises(ValueError, match="whole number"):
        desk.state(batch=0)
    assert all(sizes_of(name)["heads"] in CHOICES["heads"] for name in PUBLISHED)


def test_the_figure_has_a_line_for_every_scheme():
    desk = CacheDesk()
    figure = desk.figure(model="Llama-3-70B")
    assert [line.name.split()[0] for line in figure.data] == list(SCHEMES)
    assert list(figure.data[1].x) == LENGTHS and len({line.line.dash for line in figure.data}) == 4


@pytest.mark.browser
def test_a_model_and_a_slider_change_the_bytes(open_instrument):
    page = open_instrument(CacheDesk())
    page.locator("[data-control=model]").select_option("GPT-2 small")
    expect(page.locator("[data-part=say]")).to_contain_text("12 layers × 1 × 8,192 tokens × 12 K/V heads")
    page.locator("[data-control=kv_heads]").focus()
    page.keyboard.press("Home")
    expect(page.locator("[data-part=say]")).to_contain_text("tokens × 1 K/V heads")
    expect(page.locator("[data-control=model]")).to_have_value("")
    page.get_by_role("radio", name="head map").check()
    expect(page.locator("[data-part=wrong]")).to_be_visible()
    page.locator("[data-part=right]").hover(position={"x": 60, "y": 70})
    expect(page.locator("output.readout")).to_contain_text("reads K/V head 0")
