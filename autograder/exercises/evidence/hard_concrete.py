"""A gate that can be exactly shut or exactly open, and can still be trained."""
import torch

from ... import expect, standard
from ...exercise import CONTRACT, VALUES, Exercise, same

exercise = Exercise(
    "hard_concrete", step=3, points=3, minutes=6, difficulty=3, importance=4,
    summary="Turn log alpha and uniform noise into a gate in [0,1] that reaches both ends and has a gradient between.",
    hints=(
        "A sigmoid never reaches 0 or 1. What happens to its values if the interval is made a little wider, and then "
        "cut?",
        "Three steps: noise and log alpha through a sigmoid with a temperature, a stretch to the wider interval, a "
        "clamp. What does each do to a gate of 0.5?",
        "The temperature divides all that goes into the sigmoid, noise included. Without noise there is no temperature "
        "either. And which u would make a logarithm infinite?",
    ),
    hides="u = 1/2 hides the noise; β = 1 hides where the temperature stands; log α = 0 hides stretching.",
)
NAMES = ("head", "draw")
BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1
ALPHAS = (-3.0, -1.2, 0.0, 0.7, 3.0)
DRAWS = (0.02, 0.3, 0.5, 0.66, 0.9, 0.995)


def oracle(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """By odds: s = 1 / (1 + (odds of u · alpha)^(-1/β)); then stretched, then cut."""
    if u is None:
        s = 1 / (1 + torch.exp(-log_alpha))
    else:
        s = 1 / (1 + (u / (1 - u) * torch.exp(log_alpha)) ** (-1 / beta))
    stretched = gamma + s * (zeta - gamma)
    return torch.minimum(torch.maximum(stretched, torch.zeros_like(s)), torch.ones_like(s))


def grid(alphas=ALPHAS, draws=DRAWS):
    rows = torch.tensor(alphas, dtype=torch.float64)[:, None].expand(-1, len(draws)).clone()
    return rows, torch.tensor(draws, dtype=torch.float64).expand(len(alphas), -1).clone()


def _check(got, log_alpha, u=None, **ends):
    want = oracle(log_alpha, u, **ends)
    try:
        expect.close(got, want, "the gate", NAMES)
    except expect.Mismatch as m:
        if isinstance(got, torch.Tensor) and got.shape == want.shape and got.dtype == want.dtype:
            at = tuple((~((got - want).abs() <= 1e-9)).nonzero()[0].tolist())
            noise = "without noise" if u is None else f"u {u[at].item():g}"
            raise expect.Mismatch(f"{m}; there log alpha is {log_alpha[at].item():g}, {noise}", m.figure) from None
        raise


@exercise.case("without noise: log alpha from -4 to 4, 0 and 1 are reached")
def at_test(lab):
    log_alpha = torch.tensor([[-4.0, -3, -1.2], [0.0, 1.5, 3.0]], dtype=torch.float64)
    _check(lab.call("hard_concrete", log_alpha), log_alpha)


@exercise.case("with noise: five heads, six draws")
def sampled(lab):
    log_alpha, u = grid()
    _check(lab.call("hard_concrete", log_alpha, u), log_alpha, u)


@exercise.case("another temperature and other ends")
def other_ends(lab):
    log_alpha, u = grid((-2.0, -0.5, 1.0), (0.1, 0.4, 0.6, 0.97))
    ends = dict(beta=0.45, gamma=-0.3, zeta=1.2)
    _check(lab.call("hard_concrete", log_alpha, u, **ends), log_alpha, u, **ends)
    _check(lab.call("hard_concrete", log_alpha, **ends), log_alpha, **ends)


@exercise.case("a gradient reaches log alpha through the noise")
def gradient_with_noise(lab):
    log_alpha, u = grid()
    leaf, ours = log_alpha.clone().requires_grad_(), log_alpha.clone().requires_grad_()
    got = expect.tensor(lab.call("hard_concrete", leaf, u))
    _check(got, log_alpha, u)
    cotangent = standard.normal(*log_alpha.shape, seed=5)
    want = torch.autograd.grad(oracle(ours, u), ours, cotangent)[0]
    expect.gradient(lab.backward((got, cotangent)), leaf, want, "log alpha", NAMES)


standard.tensor_cases(exercise, lambda: ([torch.tensor([[-2.5, -0.8, 0.3, 1.1]], dtype=torch.float64)], {}), oracle,
                      NAMES)


@exercise.case("without noise two seeds give one gate", CONTRACT)
def two_seeds(lab):
    log_alpha = torch.tensor([[-2.0, -1, 0.4], [0.6, 1.5, 2.0]], dtype=torch.float64)
    first, again = (lab.call("hard_concrete", log_alpha, seed=seed) for seed in (0, 1))
    expect.close(again, expect.tensor(first), "the gate of another seed", NAMES)


@exercise.case("noise of the gates' own dtype", CONTRACT)
def noise_dtypes(lab):
    for dtype in (torch.float32, torch.bfloat16):
        log_alpha, u = (t.to(dtype) for t in grid((-1.2, 0.0, 0.7), (0.25, 0.5, 0.75)))
        tolerance = standard.TOLERANCE[dtype]
        got = lab.call("hard_concrete", log_alpha, u)
        expect.close(got, oracle(log_alpha.double(), u.double()).to(dtype), "the gate", NAMES, tolerance, tolerance)


def _refuse(value):
    @exercise.case(f"refuses a u of {value:g}", CONTRACT)
    def probe(lab):
        log_alpha, u = grid()
        u[2, 3] = value
        lab.raises(ValueError, "u", "hard_concrete", log_alpha, u)
    return probe


REFUSALS = [_refuse(value) for value in (0.0, 1.0, -0.25, 1.5)]


def _strict(u):
    if u is not None and not bool(((u > 0) & (u < 1)).all()):
        raise ValueError("u must lie in (0, 1)")


def _s(log_alpha, u, beta):
    _strict(u)
    if u is None:
        return torch.sigmoid(log_alpha)
    return torch.sigmoid((torch.log(u) - torch.log(1 - u) + log_alpha) / beta)


@exercise.right
def sigmoid_and_clamp(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (_s(log_alpha, u, beta) * (zeta - gamma) + gamma).clamp(0, 1)


@exercise.right
def hardtanh(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return torch.nn.functional.hardtanh(_s(log_alpha, u, beta) * (zeta - gamma) + gamma, 0, 1)


@exercise.right
def logit_and_minimum(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    _strict(u)
    s = log_alpha.sigmoid() if u is None else ((u.logit() + log_alpha) / beta).sigmoid()
    return torch.lerp(torch.full_like(s, gamma), torch.full_like(s, zeta), s).relu().minimum(torch.ones_like(s))


@exercise.right
def by_odds(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    _strict(u)
    return oracle(log_alpha, u, beta, gamma, zeta)


@exercise.right
def noise_without_a_graph(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    _strict(u)
    if u is None:
        return (log_alpha.sigmoid() * (zeta - gamma) + gamma).clamp(0, 1)
    with torch.no_grad():
        noise = u.log() - (1 - u).log()
    return (((noise + log_alpha) / beta).sigmoid() * (zeta - gamma) + gamma).clamp(min=0).clamp(max=1)


@exercise.wrong
def not_stretched(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """Without stretching the gate never reaches 0 or 1."""
    return _s(log_alpha, u, beta)


@exercise.wrong(id="not-stretched")
def only_in_training(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    s = _s(log_alpha, u, beta)
    return s if u is None else (s * (zeta - gamma) + gamma).clamp(0, 1)


@exercise.wrong(id="not-stretched")
def only_at_test(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    s = _s(log_alpha, u, beta)
    return s if u is not None else (s * (zeta - gamma) + gamma).clamp(0, 1)


@exercise.wrong
def not_clamped(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """Gates left [0,1]."""
    return _s(log_alpha, u, beta) * (zeta - gamma) + gamma


@exercise.wrong(id="not-clamped")
def clamped_below_only(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (_s(log_alpha, u, beta) * (zeta - gamma) + gamma).relu()


@exercise.wrong(id="not-clamped")
def clamped_in_training_only(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    stretched = _s(log_alpha, u, beta) * (zeta - gamma) + gamma
    return stretched if u is None else stretched.clamp(0, 1)


def _ended(s, gamma, zeta):
    return (s * (zeta - gamma) + gamma).clamp(0, 1)


@exercise.wrong
def beta_outside(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """The temperature divides inside the sigmoid, and it divides all of its argument."""
    s = _s(log_alpha, u, 1)
    return _ended(s if u is None else s / beta, gamma, zeta)


@exercise.wrong(id="beta-outside")
def of_the_noise_alone(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    _strict(u)
    argument = log_alpha if u is None else (u.log() - (1 - u).log()) / beta + log_alpha
    return _ended(argument.sigmoid(), gamma, zeta)


@exercise.wrong(id="beta-outside")
def of_log_alpha_alone(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    _strict(u)
    argument = log_alpha if u is None else u.log() - (1 - u).log() + log_alpha / beta
    return _ended(argument.sigmoid(), gamma, zeta)


@exercise.wrong(id="beta-outside")
def multiplied(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return _ended(_s(log_alpha, u, 1 / beta), gamma, zeta)


@exercise.wrong(id="beta-outside")
def left_out(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return _ended(_s(log_alpha, u, 1), gamma, zeta)


@exercise.wrong
def beta_at_test(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """The temperature shapes the noise; the gate without noise is the stretched sigmoid of log alpha itself."""
    return _ended((log_alpha / beta).sigmoid() if u is None else _s(log_alpha, u, beta), gamma, zeta)


@exercise.wrong
def rounded(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """Rounding has no gradient, and it leaves no gate in between."""
    return _ended(_s(log_alpha, u, beta), gamma, zeta).round()


@exercise.wrong(id="rounded")
def compared_with_a_half(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return (_ended(_s(log_alpha, u, beta), gamma, zeta) > 0.5).to(log_alpha.dtype)


@exercise.wrong(id="rounded")
def at_test_only(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    gate = _ended(_s(log_alpha, u, beta), gamma, zeta)
    return (gate > 0.5).to(gate.dtype) if u is None else gate


@exercise.wrong
def noise_at_test(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """Without u the gate must be deterministic: the noise belongs to training."""
    u = torch.rand_like(log_alpha).clamp(1e-6, 1 - 1e-6) if u is None else u
    return _ended(_s(log_alpha, u, beta), gamma, zeta)


@exercise.recognise("noise-at-test")
def another_gate_each_time(trials):
    """Right with noise given; without it the answer hangs on the generator."""
    by_probe = {t.case.probe: t for t in trials}
    first, *more = [o.value for o in by_probe[two_seeds].transcript] or [None]
    return bool(by_probe[sampled].passed and more and isinstance(first, torch.Tensor) and not same(first, more[0]))


@exercise.wrong
def bad_noise_accepted(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    """A u of 0 or 1 makes a logarithm infinite, and beyond them there is none: refuse it."""
    s = torch.sigmoid(log_alpha) if u is None else torch.sigmoid(((u / (1 - u)).log() + log_alpha) / beta)
    return _ended(s, gamma, zeta)


@exercise.wrong(id="bad-noise-accepted")
def ends_accepted(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    if u is not None and not bool(((u >= 0) & (u <= 1)).all()):
        raise ValueError("u must lie in [0, 1]")
    s = torch.sigmoid(log_alpha) if u is None else torch.sigmoid((u.log() - (1 - u).log() + log_alpha) / beta)
    return _ended(s, gamma, zeta)


@exercise.wrong(id="bad-noise-accepted")
def clamped_noise(log_alpha, u=None, beta=BETA, gamma=GAMMA, zeta=ZETA):
    return sigmoid_and_clamp(log_alpha, None if u is None else u.clamp(1e-6, 1 - 1e-6), beta, gamma, zeta)


@exercise.recognise("bad-noise-accepted")
def accepted(trials):
    if any(not t.passed for t in trials if t.case.kind == VALUES):
        return False
    return any(not t.passed and t.transcript and t.transcript[-1].error is None
               for t in trials if t.case.probe in REFUSALS)
