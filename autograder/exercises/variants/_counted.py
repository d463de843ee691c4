"""What a changed layer adds, counted: tensors without data, their `numel`, and the contractions they dispatched."""
from __future__ import annotations

import torch
from torch import nn

from ...worker.ranks import Watch


def _empty(*shape):
    return torch.empty(*shape, device="meta")


def _weights(*shapes):
    """Parameters of bias-free maps, (in, out) each."""
    with torch.device("meta"):
        return sum(nn.Linear(*shape, bias=False).weight.numel() for shape in shapes)


def _macs(*products):
    """Of the products of these pairs of shapes."""
    with Watch() as watch:
        for left, right in products:
            _empty(*left) @ _empty(*right)
    return sum(rows * inner * columns for rows, inner, columns in watch.contractions)


def mohsa(batch, q_len, k_len, d_model, num_heads, head_dim, overlap):
    def layer(width):
        q, k, p = ((batch, num_heads, *shape) for shape in ((q_len, width), (width, k_len), (q_len, k_len)))
        v = batch, num_heads, k_len, width
        return (_weights((num_heads * width, d_model)), _macs((q, k), (p, v)),
                _macs(((batch * q_len, num_heads * width), (num_heads * width, d_model))))
    classic, wider = layer(head_dim), layer(head_dim + 2 * overlap)
    parameters, local, output = (b - a for a, b in zip(classic, wider, strict=True))
    return {"parameters": parameters, "local_macs": local, "output_macs": output, "macs": local + output}


def talking(batch, q_len, k_len, logit_heads, softmax_heads, value_heads):
    pairs = batch, q_len, k_len
    before = _macs(((*pairs, logit_heads), (logit_heads, softmax_heads)))
    after = _macs(((*pairs, softmax_heads), (softmax_heads, value_heads)))
    return {"parameters": _weights((logit_heads, softmax_heads), (softmax_heads, value_heads)), "logit_macs": before,
            "weight_macs": after, "macs": before + after}


def dcmha(batch, q_len, k_len, d_model, num_heads, rank):
    factors = 2 * num_heads * rank
    maps = (d_model, factors), (factors, factors), (d_model, num_heads)
    parameters = generator = compose = 0
    for _place in ("before softmax", "after softmax"):
        for rows in (batch * q_len, batch * k_len):
            parameters += _weights(*maps)
            generator += _macs(*(((rows, reads), (reads, writes)) for reads, writes in maps))
            pair = batch, q_len, k_len
            compose += _macs(((*pair, num_heads), (num_heads, rank)), ((*pair, rank), (rank, num_heads)))
            compose += (_empty(*pair, num_heads) * _empty(num_heads)).numel()
    return {"parameters": parameters, "generator_macs": generator, "compose_macs": compose,
            "macs": generator + compose}


def moh(batch, q_len, k_len, d_model, num_heads, head_dim, num_shared, top_k, dense):
    def queries(heads):
        """Products of a token and `heads` heads: query projection, scores, value product, W_O."""
        rows = batch * q_len * heads
        return _macs(((rows, d_model), (d_model, head_dim)), ((rows, head_dim), (head_dim, k_len)),
                     ((rows, k_len), (k_len, head_dim)), ((rows, head_dim), (head_dim, d_model)))
    runs = [True] * num_shared + [r < top_k for r in range(num_heads - num_shared)]
    router = [(d_model, outputs) for outputs in (num_shared, num_heads - num_shared, 2)]
    routing = _macs(*(((batch * q_len, reads), (reads, writes)) for reads, writes in router))
    skipped = queries(num_heads) - queries(num_heads if dense else sum(runs))
    return {"parameters": _weights(*router), "router_macs": routing, "skipped_macs": skipped,
            "active_fraction": sum(runs) / len(runs), "macs": routing - skipped}


def collab(batch, q_len, k_len, d_model, num_heads, head_dim, width):
    classic = num_heads * head_dim

    def projections(out):
        return _macs(((batch * q_len, d_model), (d_model, out)), ((batch * k_len, d_model), (d_model, out)))

    def scores(inner):
        return _macs(((batch, num_heads, q_len, inner), (batch, num_heads, inner, k_len)))
    mixing = (_empty(batch, 1, q_len, width) * _empty(num_heads, 1, width)).numel()
    projection, score = projections(width) - projections(classic), scores(width) - scores(head_dim)
    parameters = _weights((d_model, width), (d_model, width), (width, num_heads)) - _weights((d_model, classic),
                                                                                           (d_model, classic))
    return {"parameters": parameters, "projection_macs": projection, "mixing_macs": mixing, "score_macs": score,
            "macs": projection + mixing + score}


def gqa(batch, q_len, k_len, d_model, num_heads, num_kv_heads, head_dim):
    def layer(heads):
        maps = [(d_model, heads * head_dim)] * 2
        return _weights(*maps), _macs(*(((batch * k_len, reads), (reads, writes)) for reads, writes in maps))
    parameters, macs = (b - a for a, b in zip(layer(num_heads), layer(num_kv_heads), strict=True))
    return {"parameters": parameters, "projection_macs": macs, "macs": macs}


COUNTED = {f.__name__: f for f in (mohsa, talking, dcmha, moh, collab, gqa)}
