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
    ### BEGIN SOLUTION
    rows, grads = merged.flatten(0, 1), grad_output.flatten(0, 1)
    return grad_output @ w_o, grads.T @ rows, grads.sum(0)
    ### END SOLUTION


def merge_adjoint(grad_merged: Float[Tensor, "B Q HD_v"], num_heads: int) -> Float[Tensor, "B H Q D_v"]:
    """Back through the merge [B,H,Q,D_v] to [B,Q,H·D_v].

    grad_merged: [B,Q,H·D_v], of any strides. num_heads: H.
    Returns grad_heads [B,H,Q,D_v]: the map with ⟨merge(u), g⟩ = ⟨u, merge_adjoint(g)⟩ for all u and g.
    Source: Derivation. The merge permutes numbers; the adjoint of a permutation is its inverse.
    """
    ### BEGIN SOLUTION
    return grad_merged.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    ### END SOLUTION


def split_adjoint(grad_heads: Float[Tensor, "B H S D"]) -> Float[Tensor, "B S HD"]:
    """Back through the split [B,S,H·D] to [B,H,S,D].

    grad_heads: [B,H,S,D], of any strides.
    Returns grad_packed [B,S,H·D]: the map with ⟨split(u), g⟩ = ⟨u, split_adjoint(g)⟩ for all u and g.
    Source: Derivation. The split permutes numbers; the adjoint of a permutation is its inverse.
    """
    ### BEGIN SOLUTION
    return grad_heads.transpose(1, 2).flatten(2)
    ### END SOLUTION


def projection_adjoint(x: Float[Tensor, "B S M"], grad_packed: Float[Tensor, "B S HD"],
                       weight: Float[Tensor, "HD M"]) -> tuple[Float[Tensor, "B S M"], Float[Tensor, "HD M"],
                                                               Float[Tensor, " HD"]]:
    """Back through packed = x·Wᵀ + b, the projection of Q, K or V.

    x: [B,S,M], the rows that went in. grad_packed: [B,S,H·D], the gradient of a loss for the packed rows.
    weight: the stored weight [H·D,M].
    Returns (grad_x [B,S,M], grad_weight [H·D,M], grad_bias [H·D]). Weight and bias collect from every row.
    Source: Derivation; `torch.nn.Linear` for the stored orientation.
    """
    ### BEGIN SOLUTION
    rows, grads = x.flatten(0, 1), grad_packed.flatten(0, 1)
    return grad_packed @ weight, grads.T @ rows, grads.sum(0)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    if x.dtype != torch.float64:
        raise ValueError(f"central differences need float64, got {x.dtype}")
    if f(x).dim() != 0:
        raise ValueError("central differences need a scalar function")
    slopes = torch.zeros_like(x)
    for index in itertools.product(*map(range, x.shape)):
        step = torch.zeros_like(x)
        step[index] = eps
        slopes[index] = (f(x + step) - f(x - step)) / (2 * eps)
    return slopes
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    rows = {"q": target, "k": source, "v": source}
    weight = {role: state[f"{role}_proj.weight"] for role in "qkvo"}
    packed = (F.linear(x, weight[role], state.get(f"{role}_proj.bias")) for role, x in rows.items())
    q, k, v = (p.unflatten(-1, (num_heads, -1)).transpose(1, 2) for p in packed)
    heads, probabilities = attend(q, k, v, visible)
    merged = heads.transpose(1, 2).flatten(2)

    grads, paths = {}, {}
    grad_merged, grads["o_proj.weight"], grads["o_proj.bias"] = output_adjoint(grad_output, merged, weight["o"])
    grad_heads = local_backward(merge_adjoint(grad_merged, num_heads), q, k, v, probabilities)
    for (role, x), grad in zip(rows.items(), grad_heads, strict=True):
        paths[role], grads[f"{role}_proj.weight"], grads[f"{role}_proj.bias"] = projection_adjoint(
            x, split_adjoint(grad), weight[role])
    return {"target": paths["q"], "source": paths["k"] + paths["v"]} | {name: grads[name] for name in state}
    ### END SOLUTION


def self_attention_backward(grad_output: Float[Tensor, "B T M"], x: Float[Tensor, "B T M"],
                            state: Mapping[str, Tensor], num_heads: int,
                            visible: Bool[Tensor, "*axes"] | None = None) -> dict[str, Tensor]:
    """Every gradient of one self-attention call: x is query, key and value rows at once.

    grad_output: [B,T,M]. x: [B,T,M]. state, num_heads and visible as in `cross_attention_backward`.
    Returns a dict with the keys "x" [B,T,M], one tensor for the one input, and every key of `state`.
    Source: Derivation. Gradients of one tensor that is used several times add.
    """
    ### BEGIN SOLUTION
    grads = cross_attention_backward(grad_output, x, x, state, num_heads, visible)
    return {"x": grads.pop("target") + grads.pop("source")} | grads
    ### END SOLUTION


def key_bias_direction(q_heads: Float[Tensor, "B H Q D"], key_bias: Float[Tensor, " HD"]) -> Float[Tensor, "B H Q 1"]:
    """What the key bias adds to each row of scaled scores.

    q_heads: [B,H,Q,D]. key_bias: [H·D], packed like a row of K.
    Returns [B,H,Q,1], after the division by √D: the same shift for every key of a row, so softmax does not see it.
    Source: Derivation. A score is linear in its key.
    """
    ### BEGIN SOLUTION
    _, num_heads, _, width = q_heads.shape
    return q_heads @ key_bias.view(num_heads, width, 1) / math.sqrt(width)
    ### END SOLUTION


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
        ### BEGIN SOLUTION
        if not 0 <= dropout_p < 1:
            raise ValueError(f"a dropout probability lies in [0, 1), got {dropout_p}")
        ctx.save_for_backward(q, k, v, visible)
        ctx.rng_state, ctx.dropout = torch.get_rng_state(), (dropout_p, training)
        _, probabilities = attend(q, k, v, visible)
        return F.dropout(probabilities, dropout_p, training) @ v
        ### END SOLUTION

    @staticmethod
    def backward(ctx: FunctionCtx, grad_heads: Float[Tensor, "B H T D_v"]) -> tuple[Tensor | None, ...]:
        """One gradient for each argument of `forward`: those of q, k and v, then None three times.

        grad_heads: [B,H,T,D_v], the gradient of a loss for the heads.
        """
        ### BEGIN SOLUTION
        *inputs, visible = ctx.saved_tensors
        q, k, v = (t.detach().requires_grad_() for t in inputs)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.rng_state)
            _, probabilities = attend(q, k, v, visible)
            heads = F.dropout(probabilities, *ctx.dropout) @ v
        return *torch.autograd.grad(heads, (q, k, v), grad_heads), None, None, None
        ### END SOLUTION
