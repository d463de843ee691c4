"""DCMHA: the heads of every pair are mixed by a map that its query row and its key row decide."""
import torch

from ... import expect, standard
from ...exercise import CONTRACT, VALUES, Exercise
from ...nested import nested_cases

exercise = Exercise(
    "compose_dynamic", step=3, points=4, minutes=9, difficulty=4, importance=3,
    summary="Mix the heads of every query-key pair by low-rank and diagonal factors, without one H×H map a pair.",
    hints=(
        "Take one pair and its H scores as a row. Write the five terms as products of that row with small matrices, "
        "and note the size after every product.",
        "The query's factors do not know the key, nor the other way round. Which axes does each of the six factors "
        "have, and along which one is it the same for all pairs?",
        "Go down to R numbers a pair first, and then back up to H. Building q1·q2 for every pair first makes the H×H "
        "map that the contract forbids. `einsum` with two operands at a time keeps you in charge of the order.",
    ),
    hides="T = S lets query factors serve keys; symmetric factors hide an exchange of down and up; H = R hides it from "
          "the shape; zero factors hide every term but the identity; a loss in bytes shows in no value at all.",
)

NAMES = ("batch", "head", "query", "key")
ARGUMENTS = ("scores", "factors")
V = dict(batch=2, heads=5, queries=6, keys=7, rank=3)
TRAP = dict(batch=3, heads=3, queries=6, keys=6, rank=3)
WIDE = dict(batch=2, heads=11, queries=5, keys=6, rank=2)


def factors(batch, heads, queries, keys, rank, scale=0.4, seed=10):
    """Both rows' factors."""
    shapes = {"q1": (batch, queries, heads, rank), "q2": (batch, queries, rank, heads),
              "k1": (batch, keys, heads, rank), "k2": (batch, keys, rank, heads),
              "qg": (batch, queries, heads), "kg": (batch, keys, heads)}
    return {n: scale * standard.normal(*shape, seed=seed + i) for i, (n, shape) in enumerate(shapes.items())}


def scores(batch, heads, queries, keys, rank):
    return standard.normal(batch, heads, queries, keys, seed=9)


def parts(factors):
    """The maps of each pair [B,T,S,H,H] by term: from the head in the row to the head in the column."""
    by_query = factors["q1"] @ factors["q2"]
    by_key = factors["k1"] @ factors["k2"]
    heads = by_query.shape[-1]
    return {"the pair's own score": torch.eye(heads, dtype=by_query.dtype),
            "the query's low-rank map": by_query[:, :, None], "the key's low-rank map": by_key[:, None],
            "the query's gate": torch.diag_embed(factors["qg"])[:, :, None],
            "the key's gate": torch.diag_embed(factors["kg"])[:, None]}


def oracle(scores, factors):
    """With the explicit map of every pair."""
    dense = sum(parts(factors).values())
    rows = scores.permute(0, 2, 3, 1)[..., None, :]
    return (rows @ dense)[..., 0, :].permute(0, 3, 1, 2)


@exercise.case("one head at a time shows the map of every pair: V, B2 H5 T6 S7 R3")
def maps(lab):
    given = factors(**V)
    batch, heads, queries, keys, _ = V.values()
    alone = one_head_each(heads, queries, keys).expand(batch, -1, -1, -1).contiguous()
    want = oracle(alone, given)
    got = lab.call("compose_dynamic", alone, given)
    expect.shape(got, want.shape, "scores", "[B,H,T,S]")
    expect.dtype(got, want.dtype, "scores")
    wrong = (~((got - want).abs() <= 1e-10)).nonzero()
    if len(wrong):
        b, to, t, s = wrong[0].tolist()
        of = (t * keys + s) % heads
        terms = ", ".join(f"{float(m.expand(batch, queries, keys, heads, heads)[b, t, s, of, to]):.4g} by {name}"
                          for name, m in parts(given).items())
        raise expect.Mismatch(
            f"a score of 1 in head {of} alone, at sample {b}, query {t} and key {s}, reaches head {to} as "
            f"{got[b, to, t, s].item():.4g}, expected {want[b, to, t, s].item():.4g}: {terms}; {len(wrong)} of "
            f"{want.numel()} values differ")


def one_head_each(heads, queries, keys):
    """[1,H,T,S]: every pair has one score of 1, in a head that changes from pair to pair."""
    owner = (torch.arange(queries)[:, None] * keys + torch.arange(keys)) % heads
    return (owner == torch.arange(heads)[:, None, None]).double()[None]


@exercise.case("real scores: V, B2 H5 T6 S7 R3")
def numbers(lab):
    expect.close(lab.call("compose_dynamic", scores(**V), factors(**V)), oracle(scores(**V), factors(**V)), "scores",
                 NAMES)


@exercise.case("rows and keys of one number, batch and heads too: B3 H3 T6 S6 R3")
def trap(lab):
    given = scores(**TRAP), factors(**TRAP)
    expect.close(lab.call("compose_dynamic", *given), oracle(*given), "scores", NAMES)


@exercise.case("zero factors give the scores back")
def zero(lab):
    nothing = {name: torch.zeros_like(t) for name, t in factors(**V).items()}
    expect.close(lab.call("compose_dynamic", scores(**V), nothing), scores(**V), "scores", NAMES)


nested_cases(exercise, lambda: ((scores(**V), factors(**V, scale=0.2)), {}), oracle, ARGUMENTS, {"": "scores"})


@exercise.case("no storage of an H×H map for every pair: B2 H11 T5 S6 R2", CONTRACT)
def bytes_kept(lab):
    given = scores(**WIDE), factors(**WIDE)
    expect.close(lab.call("compose_dynamic", *given, count=True), oracle(*given), "scores", NAMES)
    pairs, square = WIDE["queries"] * WIDE["keys"], WIDE["heads"] ** 2
    largest = max(lab.last.counts["new_storages"], default=0)
    expect.true(largest < 8 * pairs * square,
                f"one storage of {largest:,} bytes was made; a map [T,S,H,H] of one sample alone has 5·6·11·11 numbers "
                f"of 8 bytes, {8 * pairs * square:,}. The scores themselves have {8 * given[0].numel():,} bytes")


@exercise.case("refuses scores that are masked already", CONTRACT)
def after_mask(lab):
    masked = scores(**V).masked_fill(torch.arange(7) > torch.arange(6)[:, None], -torch.inf)
    lab.raises(ValueError, "finite", "compose_dynamic", masked, factors(**V))


@exercise.case("refuses scores that are no numbers", CONTRACT)
def not_a_number(lab):
    for value in (torch.nan, torch.inf):
        broken = scores(**V)
        broken[1, 3, 2, 4] = value
        lab.raises(ValueError, "finite", "compose_dynamic", broken, factors(**V))


def _finite(scores):
    if not torch.isfinite(scores).all():
        raise ValueError("the scores are not finite; compose before the mask")


def _rank(a, down, up, row):
    """a [B,H,T,S]; row is the axis, t or s, that the factors belong to."""
    low = torch.einsum(f"bhts,b{row}hr->btsr", a, down)
    return torch.einsum(f"btsr,b{row}rh->bhts", low, up)


def _gate(a, gate, row):
    return torch.einsum(f"bhts,b{row}h->bhts", a, gate)


@exercise.right
def einsum(scores, factors):
    _finite(scores)
    f = factors
    return (scores + _rank(scores, f["q1"], f["q2"], "t") + _rank(scores, f["k1"], f["k2"], "s")
            + _gate(scores, f["qg"], "t") + _gate(scores, f["kg"], "s"))


@exercise.right
def batched_products(scores, factors):
    _finite(scores)
    by_row, by_key = scores.permute(0, 2, 3, 1), scores.permute(0, 3, 2, 1)
    query = (by_row @ factors["q1"]) @ factors["q2"]
    key = (by_key @ factors["k1"]) @ factors["k2"]
    gates = 1 + factors["qg"].transpose(1, 2)[..., None] + factors["kg"].transpose(1, 2)[:, :, None]
    return scores * gates + query.permute(0, 3, 1, 2) + key.permute(0, 3, 2, 1)


@exercise.right
def one_map_a_row(scores, factors):
    _finite(scores)
    heads = scores.shape[1]
    by_query = factors["q1"] @ factors["q2"] + torch.diag_embed(factors["qg"]) + torch.eye(heads, dtype=scores.dtype)
    by_key = factors["k1"] @ factors["k2"] + torch.diag_embed(factors["kg"])
    return torch.einsum("bhts,bthg->bgts", scores, by_query) + torch.einsum("bhts,bshg->bgts", scores, by_key)


@exercise.right
def broadcasts_over_the_rank(scores, factors):
    _finite(scores)
    a = scores.permute(0, 2, 3, 1)
    out = a + a * factors["qg"][:, :, None] + a * factors["kg"][:, None]
    for r in range(factors["q1"].shape[-1]):
        out = out + (a * factors["q1"][:, :, None, :, r]).sum(-1, keepdim=True) * factors["q2"][:, :, None, r]
        out = out + (a * factors["k1"][:, None, :, :, r]).sum(-1, keepdim=True) * factors["k2"][:, None, :, r]
    return out.permute(0, 3, 1, 2)


@exercise.right
def concatenated_ranks(scores, factors):
    _finite(scores)
    a = scores.permute(0, 2, 3, 1)
    low = torch.cat([torch.einsum("btsh,bthr->btsr", a, factors["q1"]),
                     torch.einsum("btsh,bshr->btsr", a, factors["k1"])], dim=-1)
    down = low.split(factors["q1"].shape[-1], dim=-1)
    out = a * (1 + factors["qg"].unsqueeze(2) + factors["kg"].unsqueeze(1))
    out = out + down[0] @ factors["q2"] + (down[1].transpose(1, 2) @ factors["k2"]).transpose(1, 2)
    return out.permute(0, 3, 1, 2)


@exercise.right
def query_after_query(scores, factors):
    if scores.isnan().any() or scores.isinf().any():
        raise ValueError("finite scores only")
    rows = []
    for t in range(scores.shape[2]):
        a = scores[:, :, t].transpose(1, 2)
        q1, q2, qg = (factors[n][:, t] for n in ("q1", "q2", "qg"))
        key = (a[:, :, None] @ factors["k1"] @ factors["k2"])[:, :, 0]
        rows.append(a + a @ q1 @ q2 + key + a * qg[:, None] + a * factors["kg"])
    return torch.stack(rows, dim=2).permute(0, 3, 2, 1)


@exercise.wrong
def dense_map(scores, factors):
    """A full H×H map was stored for every pair. All values are right, and the memory is H²/2R times that of the
    factored way: go down to R numbers a pair, and back up."""
    _finite(scores)
    return oracle(scores, factors)


@exercise.wrong(id="dense-map")
def sample_after_sample(scores, factors):
    _finite(scores)
    one = [{name: t[b:b + 1] for name, t in factors.items()} for b in range(scores.shape[0])]
    return torch.cat([oracle(scores[b:b + 1], f) for b, f in enumerate(one)])


@exercise.recognise("dense-map")
def only_the_bytes(trials):
    """All values are right, and the one broken promise is that of the bytes."""
    [counted] = [t for t in trials if t.case.probe is bytes_kept]
    return (all(t.passed for t in trials if t.case.kind == VALUES) and not counted.passed
            and counted.message.startswith("one storage of"))


@exercise.wrong
def skip_missing(scores, factors):
    """The pair's own scores were left out of the sum. Zero factors must return the input."""
    return einsum(scores, factors) - scores


def _without(*names):
    def program(scores, factors):
        return einsum(scores, {n: torch.zeros_like(t) if n in names else t for n, t in factors.items()})
    return program


@exercise.wrong
def key_terms_missing(scores, factors):
    """What the key row says was left out. Query and key both condition the map, each with a low-rank term and a
    gate."""
    return _without("k1", "kg")(scores, factors)


@exercise.wrong(id="key-terms-missing")
def key_rank_missing(scores, factors):
    return _without("k1")(scores, factors)


@exercise.wrong(id="key-terms-missing")
def key_gate_missing(scores, factors):
    return _without("kg")(scores, factors)


def _exchanged(*sides):
    def program(scores, factors):
        swapped = {}
        for side in sides:
            swapped |= {f"{side}1": factors[f"{side}2"].mT, f"{side}2": factors[f"{side}1"].mT}
        return einsum(scores, {**factors, **swapped})
    return program


@exercise.wrong
def factors_exchanged(scores, factors):
    """The factor that leads up was used on the way down. q1 leads H heads down to rank R, q2 leads back up; k1 and k2
    do the same."""
    return _exchanged("q", "k")(scores, factors)


@exercise.wrong(id="factors-exchanged")
def of_queries_only(scores, factors):
    return _exchanged("q")(scores, factors)


@exercise.wrong(id="factors-exchanged")
def of_keys_only(scores, factors):
    return _exchanged("k")(scores, factors)


def _terms(rank_q="t", rank_k="s", gate_q="t", gate_k="s"):
    def program(scores, factors):
        _finite(scores)
        f = factors
        return (scores + _rank(scores, f["q1"], f["q2"], rank_q) + _rank(scores, f["k1"], f["k2"], rank_k)
                + _gate(scores, f["qg"], gate_q) + _gate(scores, f["kg"], gate_k))
    return program


@exercise.wrong
def query_term_on_keys(scores, factors):
    """A factor met the wrong axis. Query factors belong to rows of the score matrix, key factors to its columns."""
    return _terms(rank_q="s", gate_q="s")(scores, factors)


@exercise.wrong(id="query-term-on-keys")
def both_sides_crossed(scores, factors):
    return _terms("s", "t", "s", "t")(scores, factors)


@exercise.wrong(id="query-term-on-keys")
def query_rank_on_keys(scores, factors):
    return _terms(rank_q="s")(scores, factors)


@exercise.wrong(id="query-term-on-keys")
def query_gate_on_keys(scores, factors):
    return _terms(gate_q="s")(scores, factors)


@exercise.wrong(id="query-term-on-keys")
def keys_on_queries(scores, factors):
    return _terms(rank_k="t", gate_k="t")(scores, factors)


@exercise.wrong(id="query-term-on-keys")
def key_rank_on_queries(scores, factors):
    return _terms(rank_k="t")(scores, factors)


@exercise.wrong(id="query-term-on-keys")
def key_gate_on_queries(scores, factors):
    return _terms(gate_k="t")(scores, factors)


def _grouped(edges):
    def program(scores, factors):
        cut = {"q1": 2, "q2": 3, "k1": 2, "k2": 3, "qg": 2, "kg": 2}
        ends = edges(scores.shape[1])
        return torch.cat([einsum(scores[:, i:j], {n: t.narrow(cut[n], i, j - i) for n, t in factors.items()})
                          for i, j in ends], dim=1)
    return program


@exercise.wrong
def composed_within_groups(scores, factors):
    """Heads were composed within groups. The terms that lead from one group to another are missing: grouped composition
    saves communication between ranks, and is another function."""
    return _grouped(lambda h: [(0, -(-h // 2)), (-(-h // 2), h)])(scores, factors)


@exercise.wrong(id="composed-within-groups")
def the_smaller_group_first(scores, factors):
    return _grouped(lambda h: [(0, h // 2), (h // 2, h)])(scores, factors)


@exercise.wrong(id="composed-within-groups")
def every_head_alone(scores, factors):
    return _grouped(lambda h: [(i, i + 1) for i in range(h)])(scores, factors)


@exercise.recognise("composed-within-groups")
def blocks(trials):
    """The map that was read back is the right one within some groups of heads, and zero between them."""
    [shown] = [t for t in trials if t.case.probe is maps]
    got = shown.transcript[-1].value if shown.transcript else None
    batch, heads, queries, keys, _ = V.values()
    if not isinstance(got, torch.Tensor) or got.shape != (batch, heads, queries, keys) or shown.passed:
        return False
    want = oracle(one_head_each(heads, queries, keys).expand(batch, -1, -1, -1), factors(**V))
    right, none = (got - want).abs() < 1e-9, got.abs() < 1e-9
    owner = (torch.arange(queries)[:, None] * keys + torch.arange(keys)) % heads
    joined = torch.zeros(heads, heads, dtype=torch.bool)
    for of in range(heads):
        pairs = owner == of
        for to in range(heads):
            if right[:, to][:, pairs].all():
                joined[of, to] = True
            elif not none[:, to][:, pairs].all():
                return False
    same_group = bool((joined == joined.T).all()) and bool(((joined.long() @ joined.long() > 0) == joined).all())
    return same_group and bool(joined.diagonal().all()) and not bool(joined.all())


@exercise.wrong
def composed_after_mask(scores, factors):
    """Scores with minus infinity in them were composed. Infinity minus infinity is NaN, and a negative factor opens
    what the mask had closed: compose finite logits, then mask."""
    return _terms_of_any(scores, factors)


def _terms_of_any(a, f):
    return (a + _rank(a, f["q1"], f["q2"], "t") + _rank(a, f["k1"], f["k2"], "s") + _gate(a, f["qg"], "t")
            + _gate(a, f["kg"], "s"))


@exercise.recognise("composed-after-mask")
def masked_scores_accepted(trials):
    """All values are right, and masked scores came back composed."""
    [masked] = [t for t in trials if t.case.probe is after_mask]
    return (all(t.passed for t in trials if t.case.kind == VALUES) and not masked.passed
            and bool(masked.transcript) and masked.transcript[-1].error is None)
