"""A call is refused by what its tensors are, not by how large they are."""
from dataclasses import dataclass

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch, Record
from ._manifests import INVALID, RECORDS, SMALL, VALID, base, changed

exercise = Exercise(
    "validate_call", step=6, points=5, minutes=12, difficulty=4, importance=5, tensor=False,
    summary="The sorted codes of every rule that a call manifest breaks, before any projection runs.",
    hints=(
        "Go through the sixteen codes of the docstring one by one: each is one question about one or two fields. Ask "
        "all of them, whatever the first one says.",
        "What is a self call? Not a length, a mode and three names. What is a fused layout? An order, and spans that "
        "start where the one before stopped.",
        "Work out every width from heads and head widths; a total that somebody typed is a claim. A backend that was "
        "asked for is a wish, a backend that was observed has a trace.",
    ),
    hides="Equal widths hide a typed total, equal Q and K widths hide a swapped order, T = S hides an origin that was "
          "taken from a length; a single broken rule hides that only the first is reported.",
)
BUNDLES = {"admissible calls": VALID, "impostors of the same shape": INVALID, "other sizes": SMALL}


def _case(title, bundles):
    @exercise.case(title)
    def probe(lab):
        wrong = []
        for bundle in bundles:
            got = lab.call("validate_call", bundle.manifest)
            if not isinstance(got, (list, tuple, set, frozenset)) or set(got) != set(bundle.codes):
                wrong.append((bundle, got))
        if wrong:
            bundle, got = wrong[0]
            raise Mismatch(_message(bundle, got) + (f"; {len(wrong)} of {len(bundles)} bundles" if wrong[1:] else ""))


def _message(bundle, got):
    """What was said about a bundle, and the field that says otherwise."""
    if not isinstance(got, (list, tuple, set, frozenset)):
        return f"the result is a {type(got).__name__}, expected a list of codes"
    missing, extra = sorted(set(bundle.codes) - set(got)), sorted(map(str, set(got) - set(bundle.codes)))
    if not missing:
        return (f"{_subject(bundle)} was given the codes {', '.join(extra)}, which it does not deserve"
                + ("" if bundle.codes else ": it is admissible"))
    field, record = bundle.field, bundle.manifest
    for part in field.split("."):
        record = record[part]
    return (f"a call passed the rule {missing[0]}; look at {field} = {record!r}"
            + (f"; codes that it does not deserve: {', '.join(extra)}" if extra else ""))


def _subject(bundle):
    return f"\"{bundle.title}\"" if not bundle.codes else f"a call that breaks {', '.join(bundle.codes)}"


for _title, _bundles in BUNDLES.items():
    _case(_title, _bundles)


@exercise.case("a sorted list, every code once", CONTRACT)
def sorted_codes(lab):
    for bundle in INVALID[-4:]:
        expect.equal(lab.call("validate_call", bundle.manifest), list(bundle.codes), "the codes")
    expect.equal(lab.call("validate_call", base()), [], "the codes of an admissible call")


@exercise.case("records of mha_lab.given as well as dicts", CONTRACT)
def records(lab):
    for bundle in (VALID[5], VALID[13], INVALID[17], INVALID[23]):
        manifest = {name: _record(RECORDS.get(name), value) for name, value in bundle.manifest.items()}
        got = lab.call("validate_call", manifest)
        expect.true(isinstance(got, (list, tuple, set)) and set(got) == set(bundle.codes),
                    f"with records of mha_lab.given: {_message(bundle, got)}")


def _record(kind, value):
    if kind is None:
        return value
    fields = {name: _record("RoleSpec", part) if name in tuple("qkvo") else
              _record("CachedKV", part) if name == "cached_kv" and part else
              tuple(map(tuple, part)) if name == "spans" and part else part for name, part in value.items()}
    return Record(kind, fields)


@exercise.case("refuses a manifest that lacks a record", CONTRACT)
def refuses(lab):
    for name in RECORDS:
        whole = base()
        del whole[name]
        lab.raises(ValueError, "record", "validate_call", whole)
    lab.raises(ValueError, "record", "validate_call", {})


CODES = ("q-width", "k-width", "v-width", "o-width", "head-count", "self-origin", "kv-source", "cross-origin",
         "fused-order", "fused-spans", "release", "stochastic", "need-weights", "backend-evidence", "mask-semantics",
         "mask-axes")


def _get(record, name):
    return record[name] if isinstance(record, dict) else getattr(record, name)


class _Reader:
    """Fields of a manifest by attribute, be its records dicts or objects."""

    def __init__(self, manifest):
        missing = [name for name in RECORDS if name not in manifest]
        if missing:
            raise ValueError(f"no record {missing[0]}")
        for name in RECORDS:
            setattr(self, name, _Fields(manifest[name]))


class _Fields:
    def __init__(self, record):
        self._record = record

    def __getattr__(self, name):
        value = _get(self._record, name)
        return _Fields(value) if isinstance(value, dict) or hasattr(value, "__dataclass_fields__") else value


def _rows(m):
    h = m.heads
    return {"q": h.q_heads * h.d_qk, "k": h.kv_heads * h.d_qk, "v": h.kv_heads * h.d_v}


def _maps(m, role, into, out):
    spec = getattr(m.projection, role)
    return (spec.in_features, spec.out_features) != (into, out)


def _tiles(m):
    at, wanted = 0, []
    for role in m.projection.fused_order:
        wanted.append([at, at + _rows(m)[role]])
        at = wanted[-1][1]
    return [list(s) for s in m.projection.spans] != wanted


def _axes(m):
    call, axes = m.call, m.call.mask_axes
    if axes is None:
        return False
    full = call.batch, m.heads.q_heads, call.q_len, call.k_len
    return len(axes) != 4 or not all(n in (1, size) for n, size in zip(axes, full, strict=True))


def _fused(m):
    return m.projection.layout == "fused_qkv"


RULES = {
    "q-width": lambda m: _maps(m, "q", m.heads.d_model, _rows(m)["q"]),
    "k-width": lambda m: _maps(m, "k", m.heads.d_model, _rows(m)["k"]),
    "v-width": lambda m: _maps(m, "v", m.heads.d_model, _rows(m)["v"]),
    "o-width": lambda m: _maps(m, "o", m.heads.q_heads * m.heads.d_v, m.heads.d_model),
    "head-count": lambda m: m.heads.q_heads != m.heads.kv_heads,
    "self-origin": lambda m: m.call.mode == "self" and len({m.call.q_state_id, m.call.k_state_id,
                                                            m.call.v_state_id}) > 1,
    "kv-source": lambda m: m.call.mode == "cross" and m.call.k_state_id != m.call.v_state_id,
    "cross-origin": lambda m: m.call.mode == "cross" and m.call.q_state_id == m.call.k_state_id,
    "fused-order": lambda m: _fused(m) and list(m.projection.fused_order) != list("qkv"),
    "fused-spans": lambda m: _fused(m) and _tiles(m),
    "release": lambda m: m.runtime.cached_kv is not None and (
        m.runtime.cached_kv.release_id != m.runtime.release_id or m.runtime.cached_kv.adapter != m.runtime.adapter),
    "stochastic": lambda m: m.call.training and m.call.dropout_p > 0 and m.call.deterministic,
    "need-weights": lambda m: m.call.need_weights and m.runtime.forbids_matrix,
    "backend-evidence": lambda m: m.runtime.observed_backend is not None and m.runtime.observation_id is None,
    "mask-semantics": lambda m: m.call.canonical_mask_semantics != "true_is_visible",
    "mask-axes": _axes,
}


def _by(rules, manifest):
    m = _Reader(manifest)
    return sorted(code for code, broken in rules.items() if broken(m))


@exercise.right
def table_of_predicates(manifest):
    return _by(RULES, manifest)


@exercise.right
def list_of_rules(manifest):
    m, found = _Reader(manifest), []

    def require(holds, code):
        if not holds and code not in found:
            found.append(code)
    h, c, p, r = m.heads, m.call, m.projection, m.runtime
    widths = ("q", h.d_model, h.q_heads * h.d_qk), ("k", h.d_model, h.kv_heads * h.d_qk), (
        "v", h.d_model, h.kv_heads * h.d_v), ("o", h.q_heads * h.d_v, h.d_model)
    for role, into, out in widths:
        require(getattr(p, role).in_features == into, f"{role}-width")
        require(getattr(p, role).out_features == out, f"{role}-width")
    require(h.q_heads == h.kv_heads, "head-count")
    if c.mode == "self":
        require(c.q_state_id == c.k_state_id == c.v_state_id, "self-origin")
    if c.mode == "cross":
        require(c.k_state_id == c.v_state_id, "kv-source")
        require(c.q_state_id != c.k_state_id, "cross-origin")
    if p.layout != "separate":
        require(tuple(p.fused_order) == ("q", "k", "v"), "fused-order")
        stops = [stop for _, stop in p.spans]
        lengths = [stop - start for start, stop in p.spans]
        require([start for start, _ in p.spans] == [0, *stops[:-1]]
                and lengths == [_rows(m)[role] for role in p.fused_order], "fused-spans")
    if r.cached_kv:
        require((r.cached_kv.release_id, r.cached_kv.adapter) == (r.release_id, r.adapter), "release")
    require(not (c.training and c.deterministic) or c.dropout_p == 0, "stochastic")
    require(not (c.need_weights and r.forbids_matrix), "need-weights")
    require(r.observed_backend is None or r.observation_id, "backend-evidence")
    require(c.canonical_mask_semantics == "true_is_visible", "mask-semantics")
    require(not _axes(m), "mask-axes")
    found.sort()
    return found


@exercise.right
def dataclass_validators(manifest):
    @dataclass(frozen=True)
    class Call:
        m: _Reader

        def broken(self):
            for code in CODES:
                method = getattr(self, code.replace("-", "_"), None)
                if (method or (lambda: RULES[code](self.m)))():  # noqa: B023  called at once
                    yield code

        def self_origin(self):
            c = self.m.call
            return c.mode == "self" and not c.q_state_id == c.k_state_id == c.v_state_id

        def head_count(self):
            return self.m.heads.q_heads - self.m.heads.kv_heads != 0
    return sorted(set(Call(_Reader(manifest)).broken()))


def _wrong(id, why, name, *dropped, **replaced):
    rules = {code: rule for code, rule in RULES.items() if code not in dropped}
    rules |= {code.replace("_", "-"): rule for code, rule in replaced.items()}

    def program(manifest):
        return _by(rules, manifest)
    program.__name__, program.__doc__ = name, why
    exercise.wrong(program, id=id)


_wrong("shapes-only", "Two sources of equal shape are still two sources.", "no_names", "self-origin", "kv-source",
       "cross-origin")
_wrong("shapes-only", None, "extents_alone", *(c for c in CODES if c not in (
    "q-width", "k-width", "v-width", "o-width", "head-count", "fused-spans", "mask-axes")))


def _mode_by_length(manifest):
    call = manifest["call"]
    if isinstance(call, dict):
        return changed(manifest, {"call.mode": "self" if call["q_len"] == call["k_len"] else "cross"})
    return manifest


@exercise.wrong
def equal_lengths_mean_self(manifest):
    """Length is not identity."""
    return _by(RULES, _mode_by_length(manifest) if "call" in manifest else manifest)


@exercise.wrong(id="equal-lengths-mean-self")
def equal_lengths_mean_self_as_well(manifest):
    call = manifest.get("call")
    if isinstance(call, dict) and call["q_len"] == call["k_len"]:
        manifest = changed(manifest, {"call.mode": "self"})
    return _by(RULES, manifest)


_wrong("mixed-sources-accepted", "K and V must name one source.", "no_kv_source", "kv-source")
_wrong("target-as-source-accepted", "A cross call needs two origins.", "no_cross_origin", "cross-origin")
_wrong("fused-order-ignored", "Swapped Q and K rows keep every extent.", "no_order", "fused-order")
_wrong("fused-order-ignored", None, "any_order_of_three", fused_order=lambda m: _fused(m) and sorted(
    m.projection.fused_order) != ["k", "q", "v"])
_wrong("span-total-only", "Spans must tile the tensor in order.", "last_stop", fused_spans=lambda m: _fused(
    m) and m.projection.spans[-1][1] != sum(_rows(m).values()))
_wrong("span-total-only", None, "sum_of_lengths", fused_spans=lambda m: _fused(m) and sum(
    stop - start for start, stop in m.projection.spans) != sum(_rows(m).values()))
_wrong("span-total-only", None, "largest_stop", fused_spans=lambda m: _fused(m) and max(
    stop for _, stop in m.projection.spans) != sum(_rows(m).values()))
_wrong("typed-totals-trusted", "Widths follow from heads and head widths.", "typed",
       q_width=lambda m: _maps(m, "q", m.heads.d_model, m.heads.qk_total),
       k_width=lambda m: _maps(m, "k", m.heads.d_model, m.heads.qk_total),
       v_width=lambda m: _maps(m, "v", m.heads.d_model, m.heads.v_total),
       o_width=lambda m: _maps(m, "o", m.heads.v_total, m.heads.d_model))
_wrong("typed-totals-trusted", None, "typed_values",
       v_width=lambda m: _maps(m, "v", m.heads.d_model, m.heads.v_total),
       o_width=lambda m: _maps(m, "o", m.heads.v_total, m.heads.d_model))
_wrong("release-ignored", "Cached K/V of another release or adapter must be refused.", "no_release", "release")
_wrong("release-ignored", None, "adapter_not_asked", release=lambda m: m.runtime.cached_kv is not None
       and m.runtime.cached_kv.release_id != m.runtime.release_id)
_wrong("release-ignored", None, "only_the_adapter_asked", release=lambda m: m.runtime.cached_kv is not None
       and m.runtime.cached_kv.adapter != m.runtime.adapter)
_wrong("request-counts-as-observation", "A backend is observed by a trace, not by asking for it.", "as_requested",
       backend_evidence=lambda m: m.runtime.observed_backend not in (None, m.runtime.requested_backend)
       and not m.runtime.observation_id)
_wrong("request-counts-as-observation", None, "no_evidence", "backend-evidence")
_wrong("request-counts-as-observation", None, "a_request_is_enough", backend_evidence=lambda m:
       m.runtime.observed_backend is not None and not m.runtime.requested_backend)
_wrong("dropout-called-deterministic", "p > 0 in training contradicts a deterministic claim.", "no_dropout_rule",
       "stochastic")
_wrong("weights-without-matrix", "need_weights contradicts a request that forbids the matrix.", "no_weights_rule",
       "need-weights")
_wrong("polarity-unchecked", "The mask's meaning must be declared.", "no_polarity", "mask-semantics")
_wrong("rejects-square-cross", "Equal lengths are legal in a cross call.", "square_is_no_cross",
       cross_origin=lambda m: RULES["cross-origin"](m) or m.call.mode == "cross" and m.call.q_len == m.call.k_len)
_wrong("rejects-cached-self", "A cached self call is rectangular.", "self_is_square",
       self_origin=lambda m: RULES["self-origin"](m) or m.call.mode == "self" and m.call.q_len != m.call.k_len)
_wrong("rejects-cached-self", None, "self_mask_is_square",
       mask_axes=lambda m: _axes(m) or m.call.mode == "self" and m.call.q_len != m.call.k_len)


@exercise.wrong
def first_error_only(manifest):
    """Report every violated rule."""
    m = _Reader(manifest)
    return [code for code in CODES if RULES[code](m)][:1]


@exercise.wrong(id="first-error-only")
def first_of_the_alphabet(manifest):
    return _by(RULES, manifest)[:1]


def _answers(trials):
    """(bundle, codes) of every bundle, when each was answered with codes; else nothing."""
    pairs = []
    for trial, bundles in zip(trials, BUNDLES.values(), strict=False):
        answers = [o.value for o in trial.transcript]
        if len(answers) != len(bundles) or not all(isinstance(a, (list, tuple, set)) for a in answers):
            return []
        pairs += zip(bundles, map(set, answers), strict=True)
    return pairs


@exercise.recognise("first-error-only")
def one_code_at_most(trials):
    """Right where one code is due; where several are, one of them."""
    pairs = _answers(trials)
    return any(len(b.codes) > 1 for b, _ in pairs) and all(
        got == set(b.codes) if len(b.codes) < 2 else len(got) == 1 and got <= set(b.codes) for b, got in pairs)


UNASKED = {"kv-source": "mixed-sources-accepted", "cross-origin": "target-as-source-accepted",
           "fused-order": "fused-order-ignored", "release": "release-ignored",
           "backend-evidence": "request-counts-as-observation", "stochastic": "dropout-called-deterministic",
           "need-weights": "weights-without-matrix", "mask-semantics": "polarity-unchecked"}


def _never_given(trials):
    """The codes that never come although they are due, when that is all that is wrong."""
    pairs = _answers(trials)
    never = {code for code in CODES if not any(code in got for _, got in pairs)}
    if any(got != set(b.codes) - never for b, got in pairs):
        return set()
    return never


def _by_missing_code(code, id):
    @exercise.recognise(id)
    def unasked(trials):
        never = _never_given(trials)
        return code in never and never <= UNASKED.keys() and len(never) < 4


for _code, _id in UNASKED.items():
    _by_missing_code(_code, _id)


@exercise.recognise("shapes-only")
def no_identity(trials):
    return {"self-origin", "kv-source", "cross-origin"} <= _never_given(trials)
