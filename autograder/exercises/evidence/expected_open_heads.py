"""How many hard-concrete gates are not shut, on average over the noise."""
import math

import torch

from ... import expect, standard
from ...exercise import Exercise
from . import hard_concrete as gates

exercise = Exercise(
    "expected_open_heads", step=4, points=2, minutes=4, difficulty=3, importance=4,
    summary="Count the gates that are not exactly 0, on average, as a function that can be trained.",
    hints=(
        "A gate is shut when its stretched value falls below 0. Which s is the border?",
        "The larger u, the larger the gate. So the gate is open for all u above one border: what is the probability of "
        "that?",
        "Solve s = border for u. Its log odds are β times the log odds of the border, less log alpha, and the log odds "
        "of a border at -γ/(ζ-γ) are ln(-γ/ζ).",
    ),
    hides="log α far from 0 hides every formula; γ = 1 - ζ with log α = 0 hides a shut gate counted for an open one "
          "only if half of them are open.",
)
BETA, GAMMA, ZETA = gates.BETA, gates.GAMMA, gates.ZETA


def oracle(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """By the border in u: open above sigmoid(β·logit(border) - log alpha)."""
    border = -gamma / (zeta - gamma)
    odds = (border / (1 - border)) ** beta * torch.exp(-log_alpha)
    return (1 / (1 + odds)).sum()


def _check(lab, log_alpha, **ends):
    got = lab.call("expected_open_heads", log_alpha, **ends)
    want = oracle(log_alpha, **ends)
    try:
        expect.close(got, want, "the number of open heads")
    except expect.Mismatch as m:
        if not isinstance(got, torch.Tensor) or got.shape != want.shape:
            raise
        each = ", ".join(f"{oracle(a, **ends).item():.4f}" for a in log_alpha.flatten()[:5])
        raise expect.Mismatch(f"{m}; the gates are open with probabilities {each}") from None


@exercise.case("three heads, log alpha -3, 0 and 3")
def three(lab):
    _check(lab, torch.tensor([-3.0, 0.0, 3.0], dtype=torch.float64))


@exercise.case("two layers of four heads")
def layers(lab):
    _check(lab, standard.normal(2, 4, seed=3))


@exercise.case("another temperature and other ends")
def other_ends(lab):
    _check(lab, standard.normal(5, seed=4), beta=0.45, gamma=-0.3, zeta=1.2)
    _check(lab, standard.normal(5, seed=4), beta=1.0, gamma=-0.05, zeta=1.4)


standard.tensor_cases(exercise, lambda: ([torch.tensor([-0.9, 0.2, 0.6], dtype=torch.float64)], {}), oracle)


@exercise.right
def closed_form(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return torch.sigmoid(log_alpha - beta * math.log(-gamma / zeta)).sum()


@exercise.right
def one_less_the_shut_ones(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    shut = torch.sigmoid(beta * math.log(-gamma / zeta) - log_alpha)
    return (1 - shut).sum()


@exercise.right
def by_the_border(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return oracle(log_alpha, beta, gamma, zeta)


@exercise.right
def with_tensors(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    shift = torch.as_tensor(-gamma / zeta, dtype=log_alpha.dtype).log() * beta
    return torch.nn.functional.logsigmoid(log_alpha - shift).exp().sum()


@exercise.wrong
def mean_gate(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """The penalty counts open heads, it does not sum gate values."""
    return (log_alpha.sigmoid() * (zeta - gamma) + gamma).clamp(0, 1).sum()


@exercise.wrong(id="mean-gate")
def gates_without_the_clamp(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (log_alpha.sigmoid() * (zeta - gamma) + gamma).sum()


@exercise.wrong
def not_stretched(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """Without stretching no gate is ever 0: the sigmoid of log alpha is the chance of s above a half."""
    return log_alpha.sigmoid().sum()


@exercise.wrong(id="not-stretched")
def with_a_temperature(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (log_alpha / beta).sigmoid().sum()


@exercise.wrong
def beta_outside(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """The temperature belongs to the border alone: β · ln(-γ/ζ), inside the sigmoid."""
    return ((log_alpha - math.log(-gamma / zeta)) / beta).sigmoid().sum()


@exercise.wrong(id="beta-outside")
def divided_outside(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (log_alpha - math.log(-gamma / zeta)).sigmoid().sum() / beta


@exercise.wrong(id="beta-outside")
def border_divided(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (log_alpha - math.log(-gamma / zeta) / beta).sigmoid().sum()


@exercise.wrong(id="beta-outside")
def left_out(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (log_alpha - math.log(-gamma / zeta)).sigmoid().sum()


@exercise.wrong
def rounded(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """Rounding has no gradient: a count of the gates that are open now cannot be trained."""
    gate = (log_alpha.sigmoid() * (zeta - gamma) + gamma).clamp(0, 1)
    return (gate > 0).sum().to(log_alpha.dtype)


@exercise.wrong(id="rounded")
def probabilities_rounded(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (log_alpha - beta * math.log(-gamma / zeta)).sigmoid().round().sum()


@exercise.wrong(id="rounded")
def gates_above_a_half(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (log_alpha > 0).sum().to(log_alpha.dtype)


@exercise.wrong
def shut_heads_counted(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """Open means above 0: this counts the gates that are shut, or those that are fully open."""
    return (beta * math.log(-gamma / zeta) - log_alpha).sigmoid().sum()


@exercise.wrong(id="shut-heads-counted")
def fully_open(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (log_alpha - beta * math.log((1 - gamma) / (zeta - 1))).sigmoid().sum()


@exercise.wrong(id="shut-heads-counted")
def plus_for_minus(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (log_alpha + beta * math.log(-gamma / zeta)).sigmoid().sum()


@exercise.wrong
def share_not_count(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """A mean over heads is a share, and the penalty would no longer count heads."""
    return (log_alpha - beta * math.log(-gamma / zeta)).sigmoid().mean()


@exercise.wrong(id="share-not-count")
def one_number_a_head(log_alpha, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (log_alpha - beta * math.log(-gamma / zeta)).sigmoid()
