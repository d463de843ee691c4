"""The walls, tried from inside by programs that return what they could reach."""
import os
import socket
import subprocess
import sys
import time

import pytest

from autograder import lab as labs
from autograder.sandbox import ENVIRONMENT, Limits, Sandbox, SandboxError

pytestmark = pytest.mark.walls


@pytest.fixture(scope="module")
def sandbox():
    box = Sandbox("required", Limits(wall=10))
    yield box
    box.close()


def run(sandbox, source, name="probe"):
    lab = labs.in_worker(sandbox, "shapes", {"mha_lab/shapes.py": source.encode()})
    try:
        return lab.call(name)
    finally:
        lab.close()


def test_nothing_of_ours_that_knows_an_answer_can_be_imported_or_read(sandbox):
    found = run(sandbox, """
import importlib, os
def probe():
    found = []
    for name in ("solutions", "solutions.shapes", "autograder.exercises", "autograder.grading", "autograder.lab"):
        try:
            importlib.import_module(name); found.append(name)
        except ImportError:
            pass
    for root, _, files in os.walk("/course"):
        found += [f for f in files if "exercise" in f or "solution" in f or "split" in f]
    return found
""")
    assert found == []


def test_what_is_given_can_be_imported(sandbox):
    assert run(sandbox, "import einops, torch, jaxtyping, mha_lab\ndef probe():\n    return True")


def test_the_environment_and_the_home_are_empty(sandbox):
    seen = run(sandbox, """
import os
def probe():
    return sorted(os.environ), os.listdir(os.path.expanduser("~"))
""")
    assert set(seen[0]) <= {*ENVIRONMENT, "LC_CTYPE", "PWD"}
    assert seen[1] == ["lab"]


REACH = """
import os, socket
def reach(family, address):
    with socket.socket(family) as s:
        s.settimeout(1)
        try:
            s.connect(address)
        except OSError as e:
            return type(e).__name__
    return "open"
"""


def test_nothing_on_the_network_can_be_reached_but_the_own_loopback(sandbox):
    """Ranks of a process group meet on loopback; it is a fresh one, where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as outside:
        local, away, own, interfaces, routes = run(sandbox, REACH + f"""
def probe():
    local = reach(socket.AF_INET, ("127.0.0.1", {outside.getsockname()[1]}))
    away = [reach(socket.AF_INET, (a, 53)) for a in ("10.0.0.1", "192.168.0.1", "8.8.8.8", "169.254.169.254")]
    away.append(reach(socket.AF_INET6, ("2001:4860:4860::8888", 53)))
    with socket.create_server(("127.0.0.1", 0)) as here:
        own = reach(socket.AF_INET, here.getsockname())
    routes = open("/proc/net/route").read().splitlines()[1:] if os.path.exists("/proc/net/route") else []
    return local, away, own, [n for _, n in socket.if_nameindex() if not n.startswith(("tunl", "sit", "gre", "erspan",
                              "ip_vti", "ip6", "ifb", "bond", "dummy", "teql"))], routes
""")
    assert local == "ConnectionRefusedError" and set(away) == {"OSError"}
    assert own == "open" and interfaces == ["lo"] and routes == []


def test_two_children_do_not_share_their_loopback(sandbox):
    listener = labs.in_worker(sandbox, "shapes", {"mha_lab/shapes.py": b"""
import socket
server = socket.create_server(("127.0.0.1", 45_678))
def probe():
    return server.getsockname()[1]
"""})
    try:
        port = listener.call("probe")
        seen = run(sandbox, REACH + f"def probe():\n    return reach(socket.AF_INET, ('127.0.0.1', {port}))")
    finally:
        listener.close()
    assert seen == "ConnectionRefusedError"


def test_a_program_cannot_change_the_network_around_it(sandbox):
    refused = run(sandbox, """
import fcntl, socket, struct
def probe():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", b"lo", 0))
        except OSError as e:
            return type(e).__name__
    return "changed"
""")
    assert refused == "PermissionError"


def test_nothing_can_be_written_outside_a_private_tmp_and_the_next_child_does_not_see_it(sandbox):
    source = """
import os
def probe():
    seen = os.path.exists("/scratch/mark"), os.path.exists("/dev/shm/mark")
    wrote = []
    for path in ("/usr/x", "/course/mha_lab/x", "/x", "/etc/x", "/dev/x", "/scratch/mark", "/dev/shm/mark"):
        try:
            open(path, "w").close(); wrote.append(path)
        except OSError:
            pass
    return seen, wrote
"""
    for _ in range(2):
        seen, wrote = run(sandbox, source)
        assert seen == (False, False)
        assert set(wrote) <= {"/scratch/mark", "/dev/shm/mark"}


def test_no_other_process_can_be_seen_or_signalled(sandbox):
    pids, pid, reached = run(sandbox, """
import glob, os, signal
def probe():
    reached = []
    for pid in range(2, 3000):
        try:
            os.kill(pid, 0); reached.append(pid)
        except OSError:
            pass
    return [p for p in glob.glob("/proc/[0-9]*") if p != "/proc/1"], os.getpid(), reached
""")
    assert pids == [] and pid == 1 and reached == []


@pytest.mark.parametrize("source, word", [
    ("def probe():\n    while True: pass", "never ends"),
    ("import os\ndef probe():\n    os._exit(0)", "exit 0"),
    ("import ctypes\ndef probe():\n    ctypes.string_at(0)", "crashed"),
    ("import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'\\0' * 64)\n    except OSError: pass\n"
     "def probe():\n    return 1", "garbled"),
])
def test_a_program_that_does_not_answer_is_gone_with_a_reason(source, word):
    box = Sandbox("required", Limits(wall=2))
    with pytest.raises(labs.Gone, match=word):
        run(box, source)
    box.close()


@pytest.mark.parametrize("source, word", [
    ("import torch\ndef probe():\n    return torch.ones(10**10)", "more memory"),
    ("import os, time\ndef probe():\n    for _ in range(10**6):\n        if os.fork() == 0: time.sleep(9)",
     "BlockingIOError"),
    ("import torch\ndef probe():\n    return torch.zeros(10**8)", "bytes were returned"),
    ("def probe():\n    f = [open('/scratch/x', 'w') for _ in range(10**4)]", "Too many open files"),
    ("def probe():\n    open('/scratch/x', 'wb').write(b'0' * 10**9)", "OSError"),
    ("import os\ndef probe():\n    os.unshare(0x10000000) if hasattr(os, 'unshare') else open('/nowhere')", "Error"),
])
def test_a_limit_is_an_error_of_the_program(sandbox, source, word):
    with pytest.raises(labs.Mismatch, match=word):
        run(sandbox, source)


def test_the_whole_tree_ends_with_the_channel(sandbox):
    lab = labs.in_worker(sandbox, "shapes", {"mha_lab/shapes.py": b"""
import os, time
def probe():
    for _ in range(3):
        if os.fork() == 0:
            os.setsid(); time.sleep(60); os._exit(0)
    return True
"""})
    assert lab.call("probe")
    lab.close()
    deadline = time.monotonic() + 5
    while _descendants(sandbox._process.pid) > 2 and time.monotonic() < deadline:
        run(sandbox, "def probe():\n    return 1")
        time.sleep(0.05)
    assert _descendants(sandbox._process.pid) <= 2  # bubblewrap's own child, and the warm parent


def _descendants(pid):
    rows = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    children = [int(pid) for pid, stat in map(str.split, rows.splitlines()) if not stat.startswith("Z")]
    return len(children) + sum(map(_descendants, children))


def test_a_killed_warm_parent_is_started_again(sandbox):
    assert run(sandbox, "def probe():\n    return 1") == 1
    sandbox._process.kill()
    sandbox._process.wait()
    assert run(sandbox, "def probe():\n    return 2") == 2


def test_official_grading_refuses_to_run_without_walls(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(SandboxError, match="not graded without walls"):
        Sandbox("required")


def test_without_walls_it_says_so_and_works(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    box = Sandbox("auto", Limits(wall=10))
    assert not box.walled and "bubblewrap" in box.description
    assert run(box, "import torch\ndef probe():\n    return int(torch.ones(3).sum())") == 3
    with pytest.raises(labs.Gone, match="exit 0"):
        run(box, "import os\ndef probe():\n    os._exit(0)")
    box.close()


def test_a_wrong_word_for_walls_is_refused():
    with pytest.raises(ValueError, match="required, auto or off"):
        Sandbox("maybe")


def test_the_worker_imports_nothing_that_knows_an_answer():
    code = ("import autograder.worker.zygote, autograder.worker.serve, autograder.worker.executor, sys;"
            "print([m for m in sys.modules if m.startswith(('autograder', 'solutions', 'mha_lab'))])")
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=os.getcwd()).stdout
    assert "autograder.worker.wire" in seen
    assert all(name.startswith(("'autograder.worker", "['autograder'", "'autograder'"))
               for name in seen.strip().strip("[]").split(", "))
