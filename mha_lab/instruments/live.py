"""The live view of any instrument of the kit: an anywidget that holds the instrument's data and one state."""

from __future__ import annotations

from functools import cache

import anywidget
import traitlets

from . import esm
from .kit import FILLS, Instrument


class InstrumentView(anywidget.AnyWidget):
    """`state` is synchronised both ways, whole; the browser makes every picture itself, so the view also works where
    no kernel runs. Setting `state` to one that cannot be shown raises TraitError and changes nothing."""

    data = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    fills = traitlets.Dict({key: list(fill) for key, fill in FILLS.items()}, read_only=True).tag(sync=True)
    still_key = traitlets.Unicode("").tag(sync=True)

    def __init__(self, instrument: Instrument, state: dict, still_key: str = ""):
        self.instrument = instrument
        super().__init__(data=instrument.data(), state=state, still_key=still_key)

    @traitlets.validate("state")
    def _legal(self, proposal: dict) -> dict:
        try:
            return self.instrument.settle(dict(proposal["value"]))
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from None

    def __repr__(self) -> str:
        return f"{self.instrument.title}, live in JupyterLab; the picture with it shows the same."


@cache
def view_class(name: str) -> type[InstrumentView]:
    """The view class of the instrument whose module is `js/<name with underscores>.js`."""
    return type(f"{name.title().replace('-', '')}View", (InstrumentView,),
                {"_esm": esm.module(f"{name.replace('-', '_')}.js"), "_css": esm.style("kit.css")})
