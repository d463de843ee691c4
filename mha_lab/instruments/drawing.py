"""Draws the plain data of a figure as SVG. `js/drawing.js` draws the same; a test holds them equal.

All coordinates are whole numbers. Text takes its colour from classes, so that a page can theme it; cells
are always light with dark text.
"""

from __future__ import annotations

from html import escape

from .shape_text import AXES, TOKEN_FILLS

GAP = 32


def draw(figure: dict, stacked: bool = False) -> tuple[str, int, int]:
    """(SVG elements, width, height) of a figure; `stacked` puts its columns below each other."""
    parts: list[str] = []
    x = y = width = height = 0
    for column in figure["columns"]:
        drawn, w, h = _column(column, x, y)
        parts += drawn
        width, height = max(width, x + w), max(height, y + h)
        if stacked:
            y += h + GAP
        else:
            x += w + GAP
    return "".join(parts), width, height


def text(x: int, y: int, content: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'


def chip(x: int, y: int, width: int, height: int, axis: str, label: str) -> str:
    """A bar in the colour of an axis; a packed axis such as H·D is half and half."""
    colours = [AXES[letter]["colour"] for letter in axis.split("·")]
    part = width // len(colours)
    rects = ""
    for index, colour in enumerate(colours):
        wide = part if index + 1 < len(colours) else width - index * part
        rects += f'<rect x="{x + index * part}" y="{y}" width="{wide}" height="{height}" fill="{colour}"/>'
    return rects + text(x + width // 2, y + height // 2 + 4, label, "bar", "middle")


def wrap(sentence: str, limit: int) -> list[str]:
    """Lines of at most `limit` characters, broken between words."""
    lines: list[str] = []
    for word in sentence.split(" "):
        if lines and len(lines[-1]) + 1 + len(word) <= limit:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _column(column: dict, x: int, y: int) -> tuple[list[str], int, int]:
    parts, width, top = [], max(180, 7 * len(column["heading"]) + 4), y
    if column["verdict"]:
        right = column["verdict"] == "right"
        parts.append(text(x, y + 14, "✓ Right" if right else "✗ Wrong", "ok" if right else "bad"))
        y += 22
    if column["heading"]:
        parts.append(text(x, y + 12, column["heading"], "code"))
        y += 24
    for panel in column["panels"]:
        drawn, w, h = _panel(panel, x, y)
        parts += drawn
        width, y = max(width, w), y + h + 14
    if column["caption"]:
        for line in wrap(column["caption"], 2 * width // 13):
            parts.append(text(x, y + 12, line, "say"))
            y += 17
    return parts, width, y - top


def _panel(panel: dict, x: int, y: int) -> tuple[list[str], int, int]:
    cells = [cell for row in panel["cells"] for cell in row if cell]
    tall = any(cell[2] for cell in cells)
    longest = max(max(len(cell[1]), len(cell[2])) for cell in cells)
    longest = max([longest] + [len(label) for label in panel["cols"] if label])
    w, h = max(28, 7 * longest + 10), 34 if tall else 22
    left = x + 22 + 7 * max(len(label) for label in panel["rows"] if label) + 6
    xs, cursor = [], left
    for index, col in enumerate(panel["cols"]):
        pair = panel["groups"][index - 1:index + 1] if panel["groups"] and index else [None]
        if None not in pair and pair[0] != pair[1]:
            cursor += 10
        xs.append(cursor)
        cursor += 20 if col is None else w
    side = max(len(line) for line in panel["side"])
    width = max(cursor - x + (7 * side + 10 if side else 0), 7 * len(panel["title"]))
    parts, top = [text(x, y + 12, panel["title"], "name")], y
    y += 20
    for level in panel["bars"]:
        for bar in level:
            span = xs[bar["to"]] + w - 2 - xs[bar["from"]]
            label = bar["text"] if 7 * len(bar["text"]) + 6 <= span else bar["short"]
            parts.append(chip(xs[bar["from"]], y, span, 18, bar["axis"], label))
        y += 20
    for col, start in zip(panel["cols"], xs, strict=True):
        parts.append(text(start + (9 if col is None else w // 2 - 1), y + 11, col or "⋯", "head", "middle"))
    y += 16
    first = y
    for label, row, side_text in zip(panel["rows"], panel["cells"], panel["side"], strict=True):
        if label is None:
            parts.append(text(left - 8, y + 13, "⋮", "head", "end"))
            y += 18
            continue
        parts.append(text(left - 6, y + h // 2 + 3, label, "head", "end"))
        for cell, start in zip(row, xs, strict=True):
            parts.append(_cell(cell, start, y, w - 2, h - 2) if cell else
                         text(start + 9, y + h // 2 + 3, "⋯", "head", "middle"))
        if side_text:
            parts.append(text(cursor + 8, y + h // 2 + 3, side_text, "side"))
        y += h
    parts.append(chip(x, first, 16, y - first - 2, panel["row_axis"], panel["row_axis"]))
    return parts, width, y - top


def _cell(cell: list, x: int, y: int, w: int, h: int) -> str:
    token, top, bottom, coloured = cell
    middle = x + w // 2
    box = f'<rect x="{x}" y="{y}" width="{w}" height="{h}"'
    if not coloured:
        return f'{box} class="off"/>' + text(middle, y + h // 2 + 4, top, "soft", "middle")
    parts = [f'{box} fill="{TOKEN_FILLS[token % len(TOKEN_FILLS)]}" class="on" data-token="{token}"/>']
    strokes = _hatch(token % 4, x, y, w, h)
    if strokes:
        parts.append(f'<path d="{strokes}" class="hatch"/>')
    if bottom:
        parts += [text(middle, y + 14, top, "cell", "middle"), text(middle, y + 27, bottom, "chan", "middle")]
    else:
        parts.append(text(middle, y + h // 2 + 4, top, "cell", "middle"))
    return "".join(parts)


def _hatch(kind: int, x: int, y: int, w: int, h: int) -> str:
    """A second mark of the token beside its colour: none, rising lines, level lines, falling lines."""
    if kind == 2:
        return "".join(f"M{x} {y + step}h{w}" for step in range(6, h, 7))
    lines = []
    for start in range(-h + 4, w, 9) if kind else ():
        low, high = max(0, -start), min(h, w - start)
        if kind == 1:
            lines.append(f"M{x + start + low} {y + h - low}L{x + start + high} {y + h - high}")
        else:
            lines.append(f"M{x + start + low} {y + low}L{x + start + high} {y + high}")
    return "".join(lines)
