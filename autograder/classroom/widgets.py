"""Widgets have no place on a static page."""
from __future__ import annotations

from nbconvert.preprocessors import Preprocessor
from traitlets import Bool


class DropWidgets(Preprocessor):
    """Drops saved widget state: megabytes that a feedback page cannot show, and that would ask for a CDN."""

    enabled = Bool(True).tag(config=True)

    def preprocess(self, nb, resources):
        nb.metadata.pop("widgets", None)
        return nb, resources
