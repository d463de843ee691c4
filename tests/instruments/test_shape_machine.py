"""The model against the course's figures and against torch itself."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mha_lab.instruments.shape_machine import STAGE_IDS, ShapeMachine, divisors, shape_tape
from mha_lab.instruments.shape_text import SPEC

LEDGER_EXAMPLE = dict(batch=2, q_len=3, k_len=4, d_model=6, num_heads=2, d_v=2)


def shapes(machine, *names):
    return [machine.fact(name).shape for name in names]


def test_the_512_wide_example():
    machine = ShapeMachine(batch=2, q_len=5, k_len=7, d_model=512, num_heads=8)
    assert shapes(machine, "q_heads", "k_heads", "scores", "head_output", "merged") == [
        (2, 8, 5, 64), (2, 8, 7, 64), (2, 8, 5, 7), (2, 8, 5, 64), (2, 5, 512)]
    assert machine.totals()["weights"] == 1_048_576


def test_values_of_another_width():
    machine = ShapeMachine(batch=2, q_len=5, k_len=7, d_model=512, num_heads=8, d_v=48)
    assert [machine.fact(name).weights for name in ("q_packed", "k_packed", "v_packed", "output")] == [
        262_144, 262_144, 196_608, 196_608]
    assert machine.totals()["weights"] == 917_504


def test_strides_of_a_split_and_its_transpose():
    """[2,3,4,5] row-major, then heads first."""
    machine = ShapeMachine(batch=2, q_len=3, k_len=3, d_model=20, num_heads=4)
    assert machine.fact("q_split").shape == (2, 3, 4, 5)
    assert machine.fact("q_split").strides == (60, 20, 5, 1)
    assert machine.fact("q_heads").strides == (60, 5, 20, 1)


def test_the_small_ledger():
    machine = ShapeMachine(**LEDGER_EXAMPLE)
    assert shapes(machine, "q_packed", "k_packed", "v_packed") == [(2, 3, 6), (2, 4, 6), (2, 4, 4)]
    assert shapes(machine, "q_heads", "k_heads", "v_heads") == [(2, 2, 3, 3), (2, 2, 4, 3), (2, 2, 4, 2)]
    assert shapes(machine, "head_output", "merged", "output") == [(2, 2, 3, 2), (2, 3, 4), (2, 3, 6)]
    assert [machine.fact(name).elements for name in ("q_packed", "k_packed", "v_packed", "merged", "output")] == [
        36, 48, 32, 24, 36]
    assert machine.totals() == {"macs": 1_080, "weights": 120, "biases": 22}
    macs = [fact.macs for stage in machine.stages() for fact in stage.tensors if fact.macs]
    assert macs == [216, 288, 192, 144, 96, 144]


def test_weights_and_biases_are_those_of_linear_layers():
    machine = ShapeMachine(**LEDGER_EXAMPLE)
    layers = [nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(4, 6)]
    assert machine.totals()["weights"] == sum(layer.weight.numel() for layer in layers)
    assert machine.totals()["biases"] == sum(layer.bias.numel() for layer in layers)


@pytest.mark.parametrize("sizes", [LEDGER_EXAMPLE, dict(), dict(cross=False, q_len=6), dict(batch=1, d_v=9)])
def test_macs_are_half_of_torchs_flop_count(sizes):
    machine = ShapeMachine(**sizes)
    with FlopCounterMode(display=False) as counter:
        machine._forward()
    assert 2 * machine.totals()["macs"] == counter.get_total_flops()


def test_what_shares_storage():
    machine = ShapeMachine()
    shared = {fact.name: fact.shares_storage for stage in machine.stages() for fact in stage.tensors + stage.wrong}
    assert [name for name, value in shared.items() if value] == [
        "q_split", "k_split", "v_split", "q_heads", "k_heads", "v_heads", "q_wrong", "k_wrong", "v_wrong",
        "token_major", "merged_wrong"]
    assert [name for name, value in shared.items() if value is None] == ["query_in", "key_in", "value_in"]


@pytest.mark.parametrize("sizes, copies", [(dict(), True), (dict(q_len=1), False), (dict(num_heads=1), False),
                                           (dict(d_v=1), False), (dict(batch=1), True), (dict(k_len=1), True)])
def test_the_merge_copies_unless_the_axes_fold(sizes, copies):
    assert ShapeMachine(**sizes).fact("merged").shares_storage is not copies


def test_the_shapes_are_what_the_axes_say():
    machine = ShapeMachine(batch=3, q_len=5, k_len=7, d_model=12, num_heads=2, d_v=11)
    for stage in machine.stages():
        for fact in stage.tensors + stage.wrong:
            assert fact.shape == machine._sizes_of(fact.axes), fact.name
            assert fact.bytes == 4 * fact.elements


def test_probabilities_sum_to_one_along_the_keys():
    tensors = ShapeMachine()._forward()
    torch.testing.assert_close(tensors["probabilities"].sum(-1), torch.ones(2, 3, 5))


def test_origins_of_the_right_and_the_wrong_split():
    """head h, row t, channel d: the right split reads packed[t, h·D + d], the wrong one storage h·T·D + t·D + d."""
    machine = ShapeMachine()
    right, wrong = machine.origins("q_heads"), machine.origins("q_wrong")
    for h, t, d in [(0, 0, 0), (1, 2, 3), (2, 4, 1)]:
        assert right[0, h, t, d] == t * 12 + h * 4 + d
        assert wrong[0, h, t, d] == h * 5 * 4 + t * 4 + d
    assert machine.origins("merged")[0, 3, 7] == machine.origins("head_output")[0, 1, 3, 3]


def test_self_attention_uses_one_length_and_one_tensor():
    machine = ShapeMachine(q_len=5, k_len=7, cross=False)
    assert machine.k_len == 5 and machine.fact("scores").shape == (2, 3, 5, 5)
    tensors = machine._forward()
    assert tensors["query_in"] is tensors["key_in"]
    assert ShapeMachine()._forward()["key_in"] is not ShapeMachine()._forward()["query_in"]


@pytest.mark.parametrize("sizes, word", [
    (dict(d_model=13, num_heads=3), "divisible"), (dict(num_heads=0), "positive"), (dict(batch=-1), "positive"),
    (dict(d_v=0), "positive"), (dict(q_len=2.0), "positive"), (dict(k_len=True), "positive"),
    (dict(d_model=0), "positive"), (dict(q_len=10**6, k_len=10**6), "too large"),
    (dict(d_model=8192, num_heads=1), "too large")])
def test_illegal_sizes_are_refused(sizes, word):
    with pytest.raises(ValueError, match=word):
        ShapeMachine(**sizes)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(LookupError, match="heads, scores"):
        ShapeMachine().stage("split_heads")
    with pytest.raises(LookupError, match="q_packed"):
        ShapeMachine().fact("queries")
    for wrong in (dict(tensor="x"), dict(head=3), dict(head=-1)):
        with pytest.raises(ValueError):
            ShapeMachine().figure(**wrong)


def test_plain_data():
    data = ShapeMachine().to_dict()
    assert [stage["id"] for stage in data["stages"]] == list(STAGE_IDS)
    assert data["sizes"] == {"B": 2, "T": 5, "S": 7, "M": 12, "H": 3, "D": 4, "D_v": 4}
    assert shape_tape is ShapeMachine
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_every_slider_value_makes_a_machine():
    names = {"batch", "q_len", "k_len", "d_model", "d_v"}
    assert set(SPEC["choices"]) == names
    for name in names:
        largest = SPEC["choices"][name][-1]
        assert ShapeMachine(**{name: largest}).stage("output").tensors


def cells(column, panel=-1):
    return [[f"{cell[1]} {cell[2]}".strip() for cell in row] for row in column["panels"][panel]["cells"]]


def test_the_split_picture_shows_which_cells_a_head_holds():
    right, wrong = ShapeMachine().figure("heads", "q", 1)["columns"]
    assert (right["verdict"], wrong["verdict"]) == ("right", "wrong")
    assert cells(right)[2] == ["t2 c4", "t2 c5", "t2 c6", "t2 c7"]
    assert cells(wrong)[0] == ["t1 c8", "t1 c9", "t1 c10", "t1 c11"]
    assert wrong["panels"][1]["side"] == ["holds t1", "holds t2", "holds t2", "holds t2", "holds t3"]
    assert cells(right, 0)[0] == ["h0"] * 4 + ["h1"] * 4 + ["h2"] * 4
    assert cells(wrong, 0)[1] == ["h0"] * 8 + ["h1"] * 4
    assert "48 of 60 cells" in wrong["caption"]


@pytest.mark.parametrize("sizes", [dict(q_len=1), dict(num_heads=1)])
def test_the_picture_says_when_the_wrong_way_cannot_be_seen(sizes):
    for stage in ("heads", "merged"):
        wrong = ShapeMachine(**sizes).figure(stage)["columns"][1]
        assert wrong["caption"] == SPEC["sentences"]["agree"]


def test_the_merge_picture_shows_rows_of_several_tokens():
    right, wrong = ShapeMachine().figure("merged")["columns"]
    assert {label.split()[0] for label in cells(right)[1]} == {"t1"}
    assert cells(right)[1][5] == "t1 c5"
    assert wrong["panels"][0]["side"][0] == "holds t0, t1, t2"


def test_a_wide_picture_keeps_both_ends_and_the_chosen_head():
    machine = ShapeMachine(batch=2, q_len=5, k_len=7, d_model=512, num_heads=8)
    panel = machine.figure("heads", "q", 3)["columns"][0]["panels"][0]
    assert panel["cols"][:2] == ["c0", "c1"] and panel["cols"][-1] == "c511" and None in panel["cols"]
    assert {"c192", "c255"} <= set(panel["cols"])
