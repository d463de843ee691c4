"""The cache desk: what heads cost in bytes, weights and products, with every term on a slider.

    >>> desk = CacheDesk()
    >>> desk.bytes_of("GQA", desk.state(layers=80, heads=64, kv_heads=8, d_qk=128, d_v=128, length=2048)) / 2**30
    0.625

Six views: "cache-meter" (bytes and requests on a card for MHA, GQA, MQA and MLA), "head-map" (which K/V head a query
head reads), "window-map" (local and global heads), "crossover" (projections against attention), "shared-width" (a
shared Q/K basis) and "forbidden-map" (the map of composed heads that must never be stored). Byte counts are exact
integers; the sizes of real models come from `mha_lab.models`, with their source. Nothing is measured here.
"""

from __future__ import annotations

from ..models import PUBLISHED
from .kit import Instrument, bars, fixed, grid, scene, table, words

VIEWS = {"cache-meter": "cache meter", "head-map": "head map", "window-map": "window map", "crossover": "crossover",
         "shared-width": "shared width", "forbidden-map": "forbidden map"}
SCHEMES = ("MHA", "GQA", "MQA", "MLA")
FILLS = {"MHA": "t0", "GQA": "t1", "MQA": "t2", "MLA": "t3"}
LENGTHS = [2**n for n in range(9, 21)]
# what each slider can be set to
CHOICES: dict[str, list[int]] = {
    "layers": [1, 6, 12, 18, 26, 28, 32, 48, 60, 80, 126], "heads": [1, 2, 4, 6, 8, 12, 16, 28, 32, 64, 80, 128],
    "d_qk": [16, 32, 64, 128, 192, 256], "d_v": [16, 32, 64, 128, 192, 256], "latent": [64, 128, 256, 512, 1024],
    "rope_dim": [0, 32, 64, 128], "length": LENGTHS, "batch": [1, 2, 4, 8, 16, 32, 64, 128], "bytes": [1, 2, 4],
    "card": [8, 16, 24, 40, 48, 80, 141, 192], "width": [128, 256, 384, 508, 509, 512, 640, 768, 1024],
    "window": list(range(1, 17)), "local": list(range(0, 9)),
}
WINDOW_T, WINDOW_HEADS, WINDOW_D = 16, 8, 64
MODEL = {"heads": 8, "d_model": 512, "d": 64, "length": 128}
SAYS = {
    "terms": "{layers} layers × {batch} × {length} tokens × {kv} K/V heads × ({d_qk} + {d_v}) channels × {bytes} bytes "
             "= {total} bytes",
    "local": "{local} of the layers see {window} tokens only, and need to keep no more.",
    "card": "With {card} GiB left beside the weights: {fits} requests of {length} tokens at once.",
    "source": "Sizes of {model}: {source}", "own": "Sizes of your own.",
    "heads": "{heads} query heads read {kv} K/V heads, {group} in a group: head h reads h // {group}. "
             "The tiled order, h mod {kv}, has the same shape.",
    "window": "A local head sees {exact} pairs of {dense}; {window}·{length} − {window}·({window} − 1)/2. A dense "
              "kernel computes all pairs and hides some.",
    "crossover": "With M = 512 the two products inside attention cost what the four projections cost at S = 2M = 1024.",
    "shared": "D̃ = {width}: {weights} Q/K weights against {classic}. Fewer weights up to D̃ = 508, fewer products only "
              "up to D̃ = 286 (at {length} tokens): every head scores with all D̃ channels.",
    "forbidden": "A head map for every pair of {length} queries and keys: {dense} GiB. Its factors of rank 2: "
                 "{factors} GiB.",
}


class CacheDesk(Instrument):
    """State: view; model (a name of `mha_lab.models.PUBLISHED`, or "" for own sizes); layers, heads, kv_heads, d_qk,
    d_v, latent, rope_dim, local_layers, layer_window (the terms); length, batch, bytes (an element), card (GiB left for
    caches); window and local (of the window map); width (D̃ of the shared basis)."""

    name, title = "cache-desk", "The cache desk"

    def __init__(self, model: str = "Llama-3-8B"):
        self._start = {"view": "cache-meter", **sizes_of(model), "length": 8192, "batch": 1, "bytes": 2, "card": 40,
                       "window": 4, "local": 6, "width": 512}

    def data(self) -> dict:
        return {"views": VIEWS, "choices": CHOICES, "fills": FILLS, "says": SAYS, "map": MODEL,
                "window": {"T": WINDOW_T, "heads": WINDOW_HEADS, "D": WINDOW_D},
                "models": {name: {"sizes": sizes_of(name), "source": PUBLISHED[name].source} for name in PUBLISHED}}

    def start(self) -> dict:
        return dict(self._start)

    def state(self, **changes) -> dict:
        """The start state with changes; a model brings its sizes along, a size of your own leaves the model."""
        if changes.get("model"):
            changes = sizes_of(changes["model"]) | changes
        elif set(changes) & set(sizes_of("GPT-2 small")):
            changes = {"model": ""} | changes
        return super().state(**changes)

    def settle(self, state: dict) -> dict:
        """Refuses sizes that no layer can have: G must divide H, everything counts from 1 (rope_dim from 0)."""
        if state["view"] not in VIEWS:
            raise ValueError(f"there is no view {state['view']!r}; there are {', '.join(VIEWS)}")
        low = [name for name in ("layers", "heads", "kv_heads", "d_qk", "d_v", "latent", "length", "batch", "bytes",
                                 "card", "window", "width") if not (isinstance(state[name], int) and state[name] >= 1)]
        if low:
            raise ValueError(f"{low[0]} is a whole number from 1 on, got {state[low[0]]!r}")
        if state["heads"] % state["kv_heads"]:
            raise ValueError(f"{state['heads']} query heads are not divisible by {state['kv_heads']} K/V heads")
        if state["window"] > WINDOW_T or not 0 <= state["local"] <= WINDOW_HEADS:
            raise ValueError(f"the window map has {WINDOW_T} tokens and {WINDOW_HEADS} heads")
        return state

    def bytes_of(self, scheme: str, state: dict, length: int = 0) -> int:
        """The cache of all requests under a scheme, in bytes; `length` in place of the state's."""
        length = length or state["length"]
        kept = min(length, state["layer_window"] or length)
        tokens = (state["layers"] - state["local_layers"]) * length + state["local_layers"] * kept
        heads = {"MHA": state["heads"], "GQA": state["kv_heads"], "MQA": 1}.get(scheme)
        elements = heads * (state["d_qk"] + state["d_v"]) if heads else state["latent"] + state["rope_dim"]
        return tokens * state["batch"] * elements * state["bytes"]

    def scene(self, state: dict) -> dict:
        lines, parts = getattr(self, "_" + state["view"].replace("-", "_"))(state)
        return scene(" ".join(lines), [words("say", lines), *parts])

    def _cache_meter(self, s: dict) -> tuple[list[str], list[dict]]:
        total = self.bytes_of("GQA", s)
        length = _commas(s["length"])
        lines = [SAYS["terms"].format(**s | {"length": length, "kv": s["kv_heads"], "total": _commas(total)})]
        if s["local_layers"]:
            lines.append(SAYS["local"].format(local=s["local_layers"], window=_commas(s["layer_window"])))
        one = self.bytes_of("GQA", s | {"batch": 1})
        lines.append(SAYS["card"].format(card=s["card"], fits=_commas(s["card"] * 2**30 // one), length=length))
        model = PUBLISHED.get(s["model"])
        lines.append(SAYS["source"].format(model=s["model"], source=model.source) if model else SAYS["own"])
        schemes = [_bar(_named(scheme, s), self.bytes_of(scheme, s), FILLS[scheme]) for scheme in SCHEMES]
        lengths = [_bar(_commas(length), self.bytes_of("GQA", s, length), "t1") for length in LENGTHS[::2]]
        return lines, [bars("schemes", "the same model with other heads", schemes),
                       bars("lengths", "the cache over the context length", lengths)]

    def _head_map(self, s: dict) -> tuple[list[str], list[dict]]:
        heads, kv = s["heads"], s["kv_heads"]
        group = heads // kv

        def part(id, title, reads, verdict):
            cells = [(g, h) for g in range(kv) for h in range(heads)]
            return grid(id, title, [f"kv{g}" for g in range(kv)], [f"q{h}" for h in range(heads)],
                        [f"t{g % 8}" if reads(h) == g else "none" for g, h in cells], verdict=verdict, col_block=group)
        return [SAYS["heads"].format(heads=heads, kv=kv, group=group)], [
            part("right", f"h // {group}", lambda h: h // group, "right"),
            part("wrong", f"h mod {kv}", lambda h: h % kv, "wrong")]

    def _window_map(self, s: dict) -> tuple[list[str], list[dict]]:
        window, local = s["window"], s["local"]
        seen = [["w8" if 0 <= q - k < window else "off" if k < q else "none" for k in range(WINDOW_T)]
                for q in range(WINDOW_T)]
        every = {"shown": (WINDOW_T, window, local, WINDOW_HEADS - local, WINDOW_D),
                 "T2048 W256, 6 + 2 heads": (2048, 256, 6, 2, 64)}
        rows = [[name, *map(_commas, _window_macs(*sizes))] for name, sizes in every.items()]
        dense = WINDOW_T * (WINDOW_T + 1) // 2
        exact = WINDOW_T * window - window * (window - 1) // 2
        return [SAYS["window"].format(exact=exact, dense=dense, window=window, length=WINDOW_T)], [
            grid("map", f"a local head, window {window}", [f"q{i}" for i in range(WINDOW_T)],
                 [f"k{i}" for i in range(WINDOW_T)], [fill for row in seen for fill in row]),
            table("macs", "products of one matmul, all heads", ["sizes", "leading", "exact causal", "dense"], rows)]

    def _crossover(self, s: dict) -> tuple[list[str], list[dict]]:
        width, items = MODEL["d_model"], []
        for length in (256, 512, 1024, 2048):
            projections, attention = 4 * length * width**2, 2 * length**2 * width
            items += [(f"S {length} projections", projections, _commas(projections), "t0"),
                      (f"S {length} attention", attention, _commas(attention), "t1")]
        full = [(f"{heads} heads of {width}", 4 * heads * width**2, _commas(4 * heads * width**2), "t2")
                for heads in (1, 2, 4, 8)]
        shared = (f"8 heads of {MODEL['d']}", 4 * width**2, _commas(4 * width**2), "t3")
        return [SAYS["crossover"]], [bars("macs", "multiply-accumulates, M = 512", items),
                                     bars("weights", "weights, if every head had the full width", [shared, *full])]

    def _shared_width(self, s: dict) -> tuple[list[str], list[dict]]:
        M, H, T, D = MODEL["d_model"], MODEL["heads"], MODEL["length"], s["width"]
        classic = (2 * M * M, 2 * T * M * M + T * T * M)
        shared = (2 * M * D + H * D, 2 * T * M * D + H * T * D + H * T * T * D)
        titles = {"weights": "Q/K weights, M = 512, 8 heads of 64", "macs": "products up to the scores, 128 tokens"}
        parts = [bars(id, title, [("classic", classic[i], _commas(classic[i]), "t0"),
                                  (f"shared, D̃ {D}", shared[i], _commas(shared[i]), "t1")])
                 for i, (id, title) in enumerate(titles.items())]
        said = SAYS["shared"].format(width=D, weights=_commas(shared[0]), classic=_commas(classic[0]), length=T)
        return [said], parts

    def _forbidden_map(self, s: dict) -> tuple[list[str], list[dict]]:
        length, heads = s["length"], 32
        dense = length * length * heads * heads * 2
        scores, factors = length * length * heads * 2, 2 * length * (2 * heads * 2 + heads) * 2
        items = [_bar("a dense map", dense, "bad"), _bar("all scores", scores, "t0"),
                 _bar("the factors", factors, "t1")]
        said = SAYS["forbidden"].format(length=_commas(length), dense=fixed(dense / 2**30, 3),
                                        factors=fixed(factors / 2**30, 3))
        return [said], [bars("maps", "32 heads, one sample, 2 bytes", items)]

    def figure(self, **changes):
        """A plotly figure (`go.Figure`) of cache bytes over the context length, one line for each scheme."""
        import plotly.graph_objects as go

        s, colours = self.state(**changes), {"MHA": "#5b9fdd", "GQA": "#f09a4a", "MQA": "#4ba66b", "MLA": "#b07cc6"}
        dashes = {"MHA": "solid", "GQA": "dash", "MQA": "dot", "MLA": "dashdot"}
        lines = [go.Scatter(x=LENGTHS, y=[self.bytes_of(scheme, s, length) / 2**30 for length in LENGTHS],
                            name=_named(scheme, s), mode="lines+markers",
                            line={"color": colours[scheme], "dash": dashes[scheme]}) for scheme in SCHEMES]
        axis = {"type": "log", "gridcolor": "rgba(127,127,127,.3)", "zeroline": False}
        return go.Figure(lines, {"template": "none", "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
                                 "font": {"color": "#808a94"},
                                 "title": f"Cache of {s['batch']} request(s), {s['bytes']} bytes an element",
                                 "xaxis": axis | {"title": "context length, tokens"}, "yaxis": axis | {"title": "GiB"}})


def sizes_of(model: str) -> dict:
    """The terms of a published model, as the desk's state names them."""
    if model not in PUBLISHED:
        raise ValueError(f"there is no model {model!r}; there are {', '.join(PUBLISHED)}")
    m = PUBLISHED[model]
    return {"model": model, "layers": m.layers, "heads": m.heads, "kv_heads": m.kv_heads, "d_qk": m.head_dim,
            "d_v": m.v_head_dim, "latent": m.latent or 512, "rope_dim": m.rope_dim if m.latent else 64,
            "local_layers": m.local_layers, "layer_window": m.window or 0}


def _window_macs(length: int, window: int, local: int, others: int, width: int) -> tuple[int, int, int]:
    exact_local = length * window - window * (window - 1) // 2
    exact = (local * exact_local + others * length * (length + 1) // 2) * width
    return (local * length * window + others * length**2) * width, exact, (local + others) * length**2 * width


def _named(scheme: str, s: dict) -> str:
    return scheme + {"MHA": f" {s['heads']} heads", "GQA": f" {s['kv_heads']} heads", "MQA": " 1 head",
                     "MLA": f" {s['latent']} + {s['rope_dim']}"}[scheme]


def _commas(number: int) -> str:
    return f"{number:,}"


def _bar(label: str, number: int, fill: str) -> tuple[str, float, str, str]:
    return label, number / 2**30, f"{fixed(number / 2**30, 3)} GiB", fill
