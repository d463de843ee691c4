"""The widget on the Python side: what it sends, what it refuses, what a message from the browser does."""

import pytest
import traitlets

from mha_lab.instruments.shape_machine import ShapeMachine
from mha_lab.instruments.view import ShapeMachineView


@pytest.fixture
def view():
    live = ShapeMachine().view(stage="heads")
    yield live
    live.close()


def test_it_starts_as_the_machine(view):
    assert (view.batch, view.q_len, view.k_len, view.d_model, view.num_heads, view.d_v) == (2, 5, 7, 12, 3, None)
    assert view.machine.to_dict() == ShapeMachine().to_dict()
    assert ShapeMachineView(ShapeMachine(d_v=9)).d_v == 9


def test_a_message_from_the_browser_moves_the_machine(view):
    """M = 16 would not fit the old H = 3: both come in one message."""
    view.set_state({"d_model": 16, "num_heads": 2, "head": 0})
    assert view.machine.fact("q_heads").shape == (2, 2, 5, 8)


@pytest.mark.parametrize("name, value", [("num_heads", 5), ("q_len", 0), ("d_model", 13), ("head", 3), ("d_v", -1),
                                         ("stage", "nowhere"), ("tensor", "x"), ("q_len", 10**7)])
def test_illegal_values_are_refused_and_change_nothing(view, name, value):
    before = getattr(view, name)
    with pytest.raises(traitlets.TraitError):
        setattr(view, name, value)
    assert getattr(view, name) == before


def test_nothing_comes_from_elsewhere(view):
    assert "http" not in view._esm.replace("http://www.w3.org", "") and "@import" not in view._css
    assert "url(" not in view._css
