"""Walls and limits around the worker: bubblewrap on Linux, a plain process (that says so) elsewhere."""
from __future__ import annotations

import json
import os
import shutil
import site
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .worker import SCRATCH

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": SCRATCH, "TMPDIR": SCRATCH, "LANG": "C.UTF-8",
               "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
HIDDEN = ("autograder", "solutions", "course")


class SandboxError(RuntimeError):
    """The worker could not be started as asked."""


@dataclass(frozen=True)
class Limits:
    """Bounds on one exercise's process tree. Seconds and bytes."""

    wall: float = 20.0
    cpu: int = 20
    memory: int = 2 << 30
    processes: int = 64
    files: int = 256
    file_bytes: int = 64 << 20
    frame: int = 64 << 20


def walls_available() -> tuple[bool, str]:
    """(True, how) when learner code can be walled in here; (False, why not) otherwise."""
    if sys.platform != "linux":
        return False, f"no walls on {sys.platform}: learner code runs in a plain subprocess"
    if not shutil.which("bwrap"):
        return False, "bubblewrap is not installed (Debian, Ubuntu: apt install bubblewrap)"
    probe = subprocess.run(["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True)
    if probe.returncode:
        reason = (probe.stderr.strip().splitlines() or ["no reason given"])[-1]
        return False, f"bubblewrap cannot open namespaces here ({reason})"
    return True, "bubblewrap with its own network, processes and files; a new set for each exercise"


def _package_root() -> Path:
    return Path(__file__).resolve().parent.parent


def _bwrap(control_fd: int, environment: Mapping[str, str]) -> list[str]:
    """Read-only system and Python, the given part of mha_lab, the worker; nothing else of this machine."""
    command = ["bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--unshare-ipc",
               "--unshare-uts", "--unshare-cgroup-try", "--clearenv"]
    for name, value in {**ENVIRONMENT, **environment}.items():
        command += ["--setenv", name, value]
    if os.getuid():
        command += ["--unshare-user"]
    for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"):
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            command += ["--ro-bind", path, path]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", SCRATCH]
    root = _package_root()
    prefixes = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix)} - {Path("/usr")}
    for prefix in sorted(prefixes):
        command += [*_parents(prefix), "--ro-bind", str(prefix), str(prefix)]
    for place in (root, *map(Path, site.getsitepackages())):
        for hidden in (place / name for name in HIDDEN):
            if hidden.is_dir() and prefixes & set(hidden.parents):
                command += ["--tmpfs", str(hidden)]
    if not any(Path("/tmp") in prefix.parents for prefix in prefixes):
        command += ["--symlink", SCRATCH, "/tmp"]
    command += _parents(Path("/course/autograder/worker"))
    for part in ("mha_lab", "autograder/worker"):
        command += ["--ro-bind", str(root / part), f"/course/{part}"]
    command += ["--ro-bind", str(root / "autograder" / "__init__.py"), "/course/autograder/__init__.py"]
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", SCRATCH, "--"]
    return command + _python("/course", control_fd, "walls")


def _parents(path: Path) -> list[str]:
    """Folders above a bind mount, readable for the unprivileged worker (bubblewrap would make them 0700)."""
    above = [p for p in reversed(path.parents) if p != Path("/")]
    return [word for p in above for word in ("--perms", "0755", "--dir", str(p))]


def _python(root: str, control_fd: int, mode: str) -> list[str]:
    start = (f"import sys; sys.path.insert(0, {root!r}); from autograder.worker.zygote import main; "
             f"main({control_fd}, {mode == 'walls'})")
    return [sys.executable, "-I", "-c", start]


class Sandbox:
    """A warm parent and the channels to its children.

    walls: "required" (SandboxError without them), "auto" (a plain process where there are none), or "off".
    environment: variables that the workers get beside the usual ones.
    """

    def __init__(self, walls: str = "auto", limits: Limits | None = None,
                 environment: Mapping[str, str] | None = None):
        if walls not in ("required", "auto", "off"):
            raise ValueError(f"walls must be required, auto or off, not {walls!r}")
        able, self.description = walls_available() if walls != "off" else (False, "no walls, as asked")
        if walls == "required" and not able:
            raise SandboxError(f"{self.description}. Learner code is not graded without walls; "
                               "install them, or ask for walls=\"off\" if you trust every submission.")
        self.walled, self.limits, self._warm = able, limits or Limits(), False
        self._environment = dict(environment or {})
        self._process = self._control = self._plain_root = None

    @property
    def pid(self) -> int:
        """The process above all workers. SandboxError before `prepare`."""
        if self._process is None:
            raise SandboxError("no worker was started yet")
        return self._process.pid

    def prepare(self) -> None:
        """Start the warm parent without waiting for it."""
        if self._process is not None and self._process.poll() is None:
            return
        if not hasattr(socket, "send_fds"):
            raise SandboxError("this platform cannot pass sockets to a worker; on Windows, use the course inside WSL")
        self.close()
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        if self.walled:
            command = _bwrap(theirs.fileno(), self._environment)
        else:
            self._plain_root = tempfile.TemporaryDirectory(prefix="mha-lab-")
            command = _python(str(_package_root()), theirs.fileno(), "plain")
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                                         env={**os.environ, **self._environment})
        theirs.close()
        self._control, self._warm = ours, False

    def _await(self) -> None:
        self._control.settimeout(120)
        try:
            line = self._control.recv(4096)
        except TimeoutError:
            line = b""
        if not line:
            self._process.kill()
            why = self._process.communicate()[1].decode(errors="replace").strip().splitlines()
            self.close()
            raise SandboxError(f"the worker did not start: {why[-1] if why else 'no reason given'}")
        self._warm = True

    def open(self) -> socket.socket:
        """A channel to a fresh child. Closing it kills the child and everything that it started."""
        self.prepare()
        if not self._warm:
            self._await()
        ours, theirs = socket.socketpair()
        limits = asdict(self.limits)
        if not self.walled:
            limits["workspace"] = tempfile.mkdtemp(dir=self._plain_root.name)
        socket.send_fds(self._control, [json.dumps(limits).encode()], [theirs.fileno()])
        theirs.close()
        self._control.recv(16)
        ours.settimeout(self.limits.wall)
        return ours

    def close(self) -> None:
        """End the warm parent and all that it started."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stderr.close()
        if self._plain_root is not None:
            self._plain_root.cleanup()
        self._process = self._control = self._plain_root = None
