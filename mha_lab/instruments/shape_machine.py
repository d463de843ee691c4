"""The shape machine: every tensor of multi-head attention, from the input rows to the output rows.

A plain model over real torch tensors: shapes, strides, offsets and storage sharing are read from tensors
that went through the operations, not from formulas. No widget is imported here.

    >>> machine = ShapeMachine(batch=2, q_len=5, k_len=7, d_model=512, num_heads=8)
    >>> machine.fact("scores").shape
    (2, 8, 5, 7)
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from .shape_text import MAX_ELEMENTS, SPEC

STAGE_IDS = tuple(stage["id"] for stage in SPEC["stages"])


@dataclass(frozen=True)
class TensorFacts:
    """What torch says about one tensor of a stage.

    `strides` and `offset` count elements. `shares_storage` compares with the tensors it was made from
    (None for an input). `macs` are the multiply-accumulates of the step that made it (a softmax has none),
    `weights` and `biases` the parameters of that step; the machine itself runs without biases.
    """

    name: str
    axes: tuple[str, ...]
    op: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    contiguous: bool
    shares_storage: bool | None
    elements: int
    bytes: int
    macs: int
    weights: int
    biases: int


@dataclass(frozen=True)
class Stage:
    """One step of the machine: its tensors, and the wrong ones that a learner might make instead."""

    id: str
    title: str
    explain: str
    tensors: tuple[TensorFacts, ...]
    wrong: tuple[TensorFacts, ...]


class ShapeMachine:
    """Multi-head attention as a sequence of shapes.

    Sizes: `batch` B, `q_len` T, `k_len` S, `d_model` M, `num_heads` H, `d_v` D_v (None: as wide as
    D = M / H). With `cross=False` the source is the target: S follows T and `k_len` is not used.

    Raises ValueError: "positive" for a size that is not a whole number of at least 1, "divisible" when the
    heads cannot share M, "too large" when a tensor would have more than 2**24 elements.
    """

    def __init__(self, batch: int = 2, q_len: int = 5, k_len: int = 7, d_model: int = 12, num_heads: int = 3,
                 d_v: int | None = None, cross: bool = True):
        self.cross = bool(cross)
        self.batch = _positive("batch", batch)
        self.q_len = _positive("q_len", q_len)
        self.k_len = _positive("k_len", k_len) if self.cross else self.q_len
        self.d_model = _positive("d_model", d_model)
        self.num_heads = _positive("num_heads", num_heads)
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model {d_model} is not divisible by num_heads {num_heads}: "
                             f"{self.d_model % self.num_heads} channels would belong to no head")
        self.head_dim = self.d_model // self.num_heads
        self.d_v = self.head_dim if d_v is None else _positive("d_v", d_v)
        largest = max(math.prod(self._sizes_of(tensor["axes"])) for tensor in _all_tensors())
        largest = max(largest, self.d_model * self.d_model, self.d_model * self.num_heads * self.d_v)
        if largest > MAX_ELEMENTS:
            raise ValueError(f"too large: a tensor would have {largest:,} elements, "
                             f"the limit is {MAX_ELEMENTS:,}")

    def __repr__(self) -> str:
        kind = "cross" if self.cross else "self"
        return f"ShapeMachine({kind}, " + ", ".join(f"{k}={v}" for k, v in self.sizes.items()) + ")"

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every axis letter."""
        return {"B": self.batch, "T": self.q_len, "S": self.k_len, "M": self.d_model, "H": self.num_heads,
                "D": self.head_dim, "D_v": self.d_v}

    def stages(self) -> list[Stage]:
        """The ten stages in order, each with its tensors."""
        return list(self._stages)

    def stage(self, stage_id: str) -> Stage:
        """The stage with that id. Raises LookupError for an unknown one."""
        for stage in self._stages:
            if stage.id == stage_id:
                return stage
        raise LookupError(f"no stage {stage_id!r}; there are {', '.join(STAGE_IDS)}")

    def fact(self, name: str) -> TensorFacts:
        """The facts of one tensor, by the name that the shape ledger uses (`q_heads`, `merged`, ...)."""
        facts = {fact.name: fact for stage in self._stages for fact in stage.tensors + stage.wrong}
        if name not in facts:
            raise LookupError(f"no tensor {name!r}; there are {', '.join(facts)}")
        return facts[name]

    def totals(self) -> dict[str, int]:
        """Multiply-accumulates, weights and biases of the whole machine."""
        facts = [fact for stage in self._stages for fact in stage.tensors]
        return {key: sum(getattr(fact, key) for fact in facts) for key in ("macs", "weights", "biases")}

    def to_dict(self) -> dict:
        """All that a view shows, as plain data."""
        return {"cross": self.cross, "sizes": self.sizes, "totals": self.totals(),
                "stages": [asdict(stage) for stage in self._stages]}

    def split_layouts(self, packed: Tensor) -> dict[str, Tensor]:
        """[B,L,H·W] -> the right split in its two steps, and the wrong view: "split", "heads", "wrong"."""
        batch, length, width = packed.shape
        split = packed.view(batch, length, self.num_heads, width // self.num_heads)
        return {"split": split, "heads": split.transpose(1, 2),
                "wrong": packed.view(batch, self.num_heads, length, width // self.num_heads)}

    def merge_layouts(self, heads: Tensor) -> dict[str, Tensor]:
        """[B,H,T,D_v] -> the right merge in its two steps, and the merge without a transpose."""
        batch, num_heads, length, width = heads.shape
        token_major = heads.transpose(1, 2)
        return {"token_major": token_major, "merged": token_major.reshape(batch, length, num_heads * width),
                "merged_wrong": heads.reshape(batch, length, num_heads * width)}

    def origins(self, name: str) -> Tensor:
        """Where each cell of a tensor comes from: same layout operations, but every value is an address.

        For `*_packed`, `*_split`, `*_heads`, `*_wrong` the addresses count the cells of the packed tensor;
        for `head_output`, `token_major`, `merged`, `merged_wrong` those of `head_output`;
        for the rest its own.
        """
        letter, _, step = name.partition("_")
        if letter in ("q", "k", "v") and step in ("split", "heads", "wrong"):
            return self.split_layouts(_addresses(self.fact(f"{letter}_packed").shape))[step]
        if name in ("token_major", "merged", "merged_wrong"):
            return self.merge_layouts(_addresses(self.fact("head_output").shape))[name]
        return _addresses(self.fact(name).shape)

    def figure(self, stage: str = "heads", tensor: str = "q", head: int = 0) -> dict:
        """The picture of a stage as plain data; see `figures.figure`."""
        from .figures import figure

        return figure(self, stage, tensor, head)

    def svg(self, stage: str | None = None, tensor: str = "q", head: int | None = None) -> str:
        """A static SVG: one stage, or (None) the whole ledger above the right and the wrong split."""
        from .static import shape_machine_svg

        return shape_machine_svg(self, stage, tensor, head)

    def alt(self, stage: str | None = None, tensor: str = "q", head: int | None = None) -> str:
        """What the picture of `svg` says, in words."""
        from .static import shape_machine_alt

        return shape_machine_alt(self, stage, tensor, head)

    def view(self, stage: str | None = None, tensor: str = "q", head: int | None = None, still_key: str = ""):
        """The live widget over this machine. Raises ImportError without anywidget."""
        from .view import ShapeMachineView

        return ShapeMachineView(self, stage=stage, tensor=tensor, head=head, still_key=still_key)

    def _sizes_of(self, axes: list[str]) -> tuple[int, ...]:
        return tuple(math.prod(self.sizes[letter] for letter in axis.split("·")) for axis in axes)

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        tensors = self._forward()
        macs, weights, biases = self._costs()

        def facts(spec: dict) -> TensorFacts:
            name, tensor = spec["name"], tensors[spec["name"]]
            parents = [tensors[parent] for parent in spec["parents"]]
            return TensorFacts(
                name=name, axes=tuple(spec["axes"]), op=spec["op"], shape=tuple(tensor.shape),
                strides=tensor.stride(), offset=tensor.storage_offset(), contiguous=tensor.is_contiguous(),
                shares_storage=any(_same_storage(tensor, parent) for parent in parents) if parents else None,
                elements=tensor.numel(), bytes=tensor.numel() * tensor.element_size(),
                macs=macs.get(name, 0), weights=weights.get(name, 0), biases=biases.get(name, 0))

        return tuple(Stage(spec["id"], spec["title"], spec["explain"],
                           tuple(map(facts, spec["tensors"])), tuple(map(facts, spec["wrong"])))
                     for spec in SPEC["stages"])

    @torch.no_grad()
    def _forward(self) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float32)

        query = draw(self.batch, self.q_len, self.d_model)
        source = draw(self.batch, self.k_len, self.d_model) if self.cross else query
        inputs = {"q": ("query_in", query, self.head_dim), "k": ("key_in", source, self.head_dim),
                  "v": ("value_in", source, self.d_v)}
        made = {name: tensor for name, tensor, _ in inputs.values()}
        for letter, (_, tensor, width) in inputs.items():
            packed = F.linear(tensor, draw(self.num_heads * width, self.d_model))
            made[f"{letter}_packed"] = packed
            made |= {f"{letter}_{step}": value for step, value in self.split_layouts(packed).items()}
        made["scores"] = made["q_heads"] @ made["k_heads"].transpose(-2, -1) / math.sqrt(self.head_dim)
        made["probabilities"] = torch.softmax(made["scores"], dim=-1)
        made["head_output"] = made["probabilities"] @ made["v_heads"]
        made |= self.merge_layouts(made["head_output"])
        made["output"] = F.linear(made["merged"], draw(self.d_model, self.num_heads * self.d_v))
        return made

    def _costs(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        size = self.sizes
        packed, values = size["H"] * size["D"], size["H"] * size["D_v"]
        pairs = size["B"] * size["H"] * size["T"] * size["S"]
        weights = {"q_packed": size["M"] * packed, "k_packed": size["M"] * packed,
                   "v_packed": size["M"] * values, "output": values * size["M"]}
        biases = {"q_packed": packed, "k_packed": packed, "v_packed": values, "output": size["M"]}
        rows = {"q_packed": size["T"], "k_packed": size["S"], "v_packed": size["S"], "output": size["T"]}
        macs = {name: size["B"] * rows[name] * weights[name] for name in weights}
        return macs | {"scores": pairs * size["D"], "head_output": pairs * size["D_v"]}, weights, biases


def divisors(number: int) -> list[int]:
    """The whole numbers that divide `number`, ascending: the head counts that a width of M allows."""
    return [count for count in range(1, number + 1) if number % count == 0]


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, got {value!r}")
    return value


def _all_tensors() -> list[dict]:
    return [tensor for stage in SPEC["stages"] for tensor in stage["tensors"]]


def _addresses(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(math.prod(shape)).view(shape)


def _same_storage(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


shape_tape = ShapeMachine
