"""The derivative by measurement: step each coordinate both ways, and watch f."""
import itertools

import torch

from ... import expect
from ...exercise import CONTRACT, VALUES, Exercise
from ...lab import Mismatch
from ...standard import normal
from . import _parts

exercise = Exercise(
    "central_difference", step=5, points=2, minutes=6, difficulty=2, importance=4, exempt=_parts.NOT_DIFFERENTIATED,
    summary="Measure the gradient of a scalar function, coordinate by coordinate, with steps to both sides.",
    hints=(
        "For one coordinate you need two values of f. Which two, and how far apart are their arguments?",
        "Whatever you step must be what f sees. Is the tensor that you change the one that you pass, and are its bytes "
        "shared with a copy or not?",
        "Adding a step and taking it away again need not give back the number that was there: rounding. Keep the old "
        "value, or never touch x at all. Refuse what cannot be measured before you start.",
    ),
    hides="A linear f hides one-sided differences; a contiguous x hides a step that went into a copy; looking at the "
          "gradient alone hides an x that was not put back.",
)
STEP = 1e-3
ONE_SIDED, UNMOVED, LEFT = "f was asked on one side only", "f never saw a step", "x did not come back"


def _polynomial(shape, seed):
    """f(x) = Σ aᵢxᵢ² + bᵢxᵢ + Σ cᵢxᵢxᵢ₊₁, and its gradient. Central differences of it are exact but for rounding."""
    a, b, c = (normal(*shape, seed=seed + i) for i in range(3))
    c = c.flatten()[1:]

    def f(x):
        flat = x.flatten()
        return (a * x * x + b * x).sum() + (c * flat[1:] * flat[:-1]).sum()

    def gradient(x):
        flat = x.flatten()
        mixed = torch.zeros_like(flat)
        mixed[1:] += c * flat[:-1]
        mixed[:-1] += c * flat[1:]
        return 2 * a * x + b + mixed.reshape(x.shape)
    return f, gradient


def _steps(asked, x):
    """The coordinates of x that moved in the points where f was asked, and the sides: {index: {-1, 1}}."""
    sides: dict[tuple[int, ...], set[int]] = {}
    for point in asked:
        if point.shape == x.shape:
            for at in (point != x).nonzero().tolist():
                sides.setdefault(tuple(at), set()).add(1 if point[tuple(at)] > x[tuple(at)] else -1)
    return sides


def _measured(lab, x, f, want, eps=STEP, atol=1e-8):
    """One call; then the values, what f was asked, and what became of x."""
    asked, before = [], x.clone()

    def watched(point):
        asked.append(point.detach().clone())
        return f(point)

    got = lab.call("central_difference", watched, x, eps=eps, restores=True)
    _restored(lab, before, eps)
    expect.shape(got, x.shape, "the gradient")
    expect.dtype(got, x.dtype, "the gradient")
    try:
        expect.close(got, want, "the gradient", atol=atol, rtol=1e-8)
    except Mismatch as m:
        raise Mismatch(_what_f_saw(_steps(asked, before), got, want, eps, m), m.figure) from None


def _what_f_saw(sides, got, want, eps, m):
    at = tuple(((got - want).abs() > 1e-8).nonzero()[0].tolist())
    cell = f"[{','.join(map(str, at))}]"
    if not sides:
        return f"{UNMOVED}: all points that it was asked at equal x, and the gradient{cell} is {got[at].item():.4g}, " \
               f"expected {want[at].item():.6g}"
    if len(sides.get(at, ())) == 1:
        side = "+" if 1 in sides[at] else "-"
        return f"{ONE_SIDED}: x{cell} was moved by {side}{eps:g} and never the other way; the gradient{cell} is " \
               f"{got[at].item():.6g}, expected {want[at].item():.6g}, an error of the order of the step"
    return str(m)


def _restored(lab, before, eps=1e-6):
    left = lab.last.left[0]
    change = (left - before).abs()
    if bool((left == before).all()):
        return
    at = tuple(change.nonzero()[0].tolist()) if change.any() else (0,) * before.dim()
    if not change.max() < 10 * eps:
        lab.mutated.append("central_difference")
    raise Mismatch(f"{LEFT}: x[{','.join(map(str, at))}] was {before[at].item()!r} and is "
                   f"{left[at].item()!r} after the call")


@exercise.case("a quadratic of 12 numbers [3,4], steps of 1e-3")
def quadratic(lab):
    (f, gradient), x = _polynomial((3, 4), seed=1), normal(3, 4, seed=2)
    _measured(lab, x, f, gradient(x))


@exercise.case("an x of other sizes, [2,3,2]")
def other_sizes(lab):
    (f, gradient), x = _polynomial((2, 3, 2), seed=11), normal(2, 3, 2, seed=12)
    _measured(lab, x, f, gradient(x))


@exercise.case("an x that is not contiguous: a transposed [5,3]")
def transposed(lab):
    (f, gradient), x = _polynomial((5, 3), seed=21), normal(3, 5, seed=22).t()
    _measured(lab, x, f, gradient(x))


@exercise.case("an x that is every second column of a larger tensor")
def strided(lab):
    (f, gradient), x = _polynomial((2, 3), seed=31), normal(2, 6, seed=32)[:, ::2]
    _measured(lab, x, f, gradient(x))


@exercise.case("the step that is asked for is the step that is taken: x³ measured with 0.1", CONTRACT)
def honours_eps(lab):
    x = normal(4, seed=41)
    _measured(lab, x, lambda p: (p**3).sum(), 3 * x * x + 0.01, eps=0.1, atol=1e-9)


@exercise.case("the default step, on a function of one row", CONTRACT)
def default_eps(lab):
    x = normal(5, seed=51)
    _measured_default(lab, x)


def _measured_default(lab, x):
    sizes, before = [], x.clone()

    def f(p):
        sizes.extend((p - before)[p != before].abs().tolist())
        return p.sin().sum()
    got = lab.call("central_difference", f, x, restores=True)
    expect.shape(got, x.shape, "the gradient")
    expect.dtype(got, x.dtype, "the gradient")
    expect.close(got, x.cos(), "the gradient", atol=1e-7)
    expect.true(all(abs(s - 1e-6) < 1e-8 for s in sizes),
                f"without eps the steps were {max(sizes, default=0):.3g}, the contract's default is 1e-06")
    _restored(lab, before)


@exercise.case("a point far from zero comes back bit by bit", CONTRACT)
def restored(lab):
    x = normal(7, seed=61) * torch.tensor([1e-7, 1.0, 1e3, 0.1, 1 / 3, 1e-3, 10.0], dtype=torch.float64)
    before = x.clone()
    lab.call("central_difference", lambda p: (p * p).sum(), x, restores=True)
    _restored(lab, before)


@exercise.case("refuses float32", CONTRACT)
def refuses_float32(lab):
    lab.raises(ValueError, "float64", "central_difference", lambda p: (p * p).sum(), normal(4, dtype=torch.float32),
               restores=True)


@exercise.case("refuses a function that is not scalar", CONTRACT)
def refuses_vectors(lab):
    lab.raises(ValueError, "scalar", "central_difference", lambda p: p * p, normal(3), restores=True)
    lab.raises(ValueError, "scalar", "central_difference", lambda p: p[:0], normal(3), restores=True)


def _refuse(f, x):
    if x.dtype != torch.float64:
        raise ValueError(f"central differences need float64, not {x.dtype}")
    if f(x).dim():
        raise ValueError("f must be scalar")


@exercise.right
def one_copy_a_coordinate(f, x, eps=1e-6):
    _refuse(f, x)
    grad = torch.zeros_like(x)
    for at in itertools.product(*map(range, x.shape)):
        above, below = x.clone(), x.clone()
        above[at] += eps
        below[at] -= eps
        grad[at] = (f(above) - f(below)) / (2 * eps)
    return grad


@exercise.right
def in_place_and_put_back(f, x, eps=1e-6):
    _refuse(f, x)
    grad = torch.empty_like(x)
    for at in itertools.product(*map(range, x.shape)):
        kept = x[at].item()
        x[at] = kept + eps
        above = f(x).item()
        x[at] = kept - eps
        below = f(x).item()
        x[at] = kept
        grad[at] = (above - below) / (2 * eps)
    return grad


@exercise.right
def flat_copy(f, x, eps=1e-6):
    _refuse(f, x)
    flat = x.clone().flatten()
    grad = torch.zeros_like(flat)
    for i in range(flat.numel()):
        kept = flat[i].clone()
        flat[i] = kept + eps
        above = f(flat.view(x.shape))
        flat[i] = kept - eps
        grad[i] = (above - f(flat.view(x.shape))) / (2 * eps)
        flat[i] = kept
    return grad.view(x.shape)


def _stack(x, eps):
    return eps * torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape)


@exercise.right
def stacked_perturbations(f, x, eps=1e-6):
    _refuse(f, x)
    slopes = [(f(x + step) - f(x - step)) / (2 * eps) for step in _stack(x, eps)]
    return torch.stack(slopes).view(x.shape)


@exercise.right
def stacked_under_vmap(f, x, eps=1e-6):
    if x.dtype != torch.float64:
        raise ValueError("central differences need float64")
    if f(x).numel() != 1:
        raise ValueError("f must be a scalar function")
    steps = _stack(x, eps)
    return ((torch.vmap(f)(x + steps) - torch.vmap(f)(x - steps)) / (2 * eps)).view(x.shape)


@exercise.right
def basis_vectors(f, x, eps=1e-6):
    _refuse(f, x)
    grad = []
    for i in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[i] = eps
        grad.append(float(f(x + step.view(x.shape)) - f(x - step.view(x.shape))) / 2 / eps)
    return torch.tensor(grad, dtype=x.dtype).reshape(x.shape)


@exercise.wrong
def forward_difference(f, x, eps=1e-6):
    """One-sided error is of order eps."""
    _refuse(f, x)
    here = f(x)
    return torch.stack([(f(x + step) - here) / eps for step in _stack(x, eps)]).view(x.shape)


@exercise.wrong(id="forward-difference")
def backward_difference(f, x, eps=1e-6):
    _refuse(f, x)
    here = f(x)
    return torch.stack([(here - f(x - step)) / eps for step in _stack(x, eps)]).view(x.shape)


@exercise.wrong
def perturbation_left(f, x, eps=1e-6):
    """x was not restored."""
    _refuse(f, x)
    grad = torch.zeros_like(x)
    for at in itertools.product(*map(range, x.shape)):
        x[at] += eps
        above = f(x)
        x[at] -= 2 * eps
        grad[at] = (above - f(x)) / (2 * eps)
    return grad


@exercise.wrong(id="perturbation-left")
def put_back_with_rounding(f, x, eps=1e-6):
    _refuse(f, x)
    grad = torch.zeros_like(x)
    for at in itertools.product(*map(range, x.shape)):
        x[at] += eps
        above = f(x)
        x[at] -= 2 * eps
        grad[at] = (above - f(x)) / (2 * eps)
        x[at] += eps
    return grad


@exercise.wrong
def copy_perturbed(f, x, eps=1e-6):
    """`reshape(-1)` of a non-contiguous x is a copy; f saw no change."""
    _refuse(f, x)
    flat = x.reshape(-1)
    grad = torch.zeros_like(flat)
    for i in range(flat.numel()):
        kept = flat[i].item()
        flat[i] = kept + eps
        above = f(x)
        flat[i] = kept - eps
        grad[i] = (above - f(x)) / (2 * eps)
        flat[i] = kept
    return grad.view(x.shape)


@exercise.wrong
def float32_accepted(f, x, eps=1e-6):
    """Cancellation swamps the derivative."""
    if f(x).dim():
        raise ValueError("f must be scalar")
    return torch.stack([(f(x + step) - f(x - step)) / (2 * eps) for step in _stack(x, eps)]).view(x.shape)


def _messages(trials):
    return [t.message for t in trials if not t.passed]


@exercise.recognise("forward-difference")
def one_side_only(trials):
    return any(m.startswith(ONE_SIDED) for m in _messages(trials))


@exercise.recognise("copy-perturbed")
def steps_went_elsewhere(trials):
    return trials[0].passed and any(m.startswith(UNMOVED) for m in _messages(trials))


@exercise.recognise("perturbation-left")
def x_is_another(trials):
    return any(m.startswith(LEFT) for m in _messages(trials))


@exercise.recognise("float32-accepted")
def no_refusal(trials):
    if any(not t.passed for t in trials if t.case.kind == VALUES):
        return False
    return any(t.case.title == "refuses float32" and "was accepted" in t.message for t in trials)
