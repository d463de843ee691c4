"""The walls, tried from inside by programs that return what they could reach."""
import os
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


def test_the_environment_the_home_and_the_network_are_empty(sandbox, monkeypatch):
    seen = run(sandbox, """
import os, socket
def probe():
    s = socket.socket(); s.settimeout(1)
    try:
        s.connect(("127.0.0.1", 22)); net = "open"
    except OSError as e:
        net = type(e).__name__
    return sorted(os.environ), os.listdir(os.path.expanduser("~")), net
""")
    assert set(seen[0]) <= {*ENVIRONMENT, "LC_CTYPE", "PWD"}
    assert seen[1] == ["lab"] and seen[2] == "OSError"


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
