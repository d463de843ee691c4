"""The kit: scenes of plain data, painted alike in Python and in the browser."""

import random
from xml.etree import ElementTree

import pytest

from mha_lab.instruments.kit import FILLS, Instrument, bars, fixed, grid, scene, share, signed, table, words

from .kit import assert_painted, needs_node, node


def some_grids() -> list[dict]:
    rng, made = random.Random(1), []
    for rows, cols in ((1, 1), (3, 5), (20, 32), (21, 31), (64, 64), (0, 3)):
        count = rows * cols
        labels = [rng.choice(["", "0.5", "t1 <&'\">"]) for _ in range(count)] if rng.random() < 0.7 else []
        made.append(grid(f"g{rows}", "title <b>", [f"t{i}" for i in range(rows)], [f"s{i}" for i in range(cols)],
                         [rng.choice(list(FILLS)) for _ in range(count)], labels,
                         verdict=rng.choice(["", "right", "wrong"]), row_block=rng.choice([0, 2]),
                         col_block=rng.choice([0, 4]), notes=["a long note " * rng.randint(1, 9)]))
    return made


@needs_node
def test_python_and_browser_paint_the_same(tmp_path):
    made = bars("b", "rank", [("before", 4.0, "4 of 64", "w5"), ("after", 64.0, "64 of 64", "t1")])
    assert_painted([*some_grids(), made, bars("empty", "nothing", [])], tmp_path)


@needs_node
def test_numbers_become_the_same_text_and_fill(tmp_path):
    rng = random.Random(2)
    values = [0.0, 0.125, 0.375, 0.005, 1.0, 0.05, 0.95, -0.004, -1.5, 345.678] + [rng.gauss(0, 3) for _ in range(200)]
    calls = [{"call": "fixed", "with": [value, digits]} for value in values for digits in (0, 2, 3)]
    calls += [{"call": "share", "with": [value]} for value in values]
    calls += [{"call": "signed", "with": [value, 3.0]} for value in values]
    expected = ([fixed(value, digits) for value in values for digits in (0, 2, 3)]
                + [share(value) for value in values] + [signed(value, 3.0) for value in values])
    assert node("paint", calls, tmp_path) == expected


def test_numbers_round_half_away_from_zero_and_never_to_minus_zero():
    assert [fixed(0.125), fixed(-0.125), fixed(-0.004), fixed(float("nan")), fixed(2.5, 0)] == [
        "0.13", "−0.13", "0.00", "–", "3"]
    assert [share(0.0), share(0.05), share(1.0), share(float("nan"))] == ["w0", "w1", "w10", "off"]
    assert [signed(0.0, 1), signed(-0.01, 1), signed(1.0, 1), signed(-1, 0)] == ["none", "n1", "p4", "none"]


def test_every_fill_carries_dark_text():
    """WCAG contrast of #111 on each cell colour."""
    def light(colour):
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    ratios = {key: (light(colour) + 0.05) / (light("#111111") + 0.05)
              for key, (colour, _) in FILLS.items() if colour != "none"}
    assert min(ratios.values()) >= 4.5, ratios


class Toy(Instrument):
    name, title = "toy", "A toy"

    def start(self):
        return {"n": 2}

    def settle(self, state):
        if state["n"] < 1:
            raise ValueError("n is at least 1")
        return state

    def scene(self, state):
        n = state["n"]
        return scene(f"{n} cells", [grid("g", "cells", ["r"], [f"c{i}" for i in range(n)], ["t1"] * n, ["x"] * n),
                                    table("t", "facts", ["name", "value"], [["n", str(n)], ["wrong", "<"]], bad=[1]),
                                    words("w", ["why not"], bad=True), bars("b", "bars", [("n", n, str(n), "w3")])])


def test_a_still_picture_is_well_formed_and_says_what_it_shows():
    root = ElementTree.fromstring(Toy().svg(n=3))
    title = root.find("{http://www.w3.org/2000/svg}title").text
    assert title == "A toy. 3 cells" == Toy().alt(n=3)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"c0", "c2", "facts", "<", "why not", "bars"} <= set(texts)


def test_states_are_checked():
    with pytest.raises(ValueError, match="no state 'm'"):
        Toy().state(m=1)
    with pytest.raises(ValueError, match="at least 1"):
        Toy().svg(n=0)
    with pytest.raises(ValueError, match="2 fills"):
        grid("g", "", ["r"], ["c"], ["t0", "t1"])
