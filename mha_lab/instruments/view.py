"""The live view of the shape machine: an anywidget whose state is the sizes and the step."""

from __future__ import annotations

import anywidget
import traitlets

from . import esm
from .shape_machine import STAGE_IDS, ShapeMachine
from .shape_text import SPEC

SIZES = ("batch", "q_len", "k_len", "d_model", "num_heads", "d_v", "cross")


class ShapeMachineView(anywidget.AnyWidget):
    """Sliders, steps, picture and ledger over one machine.

    All traits are synchronised both ways; the browser computes every step itself, so the view also works
    where no kernel runs. Setting a trait to an illegal value raises TraitError and changes nothing.
    `machine` is a torch-backed `ShapeMachine` of the sizes that the view shows now.
    """

    _esm = esm.module("shape_machine.js")
    _css = esm.style("kit.css") + esm.style("shape_machine.css")

    batch = traitlets.Int(2).tag(sync=True)
    q_len = traitlets.Int(5).tag(sync=True)
    k_len = traitlets.Int(7).tag(sync=True)
    d_model = traitlets.Int(12).tag(sync=True)
    num_heads = traitlets.Int(3).tag(sync=True)
    d_v = traitlets.Int(None, allow_none=True).tag(sync=True)
    cross = traitlets.Bool(True).tag(sync=True)
    stage = traitlets.Enum(STAGE_IDS, "inputs").tag(sync=True)
    tensor = traitlets.Enum(("q", "k", "v"), "q").tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    still_key = traitlets.Unicode("").tag(sync=True)
    spec = traitlets.Dict(SPEC, read_only=True).tag(sync=True)

    def __init__(self, machine: ShapeMachine | None = None, *, stage: str | None = None, tensor: str = "q",
                 head: int | None = None, still_key: str = ""):
        machine = machine or ShapeMachine()
        sizes = {name: getattr(machine, name) for name in SIZES}
        if machine.d_v == machine.head_dim:
            sizes["d_v"] = None
        if head is None:
            head = min(1, machine.num_heads - 1)
        super().__init__(**sizes, stage=stage or "inputs", tensor=tensor, head=head, still_key=still_key)

    @property
    def machine(self) -> ShapeMachine:
        """The machine of the sizes shown now."""
        return ShapeMachine(**{name: getattr(self, name) for name in SIZES})

    @traitlets.validate(*SIZES, "head")
    def _legal(self, proposal: dict):
        """Refuses sizes that no machine has."""
        name, value = proposal["trait"].name, proposal["value"]
        state = {key: getattr(self, key) for key in SIZES} | {"head": self.head, name: value}
        head = state.pop("head")
        try:
            heads = ShapeMachine(**state).num_heads
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from None
        if not 0 <= head < heads:
            raise traitlets.TraitError(f"head must be in 0 to {heads - 1}, got {head}")
        return value

    def __repr__(self) -> str:
        return "The shape machine, live in JupyterLab; the picture with it shows the same."
