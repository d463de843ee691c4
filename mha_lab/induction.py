"""Given to session 08: a real, small experiment about heads. It trains in seconds on one CPU core.

Sequences repeat a block of random tokens, A B C ... A B C ..., with a length of block that changes from sequence to
sequence. Only a model that finds the earlier A and reads what followed it can predict the second B. Two attention
layers can (Elhage et al. 2021, Olsson et al. 2022), without MLP and without layer norm.

Letters: N sequences, T positions, V vocabulary, L layers, H heads, D head width, M model width.
"""
import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

Head = tuple[int, int]
SPLIT_SEEDS = {"train": 1, "calibration": 2, "validation": 3, "test": 4}


@dataclass(frozen=True)
class Setup:
    """Sizes of the model, of the data and of the training."""

    layers: int = 2
    heads: int = 4
    head_width: int = 8
    width: int = 32
    vocabulary: int = 24
    length: int = 28
    shortest: int = 6
    longest: int = 12
    batch: int = 32
    steps: int = 500
    learning_rate: float = 0.01


class Layer(nn.Module):
    """Causal self-attention without biases; positions enter queries and keys only."""

    def __init__(self, setup: Setup):
        super().__init__()
        self.heads, inner = setup.heads, setup.heads * setup.head_width
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(setup.width, inner, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(inner, setup.width, bias=False)

    def forward(self, x: Float[Tensor, "N T M"], positions: Float[Tensor, "T M"],
                gates: Float[Tensor, "*N H"] | None = None) -> tuple[Tensor, Tensor]:
        """x: [N,T,M]. gates: [H] or [N,H], in front of W_O. Returns (what the layer adds, probabilities [N,H,T,T])."""
        rows = self.q_proj(x + positions), self.k_proj(x + positions), self.v_proj(x)
        q, k, v = (r.unflatten(-1, (self.heads, -1)).transpose(1, 2) for r in rows)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(later, -torch.inf)
        probabilities = scores.softmax(-1)
        heads = probabilities @ v
        if gates is not None:
            heads = heads * gates[..., :, None, None]
        return self.o_proj(heads.transpose(1, 2).flatten(2)), probabilities


class AttentionOnly(nn.Module):
    """Embedding, L attention layers on a residual stream, and a map to the vocabulary."""

    def __init__(self, setup: Setup):
        super().__init__()
        self.setup = setup
        self.tokens = nn.Embedding(setup.vocabulary, setup.width)
        self.positions = nn.Embedding(setup.length, setup.width)
        self.layers = nn.ModuleList(Layer(setup) for _ in range(setup.layers))
        self.unembed = nn.Linear(setup.width, setup.vocabulary, bias=False)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.5)

    def forward(self, tokens: Int[Tensor, "N T"],
                gates: Float[Tensor, "*N L H"] | None = None) -> tuple[Tensor, list[Tensor]]:
        """tokens: [N,T]. gates: [L,H], or [N,L,H]. Returns (logits [N,T,V], probabilities [N,H,T,T] of each layer)."""
        x, maps = self.tokens(tokens), []
        for number, layer in enumerate(self.layers):
            added, probabilities = layer(x, self.positions.weight[:tokens.shape[1]],
                                         None if gates is None else gates[..., number, :])
            x = x + added
            maps.append(probabilities)
        return self.unembed(x), maps


@dataclass(frozen=True)
class Sequences:
    """tokens: [N,T+1], one more than the model reads. period: [N], the length of each one's block."""

    tokens: Int[Tensor, "N T1"]
    period: Int[Tensor, "N"]

    @property
    def repeated(self) -> Bool[Tensor, "N T"]:
        """Where the next token can be known: it has been seen one period before."""
        places = torch.arange(1, self.tokens.shape[1])
        return places >= self.period[:, None]


def sequences(setup: Setup, number: int, generator: torch.Generator) -> Sequences:
    """Fresh sequences. The tokens of a block differ from each other."""
    order = torch.rand(number, setup.vocabulary, generator=generator).argsort(1)
    period = torch.randint(setup.shortest, setup.longest + 1, (number,), generator=generator)
    return Sequences(order.gather(1, torch.arange(setup.length + 1) % period[:, None]), period)


def split(setup: Setup, name: str, number: int, seed: int = 0) -> Sequences:
    """The examples of a split, "calibration", "validation" or "test": other numbers than training ever drew."""
    return sequences(setup, number, torch.Generator().manual_seed(1000 * seed + SPLIT_SEEDS[name]))


def losses(model: AttentionOnly, data: Sequences, gates: Tensor | None = None) -> Float[Tensor, "N"]:
    """Cross-entropy in nats of each sequence, averaged over the places where the next token can be known."""
    logits, _ = model(data.tokens[:, :-1], gates)
    each = F.cross_entropy(logits.transpose(1, 2), data.tokens[:, 1:], reduction="none")
    return (each * data.repeated).sum(1) / data.repeated.sum(1)


def train(setup: Setup, seed: int) -> AttentionOnly:
    """A model of its own initialisation and its own training data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AttentionOnly(setup)
    return _trained(model, setup.steps, setup.learning_rate, 1000 * seed + SPLIT_SEEDS["train"])


def fine_tune(model: AttentionOnly, removed: Sequence[Head], steps: int, seed: int) -> AttentionOnly:
    """A copy of a model, trained on with these heads (layer, head) shut, at a third of its learning rate."""
    copied = copy.deepcopy(model).requires_grad_(True)
    numbers = 1000 * seed + 500 + SPLIT_SEEDS["train"]
    return _trained(copied, steps, model.setup.learning_rate / 3, numbers, gates(model.setup, removed))


def _trained(model, steps, learning_rate, numbers, shut=None):
    setup, generator = model.setup, torch.Generator().manual_seed(numbers)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate, betas=(0.9, 0.98))
    for _ in range(steps):
        loss = losses(model, sequences(setup, setup.batch, generator), shut).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False)


def pattern_scores(model: AttentionOnly, data: Sequences) -> dict[str, Float[Tensor, "L H"]]:
    """How much attention each head pays, on average over the places where the next token can be known, to

    "previous": the token before; "induction": the token that followed this one, one period ago. A map and no more.
    """
    _, maps = model(data.tokens[:, :-1])
    places = torch.arange(model.setup.length)
    targets = {"previous": (places - 1).expand(len(data.tokens), -1), "induction": places - data.period[:, None] + 1}
    scores = {}
    for name, target in targets.items():
        counted = data.repeated & (target >= 0)
        index = target.clamp(min=0)[:, None, :, None].expand(-1, model.setup.heads, -1, 1)
        paid = [(m.gather(-1, index)[..., 0] * counted[:, None]).sum((0, 2)) / counted.sum() for m in maps]
        scores[name] = torch.stack(paid)
    return scores


def gates(setup: Setup, removed: Sequence[Head] = ()) -> Float[Tensor, "L H"]:
    """All gates open but those of the removed heads, (layer, head)."""
    open_gates = torch.ones(setup.layers, setup.heads)
    for layer, head in removed:
        open_gates[layer, head] = 0
    return open_gates


def slopes(model: AttentionOnly, data: Sequences) -> Float[Tensor, "L H"]:
    """Mean over sequences of |d loss / d gate| at gates of 1; `gate_sensitivity` of session 08, for every layer."""
    setup = model.setup
    every = gates(setup).expand(len(data.tokens), -1, -1).clone().requires_grad_()
    slope, = torch.autograd.grad(losses(model, data, every).sum(), every)
    return slope.abs().mean(0)


def layer_state(model: AttentionOnly, layer: int) -> dict[str, Tensor]:
    """The stored tensors of one layer, under the names that this course uses."""
    return {name: tensor.clone() for name, tensor in model.layers[layer].state_dict().items()}


def measured() -> dict | None:
    """The record that benchmarks/induction_heads.py wrote, or None where the course is installed without it."""
    path = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "induction_heads.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
