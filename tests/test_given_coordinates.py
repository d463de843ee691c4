"""Any tensor as coordinates: what a learner sees is what the strides say."""
import pytest
import torch

from mha_lab.given import coordinates


def table(text):
    return [line.split() for line in str(text).splitlines() if line.startswith("  ")]


def test_every_cell_shows_the_element_that_it_reads():
    x = torch.arange(120.0).view(2, 3, 4, 5).transpose(1, 2)[1:, ::2]
    text = coordinates(x)
    assert text.startswith("shape (1, 2, 3, 5), strides (60, 10, 20, 1), offset 60, not contiguous\n[0, 0]\n")
    assert [[float(c) for c in row] for row in table(text)] == x.reshape(-1, 5).tolist()
    assert repr(text) == str(text)


def test_names_spell_the_address():
    k_rows = torch.zeros(2, 3, 12, dtype=torch.bool)[..., 4:8]
    assert table(coordinates(k_rows[1:2, 2], {"b": 2, "s": 3, "c": 12})) == [
        ["b1", "s2", "c4", "b1", "s2", "c5", "b1", "s2", "c6", "b1", "s2", "c7"]]
    with pytest.raises(ValueError, match="size"):
        coordinates(k_rows, {"b": 2, "c": 12})


def test_values_survive_a_copy_and_places_do_not():
    rows = torch.arange(24.0).view(2, 3, 4)
    copy = rows.transpose(1, 2).contiguous()
    assert table(coordinates(copy[0]))[0] == ["0", "1", "2"]
    assert table(coordinates(copy[0], values=True))[0] == ["0", "4", "8"]
    assert table(coordinates(copy[0], {"r": 6, "c": 4}, values=True))[0] == ["r0", "c0", "r1", "c0", "r2", "c0"]
    with pytest.raises(ValueError, match="size"):
        coordinates(rows + 0.5, {"r": 6, "c": 4}, values=True)


@pytest.mark.parametrize("tensor, cells", [
    (torch.tensor(3.0), [["0"]]), (torch.zeros(0, 3), []), (torch.zeros(2).expand(2, 2), [["0", "1"], ["0", "1"]]),
    (torch.zeros(3, dtype=torch.bfloat16)[1:], [["1", "2"]])])
def test_any_tensor_will_do(tensor, cells):
    assert table(coordinates(tensor)) == cells


def test_what_is_cut_is_said():
    text = coordinates(torch.zeros(10, 9, 12), most=4).splitlines()
    assert text[-1] == "... 6 more tables" and "  ... 5 more rows" in text
    assert text[2].endswith("...") and len(text[2].split()) == 5
