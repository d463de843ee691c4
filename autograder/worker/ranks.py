"""Runs a function on several ranks of a real process group: forked processes, gloo over loopback.

Counts what only a look from beside can tell: the collectives that were called, and the sizes of every contraction.
Nothing here knows an answer. Every process that is started is also ended and waited for.
"""
from __future__ import annotations

import contextlib
import importlib
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from .wire import Packer, Unpacker

GRACE = 4.0  # seconds that the other ranks may still take once one rank has failed or is done
_COMPILER = "torch._dynamo"  # functional collectives import it: seconds in every rank, unless the parent has it
_LENGTH = struct.Struct("<II")
_COMMUNICATION = ("reduce", "gather", "scatter", "broadcast", "alltoall", "all_to_all", "send", "recv", "barrier")
_clone, _equal = torch.Tensor.clone, torch.equal


class Watch(TorchDispatchMode):
    """Collectives by name, and for each contraction [rows, inner, columns] with batches folded into the rows."""

    @classmethod
    def _should_skip_dynamo(cls):  # the default imports torch._dynamo at the first operator: a second in every child
        return False

    def __init__(self):
        super().__init__()
        self.collectives: dict[str, int] = {}
        self.contractions: list[list[int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        namespace, name = function.namespace, function.overloadpacket.__name__
        if "c10d" in namespace and any(word in name for word in _COMMUNICATION):
            plain = name.strip("_").replace("all_reduce", "allreduce").replace("all_gather", "allgather")
            self.collectives[plain] = self.collectives.get(plain, 0) + 1
        elif sizes := _contraction(name, args):
            self.contractions.append(sizes)
        return function(*args, **(kwargs or {}))


def _contraction(name, args):
    if name in ("addmm", "baddbmm", "addbmm"):
        a, b = args[1:3]
    elif name in ("mm", "bmm", "matmul", "mv", "dot"):
        a, b = args[:2]
    elif name == "linear":
        a, b = args[0], args[1].t()
    else:
        return None
    columns = b.shape[-1] if b.dim() > 1 else 1
    inner = a.shape[-1]
    return [a.numel() // inner if inner else 0, inner, columns]


def run(function, tensors, call, world: int, seconds: float) -> list[dict]:
    """One plain record a rank: value or error, collectives, contractions, whether it changed one of `tensors`.

    `call(group)` gives (args, kwargs). A rank that does not end in time has {"timeout": "joining" or "running"}.
    """
    folder = tempfile.mkdtemp(prefix="ranks-", dir=os.getcwd() if os.access(os.getcwd(), os.W_OK) else None)
    pids, channels = [], []
    try:
        for rank in range(world):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                _rank(theirs, [ours, *channels], function, tensors, call, rank, world, seconds, folder)
            theirs.close()
            pids.append(pid)
            channels.append(ours)
        records = _collect(channels, world, seconds)
        if any(record.pop("compiler", False) for record in records):
            importlib.import_module(_COMPILER)
        return records
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for channel in channels:
            channel.close()
        shutil.rmtree(folder, ignore_errors=True)


def _rank(channel, others, function, tensors, call, rank, world, seconds, folder):
    """The forked process of one rank. Never returns."""
    from .executor import describe
    try:
        for other in others:
            other.close()
        torch.set_num_threads(1)
        group = _join(rank, world, seconds, folder)
        _send(channel, {"joined": True})
        before = [(t, t._version, _clone(t.detach())) for t in tensors]
        args, kwargs = call(group)
        torch.default_generator.manual_seed(0)
        watch = Watch()
        compiler = _COMPILER in sys.modules
        body = {}
        try:
            with watch:
                body["value"] = function(*args, **kwargs)
        except BaseException as e:
            body["error"] = describe(e)
        body |= {"collectives": watch.collectives, "contractions": watch.contractions,
                 "compiler": _COMPILER in sys.modules and not compiler,
                 "mutated": any(t._version != version or not _equal(t.detach(), copy) for t, version, copy in before)}
        _send(channel, body)
        channel.recv(1)  # ends with the parent's word: a rank that leaves early would break the others' connection
    except BaseException as e:
        with contextlib.suppress(Exception):
            _send(channel, {"error": describe(e), "collectives": {}, "contractions": [], "mutated": False})
    finally:
        os._exit(0)


def _join(rank, world, seconds, folder):
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        names = [name for _, name in socket.if_nameindex()]
        loopback = next((name for name in ("lo", "lo0") if name in names), None)
        if loopback:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world,
                            timeout=timedelta(seconds=seconds))
    return dist.group.WORLD


def _send(channel, body):
    packer = Packer(layouts=False)
    header, blob = packer.message(packer.pack(body))
    channel.sendall(_LENGTH.pack(len(header), len(blob)) + header + blob)


def _collect(channels, world, seconds):
    """Records in the order of the ranks. Waits at most `seconds`, and GRACE once the first rank has answered."""
    records: list[dict | None] = [None] * world
    joined = [False] * world
    buffers = [b""] * world
    deadline = time.monotonic() + seconds
    poll = select.poll()
    for channel in channels:
        poll.register(channel, select.POLLIN)
    numbers = {channel.fileno(): rank for rank, channel in enumerate(channels)}
    open_ranks = set(range(world))
    while open_ranks and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            rank = numbers[fd]
            data = channels[rank].recv(1 << 20)
            if not data:
                records[rank] = {"error": {"type": "Ended", "kinds": [], "message": "the process ended", "where": ""},
                                 "collectives": {}, "contractions": [], "mutated": False}
            buffers[rank] += data
            while records[rank] is None and (frame := _frame(buffers[rank])):
                body, buffers[rank] = frame
                if body.get("joined"):
                    joined[rank] = True
                else:
                    records[rank] = body
            if records[rank] is not None:
                open_ranks.discard(rank)
                poll.unregister(fd)
                deadline = min(deadline, time.monotonic() + GRACE)
    return [r or {"timeout": "running" if joined[i] else "joining", "collectives": {}, "contractions": [],
                  "mutated": False} for i, r in enumerate(records)]


def _frame(buffer: bytes):
    if len(buffer) < _LENGTH.size:
        return None
    header, blob = _LENGTH.unpack_from(buffer)
    end = _LENGTH.size + header + blob
    if len(buffer) < end:
        return None
    middle = _LENGTH.size + header
    message = Unpacker(buffer[_LENGTH.size:middle], buffer[middle:end], layouts=False)
    return message.unpack(message.body), buffer[end:]
