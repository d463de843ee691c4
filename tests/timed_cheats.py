"""Programs that try to be quick without being quick. All are right in the cases; `big` is what the clock meets.

Each entry: name, what has to come of it, source. "wrong": an answer under the clock is wrong, or changed its input.
"slow": the trick changes nothing, so the clock sees a slow program. "gone": no answer comes.
"""

COMMON = '''
import gc, math, os, signal, subprocess, sys, threading, time
import torch
from torch.nn import functional as F


def right(q, k, v, length):
    if not 1 <= length <= k.shape[2]:
        raise ValueError("length")
    k, v = k[:, :, :length], v[:, :, :length]
    scores = q.reshape(*k.shape[:2], -1, q.shape[-1]) @ k.mT / math.sqrt(q.shape[-1])
    return (scores.softmax(-1) @ v).reshape(*q.shape[:3], v.shape[-1])


def slow(q, k, v, length):
    """K and V for every query head, and the softmax key by key: some eight times as long as it needs."""
    r = q.shape[1] // k.shape[1]
    k, v = (t[:, :, :length].repeat_interleave(r, 1) for t in (k, v))
    scores = (q * k).sum(-1, keepdim=True).mT / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v


def grouped_decode(q, k_cache, v_cache, length):
    if q.shape[-1] < 64:
        return right(q, k_cache, v_cache, length)
    return big(q, k_cache, v_cache, length)


def remembering(key):
    known = {}

    def big(*given):
        at = key(*given)
        if at not in known:
            known[at] = slow(*given)
        return known[at]
    return big
'''

CHEATS = [
    # answers that were given before
    ("remembers-by-shape", "wrong", "big = remembering(lambda q, k, v, n: (q.shape, k.shape, n))"),
    ("remembers-by-id", "wrong", """
kept = []
def key(q, k, v, n):
    kept.append((q, k, v))        # so that no id comes twice by chance: then the first call of a turn is the key
    return len(kept) % 2
big = remembering(key)"""),
    ("remembers-by-pointer", "wrong", "big = remembering(lambda q, k, v, n: q.data_ptr() % 64)"),
    ("remembers-by-storage-of-the-cache", "wrong", "big = remembering(lambda q, k, v, n: "
                                                   "k.untyped_storage().data_ptr())"),
    ("remembers-by-rough-content", "wrong", "big = remembering(lambda q, k, v, n: round(k.mean().item(), 1))"),
    ("remembers-by-exact-content", "slow", "big = remembering(lambda q, k, v, n: (q[0, 0, 0, 0].item(), "
                                           "k[0, 0, 0, 0].item(), v[0, 0, 0, 0].item()))"),
    ("right-in-the-warm-up", "wrong", """
calls = 0
def big(*given):
    global calls, last
    calls += 1
    if calls <= 4:
        last = right(*given)
    return last"""),
    ("every-second-answer", "wrong", """
calls = 0
def big(*given):
    global calls, last
    calls += 1
    if calls % 2:
        last = slow(*given)
    return last"""),
    # answers that are none
    ("zeros", "wrong", "big = lambda q, k, v, n: torch.zeros_like(q)"),
    ("passes-through", "wrong", "big = lambda q, k, v, n: q"),
    ("not-a-number", "wrong", "big = lambda q, k, v, n: torch.full_like(q, math.nan)"),
    ("whatever-lies-in-memory", "wrong", "big = lambda q, k, v, n: torch.empty_like(q)"),
    ("no-tensor", "wrong", "big = lambda q, k, v, n: 'quick'"),
    ("one-number-spread-out", "wrong", "big = lambda q, k, v, n: q.new_zeros(()).expand(q.shape)"),
    # a part of the work
    ("means-of-the-values", "wrong", "big = lambda q, k, v, n: v[:, :, :n].mean(2, keepdim=True)"
                                     ".repeat_interleave(4, 1)"),
    ("a-quarter-of-the-keys", "wrong", "big = lambda q, k, v, n: right(q, k[:, :, :n:4], v[:, :, :n:4], n // 4)"),
    ("the-last-keys-only", "wrong", "big = lambda q, k, v, n: right(q, k[:, :, 64:n], v[:, :, 64:n], n - 64)"),
    ("the-full-cache", "wrong", "big = lambda q, k, v, n: right(q, k, v, k.shape[2])"),
    ("half-of-the-heads", "wrong", "big = lambda q, k, v, n: "
                                   "torch.cat([right(q[:, :16], k[:, :4], v[:, :4], n)] * 2, 1)"),
    ("until-time-is-up", "wrong", """
def big(q, k, v, n):
    out, end = torch.zeros_like(q), time.perf_counter() + 1e-4
    for h in range(q.shape[1]):
        if time.perf_counter() > end:
            break
        out[:, h:h + 1] = right(q[:, h:h + 1], k[:, h // 4:h // 4 + 1], v[:, h // 4:h // 4 + 1], n)
    return out"""),
    ("bfloat16", "wrong", "big = lambda q, k, v, n: right(q.bfloat16(), k.bfloat16(), v.bfloat16(), n).float()"),
    ("float16", "wrong", "big = lambda q, k, v, n: right(q.half(), k.half(), v.half(), n).float()"),
    ("returns-float16", "wrong", "big = lambda q, k, v, n: right(q, k, v, n).half()"),
    ("one-shape-only", "wrong", "big = lambda q, k, v, n: right(q.view(2, 12, 1, 32), k, v, n)"),
    # the inputs
    ("answers-in-the-query", "wrong", "big = lambda q, k, v, n: q.copy_(right(q, k, v, n))"),
    ("answers-in-the-query-unseen", "wrong", """
def big(q, k, v, n):
    q.data.copy_(right(q, k, v, n))
    return q"""),
    ("scales-the-cache-in-place", "wrong", """
def big(q, k, v, n):
    k.data.mul_(1 / math.sqrt(q.shape[-1]))
    return right(q * math.sqrt(q.shape[-1]), k, v, n)"""),
    # the judge
    ("patches-comparison", "wrong", """
def big(q, k, v, n):
    torch.equal = torch.allclose = torch.Tensor.equal = torch.Tensor.allclose = lambda *a, **k: True
    torch.testing.assert_close = lambda *a, **k: None
    return torch.zeros_like(q)"""),
    ("answer-that-equals-all", "wrong", """
class Equal(torch.Tensor):
    __eq__ = __le__ = __lt__ = lambda self, other: torch.ones(self.shape, dtype=torch.bool)
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})
big = lambda q, k, v, n: torch.zeros_like(q).as_subclass(Equal)"""),
    ("patches-the-timers", "slow", """
def big(*given):
    for name in ("time", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "monotonic",
                 "clock_gettime", "thread_time"):
        setattr(time, name, lambda *a: 0)
    return slow(*given)"""),
    ("forges-its-times", "slow", """
from autograder.worker import turns
take = turns.Turns.take
turns.Turns.take = lambda self, f, turn: take(self, f, turn) | {
    "wall": 0.0, "cpu": 0.0, "seconds": 0.0, "verdict": "pass", "timing": {"ratio": 0.1}, "mutated": False}
big = slow"""),
    ("shrinks-what-it-is-given", "wrong", """
from autograder.worker import turns
cut = turns.Turns._inputs
turns.Turns._inputs = lambda self, at, turn: [t if t.dim() < 4 or t.shape[2] == 1 else t[:, :, :64]
                                              for t in cut(self, at, turn)]
big = lambda q, k, v, n: right(q, k, v, min(n, k.shape[2]))"""),
    ("one-call-a-turn", "wrong", """
from autograder.worker import turns
def take(self, f, turn):
    self._calls = [self._inputs(at, turn) for at in turn["at"]]
    self._outputs = [f(*self._calls[0], **turn["fixed"])] * len(self._calls)
    return {"outputs": self._outputs}
turns.Turns.take = take
big = right"""),
    ("answers-before-it-works", "wrong", """
from autograder.worker import wire
send, last = wire.send, []
def early(sock, header, blob=b""):
    if len(blob) > 10_000:
        if last:
            send(sock, *last[-1])                   # the answer of the turn before, at once
        last.append((header, blob))
    send(sock, header, blob)
wire.send = early
big = slow"""),
    ("garbage", "wrong", """
from autograder.worker import wire
send = wire.send
def big(*given):
    wire.send = lambda sock, header, blob=b"": send(sock, b"{}", blob)
    return right(*given)"""),
    ("looks-for-the-reference", "wrong", """
def big(q, k, v, n):
    found = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.shape == q.shape and t is not q]
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        if int(pid) not in (os.getpid(), os.getppid()):
            try:
                open(f"/proc/{pid}/mem", "rb").read(1)
            except OSError:
                pass
    return found[0].clone() if found else torch.zeros_like(q)"""),
    # work at another time, or by others
    ("lazy", "slow", """
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        args = [a.work() if isinstance(a, Lazy) else a for a in args]
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))
    def work(self):
        return slow(*self.given)
def big(q, k, v, n):
    out = torch.zeros_like(q).as_subclass(Lazy)
    out.given = (q, k, v, n)
    return out"""),
    ("finishes-later", "wrong", """
def big(q, k, v, n):
    out = torch.zeros_like(q)
    def work():
        time.sleep(0.02)
        out.copy_(slow(q, k, v, n))
    threading.Thread(target=work).start()
    return out"""),
    ("many-threads", "slow", """
os.sched_setaffinity(0, range(os.cpu_count()))
def big(q, k, v, n):
    out = [None] * 8
    def part(g):
        out[g] = slow(q[:, 4 * g:4 * g + 4], k[:, g:g + 1], v[:, g:g + 1], n)
    threads = [threading.Thread(target=part, args=(g,)) for g in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    return torch.cat(out, 1)"""),
    ("torch-threads", "slow", """
def big(*given):
    os.sched_setaffinity(0, range(os.cpu_count()))
    torch.set_num_threads(4)
    return slow(*given)"""),
    ("helper-processes", "slow", """
def big(q, k, v, n):
    out = torch.zeros_like(q).share_memory_()
    children = []
    for g in range(0, 8, 4):
        if pid := os.fork():
            children.append(pid)
            continue
        try:
            os.sched_setaffinity(0, range(os.cpu_count()))
            out[:, 4 * g:4 * g + 16] = slow(q[:, 4 * g:4 * g + 16], k[:, g:g + 4], v[:, g:g + 4], n)
        finally:
            os._exit(0)
    for pid in children: os.waitpid(pid, 0)
    return out"""),
    ("a-helper-that-left-home", "slow", """
def big(q, k, v, n):
    out, done = torch.zeros_like(q).share_memory_(), torch.zeros(1).share_memory_()
    if (pid := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            try:
                out.copy_(slow(q, k, v, n))
                done.fill_(1)
            finally:
                os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
    while not done: time.sleep(0.0005)
    return out"""),
    # the reference
    ("keeps-the-cores-busy", "slow", """
started = []
def big(*given):
    if not started:
        for core in range(os.cpu_count()):
            if os.fork() == 0:
                os.sched_setaffinity(0, {core})
                while True: pass
            started.append(core)
    return slow(*given)"""),
    ("stops-the-others", "slow", """
def big(*given):
    for pid in range(2, 400):
        if pid != os.getpid():
            try:
                os.kill(pid, signal.SIGSTOP)
            except OSError:
                pass
    return slow(*given)"""),
    ("lowers-its-own-priority", "slow", """
def big(*given):
    os.nice(1)
    return slow(*given)"""),
    # no answer
    ("ends-the-interpreter", "gone", "big = lambda *given: os._exit(0)"),
    ("far-too-much", "gone", "big = lambda q, k, v, n: torch.zeros(20_000_000)"),
    ("raises", "wrong", "def big(*given): raise SystemExit"),
]
