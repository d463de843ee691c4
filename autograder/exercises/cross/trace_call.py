"""Four calls, one primitive: who owns the rows, the columns, the mask and the result."""
import torch

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch

exercise = Exercise(
    "trace_call", step=7, points=2, minutes=4, difficulty=2, importance=4, tensor=False,
    summary="Owners and shapes of the four attention calls of an encoder-decoder.",
    hints=(
        "For each call ask four questions: whose rows become queries? Whose become keys and values? Whose order or "
        "validity decides who may look? Whose rows come out?",
        "In a cross call the columns are source rows, so their validity decides. A causal triangle relates target rows "
        "to target rows.",
        "A step of decoding has one query row. Its keys are as many as the source has rows.",
    ),
    hides="T = S hides which of the two lengths a shape carries; T = 1 hides that a decode step has one row.",
)
KINDS = ("encoder_self", "decoder_self", "training_cross", "decode_cross")
OWNERS = {"encoder_self": ("source", "source", "source_validity", "source"),
          "decoder_self": ("target", "target", "target_causal", "target"),
          "training_cross": ("target", "source", "source_validity", "target"),
          "decode_cross": ("target", "source", "source_validity", "target")}
ROLES = ("query", "key_value", "visibility", "output")
AXES = {"query_in": "B,Q,M", "key_value_in": "B,K,M", "q_heads": "B,H,Q,D_qk", "k_heads": "B,H,K,D_qk",
        "v_heads": "B,H,K,D_v", "probabilities": "B,H,Q,K", "head_output": "B,H,Q,D_v", "merged": "B,Q,H·D_v",
        "output": "B,Q,M"}
SIZES, SQUARE, PAPER = (2, 5, 7, 3, 4, 6, 10), (3, 6, 6, 3, 4, 4, 12), (2, 5, 7, 8, 64, 64, 512)


def oracle(kind, batch, target_len, source_len, num_heads, d_qk, d_v, d_model):
    """Owners from the table; shapes recorded from a call on zeros."""
    owners = dict(zip(ROLES, OWNERS[kind], strict=True))
    rows = {"source": source_len, "target": target_len}
    query = torch.zeros(batch, rows[owners["query"]], d_model)
    query = query[:, -1:] if kind == "decode_cross" else query
    memory = torch.zeros(batch, rows[owners["key_value"]], d_model)
    q, k, v = ((x @ torch.zeros(d_model, num_heads * d)).unflatten(-1, (num_heads, d)).transpose(1, 2)
               for x, d in ((query, d_qk), (memory, d_qk), (memory, d_v)))
    p = (q @ k.mT).softmax(-1)
    merged = (p @ v).transpose(1, 2).flatten(2)
    stages = query, memory, q, k, v, p, p @ v, merged, merged @ torch.zeros(num_heads * d_v, d_model)
    return {"owners": owners, "shapes": {n: tuple(t.shape) for n, t in zip(AXES, stages, strict=True)}}


def _check(lab, kind, sizes):
    got, want = lab.call("trace_call", kind, *sizes), oracle(kind, *sizes)
    expect.true(isinstance(got, dict), f"the result is a {type(got).__name__}, expected a dict")
    for part, wanted in want.items():
        here = got.get(part)
        expect.true(isinstance(here, dict), f"the result has no dict under \"{part}\"")
        missing = [k for k in wanted if k not in here]
        expect.true(not missing, f"{part} has no {', '.join(missing)}")
        for key, value in wanted.items():
            mine = tuple(here[key]) if isinstance(here[key], (list, tuple)) else here[key]
            if mine != value:
                axes = f", axes [{AXES[key]}]" if part == "shapes" else ""
                raise Mismatch(f"{kind}: the {part[:-1]} of {key} is {here[key]!r}, expected {value!r}{axes}")


def _case(kind):
    @exercise.case(f"{kind}: B2, 5 target rows, 7 source rows, H3, D_qk 4, D_v 6, M10")
    def probe(lab):
        _check(lab, kind, SIZES)


for _kind in KINDS:
    _case(_kind)


@exercise.case("6 rows on both sides, where only the owners differ")
def square(lab):
    for kind in KINDS:
        _check(lab, kind, SQUARE)


@exercise.case("B2 T5 S7 M512 H8", CONTRACT)
def paper(lab):
    for kind in KINDS:
        _check(lab, kind, PAPER)


@exercise.case("refuses a kind that does not exist", CONTRACT)
def refuses(lab):
    lab.raises(ValueError, "kind", "trace_call", "encoder_cross", *SIZES)


def _known(kind):
    if kind not in KINDS:
        raise ValueError(f"kind has to be one of {KINDS}")


def _shapes(q, k, batch, num_heads, d_qk, d_v, d_model):
    return {"query_in": (batch, q, d_model), "key_value_in": (batch, k, d_model),
            "q_heads": (batch, num_heads, q, d_qk), "k_heads": (batch, num_heads, k, d_qk),
            "v_heads": (batch, num_heads, k, d_v), "probabilities": (batch, num_heads, q, k),
            "head_output": (batch, num_heads, q, d_v),
            "merged": (batch, q, num_heads * d_v), "output": (batch, q, d_model)}


@exercise.right
def literals(kind, batch, target_len, source_len, num_heads, d_qk, d_v, d_model):
    _known(kind)
    q = {"encoder_self": source_len, "decode_cross": 1}.get(kind, target_len)
    k = target_len if kind == "decoder_self" else source_len
    return {"owners": dict(zip(ROLES, OWNERS[kind], strict=True)),
            "shapes": _shapes(q, k, batch, num_heads, d_qk, d_v, d_model)}


@exercise.right
def from_a_real_call(kind, batch, target_len, source_len, num_heads, d_qk, d_v, d_model):
    _known(kind)
    streams = {"source": torch.zeros(batch, source_len, d_model), "target": torch.zeros(batch, target_len, d_model)}
    query, key_value, visibility, output = OWNERS[kind]
    rows = streams[query][:, -1:] if kind.startswith("decode_") else streams[query]
    memory = streams[key_value]
    q = torch.einsum("bqm,hdm->bhqd", rows, torch.zeros(num_heads, d_qk, d_model))
    k = torch.einsum("bkm,hdm->bhkd", memory, torch.zeros(num_heads, d_qk, d_model))
    v = torch.einsum("bkm,hdm->bhkd", memory, torch.zeros(num_heads, d_v, d_model))
    p = torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1)
    o = torch.einsum("bhqk,bhkd->bhqd", p, v)
    packed = o.transpose(1, 2).reshape(batch, -1, num_heads * d_v)
    out = packed @ torch.zeros(num_heads * d_v, d_model)
    return {"owners": {"query": query, "key_value": key_value, "visibility": visibility, "output": output},
            "shapes": {"query_in": list(rows.shape), "key_value_in": memory.shape, "q_heads": q.shape,
                       "k_heads": k.shape, "v_heads": v.shape, "probabilities": p.shape, "head_output": o.shape,
                       "merged": packed.shape, "output": out.shape}}


@exercise.right
def match_statement(kind, batch, target_len, source_len, num_heads, d_qk, d_v, d_model):
    match kind:
        case "encoder_self":
            rows, owner, columns, mask = source_len, "source", ("source", source_len), "source_validity"
        case "decoder_self":
            rows, owner, columns, mask = target_len, "target", ("target", target_len), "target_causal"
        case "training_cross" | "decode_cross":
            rows, owner, columns, mask = target_len, "target", ("source", source_len), "source_validity"
            rows = rows if kind == "training_cross" else 1
        case _:
            raise ValueError(f"no such kind: {kind}")
    return {"owners": {"query": owner, "key_value": columns[0], "visibility": mask, "output": owner},
            "shapes": _shapes(rows, columns[1], batch, num_heads, d_qk, d_v, d_model)}


@exercise.wrong
def decode_has_target_length(kind, batch, target_len, source_len, num_heads, d_qk, d_v, d_model):
    """A decode step has one query row."""
    right = literals(kind, batch, target_len, source_len, num_heads, d_qk, d_v, d_model)
    if kind == "decode_cross":
        right["shapes"] = _shapes(target_len, source_len, batch, num_heads, d_qk, d_v, d_model)
    return right


def _owned_by_source(name, shapes, kinds):
    def program(kind, batch, target_len, source_len, num_heads, d_qk, d_v, d_model):
        right = literals(kind, batch, target_len, source_len, num_heads, d_qk, d_v, d_model)
        if kind in kinds:
            right["owners"]["output"] = "source"
            if shapes:
                right["shapes"]["output"] = (batch, source_len, d_model)
        return right
    program.__name__ = name
    if not exercise.wrongs or exercise.wrongs[-1].id != "output-owned-by-source":
        program.__doc__ = "Output rows belong to the query owner."
    exercise.wrong(program, id="output-owned-by-source")


_owned_by_source("output_named_after_the_source", False, ("training_cross", "decode_cross"))
_owned_by_source("output_as_long_as_the_source", True, ("training_cross", "decode_cross"))
_owned_by_source("output_of_training_as_long_as_the_source", True, ("training_cross",))
_owned_by_source("output_of_training_named_after_the_source", False, ("training_cross",))


def _causal(name, kinds):
    def program(kind, *sizes):
        right = literals(kind, *sizes)
        if kind in kinds:
            right["owners"]["visibility"] = "target_causal"
        return right
    program.__name__ = name
    if name == "both":
        program.__doc__ = "Source validity owns the mask of a cross call."
    exercise.wrong(program, id="causal-for-cross")


_causal("both", ("training_cross", "decode_cross"))
_causal("training_only", ("training_cross",))
_causal("decoding_only", ("decode_cross",))
