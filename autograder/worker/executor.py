"""Carries out the grader's requests on a learner's module. Returns raw facts, never a verdict."""
from __future__ import annotations

import traceback
from typing import Any

import torch

from . import containers, histories, ranks, specimens, surfaces
from .batched import sample_by_sample
from .counting import counter_for
from .given_records import given_record
from .recompute import two_passes
from .turns import Turns
from .wire import Packer, Unpacker

_equal, _clone, _no_grad = torch.equal, torch.Tensor.clone, torch.no_grad
_rng_state = torch.get_rng_state


class Executor:
    """`resolve(name)` finds a public name of the learner's module; `ask(header, blob)` calls back to the grader."""

    def __init__(self, resolve, ask=None, limit: int | None = None):
        self._resolve, self._ask, self._limit = resolve, ask, limit
        self._handles: list[Any] = []
        self._turns = Turns()
        self._last = None

    def handle(self, header: bytes, blob: bytes) -> tuple[bytes, bytes]:
        unpacker = Unpacker(header, blob, layouts=True, handle=lambda i: self._handles[i],
                            callback=self._callback, record=given_record)
        request = unpacker.unpack(unpacker.body)
        try:
            return getattr(self, f"_{request['do']}")(request, unpacker)
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            return self._reply({"error": describe(e)})

    def _call(self, request, unpacker):
        target = request.get("on")
        function = self._resolve(request["name"]) if target is None else getattr(target, request["name"])
        before = [(t, t._version, _clone(t.detach())) for t in unpacker.tensors]
        args, kwargs = request["args"], request["kwargs"]
        frame = containers.frame([*args, kwargs])
        self._last = None
        torch.default_generator.manual_seed(request.get("seed", 0))
        counter = counter_for(request.get("count"), unpacker.tensors)
        state = _rng_state()
        error = value = None
        try:
            with surfaces.modes(request.get("modes")):
                if counter:
                    with counter:
                        value = function(*args, **kwargs)
                else:
                    value = function(*args, **kwargs)
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            error = describe(e)
        drew = not _equal(_rng_state(), state)
        mutated = [i for i, (t, version, copy) in enumerate(before)
                   if t._version != version or not _equal_nan(t.detach(), copy)]
        if request.get("restores"):
            mutated = []
        rearranged = containers.rearranged(frame)
        if error:
            return self._reply({"error": error, "mutated": mutated, "rearranged": rearranged})
        known = {t.untyped_storage().data_ptr(): unpacker.layouts[id(t)].storage for t in unpacker.tensors
                 if t.untyped_storage().data_ptr()}
        packer = Packer(layouts=False, known=known, handles=self._handles, limit=self._limit)
        tree = packer.pack(value)
        self._last = (packer.tensors, unpacker.tensors, target)
        facts = {"value": tree, "mutated": mutated, "rearranged": rearranged, "drew": drew}
        if counter:
            facts["counts"] = counter.facts(known)
        if request.get("restores"):
            facts["left"] = [t.detach().clone() for t in unpacker.tensors]
        return packer.message({"d": [[k, v if k == "value" else packer.pack(v)] for k, v in facts.items()]})

    def _build(self, request, unpacker):
        torch.default_generator.manual_seed(request.get("seed", 0))
        module = self._resolve(request["name"])(*request["args"], **request["kwargs"])
        self._handles.append(module)
        shapes = self._state_shapes(module)
        load = request.get("load")
        if load and shapes == {k: tuple(v.shape) for k, v in load["state"].items()}:
            self._load({"on": module} | load, unpacker)
        return self._reply({"handle": len(self._handles) - 1, "state": shapes})

    @staticmethod
    def _state_shapes(module):
        state = getattr(module, "state_dict", dict)()
        return {k: tuple(v.shape) for k, v in state.items() if isinstance(v, torch.Tensor)}

    def _load(self, request, unpacker):
        """Give a module its dtype, mode and parameters."""
        module = request["on"]
        if request.get("dtype") is not None:
            module.to(request["dtype"])
        module.train(request.get("training", False))
        module.load_state_dict({k: _clone(v) for k, v in request["state"].items()}, strict=True)
        return self._reply({"loaded": True})

    def _backward(self, request, unpacker):
        """Gradients of the last call for given cotangents: by input number, and by parameter name."""
        outputs, inputs, module = self._last
        pairs = [(outputs[i], c) for i, c in request["cotangents"] if outputs[i].requires_grad]
        if not pairs:
            return self._reply({"graph": False, "inputs": [], "params": {}})
        wanted = [t for t in inputs if t.requires_grad]
        params = dict(module.named_parameters()) if isinstance(module, torch.nn.Module) else {}
        sources = wanted + list(params.values())
        try:
            grads = torch.autograd.grad([o for o, _ in pairs], sources, [c for _, c in pairs], allow_unused=True)
        except RuntimeError as e:
            if "does not require grad" not in str(e):
                raise
            return self._reply({"graph": False, "inputs": [], "params": {}})  # a view that was made under no_grad
        by_input = iter(grads[:len(wanted)])
        return self._reply({"graph": True,
                            "inputs": [next(by_input) if t.requires_grad else None for t in inputs],
                            "params": dict(zip(params, grads[len(wanted):], strict=True))})

    def _passes(self, request, unpacker):
        """Forward, numbers drawn in between, backward: see recompute.py."""
        facts = two_passes(self._resolve(request["name"]), request, unpacker.tensors)
        return self._reply(facts | {"raised": facts["raised"] and describe(facts["raised"])})

    def _histories(self, request, unpacker):
        """Sequences of method calls, each on a fresh object; see histories.py."""
        return self._reply({"histories": histories.play(
            self._resolve(request["name"]), request["calls"], request["histories"], request["reads"], describe)})

    def _stage(self, request, unpacker):
        """What timed turns draw from; see turns.py."""
        self._turns.stage(request["pools"], request.get("core"))
        return self._reply({"staged": True})

    def _turn(self, request, unpacker):
        """One timed turn; what it costs without a program; whether it left its inputs alone. See turns.py."""
        if request["how"] == "take":
            return self._reply(self._turns.take(self._resolve(request["name"]), request))
        return self._reply({"echo": self._turns.echo, "intact": self._turns.intact}[request["how"]](request))

    def _triton(self, request, unpacker):
        """A function's kernels compiled, or timed on a GPU: see triton_device.py."""
        from . import triton_device
        function = self._resolve(request["name"])
        return self._reply(getattr(triton_device, request["how"])(function, request, unpacker.tensors))

    def _specimen(self, request, unpacker):
        """A module from a plain recipe; see specimens.py."""
        self._handles.append(specimens.build(request["recipe"]))
        return self._reply({"handle": len(self._handles) - 1})

    def _ranks(self, request, unpacker):
        """The same call on every rank of a process group, which is its last positional argument; see ranks.py."""
        function = self._resolve(request["name"])
        return self._reply({"ranks": ranks.run(
            function, unpacker.tensors, lambda group: ([*request["args"], group], request["kwargs"]),
            request["world"], request["seconds"])})

    def _callback(self, number):
        @sample_by_sample
        def function(*args, **kwargs):
            packer = Packer(layouts=True)
            body = packer.pack({"callback": number, "args": list(args), "kwargs": kwargs})
            ours = {packer.storages[p]: t for t in packer.tensors if (p := t.untyped_storage().data_ptr())}
            reply = Unpacker(*self._ask(*packer.message(body)), layouts=True, known=ours)
            answer = reply.unpack(reply.body)
            if answer.get("error"):
                raise _ERRORS.get(answer["error"]["type"], RuntimeError)(answer["error"]["message"])
            return answer["value"]
        return function

    def _reply(self, body):
        packer = Packer(layouts=False)
        return packer.message(packer.pack(body))


_ERRORS = {e.__name__: e for e in (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, AssertionError)}


def _equal_nan(a, b):
    return _equal(a, b) or a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def describe(error: BaseException) -> dict:
    """Type, text, and the last place in the learner's own files."""
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if "mha_lab" in frame.filename and "autograder" not in frame.filename:
            where = f"{frame.filename.split('/')[-1]}, line {frame.lineno}: {frame.line}"
    if isinstance(error, SyntaxError):
        name = (error.filename or "").split("/")[-1]
        where = f"{name}, line {error.lineno}: {(error.text or '').strip()}"
        message = error.msg
    else:
        try:
            message = str(error)
        except Exception:
            message = "(its text could not be read)"
    return {"type": type(error).__name__, "kinds": [c.__name__ for c in type(error).__mro__],
            "message": message[:2000], "where": where}
