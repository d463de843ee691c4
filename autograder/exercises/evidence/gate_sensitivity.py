"""How strongly the loss hangs on a gate in front of each head."""
import torch

from ... import expect, standard
from ...exercise import Exercise

exercise = Exercise(
    "gate_sensitivity", step=1, points=2, minutes=6, difficulty=3, importance=5,
    summary="Score each head by the mean absolute slope of the loss at a gate in front of it.",
    hints=(
        "Put a number g in front of one head. Which numbers of the output move when g moves, and by how much each?",
        "The output moves by the head's own write, the head times its block of W_O. Multiply that by what the loss "
        "says about every output number. Which axes are now summed, and which are still there?",
        "One slope an example and head is left. Two examples that pull in opposite directions both show that the head "
        "is used: what has to happen before the mean over examples?",
    ),
    hides="one example hides where the absolute value stands; M = H·D_v lets a program without W_O run to its end; "
          "D_v = M hides a transposed block.",
)
F = dict(examples=9, rows=4, heads=3, d_v=8, width=7)
TRAP = dict(examples=3, rows=3, heads=3, d_v=4, width=12)
NAMES = ("head",)


def inputs(examples, rows, heads, d_v, width, seed=0, scale=1.0):
    return (scale * standard.normal(examples, rows, width, seed=seed),
            scale * standard.normal(examples, heads, rows, d_v, seed=seed + 1),
            scale * standard.normal(width, heads * d_v, seed=seed + 2))


def slopes(grad_output, heads, w_o):
    """[N,H], example by example and head by head, from the write of each head."""
    d_v = heads.shape[-1]
    return torch.stack([torch.stack([
        (grad * (head @ w_o[:, h * d_v:(h + 1) * d_v].T)).sum() for h, head in enumerate(example)])
        for grad, example in zip(grad_output, heads, strict=True)])


def oracle(grad_output, heads, w_o):
    return slopes(grad_output, heads, w_o).abs().mean(0)


def measured(loss_of, heads, w_o, eps=1e-6):
    """[N,H] by central differences of a real gate; `loss_of(output)` gives one loss an example."""
    d_v = heads.shape[-1]
    writes = torch.stack([heads[:, h] @ w_o[:, h * d_v:(h + 1) * d_v].T for h in range(heads.shape[1])])
    found = []
    for h in range(len(writes)):
        above, below = (loss_of(writes.sum(0) + step * writes[h]) for step in (eps, -eps))
        found.append((above - below) / (2 * eps))
    return torch.stack(found, 1)


def _check(got, pulls, atol=1e-10):
    want = pulls.abs().mean(0)
    try:
        expect.close(got, want, "the score", NAMES, atol=atol, rtol=1e-6 if atol > 1e-9 else 1e-9)
    except expect.Mismatch as m:
        if isinstance(got, torch.Tensor) and got.shape == want.shape:
            head = ((got - want).abs() > atol).nonzero()[0].item()
            pulled = ", ".join(f"{p:+.3g}" for p in pulls[:, head].tolist()[:5])
            more = ", ..." if len(pulls) > 5 else ""
            raise expect.Mismatch(f"{m}; the gate of head {head} pulls the examples' losses by {pulled}{more}",
                                  m.figure) from None
        raise


@exercise.case("F: nine examples, H3 T4 D_v8 M7")
def plain(lab):
    args = inputs(**F)
    _check(lab.call("gate_sensitivity", *args), slopes(*args))


@exercise.case("examples that pull in opposite directions")
def opposite(lab):
    grad, heads, w_o = inputs(examples=2, rows=5, heads=4, d_v=3, width=6, seed=10)
    grad, heads = torch.cat([grad, -grad[:1]]), torch.cat([heads, heads[:1]])
    _check(lab.call("gate_sensitivity", grad, heads, w_o), slopes(grad, heads, w_o))


@exercise.case("against a gate that is moved: central differences of a curved loss")
def moved(lab):
    _, heads, w_o = inputs(examples=5, rows=2, heads=3, d_v=2, width=4, seed=20)

    def loss_of(output):
        return (output.tanh() + 0.1 * output.square()).sum((1, 2))
    d_v = heads.shape[-1]
    output = sum(heads[:, h] @ w_o[:, h * d_v:(h + 1) * d_v].T for h in range(3)).requires_grad_()
    grad = torch.autograd.grad(loss_of(output).sum(), output)[0]
    with torch.no_grad():
        pulls = measured(loss_of, heads, w_o)
    _check(lab.call("gate_sensitivity", grad, heads, w_o), pulls, atol=1e-7)


@exercise.case("X: sizes that fit in the wrong places, N=T=H=3 D_v4 M12")
def trap(lab):
    args = inputs(**TRAP, seed=30)
    _check(lab.call("gate_sensitivity", *args), slopes(*args))


standard.tensor_cases(exercise, lambda: (inputs(**F, seed=40, scale=0.25), {}), oracle, NAMES)


def _pulls(grad_output, heads, w_o):
    blocks = w_o.unflatten(1, (heads.shape[1], -1))
    return torch.einsum("nqm,nhqd,mhd->nh", grad_output, heads, blocks)


@exercise.right
def einsum(grad_output, heads, w_o):
    return _pulls(grad_output, heads, w_o).abs().mean(0)


@exercise.right
def gradient_of_the_heads(grad_output, heads, w_o):
    grad_heads = (grad_output @ w_o).unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)
    return (grad_heads * heads).sum((2, 3)).abs().mean(0)


@exercise.right
def loop_over_heads(grad_output, heads, w_o):
    d_v = heads.shape[-1]
    scores = []
    for h in range(heads.shape[1]):
        write = heads[:, h] @ w_o[:, h * d_v:(h + 1) * d_v].T
        scores.append((grad_output * write).flatten(1).sum(1).abs().mean())
    return torch.stack(scores)


@exercise.right
def jvp_in_the_gates(grad_output, heads, w_o):
    def output(gates):
        return (heads * gates[:, None, None]).transpose(1, 2).flatten(2) @ w_o.T
    ones = heads.new_ones(heads.shape[1])
    moves = [torch.func.jvp(output, (ones,), (direction,))[1] for direction in torch.eye(len(ones), dtype=ones.dtype)]
    return torch.stack([(grad_output * move).sum((1, 2)).abs().mean() for move in moves])


@exercise.right
def autograd_of_a_gate_per_example(grad_output, heads, w_o):
    gates = heads.new_ones(heads.shape[:2]).requires_grad_()
    output = (heads * gates[..., None, None]).transpose(1, 2).flatten(2) @ w_o.T
    slope, = torch.autograd.grad(output, gates, grad_output, create_graph=True)
    return slope.abs().mean(0)


@exercise.right
def in_float64_inside(grad_output, heads, w_o):
    return _pulls(grad_output.double(), heads.double(), w_o.double()).abs().mean(0).to(heads.dtype)


@exercise.wrong
def signed_average(grad_output, heads, w_o):
    """Opposite examples cancel; take the absolute value per example first."""
    return _pulls(grad_output, heads, w_o).mean(0).abs()


@exercise.wrong(id="signed-average")
def with_its_sign(grad_output, heads, w_o):
    return _pulls(grad_output, heads, w_o).mean(0)


@exercise.wrong(id="signed-average")
def one_gate_for_all_examples(grad_output, heads, w_o):
    return _pulls(grad_output, heads, w_o).sum(0).abs()


@exercise.wrong
def map_norm(grad_output, heads, w_o):
    """The norm of the attention map ignores V, W_O and the loss; the norm of a head's rows still ignores the last
    two."""
    return heads.flatten(2).norm(dim=-1).mean(0)


@exercise.wrong(id="map-norm")
def mean_absolute_value(grad_output, heads, w_o):
    return heads.abs().mean((0, 2, 3))


@exercise.wrong(id="map-norm")
def norm_over_all_examples(grad_output, heads, w_o):
    return heads.transpose(0, 1).flatten(1).norm(dim=-1)


@exercise.wrong(id="map-norm")
def absolute_sum(grad_output, heads, w_o):
    return heads.abs().sum((2, 3)).mean(0)


@exercise.wrong
def wo_left_out(grad_output, heads, w_o):
    """The head reaches the loss through W_O."""
    return torch.einsum("nqm,nhqd->nh", grad_output, heads).abs().mean(0)


@exercise.wrong(id="wo-left-out")
def gradient_read_as_merged_heads(grad_output, heads, w_o):
    merged = heads.transpose(1, 2).flatten(2)
    return (grad_output * merged).unflatten(-1, (heads.shape[1], -1)).sum((1, 3)).abs().mean(0)


@exercise.wrong
def normalised_unasked(grad_output, heads, w_o):
    """Per-layer normalisation is a separate choice."""
    score = _pulls(grad_output, heads, w_o).abs().mean(0)
    return score / score.norm()


@exercise.wrong(id="normalised-unasked")
def shares_of_the_layer(grad_output, heads, w_o):
    score = _pulls(grad_output, heads, w_o).abs().mean(0)
    return score / score.sum()


@exercise.wrong(id="normalised-unasked")
def largest_is_one(grad_output, heads, w_o):
    score = _pulls(grad_output, heads, w_o).abs().mean(0)
    return score / score.max()


@exercise.wrong
def absolute_too_early(grad_output, heads, w_o):
    """A gate moves the whole output of an example at once: sum its rows and channels before the absolute value."""
    blocks = w_o.unflatten(1, (heads.shape[1], -1))
    return torch.einsum("nqm,nhqd,mhd->nhq", grad_output, heads, blocks).abs().sum(-1).mean(0)


@exercise.wrong(id="absolute-too-early")
def of_every_product(grad_output, heads, w_o):
    grad_heads = (grad_output @ w_o).unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)
    return (grad_heads * heads).abs().sum((2, 3)).mean(0)
