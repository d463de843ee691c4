"""What stands against printing a figure: route, alternative text, digest, class, upstream, changes, permission."""
from __future__ import annotations

import hashlib

from ... import expect
from ...exercise import CONTRACT, Exercise

NAME = "check_publication"
exercise = Exercise(
    NAME, step=10, points=2, minutes=5, difficulty=2, importance=3,
    summary="Rules for figures that are about to be published, applied to their records.",
    hints=(
        "One rule at a time, each a question with yes or no. Which rules ask the same of all four classes, and which "
        "depend on the class?",
        "A recorded digest is a claim about bytes. Make it again from the content that is there now. And what is a "
        "text of spaces?",
        "Naming where a figure comes from and being allowed to print it are two fields. Annotations that you added "
        "make an extract a derivative, and a derivative without any change is an extract.",
    ),
    tensor=False,
    hides="One class hides the rules of the others; a record with several problems hides each of them behind the rest.",
)
CLASSES = "paper-extract", "paper-derivative", "reconstruction", "secondary-context"
SVG = "<svg><title>Two heads</title></svg>"


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def record(kind="reconstruction", **changes):
    """A good record of that class, with changes."""
    content = changes.get("content", SVG)
    good = {"route": "figures/heads.svg", "content": content, "digest": digest(content or SVG),
            "alt": "Two heads side by side, each reading every token.", "source_class": kind,
            "upstream": None if kind == "reconstruction" else "Vaswani et al. 2017, figure 2",
            "derivative": kind == "paper-derivative",
            "permission": None if kind == "reconstruction" else "CC BY 4.0"}
    return good | changes


def _say(records):
    return [", ".join(f"{k}={v!r}" for k, v in r.items() if k in ("source_class", "route", "alt", "upstream",
                                                                  "derivative", "permission")) for r in records]


def _try(lab, *pairs):
    """Records with the codes that each should get."""
    records = [r for r, _ in pairs]
    want = [f"{i}: {code}" for i, (_, codes) in enumerate(pairs) for code in sorted(codes)]
    got = lab.call(NAME, records)
    got = list(got) if isinstance(got, (list, tuple)) else got
    if got == want:
        return
    if isinstance(got, list) and all(isinstance(g, str) for g in got):
        for i, said in enumerate(_say(records)):
            mine, theirs = ([c for c in codes if c.startswith(f"{i}: ")] for codes in (got, want))
            expect.equal(mine, theirs, f"the list for record {i} ({said})")
    expect.equal(got, want, "the list")


@exercise.case("good records of all four classes")
def good(lab):
    _try(lab, *((record(kind), ()) for kind in CLASSES))


@exercise.case("alternative text: some, none, and blanks")
def alt(lab):
    _try(lab, *((record(kind, alt=text), codes) for kind in ("reconstruction", "paper-extract")
                for text, codes in (("", ["alt"]), ("   ", ["alt"]), ("\n\t ", ["alt"]), (" A map. ", []))))


@exercise.case("the file that is there, and the digest that was recorded")
def digests(lab):
    moved = SVG.replace("Two", "Three")
    _try(lab, (record(content=moved), []), (record(content=moved, digest=digest(SVG)), ["digest"]),
         (record("paper-extract", digest="0" * 64), ["digest"]), (record(digest=""), ["digest"]),
         (record(content="Köpfe"), []))


@exercise.case("additions to a figure of a paper")
def additions(lab):
    _try(lab, (record("paper-extract", derivative=True), ["derivative"]),
         (record("paper-derivative", derivative=False), ["derivative"]),
         (record("reconstruction", derivative=True), []), (record("secondary-context", derivative=True), []))


@exercise.case("a source that is named, and a permission that is not there")
def permissions(lab):
    _try(lab, *((record(kind, permission=text), ["permission"] if kind != "reconstruction" else [])
                for kind in CLASSES for text in (None, "", "  ")))


@exercise.case("a source that is not named")
def upstream(lab):
    _try(lab, *((record(kind, upstream=text), ["upstream"] if kind != "reconstruction" else [])
                for kind in CLASSES for text in (None, " ")), (record(upstream="our own sketch"), []))


@exercise.case("routes")
def routes(lab):
    _try(lab, (record(route="/figures/heads.svg"), ["route"]), (record(route="../heads.svg"), ["route"]),
         (record(route="figures/../../heads.svg"), ["route"]), (record(route=""), ["route"]),
         (record(route="heads.svg"), []), (record(route="figures/two..heads.svg"), []),
         (record(content=None), ["route"]), (record(content=None, digest="0" * 64), ["route"]))


@exercise.case("classes")
def classes(lab):
    _try(lab, (record("secondary-context", source_class="figure"), ["class"]),
         (record("paper-extract", source_class=""), ["class"]))


@exercise.case("several problems in one record, and the order of records", CONTRACT)
def several(lab):
    _try(lab, (record("paper-extract"), []),
         (record("paper-extract", alt=" ", upstream="", permission=None, derivative=True, digest="", route=""),
          ["alt", "derivative", "digest", "permission", "route", "upstream"]),
         *((record(alt=""), ["alt"]) for _ in range(10)))


@exercise.case("no records, no problems", CONTRACT)
def none(lab):
    _try(lab)


RULES = {
    "alt": lambda r: not r["alt"].strip(),
    "class": lambda r: r["source_class"] not in CLASSES,
    "derivative": lambda r: (r["source_class"], r["derivative"]) in (("paper-extract", True),
                                                                     ("paper-derivative", False)),
    "digest": lambda r: r["content"] is not None and digest(r["content"]) != r["digest"],
    "permission": lambda r: r["source_class"] != "reconstruction" and not (r["permission"] or "").strip(),
    "route": lambda r: r["content"] is None or not r["route"] or r["route"][0] == "/" or ".." in r["route"].split("/"),
    "upstream": lambda r: r["source_class"] != "reconstruction" and not (r["upstream"] or "").strip(),
}


def by_rules(**changed):
    rules = {name: rule for name, rule in (RULES | changed).items() if rule}
    return lambda records: [f"{i}: {name}" for i, r in enumerate(records) for name, rule in rules.items() if rule(r)]


@exercise.right
def a_table_of_rules(records):
    return by_rules()(records)


@exercise.right
def a_chain_of_ifs(records):
    import pathlib
    found = []
    for number, r in enumerate(records):
        here = set()
        if r["alt"].isspace() or not len(r["alt"]):
            here.add("alt")
        if r["content"] is None:
            here.add("route")
        elif hashlib.new("sha256", bytes(r["content"], "utf-8")).digest().hex() != r["digest"]:
            here.add("digest")
        path = pathlib.Path(r["route"])
        if str(path) == "." or path.is_absolute() or any(part == ".." for part in path.parts):
            here.add("route")
        if r["source_class"] not in {"paper-extract", "paper-derivative", "reconstruction", "secondary-context"}:
            here.add("class")
        if r["source_class"] != "reconstruction":
            here |= {name for name in ("upstream", "permission") if not str(r[name] or "").strip()}
        if r["source_class"].startswith("paper") and r["derivative"] is not r["source_class"].endswith("derivative"):
            here.add("derivative")
        found.extend(f"{number}: {code}" for code in sorted(here))
    return tuple(found)


@exercise.wrong
def alt_of_spaces(records):
    """Alternative text of spaces is empty: it says nothing to those who do not see the figure."""
    return by_rules(alt=lambda r: not r["alt"])(records)


@exercise.wrong(id="alt-of-spaces")
def alt_not_looked_at(records):
    return by_rules(alt=None)(records)


@exercise.wrong
def digest_unchecked(records):
    """The file is not the recorded one. A digest that is only carried along proves nothing; make it again."""
    return by_rules(digest=None)(records)


@exercise.wrong(id="digest-unchecked")
def digest_only_looked_at(records):
    return by_rules(digest=lambda r: r["content"] is not None and len(r["digest"]) != 64)(records)


@exercise.wrong
def derivative_as_paper(records):
    """Added annotations are not part of the paper: a figure that was changed cannot carry the paper's claim."""
    return by_rules(derivative=None)(records)


@exercise.wrong(id="derivative-as-paper")
def only_derivatives_looked_at(records):
    return by_rules(derivative=lambda r: r["source_class"] == "paper-derivative" and not r["derivative"])(records)


@exercise.wrong
def provenance_is_permission(records):
    """Naming a source grants no right to print it: licence or permission is a field of its own."""
    return by_rules(permission=None)(records)


@exercise.wrong(id="provenance-is-permission")
def either_will_do(records):
    return by_rules(permission=lambda r: r["source_class"] != "reconstruction"
                    and not ((r["permission"] or "") + (r["upstream"] or "")).strip())(records)
