"""The kit that instruments are built from. An instrument is one Python class and one small ES module.

**Python**: a subclass of `Instrument`, without any widget import.

    class CacheDesk(Instrument):
        name, title = "cache-desk", "The cache desk"         # js/cache_desk.js, a class `CacheDesk` here
        def data(self): ...        # plain JSON that never changes: facts, sentences, values read from torch tensors
        def start(self): ...       # the state that a view begins with: a flat dict of plain values
        def settle(self, state):   # checks a state: returns it, or raises ValueError for one that cannot be shown
        def scene(self, state):    # what is seen in that state: scene(alt, [grid(...), table(...), bars(...)])

and it has `svg(**changes)`, `alt(**changes)`, `view(**changes)`, and works with `show(instrument, **changes)`.
Register the class in `_HOMES` of `mha_lab/instruments/__init__.py`.

**A scene** is plain data, made by `scene`, `grid`, `table`, `bars` and `words` below; `js/paint.js` has the same five
functions. The browser makes the scene itself (no kernel is asked), so the JavaScript `scene(data, state)` has to equal
the Python one: `tests/instruments/kit.py` has `assert_agreement(cases)`, which runs both. Numbers that become text go
through `fixed` (both sides round alike).

**Browser**: `js/cache_desk.js` exports `scene(data, state)` and a default with `render`:

    import { mount } from "./kit.js";
    import { grid, scene as sceneOf } from "./paint.js";
    export function scene(data, state) { ... }
    export default { render: (context) => mount(context, {
      name: "cache-desk", title: "The cache desk", scene,
      settle: (data, state) => state,                       // optional: the nearest state that can be shown
      controls: (kit) => [kit.slider({...}), kit.radios({...}), kit.select({...}), kit.check({...}), kit.text({...}),
                          kit.buttons({...}), kit.stepper({...})],
      probe: (data, state, part, index) => ({ text, marks: { partId: [indices] } }),   // hover or focus on a cell
      pick: (data, state, part, index) => changes,          // optional: click, Enter or Space on a cell
    }) };

Each control names a `label`, `value(state)` and `set(value) -> changes`; `values(state)` or `options(state)` list what
can be set, so that nothing else can; `shown(state)` hides it. See the comments in `js/kit.js`. `mount` sends every
change to the kernel as one message, redraws only what changed, moves the cursor with arrows, Home, End, Page keys or the pointer,
speaks the probe's text in a live region, keeps these keys from JupyterLab, and folds the still picture away.
Joined modules share one scope: give top-level names that no other file under `js/` has.

**Colour** comes from `FILLS`: a key names a colour *and* a hatch, so that no meaning is carried by colour alone, and
cells stay light with dark text in both themes. `t0`..`t7` identities (tokens, rows, heads), `w0`..`w10` a share from 0
to 1, `p1`..`p4` and `n1`..`n4` signed sizes, `off` hidden or masked, `none` empty, `good` and `bad` verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .shape_text import TOKEN_FILLS

RISING, LEVEL, FALLING, CROSS = 1, 2, 3, 4

FILLS: dict[str, tuple[str, int]] = {
    **{f"t{i}": (colour, i % 4) for i, colour in enumerate(TOKEN_FILLS)},
    **{f"w{i}": ("#" + "".join(f"{round(255 + (low - 255) * i / 10):02x}" for low in (0x5B, 0x9F, 0xDD)), 0)
       for i in range(11)},
    **{f"p{i}": ("#" + "".join(f"{round(255 + (low - 255) * i / 4):02x}" for low in (0x5B, 0x9F, 0xDD)), 0)
       for i in range(1, 5)},
    **{f"n{i}": ("#" + "".join(f"{round(255 + (low - 255) * i / 4):02x}" for low in (0xF0, 0x9A, 0x4A)), FALLING)
       for i in range(1, 5)},
    "off": ("#d6dae0", CROSS),
    "none": ("none", 0),
    "good": ("#c9e7b8", 0),
    "bad": ("#f6c1d3", CROSS),
}


def fixed(value: float, digits: int = 2) -> str:
    """A number with that many digits, half away from zero; the same as `fixed` in js/paint.js, to the last digit."""
    if not math.isfinite(value):
        return "–"
    scaled = math.floor(abs(value) * 10**digits + 0.5 + 1e-7)
    whole, rest = divmod(scaled, 10**digits)
    sign = "−" if value < 0 and scaled else ""
    return sign + (f"{whole}.{rest:0{digits}d}" if digits else f"{whole}")


def share(value: float) -> str:
    """The fill of a share from 0 to 1; "off" for what is no number."""
    return f"w{math.floor(min(1.0, max(0.0, value)) * 10 + 0.5 + 1e-7)}" if math.isfinite(value) else "off"


def signed(value: float, largest: float) -> str:
    """The fill of a signed size, relative to the largest absolute one."""
    level = math.ceil(4 * abs(value) / largest - 1e-7) if largest > 0 else 0
    return "none" if level < 1 else f"{'p' if value > 0 else 'n'}{min(4, level)}"


def scene(alt: str, parts: Sequence[dict]) -> dict:
    """A scene: its text alternative, and its parts in reading order."""
    return {"alt": alt, "parts": list(parts)}


def grid(id: str, title: str, rows: Sequence[str], cols: Sequence[str], fills: Sequence[str],
         labels: Sequence[str] = (), *, verdict: str = "", row_block: int = 0, col_block: int = 0,
         notes: Sequence[str] = ()) -> dict:
    """A grid of cells, row by row: `fills` has a key of FILLS for each, `labels` a short text for each, or nothing.

    `rows` and `cols` are the labels of the margins. A gap follows every `row_block` rows and `col_block` columns.
    `verdict` is "", "right" or "wrong"; `notes` are lines below. Labels are left out above 640 cells.
    """
    if len(fills) != len(rows) * len(cols) or len(labels) not in (0, len(fills)):
        raise ValueError(f"{id}: {len(rows)} × {len(cols)} cells, {len(fills)} fills, {len(labels)} labels")
    return {"kind": "grid", "id": id, "title": title, "rows": list(rows), "cols": list(cols), "fills": list(fills),
            "labels": list(labels), "verdict": verdict, "row_block": row_block, "col_block": col_block,
            "notes": list(notes)}


def table(id: str, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], bad: Sequence[int] = (),
          now: int = -1) -> dict:
    """A table of texts. `bad` lists the rows marked as wrong, `now` is the row that the rest of the scene shows."""
    return {"kind": "table", "id": id, "title": title, "head": list(head), "rows": [list(row) for row in rows],
            "bad": list(bad), "now": now}


def bars(id: str, title: str, items: Sequence[tuple[str, float, str, str]], largest: float = 0.0) -> dict:
    """Bars for (label, value >= 0, text, fill) against `largest` (default: the largest of them)."""
    return {"kind": "bars", "id": id, "title": title, "items": [list(item) for item in items],
            "largest": largest or max([item[1] for item in items], default=0.0) or 1.0}


def words(id: str, lines: Sequence[str], bad: bool = False) -> dict:
    """Lines of text; `bad` marks an explained refusal."""
    return {"kind": "words", "id": id, "lines": list(lines), "bad": bad}


class Instrument:
    """A plain model with a scene for every state. See the module for the contract of a subclass."""

    name = ""
    title = ""

    def data(self) -> dict:
        """Plain JSON data that never changes; sent to the browser once."""
        raise NotImplementedError

    def start(self) -> dict:
        """The state that a view begins with."""
        raise NotImplementedError

    def settle(self, state: dict) -> dict:
        """The state, if it can be shown. Raises ValueError with the reason if not."""
        return state

    def scene(self, state: dict) -> dict:
        """What is seen in a state."""
        raise NotImplementedError

    def state(self, **changes) -> dict:
        """The start state with changes. Raises ValueError for an unknown name or a state that cannot be shown."""
        start = self.start()
        unknown = [name for name in changes if name not in start]
        if unknown:
            raise ValueError(f"no state {unknown[0]!r}; there are {', '.join(start)}")
        return self.settle(start | changes)

    def svg(self, **changes) -> str:
        """The still picture: a whole SVG document."""
        from .paint import scene_svg

        return scene_svg(self.title, self.scene(self.state(**changes)))

    def alt(self, **changes) -> str:
        """What the picture says, in words."""
        return f"{self.title}. {self.scene(self.state(**changes))['alt']}"

    def view(self, *, still_key: str = "", **changes):
        """The live widget. Raises ImportError without anywidget."""
        from .live import view_class

        return view_class(self.name)(self, self.state(**changes), still_key)
