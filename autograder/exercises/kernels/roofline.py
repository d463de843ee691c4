"""roofline: intensity, what bounds a computation, and the least time that it takes."""
from __future__ import annotations

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch

KEYS = ("intensity", "bound", "seconds")
# title: (flops, bytes, peak flops, peak bandwidth). Peaks are NVIDIA's data sheet values for the A100 (SXM, 80 GB).
A100 = (312e12, 2.039e12)
INPUTS = {
    "a square product in bfloat16, 4096 by 4096: compute": (2 * 4096 ** 3, 3 * 4096 ** 2 * 2, *A100),
    "one decode step, 8192 cached rows of 128: memory": (4 * 32 * 8192 * 128, 2 * 8 * 8192 * 128 * 2, *A100),
    "fewer operations than bytes: softmax over a row of 4096 float32 scores": (5 * 4096, 2 * 4096 * 4, *A100),
    "a small machine: 2 operations and 8 bytes a second": (6.0, 10.0, 2.0, 8.0)}

exercise = Exercise(
    "roofline", step=70, points=2, minutes=5, difficulty=2, importance=4, tensor=False,
    summary="intensity in FLOPs per byte, the bound, and the least seconds of a computation on a machine",
    hides="work far from the ridge hides a sum of the two times (the smaller one vanishes); an intensity near 1 hides "
          "its inverse",
    hints=("Two things take time: computing and moving. How long would each take alone?",
           "They overlap, so the longer of the two is the least time; whichever it is names the bound.",
           "intensity = flops / bytes. The ridge is peak_flops / peak_bandwidth: above it a computation is bound by "
           "compute. Check the four numbers before you divide."))


def oracle(flops, moved, peak, bandwidth):
    compute = flops * bandwidth >= moved * peak
    return {"intensity": flops / moved, "bound": "compute" if compute else "memory",
            "seconds": flops / peak if compute else moved / bandwidth}


def _check(lab, numbers):
    got, want = lab.call("roofline", *numbers), oracle(*numbers)
    if not isinstance(got, dict) or got.keys() != want.keys():
        raise Mismatch(f"the result is {got!r}, expected a dict with the keys {', '.join(KEYS)}")
    for key in ("intensity", "seconds"):
        value = got[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value - want[key]) <= 1e-9 * want[
                key]:
            raise Mismatch(f"{key} is {value!r}, expected {want[key]:.6g}{_why(key, value, numbers)}")
    expect.equal(got["bound"], want["bound"], "bound")


def _why(key, value, numbers):
    flops, moved, peak, bandwidth = numbers
    units = (f" ({flops:.4g} FLOPs over {moved:.4g} bytes)" if key == "intensity" else
             f" (computing alone takes {flops / peak:.4g} s, moving alone {moved / bandwidth:.4g} s)")
    return units if isinstance(value, (int, float)) else ""


def _case(title):
    exercise.case(title)(lambda lab: _check(lab, INPUTS[title]))


for _title in INPUTS:
    _case(_title)


@exercise.case("exactly at the ridge it is bound by compute", CONTRACT)
def ridge(lab):
    _check(lab, (32.0, 8.0, 4.0, 1.0))


@exercise.case("refuses what is not positive", CONTRACT)
def refuses(lab):
    for i in range(4):
        for bad in (0, -1.0):
            numbers = [1.0, 2.0, 3.0, 4.0]
            numbers[i] = bad
            lab.raises(ValueError, "positive", "roofline", *numbers)


def _positive(*numbers):
    if any(n <= 0 for n in numbers):
        raise ValueError("all four numbers must be positive")


@exercise.right
def compares_times(flops, bytes_moved, peak_flops, peak_bandwidth):
    _positive(flops, bytes_moved, peak_flops, peak_bandwidth)
    computing, moving = flops / peak_flops, bytes_moved / peak_bandwidth
    return {"intensity": flops / bytes_moved, "bound": "compute" if computing >= moving else "memory",
            "seconds": max(computing, moving)}


@exercise.right
def compares_intensity_with_the_ridge(flops, bytes_moved, peak_flops, peak_bandwidth):
    _positive(flops, bytes_moved, peak_flops, peak_bandwidth)
    intensity, ridge = flops / bytes_moved, peak_flops / peak_bandwidth
    reached = min(peak_flops, intensity * peak_bandwidth)
    return {"seconds": flops / reached, "intensity": intensity, "bound": "memory" if intensity < ridge else "compute"}


@exercise.wrong
def times_added(flops, bytes_moved, peak_flops, peak_bandwidth):
    """The bound is the larger time: computing and moving overlap, they are not added."""
    right = compares_times(flops, bytes_moved, peak_flops, peak_bandwidth)
    return right | {"seconds": flops / peak_flops + bytes_moved / peak_bandwidth}


@exercise.wrong
def intensity_inverted(flops, bytes_moved, peak_flops, peak_bandwidth):
    """Intensity is FLOPs per byte, not bytes per FLOP."""
    return compares_times(flops, bytes_moved, peak_flops, peak_bandwidth) | {"intensity": bytes_moved / flops}


@exercise.wrong(id="intensity-inverted")
def inverted_and_compared(flops, bytes_moved, peak_flops, peak_bandwidth):
    right = compares_times(flops, bytes_moved, peak_flops, peak_bandwidth)
    intensity = bytes_moved / flops
    return right | {"intensity": intensity, "bound": "memory" if intensity < peak_flops / peak_bandwidth else "compute"}


@exercise.wrong
def elements_as_bytes(flops, bytes_moved, peak_flops, peak_bandwidth):
    """bytes_moved counts bytes already: multiply elements by their size before the call, and not in it."""
    return compares_times(flops, 4 * bytes_moved, peak_flops, peak_bandwidth)


@exercise.wrong(id="elements-as-bytes")
def halves_as_bytes(flops, bytes_moved, peak_flops, peak_bandwidth):
    return compares_times(flops, 2 * bytes_moved, peak_flops, peak_bandwidth)


@exercise.wrong(id="elements-as-bytes")
def bytes_back_to_elements(flops, bytes_moved, peak_flops, peak_bandwidth):
    return compares_times(flops, bytes_moved / 4, peak_flops, peak_bandwidth)


@exercise.wrong
def smaller_time(flops, bytes_moved, peak_flops, peak_bandwidth):
    """The longer of the two times is the least that a computation takes; the shorter one was returned."""
    right = compares_times(flops, bytes_moved, peak_flops, peak_bandwidth)
    return right | {"seconds": min(flops / peak_flops, bytes_moved / peak_bandwidth)}


@exercise.wrong
def bound_swapped(flops, bytes_moved, peak_flops, peak_bandwidth):
    """High intensity means that computing takes longer: that is bound by compute."""
    right = compares_times(flops, bytes_moved, peak_flops, peak_bandwidth)
    return right | {"bound": {"compute": "memory", "memory": "compute"}[right["bound"]]}


@exercise.wrong
def nothing_refused(flops, bytes_moved, peak_flops, peak_bandwidth):
    """Zero or negative work, or a machine without speed, has no roofline: ValueError."""
    computing, moving = flops / (peak_flops or 1), bytes_moved / (peak_bandwidth or 1)
    return {"intensity": flops / (bytes_moved or 1), "bound": "compute" if computing >= moving else "memory",
            "seconds": max(computing, moving)}
