"""The lifecycle stepper: every call in every state, and the browser's machine beside it."""
import random

import pytest
from playwright.sync_api import expect

from mha_lab.instruments.lifecycle import CALLS, FIELDS, MOVES, STATES, LifecycleStepper

from .kit import assert_agreement, needs_node

REACH = {"EMPTY": [], "SOURCE_BOUND": ["bind"], "PROJECTED_EPHEMERAL": ["bind", "project_training"],
         "BACKWARD_PENDING": ["bind", "project_training", "consume_training"], "PROJECTED": ["bind", "project"],
         "ATTACHED": ["bind", "project", "attach"], "BEAM_SHARED": ["bind", "project", "attach", "share_beams"],
         "BEAM_EXPANDED": ["bind", "project", "attach", "expand_beams"],
         "INVALIDATED": ["bind", "project", "drift"], "RELEASED": ["bind", "project", "release"]}


@needs_node
def test_the_browser_steps_the_same_machine(tmp_path):
    rng = random.Random(5)
    states = [{"history": rng.choices(list(MOVES), k=rng.randint(0, 14)), "field": rng.choice(FIELDS)}
              for _ in range(150)]
    states += [{"history": [*path, move], "field": "layer"} for path in REACH.values() for move in MOVES]
    assert_agreement(LifecycleStepper(), states, tmp_path)


def test_every_state_can_be_reached_and_refuses_what_is_not_its_own():
    machine = LifecycleStepper()
    assert list(REACH) == list(STATES)
    for state, path in REACH.items():
        assert machine.after(path)["state"] == state
        for move in ("bind", "project", "attach", "share_beams", "reorder", "read", "drift", "release"):
            after = machine.after([*path, move])
            legal = state in CALLS[MOVES[move][1]][0]
            assert after["log"][-1][2].startswith("refused") != legal
            assert legal or after["state"] == state


def test_what_is_refused_says_why_and_changes_nothing():
    machine = LifecycleStepper()
    attached = ["bind", "project", "attach"]
    stale = machine.after(["bind", "project_training", "optimizer_step", "consume_training"])
    assert stale["state"] == "PROJECTED_EPHEMERAL" and "version is 7" in stale["log"][-1][2]
    other = machine.after(["bind", "project", "attach_other"], field="layer")
    assert other["state"] == "PROJECTED" and other["log"][-1][2].startswith("refused: layer")
    assert machine.after([*attached, "rollback_target"])["log"][-1][2].startswith("refused")
    assert machine.after([*attached, "read", "rollback_target"])["target"] == 0
    read = machine.after([*attached, "release_read"])
    assert read["state"] == "ATTACHED"


def test_a_reorder_moves_rows_and_what_they_read():
    moved = LifecycleStepper().after(["bind", "project", "attach", "share_beams", "reorder", "reorder"])
    assert moved["rows"] == [1, 2, 0, 3, 4, 5]
    with pytest.raises(ValueError, match="no move 'jump'"):
        LifecycleStepper().state(history=["jump"])


@pytest.mark.browser
def test_buttons_and_keys_step_the_machine(open_instrument):
    page = open_instrument(LifecycleStepper())
    page.get_by_role("button", name="share_beams").click()
    expect(page.locator("[data-part=say]")).to_contain_text("BEAM_SHARED")
    page.get_by_role("button", name="reorder([2,0,1,3,5,4])").focus()
    page.keyboard.press("Enter")
    expect(page.locator("[data-part=say]")).to_contain_text("source pair is untouched")
    page.get_by_role("button", name="rollback_target(99)").click()
    expect(page.locator("[data-part=log] tr.miss")).to_have_count(1)
    page.get_by_label("identity field").select_option("checkpoint")
    page.get_by_role("button", name="drift", exact=True).click()
    expect(page.locator("[data-part=say]")).to_contain_text("INVALIDATED")
    page.get_by_role("button", name="start again").click()
    expect(page.get_by_role("button", name="step back")).to_be_disabled()
    assert page.evaluate("window.saved.at(-1).state.history.length") == 0
