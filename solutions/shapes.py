"""Session 01, the shape machine: from model-width rows to heads and back.

Letters: B batch, T target (query) length, S source (key) length, H heads, M model width, D head width of
queries and keys, D_v head width of values. Q in a shape is the length of whichever sequence the rows belong to.
Head packing is head-major: channel c = h·D + d. A boolean mask is True where a query may look.
"""
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn


def head_width(d_model: int, num_heads: int) -> int:
    """How many channels each head owns, in channels.

    d_model: M. num_heads: H. Returns D = M / H: (512, 8) gives 64.
    Raises ValueError ("positive") when either is below 1, ValueError ("divisible") when H does not divide M.
    Source: Vaswani et al. 2017, section 3.2.2, d_k = d_model / h.
    """
    ### BEGIN SOLUTION
    if d_model < 1 or num_heads < 1:
        raise ValueError(f"d_model and num_heads must be positive, got {d_model} and {num_heads}")
    width, remainder = divmod(d_model, num_heads)
    if remainder:
        raise ValueError(f"d_model {d_model} is not divisible by num_heads {num_heads}")
    return width
    ### END SOLUTION


def split_heads(packed: Float[Tensor, "B S HD"], num_heads: int) -> Float[Tensor, "B H S D"]:
    """Projected rows, seen head by head.

    packed: [B,S,H·D], with any strides. num_heads: H.
    Returns [B,H,S,D], a view of the same storage: heads[b,h,s,d] is packed[b,s,h·D+d].
    Raises ValueError ("three axes") for another number of axes, ValueError ("divisible") when H does not divide H·D.
    Source: the split of the Annotated Transformer's MultiHeadedAttention.
    """
    ### BEGIN SOLUTION
    if packed.dim() != 3:
        raise ValueError(f"packed rows have three axes [B,S,H·D], got {list(packed.shape)}")
    if packed.shape[-1] % num_heads:
        raise ValueError(f"{packed.shape[-1]} channels are not divisible by {num_heads} heads")
    return packed.unflatten(-1, (num_heads, packed.shape[-1] // num_heads)).transpose(1, 2)
    ### END SOLUTION


def merge_heads(heads: Float[Tensor, "B H Q D"]) -> Float[Tensor, "B Q HD"]:
    """The heads of every token, laid side by side again.

    heads: [B,H,Q,D], with any strides.
    Returns [B,Q,H·D], where packed[b,q,h·D+d] is heads[b,h,q,d]. It may be a copy.
    Raises ValueError ("four axes") for another number of axes.
    Source: Concat(head_1 ... head_h), Vaswani et al. 2017, section 3.2.2.
    """
    ### BEGIN SOLUTION
    if heads.dim() != 4:
        raise ValueError(f"heads have four axes [B,H,Q,D], got {list(heads.shape)}")
    return heads.transpose(1, 2).flatten(2)
    ### END SOLUTION


def insert_head_axis(mask: Shaped[Tensor, "B Q S"]) -> Shaped[Tensor, "B 1 Q S"]:
    """A mask for every head of a sample.

    mask: [B,T,T], or [B,1,S] for padding, of any dtype.
    Returns a view with a head axis of size 1: [B,1,T,T] or [B,1,1,S]. What True means stays as it is.
    Raises ValueError ("three axes") for another number of axes.
    Source: the first step of the Annotated Transformer's MultiHeadedAttention.
    """
    ### BEGIN SOLUTION
    if mask.dim() != 3:
        raise ValueError(f"a mask without heads has three axes, got {list(mask.shape)}")
    return mask.unsqueeze(1)
    ### END SOLUTION


def shape_ledger(batch: int, q_len: int, k_len: int, d_model: int, num_heads: int,
                 d_v: int | None = None) -> dict[str, tuple[int, ...]]:
    """Every shape of one attention call, without running it.

    batch: B, q_len: T, k_len: S, d_model: M, num_heads: H, all at least 1. d_v: D_v, or None for D = M / H.
    Returns one tuple for each of query_in, key_in, value_in, q_packed, k_packed, v_packed, q_heads, k_heads,
    v_heads, scores, probabilities, head_output, token_major, merged, output.
    Raises ValueError ("divisible") when H does not divide M.
    Source: Derivation from the equations of Vaswani et al. 2017, section 3.2.2.
    """
    ### BEGIN SOLUTION
    B, T, S, M, H = batch, q_len, k_len, d_model, num_heads
    if M % H:
        raise ValueError(f"d_model {M} is not divisible by num_heads {H}")
    D = M // H
    D_v = D if d_v is None else d_v
    return {
        "query_in": (B, T, M), "key_in": (B, S, M), "value_in": (B, S, M),
        "q_packed": (B, T, H * D), "k_packed": (B, S, H * D), "v_packed": (B, S, H * D_v),
        "q_heads": (B, H, T, D), "k_heads": (B, H, S, D), "v_heads": (B, H, S, D_v),
        "scores": (B, H, T, S), "probabilities": (B, H, T, S),
        "head_output": (B, H, T, D_v), "token_major": (B, T, H, D_v), "merged": (B, T, H * D_v),
        "output": (B, T, M),
    }
    ### END SOLUTION


class MultiHeadAttention(nn.Module):
    """Multi-head attention that serves self-attention and cross-attention.

    Four `nn.Linear` maps of M to M, named q_proj, k_proj, v_proj and o_proj: these names are what a checkpoint
    loads into. `bias` decides for all four. D = M / H.
    Raises ValueError ("divisible") when H does not divide M.
    Source: Vaswani et al. 2017, section 3.2.2; the four-map wrapper of the Annotated Transformer.
    """

    def __init__(self, d_model: int, num_heads: int, bias: bool = False):
        """d_model: M. num_heads: H. bias: whether the four maps add one."""
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % num_heads:
            raise ValueError(f"d_model {d_model} is not divisible by num_heads {num_heads}")
        self.d_model, self.num_heads, self.head_dim = d_model, num_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=bias)
        self.k_proj = nn.Linear(d_model, d_model, bias=bias)
        self.v_proj = nn.Linear(d_model, d_model, bias=bias)
        self.o_proj = nn.Linear(d_model, d_model, bias=bias)
        ### END SOLUTION

    def forward(self, query: Float[Tensor, "B T M"], key: Float[Tensor, "B S M"], value: Float[Tensor, "B S M"],
                visible: Bool[Tensor, "*axes"] | None = None) -> tuple[Float[Tensor, "B T M"],
                                                                      Float[Tensor, "B H T S"]]:
        """One call; target rows read source rows.

        query: [B,T,M]. key, value: [B,S,M]. visible: boolean, True where a query may look, of two axes [T,S] or of
        four that broadcast to [B,H,T,S]; None when all is visible.
        Returns (output [B,T,M], probabilities [B,H,T,S]): each query's weights over the S keys, one
        distribution for every head, before any dropout.
        Raises ValueError: "width" when a row is not M wide, "key and value length" when the two differ,
        "head axis" for a mask of three axes, "no visible key" when a query may look at nothing.
        `mha_lab.given.attend` is the middle of this call, ready to use. Write it yourself once: it is short.
        """
        ### BEGIN SOLUTION
        for name, rows in (("query", query), ("key", key), ("value", value)):
            if rows.shape[-1] != self.d_model:
                raise ValueError(f"{name} rows have width {rows.shape[-1]}, the module expects {self.d_model}")
        if key.shape[1] != value.shape[1]:
            raise ValueError(f"key and value length differ: {key.shape[1]} and {value.shape[1]}")
        per_head = (self.num_heads, self.head_dim)
        q = self.q_proj(query).unflatten(-1, per_head).transpose(1, 2)
        k = self.k_proj(key).unflatten(-1, per_head).transpose(1, 2)
        v = self.v_proj(value).unflatten(-1, per_head).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
        if visible is not None:
            if visible.dim() not in (2, 4):
                raise ValueError(f"a mask of shape {list(visible.shape)} needs its head axis, [B,1,T,S]")
            if not visible.any(-1).all():
                raise ValueError("a query has no visible key")
            scores = scores.masked_fill(~visible, -torch.inf)
        probabilities = scores.softmax(-1)
        merged = (probabilities @ v).transpose(1, 2).flatten(2)
        return self.o_proj(merged), probabilities
        ### END SOLUTION
