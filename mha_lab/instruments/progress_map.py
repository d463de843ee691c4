"""The progress map: every exercise as one cell, and the named mistakes that were met and beaten.

    >>> entry = {"name": "split_heads", "points": 3, "best": 3, "status": "passed", "mark": "✓", "word": "passed",
    ...          "met": ["relabelled-bytes"], "beaten": ["relabelled-bytes"], "known": 7}
    >>> ProgressMap([{"number": "01", "title": "The shape machine", "exercises": [entry]}]).alt()
    'Progress. 3 of 3 points; 1 of 1 exercises passed; 1 named mistake met, 1 beaten.'

`progress()` in a notebook shows it for your own workspace.
"""

from __future__ import annotations

from collections.abc import Sequence

from .kit import Instrument, fixed, grid, scene, table, words

FILLS, OTHER = {"passed": "good", "not_started": "none", "not_measured": "w3"}, "bad"
SAYS = {
    "sum": "{got} of {all} points; {passed} of {count} exercises passed; {met} met, {beaten} beaten.",
    "one": "1 named mistake", "many": "{count} named mistakes",
    "probe": "{name}: {word}, {best} of {points} points; met {met} of {known} named mistakes.",
    "empty": "no exercise here",
}


class ProgressMap(Instrument):
    """sessions: for each its number, title and exercises; an exercise has name, points, best, status with its mark
    and word, met and beaten (lists of ids) and known (how many wrong programs have a name).

    State: session (the row that the table shows).
    """

    name, title = "progress-map", "Progress"

    def __init__(self, sessions: Sequence[dict]):
        self._sessions = [dict(session) for session in sessions]

    def data(self) -> dict:
        return {"sessions": self._sessions, "looks": FILLS, "other": OTHER, "says": SAYS}

    def start(self) -> dict:
        """The first session with something left to do."""
        left = [i for i, session in enumerate(self._sessions)
                if any(entry["status"] != "passed" for entry in session["exercises"])]
        return {"session": left[0] if left else 0}

    def settle(self, state: dict) -> dict:
        if not (isinstance(state["session"], int) and 0 <= state["session"] < len(self._sessions)):
            raise ValueError(f"session counts from 0 to {len(self._sessions) - 1}, got {state['session']!r}")
        return state

    def scene(self, state: dict) -> dict:
        every = [entry for session in self._sessions for entry in session["exercises"]]
        wide = max([len(session["exercises"]) for session in self._sessions], default=0)
        fills, labels = [], []
        for session in self._sessions:
            entries = session["exercises"]
            fills += [FILLS.get(entry["status"], OTHER) for entry in entries] + ["void"] * (wide - len(entries))
            labels += [entry["mark"] for entry in entries] + [""] * (wide - len(entries))
        rows = [f"{'▶ ' if i == state['session'] else ''}{session['number']} {session['title']}"
                for i, session in enumerate(self._sessions)]
        said = SAYS["sum"].format(got=_number(sum(entry["best"] for entry in every)),
                                  all=_number(sum(entry["points"] for entry in every)),
                                  passed=sum(entry["status"] == "passed" for entry in every), count=len(every),
                                  met=_mistakes(sum(len(entry["met"]) for entry in every)),
                                  beaten=sum(len(entry["beaten"]) for entry in every))
        shown = self._sessions[state["session"]]
        lines = [[entry["name"], entry["word"], f"{_number(entry['best'])} of {_number(entry['points'])}",
                  ", ".join(f"{id}{' ✓' if id in entry['beaten'] else ''}" for id in entry["met"]) or "–"]
                 for entry in shown["exercises"]]
        return scene(said, [
            words("sum", [said]),
            grid("map", "exercises, session by session", rows, [str(i + 1) for i in range(wide)], fills, labels),
            table("session", f"{shown['number']} {shown['title']}",
                  ["exercise", "last check", "points", "mistakes met (✓ beaten)"], lines)])


def _number(value: float) -> str:
    return fixed(value, 0) if value == int(value) else fixed(value, 1)


def _mistakes(count: int) -> str:
    return SAYS["one"] if count == 1 else SAYS["many"].format(count=count)
