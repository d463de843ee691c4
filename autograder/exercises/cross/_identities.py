"""What makes a projected source pair that pair: 17 fields, and another value for each of them."""
from dataclasses import dataclass
from typing import Any

from ...lab import Record

IDENTITY = dict(
    request="request-42", source_release="encoder-7", memory_digest="9f3c", checkpoint="model-r19", layer=3,
    projection_version=12, adapter="lora-3", position_policy="absolute", kv_heads=3, d_qk=4, d_v=6, source_len=7,
    dtype="float64", device="cpu", layout="bhsd", shard=0, creation_mode="inference")
OTHER = dict(
    request="request-43", source_release="encoder-8", memory_digest="9f3d", checkpoint="model-r18", layer=4,
    projection_version=13, adapter=None, position_policy="relative", kv_heads=1, d_qk=6, d_v=4, source_len=6,
    dtype="bfloat16", device="cuda:0", layout="bshd", shard=1, creation_mode="training")
FIELDS = tuple(IDENTITY)


def identity(**changes):
    """The record as it crosses to the other side."""
    return Record("Identity", IDENTITY | changes)


def differing(*fields):
    """The same identity with other values in these fields."""
    return identity(**{f: OTHER[f] for f in fields})


def compare(made, wanted, fields=FIELDS):
    """Raises with the name of the first field that differs."""
    for field in fields:
        if getattr(made, field) != getattr(wanted, field):
            raise ValueError(f"another {field}: {getattr(made, field)!r}, expected {getattr(wanted, field)!r}")


@dataclass(frozen=True)
class CrossKV:
    """The pair, as this side makes it."""

    k: Any
    v: Any
    identity: Any
    memory: Any


def pair(k, v, memory, **changes):
    """The pair, as it crosses to the other side."""
    return Record("CrossKV", {"k": k, "v": v, "identity": identity(**changes), "memory": memory})
