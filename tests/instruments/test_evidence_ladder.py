"""The evidence ladder agrees with session 08, and the browser with it."""
import itertools

import pytest
from playwright.sync_api import expect

from mha_lab.instruments.evidence_ladder import RUNGS, EvidenceLadder
from mha_lab.records_evidence import CLAIMS, KINDS
from solutions.evidence import supports

from .kit import assert_agreement, needs_node

PAIRS = [{"kind": kind, "claim": claim} for kind, claim in itertools.product(KINDS, CLAIMS)]


@needs_node
def test_the_browser_climbs_the_same_ladder(tmp_path):
    assert_agreement(EvidenceLadder(), PAIRS, tmp_path)


def test_a_complete_record_carries_what_the_ladder_says():
    for pair in PAIRS:
        whole = {"kind": pair["kind"], "checkpoint": "c", "layer": 0, "head": 0, "inputs": "i", "dropout": "pre",
                 "effect": "e", "retrained": False, "shapes_changed": True}
        assert supports(whole, pair["claim"])[0] == (RUNGS[pair["kind"]][1] == pair["claim"])


def test_a_claim_that_nothing_carries_says_so():
    assert "No single experiment" in EvidenceLadder().alt(claim="stable_index")
    with pytest.raises(ValueError, match="no kind"):
        EvidenceLadder().state(kind="hearsay")


@pytest.mark.browser
def test_a_cell_is_chosen_with_the_keyboard(open_instrument):
    page = open_instrument(EvidenceLadder())
    page.locator("[data-part=ladder]").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("[data-part=say]")).to_contain_text("It does not carry decodable; it carries pattern")
    page.get_by_label("experiment", exact=True).select_option("profile")
    expect(page.locator("[data-part=rungs] tr[aria-current]")).to_contain_text("profile")
