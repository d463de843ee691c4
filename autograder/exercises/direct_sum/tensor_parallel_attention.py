"""One layer on several processes, with one reduction."""
import torch
import torch.distributed as dist
from torch.nn import functional as F

from ... import expect
from ...exercise import CONTRACT, Exercise
from ._parallel import FOUR, TWO, Facts, columns_met, differs, fixture, near, oracle, parts, projected

exercise = Exercise(
    "tensor_parallel_attention", step=15, points=5, minutes=9, difficulty=4, importance=4,
    exempt=("detaches-graph", "hard-codes-sizes"), replayed=False,
    summary="Share the heads of one layer among real processes: own rows of Q, K and V, own columns of W_O, one "
            "all-reduce.",
    hints=(
        "Which rows of the stored Q, K and V belong to heads r·H/world to (r+1)·H/world - 1? A rank never needs the "
        "others.",
        "The output is a sum of head writes. What does a rank hold when it has added the writes of its own heads, and "
        "through which columns of W_O did they go?",
        "`torch.distributed` has get_rank, get_world_size and all_reduce; all take the group, and the last one adds in "
        "place. Whatever you add on every rank before the reduction is in the sum `world` times.",
    ),
    hides="a zero b_O, which is how nn.MultiheadAttention starts, hides a bias that is added on every rank; one rank "
          "hides everything.",
)

def _check(lab, size, bias, dtype=torch.float64):
    x, state, heads = fixture(size, bias)
    want = oracle(x, state, heads)
    given, tensors = x.to(dtype), {k: v.to(dtype) for k, v in state.items()}
    ranks = lab.ranks("tensor_parallel_attention", given, tensors, heads, world=size["world"])
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    for number, rank in enumerate(ranks):
        what = f"out on rank {number} of {size['world']}"
        expect.shape(expect.tensor(rank.value, what), want.shape, what)
        expect.dtype(rank.value, dtype, what)
        if not near(rank.value, want, tolerance):
            differs(rank.value, want, what, number, x, state, heads, size["world"])
    return ranks


@exercise.case("two ranks, no biases: B5 S7 H6 D4 M10")
def plain(lab):
    _check(lab, TWO, bias=False)


@exercise.case("two ranks, with biases")
def biased(lab):
    _check(lab, TWO, bias=True)


@exercise.case("four ranks, with biases: B2 S5 H8 D3 M10")
def four(lab):
    _check(lab, FOUR, bias=True)


@exercise.case("one all-reduce, no other communication, and every rank projects its own heads only", CONTRACT)
def counted(lab):
    for number, rank in enumerate(_check(lab, TWO, bias=False)):
        calls = ", ".join(f"{n} × {name}" for name, n in rank.collectives.items()) or "none"
        expect.true(rank.collectives == {"allreduce": 1}, f"rank {number} called these collectives: {calls}; the "
                                                          "contract is one allreduce and no other")
        width = projected(rank.contractions, TWO)
        own = 3 * TWO["heads"] * TWO["d"] // TWO["world"]
        expect.true(width <= own, f"rank {number} projects every row to {width:g} channels of q, k and v; its heads "
                                  f"have {own}")


@exercise.case("float32 in, float32 out", CONTRACT)
def single(lab):
    _check(lab, TWO, bias=True, dtype=torch.float32)


@exercise.case("refuses heads that the ranks cannot share", CONTRACT)
def refuses(lab):
    x, state, heads = fixture(TWO | dict(heads=5), bias=False)
    lab.ranks_raise(ValueError, "divisible", "tensor_parallel_attention", x, state, heads, world=2)


def _world(num_heads, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if num_heads % world:
        raise ValueError(f"{num_heads} heads are not divisible by {world} ranks")
    return rank, world


def _mix(q, k, v, local):
    """Heads of packed rows, mixed and merged again."""
    q, k, v = (t.unflatten(-1, (local, -1)).transpose(1, 2) for t in (q, k, v))
    return ((q @ k.mT / q.shape[-1]**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def _own(state, name, rank, world, axis=0):
    tensor = state.get(name)
    return None if tensor is None else tensor.chunk(world, dim=axis)[rank]


def _merged(x, state, rank, world, num_heads):
    rows = [F.linear(x, _own(state, f"{r}_proj.weight", rank, world), _own(state, f"{r}_proj.bias", rank, world))
            for r in "qkv"]
    return _mix(*rows, num_heads // world)


def _partial(x, state, rank, world, num_heads):
    merged = _merged(x, state, rank, world, num_heads)
    return F.linear(merged, _own(state, "o_proj.weight", rank, world, axis=1))


@exercise.right
def chunks_and_bias_after(x, state, num_heads, group):
    rank, world = _world(num_heads, group)
    out = _partial(x, state, rank, world, num_heads)
    dist.all_reduce(out, group=group)
    return out + state["o_proj.bias"] if "o_proj.bias" in state else out


@exercise.right
def slices_and_bias_on_rank_0(x, state, num_heads, group):
    rank, world = _world(num_heads, group)
    width = state["q_proj.weight"].shape[0] // world
    mine = slice(rank * width, (rank + 1) * width)
    q, k, v = (x @ state[f"{r}_proj.weight"][mine].T for r in "qkv")
    if "q_proj.bias" in state:
        q, k, v = (t + state[f"{r}_proj.bias"][mine] for t, r in zip((q, k, v), "qkv", strict=True))
    out = _mix(q, k, v, num_heads // world) @ state["o_proj.weight"][:, mine].T
    if rank == 0 and "o_proj.bias" in state:
        out = out + state["o_proj.bias"]
    dist.all_reduce(out, op=dist.ReduceOp.SUM, group=group)
    return out


@exercise.right
def fused_from_own_rows(x, state, num_heads, group):
    rank, world = _world(num_heads, group)
    weight = torch.cat([_own(state, f"{r}_proj.weight", rank, world) for r in "qkv"])
    bias = torch.cat([_own(state, f"{r}_proj.bias", rank, world) for r in "qkv"]) if "q_proj.bias" in state else None
    out = F.linear(_mix(*F.linear(x, weight, bias).chunk(3, -1), num_heads // world),
                   _own(state, "o_proj.weight", rank, world, 1))
    if "o_proj.bias" in state:
        out = out + state["o_proj.bias"] / world
    dist.all_reduce(out, group=group)
    return out


@exercise.right
def head_by_head(x, state, num_heads, group):
    rank, world = _world(num_heads, group)
    d = state["q_proj.weight"].shape[0] // num_heads
    out = 0
    for h in range(rank * num_heads // world, (rank + 1) * num_heads // world):
        mine = slice(h * d, (h + 1) * d)
        q, k, v = (F.linear(x, state[f"{r}_proj.weight"][mine],
                            state[f"{r}_proj.bias"][mine] if f"{r}_proj.bias" in state else None) for r in "qkv")
        out = out + F.linear(F.scaled_dot_product_attention(q, k, v), state["o_proj.weight"][:, mine])
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)


@exercise.right
def einsum_of_own_blocks(x, state, num_heads, group):
    rank, world = group.rank(), group.size()
    _world(num_heads, group)
    local = slice(rank * num_heads // world, (rank + 1) * num_heads // world)

    def blocks(name, axis=0):
        return state[name].unflatten(axis, (num_heads, -1)).narrow(axis, local.start, local.stop - local.start)
    q, k, v = (torch.einsum("bsm,hdm->bhsd", x, blocks(f"{r}_proj.weight")) for r in "qkv")
    if "q_proj.bias" in state:
        q, k, v = (t + blocks(f"{r}_proj.bias")[:, None] for t, r in zip((q, k, v), "qkv", strict=True))
    weights = (torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1]**0.5).softmax(-1)
    out = torch.einsum("bhts,bhsd,mhd->btm", weights, v, blocks("o_proj.weight", 1)).contiguous()
    dist.all_reduce(out, group=group, async_op=True).wait()
    return out + state.get("o_proj.bias", 0)


@exercise.right
def functional_collective(x, state, num_heads, group):
    from torch.distributed import _functional_collectives as functional
    rank, world = _world(num_heads, group)
    out = functional.all_reduce(_partial(x, state, rank, world, num_heads), "sum", group)
    return out + state.get("o_proj.bias", 0)


@exercise.wrong
def bias_on_every_rank(x, state, num_heads, group):
    """The reduction added b_O once per rank."""
    rank, world = _world(num_heads, group)
    out = _partial(x, state, rank, world, num_heads) + state.get("o_proj.bias", 0)
    dist.all_reduce(out, group=group)
    return out


@exercise.wrong
def wo_replicated(x, state, num_heads, group):
    """After column-parallel Q/K/V a rank may use only its own columns of W_O."""
    rank, world = _world(num_heads, group)
    out = F.linear(_merged(x, state, rank, world, num_heads), state["o_proj.weight"])
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)


@exercise.wrong(id="wo-replicated")
def first_columns_on_every_rank(x, state, num_heads, group):
    rank, world = _world(num_heads, group)
    out = F.linear(_merged(x, state, rank, world, num_heads), _own(state, "o_proj.weight", 0, world, 1))
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)


@exercise.wrong(id="wo-replicated")
def own_heads_repeated(x, state, num_heads, group):
    rank, world = _world(num_heads, group)
    merged = _merged(x, state, rank, world, num_heads)
    out = F.linear(torch.cat([merged] * world, -1), state["o_proj.weight"])
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)


@exercise.wrong
def wo_split_on_outputs(x, state, num_heads, group):
    """Row-parallel splits the input axis."""
    rank, world = _world(num_heads, group)
    out = F.linear(_merged(x, state, rank, world, num_heads), _own(state, "o_proj.weight", rank, world))
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)


def _cut(x, state, rank, world, num_heads):
    weight = torch.cat([state[f"{r}_proj.weight"] for r in "qkv"]).chunk(world)[rank]
    bias = torch.cat([state[f"{r}_proj.bias"] for r in "qkv"]).chunk(world)[rank] if "q_proj.bias" in state else None
    return _mix(*F.linear(x, weight, bias).chunk(3, dim=-1), num_heads // world)


@exercise.wrong
def fused_cut_contiguously(x, state, num_heads, group):
    """A contiguous half of [Q|K|V] gives rank 0 all Q and half of K."""
    rank, world = _world(num_heads, group)
    out = F.linear(_cut(x, state, rank, world, num_heads), _own(state, "o_proj.weight", rank, world, 1))
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)


@exercise.wrong
def reduction_missing(x, state, num_heads, group):
    """Each rank returned its partial sum."""
    return _partial(x, state, *_world(num_heads, group), num_heads) + state.get("o_proj.bias", 0)


@exercise.wrong
def reduction_averages(x, state, num_heads, group):
    """Partial outputs add; they are not averaged."""
    rank, world = _world(num_heads, group)
    out = _partial(x, state, rank, world, num_heads)
    dist.all_reduce(out, group=group)
    return out / world + state.get("o_proj.bias", 0)


@exercise.wrong
def two_reductions(x, state, num_heads, group):
    """Heads are local; nothing before W_O is shared."""
    rank, world = _world(num_heads, group)
    merged = _merged(x, state, rank, world, num_heads)
    full = merged.new_zeros(*merged.shape[:2], merged.shape[2] * world)
    full.chunk(world, dim=-1)[rank].copy_(merged)
    dist.all_reduce(full, group=group)
    out = F.linear(full.chunk(world, dim=-1)[rank], _own(state, "o_proj.weight", rank, world, 1))
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)


@exercise.wrong(id="two-reductions")
def output_reduced_twice(x, state, num_heads, group):
    out = _partial(x, state, *_world(num_heads, group), num_heads)
    dist.all_reduce(out, group=group)
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)


@exercise.wrong
def gathers_heads(x, state, num_heads, group):
    """After a gather every rank needs all of W_O and repeats its product; the contract is one reduction."""
    rank, world = _world(num_heads, group)
    merged = _merged(x, state, rank, world, num_heads).contiguous()
    every = [torch.empty_like(merged) for _ in range(world)]
    dist.all_gather(every, merged, group=group)
    return F.linear(torch.cat(every, -1), state["o_proj.weight"], state.get("o_proj.bias"))


@exercise.wrong
def full_work_per_rank(x, state, num_heads, group):
    """Every rank computed all heads."""
    rank, world = _world(num_heads, group)
    every = _merged(x, state, 0, 1, num_heads)
    out = F.linear(every.chunk(world, -1)[rank], _own(state, "o_proj.weight", rank, world, 1))
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)


@exercise.wrong(id="full-work-per-rank")
def nothing_is_shared(x, state, num_heads, group):
    _world(num_heads, group)
    return F.linear(_merged(x, state, 0, 1, num_heads), state["o_proj.weight"], state.get("o_proj.bias"))


@exercise.wrong(id="full-work-per-rank")
def all_of_it_divided(x, state, num_heads, group):
    _, world = _world(num_heads, group)
    out = F.linear(_merged(x, state, 0, 1, num_heads), state["o_proj.weight"]) / world
    dist.all_reduce(out, group=group)
    return out + state.get("o_proj.bias", 0)


def _plain(trials):
    return Facts(trials, plain, TWO, bias=False)


@exercise.recognise("gathers-heads")
def gathered(trials):
    """Some rank gathered."""
    return _plain(trials).called("allgather", "gather", "alltoall") > 0


@exercise.recognise("two-reductions")
def reduced_again(trials):
    """More than one reduction on a rank."""
    return _plain(trials).called("allreduce", "reduce") > 1


@exercise.recognise("full-work-per-rank")
def projected_too_much(trials):
    """A rank multiplied more over M than its own heads need."""
    facts = _plain(trials)
    own = 3 * TWO["heads"] * TWO["d"] // TWO["world"]
    return any(projected(c, TWO) > own for c in facts.contractions)


@exercise.recognise("bias-on-every-rank")
def excess_of_b_o(trials):
    """Right without biases; with them, world times b_O."""
    found = []
    for probe, size in ((biased, TWO), (four, FOUR)):
        facts = Facts(trials, probe, size, bias=True)
        right = oracle(facts.x, facts.state, facts.heads)
        found.append(facts.returned(right + (size["world"] - 1) * facts.state["o_proj.bias"]))
    facts = _plain(trials)
    return all(found) and facts.returned(oracle(facts.x, facts.state, facts.heads))


@exercise.recognise("reduction-missing")
def own_part_only(trials):
    """Every rank returned what it has itself."""
    facts = _plain(trials)
    return facts.returned(parts(facts.x, facts.state, facts.heads, 2)) and not facts.called("allreduce")


@exercise.recognise("reduction-averages")
def divided_by_the_ranks(trials):
    """1/world of the sum."""
    facts = _plain(trials)
    return facts.returned(oracle(facts.x, facts.state, facts.heads) / 2) and facts.called("allreduce") == 1


@exercise.recognise("fused-cut-contiguously")
def contiguous_halves(trials):
    """The sum that contiguous halves of the fused weight give."""
    facts = _plain(trials)
    out = sum(F.linear(_cut(facts.x, facts.state, r, 2, facts.heads), _own(facts.state, "o_proj.weight", r, 2, 1))
              for r in range(2))
    return facts.returned(out)


@exercise.recognise("wo-replicated")
def all_columns(trials):
    """The rank's heads met all columns of W_O, or the first ones on every rank."""
    facts = _plain(trials)
    met = columns_met(facts)
    if met is not None:
        return all(columns in (0, facts.size["width"]) for columns in met)
    if facts.called("allreduce") != 1:
        return False
    merged = [_merged(facts.x, facts.state, r, 2, facts.heads) for r in range(2)]
    weight = facts.state["o_proj.weight"]
    return (facts.returned(sum(F.linear(m, weight.chunk(2, 1)[0]) for m in merged))
            or facts.returned(sum(F.linear(torch.cat([m, m], -1), weight) for m in merged)))


@exercise.recognise("wo-split-on-outputs")
def own_outputs(trials):
    """The rank's heads met some rows of W_O."""
    met = columns_met(_plain(trials))
    return met is not None and any(columns != TWO["width"] for columns in met)
