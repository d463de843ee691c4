"""The warm parent: imports torch once, then forks one walled-in child per exercise.

It runs no learner code and never starts a thread. For each request on the control socket it forks a keeper; the
keeper opens fresh namespaces, forks the child that serves the learner's module, and kills that child's whole tree
when the grader closes its end of the channel.
"""
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys

from . import SCRATCH

_UNSHARE = 0x10000000 | 0x00020000 | 0x20000000 | 0x08000000 | 0x40000000 | 0x04000000  # user mnt pid ipc net uts
_MS_PRIVATE, _MS_REC, _MS_NOEXEC = 1 << 18, 1 << 14, 8
_MS_GUARD = 2 | 4  # nosuid, nodev
_PR_SET_DUMPABLE = 4
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
NOBODY = 65534


def main(control_fd: int, walls: bool) -> None:
    """Serve forks until the grader hangs up. The first line sent back says that the parent is warm."""
    control = socket.socket(fileno=control_fd)
    if walls and os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    _warm_up()
    control.sendall(json.dumps({"warm": True, "walls": walls}).encode() + b"\n")
    while True:
        message, fds, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            return
        _reap()
        limits = json.loads(message)
        if os.fork() == 0:
            control.close()
            _keep(socket.socket(fileno=fds[0]), limits, walls)
        os.close(fds[0])
        control.sendall(b"{}\n")


def _warm_up():
    import einops  # noqa: F401
    import jaxtyping  # noqa: F401
    import numpy  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch
    import torch.distributed
    import torch.fx.experimental.symbolic_shapes  # noqa: F401  (the first torch.autograd.grad imports it: 0.25 s)
    import torch.nn.functional  # noqa: F401
    import torch.utils._python_dispatch  # noqa: F401

    from . import compiling, counting, executor, ranks, serve, specimens, wire  # noqa: F401

    compiling.refuse_politely()
    torch.set_num_threads(1)
    torch.ones(8).to(torch.float16)  # the first conversion reads /proc/cpuinfo, which a child may not have


def _reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _keep(channel: socket.socket, limits: dict, walls: bool) -> None:
    """Between the warm parent and the child: outlives the child, and kills it when the grader hangs up."""
    status = None
    try:
        os.setpgid(0, 0)
        if walls:
            _namespaces()
        child = os.fork()
        if child == 0:
            _child(channel, limits, walls)
        status = _wait(child, channel, walls)
        channel.settimeout(1)
        _say(channel, {"gone": status})
    except BaseException as e:
        _say(channel, {"refused": f"{type(e).__name__}: {e}"})
    finally:
        if not walls:
            _kill_group()
        os._exit(0)


def _say(channel, message):
    from . import wire
    packer = wire.Packer(layouts=False)
    with contextlib.suppress(OSError):
        wire.send(channel, *packer.message(packer.pack(message)))


def _wait(child: int, channel: socket.socket, walls: bool) -> str:
    poll = select.poll()
    poll.register(channel, getattr(select, "POLLRDHUP", 0))
    watch = None
    if hasattr(os, "pidfd_open"):
        watch = os.pidfd_open(child)
        poll.register(watch, select.POLLIN)
    while True:
        events = dict(poll.poll(None if watch is not None else 20))
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return _describe(status)
        if channel.fileno() in events:
            os.kill(child, signal.SIGKILL)
            if not walls:
                _kill_group()
            return _describe(os.waitpid(child, 0)[1])


def _kill_group():
    """Without a pid namespace, the process group is the tree (a program that leaves it is not caught)."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return {signal.SIGKILL: "killed", signal.SIGXCPU: "cpu", signal.SIGSEGV: "crash"}.get(
            os.WTERMSIG(status), f"signal {os.WTERMSIG(status)}")
    return f"exit {os.WEXITSTATUS(status)}"


def _child(channel: socket.socket, limits: dict, walls: bool) -> None:
    try:
        _limit(limits, walls)
        if walls:
            _private_mounts()
            _loopback_up()
            _drop_capabilities()
        workspace = SCRATCH if walls else limits["workspace"]
        os.chdir(workspace)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        from . import serve
        serve.serve(channel, workspace, limits["frame"])
    except BaseException as e:
        _say(channel, {"refused": f"{type(e).__name__}: {e}"})
    finally:
        os._exit(0)


def _limit(limits: dict, walls: bool) -> None:
    bounds = {resource.RLIMIT_CPU: limits["cpu"], resource.RLIMIT_NOFILE: limits["files"],
              resource.RLIMIT_FSIZE: limits["file_bytes"], resource.RLIMIT_CORE: 0}
    if walls:  # without a namespace of its own, this would count every process of the user
        bounds[resource.RLIMIT_NPROC] = limits["processes"]
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as f:
            bounds[resource.RLIMIT_AS] = limits["memory"] + int(f.read().split()[0]) * resource.getpagesize()
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (bound, bound))


_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), what)


def _namespaces() -> None:
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "own /proc entries")  # setuid took them away
    _check(_libc.unshare(_UNSHARE), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as f:
            f.write(text)


def _private_mounts() -> None:
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "make mounts private")
    _check(_libc.mount(b"tmpfs", SCRATCH.encode(), b"tmpfs", _MS_GUARD, b"size=64m,mode=1777"), "private scratch")
    _check(_libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", _MS_GUARD, b"size=64m,mode=1777"), "private /dev/shm")
    if _libc.mount(b"proc", b"/proc", b"proc", _MS_GUARD | _MS_NOEXEC, None):  # refused under some hosts: show none
        _check(_libc.mount(b"tmpfs", b"/proc", b"tmpfs", _MS_GUARD, b"size=64k,mode=0555"), "private /proc")


def _loopback_up() -> None:
    """The fresh network namespace has one interface, its own loopback, and no way out; ranks of a group meet there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = bytearray(struct.pack("16sh22x", b"lo", 0))
        fcntl.ioctl(probe, _SIOCGIFFLAGS, request)
        flags = struct.unpack_from("h", request, 16)[0] | _IFF_UP
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags))


def _drop_capabilities() -> None:
    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]

    header, none = Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), none), "drop capabilities")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "walls")
