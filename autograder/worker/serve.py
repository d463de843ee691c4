"""The child: lays out the learner's files, imports the asked module, and answers requests until told to stop."""
from __future__ import annotations

import base64
import importlib
import os
import sys
from pathlib import Path

from . import wire
from .executor import Executor, describe

PORTION = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"


def serve(channel, workspace: str, frame_limit: int) -> None:
    """First frame: {"module", "files": {relative path: base64}, "triton"}. Then one reply to each request."""
    header, blob = wire.receive(channel, frame_limit)
    opening = wire.Unpacker(header, blob, layouts=True)
    opening = opening.unpack(opening.body)
    lab = Path(workspace, "lab")
    for name, text in opening["files"].items():
        target = lab / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(text))
    (lab / "mha_lab").mkdir(parents=True, exist_ok=True)
    (lab / "mha_lab" / "__init__.py").write_text(PORTION)
    os.chdir(lab)
    sys.path.insert(0, str(lab))
    sys.dont_write_bytecode = True
    if opening.get("triton"):  # read once, when triton is imported
        os.environ["TRITON_INTERPRET"] = "1" if opening["triton"] == "interpret" else "0"
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(f"mha_lab.{opening['module']}")
    except BaseException as e:
        _reply(channel, {"import_error": describe(e)})
        return
    _reply(channel, {"imported": True})

    def resolve(dotted):
        value = module
        for part in dotted.split("."):
            if not hasattr(value, part):
                raise Missing(f"mha_lab/{opening['module']}.py has no {dotted}")
            value = getattr(value, part)
        return value

    def ask(header, blob):
        wire.send(channel, header, blob)
        return wire.receive(channel, frame_limit)

    executor = Executor(resolve, ask, frame_limit)
    while True:
        try:
            request = wire.receive(channel, frame_limit)
        except EOFError:
            return
        wire.send(channel, *executor.handle(*request))


class Missing(Exception):
    """The learner's module does not define an asked name."""


def _reply(channel, body):
    packer = wire.Packer(layouts=False)
    wire.send(channel, *packer.message(packer.pack(body)))
