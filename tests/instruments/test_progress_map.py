"""The progress map: one cell an exercise, mistakes met and beaten."""
import random

import pytest
from playwright.sync_api import expect

from mha_lab.instruments.progress_map import ProgressMap

from .kit import assert_agreement, needs_node


def entry(name, status="not_started", best=0, met=(), beaten=()):
    word = {"passed": "passed", "failed": "not yet"}.get(status, status)
    return {"name": name, "points": 3, "best": best, "status": status, "mark": status[0], "word": word,
            "met": list(met), "beaten": list(beaten), "known": 7}


def some_map():
    first = [entry("identity_heads", "passed", 3, ["tokens-as-heads"], ["tokens-as-heads"])]
    second = [entry("split_heads", "failed", 1.5, ["relabelled-bytes"]), entry("merge_heads"),
              entry("timed", "not_measured")]
    return ProgressMap([{"number": "00", "title": "Start", "exercises": first},
                        {"number": "01", "title": "The <shape> machine", "exercises": second}])


@needs_node
def test_the_browser_draws_the_same_map(tmp_path):
    rng = random.Random(1)
    drawn = some_map()
    drawn._sessions.append({"number": "02", "title": "More", "exercises": [
        entry(f"e{i}", rng.choice(["passed", "failed", "error", "not_started"]), rng.choice([0, 1, 2.5, 3]),
              ["a", "b"][:rng.randint(0, 2)], ["a"]) for i in range(9)]})
    assert_agreement(drawn, [{"session": i} for i in range(3)], tmp_path)


def test_it_counts_and_begins_where_something_is_left():
    drawn = some_map()
    assert drawn.start() == {"session": 1}
    assert drawn.alt() == ("Progress. 4.5 of 12 points; 1 of 4 exercises passed; 2 named mistakes met, 1 beaten.")
    parts = {part["id"]: part for part in drawn.scene(drawn.state())["parts"]}
    assert parts["map"]["fills"] == ["good", "void", "void", "bad", "none", "w3"]
    assert parts["session"]["rows"][0] == ["split_heads", "not yet", "1.5 of 3", "relabelled-bytes"]
    with pytest.raises(ValueError, match="from 0 to 1"):
        drawn.state(session=2)


@pytest.mark.browser
def test_a_key_lists_another_session(open_instrument):
    page = open_instrument(some_map())
    grid = page.locator("[data-part=map]")
    grid.focus()
    expect(page.locator("output.readout")).to_have_text(
        "identity_heads: passed, 3 of 3 points; met 1 of 7 named mistakes.")
    page.keyboard.press("Enter")
    expect(page.locator("[data-part=session] caption")).to_have_text("00 Start")
