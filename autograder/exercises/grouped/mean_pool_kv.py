"""A checkpoint of H key/value heads becomes one of G."""
import torch
from einops import reduce

from ... import expect, standard
from ...coordinates import coded
from ...exercise import CONTRACT, Exercise
from ...nested import nested_cases, structure

NAME = "mean_pool_kv"
exercise = Exercise(
    NAME, step=7, points=2, minutes=3, difficulty=2, importance=3,
    summary="Average the key and value heads of each group, weights and biases.",
    hints=(
        "Which four entries of a state belong to key and value heads? What happens to the others?",
        "Rows come in H blocks. Which blocks make group 0 of 3, if the layer must read them in the order of this "
        "session?",
        "Give the first axis three: group, member, channel. Which of them goes away?",
    ),
    hides="G = 1 hides strided groups; equal heads hide first-head-kept; a state without biases hides that they "
          "stayed; "
          "D_v = D hides block widths taken from K.",
)
ROLES = ("k_proj", "v_proj")


def make_state(heads, d_qk, d_v, width, bias, value):
    """A state whose tensors come from value(name, shape)."""
    rows = dict(q=heads * d_qk, k=heads * d_qk, v=heads * d_v, o=width)
    state = {}
    for role in "qkvo":
        name = f"{role}_proj"
        state[f"{name}.weight"] = value(f"{name}.weight", (rows[role], width if role != "o" else heads * d_v))
        if bias:
            state[f"{name}.bias"] = value(f"{name}.bias", (rows[role],))
    return state


def random_number(name, shape):
    return standard.normal(*shape, seed=sum(map(ord, name)))


def oracle(state, num_heads, num_kv_heads):
    """Row by row: channel d of group g is the mean of that channel in the members of the group."""
    size, new = num_heads // num_kv_heads, dict(state)
    for name, tensor in state.items():
        if name.startswith(ROLES):
            d = len(tensor) // num_heads
            new[name] = torch.stack([sum(tensor[(g * size + r) * d + c] for r in range(size)) / size
                                     for g in range(num_kv_heads) for c in range(d)])
    return new


def _check(lab, heads, groups, d_qk, d_v, width, bias, value=random_number):
    state = make_state(heads, d_qk, d_v, width, bias, value)
    got, want = lab.call(NAME, state, heads, groups), oracle(state, heads, groups)
    for name in structure(got, want, "the new state"):
        ours = expect.tensor(got[name], name)
        expect.shape(ours, want[name].shape, name)
        expect.dtype(ours, want[name].dtype, name)
        expect.close(ours, want[name], name, ("row", "column"))


@exercise.case("rows that name their head: H12 G3 D4 M20")
def which(lab):
    def one_hot(name, shape):
        if not name.startswith(ROLES):
            return random_number(name, shape)
        heads = torch.arange(shape[0]) // (shape[0] // 12)
        return (2.0 ** heads.double())[:, None].expand(shape).clone()
    state = make_state(12, 4, 4, 20, False, one_hot)
    got, want = lab.call(NAME, state, 12, 3), oracle(state, 12, 3)
    for name in structure(got, want, "the new state"):
        ours = expect.tensor(got[name], name)
        expect.shape(ours, want[name].shape, name)
        expect.dtype(ours, want[name].dtype, name)
        for g in range(3) if name.startswith(ROLES) else ():
            value, due = ours[4 * g, 0].item(), want[name][4 * g, 0].item()
            if abs(value - due) > 1e-9:
                raise expect.Mismatch(f"{name}: group {g} is {_members(value)}, expected the mean of heads "
                                      f"{[4 * g + r for r in range(4)]}")
        expect.close(ours, want[name], name, ("row", "column"))


def _members(value):
    for count in range(1, 13):
        whole = round(value * count)
        if abs(value * count - whole) < 1e-9 and 0 < whole < 1 << 12 and whole.bit_count() == count:
            heads = [h for h in range(12) if whole >> h & 1]
            return f"the mean of heads {heads}" if count > 1 else f"head {heads[0]} alone"
    return f"no plain mean of heads (row value {value:g})"


@exercise.case("real numbers and biases: H12 G3 D4 M20")
def biased(lab):
    _check(lab, 12, 3, 4, 4, 20, True)


@exercise.case("other heads: H8 G4 D3 M10, no biases")
def other(lab):
    _check(lab, 8, 4, 3, 3, 10, False)


@exercise.case("values wider than keys: H6 G2 D_qk4 D_v6 M10, biases")
def asymmetric(lab):
    _check(lab, 6, 2, 4, 6, 10, True)


nested_cases(exercise, lambda: ((make_state(6, 4, 6, 10, True, random_number),), {"num_heads": 6, "num_kv_heads": 3}),
             oracle, ("state",), {"": "the new state"})


@exercise.case("one group of all heads, and as many groups as heads", CONTRACT)
def ends(lab):
    _check(lab, 6, 1, 4, 4, 10, True)
    _check(lab, 6, 6, 4, 4, 10, True)


@exercise.case("heads that were equal within their group come out as they were", CONTRACT)
def exact(lab):
    def equal(name, shape):
        if not name.startswith(ROLES):
            return random_number(name, shape)
        rows = coded(g=3, d=4, m=shape[1])
        return rows[:, None].expand(3, 4, 4, shape[1]).reshape(shape)
    _check(lab, 12, 3, 4, 4, 20, False, equal)


@exercise.case("refuses 12 heads over 5 groups", CONTRACT)
def uneven(lab):
    lab.raises(ValueError, "divisible", NAME, make_state(12, 2, 2, 8, False, random_number), 12, 5)


def _pooled(state, num_heads, num_kv_heads, pool, roles=ROLES, skip=""):
    if num_heads % num_kv_heads:
        raise ValueError("not divisible")
    return {name: pool(t, num_kv_heads, num_heads // num_kv_heads) if name.startswith(roles) and not (
        skip and name.endswith(skip)) else t for name, t in state.items()}


def _mean(t, g, r):
    return t.unflatten(0, (g, r, -1)).mean(1).flatten(0, 1)


@exercise.right
def view_and_mean(state, num_heads, num_kv_heads):
    return _pooled(state, num_heads, num_kv_heads, _mean)


@exercise.right
def averaging_matrix(state, num_heads, num_kv_heads):
    def pool(t, g, r):
        d = len(t) // (g * r)
        average = torch.eye(g, dtype=t.dtype).repeat_interleave(r, 1) / r
        return torch.kron(average, torch.eye(d, dtype=t.dtype)) @ t
    return _pooled(state, num_heads, num_kv_heads, pool)


@exercise.right
def chunks_of_chunks(state, num_heads, num_kv_heads):
    def pool(t, g, r):
        return torch.cat([sum(group.chunk(r)) / r for group in t.chunk(g)])
    return _pooled(state, num_heads, num_kv_heads, pool)


@exercise.right
def by_einops(state, num_heads, num_kv_heads):
    def pool(t, g, r):
        pattern = "(g r d) m -> (g d) m" if t.dim() == 2 else "(g r d) -> (g d)"
        return reduce(t, pattern, "mean", g=g, r=r)
    return _pooled(state, num_heads, num_kv_heads, pool)


@exercise.right
def copies_in_float64(state, num_heads, num_kv_heads):
    new = _pooled(state, num_heads, num_kv_heads, lambda t, g, r: _mean(t.double(), g, r).to(t.dtype))
    return {name: tensor.clone() for name, tensor in new.items()}


@exercise.right
def index_add(state, num_heads, num_kv_heads):
    def pool(t, g, r):
        blocks = t.unflatten(0, (g * r, -1))
        return torch.zeros_like(blocks[:g]).index_add(0, torch.arange(g * r) // r, blocks / r).flatten(0, 1)
    return _pooled(state, num_heads, num_kv_heads, pool)


@exercise.wrong
def first_head_kept(state, num_heads, num_kv_heads):
    """Pooling averages the group; one head was kept and its neighbours were lost."""
    return _pooled(state, num_heads, num_kv_heads, lambda t, g, r: t.unflatten(0, (g, r, -1))[:, 0].flatten(0, 1))


@exercise.wrong(id="first-head-kept")
def first_heads_of_all(state, num_heads, num_kv_heads):
    return _pooled(state, num_heads, num_kv_heads, lambda t, g, r: t[:len(t) // r])


@exercise.wrong(id="first-head-kept")
def last_head_kept(state, num_heads, num_kv_heads):
    return _pooled(state, num_heads, num_kv_heads, lambda t, g, r: t.unflatten(0, (g, r, -1))[:, -1].flatten(0, 1))


@exercise.wrong
def strided_groups(state, num_heads, num_kv_heads):
    """Groups are neighbours; heads g, g + G, … were averaged. The layer that reads the result would have to use the
    tiled head layout, which differs from the contract."""
    return _pooled(state, num_heads, num_kv_heads, lambda t, g, r: t.unflatten(0, (r, g, -1)).mean(0).flatten(0, 1))


@exercise.wrong
def queries_pooled(state, num_heads, num_kv_heads):
    """Query heads stay: only keys and values are shared."""
    return _pooled(state, num_heads, num_kv_heads, _mean, ("q_proj", *ROLES))


@exercise.wrong(id="queries-pooled")
def queries_and_outputs(state, num_heads, num_kv_heads):
    new = _pooled(state, num_heads, num_kv_heads, _mean, ("q_proj", *ROLES))
    return new | {"o_proj.weight": _mean(state["o_proj.weight"].T, num_kv_heads, num_heads // num_kv_heads).T}


@exercise.wrong(id="queries-pooled")
def outputs_pooled(state, num_heads, num_kv_heads):
    new = _pooled(state, num_heads, num_kv_heads, _mean)
    return new | {"o_proj.weight": _mean(state["o_proj.weight"].T, num_kv_heads, num_heads // num_kv_heads).T}


@exercise.wrong
def bias_not_pooled(state, num_heads, num_kv_heads):
    """Biases follow their rows."""
    return _pooled(state, num_heads, num_kv_heads, _mean, skip="bias")


@exercise.wrong(id="bias-not-pooled")
def biases_dropped(state, num_heads, num_kv_heads):
    return {n: t for n, t in view_and_mean(state, num_heads, num_kv_heads).items() if not n.endswith("bias")}


@exercise.wrong(id="bias-not-pooled")
def key_and_value_biases_dropped(state, num_heads, num_kv_heads):
    return {n: t for n, t in view_and_mean(state, num_heads, num_kv_heads).items()
            if n not in ("k_proj.bias", "v_proj.bias")}


@exercise.wrong
def summed(state, num_heads, num_kv_heads):
    """The members were added up: the mean keeps the size of a key."""
    return _pooled(state, num_heads, num_kv_heads, lambda t, g, r: t.unflatten(0, (g, r, -1)).sum(1).flatten(0, 1))


@exercise.wrong
def keys_only(state, num_heads, num_kv_heads):
    """Keys and values share the group; both are pooled."""
    return _pooled(state, num_heads, num_kv_heads, _mean, ("k_proj",))


@exercise.wrong(id="keys-only")
def values_only(state, num_heads, num_kv_heads):
    return _pooled(state, num_heads, num_kv_heads, _mean, ("v_proj",))


@exercise.wrong
def channels_averaged(state, num_heads, num_kv_heads):
    """Neighbouring rows were averaged: they are channels of one head. A head is D rows."""
    return _pooled(state, num_heads, num_kv_heads, lambda t, g, r: t.unflatten(0, (-1, r)).mean(1))
