"""The bytes of a whole model's cache."""
import torch

from ... import expect
from ...exercise import Exercise

NAME = "kv_cache_bytes"
exercise = Exercise(
    NAME, step=5, points=1, minutes=3, difficulty=2, importance=5, tensor=False,
    summary="The bytes that the cached keys and values of a model take.",
    hints=(
        "Describe what one layer keeps for one token: how many heads, how many tensors, how wide is each?",
        "A configuration may name the head width. When it does not, which two of its numbers give it?",
        "Multiply what one token keeps in one layer by everything that repeats it. Values can have a width of their "
        "own.",
    ),
    hides="head_dim = hidden/heads hides a width that was made up; G = H hides query heads that were counted; D_v = D "
          "hides which of the two was doubled; one layer and one sample hide forgotten factors.",
)
QWEN = {"layers": 28, "hidden": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128}
DEEP = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8}
CASES = {
    "80 layers, 8 key/value heads, 2,048 tokens: 0.625 GiB": (DEEP, 1, 2048, 2),
    "the same with 64 key/value heads: 5 GiB": (DEEP | {"kv_heads": 64}, 1, 2048, 2),
    "a given head width: Qwen3-0.6B, 2 sequences of 1,000 tokens": (QWEN, 2, 1000, 2),
    "values wider than keys: 3 layers, D5, D_v7, 4 bytes": (
        {"layers": 3, "hidden": 20, "heads": 12, "kv_heads": 3, "head_dim": 5, "v_head_dim": 7}, 2, 9, 4),
    "values narrower than keys, keys of the default width: D6, D_v2": (
        {"layers": 2, "hidden": 24, "heads": 4, "kv_heads": 2, "v_head_dim": 2}, 3, 5, 4),
    "one key/value head, float64": (
        {"layers": 5, "hidden": 12, "heads": 4, "kv_heads": 1}, 3, 7, 8),
}


def oracle(config, batch, length, bytes_per_element=2):
    """`nbytes` of tensors without data, layer by layer."""
    width = config.get("head_dim") or config["hidden"] // config["heads"]
    kind = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[bytes_per_element]
    with torch.device("meta"):
        kept = [torch.empty(batch, config["kv_heads"], length, w, dtype=kind) for _ in range(config["layers"])
                for w in (width, config.get("v_head_dim", width))]
    return sum(t.nbytes for t in kept)


def _case(title, config, batch, length, size):
    @exercise.case(title)
    def probe(lab):
        default = () if size == 2 else (size,)
        got, want = lab.call(NAME, config, batch, length, *default), oracle(config, batch, length, size)
        shown = f"{got:,}" if isinstance(got, (int, float)) and not isinstance(got, bool) else repr(got)[:60]
        token = want // (batch * length * config["layers"])
        expect.true(isinstance(got, (int, float)) and not isinstance(got, bool) and got == want,
                    f"{NAME}({config}, {batch}, {length}{', ' if default else ''}{', '.join(map(str, default))}) is "
                    f"{shown} bytes, expected {want:,}: {token:,} a token and layer, {config['layers']} layers, "
                    f"{batch} × {length} tokens")


for _title, _args in CASES.items():
    _case(_title, *_args)


def _widths(config):
    width = config.get("head_dim", config["hidden"] // config["heads"])
    return width, config.get("v_head_dim", width)


def _repeats(config, batch, length, bytes_per_element):
    return batch * length * config["layers"] * bytes_per_element


@exercise.right
def formula(config, batch, length, bytes_per_element=2):
    return _repeats(config, batch, length, bytes_per_element) * config["kv_heads"] * sum(_widths(config))


@exercise.right
def meta_tensors(config, batch, length, bytes_per_element=2):
    elements = [torch.empty(batch, config["kv_heads"], length, w, device="meta").numel() for w in _widths(config)]
    return sum(elements) * config["layers"] * bytes_per_element


@exercise.right
def head_by_head(config, batch, length, bytes_per_element=2):
    d, d_v = _widths(config)
    total = 0
    for _ in range(config["layers"] * config["kv_heads"]):
        total += length * d * bytes_per_element + length * d_v * bytes_per_element
    return total * batch


@exercise.wrong
def query_heads_counted(config, batch, length, bytes_per_element=2):
    """The cache holds G heads."""
    return _repeats(config, batch, length, bytes_per_element) * config["heads"] * sum(_widths(config))


@exercise.wrong(id="query-heads-counted")
def model_width_twice(config, batch, length, bytes_per_element=2):
    return 2 * _repeats(config, batch, length, bytes_per_element) * config["hidden"]


@exercise.wrong
def keys_only(config, batch, length, bytes_per_element=2):
    """Values are cached too."""
    return _repeats(config, batch, length, bytes_per_element) * config["kv_heads"] * _widths(config)[0]


@exercise.wrong(id="keys-only")
def values_only(config, batch, length, bytes_per_element=2):
    return _repeats(config, batch, length, bytes_per_element) * config["kv_heads"] * _widths(config)[1]


@exercise.wrong
def head_dim_from_hidden(config, batch, length, bytes_per_element=2):
    """hidden/H is only a default: a configuration that names head_dim means it."""
    d = config["hidden"] // config["heads"]
    return _repeats(config, batch, length, bytes_per_element) * config["kv_heads"] * (d + config.get("v_head_dim", d))


@exercise.wrong(id="head-dim-from-hidden")
def for_keys_and_values(config, batch, length, bytes_per_element=2):
    return 2 * _repeats(config, batch, length, bytes_per_element) * config["kv_heads"] * (
        config["hidden"] // config["heads"])


@exercise.wrong(id="head-dim-from-hidden")
def shared_out_over_kv_heads(config, batch, length, bytes_per_element=2):
    d = config.get("head_dim", config["hidden"] // config["kv_heads"])
    return _repeats(config, batch, length, bytes_per_element) * config["kv_heads"] * (d + config.get("v_head_dim", d))


@exercise.wrong
def one_width_for_both(config, batch, length, bytes_per_element=2):
    """v_head_dim was not read: values may be wider or narrower than keys."""
    return 2 * _repeats(config, batch, length, bytes_per_element) * config["kv_heads"] * _widths(config)[0]


@exercise.wrong
def one_layer(config, batch, length, bytes_per_element=2):
    """Every layer has a cache of its own."""
    return formula(config | {"layers": 1}, batch, length, bytes_per_element)


@exercise.wrong
def elements_not_bytes(config, batch, length, bytes_per_element=2):
    """Elements were counted; each takes bytes_per_element bytes."""
    return formula(config, batch, length, 1)


@exercise.wrong(id="elements-not-bytes")
def always_two_bytes(config, batch, length, bytes_per_element=2):
    return formula(config, batch, length, 2)
