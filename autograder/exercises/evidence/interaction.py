"""The second difference of the loss over two gates."""
import torch

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch

exercise = Exercise(
    "interaction", step=2, points=2, minutes=4, difficulty=2, importance=4,
    tensor=False,
    summary="Measure what removing two heads does beyond what removing each of them does.",
    hints=(
        "Write the three differences out, each as a loss less a loss. How many different losses are there?",
        "The baseline is taken away in every difference. How often is it left when the brackets are gone, and with "
        "which sign?",
        "Each loss is one call with some gates at 0. A head that was removed before stays removed: which vector do you "
        "start from, and does the caller's tensor survive?",
    ),
    hides="a quadratic loss at gates of 1 hides slopes used in place of removals; a loss of 0 at the baseline hides "
          "the baseline; gates that are all 1 hide a baseline that was assumed.",
)
CHANGED, NEVER_CLOSED = "the layer itself lost its heads", "no gate was ever closed"


def _corners(gates, i, j):
    """The four gate vectors, by what is removed."""
    found = {}
    for name, closed in (("both", (i, j)), ("i", (i,)), ("j", (j,)), ("none", ())):
        found[name] = gates.clone()
        for head in closed:
            found[name][head] = 0
    return found


def _spell(gates):
    return "(" + ", ".join(f"{g:g}" for g in gates.tolist()) + ")"


def _check(lab, loss, gates, i, j):
    asked, before = [], gates.clone()

    def watched(point):
        asked.append(point.detach().clone().double())
        return loss(point)
    got = lab.call("interaction", watched, gates, i, j, restores=True)
    if not torch.equal(lab.last.left[0], before):
        raise Mismatch(f"the gates came in as {_spell(before)} and are {_spell(lab.last.left[0])} now: {CHANGED}")
    if isinstance(got, torch.Tensor) and got.numel() == 1:
        got = got.item()
    number = isinstance(got, (int, float)) and not isinstance(got, bool)
    expect.true(number, f"the result is {type(got).__name__}, expected a float")
    parts = {name: float(loss(point)) for name, point in _corners(before, i, j).items()}
    want = parts["both"] - parts["i"] - parts["j"] + parts["none"]
    if not abs(got - want) <= 1e-9 * max(1, abs(want)):
        unasked = [p for p in _corners(before, i, j).values() if not any(torch.equal(p, a) for a in asked)]
        missing = f"; the loss was never asked at {' or '.join(map(_spell, unasked))}" if unasked else ""
        if asked and not any((point == 0).sum() > (before == 0).sum() for point in asked):
            missing = f"; the loss was asked at {len(asked)} points, and {NEVER_CLOSED}"
        raise Mismatch(f"the interaction of heads {i} and {j} is {got:.6g}, expected {want:.6g}; the loss is "
                       f"{parts['both']:.6g} without both, {parts['i']:.6g} without head {i}, {parts['j']:.6g} without "
                       f"head {j}, and {parts['none']:.6g} as it is{missing}")


def _digits(i, j):
    """A loss whose corners are 1000, 100, 10 and 1: the answer shows how often each of them was counted."""
    def loss(gates):
        a, b = gates[i] ** 2, gates[j] ** 3
        return 1000 * (1 - a) * (1 - b) + 100 * (1 - a) * b + 10 * a * (1 - b) + a * b
    return loss


def _quadratic(heads, seed):
    matrix, slope = standard.normal(heads, heads, seed=seed), standard.normal(heads, seed=seed + 1)

    def loss(gates):
        return 0.5 * gates @ (matrix + matrix.T) @ gates + slope @ gates + 3
    return loss


def _saturating(heads, seed):
    """Two heads that can stand in for each other: the loss rises when both are gone."""
    weight = standard.normal(heads, seed=seed).abs() + 0.5

    def loss(gates):
        return torch.exp(-(weight * gates).sum()) + 0.3 * gates.square().sum() + 2
    return loss


@exercise.case("losses of 1000, 100, 10 and 1 at the four corners, H4")
def digits(lab):
    _check(lab, _digits(1, 3), torch.ones(4, dtype=torch.float64), 1, 3)


@exercise.case("a quadratic loss with a known cross term, H5")
def quadratic(lab):
    _check(lab, _quadratic(5, 1), torch.ones(5, dtype=torch.float64), 4, 2)


@exercise.case("heads that stand in for each other, H3")
def saturating(lab):
    _check(lab, _saturating(3, 5), torch.ones(3, dtype=torch.float64), 0, 2)


@exercise.case("a layer where one head is gone already and another is half open, H6")
def partly_closed(lab):
    gates = torch.tensor([1, 0, 0.5, 1, 1, 0.25], dtype=torch.float64)
    _check(lab, _saturating(6, 7), gates, 2, 3)
    _check(lab, _quadratic(6, 9), gates, 5, 0)


@exercise.case("refuses one head twice", CONTRACT)
def refuses(lab):
    lab.raises(ValueError, "distinct", "interaction", _quadratic(4, 1), torch.ones(4, dtype=torch.float64), 2, 2,
               restores=True)


def _distinct(i, j):
    if i == j:
        raise ValueError("i and j must be distinct")


def _removed(gates, *heads):
    closed = gates.clone()
    for head in heads:
        closed[head] = 0
    return closed


@exercise.right
def four_calls(loss, gates, i, j):
    _distinct(i, j)
    return float(loss(_removed(gates, i, j)) - loss(_removed(gates, i)) - loss(_removed(gates, j)) + loss(gates))


@exercise.right
def three_differences_memoised(loss, gates, i, j):
    _distinct(i, j)
    known = {}

    def value(heads):
        if heads not in known:
            known[heads] = loss(_removed(gates, *heads)).item()
        return known[heads]

    def delta(heads):
        return value(heads) - value(frozenset())
    return delta(frozenset({i, j})) - delta(frozenset({i})) - delta(frozenset({j}))


@exercise.right
def masks_and_a_tensor_back(loss, gates, i, j):
    _distinct(i, j)
    total = 0
    for a in (0, 1):
        for b in (0, 1):
            mask = torch.ones_like(gates)
            mask[i], mask[j] = a, b
            total = total + (-1) ** (a + b) * loss(gates * mask)
    return total


@exercise.right
def in_place_and_put_back(loss, gates, i, j):
    _distinct(i, j)
    kept = gates[[i, j]].clone()
    none = loss(gates).item()
    gates[i] = 0
    first = loss(gates).item()
    gates[j] = 0
    both = loss(gates).item()
    gates[i] = kept[0]
    second = loss(gates).item()
    gates[j] = kept[1]
    return both - first - second + none


def _spellings(id_, why, value):
    """The same mistake as a float and as a scalar tensor."""
    def program(loss, gates, i, j):
        _distinct(i, j)
        return float(value(loss, gates, i, j))

    def tensor(loss, gates, i, j):
        _distinct(i, j)
        return torch.as_tensor(value(loss, gates, i, j), dtype=torch.float64)
    program.__doc__, program.__name__ = why, value.__name__.strip("_")
    tensor.__name__ = f"{program.__name__}_as_tensor"
    exercise.wrong(program, id=id_)
    exercise.wrong(tensor, id=id_)


def _parts(loss, gates, i, j):
    return (loss(_removed(gates, i, j)), loss(_removed(gates, i)), loss(_removed(gates, j)), loss(gates))


ADDITIVE = "Single effects were added: the interaction is then 0 by definition."
BASELINE = "The full-gate loss enters once with a plus."
SLOPES = "Slopes at 1 are not finite effects."


def _joint_effect_by_addition(loss, gates, i, j):
    _, a, b, none = _parts(loss, gates, i, j)
    joint = (a - none) + (b - none)
    return joint - (a - none) - (b - none)


def _sum_of_single_effects(loss, gates, i, j):
    _, a, b, none = _parts(loss, gates, i, j)
    return (a - none) + (b - none)


def _without_it(loss, gates, i, j):
    both, a, b, _ = _parts(loss, gates, i, j)
    return both - a - b


def _with_a_minus(loss, gates, i, j):
    both, a, b, none = _parts(loss, gates, i, j)
    return both - a - b - none


def _twice(loss, gates, i, j):
    both, a, b, none = _parts(loss, gates, i, j)
    return both - (a - none) - (b - none)


def _open_layer_assumed(loss, gates, i, j):
    both, a, b, _ = _parts(loss, gates, i, j)
    return both - a - b + loss(torch.ones_like(gates))


def _slope(loss, gates, head, eps=1e-5):
    step = torch.zeros_like(gates)
    step[head] = eps
    return (loss(gates + step) - loss(gates - step)) / (2 * eps)


def _product_of_slopes(loss, gates, i, j):
    return _slope(loss, gates, i) * _slope(loss, gates, j)


def _one_sided_slopes(loss, gates, i, j, eps=1e-6):
    found = []
    for head in (i, j):
        step = torch.zeros_like(gates)
        step[head] = eps
        found.append((loss(gates + step) - loss(gates)) / eps)
    return found[0] * found[1]


def _mixed_derivative(loss, gates, i, j, eps=1e-4):
    total = 0
    for a in (-1, 1):
        for b in (-1, 1):
            step = torch.zeros_like(gates)
            step[i], step[j] = a * eps, b * eps
            total = total + a * b * loss(gates + step)
    return total / (4 * eps * eps)


for _id, _why, _value in (
        ("additive", ADDITIVE, _joint_effect_by_addition), ("additive", ADDITIVE, _sum_of_single_effects),
        ("baseline-missing", BASELINE, _without_it), ("baseline-missing", BASELINE, _with_a_minus),
        ("baseline-missing", BASELINE, _twice), ("baseline-missing", BASELINE, _open_layer_assumed),
        ("gradient-product", SLOPES, _product_of_slopes), ("gradient-product", SLOPES, _one_sided_slopes),
        ("gradient-product", SLOPES, _mixed_derivative)):
    _spellings(_id, _why, _value)


@exercise.recognise("gradient-product")
def never_removed(trials):
    """The loss was asked, and no gate was ever closed."""
    return any(NEVER_CLOSED in t.message for t in trials if not t.passed)


@exercise.wrong
def gates_left_changed(loss, gates, i, j):
    """The caller's gates were closed in place: the next interaction starts from another layer."""
    _distinct(i, j)
    none = loss(gates).item()
    first, second = loss(_removed(gates, i)).item(), loss(_removed(gates, j)).item()
    gates[i] = gates[j] = 0
    return loss(gates).item() - first - second + none


@exercise.wrong(id="gates-left-changed")
def by_assignment_without_a_copy(loss, gates, i, j):
    _distinct(i, j)
    closed = gates
    none = float(loss(closed))
    closed[i] = 0
    first = float(loss(closed))
    closed[j] = 0
    both = float(loss(closed))
    closed[i] = 1
    return both - first - float(loss(closed)) + none


@exercise.recognise("gates-left-changed")
def changed_gates(trials):
    return any(CHANGED in t.message for t in trials if not t.passed)
