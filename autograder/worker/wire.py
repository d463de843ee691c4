"""The wire between grader and worker: JSON for structure, safetensors for bytes. Neither can execute anything."""
from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

_FRAME = struct.Struct("<II")
_DTYPES = {str(d).removeprefix("torch."): d for d in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8,
    torch.int16, torch.int32, torch.int64, torch.complex64)}
_tensor_equal = torch.equal


class WireError(Exception):
    """A frame that does not follow the format, or is larger than agreed."""


@dataclasses.dataclass(frozen=True)
class Handle:
    """An object that lives in the worker."""

    id: int


@dataclasses.dataclass(frozen=True)
class Callback:
    """A function that lives in the grader; the worker may only call it."""

    id: int


@dataclasses.dataclass(frozen=True)
class Opaque:
    """A value that has no plain form: only its type and the start of its repr travel."""

    type: str
    text: str


class Record:
    """A dataclass or named tuple from the other side: its type's name, and its fields as attributes."""

    def __init__(self, type_: str, fields: dict[str, Any]):
        self.__dict__.update(fields)
        self._type, self._fields = type_, fields

    def __eq__(self, other):
        return isinstance(other, Record) and (self._type, self._fields) == (other._type, other._fields)

    def __repr__(self):
        return f"{self._type}({', '.join(f'{k}={v!r}' for k, v in self._fields.items())})"


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: element strides, storage offset, and a number that equal storages share."""

    stride: tuple[int, ...]
    offset: int
    storage: int


class Packer:
    """Turns a value into a JSON tree and a table of tensors.

    `layouts=True` sends whole storages, so that strides, offsets and aliases arrive as they are; otherwise each
    tensor's values travel contiguously and its layout is only described. `known` are storages (data pointers)
    that already have a number on the other side. Above `limit` bytes of tensors, WireError.
    """

    def __init__(self, layouts: bool, known: dict[int, int] | None = None, handles=None, callbacks=None,
                 limit: int | None = None):
        self.layouts, self.storages = layouts, dict(known or {})
        self._limit, self._bytes = limit, 0
        self.handles, self.callbacks = handles, callbacks
        self.tensors: list[torch.Tensor] = []
        self.meta: list[dict] = []
        self.blobs: dict[str, torch.Tensor] = {}
        self._seen: dict[int, int] = {}

    def pack(self, value: Any, depth: int = 0) -> Any:
        if depth > 16:
            raise WireError("nested more than 16 levels deep")
        down = depth + 1
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, torch.Tensor):
            return {"t": self._tensor(value)}
        if isinstance(value, (Handle, Callback)):
            return {"h" if isinstance(value, Handle) else "fn": value.id}
        if isinstance(value, torch.Generator):
            return {"g": value.initial_seed()}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, Record):
            return {"o": value._type, "f": {k: self.pack(v, down) for k, v in value._fields.items()}}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._record(value, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, down)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._record(value, dict(zip(value._fields, value, strict=True)), down)
        for kind, code in ((list, "l"), (tuple, "u"), (set, "s"), (frozenset, "fs")):
            if isinstance(value, kind):
                return {code: [self.pack(v, down) for v in value]}
        if isinstance(value, dict):
            return {"d": [[self.pack(k, down), self.pack(v, down)] for k, v in value.items()]}
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind(value)
        if callable(value) and self.callbacks is not None:
            self.callbacks.append(value)
            return {"fn": len(self.callbacks) - 1}
        if self.handles is not None and isinstance(value, torch.nn.Module):
            self.handles.append(value)
            return {"h": len(self.handles) - 1}
        return {"x": [type(value).__name__, repr(value)[:200]]}

    def _record(self, value, fields, depth):
        return {"o": type(value).__name__, "f": {k: self.pack(v, depth) for k, v in fields.items()}}

    def _tensor(self, tensor: torch.Tensor) -> int:
        if id(tensor) in self._seen:
            return self._seen[id(tensor)]
        index = self._seen[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        self._bytes += tensor.numel() * tensor.element_size()
        if self._limit is not None and self._bytes > self._limit:
            raise WireError(f"{self._bytes:,} bytes were returned; the limit is {self._limit:,}")
        plain = tensor.detach()
        if type(plain) is not torch.Tensor:
            plain = plain.as_subclass(torch.Tensor)
        if plain.layout is not torch.strided or plain.is_meta:
            plain = torch.empty(plain.shape, dtype=plain.dtype)
        pointer = plain.untyped_storage().data_ptr()
        number = self.storages.setdefault(pointer, len(self.storages)) if pointer else -1 - index
        name = f"s{number}" if self.layouts and pointer else f"t{index}"
        if name not in self.blobs:
            self.blobs[name] = (self._whole(plain) if self.layouts and pointer
                                else plain.cpu().resolve_conj().resolve_neg().contiguous().clone())
        self.meta.append({"blob": name, "dtype": str(plain.dtype).removeprefix("torch."),
                          "shape": list(plain.shape), "stride": list(plain.stride()),
                          "offset": plain.storage_offset(), "storage": number,
                          "device": plain.device.type, "grad": bool(tensor.requires_grad)})
        return index

    @staticmethod
    def _whole(plain):
        return torch.empty(0, dtype=torch.uint8).set_(plain.untyped_storage()).clone()

    def message(self, tree: Any) -> tuple[bytes, bytes]:
        header = json.dumps({"body": tree, "tensors": self.meta}).encode()
        return header, save_tensors(self.blobs) if self.blobs else b""


class Unpacker:
    """Rebuilds plain tensors and plain Python values. Whatever the sender says, only plain types come out.

    `known` are tensors of this side by storage number: what lies in their storages comes back as a view of them.
    `record(type name, fields)` makes what a dataclass becomes on this side.
    """

    def __init__(self, header: bytes, blob: bytes, layouts: bool, handle=Handle, callback=Callback,
                 known: dict[int, torch.Tensor] | None = None, record=Record):
        try:
            message = json.loads(header)
            self.body, meta = message["body"], message["tensors"]
            blobs = load_tensors(blob) if blob else {}
            self.layouts: dict[int, Layout] = {}
            self._handle, self._callback, self._known, self._record = handle, callback, known or {}, record
            build = self._rebuild if layouts else self._values
            self.tensors = [build(m, blobs) for m in meta]
        except WireError:
            raise
        except Exception as e:
            raise WireError(f"garbled message ({type(e).__name__})") from e

    def _values(self, meta, blobs):
        tensor = blobs[meta["blob"]]
        if list(tensor.shape) != meta["shape"] or _DTYPES.get(meta["dtype"]) is not tensor.dtype:
            raise WireError("a tensor's bytes do not fit its description")
        self._describe(tensor, meta)
        return tensor

    def _rebuild(self, meta, blobs):
        raw = blobs[meta["blob"]]
        dtype = _DTYPES[meta["dtype"]]
        ours = self._known.get(meta["storage"])
        if meta["blob"].startswith("t"):
            tensor = raw.clone()
        elif _reach(meta) * dtype.itemsize > raw.numel():
            raise WireError("a tensor reaches beyond its storage")
        elif ours is not None and ours.dtype == dtype:
            tensor = ours.detach().as_strided(meta["shape"], meta["stride"], meta["offset"])
        else:
            tensor = torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), meta["offset"], meta["shape"],
                                                      meta["stride"])
        if meta["grad"]:
            tensor.requires_grad_()
        self._describe(tensor, meta)
        return tensor

    def _describe(self, tensor, meta):
        stride = tuple(int(s) for s in meta["stride"])
        self.layouts[id(tensor)] = Layout(stride, int(meta["offset"]), int(meta["storage"]))

    def unpack(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        (code, body), *rest = node.items()
        match code:
            case "t":
                return self.tensors[body]
            case "l":
                return [self.unpack(v) for v in body]
            case "u":
                return tuple(self.unpack(v) for v in body)
            case "s":
                return {self.unpack(v) for v in body}
            case "fs":
                return frozenset(self.unpack(v) for v in body)
            case "d":
                return {self.unpack(k): self.unpack(v) for k, v in body}
            case "o":
                return self._record(str(body), {str(k): self.unpack(v) for k, v in node["f"].items()})
            case "h":
                return self._handle(body)
            case "fn":
                return self._callback(body)
            case "dtype":
                return _DTYPES[body]
            case "g":
                return torch.Generator().manual_seed(int(body))
            case "x":
                return Opaque(str(body[0]), str(body[1]))
        raise WireError(f"unknown node {code!r}")


def _reach(meta) -> int:
    """One more than the highest element of its storage that a described tensor reads."""
    sizes, strides, offset = meta["shape"], meta["stride"], meta["offset"]
    if offset < 0 or min([*sizes, *strides], default=0) < 0:
        raise WireError("a tensor with a negative size, stride or offset")
    return 0 if 0 in sizes else offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def send(sock, header: bytes, blob: bytes = b"") -> None:
    """One frame: two little-endian lengths, the JSON header, the safetensors bytes."""
    sock.sendall(_FRAME.pack(len(header), len(blob)) + header + blob)


def receive(sock, limit: int) -> tuple[bytes, bytes]:
    """The next frame. Raises WireError above `limit` bytes, EOFError when the other side is gone."""
    header, blob = _FRAME.unpack(_exactly(sock, _FRAME.size))
    if header + blob > limit:
        raise WireError(f"{header + blob:,} bytes were sent back; the limit is {limit:,}")
    return _exactly(sock, header), _exactly(sock, blob)


def _exactly(sock, count: int) -> bytes:
    parts, missing = [], count
    while missing:
        part = sock.recv(min(missing, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
