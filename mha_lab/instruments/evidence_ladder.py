"""The evidence ladder: which experiment carries which claim about a head, and what the next rung would add.

    >>> EvidenceLadder().alt(kind="map", claim="causal_necessity")
    'The evidence ladder. map: nothing is changed, probabilities are looked at. It does not carry causal_necessity; it carries pattern.'

The rungs are ordered by what they change. Source: Rewrite interpretation of Clark, Michel and Voita et al. 2019.
"""  # noqa: E501

from __future__ import annotations

from ..records_evidence import CLAIMS, KINDS
from .kit import Instrument, grid, scene, table, words

# kind: (what it changes, the claim that it carries, what it leaves open)
RUNGS: dict[str, tuple[str, str, str]] = {
    "map": ("nothing is changed, probabilities are looked at", "pattern", "that the output used it"),
    "probe": ("a probe is trained on the side", "decodable", "that the model reads what the probe reads"),
    "gradient": ("a gate moves by a hair", "local_dependence", "a removal, which is a whole step"),
    "ablation": ("a gate is set to 0, nothing is trained", "removal_effect", "what training would repair"),
    "sparse_gate": ("gates and weights are trained together", "recoverability", "a small model trained from scratch"),
    "prune_retrain": ("coordinates are deleted, weights trained on", "recoverability", "any other model or task"),
    "small_model": ("another model is trained from its own start", "", "that the large one is redundant"),
    "profile": ("shapes change, and a machine is timed", "speedup", "speed elsewhere, or from a mask"),
}
SAYS = {
    "yes": "{kind}: {changes}. It carries {claim}, for this checkpoint and these inputs; it leaves open {open}.",
    "no": "{kind}: {changes}. It does not carry {claim}; it carries {carries}.",
    "nothing": "no claim about this checkpoint",
    "alone": "No single experiment carries {claim}.",
}


class EvidenceLadder(Instrument):
    """State: kind (one of KINDS), claim (one of CLAIMS)."""

    name, title = "evidence-ladder", "The evidence ladder"

    def data(self) -> dict:
        return {"rungs": {kind: list(RUNGS[kind]) for kind in KINDS}, "claims": list(CLAIMS), "says": SAYS}

    def start(self) -> dict:
        return {"kind": "ablation", "claim": "removal_effect"}

    def settle(self, state: dict) -> dict:
        for name, known in (("kind", KINDS), ("claim", CLAIMS)):
            if state[name] not in known:
                raise ValueError(f"{state[name]!r} is no {name}; there are {', '.join(known)}")
        return state

    def scene(self, state: dict) -> dict:
        kind, claim = state["kind"], state["claim"]
        changes, carries, leaves = RUNGS[kind]
        lines = [SAYS["yes" if carries == claim else "no"].format(
            kind=kind, changes=changes, claim=claim, open=leaves, carries=carries or SAYS["nothing"])]
        if claim not in [rung[1] for rung in RUNGS.values()]:
            lines.append(SAYS["alone"].format(claim=claim))
        cells = [(name, about) for about in CLAIMS for name in KINDS]
        fills = ["good" if RUNGS[name][1] == about else "t1" if (name, about) == (kind, claim) else "none"
                 for name, about in cells]
        labels = ["yes" if RUNGS[name][1] == about else "no" if (name, about) == (kind, claim) else ""
                  for name, about in cells]
        rows = [f"▶ {about}" if about == claim else about for about in CLAIMS]
        cols = [f"▶{name}" if name == kind else name for name in KINDS]
        facts = [[name, *RUNGS[name][::2]] for name in KINDS]
        return scene(" ".join(lines), [
            words("say", lines),
            grid("ladder", "claims, and the experiments that carry them", rows, cols, fills, labels),
            table("rungs", "what each changes, and leaves open", ["experiment", "changes", "leaves open"], facts,
                  now=KINDS.index(kind))])
