"""Answers of several parts: compared part by part, and recognised part by part."""
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ... import expect
from ...exercise import CONTRACT, VALUES, Exercise, Trial, same
from ...lab import Lab, Mismatch, Opaque

NOT_DIFFERENTIATED = ("detaches-graph",)  # a gradient need not have a gradient
LOOSE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 0.1}


def triple(got: Any, names: Sequence[str]) -> dict[str, Any]:
    """A tuple of as many tensors as there are names."""
    ok = isinstance(got, (tuple, list)) and len(got) == len(names)
    expect.true(ok, f"the result is {_kind(got)}, expected the tuple ({', '.join(names)})")
    return dict(zip(names, got, strict=True))


def keyed(got: Any, names: Sequence[str]) -> dict[str, Any]:
    """A dict with these keys."""
    expect.true(isinstance(got, dict), f"the result is {_kind(got)}, expected a dict with the keys {', '.join(names)}")
    missing = [n for n in names if n not in got]
    expect.true(not missing, f"the result has no {', '.join(map(repr, missing))}; its keys are "
                             f"{', '.join(map(str, got)) or 'none'}")
    return {n: got[n] for n in names}


def check(got: Mapping[str, Any], want: Mapping[str, torch.Tensor], axes: Mapping[str, Sequence[str]],
          explain: Mapping[str, Callable[[torch.Tensor], str | None]] | None = None) -> None:
    """Every part has the shape, dtype and values of the oracle's. `explain[part]` says what a wrong one holds."""
    for name, oracle in want.items():
        try:
            expect.close(got[name], oracle, name, axes.get(name, ()))
        except Mismatch as m:
            value = got[name]
            reason = explain[name](value) if explain and name in explain and isinstance(value, torch.Tensor) else None
            raise Mismatch(f"{m}; {reason}" if reason else str(m), m.figure) from None


def near(got: Mapping[str, Any], slopes: Mapping[str, tuple[tuple[int, ...], float]]) -> None:
    """Every part agrees with the slope that was measured at one coordinate of it."""
    for name, (at, slope) in slopes.items():
        cell = f"the gradient of {name}[{','.join(map(str, at))}]"
        try:
            value = expect.tensor(got[name], name)[at].item()
        except (IndexError, RuntimeError):
            raise Mismatch(f"{cell} does not exist: the shape is {list(got[name].shape)}") from None
        expect.true(abs(value - slope) < 1e-6 * max(1, abs(slope)),
                    f"{cell} is {value:.6g}; two steps of 1e-5 measure {slope:.6g}")


def shares(got: torch.Tensor, paths: Mapping[str, torch.Tensor]) -> dict[str, float] | None:
    """How much of each path `got` holds, when it is a sum of them and nothing else; None when it is not."""
    if any(got.shape != p.shape for p in paths.values()) or not got.isfinite().all():
        return None
    columns = torch.stack([p.double().flatten() for p in paths.values()], 1)
    if columns.shape[0] < columns.shape[1]:
        return None
    found = torch.linalg.lstsq(columns, got.double().flatten()[:, None]).solution
    rest = (columns @ found)[:, 0] - got.double().flatten()
    if rest.abs().max() > 1e-8 * max(1.0, got.abs().max().item()):
        return None
    return {n: round(v, 6) + 0.0 for n, v in zip(paths, found[:, 0].tolist(), strict=True)}


def dtypes(exercise: Exercise, call: Callable[[Lab, torch.dtype], tuple[Mapping, Mapping]]) -> None:
    """Adds C2 and C7: the dtype follows the inputs, values stay near the oracle's, two calls agree.

    `call(lab, dtype)` gives the parts of one call and the float64 oracle's.
    """
    @exercise.case("the dtype follows the inputs, and two calls agree", CONTRACT)
    def follows(lab):
        for dtype in LOOSE:
            (first, want), (again, _) = call(lab, dtype), call(lab, dtype)
            largest = max(1.0, *(oracle.abs().max().item() for oracle in want.values()))
            for name, oracle in want.items():
                expect.shape(first[name], oracle.shape, name)
                expect.dtype(first[name], dtype, name)
                loose = LOOSE[dtype]
                expect.close(first[name].double(), oracle, f"{name} in {str(dtype)[6:]}", (), loose * largest, loose)
                expect.close(again[name], first[name], f"{name} of the second call", atol=0, rtol=0)


def recognise_by_part(exercise: Exercise) -> None:
    """A wrong program is known when each part of each answer is right, or is what a spelling of it gives there."""
    for id_ in exercise.wrong_ids:
        exercise.recognise(id_)(lambda trials, id_=id_: _fits(exercise, id_, trials))


def _fits(exercise: Exercise, id_: str, trials: Sequence[Trial]) -> bool:
    spellings = [p for p in exercise.wrongs if p.id == id_]
    fitting = False
    for i, trial in enumerate(trials):
        if trial.case.kind != VALUES or trial.passed:
            continue
        known = [exercise.try_case(p, i) for p in spellings]
        ours = _answers(trial)
        if not ours:  # it raised: some spelling has to raise as well
            if not any(not _answers(k) and not k.passed for k in known):
                return False
            continue
        right = _answers(exercise.try_case(exercise.rights[0], i))
        for n, answer in enumerate(ours):
            wrong = [[_answers(k)[n]] if len(_answers(k)) > n else [] for k in known]
            for key, part in _split(answer).items():
                if n < len(right) and same(part, _split(right[n]).get(key)):
                    continue
                if not any(same(part, _split(w).get(key)) for ws in wrong for w in ws):
                    return False
                fitting = True
    return fitting and not _contradicted(exercise, spellings, trials)


def _contradicted(exercise, spellings, trials):
    """A case that passed although every spelling fails it."""
    return any(t.passed and t.case.kind == VALUES and not any(exercise.try_case(p, i).passed for p in spellings)
               for i, t in enumerate(trials))


def _answers(trial: Trial) -> list[Any]:
    return [o.value for o in trial.transcript if o.error is None]


def _split(answer: Any) -> dict[Any, Any]:
    if isinstance(answer, dict):
        return answer
    return dict(enumerate(answer)) if isinstance(answer, (tuple, list)) else {0: answer}


def _kind(got):
    if isinstance(got, torch.Tensor):
        return f"one tensor {list(got.shape)}"
    if isinstance(got, (tuple, list)):
        return f"{len(got)} values"
    return f"a {got.type if isinstance(got, Opaque) else type(got).__name__}"
