"""observe_backend: what was asked for, and what a trace saw, are two facts."""
from __future__ import annotations

import os

import torch

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch, Observation
from ...standard import normal

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces itself on stderr
METHODS = ("profiler", "dispatch")
SIGNS = {"flash": ("_scaled_dot_product_flash_attention",), "efficient": ("_scaled_dot_product_efficient_attention",),
         "cudnn": ("_scaled_dot_product_cudnn_attention",),
         "math": ("_scaled_dot_product_attention_math", "_safe_softmax")}

exercise = Exercise(
    "observe_backend", step=100, points=2, minutes=6, difficulty=3, importance=4, tensor=False,
    summary="run a call under the profiler and name the attention backend that was seen, or None",
    hides="a call that runs what was requested hides a program that repeats the request; a call with an attention "
          "operator hides a guess where there is none",
    hints=("Three facts: what was requested, what would be eligible, and what ran. This function reports the third.",
           "torch.profiler.profile records operators by name while fn() runs; key_averages() lists them.",
           "Look for the operators that the docstring names, one for each backend. If none of them ran, observed is "
           "None: attention by two matrix products is no backend."))

# title: (recipe, requested, observed). What each call runs was read from traces of PyTorch 2.13 on a CPU.
CALLS = {
    "plain attention on the CPU": ({}, "auto", "flash"),
    "flash is requested, and dropout runs the math path": ({"options": {"dropout_p": 0.25}}, "flash", "math"),
    "flash is requested, and values are wider than keys": ({"width": 6}, "flash", "math"),
    "the math path is requested, and nobody enforced it": ({}, "math", "flash"),
    "three axes": ({"axes": 3}, "auto", "math"),
    "only the math path is allowed": ({"only": "MATH"}, "auto", "math"),
    "flash is requested, and two matrix products ran": ({"attention": "products"}, "flash", None),
    "nothing that is attention": ({"attention": "none"}, "auto", None)}


def recipe(attention="sdpa", options=None, width=4, axes=4, only=None):
    """The plain data from which the worker makes a call."""
    shape = (2, 3, 5) if axes == 4 else (3, 5)
    q, k = (normal(*shape, 4, seed=i).float() for i in (1, 2))
    return {"attention": attention, "q": q, "k": k, "v": normal(*shape, width, seed=3).float(),
            "options": options or {}, "only": only}


def _observe(lab, what, requested):
    got = lab.call("observe_backend", lab.specimen(recipe(**what)), requested)
    if not isinstance(got, dict) or got.keys() != {"observed", "method", "operators"}:
        raise Mismatch(f"the result is {got!r}, expected a dict with the keys observed, method and operators")
    lab.transcript[-1] = Observation("observe_backend", value=got["observed"])
    return got


def _case(title):
    def probe(lab):
        what, requested, observed = CALLS[title]
        got = _observe(lab, what, requested)
        if got["observed"] != observed:
            raise Mismatch(f"{title}: observed is {got['observed']!r}, and the trace shows {observed!r} (requested was "
                           f"{requested!r})")
    exercise.case(title)(probe)


for _title in CALLS:
    _case(_title)


@exercise.case("the operators that were seen, and how, are part of the answer", CONTRACT)
def evidence(lab):
    for title in list(CALLS)[:2]:
        what, requested, observed = CALLS[title]
        got = _observe(lab, what, requested)
        expect.true(got["method"] in METHODS, f"method is {got['method']!r}, expected one of {', '.join(METHODS)}")
        seen = got["operators"]
        if not isinstance(seen, (list, tuple)) or not all(isinstance(n, str) for n in seen):
            raise Mismatch(f"operators is {seen!r}, expected a list of names")
        names = [n.removeprefix("aten::") for n in seen]
        expect.true(any(n.startswith(sign) for n in names for sign in SIGNS[observed]),
                    f"operators is {seen!r}: the operator that tells {observed!r} is not among them")


@exercise.case("the request is not observed, whatever its name", CONTRACT)
def any_request(lab):
    for requested in ("efficient", "cudnn", "something new"):
        got = _observe(lab, {}, requested)
        expect.equal(got["observed"], "flash", f"observed, with requested={requested!r},")


def _result(names, method):
    names = sorted({n.removeprefix("aten::") for n in names})
    seen = [n for n in names if any(n.startswith(s) for signs in SIGNS.values() for s in signs)]
    found = [b for b, signs in SIGNS.items() if any(n.startswith(signs) for n in seen)]
    return {"observed": found[0] if found else None, "method": method, "operators": seen}


def _profiled(fn):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
        fn()
    return [e.key for e in trace.key_averages()]


@exercise.right
def by_profiler(fn, requested="auto"):
    return _result(_profiled(fn), "profiler")


@exercise.right
def by_events_of_the_autograd_profiler(fn, requested="auto"):
    with torch.autograd.profiler.profile() as trace:
        fn()
    return _result([e.name for e in trace.function_events], "profiler")


@exercise.right
def by_dispatch_mode(fn, requested="auto"):
    from torch.utils._python_dispatch import TorchDispatchMode
    names = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    with Names():
        fn()
    return _result(names, "dispatch")


@exercise.wrong
def request_repeated(fn, requested="auto"):
    """The requested name is not an observation."""
    right = by_profiler(fn)
    return right | ({} if requested == "auto" else {"observed": requested})


@exercise.wrong(id="request-repeated")
def request_with_auto_as_flash(fn, requested="auto"):
    return by_profiler(fn) | {"observed": "flash" if requested == "auto" else requested}


@exercise.wrong(id="request-repeated")
def request_as_it_is(fn, requested="auto"):
    return by_profiler(fn) | {"observed": requested}


@exercise.wrong
def parity_as_proof(fn, requested="auto"):
    """Equal outputs do not identify a kernel: all backends compute the same function."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    torch.manual_seed(0)
    free = fn()
    torch.manual_seed(0)
    with sdpa_kernel(SDPBackend.MATH):
        forced = fn()
    return by_profiler(fn) | {"observed": "math" if torch.allclose(free, forced, atol=1e-5) else "flash"}


@exercise.wrong
def guess_instead_of_none(fn, requested="auto"):
    """Unmeasured is None: where no operator of a backend was seen, the math path was assumed."""
    right = by_profiler(fn)
    return right | {"observed": right["observed"] or "math"}


@exercise.wrong(id="guess-instead-of-none")
def guesses_the_request(fn, requested="auto"):
    right = by_profiler(fn)
    return right | {"observed": right["observed"] or ("flash" if requested == "auto" else requested)}


@exercise.wrong
def public_name_only(fn, requested="auto"):
    """`scaled_dot_product_attention` is the door to every backend: that it was called does not tell which one ran."""
    names = _profiled(fn)
    return by_profiler(fn) | {"observed": "flash" if any(
        n.endswith("::scaled_dot_product_attention") for n in names) else None}


@exercise.wrong
def never_flash_on_a_cpu(fn, requested="auto"):
    """The CPU has a flash operator too: its name ends in _for_cpu."""
    right = by_profiler(fn)
    return right | {"observed": "math" if right["observed"] else None}
