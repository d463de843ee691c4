"""What each changed layer adds: parameters, and multiply-accumulates of one call."""
import math

from ... import expect
from ...exercise import CONTRACT, Exercise
from ._counted import COUNTED
from ._formulas import ALL, program, total

exercise = Exercise(
    "variant_ledger", step=8, points=3, minutes=12, difficulty=3, importance=4, tensor=False,
    summary="Count for six changed layers what they add to the classic one, and what they save.",
    hints=(
        "Do one kind after the other: write the products of the changed layer and those of the classic one with all "
        "sizes, and subtract. A kind that you have not written may raise ValueError until you have.",
        "For each product ask what it runs over: rows of a sequence, or pairs of rows? Small maps over pairs cost more "
        "than large maps over rows once the sequence is long.",
        "Put a size at its border and look whether your formula agrees with common sense: overlap 0, a shared width "
        "that is full, all heads selected, as many key/value heads as query heads.",
    ),
    hides="q_len = k_len hides which rows a product runs over; H_k = H_s = H_v hides a map; batch 1 hides the batch; a "
          "width of exactly H·D hides what a compressed basis saves.",
)

MEANING = {
    "parameters": "weights added", "macs": "the sum of the parts", "local_macs": "wider score and value products",
    "output_macs": "the wider W_O", "logit_macs": "the map before softmax, for every pair",
    "weight_macs": "the map after softmax, for every pair", "generator_macs": "four generators over their rows",
    "compose_macs": "four terms for every pair, at two places", "router_macs": "three small maps over tokens",
    "skipped_macs": "products of tokens with heads that do not run", "active_fraction": "heads that count for a token",
    "projection_macs": "projections, less the classic ones", "mixing_macs": "the metric times queries",
    "score_macs": "the score product, less the classic one",
}
FIGURES = {
    "mohsa": [dict(batch=2, q_len=5, k_len=7, d_model=10, num_heads=3, head_dim=4, overlap=2),
              dict(batch=3, q_len=11, k_len=2, d_model=13, num_heads=5, head_dim=6, overlap=1),
              dict(batch=1, q_len=128, k_len=128, d_model=512, num_heads=8, head_dim=64, overlap=4)],
    "talking": [dict(batch=2, q_len=5, k_len=7, logit_heads=2, softmax_heads=3, value_heads=4),
                dict(batch=3, q_len=11, k_len=2, logit_heads=7, softmax_heads=5, value_heads=6),
                dict(batch=1, q_len=4096, k_len=4096, logit_heads=32, softmax_heads=32, value_heads=32)],
    "dcmha": [dict(batch=2, q_len=5, k_len=7, d_model=10, num_heads=3, rank=2),
              dict(batch=3, q_len=11, k_len=2, d_model=13, num_heads=5, rank=4),
              dict(batch=1, q_len=4096, k_len=4096, d_model=2048, num_heads=32, rank=2)],
    "moh": [dict(batch=2, q_len=5, k_len=7, d_model=10, num_heads=8, head_dim=4, num_shared=3, top_k=2, dense=0),
            dict(batch=2, q_len=5, k_len=7, d_model=10, num_heads=8, head_dim=4, num_shared=3, top_k=2, dense=1),
            dict(batch=3, q_len=11, k_len=2, d_model=13, num_heads=9, head_dim=5, num_shared=1, top_k=4, dense=0),
            dict(batch=1, q_len=128, k_len=128, d_model=4096, num_heads=32, head_dim=128, num_shared=16, top_k=8,
                 dense=1)],
    "collab": [dict(batch=2, q_len=5, k_len=7, d_model=10, num_heads=3, head_dim=4, width=9),
               dict(batch=3, q_len=11, k_len=2, d_model=13, num_heads=5, head_dim=6, width=30),
               dict(batch=1, q_len=128, k_len=128, d_model=512, num_heads=8, head_dim=64, width=256)],
    "gqa": [dict(batch=2, q_len=5, k_len=7, d_model=10, num_heads=12, num_kv_heads=3, head_dim=4),
            dict(batch=1, q_len=3, k_len=11, d_model=13, num_heads=6, num_kv_heads=1, head_dim=5)],
}
PROBES = {}


def _check(lab, kind, sizes):
    want = COUNTED[kind](**sizes)
    got = lab.call("variant_ledger", kind, **sizes)
    call = f"variant_ledger({kind!r}, {', '.join(f'{k}={v}' for k, v in sizes.items())})"
    expect.true(isinstance(got, dict), f"{call} is a {type(got).__name__}, expected a dict")
    missing, extra = [k for k in want if k not in got], [k for k in got if k not in want]
    expect.true(not missing, f"{call} has no {', '.join(missing)}")
    expect.true(not extra, f"{call} has {', '.join(map(str, extra))}, which the contract does not know")
    wrong = [k for k in want if not _equal(got[k], want[k])]
    if wrong:
        key = wrong[0]
        held = f"{got[key]:,}" if _number(got[key]) else repr(got[key])[:60]
        others = f"; also wrong: {', '.join(wrong[1:])}" if wrong[1:] else ""
        raise expect.Mismatch(f"{call}: {key} ({MEANING[key]}) is {held}, expected {want[key]:,}{others}")


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _equal(got, want):
    return _number(got) and abs(got - want) <= 1e-12 * abs(want)


def _case(kind, number, sizes):
    @exercise.case(f"{kind}, {number}: {', '.join(f'{k} {v}' for k, v in sizes.items())}")
    def probe(lab):
        _check(lab, kind, sizes)
    PROBES[probe] = kind, sizes


for _kind, _all in FIGURES.items():
    for _number_of, _sizes in enumerate(_all, 1):
        _case(_kind, _number_of, _sizes)


@exercise.case("refuses a kind that it does not know", CONTRACT)
def unknown_kind(lab):
    lab.raises(ValueError, "kind", "variant_ledger", "mixture", **FIGURES["gqa"][0])


@exercise.case("refuses a call that lacks a size, and names it", CONTRACT)
def missing_size(lab):
    for kind, sizes in FIGURES.items():
        *_, last = sizes[0]
        short = {name: size for name, size in sizes[0].items() if name != last}
        for word in ("size", last):
            lab.raises(ValueError, word, "variant_ledger", kind, **short)


@exercise.case("refuses a size that the kind does not take, and names it", CONTRACT)
def unknown_size(lab):
    for kind, sizes in FIGURES.items():
        for word in ("size", "window"):
            lab.raises(ValueError, word, "variant_ledger", kind, **sizes[0], window=3)


@exercise.right
def formulas(kind, **sizes):
    return program(*ALL.values())(kind, **sizes)


@exercise.right
def built_and_counted(kind, **sizes):
    return program(*COUNTED.values())(kind, **sizes)


@exercise.right
def floats_in_place_of_integers(kind, **sizes):
    return {key: float(value) for key, value in formulas(kind, **sizes).items()}


def _changed(kind, change):
    """The right program with one kind's ledger changed: change(ledger, sizes) gives the new entries."""
    def changed(asked, **sizes):
        ledger = formulas(asked, **sizes)
        return total(ledger | change(ledger, sizes)) if asked == kind else ledger
    return changed


@exercise.wrong
def overlap_free(kind, **sizes):
    """Overlap was counted as free. The gathered channels widen both pair products, and W_O has to read them."""
    nothing = {"parameters": 0, "local_macs": 0, "output_macs": 0}
    return _changed("mohsa", lambda *_: nothing)(kind, **sizes)


@exercise.wrong(id="overlap-free")
def without_work(kind, **sizes):
    return _changed("mohsa", lambda *_: {"local_macs": 0, "output_macs": 0})(kind, **sizes)


@exercise.wrong(id="overlap-free")
def free_in_the_products(kind, **sizes):
    return _changed("mohsa", lambda *_: {"local_macs": 0})(kind, **sizes)


@exercise.wrong(id="overlap-free")
def free_in_one_product(kind, **sizes):
    return _changed("mohsa", lambda ledger, _: {"local_macs": ledger["local_macs"] // 2})(kind, **sizes)


@exercise.wrong(id="overlap-free")
def free_in_w_o(kind, **sizes):
    return _changed("mohsa", lambda *_: {"parameters": 0, "output_macs": 0})(kind, **sizes)


def _maps(sizes):
    return sizes["logit_heads"] * sizes["softmax_heads"], sizes["softmax_heads"] * sizes["value_heads"]


@exercise.wrong
def talking_parameters_only(kind, **sizes):
    """The two maps were counted as weights only. They are small, but they run for every pair of a query and a key."""
    return _changed("talking", lambda *_: {"logit_macs": 0, "weight_macs": 0})(kind, **sizes)


@exercise.wrong(id="talking-parameters-only")
def once_a_call(kind, **sizes):
    return _changed("talking", lambda _, s: dict(zip(("logit_macs", "weight_macs"), _maps(s), strict=True)))(
        kind, **sizes)


@exercise.wrong(id="talking-parameters-only")
def once_a_query(kind, **sizes):
    return _changed("talking", lambda ledger, s: {k: ledger[k] // s["k_len"] for k in ("logit_macs", "weight_macs")})(
        kind, **sizes)


@exercise.wrong
def one_generator(kind, **sizes):
    """DCMHA has four generators: one of queries and one of keys, before softmax and after it."""
    return _changed("dcmha", lambda ledger, s: {
        "parameters": ledger["parameters"] // 4,
        "generator_macs": s["batch"] * s["q_len"] * ledger["parameters"] // 4})(kind, **sizes)


@exercise.wrong(id="one-generator")
def one_for_queries_and_one_for_keys(kind, **sizes):
    return _changed("dcmha", lambda ledger, s: {
        "parameters": ledger["parameters"] // 2, "generator_macs": ledger["generator_macs"] // 2})(kind, **sizes)


@exercise.wrong(id="one-generator")
def only_of_queries(kind, **sizes):
    return _changed("dcmha", lambda ledger, s: {
        "parameters": ledger["parameters"] // 2,
        "generator_macs": s["batch"] * s["q_len"] * ledger["parameters"] // 2})(kind, **sizes)


@exercise.wrong(id="one-generator")
def one_place_only(kind, **sizes):
    return _changed("dcmha", lambda ledger, _: {k: v // 2 for k, v in ledger.items()})(kind, **sizes)


@exercise.wrong
def routed_fraction(kind, **sizes):
    """Only the routed heads were counted. Shared heads run for every token too: (H_s + K_r) of H are active."""
    return _changed("moh", lambda _, s: {"active_fraction": s["top_k"] / s["num_heads"]})(kind, **sizes)


@exercise.wrong(id="routed-fraction")
def of_the_routed(kind, **sizes):
    return _changed("moh", lambda _, s: {"active_fraction": s["top_k"] / (s["num_heads"] - s["num_shared"])})(
        kind, **sizes)


@exercise.wrong(id="routed-fraction")
def in_the_work_as_well(kind, **sizes):
    def change(ledger, s):
        alone = formulas("moh", **s | dict(num_shared=0))
        return {k: alone[k] for k in ("active_fraction", "skipped_macs")}
    return _changed("moh", change)(kind, **sizes)


@exercise.wrong
def mask_as_sparse(kind, **sizes):
    """Heads that are multiplied by zero were counted as saved. A dense fallback computes them all the same, and saves
    nothing."""
    return _changed("moh", lambda _, s: {"skipped_macs": formulas("moh", **s | dict(dense=0))["skipped_macs"]})(
        kind, **sizes)


def _gained(sizes):
    return 2 * sizes["d_model"] * (sizes["width"] - sizes["num_heads"] * sizes["head_dim"])


@exercise.wrong
def collab_always_smaller(kind, **sizes):
    """The mixing matrix was left out. At full width the layer is larger than the classic one, by H·D̃ weights."""
    return _changed("collab", lambda _, s: {"parameters": _gained(s)})(kind, **sizes)


@exercise.wrong(id="collab-always-smaller")
def never_above_zero(kind, **sizes):
    return _changed("collab", lambda ledger, _: {"parameters": min(0, ledger["parameters"])})(kind, **sizes)


@exercise.wrong(id="collab-always-smaller")
def mixing_is_free(kind, **sizes):
    return _changed("collab", lambda _, s: {"parameters": _gained(s), "mixing_macs": 0})(kind, **sizes)


def _as_classic(sizes):
    pairs = sizes["batch"] * sizes["q_len"] * sizes["k_len"]
    return pairs * (sizes["width"] - sizes["num_heads"] * sizes["head_dim"])


@exercise.wrong
def collab_classic_work(kind, **sizes):
    """The score product was counted as one over D̃ coordinates for all heads together. Every head sums over all of them:
    at equal width that is H times the classic product."""
    return _changed("collab", lambda _, s: {"score_macs": _as_classic(s)})(kind, **sizes)


@exercise.wrong(id="collab-classic-work")
def scores_unchanged(kind, **sizes):
    return _changed("collab", lambda *_: {"score_macs": 0})(kind, **sizes)


def _of_mohsa(want, s):
    return {"parameters": {0}, "local_macs": {0, want["local_macs"] // 2}, "output_macs": {0}}


def _of_talking(want, s):
    before, after = _maps(s)
    fewer = s["k_len"], s["q_len"], s["q_len"] * s["k_len"], s["batch"] * s["q_len"] * s["k_len"]
    return {"logit_macs": {0, before} | {want["logit_macs"] // n for n in fewer},
            "weight_macs": {0, after} | {want["weight_macs"] // n for n in fewer}}


def _of_dcmha(want, s):
    one, rows = want["parameters"] // 4, (s["q_len"], s["k_len"])
    work = {s["batch"] * n * one * times for n in (*rows, sum(rows)) for times in (1, 2)} - {want["generator_macs"]}
    return {"parameters": {one, 2 * one}, "generator_macs": work, "compose_macs": {want["compose_macs"] // 2}}


def _of_shares(want, s):
    alone = formulas("moh", **s | dict(num_shared=0))
    return {"active_fraction": {s["top_k"] / s["num_heads"], s["top_k"] / (s["num_heads"] - s["num_shared"])},
            "skipped_macs": {alone["skipped_macs"]} - {want["skipped_macs"]}}


def _of_masks(want, s):
    return {"skipped_macs": {formulas("moh", **s | dict(dense=0))["skipped_macs"]}} if s["dense"] else {}


def _of_small_collab(want, s):
    return {"parameters": {_gained(s), min(0, want["parameters"])} - {want["parameters"]}, "mixing_macs": {0}}


def _of_classic_collab(want, s):
    return {"score_macs": {_as_classic(s), 0}}


MISTAKES = {
    "overlap-free": ("mohsa", _of_mohsa, ("parameters", "local_macs", "output_macs")),
    "talking-parameters-only": ("talking", _of_talking, ("logit_macs", "weight_macs")),
    "one-generator": ("dcmha", _of_dcmha, ("parameters", "generator_macs")),
    "routed-fraction": ("moh", _of_shares, ("active_fraction",)),
    "mask-as-sparse": ("moh", _of_masks, ("skipped_macs",)),
    "collab-always-smaller": ("collab", _of_small_collab, ("parameters",)),
    "collab-classic-work": ("collab", _of_classic_collab, ("score_macs",)),
}


def _by_numbers(id, kind, numbers, telling):
    """A ledger is this mistake if each of its numbers is right or a known mistake's, and one of the `telling` keys has
    this mistake's number wherever it can be told from the right one. Other kinds have no say."""
    siblings = [other for _, (k, other, _) in MISTAKES.items() if k == kind]

    @exercise.recognise(id)
    def fits(trials):
        seen = 0
        for trial in trials:
            if PROBES.get(trial.case.probe, ("",))[0] != kind:
                continue
            sizes = PROBES[trial.case.probe][1]
            got = trial.transcript[-1].value if trial.transcript else None
            want, mine = ALL[kind](**sizes), numbers(ALL[kind](**sizes), sizes)
            if not isinstance(got, dict) or got.keys() != want.keys() or not all(map(_number, got.values())):
                return False
            explained = [other(want, sizes) for other in siblings]
            for key in want.keys() - {"macs"}:
                known = {n for other in explained for n in other.get(key, ())}
                if not _equal(got[key], want[key]) and not any(_equal(got[key], n) for n in known):
                    return False
            if not _equal(got["macs"], want["macs"]) and not _equal(got["macs"], total(got)["macs"]):
                return False
            shows = [k for k in telling if any(_equal(got[k], n) and not _equal(n, want[k]) for n in mine.get(k, ()))]
            could = [k for k in telling if any(not _equal(n, want[k]) for n in mine.get(k, ()))]
            if could and not shows:
                return False
            seen += bool(shows)
        return seen > 0


for _id, _mistake in MISTAKES.items():
    _by_numbers(_id, *_mistake)
