"""MoH: which heads run for a token, and how much each of them counts."""
import torch
from torch.nn import functional as F

from ... import expect, standard
from ...exercise import CONTRACT, Exercise
from ...nested import nested_cases, structure

exercise = Exercise(
    "route_heads", step=4, points=4, minutes=9, difficulty=3, importance=4,
    summary="Gate every head for every token: shared heads always on, the top_k of the routed ones, two families "
            "weighed by a pair of gates.",
    hints=(
        "Three small maps read the same token. Which heads does each of them speak about, and along which axis do its "
        "numbers become a distribution?",
        "A routed head that is not selected took part in the softmax all the same. So what do the selected gates of a "
        "token, divided by their family's gate, add up to?",
        "Start from a boolean tensor that says for each token and routed head whether it runs: `topk` gives places, "
        "`scatter` turns places into True. Everything else is a product.",
    ),
    hides="H_s = H_r hides an exchange of families from the shape; T = H_r lets the selection run over tokens unseen; "
          "K_r = H_r hides the selection; a router of zeros hides all but the counts.",
)

LABELS = {0: "gates", 1: "selected"}
V = dict(batch=2, tokens=7, width=10, shared=3, routed=5, seed=1530)
TRAP = dict(batch=3, tokens=3, width=10, shared=3, routed=3, seed=2110)


def inputs(batch, tokens, width, shared, routed, seed):
    """Rows and a router whose selected heads win by a margin that bfloat16 cannot lose."""
    x = standard.normal(batch, tokens, width, seed=seed)
    return x, {"shared": 0.5 * standard.normal(shared, width, seed=seed + 1),
               "routed": 0.5 * standard.normal(routed, width, seed=seed + 2),
               "kind": 0.5 * standard.normal(2, width, seed=seed + 3)}


def oracle(x, router, num_shared, top_k):
    """Token by token."""
    gates, chosen = [], []
    for row in x.reshape(-1, x.shape[-1]):
        powers = {name: (w @ row - (w @ row).max()).exp() for name, w in router.items()}
        shared, routed, kind = (powers[n] / powers[n].sum() for n in ("shared", "routed", "kind"))
        winners = sorted(range(len(routed)), key=lambda i, p=routed: -p[i].item())[:top_k]
        runs = torch.tensor([i in winners for i in range(len(routed))])
        gates.append(torch.cat([kind[0] * shared, torch.where(runs, kind[1] * routed, torch.zeros_like(routed))]))
        chosen.append(runs)
    shape = x.shape[:-1]
    return torch.stack(gates).reshape(*shape, -1), torch.stack(chosen).reshape(*shape, -1)


def _check(lab, x, router, top_k):
    num_shared = len(router["shared"])
    want = oracle(x, router, num_shared, top_k)
    got = lab.call("route_heads", x, router, num_shared, top_k)
    structure(got, want, "the result")
    expect.shape(got[1], want[1].shape, "selected", "[B,T,H_r]")
    expect.dtype(got[1], torch.bool, "selected")
    wrong = (got[1] != want[1]).any(-1).nonzero()
    if len(wrong):
        b, t = wrong[0].tolist()
        mine, theirs = (s[b, t].nonzero().flatten().tolist() for s in (got[1], want[1]))
        raise expect.Mismatch(f"token {t} of sample {b} selected the routed heads {mine}, expected {theirs}, those "
                              f"with the largest of {_row(F.softmax(x[b, t] @ router['routed'].T, -1))}; {len(wrong)} "
                              f"of {want[1][..., 0].numel()} tokens differ")
    expect.shape(got[0], want[0].shape, "gates", "[B,T,H]")
    active = (got[0] != 0).sum(-1)
    wrong = (active != num_shared + top_k).nonzero()
    if len(wrong):
        b, t = wrong[0].tolist()
        raise expect.Mismatch(f"token {t} of sample {b} has {active[b, t]} gates that are not zero, expected "
                              f"{num_shared} shared + {top_k} routed: {_row(got[0][b, t])}")
    expect.close(got[0], want[0], "gates", ("batch", "token", "head"))


def _row(values):
    return f"({', '.join(f'{v:.3f}' for v in values.tolist())})"


@exercise.case("every token's gates: V, B2 T7 M10, 3 shared heads, 2 of 5 routed")
def gates(lab):
    _check(lab, *inputs(**V), 2)


@exercise.case("as many tokens as heads of either kind: B3 T3, 3 shared heads, 2 of 3 routed")
def trap(lab):
    _check(lab, *inputs(**TRAP), 2)


@exercise.case("one routed head a token")
def single(lab):
    _check(lab, *inputs(**V), 1)


@exercise.case("a router of zeros and all heads on: every gate is 1/H, the classic sum divided by H")
def classic(lab):
    x, router = inputs(**TRAP)
    router = {name: torch.zeros_like(w) for name, w in router.items()}
    _check(lab, x, router, 3)


nested_cases(exercise, lambda: (inputs(**V), {"num_shared": 3, "top_k": 2}), oracle, ("x", "router"), LABELS)


@exercise.case("refuses to select more routed heads than there are", CONTRACT)
def too_many(lab):
    lab.raises(ValueError, "top_k", "route_heads", *inputs(**V), 3, 6)


@exercise.case("refuses to select none", CONTRACT)
def none(lab):
    lab.raises(ValueError, "top_k", "route_heads", *inputs(**V), 3, 0)


def _parts(x, router, top_k):
    """(shared, routed, kind) probabilities, after top_k was looked at."""
    if top_k < 1 or top_k > router["routed"].shape[0]:
        raise ValueError(f"top_k = {top_k} does not fit {router['routed'].shape[0]} routed heads")
    return [(x @ router[name].T).softmax(-1) for name in ("shared", "routed", "kind")]


def _top(values, top_k, axis=-1):
    places = values.topk(top_k, dim=axis).indices
    return torch.zeros(values.shape, dtype=torch.bool).scatter(axis, places, True)


def _joined(shared, routed, kind):
    return torch.cat([kind[..., :1] * shared, kind[..., 1:] * routed], dim=-1)


@exercise.right
def topk_and_scatter(x, router, num_shared, top_k):
    shared, routed, kind = _parts(x, router, top_k)
    selected = _top(routed, top_k)
    return _joined(shared, routed * selected, kind), selected


@exercise.right
def sorted_order(x, router, num_shared, top_k):
    shared, routed, kind = _parts(x, router, top_k)
    rank = routed.argsort(-1, descending=True).argsort(-1)
    selected = rank < top_k
    return _joined(shared, routed.masked_fill(~selected, 0), kind), selected


@exercise.right
def threshold_of_the_kth(x, router, num_shared, top_k):
    shared, routed, kind = _parts(x, router, top_k)
    logits = x @ router["routed"].T
    selected = logits >= logits.topk(top_k, -1).values[..., -1:]
    return _joined(shared, torch.where(selected, routed, torch.zeros_like(routed)), kind), selected


@exercise.right
def one_hot_places(x, router, num_shared, top_k):
    shared, routed, kind = _parts(x, router, top_k)
    places = (x @ router["routed"].T).topk(top_k, -1).indices
    hot = F.one_hot(places, routed.shape[-1]).sum(-2)
    alphas = torch.repeat_interleave(kind, torch.tensor([num_shared, routed.shape[-1]]), dim=-1)
    return alphas * torch.cat([shared, routed * hot], -1), hot.bool()


@exercise.right
def token_after_token(x, router, num_shared, top_k):
    if not 0 < top_k <= len(router["routed"]):
        raise ValueError("top_k")
    gates, chosen = [], []
    for row in x.reshape(-1, x.shape[-1]):
        shared, routed, kind = (F.softmax(F.linear(row, router[n]), 0) for n in ("shared", "routed", "kind"))
        keep = torch.zeros(len(routed), dtype=torch.bool)
        keep[torch.topk(routed, top_k).indices] = True
        gates.append(torch.cat((shared * kind[0], routed * kind[1] * keep)))
        chosen.append(keep)
    return (torch.stack(gates).view(*x.shape[:2], -1), torch.stack(chosen).view(*x.shape[:2], -1))


@exercise.right
def values_scattered(x, router, num_shared, top_k):
    shared, routed, kind = _parts(x, router, top_k)
    best = (kind[..., 1:] * routed).topk(top_k, dim=-1)
    tail = torch.zeros_like(routed).scatter(-1, best.indices, best.values)
    return torch.cat([kind[..., :1] * shared, tail], -1), _top(routed, top_k)


@exercise.wrong
def softmax_after_selection(x, router, num_shared, top_k):
    """The softmax saw the selected heads only. Probabilities are taken over all routed heads, so the selected gates of
    a token need not add up to their family's share."""
    shared, routed, kind = _parts(x, router, top_k)
    selected = _top(routed, top_k)
    logits = (x @ router["routed"].T).masked_fill(~selected, -torch.inf)
    return _joined(shared, logits.softmax(-1), kind), selected


@exercise.wrong
def shared_compete(x, router, num_shared, top_k):
    """Shared heads took part in the competition. They are always on, with a softmax of their own; only routed heads
    are selected."""
    shared, routed, kind = _parts(x, router, top_k)
    chosen = _top(torch.cat([x @ router["shared"].T, x @ router["routed"].T], -1), num_shared + top_k)
    return _joined(shared, routed, kind) * chosen, chosen[..., num_shared:]


@exercise.wrong(id="shared-compete")
def for_top_k_places(x, router, num_shared, top_k):
    shared, routed, kind = _parts(x, router, top_k)
    chosen = _top(torch.cat([x @ router["shared"].T, x @ router["routed"].T], -1), top_k)
    return _joined(shared, routed, kind) * chosen, chosen[..., num_shared:]


@exercise.wrong(id="shared-compete")
def by_their_gates(x, router, num_shared, top_k):
    all_gates = _joined(*_parts(x, router, top_k))
    chosen = _top(all_gates, num_shared + top_k)
    return all_gates * chosen, chosen[..., num_shared:]


@exercise.wrong(id="shared-compete")
def for_probability(x, router, num_shared, top_k):
    *_, kind = _parts(x, router, top_k)
    together = torch.cat([x @ router["shared"].T, x @ router["routed"].T], -1).softmax(-1)
    shared, routed = together[..., :num_shared], together[..., num_shared:]
    selected = _top(routed, top_k)
    return _joined(shared, routed * selected, kind), selected


@exercise.wrong
def kind_gate_missing(x, router, num_shared, top_k):
    """The pair of gates from `kind` was left out. It weighs the two families of heads against each other, for every
    token."""
    shared, routed, kind = _parts(x, router, top_k)
    selected = _top(routed, top_k)
    return _joined(shared, routed * selected, torch.ones_like(kind)), selected


@exercise.wrong(id="kind-gate-missing")
def on_shared_heads(x, router, num_shared, top_k):
    shared, routed, kind = _parts(x, router, top_k)
    selected = _top(routed, top_k)
    return torch.cat([shared, kind[..., 1:] * routed * selected], -1), selected


@exercise.wrong(id="kind-gate-missing")
def on_routed_heads(x, router, num_shared, top_k):
    shared, routed, kind = _parts(x, router, top_k)
    selected = _top(routed, top_k)
    return torch.cat([kind[..., :1] * shared, routed * selected], -1), selected


@exercise.wrong(id="kind-gate-missing")
def without_a_softmax(x, router, num_shared, top_k):
    shared, routed, _ = _parts(x, router, top_k)
    selected = _top(routed, top_k)
    return _joined(shared, routed * selected, x @ router["kind"].T), selected


@exercise.wrong
def tokens_selected(x, router, num_shared, top_k):
    """top_k ran over tokens: every head chose its favourite tokens. Here every token chooses its heads."""
    shared, routed, kind = _parts(x, router, top_k)
    selected = _top(routed, top_k, axis=1)
    return _joined(shared, routed * selected, kind), selected


def _one_set(choose):
    def program(x, router, num_shared, top_k):
        shared, routed, kind = _parts(x, router, top_k)
        selected = _top(choose(routed, x @ router["routed"].T), top_k).expand_as(routed).clone()
        return _joined(shared, routed * selected, kind), selected
    return program


@exercise.wrong
def one_set_per_sequence(x, router, num_shared, top_k):
    """One set of heads serves a whole sequence. Each token routes for itself."""
    return _one_set(lambda p, logits: p.mean(1, keepdim=True))(x, router, num_shared, top_k)


@exercise.wrong(id="one-set-per-sequence")
def by_mean_logits(x, router, num_shared, top_k):
    return _one_set(lambda p, logits: logits.mean(1, keepdim=True))(x, router, num_shared, top_k)


@exercise.wrong(id="one-set-per-sequence")
def by_the_first_token(x, router, num_shared, top_k):
    return _one_set(lambda p, logits: p[:, :1])(x, router, num_shared, top_k)


@exercise.wrong(id="one-set-per-sequence")
def one_set_for_all(x, router, num_shared, top_k):
    return _one_set(lambda p, logits: p.mean((0, 1), keepdim=True))(x, router, num_shared, top_k)


@exercise.recognise("one-set-per-sequence")
def a_set_that_no_token_changes(trials):
    """However the set was found: it is the same for all tokens of a sample, and the gates are right for that set."""
    [trial] = [t for t in trials if t.case.probe is gates]
    got = trial.transcript[-1].value if trial.transcript else None
    x, router = inputs(**V)
    shape = (*x.shape[:2], len(router["routed"]))
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not all(isinstance(t, torch.Tensor) for t in got):
        return False
    found, selected = got
    if selected.dtype != torch.bool or selected.shape != shape or found.shape != (*shape[:2], 8):
        return False
    right = _joined(*_parts(x, router, 2))
    right[..., 3:] *= selected
    return (bool((selected == selected[:, :1]).all()) and bool((selected.sum(-1) == 2).all())
            and torch.allclose(found.double(), right, atol=1e-9))
