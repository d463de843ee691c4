"""Session 04, adjoints: from the gradient of the output back to every input and every parameter.

Letters: B batch, T target (query) length, S source (key) length, H heads, M model width, D head width of queries and
keys, D_v head width of values. Q in a shape is the length of whichever sequence the rows belong to. Head packing is
head-major: channel c = h·D + d. A stored weight is [out,in], as `nn.Linear` keeps it, and its gradient has the same
shape. A `state` is a dict of stored tensors: q_proj.weight [H·D,M], k_proj.weight [H·D,M], v_proj.weight [H·D_v,M],
o_proj.weight [M,H·D_v], and where there are biases q_proj.bias and so on. A boolean mask is True where a query may
look.
"""
import itertools
import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from mha_lab.given import attend, local_backward


def output_adjoint(grad_output: Float[Tensor, "B Q M"], merged: Float[Tensor, "B Q HD_v"],
                   w_o: Float[Tensor, "M HD_v"]) -> tuple[Float[Tensor, "B Q HD_v"], Float[Tensor, "M HD_v"],
                                                          Float[Tensor, " M"]]:
    """Back through output = merged·W_Oᵀ + b_O.

    grad_output: [B,Q,M], the gradient of a loss for the output. merged: [B,Q,H·D_v], the rows that went in.
    w_o: the stored weight [M,H·D_v].
    Returns (grad_merged [B,Q,H·D_v], grad_w_o [M,H·D_v], grad_bias [M]). Weight and bias collect from every row.
    Source: Derivation; `torch.nn.Linear` for the stored orientation.
    """
    raise NotImplementedError("output_adjoint: write this in mha_lab/adjoints.py")


def merge_adjoint(grad_merged: Float[Tensor, "B Q HD_v"], num_heads: int) -> Float[Tensor, "B H Q D_v"]:
    """Back through the merge [B,H,Q,D_v] to [B,Q,H·D_v].

    grad_merged: [B,Q,H·D_v], of any strides. num_heads: H.
    Returns grad_heads [B,H,Q,D_v]: the map with ⟨merge(u), g⟩ = ⟨u, merge_adjoint(g)⟩ for all u and g.
    Source: Derivation. The merge permutes numbers; the adjoint of a permutation is its inverse.
    """
    raise NotImplementedError("merge_adjoint: write this in mha_lab/adjoints.py")


def split_adjoint(grad_heads: Float[Tensor, "B H S D"]) -> Float[Tensor, "B S HD"]:
    """Back through the split [B,S,H·D] to [B,H,S,D].

    grad_heads: [B,H,S,D], of any strides.
    Returns grad_packed [B,S,H·D]: the map with ⟨split(u), g⟩ = ⟨u, split_adjoint(g)⟩ for all u and g.
    Source: Derivation. The split permutes numbers; the adjoint of a permutation is its inverse.
    """
    raise NotImplementedError("split_adjoint: write this in mha_lab/adjoints.py")


def projection_adjoint(x: Float[Tensor, "B S M"], grad_packed: Float[Tensor, "B S HD"],
                       weight: Float[Tensor, "HD M"]) -> tuple[Float[Tensor, "B S M"], Float[Tensor, "HD M"],
                                                               Float[Tensor, " HD"]]:
    """Back through packed = x·Wᵀ + b, the projection of Q, K or V.

    x: [B,S,M], the rows that went in. grad_packed: [B,S,H·D], the gradient of a loss for the packed rows.
    weight: the stored weight [H·D,M].
    Returns (grad_x [B,S,M], grad_weight [H·D,M], grad_bias [H·D]). Weight and bias collect from every row.
    Source: Derivation; `torch.nn.Linear` for the stored orientation.
    """
    raise NotImplementedError("projection_adjoint: write this in mha_lab/adjoints.py")


def central_difference(f: Callable[[Tensor], Tensor], x: Float[Tensor, "*shape"],
                       eps: float = 1e-6) -> Float[Tensor, "*shape"]:
    """The gradient of f at x, measured: (f(x + eps·e) - f(x - eps·e)) / (2·eps) for every coordinate e.

    f: takes a tensor of x's shape and returns a scalar tensor. x: float64, of any strides; it may be stepped in place
    if it comes back bit by bit. eps: the step, in units of x.
    Returns a tensor of x's shape. The error is of order eps² from the third derivative, and of order 1e-16·|f|/eps from
    rounding.
    Raises ValueError: "float64" for another dtype of x, "scalar" when f(x) is not a scalar.
    Source: Derivation from Taylor's formula.
    """
    raise NotImplementedError("central_difference: write this in mha_lab/adjoints.py")


def cross_attention_backward(grad_output: Float[Tensor, "B T M"], target: Float[Tensor, "B T M"],
                             source: Float[Tensor, "B S M"], state: Mapping[str, Tensor], num_heads: int,
                             visible: Bool[Tensor, "*axes"] | None = None) -> dict[str, Tensor]:
    """Every gradient of one cross-attention call: target rows read source rows.

    grad_output: [B,T,M], the gradient of a loss for the output. target: [B,T,M]. source: [B,S,M]. state: stored weights
    and, where there are some, biases. num_heads: H. visible: boolean, True where a query may look, four axes
    broadcastable to [B,H,T,S]; None when all is visible. The forward pass has to be computed again.
    Returns a dict with the keys "target" [B,T,M], "source" [B,S,M] and every key of `state`, each gradient in the shape
    of what it belongs to. Source rows feed keys and values: two paths end there.
    Source: Derivation. `local_backward` is the derivative of the attention call itself.
    """
    raise NotImplementedError("cross_attention_backward: write this in mha_lab/adjoints.py")


def self_attention_backward(grad_output: Float[Tensor, "B T M"], x: Float[Tensor, "B T M"],
                            state: Mapping[str, Tensor], num_heads: int,
                            visible: Bool[Tensor, "*axes"] | None = None) -> dict[str, Tensor]:
    """Every gradient of one self-attention call: x is query, key and value rows at once.

    grad_output: [B,T,M]. x: [B,T,M]. state, num_heads and visible as in `cross_attention_backward`.
    Returns a dict with the keys "x" [B,T,M], one tensor for the one input, and every key of `state`.
    Source: Derivation. Gradients of one tensor that is used several times add.
    """
    raise NotImplementedError("self_attention_backward: write this in mha_lab/adjoints.py")


def key_bias_direction(q_heads: Float[Tensor, "B H Q D"], key_bias: Float[Tensor, " HD"]) -> Float[Tensor, "B H Q 1"]:
    """What the key bias adds to each row of scaled scores.

    q_heads: [B,H,Q,D]. key_bias: [H·D], packed like a row of K.
    Returns [B,H,Q,1], after the division by √D: the same shift for every key of a row, so softmax does not see it.
    Source: Derivation. A score is linear in its key.
    """
    raise NotImplementedError("key_bias_direction: write this in mha_lab/adjoints.py")


class RecomputedAttention(torch.autograd.Function):
    """Attention that keeps its inputs and makes scores, probabilities and dropout mask again in the backward pass.

    RecomputedAttention.apply(q, k, v, visible, dropout_p, training) -> heads.
    Between the passes the graph may hold the inputs, a state of the random generator, and no tensor with more elements
    than the output. Inputs belong into `ctx.save_for_backward`: there autograd notices one that was changed in place.
    The backward pass leaves torch's global (CPU) generator where it found it.
    Source: `torch.autograd.Function` and `torch.random`, PyTorch 2.13; the idea is gradient checkpointing (Chen et al.
    2016).
    """

    @staticmethod
    def forward(ctx: FunctionCtx, q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"],
                v: Float[Tensor, "B H S D_v"], visible: Bool[Tensor, "*axes"], dropout_p: float,
                training: bool) -> Float[Tensor, "B H T D_v"]:
        """One attention call, with dropout on its probabilities.

        q: [B,H,T,D]. k: [B,H,S,D]. v: [B,H,S,D_v]. visible: boolean, True where a query may look, four axes
        broadcastable to [B,H,T,S]. dropout_p: the probability that a weight is dropped, in [0, 1); the others grow by
        1/(1 - dropout_p). training: without it nothing is dropped.
        Returns the heads [B,H,T,D_v].
        Raises ValueError: "no visible key" when a query may look at nothing, "probability" for a dropout_p outside
        [0, 1).
        """
        raise NotImplementedError("RecomputedAttention.forward: write this in mha_lab/adjoints.py")

    @staticmethod
    def backward(ctx: FunctionCtx, grad_heads: Float[Tensor, "B H T D_v"]) -> tuple[Tensor | None, ...]:
        """One gradient for each argument of `forward`: those of q, k and v, then None three times.

        grad_heads: [B,H,T,D_v], the gradient of a loss for the heads.
        """
        raise NotImplementedError("RecomputedAttention.backward: write this in mha_lab/adjoints.py")
