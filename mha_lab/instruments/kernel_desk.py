"""The kernel desk: which program of a grid loads and stores which cells, and what that costs against the minimum.

    >>> KernelDesk().alt(kernel="decode", variant="per query head")
    'The kernel desk. 4 programs move 208 numbers, the least is 112: 1.86 times. 0.92 operations a number moved: bound by memory at a ridge of 10.'

Three kernels at toy sizes: split heads ([T, H·D] to [H, T, D]), a row softmax, and one decoding step of grouped heads
whose keys are split over programs. A cell of the decoding step is one row of D numbers. Numbers are counted from the
index lists that a program touches; nothing is measured. At real sizes: sessions 07's checks count the same in your own
kernels.
"""  # noqa: E501

from __future__ import annotations

from math import ceil

from .kit import Instrument, bars, fixed, grid, scene, table, words

T, H, D = 4, 2, 3                     # split heads
ROWS, COLS = 5, 8                     # softmax
HEADS, GROUPS, KEYS, WIDTH = 4, 2, 6, 4  # decoding: HEADS query heads, GROUPS key/value heads
VARIANTS = {"split": ("one program a token block", "one program a head"),
            "softmax": ("one pass", "three passes"),
            "decode": ("per group", "per query head")}
KERNELS = {"split": "split heads", "softmax": "row softmax", "decode": "grouped decoding"}
BLOCKS, RIDGES = (1, 2, 3), (1, 2, 5, 10, 20, 50, 100, 150, 300)
SAYS = {
    "traffic": "{programs} programs move {moved} numbers, the least is {least}: {ratio} times.",
    "roof": "{intensity} operations a number moved: bound by {bound} at a ridge of {ridge}.",
    "program": "Program {program} loads {loads} and stores {stores} numbers.",
    "loaded": "{title}: {place} is loaded by {programs}.",
    "stored": "{title}: {place} is stored by {program}.",
    "nobody": "nobody",
}


class KernelDesk(Instrument):
    """State: kernel ("split", "softmax", "decode"), variant (one of its two), program (whose accesses are shown), block
    (tokens, rows or splits of the keys), ridge (operations a number at which the machine's
    two limits meet)."""

    name, title = "kernel-desk", "The kernel desk"

    def data(self) -> dict:
        return {"kernels": KERNELS, "variants": {name: list(two) for name, two in VARIANTS.items()}, "says": SAYS,
                "blocks": list(BLOCKS), "ridges": list(RIDGES),
                "runs": {f"{kernel} {variant} {block}": self.run(kernel, variant, block)
                         for kernel, two in VARIANTS.items() for variant in two for block in BLOCKS}}

    def start(self) -> dict:
        return {"kernel": "softmax", "variant": "one pass", "program": 0, "block": 1, "ridge": 10}

    def state(self, **changes) -> dict:
        if "kernel" in changes and "variant" not in changes and changes["kernel"] in VARIANTS:
            changes = changes | {"variant": VARIANTS[changes["kernel"]][0]}
        return super().state(**changes)

    def settle(self, state: dict) -> dict:
        if state["kernel"] not in KERNELS or state["variant"] not in VARIANTS[state["kernel"]]:
            raise ValueError(f"kernels and variants are {VARIANTS}, got {state['kernel']!r}, {state['variant']!r}")
        if state["block"] not in BLOCKS or state["ridge"] not in RIDGES:
            raise ValueError(f"block is one of {BLOCKS}, ridge one of {RIDGES}")
        count = len(self.run(state["kernel"], state["variant"], state["block"])["programs"])
        if not (isinstance(state["program"], int) and 0 <= state["program"] < count):
            raise ValueError(f"program counts from 0 to {count - 1}, got {state['program']!r}")
        return state

    def run(self, kernel: str, variant: str, block: int) -> dict:
        """Every program's loads and stores (cell indices, repeated as often as they happen), the shapes of input and
        output, numbers in a cell of each, the least traffic in numbers, and the arithmetic operations."""
        programs, ins, outs, cell = {"split": _split, "softmax": _softmax, "decode": _decode}[kernel](
            VARIANTS[kernel].index(variant), block)
        moved = sum(len(loads) * cell[0] + len(stores) * cell[1] for _, loads, stores in programs)
        least, operations = {"split": (2 * T * H * D, 0), "softmax": (2 * ROWS * COLS, 5 * ROWS * COLS),
                           "decode": (2 * GROUPS * KEYS * WIDTH + HEADS * WIDTH, 2 * HEADS * KEYS * WIDTH)}[kernel]
        return {"programs": [list(program) for program in programs], "in": ins, "out": outs, "moved": moved,
                "least": least, "operations": operations, "cell": list(cell)}

    def scene(self, state: dict) -> dict:
        run = self.run(state["kernel"], state["variant"], state["block"])
        name, loads, stores = run["programs"][state["program"]]
        intensity = run["operations"] / run["moved"]
        lines = [SAYS["traffic"].format(programs=len(run["programs"]), moved=run["moved"], least=run["least"],
                                        ratio=fixed(run["moved"] / run["least"])),
                 SAYS["roof"].format(intensity=fixed(intensity), ridge=state["ridge"],
                                     bound="memory" if intensity < state["ridge"] else "arithmetic")]
        sizes = [[label, len(a) * run["cell"][0], len(b) * run["cell"][1]] for label, a, b in run["programs"]]
        one = SAYS["program"].format(program=name, loads=sizes[state["program"]][1], stores=sizes[state["program"]][2])
        all_loads = [index for _, found, _ in run["programs"] for index in found]
        owners = {index: i for i, (_, _, found) in enumerate(run["programs"]) for index in found}
        parts = [words("say", [*lines, one])]
        for key, mine in (("in", loads), ("out", stores)):
            title, rows, cols = run[key]
            cells = range(len(rows) * len(cols))
            if key == "in":
                fills = ["t1" if i in mine else "w1" if i in all_loads else "none" for i in cells]
                labels = [str(all_loads.count(i)) for i in cells]
            else:
                fills = [f"t{owners[i] % 8}" if i in owners else "none" for i in cells]
                labels = ["●" if i in mine else str(owners.get(i, "")) for i in cells]
            parts.append(grid(key, title, rows, cols, fills, labels))
        parts.append(bars("traffic", "numbers moved", [("the least", run["least"], str(run["least"]), "w5"),
                                                       ("this grid", run["moved"], str(run["moved"]), "t1")]))
        least = run["operations"] / run["least"]
        parts.append(bars("roof", "share of the arithmetic that memory lets through", [
            (label, min(1.0, value / state["ridge"]), f"{fixed(100 * min(1.0, value / state['ridge']), 0)} %", fill)
            for label, value, fill in (("at the least", least, "w5"), ("this grid", intensity, "t1"))], 1.0))
        parts.append(table("programs", "the grid", ["program", "loads", "stores"],
                           [[label, str(a), str(b)] for label, a, b in sizes], now=state["program"]))
        return scene(" ".join(lines), parts)


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def _chunks(count: int, size: int) -> list[range]:
    return [range(i, min(i + size, count)) for i in range(0, count, size)]


def _split(variant: int, block: int):
    """Tokens [T, H·D] to heads [H·T, D]: a program takes a block of tokens, or one head of a block."""
    def source(t, h, d):
        return t * H * D + h * D + d

    def target(t, h, d):
        return (h * T + t) * D + d
    programs = []
    for tokens in _chunks(T, block):
        for heads in ([range(H)] if variant == 0 else [range(h, h + 1) for h in range(H)]):
            touched = [(t, h, d) for t in tokens for h in heads for d in range(D)]
            programs.append((f"({tokens[0] // block}{'' if variant == 0 else f', {heads[0]}'})",
                             [source(*c) for c in touched], [target(*c) for c in touched]))
    rows = [f"h{h} t{t}" for h in range(H) for t in range(T)]
    return (programs, ["packed rows, loads of each cell", _names("t", T), _names("c", H * D)],
            ["heads, the program that stores", rows, _names("d", D)], (1, 1))


def _softmax(variant: int, block: int):
    """Rows: one pass keeps the row in registers; three passes read it for the maximum, the sum and the result."""
    programs = []
    for rows in _chunks(ROWS, block):
        cells = [r * COLS + c for r in rows for c in range(COLS)]
        programs.append((f"({rows[0] // block})", cells * (1 if variant == 0 else 3), cells))
    return (programs, ["scores, loads of each cell", _names("r", ROWS), _names("c", COLS)],
            ["probabilities, the program that stores", _names("r", ROWS), _names("c", COLS)], (1, 1))


def _decode(variant: int, block: int):
    """Keys and values, a cell being a row of WIDTH numbers; `block` splits of the keys; partial results per split."""
    group, programs = HEADS // GROUPS, []
    for owner in range(GROUPS if variant == 0 else HEADS):
        for split, keys in enumerate(_chunks(KEYS, ceil(KEYS / block))):
            kv = owner if variant == 0 else owner // group
            heads = range(owner * group, (owner + 1) * group) if variant == 0 else [owner]
            loads = [(2 * kv + part) * KEYS + key for part in range(2) for key in keys]
            programs.append((f"({owner}, {split})", loads, [split * HEADS + head for head in heads]))
    rows = [f"{part}{g}" for g in range(GROUPS) for part in "kv"]
    splits = len(_chunks(KEYS, ceil(KEYS / block)))
    return (programs, ["cache, loads of each row", rows, _names("s", KEYS)],
            ["partial results, the program that stores", _names("split ", splits), _names("q", HEADS)], (WIDTH, WIDTH))
