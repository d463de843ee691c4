"""The bytes that a decoder keeps of its sources."""
import torch

from ... import expect
from ...exercise import Exercise

exercise = Exercise(
    "cross_kv_bytes", step=12, points=1, minutes=2, difficulty=1, importance=3, tensor=False,
    summary="Bytes of projected K and V, over layers, with beams that share a source or own copies.",
    hints=(
        "How many numbers does one source row leave behind in one layer? Keys and values, every key/value head.",
        "Every layer projects with its own weights, so every layer keeps its own pair.",
        "Beams that share a source keep one pair and an index, which is not counted here. Copies are counted.",
    ),
    hides="D_v = D_qk hides one width used for both; one beam hides beams that always multiply; one layer hides the "
          "number of layers.",
)
SIZES = {  # title: (positional, keywords)
    "B4 S512, 12 heads of 64, 2 bytes, one layer": ((4, 512, 12, 64, 64, 2), {}),
    "the same over six layers": ((4, 512, 12, 64, 64, 2), {"layers": 6}),
    "B2 S7 G4 D_qk5 D_v8, 4 bytes": ((2, 7, 4, 5, 8, 4), {}),
    "the same with 3 shared beams": ((2, 7, 4, 5, 8, 4), {"beams": 3}),
    "the same with 3 physical copies, over two layers": ((2, 7, 4, 5, 8, 4), {"beams": 3, "expanded": True,
                                                                              "layers": 2}),
    "expanded to one beam": ((3, 5, 2, 6, 4, 2), {"expanded": True}),
}
DTYPES = {2: torch.bfloat16, 4: torch.float32}


def oracle(batch, source_len, num_kv_heads, d_qk, d_v, bytes_per_element, layers=1, beams=1, expanded=False):
    """Measured on real tensors: (total, bytes of K alone)."""
    pair = [torch.empty(batch, num_kv_heads, source_len, d, dtype=DTYPES[bytes_per_element]) for d in (d_qk, d_v)]
    if expanded:
        pair = [x.repeat_interleave(beams, 0) for x in pair]
    return layers * sum(x.nbytes for x in pair), layers * pair[0].nbytes


def _case(title, args, kwargs):
    @exercise.case(title)
    def probe(lab):
        got = lab.call("cross_kv_bytes", *args, **kwargs)
        total, keys = oracle(*args, **kwargs)
        expect.true(isinstance(got, int) and not isinstance(got, bool), f"the result is {got!r}, expected an int")
        expect.true(got == total, f"{got:,} bytes; real tensors have {total:,}: K {keys:,}, V {total - keys:,}")


for _title, (_args, _kwargs) in SIZES.items():
    _case(_title, _args, _kwargs)


@exercise.right
def formula(batch, source_len, num_kv_heads, d_qk, d_v, bytes_per_element, layers=1, beams=1, expanded=False):
    rows = batch * source_len * (beams if expanded else 1)
    return rows * num_kv_heads * (d_qk + d_v) * bytes_per_element * layers


@exercise.right
def tensors_without_data(batch, source_len, num_kv_heads, d_qk, d_v, bytes_per_element, layers=1, beams=1,
                         expanded=False):
    rows = batch * beams if expanded else batch
    pair = [torch.empty(rows, num_kv_heads, source_len, d, device="meta") for d in (d_qk, d_v)]
    return sum(x.numel() for x in pair) * bytes_per_element * layers


@exercise.right
def layer_by_layer(batch, source_len, num_kv_heads, d_qk, d_v, bytes_per_element, layers=1, beams=1, expanded=False):
    total = 0
    for _ in range(layers):
        for width in (d_qk, d_v):
            total += batch * num_kv_heads * source_len * width * bytes_per_element
    return total * beams if expanded else total


@exercise.wrong
def keys_only(batch, source_len, num_kv_heads, d_qk, d_v, bytes_per_element, layers=1, beams=1, expanded=False):
    """Two tensors are kept."""
    return formula(batch, source_len, num_kv_heads, d_qk, 0, bytes_per_element, layers, beams, expanded)


@exercise.wrong(id="keys-only")
def values_only(batch, source_len, num_kv_heads, d_qk, d_v, bytes_per_element, layers=1, beams=1, expanded=False):
    return formula(batch, source_len, num_kv_heads, 0, d_v, bytes_per_element, layers, beams, expanded)


@exercise.wrong
def beams_always_multiply(batch, source_len, num_kv_heads, d_qk, d_v, bytes_per_element, layers=1, beams=1,
                          expanded=False):
    """Shared beams keep one source."""
    return formula(batch, source_len, num_kv_heads, d_qk, d_v, bytes_per_element, layers, beams, True)


@exercise.wrong
def one_width_for_both(batch, source_len, num_kv_heads, d_qk, d_v, bytes_per_element, layers=1, beams=1,
                       expanded=False):
    """D_qk and D_v differ."""
    return formula(batch, source_len, num_kv_heads, d_qk, d_qk, bytes_per_element, layers, beams, expanded)


@exercise.wrong(id="one-width-for-both")
def twice_the_values(batch, source_len, num_kv_heads, d_qk, d_v, bytes_per_element, layers=1, beams=1,
                     expanded=False):
    return formula(batch, source_len, num_kv_heads, d_v, d_v, bytes_per_element, layers, beams, expanded)
