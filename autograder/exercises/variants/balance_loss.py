"""MoH: a penalty for a router that uses the same few heads for every token."""
import torch

from ... import expect, standard
from ...exercise import Exercise

exercise = Exercise(
    "balance_loss", step=5, points=2, minutes=4, difficulty=2, importance=3,
    summary="Sum over routed heads: mean probability times the part of the tokens that selected the head.",
    hints=(
        "Two numbers belong to each routed head. One is a mean of probabilities; what kind of mean is the other one?",
        "Selections are counts, and counts have no slope. Through which of the two factors can the router learn?",
        "Check with both ends of the scale: 2 of 6 heads, used evenly, give 1/3; all tokens on the same two heads, "
        "with probability one half each, give 1.",
    ),
    hides="H_r = K_r makes every frequency 1; even use hides a product with the wrong axis.",
)


def oracle(probabilities, selected):
    """Head by head, counted."""
    tokens = selected.shape[0] * selected.shape[1]
    total = 0
    for head in range(selected.shape[2]):
        share = sum(bool(s) for s in selected[..., head].flatten()) / tokens
        total = total + share * sum(probabilities[..., head].flatten()) / tokens
    return total


def inputs(batch=2, tokens=8, routed=5, top_k=2, seed=1):
    """Probabilities, and the heads that won. With 16 tokens every share is exact in float32 too."""
    probabilities = standard.normal(batch, tokens, routed, seed=seed).softmax(-1)
    places = probabilities.topk(top_k, -1).indices
    return probabilities, torch.zeros(batch, tokens, routed, dtype=torch.bool).scatter(-1, places, True)


def _check(lab, probabilities, selected, why=""):
    got, want = lab.call("balance_loss", probabilities, selected), oracle(probabilities, selected)
    expect.shape(got, (), "the loss")
    expect.dtype(got, probabilities.dtype, "the loss")
    expect.true(abs(got.item() - want.item()) <= 1e-7,
                f"the loss is {got.item():.6g}, expected {want.item():.6g}{why}")


@exercise.case("B2 T8, 2 of 5 heads")
def numbers(lab):
    probabilities, selected = inputs()
    means = [f"{v:.3f}" for v in probabilities.mean((0, 1)).tolist()]
    shares = [f"{n}/16" for n in selected.sum((0, 1)).tolist()]
    _check(lab, probabilities, selected, f": P = ({', '.join(means)}), f = ({', '.join(shares)})")


@exercise.case("even use of 2 of 6 heads: 1/3")
def even(lab):
    probabilities = torch.full((1, 6, 6), 1 / 6, dtype=torch.float64)
    place = torch.arange(6)
    selected = ((place - place[:, None]) % 6 < 2)[None]
    _check(lab, probabilities, selected, " = 6 · 1/6 · 1/3")


@exercise.case("collapse on 2 of 6 heads: 1")
def collapsed(lab):
    probabilities = torch.zeros(3, 4, 6, dtype=torch.float64)
    probabilities[..., 2:4] = 0.5
    _check(lab, probabilities, probabilities > 0, " = 2 · 1/2 · 1")


@exercise.case("batch, tokens and heads of one number: B4 T4, 2 of 4 heads")
def trap(lab):
    _check(lab, *inputs(4, 4, 4, 2, seed=5))


standard.tensor_cases(exercise, lambda: (inputs(), {}), oracle)


@exercise.right
def mean_times_mean(probabilities, selected):
    return (probabilities.mean((0, 1)) * selected.to(probabilities.dtype).mean((0, 1))).sum()


@exercise.right
def flat_rows(probabilities, selected):
    p, s = probabilities.flatten(0, 1), selected.flatten(0, 1)
    return p.mean(0) @ (s.sum(0) / len(s)).to(p.dtype)


@exercise.right
def einsum_of_two_sums(probabilities, selected):
    tokens = probabilities.shape[0] * probabilities.shape[1]
    return torch.einsum("bth,qsh->", probabilities, selected.to(probabilities.dtype)) / tokens**2


@exercise.right
def loop_over_heads(probabilities, selected):
    heads = range(probabilities.shape[-1])
    return torch.stack([probabilities[..., i].mean() * selected[..., i].to(probabilities).mean() for i in heads]).sum()


@exercise.wrong
def scaled_by_heads(probabilities, selected):
    """The sum was scaled by the number of heads, as papers on other routers do. This paper's term is unscaled."""
    return mean_times_mean(probabilities, selected) * probabilities.shape[-1]


@exercise.wrong(id="scaled-by-heads")
def by_heads_over_selected(probabilities, selected):
    return mean_times_mean(probabilities, selected) * probabilities.shape[-1] / selected[0, 0].sum()


@exercise.wrong(id="scaled-by-heads")
def averaged_over_heads(probabilities, selected):
    return mean_times_mean(probabilities, selected) / probabilities.shape[-1]


@exercise.wrong
def frequency_only(probabilities, selected):
    """Only counts came in. A count has no gradient: without the mean probabilities the router learns nothing from this
    loss."""
    return selected.to(probabilities.dtype).mean((0, 1)).square().sum()


@exercise.wrong(id="frequency-only")
def counts_of_the_largest(probabilities, selected):
    shares = selected.to(probabilities.dtype).mean((0, 1))
    best = torch.nn.functional.one_hot(probabilities.argmax(-1), probabilities.shape[-1])
    return best.to(probabilities.dtype).mean((0, 1)) @ shares
