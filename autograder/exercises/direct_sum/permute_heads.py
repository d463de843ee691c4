"""The same layer with its heads in another order."""
import torch

from ... import expect, standard
from ...coordinates import say
from ...exercise import CONTRACT, Exercise
from ...nested import nested_cases, structure

exercise = Exercise(
    "permute_heads", step=10, points=3, minutes=6, difficulty=3, importance=4,
    summary="Reorder the heads of a layer so that its output does not change.",
    hints=(
        "Name every tensor of the state that has a place for each head. Which one has its heads on another axis?",
        "New head j is old head order[j]. Head j writes through block j of W_O: which old block has to stand there "
        "now?",
        "Each tensor is a row of H blocks, but a block of V and of W_O has D_v channels, a block of Q and K has D. "
        "What does b_O know about heads?",
    ),
    hides="an order that is its own inverse, such as (1,0,2), hides the inverse order on W_O; D_v = D hides block "
          "widths taken from Q; without biases nobody sees that they stayed.",
)

NAMES = tuple(f"{role}_proj" for role in "qkvo")
SELF_INVERSE, ORDER, FIVE = (1, 0, 2), (2, 0, 1), (3, 0, 4, 1, 2)


def make_state(heads, d_qk, d_v, width, bias, value):
    """A state whose tensors come from value(name, shape)."""
    rows = dict(q=heads * d_qk, k=heads * d_qk, v=heads * d_v, o=width)
    state = {}
    for role in "qkvo":
        state[f"{role}_proj.weight"] = value(f"{role}_proj.weight", (rows[role], width if role != "o" else heads * d_v))
        if bias:
            state[f"{role}_proj.bias"] = value(f"{role}_proj.bias", (rows[role],))
    return state


def _address(name, shape):
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float64).reshape(shape)


def random_number(name, shape):
    return standard.normal(*shape, seed=sum(map(ord, name)))


def oracle(state, order):
    """Block by block, as coordinates say: new block j is old block order[j]."""
    heads, new = len(order), {}
    for name, tensor in state.items():
        axis = 1 if name == "o_proj.weight" else 0
        if name == "o_proj.bias":
            new[name] = tensor
            continue
        blocks = tensor.chunk(heads, dim=axis)
        new[name] = torch.cat([blocks[old] for old in order], dim=axis)
    return new


def _check(lab, heads, d_qk, d_v, width, bias, order):
    state = make_state(heads, d_qk, d_v, width, bias, _address)
    got, want = lab.call("permute_heads", state, order), oracle(state, order)
    for name in structure(got, want, "the new state"):
        ours, theirs = expect.tensor(got[name], name), want[name]
        expect.shape(ours, theirs.shape, name)
        expect.dtype(ours, theirs.dtype, name)
        wrong = (ours != theirs).nonzero()
        if len(wrong):
            raise expect.Mismatch(_explain(name, wrong[0].tolist(), ours, theirs, state[name], heads, order))


def _explain(name, at, ours, theirs, old, heads, order):
    if name == "o_proj.bias":
        return f"{name}{at} moved; it belongs to the outputs and to no head"
    axis = 1 if name == "o_proj.weight" else 0
    block = old.shape[axis] // heads
    axes = dict(row=old.shape[0]) if old.dim() == 1 else dict(row=old.shape[0], column=old.shape[1])
    value, due = ours[tuple(at)].item(), theirs[tuple(at)].item()
    new = at[axis] // block
    return (f"{name}{at} holds old {say(value, axes)}, expected old {say(due, axes)}: new head {new} is old head "
            f"{order[new]}, and head {order[new]} owns {'columns' if axis else 'rows'} {order[new] * block} to "
            f"{order[new] * block + block - 1}")


@exercise.case("equal widths, order (2,0,1): E, H3 D4 M12, no biases")
def equal(lab):
    _check(lab, 3, 4, 4, 12, False, ORDER)


@exercise.case("biases move with their heads: E, H3 D4 M12")
def biases(lab):
    _check(lab, 3, 4, 4, 12, True, ORDER)


@exercise.case("five heads, order (3,0,4,1,2): D2 M10")
def five(lab):
    _check(lab, 5, 2, 2, 10, False, FIVE)


def _inputs():
    return (make_state(3, 4, 4, 12, True, random_number),), {"order": ORDER}


nested_cases(exercise, _inputs, oracle, ("state",), {"": "the new state"})


@exercise.case("values wider than keys: A, H3 D_qk4 D_v6 M10", CONTRACT)
def asymmetric(lab):
    _check(lab, 3, 4, 6, 10, True, ORDER)


@exercise.case("the output of a cross-attention layer does not change", CONTRACT)
def same_function(lab):
    state = make_state(3, 4, 6, 10, True, random_number)
    got = lab.call("permute_heads", state, ORDER)
    for name in structure(got, state, "the new state"):
        expect.shape(expect.tensor(got[name], name), state[name].shape, name)
        expect.dtype(got[name], state[name].dtype, name)
    target, memory = standard.normal(2, 5, 10, seed=1), standard.normal(2, 7, 10, seed=2)
    before, after = (_attention(target, memory, s, 3) for s in (state, got))
    expect.close(after, before, "the output with the new state", ("batch", "query", "output"))


def _attention(target, memory, state, heads):
    """Head by head, in float64."""
    def rows(role, x):
        return (x @ state[f"{role}_proj.weight"].T + state[f"{role}_proj.bias"]).chunk(heads, dim=-1)
    mixed = [(q @ k.mT / q.shape[-1]**0.5).softmax(-1) @ v for q, k, v in
             zip(rows("q", target), rows("k", memory), rows("v", memory), strict=True)]
    return torch.cat(mixed, -1) @ state["o_proj.weight"].T + state["o_proj.bias"]


@exercise.case("the order as a list, and the identity", CONTRACT)
def as_list(lab):
    _check(lab, 3, 4, 4, 12, False, [0, 1, 2])
    _check(lab, 3, 4, 4, 12, False, [1, 2, 0])


@exercise.case("refuses what is no permutation", CONTRACT)
def refuses(lab):
    state = make_state(3, 4, 4, 12, False, _address)
    lab.raises(ValueError, "permutation", "permute_heads", state, (0, 0, 1))
    lab.raises(ValueError, "permutation", "permute_heads", state, (0, 1, 3))


def _checked(order):
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"{order} is no permutation")
    return list(order)


def _moved(tensor, order, axis=0, width=None):
    """Blocks of `width` along an axis, gathered by an index list."""
    width = tensor.shape[axis] // len(order) if width is None else width
    index = torch.cat([torch.arange(h * width, (h + 1) * width) for h in order])
    return tensor.index_select(axis, index)


def _permuted(state, order, moved=_moved, skip=(), o_order=None, o_axis=1):
    order = _checked(order)
    new = {}
    for name, tensor in state.items():
        if name == "o_proj.bias" or name in skip:
            new[name] = tensor.clone()
        elif name == "o_proj.weight":
            new[name] = moved(tensor, order if o_order is None else o_order, o_axis)
        else:
            new[name] = moved(tensor, order)
    return new


@exercise.right
def index_lists(state, order):
    return _permuted(state, order)


@exercise.right
def view_and_index_select(state, order):
    def moved(tensor, order, axis=0):
        blocks = tensor.unflatten(axis, (len(order), -1))
        return blocks.index_select(axis, torch.tensor(order)).flatten(axis, axis + 1)
    return _permuted(state, order, moved)


@exercise.right
def chunks_and_cat(state, order):
    def moved(tensor, order, axis=0):
        blocks = tensor.chunk(len(order), dim=axis)
        return torch.cat([blocks[h] for h in order], dim=axis)
    return _permuted(state, order, moved)


@exercise.right
def scatter_by_the_inverse(state, order):
    def moved(tensor, order, axis=0):
        inverse = torch.tensor(order).argsort()
        blocks = tensor.unflatten(axis, (len(order), -1))
        return torch.zeros_like(blocks).index_copy(axis, inverse, blocks).flatten(axis, axis + 1)
    return _permuted(state, order, moved)


@exercise.right
def permutation_matrices(state, order):
    def moved(tensor, order, axis=0):
        block = tensor.shape[axis] // len(order)
        matrix = torch.kron(torch.eye(len(order))[order], torch.eye(block)).to(tensor.dtype)
        return tensor @ matrix.T if axis == 1 else matrix @ tensor
    return _permuted(state, order, moved)


@exercise.right
def fancy_indexing(state, order):
    def moved(tensor, order, axis=0):
        if axis == 1:
            return tensor.unflatten(1, (len(order), -1))[:, order].flatten(1)
        return tensor.unflatten(0, (len(order), -1))[order].flatten(0, 1)
    return _permuted(state, order, moved)


WEIGHTS = [f"{n}.weight" for n in NAMES[:3]]
BIASES = [f"{n}.bias" for n in NAMES[:3]]


@exercise.wrong
def wo_not_permuted(state, order):
    """Old W_O blocks consumed the new slots."""
    return _permuted(state, order, skip=("o_proj.weight",))


@exercise.wrong
def only_wo_permuted(state, order):
    """Unmoved heads were written through moved blocks."""
    return _permuted(state, order, skip=(*WEIGHTS, *BIASES))


@exercise.wrong
def wo_inverse_order(state, order):
    """As a gather, W_O takes the same order, not the inverse."""
    return _permuted(state, order, o_order=[_checked(order).index(h) for h in range(len(order))])


@exercise.wrong
def values_forgotten(state, order):
    """V moved separately from Q and K."""
    return _permuted(state, order, skip=("v_proj.weight", "v_proj.bias"))


@exercise.wrong(id="values-forgotten")
def only_the_weight_of_v(state, order):
    return _permuted(state, order, skip=("v_proj.weight",))


@exercise.wrong(id="values-forgotten")
def values_by_the_inverse(state, order):
    inverse = [_checked(order).index(h) for h in range(len(order))]
    new = _permuted(state, order)
    return new | {name: _moved(tensor, inverse) for name, tensor in state.items() if name.startswith("v_proj")}


@exercise.wrong
def bias_forgotten(state, order):
    """Biases belong to their heads."""
    return _permuted(state, order, skip=BIASES)


@exercise.wrong(id="bias-forgotten")
def biases_dropped(state, order):
    return {name: tensor for name, tensor in _permuted(state, order).items() if not name.endswith("bias")}


@exercise.wrong(id="bias-forgotten")
def biases_of_heads_dropped(state, order):
    return {name: tensor for name, tensor in _permuted(state, order).items() if name not in BIASES}


@exercise.wrong
def wo_rows_permuted(state, order):
    """The head axis of the stored W_O is its input axis."""
    return _permuted(state, order, o_axis=0)


@exercise.wrong(id="wo-rows-permuted")
def with_its_bias(state, order):
    new = _permuted(state, order, o_axis=0)
    if "o_proj.bias" in state:
        new["o_proj.bias"] = _moved(state["o_proj.bias"], _checked(order))
    return new


def _by_query_width(state, order, names):
    width = state["q_proj.weight"].shape[0] // len(order)

    def moved(tensor, order, axis=0):
        return _moved(tensor, order, axis, width)
    new = _permuted(state, order)
    return new | {n: moved(state[n], _checked(order), 1 if n == "o_proj.weight" else 0) for n in names if n in state}


@exercise.wrong
def width_from_q(state, order):
    """V blocks have width D_v."""
    return _by_query_width(state, order, ("v_proj.weight", "v_proj.bias", "o_proj.weight"))


@exercise.wrong(id="width-from-q")
def only_for_v(state, order):
    return _by_query_width(state, order, ("v_proj.weight", "v_proj.bias"))


@exercise.wrong(id="width-from-q")
def by_a_view(state, order):
    width = state["q_proj.weight"].shape[0] // len(order)

    def moved(tensor, order, axis=0):
        if axis == 1:
            return tensor.view(-1, len(order), width)[:, order].flatten(1)
        return tensor.view(len(order), width, *tensor.shape[1:])[order].flatten(0, 1)
    return _permuted(state, order, moved)


@exercise.wrong(id="width-from-q")
def from_the_model_width(state, order):
    width = state["q_proj.weight"].shape[1] // len(order)
    return _permuted(state, order, lambda tensor, order, axis=0: _moved(tensor, order, axis, width))
