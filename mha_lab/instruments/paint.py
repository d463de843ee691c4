"""Paints a scene of the kit as SVG. `js/paint.js` paints grids and bars into the same strings; a test compares."""

from __future__ import annotations

from html import escape

from .drawing import text, wrap
from .kit import CROSS, FALLING, FILLS, LEVEL, RISING

MOST_LABELS = 640
GAP, ROOM = 28, 1080
STROKES = {RISING: "M-2 8L8 -2M4 14L14 4", LEVEL: "M0 3H12M0 9H12", FALLING: "M-2 4L8 14M4 -2L14 8",
           CROSS: "M0 0L12 12M12 0L0 12"}
STYLE = """
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-size:12px;
fill:#1f2328}
.cell,.head,.num{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:11px}
.cell{fill:#111}.head{fill:#59636e}.name{font-weight:600}.title{font-size:17px;font-weight:700}
.ok{fill:#116329;font-weight:700;font-size:14px}.bad{fill:#a40e26;font-weight:700;font-size:14px}
.miss{fill:#a40e26}.now{font-weight:700}.quiet{fill:#59636e}
.on{stroke:#3d444d}.off{fill:none;stroke:#8c959f;stroke-dasharray:2 2}.rule{stroke:#d1d9e0}
.paper{fill:#fff;stroke:#d1d9e0}
"""


def patterns(uid: str) -> str:
    """The hatches as SVG patterns, named for the picture that they stand in."""
    return "<defs>" + "".join(
        f'<pattern id="{uid}h{kind}" width="12" height="12" patternUnits="userSpaceOnUse">'
        f'<path d="{strokes}" fill="none" stroke="#000" stroke-opacity="{".4" if kind == CROSS else ".2"}" '
        f'stroke-width="1.5"/></pattern>' for kind, strokes in STROKES.items()) + "</defs>"


def geometry(part: dict) -> dict:
    """Where the cells of a grid lie: the left and top edge of every column and row, and the size of a cell."""
    labelled = bool(part["labels"]) and len(part["fills"]) <= MOST_LABELS
    if labelled:
        longest = max([len(label) for label in part["labels"]] + [len(label) for label in part["cols"]])
        w, h = max(26, 7 * longest + 8), 22
    else:
        w = h = 12
    left = 7 * max([len(label) for label in part["rows"]], default=0) + 8
    top = (24 if part["verdict"] else 0) + 36

    def edges(start: int, count: int, size: int, block: int) -> list[int]:
        return [start + i * size + (i // block * 8 if block else 0) for i in range(count)]

    xs = edges(left, len(part["cols"]), w, part["col_block"])
    ys = edges(top, len(part["rows"]), h, part["row_block"])
    right, bottom = (xs[-1] + w if xs else left), (ys[-1] + h if ys else top)
    width = max(right, 7 * len(part["title"]))
    return {"labelled": labelled, "w": w, "h": h, "xs": xs, "ys": ys, "left": left, "top": top, "width": width,
            "height": bottom, "right": right}


def paint_grid(part: dict, uid: str) -> tuple[str, int, int]:
    """(SVG elements, width, height) of a grid, at the origin. Cells of one fill are one path."""
    at = geometry(part)
    w, h, columns = at["w"] - 2, at["h"] - 2, len(part["cols"])
    if not at["labelled"]:
        w, h = w + 1, h + 1
    out = []
    if part["verdict"]:
        right = part["verdict"] == "right"
        out.append(text(0, 14, "✓ Right" if right else "✗ Wrong", "ok" if right else "bad"))
    out.append(text(0, at["top"] - 24, part["title"], "name"))
    longest = max([len(label) for label in part["cols"]], default=0)
    step = -(-(7 * longest + 4) // at["w"]) or 1
    out += [text(x + at["w"] // 2, at["top"] - 6, label, "head", "middle")
            for i, (x, label) in enumerate(zip(at["xs"], part["cols"], strict=True)) if i % step == 0]
    out += [text(at["left"] - 5, y + at["h"] // 2 + 3, label, "head", "end")
            for y, label in zip(at["ys"], part["rows"], strict=True)]
    boxes: dict[str, list[str]] = {}
    for index, key in enumerate(part["fills"]):
        boxes.setdefault(key, []).append(f"M{at['xs'][index % columns]} {at['ys'][index // columns]}h{w}v{h}h-{w}z")
    for key, found in boxes.items():
        colour, hatch = FILLS[key]
        path = "".join(found)
        kind = "off" if key == "none" else "on"
        out.append(f'<path d="{path}" fill="{colour}" class="{kind}" data-fill="{key}"/>')
        if hatch:
            out.append(f'<path d="{path}" fill="url(#{uid}h{hatch})"/>')
    if at["labelled"]:
        out += [text(at["xs"][index % columns] + w // 2, at["ys"][index // columns] + h // 2 + 4, label,
                     "head" if part["fills"][index] == "none" else "cell", "middle")
                for index, label in enumerate(part["labels"]) if label]
    height = at["height"]
    for note in part["notes"]:
        for line in wrap(note, max(36, 2 * at["width"] // 13)):
            height += 17
            out.append(text(0, height, line, "say"))
    width = max([at["width"]] + [7 * min(len(note), max(36, 2 * at["width"] // 13)) for note in part["notes"]])
    return "".join(out), width, height + 4


def paint_bars(part: dict) -> tuple[str, int, int]:
    """(SVG elements, width, height) of labelled bars, at the origin."""
    left = 7 * max([len(item[0]) for item in part["items"]], default=0) + 8
    out, y = [text(0, 12, part["title"], "name")], 20
    for label, value, said, key in part["items"]:
        long = int(240 * min(1.0, value / part["largest"]) + 0.5)
        out += [text(left - 5, y + 14, label, "head", "end"),
                f'<rect x="{left}" y="{y + 3}" width="{max(1, long)}" height="14" fill="{FILLS[key][0]}" class="on" '
                f'data-fill="{key}"/>', text(left + long + 6, y + 14, said, "num")]
        y += 20
    widest = max([7 * len(item[2]) for item in part["items"]], default=0)
    return "".join(out), max(left + 246 + widest, 7 * len(part["title"])), y + 4


def _paint_table(part: dict) -> tuple[str, int, int]:
    every = [part["head"], *part["rows"]]
    wide = [7 * max(len(row[i]) for row in every) + 16 for i in range(len(part["head"]))]
    starts = [sum(wide[:i]) for i in range(len(wide))]
    out = [text(0, 12, part["title"], "name")]
    out += [text(x, 34, label, "quiet") for x, label in zip(starts, part["head"], strict=True)]
    y = 40
    for index, row in enumerate(part["rows"]):
        out.append(f'<path d="M0 {y}H{sum(wide)}" class="rule"/>')
        kind = "miss" if index in part["bad"] else "num now" if index == part["now"] else "num"
        out += [text(x, y + 15, cell, kind) for x, cell in zip(starts, row, strict=True)]
        y += 21
    return "".join(out), max(sum(wide), 7 * len(part["title"])), y


def _paint_words(part: dict) -> tuple[str, int, int]:
    lines = [line for sentence in part["lines"] for line in wrap(sentence, 130)]
    kind = "miss" if part["bad"] else "say"
    return ("".join(text(0, 13 + 17 * i, line, kind) for i, line in enumerate(lines)),
            7 * max([len(line) for line in lines], default=0), 17 * len(lines) + 2)


def scene_svg(title: str, scene: dict) -> str:
    """A whole SVG document: the parts flow from left to right and wrap."""
    out, x, y, tall, width = [text(0, 16, title, "title")], 0, 36, 0, 7 * len(title) + 60
    for part in scene["parts"]:
        if part["kind"] == "grid":
            body, w, h = paint_grid(part, "k")
        else:
            body, w, h = {"bars": paint_bars, "table": _paint_table, "words": _paint_words}[part["kind"]](part)
        if x and x + w > ROOM:
            x, y, tall = 0, y + tall + 18, 0
        out.append(f'<g transform="translate({x},{y})">{body}</g>')
        width, tall, x = max(width, x + w), max(tall, h), x + w + GAP
    height = y + tall
    alt = escape(f"{title}. {scene['alt']}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-20 -18 {width + 40} {height + 36}" '
            f'width="{width + 40}" height="{height + 36}" role="img"><title>{alt}</title><style>{STYLE}</style>'
            f'{patterns("k")}<rect x="-19" y="-17" width="{width + 38}" height="{height + 34}" rx="8" class="paper"/>'
            f'{"".join(out)}</svg>')
