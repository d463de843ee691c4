"""Records of a contract. What arrives under the name of a dataclass of mha_lab.given becomes that dataclass."""
from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from .wire import Record


def given_record(type_: str, fields: dict[str, Any]) -> Any:
    """An object of the given dataclass of that name and those fields, or a plain Record where there is none."""
    kind = getattr(importlib.import_module("mha_lab.given"), type_, None)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and {f.name for f in dataclasses.fields(kind)} == set(
            fields):
        return kind(**fields)
    return Record(type_, fields)
