"""Instruments: small machines to look at attention with, live in JupyterLab and still everywhere else.

    from mha_lab.instruments import ShapeMachine, show
    show(ShapeMachine(batch=2, q_len=5, k_len=7, d_model=12, num_heads=3))

Importing this package loads neither torch nor a widget library; both come with the first use.
"""

from __future__ import annotations

from importlib import import_module
from secrets import token_hex

_HOMES = {"AdjointFlow": "adjoint_flow", "AttentionDesk": "attention_desk", "CacheDesk": "cache_desk",
          "EvidenceLadder": "evidence_ladder", "KernelDesk": "kernel_desk", "LifecycleStepper": "lifecycle",
          "ProgressMap": "progress_map",
          "ShapeMachine": "shape_machine", "shape_tape": "shape_machine", "StrideExplorer": "stride_explorer",
          "explore": "stride_explorer", "write_svg": "static"}

__all__ = ["AdjointFlow", "AttentionDesk", "CacheDesk", "EvidenceLadder", "KernelDesk", "LifecycleStepper",
           "ProgressMap", "ShapeMachine", "StrideExplorer", "explore", "shape_tape", "show", "write_svg"]


def show(instrument, **state) -> None:
    """Displays an instrument: its live view, and below it a still picture as a separate output.

    The still picture is an image with a text alternative. It stands open where the live view does not run
    (GitHub, nbconvert, nbgrader feedback, a notebook read without JavaScript) and is folded away where it does.
    `state` goes to both, e.g. `show(machine, stage="heads", tensor="k", head=2)`.
    """
    from IPython.display import HTML, display

    from .static import picture_html

    key = token_hex(6)
    still = picture_html(instrument.svg(**state), instrument.alt(**state), key)
    try:
        live = instrument.view(**state, still_key=key)
    except ImportError as error:
        display(HTML(f"<p>The live view needs anywidget ({error}); here is the still picture.</p>"))
    else:
        display(live)
    display(HTML(still))


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
