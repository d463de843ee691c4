"""The smallest causal language model with everything in it; its loss asks for the next token."""
from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...lab import Mismatch
from ...standard import normal

NAME = "TinyLM"
exercise = Exercise(
    NAME, step=7, points=3, minutes=8, difficulty=3, importance=4,
    summary="Embeddings, one causal attention layer, residual, norm and head; logits, a cache, and a next-token loss.",
    hints=(
        "Write the forward pass for one whole sequence first, and ask what row t may see. Then hand in the same tokens "
        "in two pieces: what did the second piece need from the first?",
        "With a cache of p rows, row t of the new ones sees p + t + 1 keys. Where a token stands is not how many "
        "tokens came with it; the caller says it.",
        "The loss compares the logits of row t with token t + 1. How many predictions does a sequence of T tokens "
        "hold, and which row predicts nothing that is known?",
    ),
    tensor=False,
    hides="Without a look at single rows a missing triangle only shows as a loss that is too good; one chunk hides the "
          "cache, chunks of one token hide the triangle beside it; positions from 0 hide a model that counts itself.",
)
NAMES = "batch", "token", "word"
E, TRAP = (11, 12, 3, 9), (7, 12, 3, 6)  # V M H max_len


def state_of(sizes, seed=0, dtype=torch.float64):
    v, m, _, length = sizes
    shapes = {"tokens.weight": (v, m), "positions.weight": (length, m)}
    shapes |= {f"{role}_proj.weight": (m, m) for role in "qkvo"}
    shapes |= {"norm.weight": (m,), "norm.bias": (m,), "head.weight": (v, m), "head.bias": (v,)}
    return {name: normal(*shape, seed=100 * seed + i, dtype=dtype) / (1 if len(shape) == 1 else 2)
            for i, (name, shape) in enumerate(shapes.items())}


def tokens_of(sizes, batch=2, count=5, seed=0):
    return torch.randint(sizes[0], (batch, count), generator=torch.Generator().manual_seed(seed))


def oracle(state, sizes, tokens, positions=None):
    """Logits, one head after another and one query after another."""
    _, m, heads, _ = sizes
    d, count = m // heads, tokens.shape[1]
    positions = torch.arange(count) if positions is None else positions
    x = state["tokens.weight"][tokens] + state["positions.weight"][positions]
    merged = []
    for h in range(heads):
        q, k, v = (torch.einsum("btm,dm->btd", x, state[f"{r}_proj.weight"][h * d:(h + 1) * d]) for r in "qkv")
        merged.append(torch.stack([
            torch.einsum("bs,bsd->bd", (torch.einsum("bd,bsd->bs", q[:, t], k[:, :t + 1]) / math.sqrt(d)).softmax(-1),
                         v[:, :t + 1]) for t in range(count)], 1))
    x = x + torch.cat(merged, -1) @ state["o_proj.weight"].T
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    x = x * state["norm.weight"] + state["norm.bias"]
    return x @ state["head.weight"].T + state["head.bias"]


def next_token_loss(logits, tokens):
    """-log p of token t + 1 at row t, averaged."""
    rows = logits[:, :-1].log_softmax(-1)
    return -torch.stack([rows[b, t, tokens[b, t + 1]] for b in range(len(tokens))
                         for t in range(tokens.shape[1] - 1)]).mean()


def _built(lab, sizes, seed=0, dtype=torch.float64):
    state = state_of(sizes, seed, dtype)
    handle, shapes = lab.build(NAME, *sizes, load={"state": state, "dtype": dtype, "training": False})
    want = {name: tuple(t.shape) for name, t in state.items()}
    if shapes != want:
        missing = [f"{n} {list(s)}" for n, s in want.items() if shapes.get(n) != s]
        more = [f"{n} {list(s)}" for n, s in shapes.items() if want.get(n) != s]
        raise Mismatch("the state is not the one of the contract: "
                       + "; ".join(f"{word} {', '.join(names)}" for word, names in (("missing", missing),
                                                                                    ("unexpected", more)) if names))
    return handle, state


def _logits(lab, handle, sizes, tokens, **options):
    got = lab.method(handle, "__call__", tokens, **options)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Mismatch("forward does not return the pair (logits, cache)")
    lab.transcript[-1].value = [got[0]]  # the cache has a form of its own
    expect.shape(got[0], (*tokens.shape, sizes[0]), "the logits", "[B,T,V]")
    return got


def _whole(lab, sizes, seed=0, positions=None, **tokens):
    handle, state = _built(lab, sizes, seed)
    tokens = tokens_of(sizes, seed=seed, **tokens)
    options = {} if positions is None else {"positions": positions}
    got, _ = _logits(lab, handle, sizes, tokens, **options)
    expect.close(got, oracle(state, sizes, tokens, positions), "the logits", NAMES)


@exercise.case("a row sees itself and what came before, nothing that comes after")
def causal(lab):
    handle, state = _built(lab, E)
    tokens = tokens_of(E)
    changed = tokens.clone()
    changed[:, 3] = (tokens[:, 3] + 1) % E[0]
    first, second = (_logits(lab, handle, E, t)[0] for t in (tokens, changed))
    leaks = ((first - second)[:, :3].abs() > 1e-9).nonzero()
    if len(leaks):
        b, t, w = leaks[0].tolist()
        raise Mismatch(f"token 3 was changed, and the logits of row {t} changed with it (sample {b}, word {w}: "
                       f"{first[b, t, w].item():.4f} became {second[b, t, w].item():.4f}); row {t} must not see it")
    expect.close(first, oracle(state, E, tokens), "the logits", NAMES)
    expect.close(second, oracle(state, E, changed), "the logits", NAMES)


@exercise.case("B=H=3, T=6: sizes where confused axes fit")
def trap(lab):
    _whole(lab, TRAP, 1, batch=3, count=6)


@exercise.case("other sizes: V5 M16 H4, T7; and one head")
def others(lab):
    _whole(lab, (5, 16, 4, 8), 2, batch=1, count=7)
    _whole(lab, (5, 16, 1, 8), 2, batch=3, count=4)


@exercise.case("positions that are given, from 4 to 8")
def elsewhere(lab):
    _whole(lab, E, 3, torch.arange(4, 9))


def _chunks(lab, *cuts):
    handle, state = _built(lab, E, 4)
    tokens = tokens_of(E, count=7, seed=4)
    want, cache, parts = oracle(state, E, tokens), None, {}
    for start, end in zip(cuts, cuts[1:], strict=False):
        told = {"cache": cache} if cache is not None else {}
        parts[start, end], cache = _logits(lab, handle, E, tokens[:, start:end], positions=torch.arange(start, end),
                                           **told)
    for (start, end), got in parts.items():
        expect.close(got, want[:, start:end], f"the logits of tokens {start} to {end - 1}", NAMES)


@exercise.case("with a cache, chunks of 2, 3 and 2 tokens are the whole sequence")
def chunks(lab):
    _chunks(lab, 0, 2, 5, 7)


@exercise.case("with a cache, one token after another")
def singly(lab):
    _chunks(lab, 0, 1, 2, 3, 4, 5, 6, 7)


@exercise.case("the loss is that of the next token")
def loss(lab):
    for sizes, seed in ((E, 5), (TRAP, 6)):
        handle, state = _built(lab, sizes, seed)
        tokens = tokens_of(sizes, batch=3, count=6, seed=seed)
        got = lab.method(handle, "loss", tokens)
        logits = oracle(state, sizes, tokens)
        want = next_token_loss(logits, tokens)
        expect.shape(got, (), "the loss")
        same = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        if not torch.allclose(got.double(), want, atol=1e-9) and torch.allclose(got.double(), same, atol=1e-9):
            raise Mismatch(f"the loss is {got.item():.6f}, which is that of predicting each row's own token; for the "
                           f"next token it is {want.item():.6f}")
        expect.close(got, want, "the loss")


@exercise.case("gradients of the loss reach every parameter")
def gradients(lab):
    handle, state = _built(lab, E, 7)
    tokens = tokens_of(E, seed=7, count=6)
    leaves = {name: t.requires_grad_() for name, t in state.items()}
    want = next_token_loss(oracle(leaves, E, tokens), tokens)
    theirs = torch.autograd.grad(want, list(leaves.values()))
    got = lab.method(handle, "loss", tokens)
    expect.close(got, want.detach(), "the loss")
    grads = lab.backward((got, torch.ones((), dtype=torch.float64)))
    for name, grad in zip(leaves, theirs, strict=True):
        expect.gradient(grads, name, grad, name)


@exercise.case("float32: the logits have the dtype of the parameters", CONTRACT)
def dtypes(lab):
    handle, state = _built(lab, E, 8, torch.float32)
    tokens = tokens_of(E, seed=8)
    got, _ = _logits(lab, handle, E, tokens)
    want = oracle({n: t.double() for n, t in state.items()}, E, tokens)
    expect.close(got, want.float(), "the logits", NAMES, atol=1e-4, rtol=1e-4)


@exercise.case("refuses a position that has no embedding", CONTRACT)
def refuses_length(lab):
    handle, _ = _built(lab, E)
    lab.method_raises(ValueError, "max_len", handle, "__call__", tokens_of(E, count=10))
    lab.method_raises(ValueError, "max_len", handle, "__call__", tokens_of(E, count=2), positions=torch.tensor([8, 9]))
    lab.method_raises(ValueError, "max_len", handle, "__call__", tokens_of(E, count=2), positions=torch.tensor([12, 3]))
    _logits(lab, handle, E, tokens_of(E, count=9))


@exercise.case("refuses a width that the heads cannot share", CONTRACT)
def refuses_width(lab):
    lab.build_raises(ValueError, "divisible", NAME, 11, 13, 3, 9)


class Base(nn.Module):
    """One method a step, for known programs to override."""

    def __init__(self, vocab, d_model, num_heads, max_len):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("d_model is not divisible by num_heads")
        self.heads, self.max_len = num_heads, max_len
        self.tokens, self.positions = nn.Embedding(vocab, d_model), nn.Embedding(max_len, d_model)
        for role in "qkvo":
            setattr(self, f"{role}_proj", nn.Linear(d_model, d_model, bias=False))
        self.norm, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, vocab)

    def places(self, tokens, positions, cache):
        return torch.arange(tokens.shape[1]) if positions is None else positions

    def embed(self, tokens, positions, cache=None):
        positions = self.places(tokens, positions, cache)
        if positions.max() >= self.max_len:
            raise ValueError("a position lies beyond max_len")
        return self.tokens(tokens) + self.positions(positions)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def past(self, cache):
        return cache

    def kept(self, k, v, cache):
        return k, v

    def hide(self, scores):
        t, s = scores.shape[-2:]
        return scores.masked_fill(torch.ones(t, s, dtype=torch.bool).triu(s - t + 1), -torch.inf)

    def forward(self, tokens, positions=None, cache=None):
        x = self.embed(tokens, positions, cache)
        q, k, v = (self.split(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if (old := self.past(cache)) is not None:
            k, v = torch.cat([old[0], k], 2), torch.cat([old[1], v], 2)
        weights = self.hide(q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        x = x + self.o_proj((weights @ v).transpose(1, 2).flatten(2))
        return self.head(self.norm(x)), self.kept(k, v, cache)

    def loss(self, tokens):
        logits, _ = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@exercise.right
class MaskedSoftmax(Base):
    pass


@exercise.right
class Sdpa(Base):
    """The cache is one tensor; the loss runs the whole sequence and drops the last row."""

    def forward(self, tokens, positions=None, cache=None):
        x = self.embed(tokens, positions)
        q, k, v = (self.split(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        both = torch.stack([k, v])
        both = both if cache is None else torch.cat([cache, both], 3)
        t, s = tokens.shape[1], both.shape[3]
        mixed = F.scaled_dot_product_attention(q, *both, attn_mask=torch.ones(t, s, dtype=torch.bool).tril(s - t))
        return self.head(self.norm(x + self.o_proj(mixed.transpose(1, 2).flatten(2)))), both

    def loss(self, tokens):
        logits = self(tokens)[0][:, :-1].log_softmax(-1)
        return -logits.gather(-1, tokens[:, 1:, None]).mean()


@exercise.right
class RowsAsCache(Base):
    """The cache is a list of embedded rows; keys and values are made again from them."""

    def forward(self, tokens, positions=None, cache=None):
        new = self.embed(tokens, positions)
        rows = [*(cache or []), new]
        x = torch.cat(rows, 1)
        q, (k, v) = self.split(self.q_proj(new)), (self.split(f(x)) for f in (self.k_proj, self.v_proj))
        t, s = new.shape[1], x.shape[1]
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) * q.shape[-1] ** -0.5
        scores = scores.where(torch.arange(s) <= torch.arange(s - t, s)[:, None], scores.new_tensor(-torch.inf))
        mixed = torch.einsum("bhts,bhsd->bthd", scores.softmax(-1), v).reshape(new.shape)
        return self.head(self.norm(new + self.o_proj(mixed))), rows


@exercise.right
class MultiheadAttention(Base):
    """The framework's own module does the mixing."""

    def forward(self, tokens, positions=None, cache=None):
        new = self.embed(tokens, positions)
        x = new if cache is None else torch.cat([cache, new], 1)
        t, s, m = new.shape[1], x.shape[1], new.shape[2]
        packed = torch.cat([f.weight for f in (self.q_proj, self.k_proj, self.v_proj)])
        mixed, _ = F.multi_head_attention_forward(
            new.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1), m, self.heads, packed, None, None, None, False,
            0.0, self.o_proj.weight, None, need_weights=False, attn_mask=torch.ones(t, s, dtype=torch.bool).triu(
                s - t + 1))
        return self.head(self.norm(new + mixed.transpose(0, 1))), x


@exercise.wrong
class SeesTheFuture(Base):
    """The triangle is missing: a row reads the very token that it shall predict, and the loss is too good to be true.
    """

    def hide(self, scores):
        return scores


@exercise.wrong(id="sees-the-future")
class TriangleUpsideDown(Base):
    def hide(self, scores):
        t, s = scores.shape[-2:]
        return scores.masked_fill(torch.ones(t, s, dtype=torch.bool).tril(s - t - 1), -torch.inf)


@exercise.wrong(id="sees-the-future")
class OneTooFar(Base):
    def hide(self, scores):
        t, s = scores.shape[-2:]
        return scores.masked_fill(torch.ones(t, s, dtype=torch.bool).triu(s - t + 2), -torch.inf)


@exercise.wrong(id="sees-the-future")
class TriangleOnlyWithoutACache(Base):
    def hide(self, scores):
        return super().hide(scores) if scores.shape[-1] == scores.shape[-2] else scores


@exercise.wrong
class LossUnshifted(Base):
    """The loss compares row t with token t: the model learns to predict its own input, which it can copy."""

    def loss(self, tokens):
        logits, _ = self(tokens)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@exercise.wrong(id="loss-unshifted")
class LossWithoutTheLastRow(Base):
    def loss(self, tokens):
        logits, _ = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, :-1].flatten())


@exercise.wrong(id="loss-unshifted")
class LossOfThePreviousToken(Base):
    def loss(self, tokens):
        logits, _ = self(tokens[:, 1:])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, :-1].flatten())


@exercise.wrong
class CacheUnused(Base):
    """The cache that came in was not read: each chunk attends to itself only."""

    def past(self, cache):
        return None


@exercise.wrong
class FirstTokenLost(Base):
    """The first call's keys and values never entered the cache: what follows does not know how it began."""

    def kept(self, k, v, cache):
        return (k[:, :, :0], v[:, :, :0]) if cache is None else (k, v)


@exercise.wrong(id="first-token-lost")
class FirstRowLost(Base):
    def kept(self, k, v, cache):
        return (k[:, :, 1:], v[:, :, 1:]) if cache is None else (k, v)


@exercise.wrong
class PositionsRestart(Base):
    """The model counts from 0 whatever positions it is given: new tokens got the embeddings of the first ones."""

    def places(self, tokens, positions, cache):
        return torch.arange(tokens.shape[1])
