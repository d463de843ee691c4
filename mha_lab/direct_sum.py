"""Session 03, the direct sum: heads as blocks of matrices, and everything that follows from it.

Letters: B batch, T target length, S source length, H query heads, G key/value heads, R = H/G, M model width, D head
width of queries and keys, D_v head width of values. A *stored* weight is [out, in], as `nn.Linear` keeps it; a
*logical* one is [in, out]. Head packing is head-major: row h·D + d of a stored weight belongs to head h.
A `state` is a dict of stored tensors: q_proj.weight [H·D, M], k_proj.weight [H·D, M], v_proj.weight [H·D_v, M],
o_proj.weight [M, H·D_v], and for each of them, where it has one, a *.bias.
"""
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lab.given import attend

Pair = tuple[Tensor, Tensor | None]
Spans = dict[str, tuple[int, int]]


def pack_heads(per_head: Sequence[Pair]) -> Pair:
    """One stored weight for all heads.

    per_head: for each head in order its stored weight [D_i, M] and its bias [D_i] or None.
    Returns (weight [ΣD_i, M], bias [ΣD_i] or None): head after head, whole rows. A bias that no head has stays None.
    Raises ValueError: "bias" when only some heads have one, "width" when the heads do not read the same M.
    Source: Vaswani et al. 2017, section 3.2.2, read as a product with a block of columns for every head.
    """
    raise NotImplementedError("pack_heads: write this in mha_lab/direct_sum.py")


def project_per_head(x: Float[Tensor, "B S M"], weight: Float[Tensor, "HD M"], bias: Float[Tensor, "HD"] | None,
                     num_heads: int) -> Float[Tensor, "B H S D"]:
    """What each head's own map makes of a row.

    x: [B,S,M]. weight: packed and stored, [H·D, M]. bias: [H·D] or None. num_heads: H, which divides H·D.
    Returns [B,H,S,D]: heads[b,h,s] is W_h · x[b,s] + b_h, where W_h is [D, M] and reads all M channels.
    Source: Derivation. Block rows of a product do not mix, so packed projection then split is the same function.
    """
    raise NotImplementedError("project_per_head: write this in mha_lab/direct_sum.py")


def project(x: Float[Tensor, "*rows in"], weight: Float[Tensor, "a b"], bias: Float[Tensor, "out"] | None = None,
            orientation: str = "out_in") -> Float[Tensor, "*rows out"]:
    """An affine map, for either way to keep its weight.

    x: rows of width `in`. weight: [out, in] when orientation is "out_in" (nn.Linear), [in, out] when it is "in_out"
    (a logical map, and the Conv1D of GPT-2). bias: [out] or None.
    Returns rows of width `out`.
    Raises ValueError ("orientation") for any other orientation. A shape cannot say it: a square weight fits both.
    Source: torch.nn.functional.linear; transformers.pytorch_utils.Conv1D.
    """
    raise NotImplementedError("project: write this in mha_lab/direct_sum.py")


def tied_parameters(module: nn.Module) -> list[frozenset[str]]:
    """The names of a module's parameters that cannot change independently.

    module: any nn.Module whose parameters are dense and, each for itself, one unbroken range of memory.
    Returns one frozenset of names for every group of parameters that are one object or share at least one element
    in memory, in any order. A parameter that shares with no other is in no group. Names are those of
    `named_parameters`; equal values, or a common storage, are no tie.
    Source: Derivation, with `data_ptr`, `element_size` and `numel` of PyTorch.
    """
    raise NotImplementedError("tied_parameters: write this in mha_lab/direct_sum.py")


def qkv_spans(num_heads: int, d_qk: int, d_v: int, num_kv_heads: int | None = None) -> Spans:
    """Where Q, K and V lie in a fused projection of order q, k, v.

    num_heads: H. d_qk, d_v: widths of one head, in rows. num_kv_heads: G, or None for G = H.
    Returns half-open spans of rows, {"q": (start, stop), "k": ..., "v": ...}: (8, 64, 48) gives (0, 512),
    (512, 1024), (1024, 1408).
    Source: Derivation.
    """
    raise NotImplementedError("qkv_spans: write this in mha_lab/direct_sum.py")


def fuse_qkv(q: Pair, k: Pair, v: Pair) -> Pair:
    """One stored projection in place of three.

    q, k, v: (stored weight, bias or None) of each role; the number of rows may differ.
    Returns (weight, bias or None), the rows of q, then k, then v.
    Raises ValueError: "bias" when only some roles have one, "width" when they do not read the same M.
    Source: Derivation; the fused in_proj_weight of torch.nn.MultiheadAttention has this order.
    """
    raise NotImplementedError("fuse_qkv: write this in mha_lab/direct_sum.py")


def split_qkv(fused: Pair, spans: Spans) -> tuple[Pair, Pair, Pair]:
    """The three roles of a fused projection, without copying a byte.

    fused: (stored weight [rows, M], bias [rows] or None). spans: as `qkv_spans` gives them.
    Returns ((weight, bias) of q, of k, of v), views of the fused tensors; a missing bias stays None.
    Raises ValueError ("spans") unless q, k and v follow each other without gap or overlap from row 0 to the last.
    Source: Derivation.
    """
    raise NotImplementedError("split_qkv: write this in mha_lab/direct_sum.py")


def reorder_fused_qkv(weight: Shaped[Tensor, "rows *columns"], num_heads: int, num_kv_heads: int, head_dim: int,
                      source: str, target: str) -> Shaped[Tensor, "rows *columns"]:
    """A fused projection in another order of rows; the three maps stay the same.

    weight: a stored weight [rows, M], or a bias [rows]; rows = (H + 2·G)·D. num_heads: H, num_kv_heads: G,
    head_dim: D. source, target: the order that it has, and the one that is asked for:
    "qkv" all q heads, all k heads, all v heads; "per_head" q_0 k_0 v_0 q_1 k_1 v_1 ... (only where G = H);
    "per_kv_group" for each of the G groups its R query heads, then its k, then its v.
    Returns the same rows in the target order.
    Raises ValueError: "order" for an unknown order, "per_head" for that order when G < H, "rows" when the number of
    rows does not fit.
    Source: Derivation; "per_head" is GPT-NeoX's query_key_value, "per_kv_group" that of Falcon's new decoder.
    """
    raise NotImplementedError("reorder_fused_qkv: write this in mha_lab/direct_sum.py")


def head_writes(heads: Float[Tensor, "B H Q D_v"], w_o: Float[Tensor, "M HD_v"]) -> Float[Tensor, "B H Q M"]:
    """What each head adds to the output.

    heads: [B,H,Q,D_v]. w_o: stored, [M, H·D_v]; head h owns its columns h·D_v to h·D_v + D_v - 1.
    Returns [B,H,Q,M]. The sum over H, plus b_O once, is what merging and projecting gives.
    Raises ValueError ("width") when w_o does not read H·D_v channels.
    Source: Derivation. Concatenation followed by W_O is a direct sum: Σ_h head_h · W_O^(h).
    """
    raise NotImplementedError("head_writes: write this in mha_lab/direct_sum.py")


def permute_heads(state: Mapping[str, Tensor], order: Sequence[int]) -> dict[str, Tensor]:
    """The same layer with its heads in another order.

    state: as in the head of this file, with or without biases. order: H old head numbers; new head j is old head
    order[j].
    Returns a new state; the output of the layer does not change, and `state` does not either. What belongs to no head
    may be the same tensor in both.
    Raises ValueError ("permutation") when order is not each of 0 ... H-1 once.
    Source: Derivation. A sum does not care about the order of its terms; as a gather, W_O takes the same order.
    """
    raise NotImplementedError("permute_heads: write this in mha_lab/direct_sum.py")


def parameter_ledger(d_model: int, num_heads: int, d_qk: int, d_v: int, bias: bool = True) -> dict[str, int]:
    """Every parameter of a layer, counted.

    d_model: M. num_heads: H. d_qk, d_v: widths of one head. bias: whether the four maps add one.
    Returns parameters of each map under q, k, v, o (weights and bias together), and the sums weights, biases, total.
    Source: Derivation.
    """
    raise NotImplementedError("parameter_ledger: write this in mha_lab/direct_sum.py")


def mac_ledger(batch: int, q_len: int, k_len: int, d_model: int, num_heads: int, d_qk: int,
               d_v: int) -> dict[str, int]:
    """Every multiply-accumulate of one call, counted once each (a FLOP count is about twice as large).

    batch: B. q_len: T. k_len: S. d_model: M. num_heads: H. d_qk, d_v: widths of one head.
    Returns MACs of the four projections under q, k, v, o, of q·k under scores, of the value mix under values, and
    their sum under total. Bias additions and softmax are not counted.
    Source: Derivation.
    """
    raise NotImplementedError("mac_ledger: write this in mha_lab/direct_sum.py")


def checkpoint_bytes(d_model: int, num_heads: int, d_qk: int, d_v: int, bias: bool, bytes_per_parameter: int,
                     fused: bool = False) -> int:
    """The bytes that a layer's parameters take in a checkpoint.

    d_model: M. num_heads: H. d_qk, d_v: widths of one head. bias: whether the four maps add one.
    bytes_per_parameter: 4 for float32, 2 for bfloat16. fused: whether Q, K and V are stored as one tensor.
    Returns bytes, without metadata or padding.
    Source: Derivation.
    """
    raise NotImplementedError("checkpoint_bytes: write this in mha_lab/direct_sum.py")


def heterogeneous_heads(x_q: Float[Tensor, "B T M"], x_kv: Float[Tensor, "B S M"],
                        heads: Sequence[tuple[Tensor, Tensor, Tensor]],
                        w_o: Float[Tensor, "M sum_d_v"]) -> Float[Tensor, "B T M"]:
    """Attention whose heads have widths of their own.

    x_q: [B,T,M]. x_kv: [B,S,M]. heads: for each head its stored w_q [d_i, M], w_k [d_i, M] and w_v [dv_i, M].
    w_o: stored, [M, Σdv_i]; head i owns dv_i of its columns, where the heads before it end.
    Returns [B,T,M], without bias; head i divides its scores by the root of its own d_i.
    Raises ValueError ("width") when w_o does not read Σdv_i channels.
    Source: Derivation. The direct sum never asked the heads for equal widths; the packed tensor did.
    """
    raise NotImplementedError("heterogeneous_heads: write this in mha_lab/direct_sum.py")


def tensor_parallel_attention(x: Float[Tensor, "B S M"], state: Mapping[str, Tensor], num_heads: int,
                              group: dist.ProcessGroup) -> Float[Tensor, "B S M"]:
    """Self-attention of one layer, shared out over the processes of a group; every process makes this call.

    x: [B,S,M], the same on every rank. state: the full state of the layer on every rank, D_v = D. num_heads: H.
    group: a process group of torch.distributed. Rank r computes heads r·H/world to (r+1)·H/world - 1: its rows of Q, K
    and V, its columns of W_O.
    Returns the full output [B,S,M] on every rank, after one all-reduce and no other communication; b_O is in it once.
    Raises ValueError ("divisible") when the ranks cannot share the heads evenly.
    Source: Shoeybi et al. 2019 (Megatron-LM), column-parallel Q, K, V and row-parallel W_O.
    """
    raise NotImplementedError("tensor_parallel_attention: write this in mha_lab/direct_sum.py")
