"""The stride explorer: its numbers are torch's, and the browser makes the same scenes."""

import random

import pytest
import torch

from mha_lab.instruments import StrideExplorer
from mha_lab.instruments.chain import MOST_CELLS, first, run
from mha_lab.instruments.stride_text import EXAMPLES, SAYS

from .kit import assert_agreement, needs_node

OPS = ["transpose(0, 1)", "transpose(-1, 0)", "transpose(1, 4)", "contiguous()", "permute(2, 0, 1)", "permute(1, 0)",
       "permute(0, 0, 1)", "unsqueeze(1)", "unsqueeze(-1)", "unsqueeze(9)", "flatten()", "flatten(1)", "flatten(1, 2)",
       "flatten(2, 1)", "view(T, -1)", "view(6, 4)", "view(B, T, H)", "view(0, 3)", "reshape(-1)", "reshape(H, -1)",
       "reshape(2, 3, 2, 2)", "expand(2, -1, -1)", "expand(3, 2, 4, 3)", "expand(1, 2, 4, 3)", "expand(-1, 5)",
       "[1:]", "[..., ::2]",
       "[:, 1]", "[-1]", "[..., 9]", "[2:1]", "[:, :, :, :]", "[..., ...]", "[1:, ..., :1]", "[::0]", "[None]",
       "as_strided((3, 4), (1, 3), 2)", "as_strided((3, 2), (0, 2))", "as_strided((30,), (1,))",
       "as_strided((2,), (1, 1))", "as_strided(2, 3)", "view(Z)", "permute()", "transpose(1)", "contiguous(1)",
       "view(1, 24, 1)", "squeeze(0)", "[0]", "expand(9, 99, 24)"]


def some_states(count: int) -> list[dict]:
    rng, explorer = random.Random(7), StrideExplorer("B, T, H", {"B": 2, "T": 4, "H": 3})
    states = []
    while len(states) < count:
        ops = [rng.choice(OPS) for _ in range(rng.randint(0, 4))]
        chain = ".".join(ops).replace(".[", "[")
        versus = rng.choice(["", "view(B, H, T)", "transpose(1, 2).contiguous()", "transpose(1, 2).view(24)"])
        states.append(explorer.state(chain=chain, versus=versus, step=rng.choice([-1, -1, 0, 1, 2]),
                                     colour=rng.choice([-1, 0, 1, 2]), label=rng.choice(["row", "value"]),
                                     base=rng.choice(["B, T, H", "B, T, H", "T*H*B", "1, B, 1, T, H"])))
    return states


def some_probes(explorer: StrideExplorer, states: list[dict]) -> list[tuple]:
    rng, probes = random.Random(8), []
    for state in states:
        for part in explorer.scene(state)["parts"]:
            if part["kind"] == "grid":
                index = rng.randrange(len(part["fills"]))
                probes.append((state, part["id"], index, explorer.probe(state, part["id"], index)))
    return probes


@needs_node
def test_the_browser_agrees_with_torch(tmp_path):
    explorer, states = StrideExplorer("B, T, H", {"B": 2, "T": 4, "H": 3}), some_states(150)
    refused = [explorer.scene(state)["parts"][2] for state in states]
    told = {part["lines"][0].split(" ")[0] for part in refused if part["kind"] == "words"}
    assert len(told) >= 12, told  # most kinds of refusal were met
    assert any(layout.copied for state in states for layout in explorer._run(state, state["chain"])[0])
    assert_agreement(explorer, states, tmp_path, some_probes(explorer, states[:60]))


@needs_node
@pytest.mark.parametrize("tensor", [torch.empty(2, 7, 36)[..., 12:24], torch.empty(6, 4).t(),
                                    torch.empty(3).expand(4, 3), torch.empty(()), torch.empty(2, 300, 768)[1],
                                    torch.empty(5000)[::7],
                                    torch.empty(2, 3, dtype=torch.float64)])
def test_own_tensors(tensor, tmp_path):
    explorer = StrideExplorer(tensor, chain="unsqueeze(0).contiguous()", names="" if tensor.dim() != 2 else "ts")
    states = [explorer.state(), explorer.state(step=0), explorer.state(chain="as_strided((2,), (1,))")]
    assert_agreement(explorer, states, tmp_path, some_probes(explorer, states))
    shown = explorer.layouts()[0]
    assert shown.strides == tensor.stride() and shown.offset == tensor.storage_offset()
    assert len(explorer.scene(explorer.state())["parts"]) == 4


@needs_node
def test_examples_are_drawn_alike(tmp_path):
    explorer = StrideExplorer()
    examples = [{key: example[key] for key in ("base", "sizes", "chain", "versus")} for example in EXAMPLES]
    assert_agreement(explorer, [explorer.state(**example, **more) for example in examples
                                for more in ({}, {"step": 0, "label": "value"})], tmp_path)


def test_examples_show_what_they_promise():
    seen = {}
    for example in EXAMPLES:
        explorer = StrideExplorer(example["base"], example["sizes"], example["chain"], example["versus"])
        alt = explorer.alt()
        seen[example["id"]] = alt
        assert (example["id"] == "refused") == bool(explorer.refusal())
    assert "96 of 120 cells hold another" in seen["split"]
    assert "copy of 480 bytes" in seen["merge"] and "view refuses" in seen["refused"]
    assert "hold another" in seen["key"] and "hold another" in seen["repeat"]


def test_layouts_are_read_from_torch():
    layouts = StrideExplorer(chain="view(B, T, H, D).transpose(1, 2).reshape(B, H, T*D).view(2, -1)").layouts()
    x = torch.empty(2, 5, 12)
    made = [x, x.view(2, 5, 3, 4), x.view(2, 5, 3, 4).transpose(1, 2)]
    made += [made[2].reshape(2, 3, 20), made[2].reshape(2, 3, 20).view(2, -1)]
    assert [(one.shape, one.strides, one.offset, one.contiguous) for one in layouts] == [
        (tuple(t.shape), t.stride(), t.storage_offset(), t.is_contiguous()) for t in made]
    assert [one.copied for one in layouts] == [0, 0, 0, 480, 0]


def test_a_copy_keeps_what_every_cell_holds():
    values = torch.arange(24).view(2, 4, 3)
    layouts, reason = run(values, first(values), "transpose(0, 2)[1:].reshape(-1).flatten()", {})
    assert reason == "" and list(layouts[-1].origin) == values.transpose(0, 2)[1:].reshape(-1).tolist()


def test_the_fault_hides_at_some_sizes():
    explorer = StrideExplorer(chain="view(B, T, H, D).transpose(1, 2)", versus="view(B, H, T, D)")
    assert "hold another element" in explorer.alt()
    assert "such sizes hide the fault" in explorer.alt(sizes={"B": 2, "T": 1, "H": 3, "D": 4})


def test_partners_are_mutual():
    explorer = StrideExplorer(chain="view(B, T, H, D).transpose(1, 2)")
    state = explorer.state()
    for index in (0, 17, 119):
        found = explorer.probe(state, "logical", index)
        (partner,) = found["marks"]["storage"]
        assert explorer.probe(state, "storage", partner)["marks"] == {"logical": [index]}
    text = explorer.probe(state, "logical", 17)["text"]
    assert text.startswith("logical [0, 1, 1, 1]: 0 + 0·60 + 1·4 + 1·12 + 1·1 = 17")


def test_one_storage_cell_may_have_many_readers():
    explorer = StrideExplorer("D", {"D": 3}, "expand(4, D)")
    found = explorer.probe(explorer.state(), "storage", 1)
    assert found["marks"]["logical"] == [1, 4, 7, 10] and "4 logical cell(s)" in found["text"]


@pytest.mark.parametrize("base, sizes, word", [("B, 0", {"B": 2}, "no first tensor"), ("", {}, "no first tensor"),
                                               ("B, T", {"B": 2}, "no size"), ("64, 65", {}, "no first tensor"),
                                               ("B", {"B": -1}, "from 1 on"), ("x", {}, "cannot be read")])
def test_a_first_tensor_that_cannot_be_is_refused(base, sizes, word):
    with pytest.raises(ValueError, match=word):
        StrideExplorer(base, sizes)


@pytest.mark.parametrize("tensor", [torch.empty(0, 3), torch.eye(3).to_sparse()])
def test_a_tensor_without_cells_is_refused(tensor):
    with pytest.raises(ValueError, match="tensor with"):
        StrideExplorer(tensor)


def test_a_big_tensor_keeps_its_strides():
    explorer = StrideExplorer(torch.empty(2, 1024, 768).transpose(0, 1))
    assert explorer.layouts()[0].strides == (768, 786432, 1)
    assert any("corner" in line for part in explorer.scene(explorer.state())["parts"] for line in part.get("lines", []))


def test_letters_names_and_limits():
    assert MOST_CELLS == 4096 and set(SAYS) >= {"formula", "differ"}
    named = StrideExplorer(torch.empty(2, 3), names="bt")
    assert "b0 t2" in named.probe(named.state(), "logical", 2)["text"]
