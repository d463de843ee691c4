"""The attention desk: torch's numbers, and the browser makes the same scenes."""

import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mha_lab.instruments import AttentionDesk
from mha_lab.instruments.desk_text import MASKS, VIEWS

from .kit import assert_agreement, needs_node, node


def labels(desk, part, **state) -> dict[str, list[str]]:
    found = next(one for one in desk.scene(desk.state(**state))["parts"] if one["id"] == part)
    wide = len(found["cols"])
    return {row: found["labels"][i * wide:(i + 1) * wide] for i, row in enumerate(found["rows"])}


@needs_node
def test_the_browser_agrees_with_torch(tmp_path):
    rng = random.Random(1)
    for number, desk in enumerate((AttentionDesk(), AttentionDesk(
            *(torch.randn(2, n, d, generator=torch.Generator().manual_seed(n)) for n, d in ((4, 3), (4, 3), (4, 5))),
            torch.randn(30, 10, generator=torch.Generator().manual_seed(1)), torch.ones(30), targets=list("abcd")))):
        heads, t, s = desk.scores.shape
        states = [desk.state(view=view, mask=mask, amount=rng.randint(0, s), head=rng.randint(-1, heads - 1),
                             query=rng.randrange(t)) for view in VIEWS for mask in MASKS]
        states += [desk.state(view=view, cells="".join(rng.choice("0111") for _ in range(t * s)), query=1)
                   for view in VIEWS for _ in range(4)]
        probes = []
        for state in states:
            for part in desk.scene(state)["parts"]:
                if part["kind"] == "grid":
                    index = rng.randrange(len(part["fills"]))
                    probes.append((state, part["id"], index, desk.probe(state, part["id"], index)))
        folder = tmp_path / str(number)
        folder.mkdir()
        assert_agreement(desk, states, folder, probes)


@needs_node
def test_the_browser_counts_ranks_as_torch_does(tmp_path):
    draw = torch.Generator().manual_seed(4)
    matrices = [torch.randn(a, r, generator=draw).double() @ torch.randn(r, b, generator=draw).double()
                for a, b, r in ((6, 6, 2), (5, 9, 5), (9, 4, 1), (64, 64, 4), (1, 1, 1))]
    matrices += [matrix.softmax(-1) for matrix in matrices] + [torch.eye(5).double(), torch.zeros(3, 3).double()]
    expected = [int(torch.linalg.matrix_rank(matrix)) for matrix in matrices]
    assert node("attention_desk", [{"call": "rankOf", "with": [m.tolist()]} for m in matrices], tmp_path) == expected


def test_weights_are_those_of_scaled_dot_product_attention():
    draw = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(3, n, 4, generator=draw).double() for n in (5, 7, 7))
    desk = AttentionDesk(q, k, v)
    for mask in ("cross", "causal", "bottom-right", "padding", "window"):
        visible = desk.visible(mask=mask, amount=3)
        ours = desk.weights(mask=mask, amount=3) @ v
        theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        assert torch.allclose(ours, theirs, atol=1e-12), mask
        assert torch.allclose(desk.weights(mask=mask, amount=3).sum(-1), torch.ones(3, 5).double())


def test_presets():
    desk = AttentionDesk.from_scores(torch.zeros(1, 2, 4))
    shown = {mask: desk.visible(mask=mask, amount=2).int().tolist() for mask in MASKS}
    assert shown == {"cross": [[1, 1, 1, 1]] * 2, "causal": [[1, 0, 0, 0], [1, 1, 0, 0]],
                     "bottom-right": [[1, 1, 1, 0], [1, 1, 1, 1]], "padding": [[1, 1, 0, 0]] * 2,
                     "window": [[0, 1, 1, 0], [0, 0, 1, 1]]}


def test_the_lens_shows_three_ways_to_use_a_mask():
    desk = AttentionDesk.from_scores(torch.tensor([[[3.0, 1.0, 2.0]]]))
    rows = labels(desk, "lens", view="lens", cells="101")
    assert list(rows.values())[1:4] == [["0.731", "0.000", "0.269", "1.000"], ["0.705", "0.035", "0.259", "1.000"],
                                        ["0.665", "0.000", "0.245", "0.910"]]


def test_two_heads_reach_what_one_softmax_cannot():
    q, k = torch.tensor([[[30.0, 0.0]], [[0.0, 30.0]]]), torch.eye(2).expand(2, 2, 2)
    rows = labels(AttentionDesk(q, k, torch.eye(2).expand(2, 2, 2)), "one", view="one")
    assert rows["one wide head"] == ["0.50", "0.50", "1.00"]
    assert rows["h0"] == ["1.00", "0.00", "1.00"] and rows["h1"] == ["0.00", "1.00", "1.00"]


def test_head_writes_add_up_to_the_output():
    values = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])
    w_o = torch.tensor([[.1, .2, .1, .0], [.3, .4, .0, .0], [.0, .1, .1, .4], [.0, .0, .3, .25]])
    rows = labels(AttentionDesk.from_scores(torch.zeros(2, 1, 1), values, w_o), "writes", view="writes")
    expected = [w_o[:, :2] @ values[0, 0], w_o[:, 2:] @ values[1, 0]]
    assert rows["h0"] == [f"{x:.2f}" for x in expected[0].tolist()]
    assert rows["Σ"] == [f"{x:.2f}" for x in sum(expected).tolist()]
    mixed = labels(AttentionDesk.from_scores(torch.zeros(2, 1, 1), values, w_o), "mixed", view="writes")
    assert mixed == {"h0": ["1.00", "2.00"], "h1": ["3.00", "4.00"]}
    assert "nothing to write" in str(AttentionDesk.from_scores(torch.zeros(1, 1, 1)).scene(
        AttentionDesk.from_scores(torch.zeros(1, 1, 1)).state(view="writes")))


def test_softmax_lifts_the_rank():
    draw = torch.Generator().manual_seed(6)
    q, k = (torch.randn(1, 64, 4, generator=draw) for _ in range(2))
    items = AttentionDesk(q, k, k).scene(AttentionDesk(q, k, k).state(view="rank"))["parts"][1]["items"]
    assert [item[2] for item in items] == ["4 of 64", "64 of 64"]


def test_sums_of_the_target_by_source_matrix():
    shares = torch.tensor([[.5, .3, .1, .1], [.25, .25, .25, .25], [.1, .7, .1, .1]]).double()
    rows = labels(AttentionDesk.from_scores(shares.log()[None]), "mean")
    assert [row[-1] for row in rows.values()] == ["1.00"] * 3 + [""]
    assert rows["Σ"][:4] == ["0.85", "1.25", "0.45", "0.45"]


def test_a_row_without_a_key_is_an_explained_state():
    desk = AttentionDesk.from_scores(torch.zeros(1, 2, 2))
    scene = desk.scene(desk.state(cells="0011"))
    assert scene["parts"][0]["bad"] and "No visible key for t0" in scene["alt"]
    assert labels(desk, "head0", cells="0011")["t0"] == ["", "", "–"]


@pytest.mark.parametrize("bias", [False, True])
def test_the_weights_of_a_framework_module(bias):
    torch.manual_seed(7)
    module = nn.MultiheadAttention(12, 3, bias=bias, batch_first=True).double()
    if bias:
        nn.init.normal_(module.in_proj_bias)
        nn.init.normal_(module.out_proj.bias)
    x, source = torch.randn(5, 12).double(), torch.randn(7, 12).double()
    out, weights = module(x[None], source[None], source[None], average_attn_weights=False)
    desk = AttentionDesk.from_module(module, x, 3, source)
    assert torch.allclose(desk.weights(), weights[0], atol=1e-12)
    assert torch.allclose(torch.einsum("hts,hsm->tm", desk.weights(), desk.writes) + desk.bias, out[0], atol=1e-12)


def test_separate_weights_with_fewer_kv_heads_and_a_prefix():
    torch.manual_seed(8)
    sizes = {"q": (24, 10), "k": (12, 10), "v": (12, 10), "o": (10, 24)}
    state = {f"layers.0.self_attn.{role}_proj.weight": torch.randn(size) for role, size in sizes.items()}
    x = torch.randn(1, 5, 10)
    desk = AttentionDesk.from_module(state, x, num_heads=4)
    q, k, v = ((x[0] @ state[f"layers.0.self_attn.{role}_proj.weight"].T).unflatten(1, (-1, 6)).transpose(0, 1)
               for role in "qkv")
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)[0]
    ours = torch.einsum("hts,hsm->tm", desk.weights(), desk.writes)
    theirs = out.transpose(0, 1).flatten(1) @ state["layers.0.self_attn.o_proj.weight"].T
    assert torch.allclose(ours.float(), theirs, atol=1e-4)


@pytest.mark.parametrize("make, word", [
    (lambda: AttentionDesk(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5), torch.zeros(2, 3, 4)), "do not fit"),
    (lambda: AttentionDesk(torch.zeros(2, 3, 4)), "come together"),
    (lambda: AttentionDesk(*[torch.zeros(2, 3, 4)] * 3, torch.zeros(5, 7)), "w_o is"),
    (lambda: AttentionDesk(*[torch.zeros(2, 3, 4)] * 3, visible=torch.ones(3, 3)), "boolean"),
    (lambda: AttentionDesk(*[torch.zeros(17, 32, 2)] * 3), "too large"),
    (lambda: AttentionDesk(*[torch.zeros(1, 2, 2)] * 3, targets=["one"]), "labels"),
    (lambda: AttentionDesk.from_module({}, torch.zeros(2, 4), 2), "no q_proj.weight"),
    (lambda: AttentionDesk.from_module(nn.MultiheadAttention(6, 2), torch.zeros(2, 5), 2), "does not fit"),
    (lambda: AttentionDesk.from_module(nn.MultiheadAttention(6, 2), torch.zeros(2, 6), 4), "divisible"),
    (lambda: AttentionDesk.from_module(nn.ModuleList([nn.MultiheadAttention(6, 2) for _ in range(2)]),
                                       torch.zeros(2, 6), 2), "several"),
    (lambda: AttentionDesk().state(view="x"), "view is one of"),
    (lambda: AttentionDesk().state(cells="01"), "35 char"),
    (lambda: AttentionDesk().state(head=3), "head is in -1 to 2"),
    (lambda: AttentionDesk().state(query=5), "query is in")])
def test_what_does_not_fit_is_refused(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_probes_name_the_pair_and_mark_it_everywhere():
    desk = AttentionDesk()
    found = desk.probe(desk.state(), "head1", 2 * 8 + 3)
    weight = desk.weights()[1, 2, 3].item()
    assert found["text"].startswith("t2 may read s3. head 1: score") and math.isclose(
        float(found["tip"]), weight, abs_tol=6e-4)
    assert found["marks"] == {"mask": [17], "head0": [19], "head1": [19], "head2": [19], "mean": [19]}
