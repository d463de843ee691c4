"""The classic layer as a special case of heads over a shared basis."""
import torch

from ... import expect, standard
from ...exercise import VALUES, Exercise
from ...nested import nested_cases, structure

exercise = Exercise(
    "classic_as_collaborative", step=7, points=2, minutes=4, difficulty=2, importance=3,
    summary="Write a classic layer over one shared basis, so that all its scores come back exactly.",
    hints=(
        "A basis as wide as all heads together has room for every head's own map. Which tensor of the state is that "
        "already?",
        "Head h's score sums over its own D coordinates only. Which weights on the H·D terms leave exactly those?",
        "Packing is head-major: write the coordinates 0 to 11 of three heads of width 4 in a row and mark those of "
        "head 1.",
    ),
    hides="H = D makes interleaved rows a transpose of the block rows; D = 1 hides the layout; equal rows of W_Q hide "
          "everything.",
)

LABELS = {0: "w_q", 1: "w_k", 2: "mixing"}
FULL = {}
SHAPES = {"H3 D4 M10": (3, 4, 10), "H4 D3 M10": (4, 3, 10), "H3 D3 M9": (3, 3, 9)}


def state(heads, width, model, full=True):
    """Stored weights; with `full` those of values and output too, whose width is another one."""
    given = {"q_proj.weight": standard.normal(heads * width, model, seed=1),
             "k_proj.weight": standard.normal(heads * width, model, seed=2)}
    if full:
        given |= {"v_proj.weight": standard.normal(heads * (width + 2), model, seed=3),
                  "o_proj.weight": standard.normal(model, heads * (width + 2), seed=4)}
    return given


def oracle(state, num_heads):
    """Coordinate by coordinate."""
    w_q, w_k = state["q_proj.weight"], state["k_proj.weight"]
    total = w_q.shape[0]
    rows = [[float(c * num_heads // total == h) for c in range(total)] for h in range(num_heads)]
    return w_q, w_k, torch.tensor(rows, dtype=w_q.dtype)


def _scores(x, y, w_q, w_k, mixing):
    return torch.stack([x @ (w_q.mT @ torch.diag(row) @ w_k) @ y.mT for row in mixing])


def _case(title, heads, width, model):
    @exercise.case(f"the packed maps, and one block of ones a head: {title}")
    def probe(lab):
        given = state(heads, width, model)
        want = oracle(given, heads)
        got = lab.call("classic_as_collaborative", given, heads)
        structure(got, want, "the result")
        for tensor, asked, name in zip(got, want, LABELS.values(), strict=True):
            expect.shape(tensor, asked.shape, name)
            expect.dtype(tensor, asked.dtype, name)
        for tensor, asked, name in zip(got[:2], want[:2], ("w_q", "w_k"), strict=True):
            expect.close(tensor, asked, name, ("coordinate", "input"))
        wrong = (got[2] != want[2]).any(1).nonzero()
        if len(wrong):
            h = wrong[0].item()
            x, y = standard.normal(1, model, seed=8), standard.normal(1, model, seed=9)
            mine, theirs = (_scores(x, y, *t)[h, 0, 0].item() for t in (got, want))
            raise expect.Mismatch(f"row {h} of mixing is {_row(got[2][h])}, expected {_row(want[2][h])}: on a pair of "
                                  f"rows its score is {mine:.4f}, that of the classic head {h} {theirs:.4f}")
    FULL[probe] = heads * width


def _row(values):
    return f"({', '.join(f'{v:g}' for v in values.tolist())})"


for _title, _sizes in SHAPES.items():
    _case(_title, *_sizes)


nested_cases(exercise, lambda: ((state(3, 4, 10, full=False),), {"num_heads": 3}), oracle, ("state",), LABELS)


def _maps(state):
    return state["q_proj.weight"], state["k_proj.weight"]


@exercise.right
def repeated_identity(state, num_heads):
    w_q, w_k = _maps(state)
    return w_q, w_k, torch.eye(num_heads, dtype=w_q.dtype).repeat_interleave(len(w_q) // num_heads, dim=1)


@exercise.right
def kronecker(state, num_heads):
    w_q, w_k = _maps(state)
    eye = torch.eye(num_heads).to(w_q)
    return w_q.clone(), w_k.clone(), torch.kron(eye, torch.ones(1, w_q.shape[0] // num_heads).to(w_q))


@exercise.right
def block_diagonal(state, num_heads):
    w_q, w_k = _maps(state)
    return w_q, w_k, torch.block_diag(*[w_q.new_ones(1, len(w_q) // num_heads) for _ in range(num_heads)])


@exercise.right
def owners_compared(state, num_heads):
    w_q, w_k = _maps(state)
    owner = torch.arange(len(w_q)) // (len(w_q) // num_heads)
    return [w_q, w_k, (owner == torch.arange(num_heads)[:, None]).to(w_q.dtype)]


@exercise.right
def filled_slices(state, num_heads):
    w_q, w_k = _maps(state)
    mixing = torch.zeros(num_heads, w_q.shape[0], dtype=w_q.dtype)
    for h, rows in enumerate(torch.arange(w_q.shape[0]).chunk(num_heads)):
        mixing[h, rows] = 1
    return w_q, w_k, mixing


@exercise.wrong
def indicator_interleaved(state, num_heads):
    """The head layout differs from the contract: here head h got every H-th coordinate. Head h owns D consecutive
    coordinates, as its rows lie in the packed maps."""
    w_q, w_k = _maps(state)
    return w_q, w_k, torch.eye(num_heads, dtype=w_q.dtype).repeat(1, len(w_q) // num_heads)


@exercise.wrong(id="indicator-interleaved")
def with_interleaved_maps(state, num_heads):
    w_q, w_k, mixing = indicator_interleaved(state, num_heads)
    w_q, w_k = (w.unflatten(0, (num_heads, -1)).transpose(0, 1).flatten(0, 1) for w in (w_q, w_k))
    return w_q, w_k, mixing


@exercise.wrong
def all_ones(state, num_heads):
    """An all-ones metric adds all heads' scores, in every head. A head's row is one on its own D coordinates only."""
    w_q, w_k = _maps(state)
    return w_q, w_k, w_q.new_ones(num_heads, len(w_q))


def _kept(state, num_heads, kept):
    w_q, w_k, mixing = repeated_identity(state, num_heads)
    return w_q[kept], w_k[kept], mixing[:, kept]


@exercise.wrong
def compressed_basis(state, num_heads):
    """The basis is narrower than H·D, so the scores come back only nearly. Compression is an approximation whose error
    has to be measured; exact is full width."""
    return _kept(state, num_heads, slice(0, len(state["q_proj.weight"]) // 2))


@exercise.wrong(id="compressed-basis")
def half_of_every_head(state, num_heads):
    return _kept(state, num_heads, slice(0, None, 2))


@exercise.recognise("compressed-basis")
def narrower(trials):
    """However it was found: one width for both maps and all metrics, and narrower than the packed maps."""
    values = [t for t in trials if t.case.kind == VALUES]
    return all(t.transcript and _narrow(t.transcript[0].value, FULL.get(t.case.probe, 12)) for t in values)


def _narrow(answer, full):
    parts = answer if isinstance(answer, (tuple, list)) and len(answer) == 3 else [None]
    if not all(isinstance(p, torch.Tensor) and p.dim() == 2 for p in parts):
        return False
    w_q, w_k, mixing = parts
    return w_q.shape == w_k.shape and w_q.shape[0] == mixing.shape[1] < full
