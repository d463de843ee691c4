"""Known Triton programs, run in a process of their own: there Triton is imported as an interpreter.

The mode of Triton is fixed when it is imported. The grader's own process never imports it, so that a notebook, or a
machine with a GPU, keeps the mode that it wants.
"""
from __future__ import annotations

import atexit
import importlib
import json
import os
import socket
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from . import lab as labs
from .worker import wire

if TYPE_CHECKING:
    from .exercise import Exercise, Program

_LIMIT = 1 << 30


@cache
def _process() -> tuple[subprocess.Popen, socket.socket]:
    ours, theirs = socket.socketpair()
    root = str(Path(__file__).resolve().parent.parent)
    start = (f"import sys; sys.path.insert(0, {root!r}); from autograder.triton_replay import serve; "
             f"serve({theirs.fileno()})")
    environment = {"TRITON_INTERPRET": "1", "MHA_TRITON_REPLAY": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", start], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                               env=os.environ | environment)
    theirs.close()
    atexit.register(_end, process, ours)
    return process, ours


def _end(process, channel):
    channel.close()
    process.wait(10)


def known_lab(exercise: Exercise, program: Program) -> labs.Lab:
    """A lab over a known program (or a shared fault) of a Triton exercise."""
    _, channel = _process()
    wire.send(channel, json.dumps({"use": [exercise.module, exercise.name, program.label]}).encode())
    reply, _ = wire.receive(channel, _LIMIT)
    if error := json.loads(reply).get("error"):
        raise RuntimeError(error)

    def exchange(header, blob):
        wire.send(channel, header, blob)
        return wire.receive(channel, _LIMIT)

    return labs.Lab(labs._Transport(exchange))


def serve(descriptor: int) -> None:
    """Answer requests until the grader hangs up."""
    import torch

    from .standard import shared_faults
    from .worker.executor import Executor

    warnings.simplefilter("ignore")  # NaN and overflow are what wrong programs are made of
    torch.set_num_threads(1)
    channel = socket.socket(fileno=descriptor)
    programs: dict[tuple[str, str], dict] = {}
    executor = None
    while True:
        try:
            header, blob = wire.receive(channel, _LIMIT)
        except EOFError:
            return
        if not header.startswith(b'{"use"'):
            wire.send(channel, *executor.handle(header, blob))
            continue
        module, name, label = json.loads(header)["use"]
        try:
            if (name, label) not in programs:
                exercise = importlib.import_module(f"autograder.exercises.{module}.{name}").exercise
                for program in [*shared_faults(exercise), *exercise.rights, *exercise.wrongs]:
                    programs.setdefault((name, program.label), program.namespace)
            namespace = programs[name, label]
            executor = Executor(lambda dotted, namespace=namespace: namespace[dotted])
            wire.send(channel, b"{}")
        except Exception as e:
            wire.send(channel, json.dumps({"error": f"{type(e).__name__}: {e}"}).encode())
