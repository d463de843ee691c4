"""What a call asked torch for: operators dispatched, and new storages in bytes."""
from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CONTRACTIONS = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "matmul", "linear", "mv", "dot"}


class Counter(TorchDispatchMode):
    """Counts operators by name and remembers the bytes of every storage that appears first as a result."""

    @classmethod
    def _should_skip_dynamo(cls):  # the default imports torch._dynamo at the first operator: a second in every child
        return False

    def __init__(self):
        super().__init__()
        self.operators: Tally[str] = Tally()
        self._known: dict[int, torch.UntypedStorage] = {}
        self._new: list[int] = []
        self._operands: set[int] = set()
        self._shapes: list[list[int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operators[function.overloadpacket.__name__] += 1
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self._known.setdefault(leaf.untyped_storage().data_ptr(), leaf.untyped_storage())
                if function.overloadpacket.__name__ in CONTRACTIONS:
                    self._operands.add(leaf.untyped_storage().data_ptr())
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage.data_ptr() not in self._known:
                    self._known[storage.data_ptr()] = storage
                    self._new.append(storage.nbytes())
                    self._shapes.append(list(leaf.shape))
        return result

    def facts(self, numbers: Mapping[int, int] = MappingProxyType({})) -> dict:
        """{"operators": {name: calls}, "contractions": int, "new_storages": [bytes, ...], "new_shapes": [shape, ...],
        "multiplied": [number, ...]}

        A shape is that of the tensor with which its storage appeared. `numbers` numbers storages by data pointer; those
        that were an operand of a contraction come back under "multiplied".
        """
        return {"operators": dict(self.operators),
                "contractions": sum(n for name, n in self.operators.items() if name in CONTRACTIONS),
                "new_storages": list(self._new), "new_shapes": self._shapes,
                "multiplied": sorted(number for pointer, number in numbers.items() if pointer in self._operands)}


def counter_for(what, inputs):
    """The counter that a request asks for: True for operators and storages, "triton" for what kernels do, or None."""
    if what == "triton":
        from .triton_watch import Watch
        return Watch(inputs)
    return Counter() if what else None
