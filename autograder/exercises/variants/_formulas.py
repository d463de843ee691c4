"""The ledgers of the six changed layers in closed form, and what the known programs are put together from."""
import inspect


def program(*formulas):
    """A ledger from one formula a kind, each taking its sizes by name."""
    known = {f.__name__: f for f in formulas}

    def ledger(kind, **sizes):
        if kind not in known:
            raise ValueError(f"the kind {kind!r} is unknown")
        names = inspect.signature(known[kind]).parameters.keys()
        for name in names - sizes.keys():
            raise ValueError(f"the size {name} is missing")
        for name in sizes.keys() - names:
            raise ValueError(f"the size {name} is unknown for {kind}")
        return known[kind](**sizes)
    return ledger


def mohsa(batch, q_len, k_len, d_model, num_heads, head_dim, overlap):
    extra = 2 * num_heads * overlap
    local, output = 2 * batch * q_len * k_len * extra, batch * q_len * extra * d_model
    return {"parameters": extra * d_model, "local_macs": local, "output_macs": output, "macs": local + output}


def talking(batch, q_len, k_len, logit_heads, softmax_heads, value_heads):
    pairs = batch * q_len * k_len
    logit, weight = logit_heads * softmax_heads, softmax_heads * value_heads
    return {"parameters": logit + weight, "logit_macs": pairs * logit, "weight_macs": pairs * weight,
            "macs": pairs * (logit + weight)}


def _generator(d_model, num_heads, rank):
    return d_model * 2 * num_heads * rank + (2 * num_heads * rank) ** 2 + d_model * num_heads


def dcmha(batch, q_len, k_len, d_model, num_heads, rank):
    one = _generator(d_model, num_heads, rank)
    rows, compose = 2 * batch * (q_len + k_len) * one, 4 * batch * q_len * k_len * num_heads * (2 * rank + 1)
    return {"parameters": 4 * one, "generator_macs": rows, "compose_macs": compose, "macs": rows + compose}


def moh(batch, q_len, k_len, d_model, num_heads, head_dim, num_shared, top_k, dense):
    one = 2 * head_dim * (d_model + k_len)
    skipped = 0 if dense else batch * q_len * (num_heads - num_shared - top_k) * one
    router = d_model * (num_heads + 2)
    return {"parameters": router, "router_macs": batch * q_len * router, "skipped_macs": skipped,
            "active_fraction": (num_shared + top_k) / num_heads, "macs": batch * q_len * router - skipped}


def collab(batch, q_len, k_len, d_model, num_heads, head_dim, width):
    gained = width - num_heads * head_dim
    projection, mixing = batch * (q_len + k_len) * d_model * gained, batch * q_len * num_heads * width
    score = batch * num_heads * q_len * k_len * (width - head_dim)
    return {"parameters": 2 * d_model * gained + num_heads * width, "projection_macs": projection,
            "mixing_macs": mixing, "score_macs": score, "macs": projection + mixing + score}


def gqa(batch, q_len, k_len, d_model, num_heads, num_kv_heads, head_dim):
    saved = 2 * d_model * head_dim * (num_heads - num_kv_heads)
    return {"parameters": -saved, "projection_macs": -batch * k_len * saved, "macs": -batch * k_len * saved}


ALL = dict(mohsa=mohsa, talking=talking, dcmha=dcmha, moh=moh, collab=collab, gqa=gqa)


def total(ledger):
    """With macs added up again."""
    parts = sum(v for k, v in ledger.items() if k.endswith("_macs") and k != "skipped_macs")
    return ledger | {"macs": parts - ledger.get("skipped_macs", 0)}
