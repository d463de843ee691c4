"""Charts of a kernel: the roofline with its point where it was timed, and the bytes that it moved where it was not."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

INK, GOOD, LINE = "#6b7686", "#1a7f4b", "#3f6fb5"


def kernel_chart(timing: Mapping[str, Any], name: str = "") -> go.Figure | None:
    """The chart of a Triton report's `timing`: None where it holds no measured bytes."""
    if timing.get("of_roofline") is not None and timing.get("verdict") == "measured":
        return roofline_chart(timing, name)
    return traffic_chart(timing["traffic"], name) if timing.get("traffic") else None


def traffic_chart(traffic: Mapping[str, Any], name: str = "") -> go.Figure:
    """Two bars in bytes: what has to move, and what moved (loads, stores, and copies by torch)."""
    import plotly.graph_objects as go

    parts = [("needed", "minimum", "minimum", GOOD), ("moved", "loaded by kernels", "loaded", LINE),
             ("moved", "stored by kernels", "stored", INK), ("moved", "moved by torch", "torch", "#b3401e")]
    figure = go.Figure()
    for bar, label, key, colour in parts:
        figure.add_bar(y=[bar], x=[traffic[key]], name=label, orientation="h", marker_color=colour,
                       hovertemplate=f"{label}: %{{x:,}} bytes<extra></extra>")
    title = f"{name}: {traffic['ratio']:.2f} times the minimum" if name else f"{traffic['ratio']:.2f} times the minimum"
    figure.update_layout(barmode="stack", title=title, xaxis_title="bytes", height=230, **_PLAIN)
    return figure


def roofline_chart(timing: Mapping[str, Any], name: str = "", peak_flops: float | None = None) -> go.Figure:
    """FLOPs a second over FLOPs per byte: the slope of a measured copy, and the kernel's point under it.

    timing: flops, minimum_bytes, seconds, copy_bandwidth, device. Without peak_flops only the slope is drawn, for
    that was measured; a peak from a data sheet was not.
    """
    import plotly.graph_objects as go

    intensity = max(timing["flops"], 1) / timing["minimum_bytes"]
    reached = max(timing["flops"], 1) / timing["seconds"]
    span = [intensity / 30, intensity * 30]
    roof = [min(timing["copy_bandwidth"] * x, peak_flops or float("inf")) for x in span]
    figure = go.Figure()
    figure.add_scatter(x=span, y=roof, mode="lines", name="speed of a measured copy", line={"color": LINE})
    figure.add_scatter(x=[intensity], y=[reached], mode="markers+text", name=name or "kernel",
                       text=[f"{timing['of_roofline']:.0%}"], textposition="bottom center",
                       marker={"color": GOOD, "size": 11, "symbol": "diamond"})
    figure.update_layout(title=f"{name} on {timing['device']}", xaxis_title="FLOPs per byte",
                         yaxis_title="FLOPs per second", xaxis_type="log", yaxis_type="log", height=380, **_PLAIN)
    return figure


_PLAIN = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "font": {"color": INK},
          "margin": {"l": 70, "r": 20, "t": 50, "b": 45}, "legend": {"orientation": "h", "y": -0.35}}
