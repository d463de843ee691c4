"""Session 00, start: what a head is, before any attention.

Letters: B batch, S sequence length, H heads, D head width. A packed row lays its heads side by side,
channel c = h·D + d.
"""
from jaxtyping import Shaped
from torch import Tensor


def identity_heads(x: Shaped[Tensor, "B S HD"], num_heads: int) -> Shaped[Tensor, "B S H D"]:
    """The heads of rows whose projections are the identity.

    x: [B,S,H·D], any dtype. num_heads: H, at least 1.
    Returns [B,S,H,D] with D = H·D / H: head h holds channels h·D to h·D+D-1 of its own token. No value changes.
    Raises ValueError ("divisible") when the heads cannot share the width evenly.
    Source: the head-major packing of the Transformer, Vaswani et al. 2017, section 3.2.2.
    """
    ### BEGIN SOLUTION
    if x.shape[-1] % num_heads:
        raise ValueError(f"{x.shape[-1]} channels are not divisible by {num_heads} heads")
    return x.unflatten(-1, (num_heads, x.shape[-1] // num_heads))
    ### END SOLUTION
