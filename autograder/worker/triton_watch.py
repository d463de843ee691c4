"""What a call did through Triton's interpreter: launches, bytes moved, accesses outside of tensors, and races.

The interpreter runs one program after the other and trusts every address, so that a race or an access past the end
of a tensor passes in silence. Here every load, store and atomic is seen; lanes that leave their tensor are reported,
read NaN and store nothing.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

MOST = 8  # violations that are described
_UNUSABLE = {torch.bfloat16: "bfloat16", **{d: str(d).removeprefix("torch.") for d in (
    torch.float8_e4m3fn, torch.float8_e5m2)}}
_MOVES_NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
_WRITES_ONLY = {"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full",
                "fill_", "fill", "zero_", "arange"}


class UnusableDtype(TypeError):
    """The interpreter computes wrong numbers in this dtype, without a word."""


@dataclass
class Region:
    """The bytes of one storage that a kernel may touch. `held` marks the elements that a caller's tensors hold."""

    start: int
    end: int
    itemsize: int
    held: np.ndarray | None = None
    first: int = 0
    read: np.ndarray | None = None
    writer: np.ndarray | None = None

    def index(self, addresses: np.ndarray) -> np.ndarray:
        return (addresses.astype(np.int64) - self.start) // self.itemsize


@dataclass
class Argument:
    """A tensor argument of the running launch."""

    name: str
    pointer: int
    itemsize: int
    elements: int
    reach: int


@dataclass
class Launch:
    kernel: str
    grid: tuple[int, ...]
    arguments: list[Argument] = field(default_factory=list)


class Watch(TorchDispatchMode):
    """Use around one call. `inputs` are the caller's tensors: only their own elements may be touched."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __init__(self, inputs: Sequence[torch.Tensor]):
        super().__init__()
        self._inputs = [t for t in inputs if t.numel()]
        self._regions: dict[int, Region] = {}
        self._alive: list[torch.Tensor] = []
        self._derived = {t.untyped_storage().data_ptr() for t in self._inputs}
        self._launch: Launch | None = None
        self.launches: list[Launch] = []
        self.on_inputs: dict[str, int] = {}
        self.loaded = self.stored = self.torch_bytes = 0
        self.outside: list[dict] = []
        self.races: list[dict] = []
        self._counts = {"outside": 0, "races": 0}

    # ---- torch's own operators

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        result = function(*args, **(kwargs or {}))
        if name in _MOVES_NOTHING:
            return result
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        storages = {t.untyped_storage().data_ptr() for t in given}
        if storages & self._derived:
            self.on_inputs[name] = self.on_inputs.get(name, 0) + 1
            self._derived |= {t.untyped_storage().data_ptr() for t in made}
            self._alive += made  # an address is not used twice
        fresh = [t for t in made if t.untyped_storage().data_ptr() not in storages]
        if fresh or name.endswith("_"):
            written = sum(t.numel() * t.element_size() for t in (fresh or made))
            read = 0 if name in _WRITES_ONLY else sum(t.numel() * t.element_size() for t in given)
            self.torch_bytes += written + read
        return result

    # ---- the interpreter

    def __enter__(self):
        from triton.runtime import interpreter
        self._interpreter = interpreter
        builder, function = interpreter.interpreter_builder, interpreter.InterpretedFunction
        self._original = function.run, function.__call__, builder.options
        original, watch, prepared = function.run, self, set()

        def run(kernel, *args, grid, warmup, **kwargs):
            outer, watch._launch = watch._launch, watch._begin(kernel, args, kwargs, grid)
            prepared.clear()
            try:
                with _disable_current_modes(), np.errstate(all="ignore"):
                    return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            finally:
                watch._launch = outer

        def device_call(kernel, *args, **kwargs):
            """As the original, which prepares the language for every `tl.sum` anew: half of a program's time."""
            if id(kernel.fn.__globals__) not in prepared:
                interpreter._patch_lang(kernel.fn)
                prepared.add(id(kernel.fn.__globals__))
            return kernel.rewrite()(*args, **kwargs)

        function.run, function.__call__ = run, device_call
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)  # checked by nobody here
        builder.create_masked_load = self._load
        builder.create_masked_store = self._store
        builder.create_atomic_rmw = self._atomic
        builder.cast_impl = self._cast
        builder.create_assert = self._assert
        for tensor in self._inputs:
            self._mark(tensor)
        self._deterministic = torch._C._get_deterministic_algorithms()
        # torch.empty comes filled with NaN; the public setter imports torch._inductor, which takes two seconds
        torch._C._set_deterministic_algorithms(True, warn_only=True)
        return super().__enter__()

    def __exit__(self, *error):
        torch._C._set_deterministic_algorithms(self._deterministic)
        function, builder = self._interpreter.InterpretedFunction, self._interpreter.interpreter_builder
        function.run, function.__call__, builder.options = self._original
        for name in ("create_masked_load", "create_masked_store", "create_atomic_rmw", "cast_impl", "create_assert"):
            builder.__dict__.pop(name, None)
        return super().__exit__(*error)

    def _mark(self, tensor):
        storage, size = tensor.untyped_storage(), tensor.element_size()
        region = self._regions.get(storage.data_ptr())
        if region is None:
            elements = storage.nbytes() // size
            region = Region(storage.data_ptr(), storage.data_ptr() + elements * size, size,
                            np.zeros(elements, bool), read=np.zeros(elements, bool))
            self._regions[storage.data_ptr()] = region
        torch.as_strided(torch.from_numpy(region.held), tensor.shape, tensor.stride(),
                         tensor.storage_offset()).fill_(True)

    def _begin(self, kernel, args, kwargs, grid):
        bound = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        shape = grid(bound) if callable(grid) else grid
        launch = Launch(kernel.__name__, tuple(int(n) for n in shape))
        with _disable_current_modes():
            for name, value in bound.items():
                self._bind(launch, name, value)
            for region in self._regions.values():
                region.writer = None
        self.launches.append(launch)
        return launch

    def _bind(self, launch, name, value):
        value = getattr(value, "base", value) if not isinstance(value, torch.Tensor) else value
        if isinstance(value, tuple):
            for i, part in enumerate(value):
                self._bind(launch, f"{name}[{i}]", part)
        if not isinstance(value, torch.Tensor):
            return
        if value.dtype in _UNUSABLE:
            raise UnusableDtype(f"`{name}` is {_UNUSABLE[value.dtype]}, whose arithmetic Triton's interpreter gets "
                                "wrong without a word; use float32 or float16 where there is no GPU")
        storage = value.untyped_storage()
        if storage.data_ptr() not in self._regions:
            self._alive.append(value)
            self._regions[storage.data_ptr()] = Region(storage.data_ptr(), storage.data_ptr() + storage.nbytes(),
                                                       value.element_size())
        reach = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
        launch.arguments.append(Argument(name, value.data_ptr(), value.element_size(), value.numel(), reach))

    def _load(self, ptrs, mask, other, *hints):
        kind, dtype = self._element(ptrs)
        inside, regions = self._check("load", ptrs, mask, kind.itemsize)
        active = ptrs.data[inside]
        self.loaded += len(np.unique(active)) * kind.itemsize
        for region, lanes in regions:
            index = region.index(ptrs.data[lanes])
            if region.read is not None:
                region.read[index] = True
            if region.writer is not None:
                self._other_writer("load", region, index, ptrs.data[lanes])
        handle = self._interpreter.TensorHandle
        if other is None:  # undefined on a GPU: NaN shows who used it
            fill = np.full(ptrs.data.shape, np.nan if kind.kind == "f" else 0, kind)
        else:
            fill = np.array(np.broadcast_to(other.data, ptrs.data.shape), dtype=kind)
        outside = mask.data.astype(bool) & ~inside
        fill[outside] = np.nan if kind.kind == "f" else 0
        return handle(self._interpreter._interpreter.load(ptrs.data, inside, fill, kind), dtype)

    def _store(self, ptrs, value, mask, *hints):
        kind, _ = self._element(ptrs)
        inside, regions = self._check("store", ptrs, mask, kind.itemsize)
        self.stored += len(np.unique(ptrs.data[inside])) * kind.itemsize
        for region, lanes in regions:
            self._claim(region, ptrs.data[lanes], np.broadcast_to(value.data, ptrs.data.shape)[lanes], kind)
        return self._interpreter._interpreter.store(ptrs.data, value.data, inside)

    def _atomic(self, operation, ptr, value, mask, sem, scope):
        kind, _ = self._element(ptr)
        inside, _ = self._check("atomic", ptr, mask, kind.itemsize)
        self.loaded += int(inside.sum()) * kind.itemsize
        self.stored += int(inside.sum()) * kind.itemsize
        safe = self._interpreter.TensorHandle(inside, mask.dtype)
        cls = self._interpreter.InterpreterBuilder
        return cls.create_atomic_rmw(self._interpreter.interpreter_builder, operation, ptr, value, safe, sem, scope)

    def _cast(self, source, target):
        name = str(getattr(target, "scalar", target))
        if name in ("bf16", "fp8e4nv", "fp8e5"):
            raise UnusableDtype(f"a value is cast to {name}, whose arithmetic Triton's interpreter gets wrong without "
                                "a word; use float32 or float16 where there is no GPU")
        return self._interpreter.InterpreterBuilder.cast_impl(self._interpreter.interpreter_builder, source, target)

    def _assert(self, condition, message, *place):
        if not np.all(condition.data):
            raise AssertionError(f"device_assert: {message}")

    def _element(self, ptrs):
        dtype = ptrs.get_element_ty()
        return np.dtype(self._interpreter._get_np_dtype(dtype)), dtype

    # ---- addresses

    def _check(self, kind, ptrs, mask, itemsize):
        """(lanes that are active and inside, [(region, its lanes)]). Others are reported."""
        active = mask.data.astype(bool)
        inside = np.zeros(ptrs.data.shape, bool)
        regions = []
        for region in self._regions.values():
            lanes = active & (ptrs.data >= region.start) & (ptrs.data + np.uint64(itemsize) <= region.end)
            if not lanes.any():
                continue
            if region.held is not None:
                held = np.zeros_like(lanes)
                held[lanes] = region.held[region.index(ptrs.data[lanes])]
                lanes = held
            inside |= lanes
            regions.append((region, lanes))
        if (active & ~inside).any():
            self._report(kind, ptrs.data[active & ~inside], int(active.sum()))
        return inside, regions

    def _report(self, kind, addresses, of):
        self._counts["outside"] += 1
        if len(self.outside) >= MOST:
            return
        argument, element = self._nearest(int(addresses[0]))
        self.outside.append({"kind": kind, "kernel": self._launch.kernel, "program": self._program(),
                             "lanes": len(addresses), "of": of, "argument": argument.name, "element": element,
                             "elements": argument.elements, "reach": argument.reach})

    def _nearest(self, address):
        def distance(a):
            end = a.pointer + a.reach * a.itemsize
            return max(a.pointer - address, address - end + 1, 0)
        nearest = min(self._launch.arguments, key=distance)
        return nearest, (address - nearest.pointer) // nearest.itemsize

    def _program(self):
        return tuple(int(i) for i in self._interpreter.interpreter_builder.grid_idx)

    def _number(self):
        x, y, z = self._interpreter.interpreter_builder.grid_idx
        _, ny, nz = (*self._launch.grid, 1, 1)[:3]
        return (x * ny + y) * nz + z

    def _place(self, number):
        _, ny, nz = (*self._launch.grid, 1, 1)[:3]
        return int(number // (ny * nz)), int(number // nz % ny), int(number % nz)

    def _claim(self, region, addresses, values, kind):
        index, me = region.index(addresses), self._number()
        if region.writer is None:
            region.writer = np.full((region.end - region.start) // region.itemsize, -1, np.int64)
        before = region.writer[index]
        taken = (before >= 0) & (before != me)
        if taken.any():
            there = self._interpreter._interpreter.load(addresses, taken, values.astype(kind), kind)
            new = values.astype(kind)
            differs = taken & ~((there == new) | ((there != there) & (new != new)))
            if differs.any():
                self._race("store", before[differs][0], addresses[differs][0])
        region.writer[index] = me

    def _other_writer(self, kind, region, index, addresses):
        before = region.writer[index]
        taken = (before >= 0) & (before != self._number())
        if taken.any():
            self._race(kind, before[taken][0], addresses[taken][0])

    def _race(self, kind, other, address):
        self._counts["races"] += 1
        if len(self.races) >= MOST:
            return
        argument, element = self._nearest(int(address))
        self.races.append({"kind": kind, "kernel": self._launch.kernel, "program": self._program(),
                           "other": self._place(other), "argument": argument.name, "element": element})

    def facts(self, known: Any = None) -> dict[str, Any]:
        """Plain data. Bytes: loaded and stored by kernels, moved by torch's operators. on_inputs: operators of torch
        that saw an input, or what torch made of one. read: elements of each input that a kernel loaded."""
        read = []
        for tensor in self._inputs:
            region = self._regions[tensor.untyped_storage().data_ptr()]
            mine = torch.as_strided(torch.from_numpy(region.read), tensor.shape, tensor.stride(),
                                    tensor.storage_offset())
            read.append(int(mine.sum()))
        return {"launches": [{"kernel": n.kernel, "grid": list(n.grid)} for n in self.launches],
                "loaded": self.loaded, "stored": self.stored, "torch_bytes": self.torch_bytes,
                "on_inputs": self.on_inputs, "outside": self.outside, "races": self.races,
                "violations": dict(self._counts), "read": read}
