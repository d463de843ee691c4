"""Static SVG pictures of the shape machine, with a text for those who cannot see them."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from .drawing import chip, draw, text, wrap
from .shape_machine import ShapeMachine
from .shape_text import SPEC

if TYPE_CHECKING:
    from .shape_machine import TensorFacts

STYLE = """
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-size:12px;
fill:#1f2328}
.cell,.chan,.soft,.code,.num,.head,.side{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,
"DejaVu Sans Mono",monospace;font-size:11px}
.cell{font-weight:700;fill:#111}.chan{fill:#111}.soft{fill:#59636e}.head{fill:#59636e}.code{font-size:11.5px}
.bar{fill:#fff;font-weight:700;font-size:11px}.name{font-weight:600}.title{font-size:17px;font-weight:700}
.ok{fill:#116329;font-weight:700;font-size:14px}.bad{fill:#a40e26;font-weight:700;font-size:14px}
.quiet{fill:#59636e}.on{stroke:#3d444d;stroke-width:1}.off{fill:none;stroke:#d1d9e0}
.hatch{fill:none;stroke:#000;stroke-opacity:.16;stroke-width:1.5}.rule{stroke:#d1d9e0}
.paper{fill:#fff;stroke:#d1d9e0}.miss{fill:#a40e26;font-weight:600}
"""
COLUMNS = {"stage": "start", "tensor": "start", "shape": "start", "strides": "start", "contiguous": "start",
           "storage": "start", "elements": "end", "bytes": "end", "MACs": "end", "weights + biases": "end"}


def shape_machine_svg(machine: ShapeMachine, stage: str | None = None, tensor: str = "q",
                      head: int | None = None) -> str:
    """The SVG document of one stage, or of the whole ledger above the right and the wrong split."""
    chosen = _default_head(machine, head)
    body, width, height = draw(machine.figure(stage or "heads", tensor, chosen))
    alt = shape_machine_alt(machine, stage, tensor, head)
    if stage is None:
        ledger, ledger_width, ledger_height = _ledger(machine)
        body = ledger + f'<g transform="translate(0,{ledger_height + 26})">{body}</g>'
        width, height = max(width, ledger_width), height + ledger_height + 26
    else:
        facts = machine.stage(stage).tensors
        fact = facts["qkv".index(tensor)] if len(facts) == 3 else facts[0]
        heading = text(0, 16, machine.stage(stage).title, "title")
        heading += "".join(_chips(list(zip(fact.axes, fact.shape, strict=True)), 0, 42))
        heading += text(0, 66, fact.op, "code")
        body = heading + f'<g transform="translate(0,84)">{body}</g>'
        width, height = max(width, 220), height + 84
    for line in wrap(SPEC["sentences"]["key"], 2 * width // 13):
        height += 18
        body += text(0, height, line, "quiet")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-20 -18 {width + 40} {height + 36}" '
            f'width="{width + 40}" height="{height + 36}" role="img">'
            f'<title>{escape(alt)}</title><style>{STYLE}</style>'
            f'<rect x="-19" y="-17" width="{width + 38}" height="{height + 34}" rx="8" class="paper"/>'
            f'{body}</svg>')


def shape_machine_alt(machine: ShapeMachine, stage: str | None = None, tensor: str = "q",
                      head: int | None = None) -> str:
    """What the picture says, in words and numbers."""
    picture = machine.figure(stage or "heads", tensor, _default_head(machine, head))["alt"]
    if stage is not None:
        return f"Shape machine, {_sizes_text(machine)}. {picture}"
    facts = [fact for step in machine.stages() for fact in step.tensors]
    shapes = "; ".join(f"{fact.name} {list(fact.shape)}" for fact in facts)
    totals = machine.totals()
    return (f"Shape machine, {_sizes_text(machine)}. {shapes}. In all {totals['weights']:,} weights, "
            f"{totals['biases']:,} biases and {totals['macs']:,} multiply-accumulates. {picture}")


def picture_html(svg: str, alt: str, key: str) -> str:
    """The picture as an `<img>` inside an open `<details>`; a live view closes the details with its key."""
    data = base64.b64encode(svg.encode()).decode()
    return (f'<details open class="mha-static" data-mha-key="{escape(key)}">'
            f'<summary>The same as a still picture (sizes when the cell ran)</summary>'
            f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}" '
            f'style="max-width:100%;height:auto"></details>')


def write_svg(path: str | Path, machine: ShapeMachine | None = None, stage: str | None = None,
              tensor: str = "q", head: int | None = None) -> Path:
    """Writes the static picture to `path` (default machine: B2 T5 S7 M12 H3) and returns the path."""
    path = Path(path)
    svg = shape_machine_svg(machine or ShapeMachine(), stage, tensor, head)
    path.write_text(svg + "\n", encoding="utf-8")
    return path


def _default_head(machine: ShapeMachine, head: int | None) -> int:
    """Head 1 where there is one: in head 0 the wrong split looks almost right."""
    return min(1, machine.num_heads - 1) if head is None else head


def _sizes_text(machine: ShapeMachine) -> str:
    kind = "cross-attention" if machine.cross else "self-attention"
    return f"{kind}, " + ", ".join(f"{letter} = {size}" for letter, size in machine.sizes.items())


def _ledger(machine: ShapeMachine) -> tuple[str, int, int]:
    totals = machine.totals()
    groups = []
    for step in machine.stages():
        rows = [_row(fact) | {"stage": "" if index else step.title} for index, fact in enumerate(step.tensors)]
        groups.append(rows + [_row(fact) | {"stage": "✗ wrong"} for fact in step.wrong[:1]])
    groups.append([{"stage": "In all", "MACs": f"{totals['macs']:,}",
                    "weights + biases": f"{totals['weights']:,} + {totals['biases']:,}"}])
    every = [row for rows in groups for row in rows]
    starts, x = {}, 0
    for name in COLUMNS:
        starts[name] = x
        x += max([7 * len(name)] + [_width(row.get(name, "")) for row in every]) + 18
    width = x - 18
    ends = dict(zip(COLUMNS, [*list(starts.values())[1:], x], strict=True))

    def put(name: str, y: int, content: str, kind: str) -> str:
        return text(starts[name] if COLUMNS[name] == "start" else ends[name] - 18, y, content, kind, COLUMNS[name])

    parts = [text(0, 16, "The shape machine", "title"), text(width, 16, _sizes_text(machine), "quiet", "end")]
    y = 50
    parts += [put(name, y, name, "name") for name in COLUMNS]
    for rows in groups:
        y += 6
        parts.append(f'<path d="M0 {y}H{width}" class="rule"/>')
        for row in rows:
            y += 20
            wrong = row["stage"].startswith("✗")
            for name, value in row.items():
                if name == "shape":
                    parts += _chips(value, starts["shape"], y)
                else:
                    kind = "num" if name != "stage" else "miss" if wrong else "name"
                    parts.append(put(name, y, value, kind))
    return "".join(parts), width, y


def _row(fact: TensorFacts) -> dict:
    shared = {None: "input", True: "same as before", False: "new"}[fact.shares_storage]
    return {"tensor": fact.name, "shape": list(zip(fact.axes, fact.shape, strict=True)),
            "strides": f"({', '.join(map(str, fact.strides))})", "contiguous": "yes" if fact.contiguous else "no",
            "storage": shared, "elements": f"{fact.elements:,}", "bytes": f"{fact.bytes:,}",
            "MACs": f"{fact.macs:,}" if fact.macs else "",
            "weights + biases": f"{fact.weights:,} + {fact.biases:,}" if fact.weights else ""}


def _width(value: str | list) -> int:
    return 7 * len(value) if isinstance(value, str) else sum(_chip_width(*pair) + 3 for pair in value)


def _chip_width(axis: str, size: int) -> int:
    return 7 * len(f"{axis} {size}") + 8


def _chips(shape: list, x: int, y: int) -> list[str]:
    parts = []
    for axis, size in shape:
        parts.append(chip(x, y - 13, _chip_width(axis, size), 17, axis, f"{axis} {size}"))
        x += _chip_width(axis, size) + 3
    return parts
