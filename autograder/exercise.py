"""An exercise: a contract, the cases that probe it, and the programs known to be right or wrong."""
from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from .lab import Gone, Lab, Mismatch, NotStarted, Observation, Record, in_process
from .sandbox import SandboxError

VALUES, CONTRACT = "values", "contract"
_replays = threading.RLock()  # known programs run in this process, and share its random numbers


@dataclass(frozen=True)
class Case:
    """`probe(lab)` returns, or raises Mismatch.

    kind "values": what the program computes. kind "contract": what is promised beside it (refusals, dtypes, memory);
    a program can be recognised although it breaks some of these too.
    """

    title: str
    probe: Callable[[Lab], None]
    kind: str = VALUES


@dataclass(frozen=True)
class Program:
    """A known program. `why` is the sentence that a learner reads when theirs is this one.

    Several spellings may share an id, where one mistake behaves differently by how it is written (`view` raises
    where `reshape` copies).
    """

    id: str
    namespace: Mapping[str, Any]
    why: str
    spelling: str = ""

    @property
    def label(self) -> str:
        """Unique in its exercise."""
        return f"{self.id}:{self.spelling}" if self.spelling else self.id


@dataclass
class Trial:
    """One case, tried on one lab."""

    case: Case
    passed: bool
    message: str = ""
    figure: Any = None
    transcript: list[Observation] = field(default_factory=list)
    mutated: bool = False
    unread: bool = False
    signature: tuple | None = None


@dataclass(frozen=True)
class Timing:
    """How fast a right program has to be: at most `limit` times as slow as `reference`, on `device`.

    Every call gets fresh tensors of these shapes by position: standard normal float32, or where the name is in
    `masks`, booleans of which three quarters are True; then `fixed` by keyword. One turn of the clock is `calls` calls.
    `reference` stands by itself: of its module it may use `math`, `torch` and `F` alone. See timing.py.
    """

    reference: Callable
    limit: float
    shapes: Mapping[str, tuple[int, ...]]
    masks: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    calls: int = 1
    device: str = "cpu"


@dataclass(eq=False)
class Exercise:
    """Declared once, in a file of its own under autograder/exercises/<session's module>/.

    `step` is its place in the session; `hides` says which fault would not show at which size; `tensor` exercises share
    the standard checks and faults of standard.py, but for the faults in `exempt`, which they cannot have. Where
    `replayed` is false a program is recognised by facts alone: it is not run again where there may be threads.
    """

    name: str
    step: int
    points: int
    minutes: int
    difficulty: int
    importance: int
    summary: str
    hints: tuple[str, str, str]
    tensor: bool = True
    exempt: tuple[str, ...] = ()
    replayed: bool = True
    hides: str = ""
    session: str = ""
    module: str = ""
    cases: list[Case] = field(default_factory=list)
    rights: list[Program] = field(default_factory=list)
    wrongs: list[Program] = field(default_factory=list)
    recognisers: dict[str, Callable[[list[Trial]], bool]] = field(default_factory=dict)
    timing: Timing | None = None

    def case(self, title: str, kind: str = VALUES):
        """Register the decorated `probe(lab)`. Cases run in the order of the file: values first, then promises."""
        def add(probe):
            self.cases.append(Case(title, probe, kind))
            return probe
        return add

    def right(self, program):
        """Register a program that must pass: a function or class, named for its style."""
        self.rights.append(self._program(program, program.__name__.replace("_", "-")))
        return program

    def wrong(self, program=None, *, id: str = ""):
        """Register a program that must fail and be named. Its docstring is what the learner reads.

        The id is the function's name with dashes, or the class's CamelCase name taken apart. `@exercise.wrong(id=...)`
        sets it; given an id that is there already, the program is one more spelling and shares its sentence.
        """
        if program is None:
            return partial(self.wrong, id=id)
        id = id or _dashed(program.__name__)
        if id in self.wrong_ids:
            first = self.program(id)
            self.wrongs.append(Program(id, {self.name: program}, first.why, _dashed(program.__name__)))
            return program
        if not inspect.getdoc(program):
            raise ValueError(f"{self.name}: the wrong program {program.__name__} needs its sentence (a docstring)")
        self.wrongs.append(self._program(program, id))
        return program

    def timed(self, limit: float, shapes: Mapping[str, tuple[int, ...]], **more):
        """Register the decorated function as what the exercise is timed against, once all cases pass. See Timing."""
        def add(reference):
            self.timing = Timing(reference, limit, shapes, **more)
            return reference
        return add

    def recognise(self, id: str):
        """Register `fits(trials) -> bool`: a wrong program that is known by a fact, where its spellings have no number.

        The id must be one of a registered wrong program.
        """
        def add(fits):
            self.recognisers[id] = fits
            return fits
        return add

    @property
    def wrong_ids(self) -> list[str]:
        """The ids of the wrong programs, each once."""
        return list(dict.fromkeys(p.id for p in self.wrongs))

    def _program(self, program, id_):
        namespace = program if isinstance(program, Mapping) else {self.name: program}
        return Program(id_, namespace, " ".join((inspect.getdoc(program) or "").split()))

    def program(self, id_: str) -> Program:
        """The right or wrong program of that id (its first spelling)."""
        return next(p for p in self.rights + self.wrongs if p.id == id_)

    def attempt(self, case: Case, lab: Lab) -> Trial:
        """Run one case. NotStarted, Gone and SandboxError pass through; an answer that no one can read is a failure."""
        try:
            case.probe(lab)
            trial = Trial(case, True)
        except Mismatch as m:
            trial = Trial(case, False, str(m), m.figure)
        except (NotStarted, Gone, SandboxError):
            raise
        except Exception as e:  # a worker that lies about what it sends back
            trial = Trial(case, False, f"the answer could not be read ({type(e).__name__})", unread=True)
        trial.transcript, trial.mutated, trial.signature = lab.transcript, bool(lab.mutated), lab.signature
        if trial.passed and trial.mutated:
            trial.passed = False
            trial.message = f"{lab.mutated[0]} changed a tensor that it was given"
        return trial

    def try_program(self, program: Program) -> list[Trial]:
        """All cases on a known program, in this process."""
        return [self.try_case(program, i) for i in range(len(self.cases))]

    def try_case(self, program: Program, index: int) -> Trial:
        """One case on a known program. Computed once: known programs are deterministic."""
        key = program.label, index
        with _replays:
            if key not in self._trials:
                lab = in_process(program.namespace)
                try:
                    self._trials[key] = self.attempt(self.cases[index], lab)
                finally:
                    lab.close()
            return self._trials[key]

    @cached_property
    def _trials(self) -> dict[tuple[str, int], Trial]:
        return {}


def same(a: Any, b: Any) -> bool:
    """Whether two observed values are one answer: equal shapes and dtypes, numbers within tolerance, NaN equal."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        coarse = a.dtype in (torch.float16, torch.bfloat16)
        rtol, atol = (2e-2, 1e-2) if coarse else (1e-5, 1e-6) if a.dtype == torch.float32 else (1e-7, 1e-9)
        return torch.allclose(a.double(), b.double(), rtol=rtol, atol=atol, equal_nan=True)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, Record) and isinstance(b, Record):
        return a._type == b._type and same(a._fields, b._fields)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= 1e-9 * max(abs(a), abs(b)) or (a != a and b != b)
    return type(a) is type(b) and a == b


def same_transcript(a: list[Observation], b: list[Observation]) -> bool:
    """Whether two programs gave the same answers to the same questions."""
    return len(a) == len(b) and all(x.error == y.error and same(x.value, y.value)
                                    for x, y in zip(a, b, strict=True))


def _dashed(name: str) -> str:
    if "_" in name or name.islower():
        return name.strip("_").replace("_", "-")
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).strip("-")
