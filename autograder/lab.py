"""The lab under test: the same calls in this process, or in a sandboxed worker. Every answer enters a transcript."""
from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from . import rank_calls
from .rank_calls import Rank
from .wording import epitaph, error_kind, error_line, from_torch, returned, spell, spoken
from .worker import wire
from .worker.executor import Executor, describe
from .worker.wire import Handle, Layout, Opaque, Record, WireError

__all__ = ["Lab", "Answer", "Observation", "Mismatch", "Gone", "Layout", "Rank", "Record", "Opaque", "Gradients",
           "in_process", "in_worker", "read_lab", "sizes_of"]


TRITON_PATIENCE = 3  # an interpreter and a compiler take longer on a busy machine; CPU time stays bounded as for all


class Mismatch(AssertionError):
    """What the learner's program did is not what the contract asks for. May carry a `Figure` (see report.py)."""

    def __init__(self, message: str, figure: Any = None):
        super().__init__(message)
        self.figure = figure


class NotStarted(Exception):
    """The stub is still a stub."""


class Gone(Exception):
    """The worker ended, or its time did. `kind` is "timeout" or "error"."""

    def __init__(self, message: str, kind: str = "error"):
        super().__init__(message)
        self.kind = kind


@dataclass
class Observation:
    """One entry of a transcript: what was asked, and the raw outcome."""

    asked: str
    value: Any = None
    error: str | None = None


@dataclass
class Answer:
    """A value from the lab, with the facts that came beside it."""

    value: Any
    layouts: dict[int, Layout]
    inputs: list[torch.Tensor]
    numbers: dict[int, int]
    output_index: dict[int, int]
    counts: dict | None = None
    left: list[torch.Tensor] | None = None
    drew: bool = False

    def layout(self, tensor: torch.Tensor) -> Layout:
        """Strides (elements), offset and storage number of a tensor of this answer, as the program returned it."""
        return self.layouts[id(tensor)]

    def shares_storage(self, tensor: torch.Tensor, given: torch.Tensor) -> bool:
        """Whether a returned tensor lies in the memory of a tensor that was passed in."""
        return self.layout(tensor).storage == self.numbers[id(given)]


@dataclass
class Gradients:
    """What came back for the cotangents. A None is a gradient that does not exist."""

    graph: bool
    inputs: dict[int, torch.Tensor | None]
    params: dict[str, torch.Tensor | None]

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return self.inputs.get(id(tensor))


@dataclass
class _Transport:
    request: Callable[[bytes, bytes], tuple[bytes, bytes]]
    close: Callable[[], None] = lambda: None
    callbacks: list[Callable] = field(default_factory=list)


class Lab:
    """Calls to a learner's module. `transcript` holds every outcome, in order.

    `mutated` names the calls that changed a tensor which they were given. `rearranged` holds the paths (of the
    arguments) of lists and dicts whose entries a call replaced; whether that is a fault is for a case to say.
    """

    def __init__(self, transport: _Transport):
        self._transport = transport
        self.noted: dict[str, Any] = {}  # what cases measured, for the Report
        self.begin()

    def begin(self) -> None:
        """Start a new transcript: the next case."""
        self.transcript: list[Observation] = []
        self.mutated: list[str] = []
        self.rearranged: list[str] = []
        self.signature: tuple | None = None
        self._called = False
        self.last: Answer | None = None

    def call(self, name: str, *args, watch: tuple[str, ...] = (), count: bool | str = False, seed: int = 0,
             restores: bool = False, modes: Mapping[str, bool] | None = None, **kwargs):
        """The value of `name(*args, **kwargs)`; Mismatch if it raises. Details of the answer are in `self.last`.

        watch=("layout",) enters the strides and storage of the result into the transcript, ("storage",) only
        whether it lies in the memory of an input. restores=True: the program may step in its inputs if it puts their
        values back; nothing counts as changed, and `self.last.left` holds the inputs as it left them.
        modes={"grad": False, "autocast": True} sets either for the call. `self.last.drew` says whether torch's global
        generator moved.
        """
        return self._expect_value(self._request("call", name, args, kwargs, count=count, seed=seed,
                                                restores=restores, modes=modes and dict(modes)), name, watch)

    def method(self, handle: Handle, name: str, *args, watch: tuple[str, ...] = (), count: bool = False,
               seed: int = 0, **kwargs):
        """The value of `handle.name(*args, **kwargs)` for an object made by `build`."""
        answer = self._request("call", name, args, kwargs, on=handle, count=count, seed=seed)
        return self._expect_value(answer, spoken(name), watch)

    def build(self, name: str, *args, seed: int = 0, load: Mapping[str, Any] | None = None,
              **kwargs) -> tuple[Handle, dict[str, tuple]]:
        """An object of a learner's class, and the shapes of its state.

        load={"state": ..., "dtype": ..., "training": ...} loads it in the same request, where names and shapes fit.
        """
        body, _ = self._request("build", name, args, kwargs, seed=seed, load=load and dict(load))
        self._raise_error(body, name)
        shapes = {k: tuple(v) for k, v in body["state"].items()}
        self.transcript.append(Observation(f"build {name}", value=shapes))
        return Handle(body["handle"]), shapes

    def load(self, handle: Handle, state: Mapping[str, torch.Tensor], dtype=torch.float64, training=False) -> None:
        """Give a built module its dtype and parameters."""
        body, _ = self._exchange({"do": "load", "on": handle, "state": dict(state), "dtype": dtype,
                                  "training": training})
        self._raise_error(body, "load_state_dict")

    def backward(self, *cotangents: tuple[torch.Tensor, torch.Tensor]) -> Gradients:
        """Gradients of the last answer for (output, cotangent) pairs."""
        answer = self.last
        pairs = [[answer.output_index[id(o)], c] for o, c in cotangents]
        body, _ = self._exchange({"do": "backward", "cotangents": pairs})
        self._raise_error(body, "backward")
        by_input = dict(zip((id(t) for t in answer.inputs), body["inputs"], strict=False))
        grads = Gradients(body["graph"], by_input, body["params"])
        self.transcript.append(Observation("backward", value=[body["graph"], body["inputs"], body["params"]]))
        return grads

    def ranks(self, name: str, *args, world: int = 2, seconds: float = 8.0) -> list[Rank]:
        """`name(*args, group)` on every rank of a real process group; Mismatch if a rank raises or never ends."""
        return rank_calls.call(self, name, args, world, seconds)

    def ranks_raise(self, error: type[Exception], word: str, name: str, *args, world: int = 2) -> None:
        """Mismatch unless every rank raises `error` with `word` in its text (any case)."""
        rank_calls.refused(self, error, word, name, args, world)

    def specimen(self, recipe: Mapping[str, Any]) -> Handle:
        """A module made on the other side from a recipe of plain data; see worker/specimens.py."""
        body, _ = self._exchange({"do": "specimen", "recipe": recipe})
        self._raise_error(body, "the module")
        return Handle(body["handle"])

    def raises(self, error: type[Exception], word: str, name: str, *args, restores: bool = False, **kwargs) -> None:
        """Mismatch unless `name(*args, **kwargs)` raises `error` with `word` in its text (any case)."""
        outcome = self._request("call", name, args, kwargs, restores=restores)
        self._refused(outcome, error, word, spell(name, args, kwargs))

    def method_raises(self, error: type[Exception], word: str, handle: Handle, name: str, *args, **kwargs) -> None:
        self._refused(self._request("call", name, args, kwargs, on=handle), error, word,
                      spell(spoken(name), args, kwargs))

    def build_raises(self, error: type[Exception], word: str, name: str, *args, **kwargs) -> None:
        self._refused(self._request("build", name, args, kwargs), error, word, spell(name, args, kwargs))

    def close(self) -> None:
        self._transport.close()

    def send(self, header: bytes, blob: bytes) -> tuple[bytes, bytes]:
        """One frame there and one back, as bytes: what a clock can stand around. Gone if there is none."""
        try:
            return self._transport.request(header, blob)
        except WireError as e:
            raise Gone(str(e)) from e

    def _refused(self, outcome, error, word, spelled):
        body, _ = outcome
        got = body.get("error")
        if got is None:
            self.transcript.append(Observation(spelled, value=body.get("value")))
            raise Mismatch(f"{spelled} was accepted; the contract refuses it with {error.__name__} "
                           f"(\"{word}\"){returned(body.get('value'))}")
        self._not_started(got)
        right_word = word.lower() in got["message"].lower()
        self.transcript.append(Observation(spelled, error=f"{got['type']}{'' if right_word else ' without word'}"))
        if error.__name__ not in got["kinds"]:
            raise Mismatch(f"{spelled} raised {error_line(got)}; the contract asks for {error.__name__} "
                           f"with the word \"{word}\"")
        if not right_word:
            raise Mismatch(f"{spelled} raised {error.__name__}, but its text does not say \"{word}\": "
                           f"\"{got['message'][:120]}\"")

    def _expect_value(self, outcome, name, watch):
        body, unpacker = outcome
        self._raise_error(body, name)
        value = body["value"]
        output_index = {id(t): i for i, t in enumerate(unpacker.tensors)}
        answer = Answer(value, unpacker.layouts, self._inputs, self._numbers, output_index, body.get("counts"),
                        body.get("left"), bool(body.get("drew")))
        self.last = answer
        seen = value
        if "layout" in watch:
            layouts = [(answer.layout(t), [n for n in self._numbers.values() if n == answer.layout(t).storage][:1])
                       for t in unpacker.tensors]
            seen = [value, [(tuple(lay.stride), bool(shared)) for lay, shared in layouts]]
        if "storage" in watch:
            known = set(self._numbers.values())
            seen = [value, [answer.layout(t).storage in known for t in unpacker.tensors]]
        if "counts" in watch:
            seen = [seen, answer.counts]
        self.transcript.append(Observation(name, value=seen))
        return value

    def _raise_error(self, body, name):
        error = body.get("error")
        if error is None:
            return
        self._not_started(error)
        self.transcript.append(Observation(name, error=error_kind(error)))
        raise Mismatch(f"{name} raised {error_line(error)}")

    @staticmethod
    def _not_started(error):
        if error["type"] == "NotImplementedError" and not from_torch(error):
            raise NotStarted(error["message"])
        if error["type"] == "Missing":
            raise Gone(error["message"] + "; a `def` or `class` of that name is what the exercise looks for")

    def _request(self, do, name, args, kwargs, on=None, count=False, seed=0, **more):
        if not self._called:
            self.signature = (self.signature or ()) + sizes_of(args, kwargs)
            self._called = do != "build"
        body = {"do": do, "name": name, "args": list(args), "kwargs": kwargs, "seed": seed}
        body |= {k: v for k, v in more.items() if v is not None and v is not False}
        if on is not None:
            body["on"] = on
        if count:
            body["count"] = count
        reply, unpacker = self._exchange(body)
        if reply.get("mutated"):
            self.mutated.append(name)
        self.rearranged += map(str, reply.get("rearranged") or [])
        return reply, unpacker

    def _exchange(self, body):
        callbacks = self._transport.callbacks = []
        packer = wire.Packer(layouts=True, callbacks=callbacks)
        header, blob = packer.message(packer.pack(body))
        self._inputs = packer.tensors
        self._numbers = {id(t): m["storage"] for t, m in zip(packer.tensors, packer.meta, strict=True)}
        try:
            reply = wire.Unpacker(*self._transport.request(header, blob), layouts=False)
            decoded = reply.unpack(reply.body)
            if not isinstance(decoded, dict):
                raise WireError("an answer that is no answer")
        except WireError as e:
            raise Gone(str(e)) from e
        if "gone" in decoded or "refused" in decoded:
            raise Gone(epitaph(decoded))
        return decoded, reply


def sizes_of(args, kwargs) -> tuple:
    """The sizes of a call: its numbers and the shapes of its tensors; masks count only where nothing else comes."""
    leaves = tree_leaves([*args, *(kwargs[k] for k in sorted(kwargs))])
    floats = any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in leaves)
    return tuple(tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in leaves if isinstance(v, (int, tuple))
                 or isinstance(v, torch.Tensor) and (v.is_floating_point() or not floats))


def in_process(namespace: Mapping[str, Any]) -> Lab:
    """A lab over trusted programs, through the same wire and the same executor as the worker's."""
    def resolve(dotted):
        value = namespace[dotted.split(".")[0]]
        for part in dotted.split(".")[1:]:
            value = getattr(value, part)
        return value

    transport = _Transport(request=None)
    executor = Executor(resolve, ask=lambda header, blob: _serve_callback(transport, header, blob))
    transport.request = executor.handle
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)  # as in the worker; on tiny tensors threads only wait for each other

    def close():
        torch.random.set_rng_state(state)
        torch.set_num_threads(threads)
    transport.close = close
    return Lab(transport)


def in_worker(sandbox, module: str, files: Mapping[str, bytes], triton: str = "") -> Lab:
    """A lab in a fresh sandboxed child. Gone if the module cannot be imported or the child dies.

    triton: the mode in which the child will import it, "interpret" or "compile"; a process has one mode only.
    """
    channel = sandbox.open()
    limits = sandbox.limits
    patience = limits.wall * (TRITON_PATIENCE if triton else 1)
    deadline = time.monotonic() + patience

    def exchange(header, blob):
        try:
            wire.send(channel, header, blob)
            while True:
                channel.settimeout(max(0.01, deadline - time.monotonic()))
                reply = wire.receive(channel, limits.frame)
                if reply[0][:40].find(b'["callback"') < 0:
                    return reply
                wire.send(channel, *_serve_callback(transport, *reply))
        except TimeoutError:
            raise Gone(f"no answer within {patience:g} s: a loop that never ends, or far too much work",
                       "timeout") from None
        except (EOFError, ConnectionError, BrokenPipeError):
            raise Gone(_last_words(channel, limits)) from None

    transport = _Transport(exchange, channel.close)
    lab = Lab(transport)
    encoded = {name: base64.b64encode(text).decode() for name, text in files.items()}
    try:
        body, _ = lab._exchange({"module": module, "files": encoded, "triton": triton})
        if error := body.get("import_error"):
            _refuse_import(module, error)
    except BaseException:
        channel.close()
        raise
    return lab


def _refuse_import(module, error):
    try:
        started, line = error["type"] != "NotImplementedError", error_line(error)
    except (TypeError, KeyError, AttributeError):
        started, line = True, "for a reason that could not be read"
    if not started:
        raise NotStarted(str(error["message"]))
    raise Gone(f"mha_lab/{module}.py cannot be imported: {line}")


def _last_words(channel, limits):
    try:
        reply = wire.Unpacker(*wire.receive(channel, limits.frame), layouts=False)
        return epitaph(reply.unpack(reply.body))
    except Exception:
        return "the program ended the interpreter"


def _serve_callback(transport, header, blob):
    message = wire.Unpacker(header, blob, layouts=True)
    asked = message.unpack(message.body)
    packer = wire.Packer(layouts=True, known={t.untyped_storage().data_ptr(): message.layouts[id(t)].storage
                                              for t in message.tensors if t.untyped_storage().data_ptr()})
    try:
        value = transport.callbacks[asked["callback"]](*asked["args"], **asked["kwargs"])
        body = {"value": value}
    except Exception as e:
        body = {"error": describe(e)}
    return packer.message(packer.pack(body))


def read_lab(folder: Path, module: str, limit: int = 4 << 20) -> dict[str, bytes]:
    """The learner's files that a worker needs: every `mha_lab/**/*.py`. Gone if the module's file is not there."""
    root = Path(folder) / "mha_lab"
    if not (root / f"{module}.py").is_file():
        raise Gone(f"{root / (module + '.py')} is not there: an exercise of this session is written in that file")
    files, total = {}, 0
    for path in sorted(root.rglob("*.py")):
        if path.is_symlink() or not path.is_file():
            continue
        total += path.stat().st_size
        if total > limit:
            raise Gone(f"the Python files under {root} are larger than {limit >> 20} MiB together")
        files[str(path.relative_to(folder))] = path.read_bytes()
    return files
