"""Back through a packed projection: to its rows, to the stored weight, to the bias."""
from ...exercise import Exercise
from . import _affine, _parts

exercise = Exercise(
    "projection_adjoint", step=4, points=2, minutes=4, difficulty=2, importance=4, exempt=_parts.NOT_DIFFERENTIATED,
    summary="Send the gradient of packed Q, K or V rows back through the projection that made them.",
    hints=(
        "It is the map of W_O again with other names. Which tensor is the input here, and which gradient comes in?",
        "Write down the three shapes you owe before you write a product: rows [B,S,M], stored weight [out,in], bias "
        "[out].",
        "If a loss averages over rows, that average is in the incoming gradient already. What is left to do with the "
        "rows?",
    ),
    hides="With H·D = M a transposed weight gradient and a transposed weight keep every shape; one row in one sample "
          "hides an average.",
)
SIZES = {
    "all three gradients: B2 S5 M7, 18 packed channels": (2, 5, 7, 18),
    "B=3, S=6, M = H·D = 12: sizes where a transpose fits": (3, 6, 12, 12),
}
adapted = _affine.declare(exercise, ("x", "g", "w"), ("grad_x", "grad_weight", "grad_bias"), SIZES)


@exercise.wrong
@adapted
def gradient_in_logical_order(x, g, w):
    """Report [out,in]."""
    gx, gw, gb = _affine.matrix_products(x, g, w)
    return gx, gw.T, gb


@exercise.wrong
@adapted
def weight_transposed(x, g, w):
    """grad_x = G·W for stored W."""
    _, gw, gb = _affine.matrix_products(x, g, w)
    return g @ w.T, gw, gb


def _averaged(x, g, w, weight, bias):
    gx, gw, gb = _affine.matrix_products(x, g, w)
    return gx, gw / weight, gb / bias


@exercise.wrong
@adapted
def rows_averaged(x, g, w):
    """Sum over rows; the loss already holds its own average."""
    rows = x.shape[0] * x.shape[1]
    return _averaged(x, g, w, rows, rows)


@exercise.wrong(id="rows-averaged")
@adapted
def samples_averaged(x, g, w):
    return _averaged(x, g, w, x.shape[0], x.shape[0])


@exercise.wrong(id="rows-averaged")
@adapted
def bias_averaged(x, g, w):
    return _averaged(x, g, w, 1, x.shape[0] * x.shape[1])


@exercise.wrong(id="rows-averaged")
@adapted
def tokens_averaged(x, g, w):
    return _averaged(x, g, w, x.shape[1], x.shape[1])


_parts.recognise_by_part(exercise)


@exercise.recognise("rows-averaged")
def rows_count_less_than_once(trials):
    wrong = _affine.summed_parts(trials, SIZES[exercise.cases[0].title])
    return bool(wrong) and all(_affine.averaged(*part) for part in wrong)
