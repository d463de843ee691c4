"""Which calls of nn.MultiheadAttention take the inference fast path; asked of the installed framework itself."""
from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from ...worker.counting import Counter

exercise = Exercise(
    "fastpath_eligible", step=1, points=3, minutes=6, difficulty=3, importance=3,
    summary="Predict from facts about an nn.MultiheadAttention call whether it takes the inference fast path.",
    hints=(
        "Write the list of conditions as a table, one line each: a name, and whether the facts of this call break it. "
        "What is eligible, once the table stands?",
        "The framework asks for one object, `query is key`, not for equal numbers. It asks whether autograd would "
        "record the call, which evaluation mode alone does not settle.",
        "Some facts look as if they mattered and do not: a boolean mask, weights that are asked for, a dropout that "
        "evaluation does not apply, autocast for the CPU.",
    ),
    tensor=False,
    hides="Every call with an even head count, biases and no gradients hides three of the rules; masks of one kind "
          "hide the fourth.",
)


@dataclass(frozen=True)
class Facts:
    embed_dim: int = 12
    num_heads: int = 4
    bias: bool = True
    kdim: int | None = None
    vdim: int | None = None
    add_bias_kv: bool = False
    add_zero_attn: bool = False
    batch_first: bool = True
    dropout: float = 0.0
    training: bool = False
    parameters_require_grad: bool = True
    query_key_value: str = "one object"
    axes: int = 3
    input_requires_grad: bool = False
    grad_enabled: bool = False
    cpu_autocast: bool = False
    key_padding_mask: str | None = None
    attn_mask: str | None = None
    need_weights: bool = True
    fastpath_enabled: bool = True


@cache
def observed(facts: Facts) -> bool:
    """Whether the operator `_native_multi_head_attention` runs when this call is really made."""
    module = nn.MultiheadAttention(facts.embed_dim, facts.num_heads, facts.dropout, facts.bias, facts.add_bias_kv,
                                   facts.add_zero_attn, facts.kdim, facts.vdim, facts.batch_first)
    module.train(facts.training).requires_grad_(facts.parameters_require_grad)
    query = torch.randn(5, facts.embed_dim) if facts.axes == 2 else torch.randn(5, 5, facts.embed_dim)
    query.requires_grad_(facts.input_requires_grad)
    if facts.query_key_value == "one object":
        key = value = query
    else:
        make = torch.clone if facts.query_key_value == "equal values" else torch.randn_like
        key, value = (make(query if width is None else query.new_empty(*query.shape[:-1], width))
                      for width in (facts.kdim, facts.vdim))

    def mask(kind, *shape):
        return kind and torch.zeros(shape, dtype=torch.bool if kind == "bool" else torch.float32)

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(facts.fastpath_enabled)
    autocast = torch.autocast("cpu") if facts.cpu_autocast else contextlib.nullcontext()
    try:
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(facts.grad_enabled), autocast, \
                Counter() as counter:
            module(query, key, value, need_weights=facts.need_weights, attn_mask=mask(facts.attn_mask, 5, 5),
                   key_padding_mask=mask(facts.key_padding_mask, *query.shape[:-1]))
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    return counter.operators["_native_multi_head_attention"] > 0


def _said(got: Any) -> tuple[bool, list[str]]:
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not isinstance(got[0], bool) \
            or not isinstance(got[1], (tuple, list)) or not all(isinstance(r, str) for r in got[1]):
        raise Mismatch(f"the result is {got!r}, expected (eligible, reasons): a bool and a list of names")
    return got[0], list(got[1])


def _try(lab, *reasons: str, **changes):
    """One call: the framework says whether, the contract says why."""
    facts = Facts(**changes)
    runs = observed(facts)
    eligible, named = _said(lab.call("fastpath_eligible", asdict(facts)))
    call = ", ".join(f"{k}={v!r}" for k, v in changes.items()) or "the plain call"
    if eligible != runs:
        raise Mismatch(f"{call}: you say {'eligible' if eligible else 'not eligible'}; when the call is made, "
                       f"_native_multi_head_attention {'runs' if runs else 'does not run'}")
    expect.equal(named, sorted(reasons), f"the reasons for {call}")


@exercise.case("the plain call takes it")
def plain(lab):
    _try(lab)


def both_ways(title, *calls):
    @exercise.case(title)
    def tried(lab):
        for reasons, changes in calls:
            _try(lab, *reasons, **changes)


both_ways("query, key and value: one object, equal clones, different tensors",
          (["not-self"], {"query_key_value": "equal values"}), (["not-self"], {"query_key_value": "different"}),
          ([], {"embed_dim": 24, "num_heads": 2}))
both_ways("head counts", (["odd-heads"], {"num_heads": 3}), ([], {"num_heads": 2}), (["odd-heads"], {"num_heads": 1}),
          ([], {"num_heads": 6}))
both_ways("with and without biases", (["bias"], {"bias": False}), ([], {"bias": True, "embed_dim": 16}))
both_ways("autograd: who needs a gradient, and whether anybody records",
          (["autograd"], {"grad_enabled": True}),
          ([], {"grad_enabled": True, "parameters_require_grad": False}),
          (["autograd"], {"grad_enabled": True, "parameters_require_grad": False, "input_requires_grad": True}),
          (["autograd"], {"grad_enabled": True, "input_requires_grad": True}),
          ([], {"input_requires_grad": True}), ([], {"parameters_require_grad": False}))
both_ways("masks, boolean and additive",
          ([], {"attn_mask": "bool"}), ([], {"key_padding_mask": "bool"}),
          ([], {"attn_mask": "bool", "key_padding_mask": "bool"}),
          (["float-mask"], {"attn_mask": "float"}), (["float-mask"], {"key_padding_mask": "float"}),
          (["float-mask"], {"attn_mask": "float", "key_padding_mask": "float"}))
both_ways("weights that are asked for, and not",
          ([], {"need_weights": False}), ([], {"need_weights": True, "attn_mask": "bool"}))
both_ways("unbatched inputs", (["unbatched"], {"axes": 2}))
both_ways("training, and a dropout that evaluation does not apply",
          (["training"], {"training": True}), (["training"], {"training": True, "dropout": 0.25}),
          ([], {"dropout": 0.25}))
both_ways("the sequence first", (["batch-first"], {"batch_first": False}))
both_ways("extra keys", (["bias-kv"], {"add_bias_kv": True}), (["zero-attention"], {"add_zero_attn": True}))
both_ways("switched off", (["switched-off"], {"fastpath_enabled": False}))
both_ways("autocast on the CPU", ([], {"cpu_autocast": True}))


@exercise.case("widths of keys and values", CONTRACT)
def widths(lab):
    _try(lab, "not-self", "widths", kdim=10, query_key_value="different")
    _try(lab, "not-self", "widths", vdim=14, query_key_value="different")
    _try(lab, "not-self", "widths", kdim=10, vdim=10, query_key_value="different")
    _try(lab, kdim=12, vdim=12)


@exercise.case("all reasons at once, sorted", CONTRACT)
def several(lab):
    _try(lab, "autograd", "training", training=True, grad_enabled=True)
    _try(lab, "batch-first", "bias", "bias-kv", "float-mask", "not-self", "odd-heads", "switched-off", "unbatched",
         "zero-attention", batch_first=False, bias=False, add_bias_kv=True, attn_mask="float", num_heads=3, axes=2,
         query_key_value="equal values", fastpath_enabled=False, add_zero_attn=True)


RULES = {
    "autograd": lambda c: c["grad_enabled"] and (c["parameters_require_grad"] or c["input_requires_grad"]),
    "batch-first": lambda c: not c["batch_first"],
    "bias": lambda c: not c["bias"],
    "bias-kv": lambda c: c["add_bias_kv"],
    "float-mask": lambda c: c["attn_mask"] == "float" or c["key_padding_mask"] == "float",
    "not-self": lambda c: c["query_key_value"] != "one object",
    "odd-heads": lambda c: c["num_heads"] % 2 != 0,
    "switched-off": lambda c: not c["fastpath_enabled"],
    "training": lambda c: c["training"],
    "unbatched": lambda c: c["axes"] == 2,
    "widths": lambda c: any(w not in (None, c["embed_dim"]) for w in (c["kdim"], c["vdim"])),
    "zero-attention": lambda c: c["add_zero_attn"],
}


def by_rules(**changed):
    """The rule list with some rules replaced, or left out (None)."""
    rules = {name: rule for name, rule in (RULES | changed).items() if rule}

    def program(call):
        reasons = sorted(name for name, rule in rules.items() if rule(call))
        return not reasons, reasons
    return program


@exercise.right
def a_table_of_predicates(call):
    return by_rules()(call)


@exercise.right
def a_chain_of_ifs(call):
    c, reasons = call, []
    if c["add_zero_attn"]:
        reasons += ["zero-attention"]
    if c["kdim"] not in (None, c["embed_dim"]) or c["vdim"] not in (None, c["embed_dim"]):
        reasons += ["widths"]
    if c["axes"] < 3:
        reasons += ["unbatched"]
    if c["training"]:
        reasons += ["training"]
    if not c["fastpath_enabled"]:
        reasons += ["switched-off"]
    if c["num_heads"] & 1:
        reasons += ["odd-heads"]
    if c["query_key_value"] != "one object":
        reasons += ["not-self"]
    if "float" in [c["attn_mask"], c["key_padding_mask"]]:
        reasons += ["float-mask"]
    if c["add_bias_kv"]:
        reasons += ["bias-kv"]
    if not c["bias"]:
        reasons += ["bias"]
    if not c["batch_first"]:
        reasons += ["batch-first"]
    if c["grad_enabled"] and max(c["parameters_require_grad"], c["input_requires_grad"]):
        reasons += ["autograd"]
    return (len(reasons) == 0), tuple(reversed(reasons))


@exercise.right
def asks_the_framework(call):
    """Makes the call; each reason is a group of facts that forbids the path when all others are plain."""
    groups = {"autograd": ("grad_enabled", "parameters_require_grad", "input_requires_grad"),
              "batch-first": ("batch_first",), "bias": ("bias",), "bias-kv": ("add_bias_kv",),
              "float-mask": ("attn_mask", "key_padding_mask"), "not-self": ("query_key_value",),
              "odd-heads": ("num_heads",), "switched-off": ("fastpath_enabled",), "training": ("training",),
              "unbatched": ("axes",), "zero-attention": ("add_zero_attn",)}
    reasons = [name for name, keys in groups.items()
               if not observed(Facts(embed_dim=call["embed_dim"], **{k: call[k] for k in keys}))]
    if {call["kdim"], call["vdim"]} - {None, call["embed_dim"]}:
        reasons.append("widths")
    return observed(Facts(**call)), sorted(reasons)


@exercise.wrong
def equal_values_suffice(call):
    """Clones with equal values are not the same object, and the framework asks for the same object."""
    return by_rules(**{"not-self": lambda c: c["query_key_value"] == "different"})(call)


@exercise.wrong
def odd_heads_accepted(call):
    """The head count must be even."""
    return by_rules(**{"odd-heads": None})(call)


@exercise.wrong
def bias_free_accepted(call):
    """Without in_proj_bias the call does not take the fast path."""
    return by_rules(bias=None)(call)


@exercise.wrong
def float_mask_accepted(call):
    """Only boolean masks qualify; an additive one goes the ordinary way."""
    return by_rules(**{"float-mask": None})(call)


@exercise.wrong(id="float-mask-accepted")
def float_padding_accepted(call):
    return by_rules(**{"float-mask": lambda c: c["attn_mask"] == "float"})(call)


@exercise.wrong(id="float-mask-accepted")
def float_attention_mask_accepted(call):
    return by_rules(**{"float-mask": lambda c: c["key_padding_mask"] == "float"})(call)


@exercise.wrong
def weights_forbid(call):
    """Asking for weights does not by itself forbid the fast path: it is the ordinary path that cares."""
    return by_rules(weights=lambda c: c["need_weights"])(call)


@exercise.recognise("weights-forbid")
def plain_call_refused_for_its_weights(trials):
    """The one reason too many may have any name: eligible exactly when nothing is asked for and no rule is broken."""
    seen = [o.value for t in trials if t.case.title.startswith("weights that") for o in t.transcript]
    return bool(seen) and isinstance(seen[0], (tuple, list)) and seen[0][0] is True and not trials[0].passed


@exercise.wrong
def eval_suffices(call):
    """Evaluation mode alone does not switch autograd off: with grad mode on and trainable weights the call is
    recorded, and the fast path is out."""
    return by_rules(autograd=None)(call)


@exercise.wrong(id="eval-suffices")
def weights_forgotten(call):
    return by_rules(autograd=lambda c: c["grad_enabled"] and c["input_requires_grad"])(call)


@exercise.wrong
def unbatched_accepted(call):
    """Three axes are needed; an unbatched input goes the ordinary way."""
    return by_rules(unbatched=None)(call)
