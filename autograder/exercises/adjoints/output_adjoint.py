"""Back through W_O: to the merged heads, to the stored weight, to the bias."""
from ...exercise import Exercise
from . import _affine, _parts

exercise = Exercise(
    "output_adjoint", step=1, points=2, minutes=5, difficulty=2, importance=4, exempt=_parts.NOT_DIFFERENTIATED,
    summary="Send the gradient of the output back through W_O: to the merged heads, the stored weight and the bias.",
    hints=(
        "Write y = W·x + b for one row with two inputs and three outputs, and ask of each x, W and b entry: which "
        "outputs does it touch, and with which factor?",
        "The shapes decide most of it: each gradient has the shape of what it belongs to. Which axes of the incoming "
        "gradient are then left over, and what happens to an axis that is left over?",
        "The weight is stored [out,in]. Its gradient pairs every output channel with every input channel; every row of "
        "every sample has a say in each pair.",
    ),
    hides="With M = H·D_v a transposed weight gradient keeps its shape and its norm; one row in one sample hides a "
          "missing sum.",
)
SIZES = {
    "all three gradients: B2 T4 M7, 24 merged channels": (2, 4, 24, 7),
    "B=3, T=6, M = H·D_v = 12: sizes where a transpose fits": (3, 6, 12, 12),
}
adapted = _affine.declare(exercise, ("g", "x", "w"), ("grad_merged", "grad_w_o", "grad_bias"), SIZES)


@exercise.wrong
@adapted
def gradient_in_logical_order(x, g, w):
    """The stored weight's gradient is Gᵀ·X."""
    gx, gw, gb = _affine.matrix_products(x, g, w)
    return gx, gw.T, gb


@exercise.wrong
@adapted
def weight_not_transposed(x, g, w):
    """grad_merged used W_O the wrong way round."""
    _, gw, gb = _affine.matrix_products(x, g, w)
    return g @ w.T, gw, gb


@exercise.wrong
@adapted
def batch_not_summed(x, g, w):
    """Batch and query rows all contribute."""
    return g @ w, g.mT @ x, g.sum(1)


@exercise.wrong(id="batch-not-summed")
@adapted
def rows_of_the_first_sample(x, g, w):
    return g @ w, g[0].T @ x[0], g[0].sum(0)


@exercise.wrong(id="batch-not-summed")
@adapted
def query_rows_kept(x, g, w):
    gx, gw, _ = _affine.matrix_products(x, g, w)
    return gx, gw, g.sum(0)


@exercise.wrong(id="batch-not-summed")
@adapted
def bias_of_each_sample(x, g, w):
    gx, gw, _ = _affine.matrix_products(x, g, w)
    return gx, gw, g.sum(1)


_parts.recognise_by_part(exercise)


@exercise.recognise("batch-not-summed")
def rows_are_left_out(trials):
    wrong = _affine.summed_parts(trials, SIZES[exercise.cases[0].title])
    return bool(wrong) and all(_affine.unsummed(*part) or _affine.some_rows_missing(*part) for part in wrong)
