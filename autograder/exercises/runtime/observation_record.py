"""A record of one call: facts about it, what was asked for, what was seen to run, and how."""
from __future__ import annotations

from typing import Any

import torch

from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch, Observation, Opaque, Record
from ...standard import normal

NAME = "observation_record"
exercise = Exercise(
    NAME, step=4, points=3, minutes=5, difficulty=2, importance=4,
    summary="A reproducible record of one attention call: shapes, masks, modes, and the backend that a trace saw.",
    hints=(
        "Go through the list of fields and ask of each: who knows it? The tensors, the framework, the caller, or only "
        "a trace.",
        "What was asked for is the caller's word. What ran is in the names of the operators: run the call once under "
        "`operators`, and look which names of the list are among them. Sometimes none is.",
        "True in a boolean mask means one thing to nn.MultiheadAttention and the opposite to SDPA. Without the word a "
        "record of it says nothing, so refuse.",
    ),
    tensor=False,
    hides="A request that is granted hides an observation copied from it; additive masks hide a missing polarity; one "
          "mode hides constants.",
)
FLASH, MATH, FAST = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math",
                     "_native_multi_head_attention")
MODES = "training", "autograd", "autocast"


def plain(value: Any) -> Any:
    """Lists as tuples, dtypes and devices as text."""
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Opaque):
        return value.text.removeprefix("device(type='").removesuffix("')") if value.type == "device" else value
    return value.removeprefix("torch.") if isinstance(value, str) else value


def _compare(lab, got, want):
    """Field by field, with what is wrong written into the transcript in place of the record."""
    lab.transcript.pop()
    fields = got._fields if isinstance(got, Record) else got
    if not isinstance(fields, dict):
        lab.transcript.append(Observation(NAME, value=type(got).__name__))
        raise Mismatch(f"the result is a {type(got).__name__}, expected a dict of fields")
    method = fields.get("method")
    wrong = [key for key, value in want.items() if key not in fields or plain(fields[key]) != value
             or isinstance(value, bool) != isinstance(fields[key], bool)]
    if not isinstance(method, str) or not method.strip():
        wrong.append("method")
    lab.transcript.append(Observation(NAME, value={k: plain(fields.get(k, "missing")) for k in wrong}))
    if wrong:
        key = wrong[0]
        said = f"says {fields[key]!r}" if key in fields else "is missing"
        asked = f"expected {want[key]!r}" if key in want else "expected words that say how the backend was seen"
        raise Mismatch(f"{key} {said}, {asked}" + (f"; also {', '.join(wrong[1:])}" if wrong[1:] else ""))


def _record(lab, surface, inputs, observed, modes=None, mask=None, polarity=None, training=False, **options):
    """One record of one call, compared with what it was."""
    fn = lab.specimen({"mask": mask, "training": training} | surface)
    told = {"mask": mask, "polarity": polarity} if mask is not None else {}
    got = lab.call(NAME, fn, inputs, modes=modes, **told, **options)
    boolean = mask is not None and mask.dtype == torch.bool
    modes = modes or {}
    _compare(lab, got, {
        "framework_version": str(torch.__version__), "device": "cpu",
        "shapes": tuple(tuple(x.shape) for x in inputs),
        "dtypes": tuple(str(x.dtype).removeprefix("torch.") for x in inputs),
        "strides": tuple(x.stride() for x in inputs),
        "mask_kind": None if mask is None else "boolean" if boolean else "additive",
        "mask_shape": None if mask is None else tuple(mask.shape), "mask_polarity": polarity if boolean else None,
        "training": training, "autograd": modes.get("grad", True), "autocast": modes.get("autocast", False),
        "need_weights": options.get("need_weights", False),
        "requested_backend": options.get("requested_backend", "auto"), "observed_backend": observed})


def heads(value_width=4, keys=5, dtype=torch.float32):
    """q, k, v; the keys are a transposed view."""
    return [normal(2, 3, 5, 4, dtype=dtype), normal(2, keys, 3, 4, seed=1, dtype=dtype).transpose(1, 2),
            normal(2, 3, keys, value_width, seed=2, dtype=dtype)]


def visible(keys=5):
    return torch.ones(5, keys, dtype=torch.bool).tril(keys - 5)


SDPA, BY_HAND, MODULE = {"surface": "sdpa"}, {"surface": "by hand"}, {"surface": "module", "width": 12, "heads": 4}


@exercise.case("a plain SDPA call on the CPU")
def sdpa(lab):
    _record(lab, SDPA, heads(), FLASH)


@exercise.case("other sizes and another dtype, strided keys: B2 H3 T5 S7, float64")
def sizes(lab):
    _record(lab, SDPA, heads(keys=7, dtype=torch.float64), FLASH, requested_backend="flash")


@exercise.case("a request that is not granted: values wider than keys take the math path")
def refused_request(lab):
    _record(lab, SDPA, heads(value_width=6), MATH, requested_backend=FLASH)


@exercise.case("attention by hand: no operator of the list runs")
def by_hand(lab):
    _record(lab, BY_HAND, heads(), None, requested_backend=MATH)


@exercise.case("the module on its fast path, with one tensor three times")
def fast(lab):
    x = normal(2, 5, 12, dtype=torch.float32)
    _record(lab, MODULE, [x, x, x], FAST, modes={"grad": False}, requested_backend="auto")
    _record(lab, MODULE | {"need_weights": True}, [x, x, x], FAST, modes={"grad": False}, need_weights=True)


@exercise.case("a boolean mask, in either polarity")
def boolean(lab):
    _record(lab, SDPA, heads(), FLASH, mask=visible(), polarity="visible")
    _record(lab, SDPA, heads(keys=7), FLASH, mask=visible(7)[None, None], polarity="blocked")


@exercise.case("an additive mask has no polarity")
def additive(lab):
    _record(lab, BY_HAND, heads(), None, mask=torch.zeros(5, 5))
    _record(lab, SDPA, heads(), FLASH, mask=torch.zeros(1, 1, 5, 5), polarity="visible")


@exercise.case("training, autograd and autocast, each on and off")
def modes(lab):
    _record(lab, BY_HAND, heads(), None, training=True)
    _record(lab, BY_HAND, heads(), None, modes={"grad": False})
    _record(lab, BY_HAND, heads(), None, training=True, modes={"grad": True, "autocast": True})


@exercise.case("refuses a boolean mask whose polarity is not said", CONTRACT)
def refuses(lab):
    fn = lab.specimen(SDPA | {"mask": visible()})
    for polarity in (None, "true", ""):
        lab.raises(ValueError, "polarity", NAME, fn, heads(), mask=visible(), polarity=polarity)


ORDER = (FAST, "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention", FLASH,
         "_scaled_dot_product_efficient_attention", MATH)


def traced(fn, inputs):
    with torch.autograd.profiler.profile() as trace:
        fn(*inputs)
    names = {e.name.split("::")[-1] for e in trace.function_events}
    return next((name for name in ORDER if name in names), None)


def refuse_silence(mask, polarity):
    if mask is not None and mask.dtype == torch.bool and polarity not in ("visible", "blocked"):
        raise ValueError("a boolean mask needs its polarity")


def written(fn, inputs, requested_backend, mask, polarity, need_weights):
    known = mask is not None and mask.dtype == torch.bool
    return dict(framework_version=torch.__version__, device=str(inputs[0].device),
                shapes=tuple(tuple(x.shape) for x in inputs), dtypes=[str(x.dtype)[6:] for x in inputs],
                strides=[x.stride() for x in inputs],
                mask_kind=None if mask is None else ("boolean" if known else "additive"),
                mask_shape=None if mask is None else tuple(mask.shape), mask_polarity=polarity if known else None,
                training=fn.training, autograd=torch.is_grad_enabled(), autocast=torch.is_autocast_cpu_enabled(),
                need_weights=need_weights, requested_backend=requested_backend,
                observed_backend=traced(fn, inputs), method="profiler trace")


@exercise.right
def a_dict(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    refuse_silence(mask, polarity)
    return written(fn, inputs, requested_backend, mask, polarity, need_weights)


@exercise.right
def a_dataclass(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    import dataclasses
    refuse_silence(mask, polarity)
    fields = written(fn, inputs, requested_backend, mask, polarity, need_weights)
    made = dataclasses.make_dataclass("Seen", [*fields, "note"])
    return made(**fields | {"dtypes": [x.dtype for x in inputs], "device": inputs[0].device,
                            "method": "operators seen by torch.autograd.profiler"}, note="extra fields do no harm")


@exercise.wrong
def observed_from_request(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    """What was asked for stands as what was observed. Observed comes from a trace; a request may not be granted."""
    refuse_silence(mask, polarity)
    return written(fn, inputs, requested_backend, mask, polarity, need_weights) | {
        "observed_backend": requested_backend}


@exercise.wrong(id="observed-from-request")
def traced_only_for_auto(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    record = a_dict(fn, inputs, requested_backend, mask, polarity, need_weights)
    return record if requested_backend == "auto" else record | {"observed_backend": requested_backend}


@exercise.wrong
def method_missing(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    """An observation names its method: without it nobody can repeat or doubt it."""
    record = a_dict(fn, inputs, requested_backend, mask, polarity, need_weights)
    del record["method"]
    return record


@exercise.wrong(id="method-missing")
def method_left_open(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    return a_dict(fn, inputs, requested_backend, mask, polarity, need_weights) | {"method": ""}


@exercise.wrong
def polarity_missing(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    """A boolean mask needs its meaning: True is "blocked" for nn.MultiheadAttention and "visible" for SDPA."""
    return written(fn, inputs, requested_backend, mask, None, need_weights)


@exercise.wrong(id="polarity-missing")
def polarity_not_asked_for(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    return written(fn, inputs, requested_backend, mask, polarity, need_weights)


@exercise.wrong(id="polarity-missing")
def polarity_field_left_out(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    record = written(fn, inputs, requested_backend, mask, polarity, need_weights)
    del record["mask_polarity"]
    return record


@exercise.wrong
def modes_missing(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    """Training, autograd and autocast change the path that a call takes; a record without them cannot be repeated."""
    record = a_dict(fn, inputs, requested_backend, mask, polarity, need_weights)
    return {k: v for k, v in record.items() if k not in MODES}


@exercise.wrong(id="modes-missing")
def autocast_left_out(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    record = a_dict(fn, inputs, requested_backend, mask, polarity, need_weights)
    del record["autocast"]
    return record


@exercise.wrong(id="modes-missing")
def modes_as_constants(fn, inputs, requested_backend="auto", mask=None, polarity=None, need_weights=False):
    return a_dict(fn, inputs, requested_backend, mask, polarity, need_weights) | {
        "training": False, "autograd": True, "autocast": False}


def _wrong_fields(trials):
    """{field: the values it had where it was wrong}; None when something else than a field is wrong."""
    fields: dict[str, set] = {}
    for trial in trials:
        for seen in trial.transcript:
            if seen.asked != NAME:
                continue
            if not isinstance(seen.value, dict):
                return None
            for key, value in seen.value.items():
                fields.setdefault(key, set()).add(str(value))
    return fields


def _known(id, fits):
    exercise.recognise(id)(lambda trials: bool(fields := _wrong_fields(trials)) and fits(fields))


_known("observed-from-request", lambda f: set(f) == {"observed_backend"}
       and f["observed_backend"] <= {"auto", "flash", FLASH, MATH} and {FLASH, MATH} <= f["observed_backend"])
_known("method-missing", lambda f: set(f) == {"method"})
_known("polarity-missing", lambda f: set(f) == {"mask_polarity"} and f["mask_polarity"] <= {"None", "missing"})
_known("modes-missing", lambda f: set(f) <= set(MODES))
