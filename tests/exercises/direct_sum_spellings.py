"""Wrong programs as people may write them, without the checks and in words of their own: (exercise, id, source)."""

SPELLINGS = [
    ("pack_heads", "rows-interleaved", """
def pack_heads(per_head):
    ws = [w for w, _ in per_head]
    D, M = ws[0].shape
    rows = []
    for d in range(D):
        for w in ws:
            rows.append(w[d])
    b = None
    if per_head[0][1] is not None:
        b = torch.stack([b for _, b in per_head], dim=-1).reshape(-1)
    return torch.stack(rows), b
"""),
    ("pack_heads", "joined-on-inputs", """
def pack_heads(per_head):
    ws, bs = zip(*per_head)
    return torch.cat(ws, dim=-1), (torch.cat(bs) if bs[0] is not None else None)
"""),
    ("pack_heads", "bias-invented", """
def pack_heads(per_head):
    ws, bs = zip(*per_head)
    return torch.cat(ws), torch.cat([torch.zeros(w.shape[0]) if b is None else b for w, b in per_head])
"""),
    ("project_per_head", "raw-input-split", """
def project_per_head(x, weight, bias, num_heads):
    B, S, M = x.shape
    xs = x.view(B, S, num_heads, M // num_heads)
    D = weight.shape[0] // num_heads
    m = M // num_heads
    blocks = torch.stack([weight[h * D:(h + 1) * D, h * m:(h + 1) * m] for h in range(num_heads)])
    y = torch.einsum('bshm,hdm->bhsd', xs, blocks)
    if bias is not None:
        y = y + bias.view(num_heads, D)[None, :, None, :]
    return y
"""),
    ("project_per_head", "columns-are-heads", """
def project_per_head(x, weight, bias, num_heads):
    M = weight.shape[0]
    w = weight.reshape(M, num_heads, -1)
    y = torch.einsum('bsm,mhd->bhsd', x, w)
    return y if bias is None else y + bias.reshape(num_heads, 1, -1)
"""),
    ("project_per_head", "one-head-for-all", """
def project_per_head(x, weight, bias, num_heads):
    D = weight.shape[0] // num_heads
    out = []
    for h in range(num_heads):
        y = x @ weight[0:D].T
        if bias is not None:
            y = y + bias[0:D]
        out.append(y)
    return torch.stack(out, 1)
"""),
    ("project_per_head", "bias-not-sliced", """
def project_per_head(x, weight, bias, num_heads):
    D = weight.shape[0] // num_heads
    out = [x @ weight[h * D:(h + 1) * D].T + (0 if bias is None else bias) for h in range(num_heads)]
    return torch.stack(out, 1)
"""),
    ("project", "always-transposes", """
def project(x, weight, bias=None, orientation="out_in"):
    y = torch.matmul(x, weight.t())
    return y if bias is None else y + bias
"""),
    ("project", "never-transposes", """
def project(x, weight, bias=None, orientation="out_in"):
    y = torch.einsum('...i,io->...o', x, weight)
    return y if bias is None else y + bias
"""),
    ("project", "guesses-from-shape", """
def project(x, weight, bias=None, orientation="out_in"):
    if weight.shape[-1] == x.shape[-1]:
        return F.linear(x, weight, bias)
    return F.linear(x, weight.t(), bias)
"""),
    ("project", "unknown-accepted", """
def project(x, weight, bias=None, orientation="out_in"):
    w = weight.t() if orientation == "in_out" else weight
    return F.linear(x, w, bias)
"""),
    ("tied_parameters", "deduplicated-names", """
def tied_parameters(module):
    by_id = {}
    for name, p in module.named_parameters():
        by_id.setdefault(id(p), set()).add(name)
    return [frozenset(s) for s in by_id.values() if len(s) > 1]
"""),
    ("tied_parameters", "compares-values", """
def tied_parameters(module):
    params = list(module.named_parameters(remove_duplicate=False))
    groups, used = [], set()
    for i, (n, p) in enumerate(params):
        if n in used:
            continue
        g = {m for m, q in params if p.shape == q.shape and torch.allclose(p, q)}
        if len(g) > 1:
            groups.append(frozenset(g))
            used |= g
    return groups
"""),
    ("tied_parameters", "same-storage-is-tied", """
def tied_parameters(module):
    groups = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        groups.setdefault(p.untyped_storage().data_ptr(), []).append(name)
    return [frozenset(g) for g in groups.values() if len(g) > 1]
"""),
    ("qkv_spans", "equal-thirds", """
def qkv_spans(num_heads, d_qk, d_v, num_kv_heads=None):
    n = num_heads * d_qk
    return {"q": (0, n), "k": (n, 2 * n), "v": (2 * n, 3 * n)}
"""),
    ("qkv_spans", "inclusive-ends", """
def qkv_spans(num_heads, d_qk, d_v, num_kv_heads=None):
    g = num_kv_heads or num_heads
    a, b, c = num_heads * d_qk, g * d_qk, g * d_v
    return dict(q=(0, a - 1), k=(a, a + b - 1), v=(a + b, a + b + c - 1))
"""),
    ("qkv_spans", "kv-heads-ignored", """
def qkv_spans(num_heads, d_qk, d_v, num_kv_heads=None):
    a = num_heads * d_qk
    return dict(q=(0, a), k=(a, 2 * a), v=(2 * a, 2 * a + num_heads * d_v))
"""),
    ("fuse_qkv", "order-qvk", """
def fuse_qkv(q, k, v):
    w = torch.cat([q[0], v[0], k[0]], 0)
    return w, (torch.cat([q[1], v[1], k[1]]) if q[1] is not None else None)
"""),
    ("fuse_qkv", "bias-invented", """
def fuse_qkv(q, k, v):
    def b(p):
        return p[1] if p[1] is not None else torch.zeros(p[0].shape[0], dtype=p[0].dtype)
    return torch.cat([q[0], k[0], v[0]]), torch.cat([b(q), b(k), b(v)])
"""),
    ("split_qkv", "order-qvk", """
def split_qkv(fused, spans):
    w, b = fused
    def part(r):
        s, e = spans[r]
        return w[s:e], None if b is None else b[s:e]
    return part("q"), part("v"), part("k")
"""),
    ("split_qkv", "bias-invented", """
def split_qkv(fused, spans):
    w, b = fused
    out = []
    for r in "qkv":
        s, e = spans[r]
        out.append((w[s:e], b[s:e] if b is not None else torch.zeros(e - s)))
    return tuple(out)
"""),
    ("split_qkv", "chunk-by-three", """
def split_qkv(fused, spans):
    w, b = fused
    n = w.shape[0] // 3
    return tuple((w[i * n:(i + 1) * n], None if b is None else b[i * n:(i + 1) * n]) for i in range(3))
"""),
    ("split_qkv", "split-on-inputs", """
def split_qkv(fused, spans):
    w, b = fused
    return tuple((w[:, spans[r][0]:spans[r][1]], None if b is None else b[spans[r][0]:spans[r][1]]) for r in "qkv")
"""),
    ("split_qkv", "split-copies", """
def split_qkv(fused, spans):
    w, b = fused
    return tuple((w[spans[r][0]:spans[r][1]].clone(), None if b is None else b[spans[r][0]:spans[r][1]].clone())
                 for r in "qkv")
"""),
    ("split_qkv", "split-copies", """
def split_qkv(fused, spans):
    w, b = fused
    edges = [spans[r] for r in ("q", "k", "v")]
    if edges[0][0] != 0 or edges[0][1] != edges[1][0] or edges[1][1] != edges[2][0] or edges[2][1] != w.shape[0]:
        raise ValueError("bad spans")
    idx = [torch.arange(*e) for e in edges]
    return tuple((w[i], None if b is None else b[i]) for i in idx)
"""),
    ("split_qkv", "bad-spans-accepted", """
def split_qkv(fused, spans):
    w, b = fused
    if sum(e - s for s, e in spans.values()) != w.shape[0]:
        raise ValueError("spans")
    return tuple((w[spans[r][0]:spans[r][1]], None if b is None else b[spans[r][0]:spans[r][1]]) for r in "qkv")
"""),
    ("reorder_fused_qkv", "flat-three-way-split", """
def reorder_fused_qkv(weight, num_heads, num_kv_heads, head_dim, source, target):
    H, G, D = num_heads, num_kv_heads, head_dim
    rest = weight.shape[1:]
    q, k, v = weight.split([H * D, G * D, G * D])
    if target == "qkv":
        return torch.cat([q, k, v])
    q = q.reshape(G, H // G * D, *rest)
    k, v = k.reshape(G, D, *rest), v.reshape(G, D, *rest)
    return torch.cat([q, k, v], 1).reshape(-1, *rest)
"""),
    ("reorder_fused_qkv", "group-read-as-per-head", """
def reorder_fused_qkv(weight, num_heads, num_kv_heads, head_dim, source, target):
    H, G, D = num_heads, num_kv_heads, head_dim
    rest = weight.shape[1:]
    if source == "qkv":
        q, k, v = weight.split([H * D, G * D, G * D])
    else:
        w = weight.reshape(-1, 3, D, *rest)
        q, k, v = (w[:, i].reshape(-1, *rest) for i in range(3))
    if target == "qkv":
        return torch.cat([q, k, v])
    return torch.cat([q.reshape(G, -1, *rest), k.reshape(G, -1, *rest), v.reshape(G, -1, *rest)], 1).reshape(-1, *rest)
"""),
    ("reorder_fused_qkv", "rows-not-blocks", """
def reorder_fused_qkv(weight, num_heads, num_kv_heads, head_dim, source, target):
    H, G, D = num_heads, num_kv_heads, head_dim
    R = H // G
    rest = weight.shape[1:]
    if source == "qkv":
        q, k, v = weight.split([H * D, G * D, G * D])
    else:
        w = weight.reshape(G * D, R + 2, *rest)
        q, k, v = w[:, :R].reshape(-1, *rest), w[:, R], w[:, R + 1]
    if target == "qkv":
        return torch.cat([q, k, v])
    return torch.cat([q.reshape(G * D, R, *rest), k[:, None], v[:, None]], 1).reshape(-1, *rest)
"""),
    ("reorder_fused_qkv", "groups-tiled", """
def reorder_fused_qkv(weight, num_heads, num_kv_heads, head_dim, source, target):
    H, G, D = num_heads, num_kv_heads, head_dim
    def order(name):
        if name == "qkv":
            return [("q", h) for h in range(H)] + [("k", g) for g in range(G)] + [("v", g) for g in range(G)]
        return [x for g in range(G) for x in [("q", h) for h in range(g, H, G)] + [("k", g), ("v", g)]]
    src = {n: i for i, n in enumerate(order(source))}
    return torch.cat([weight[src[n] * D:(src[n] + 1) * D] for n in order(target)])
"""),
    ("reorder_fused_qkv", "inverse-direction", """
def reorder_fused_qkv(weight, num_heads, num_kv_heads, head_dim, source, target):
    H, G, D = num_heads, num_kv_heads, head_dim
    R = H // G
    if source not in ("qkv", "per_head", "per_kv_group") or target not in ("qkv", "per_head", "per_kv_group"):
        raise ValueError("order")
    def order(name):
        if name == "qkv":
            return [("q", h) for h in range(H)] + [("k", g) for g in range(G)] + [("v", g) for g in range(G)]
        return [x for g in range(G) for x in [("q", g * R + r) for r in range(R)] + [("k", g), ("v", g)]]
    tgt = {n: i for i, n in enumerate(order(target))}
    return torch.cat([weight[tgt[n] * D:(tgt[n] + 1) * D] for n in order(source)])
"""),
    ("reorder_fused_qkv", "per-head-with-groups", """
def reorder_fused_qkv(weight, num_heads, num_kv_heads, head_dim, source, target):
    H, G, D = num_heads, num_kv_heads, head_dim
    R = H // G
    if source not in ("qkv", "per_head", "per_kv_group") or target not in ("qkv", "per_head", "per_kv_group"):
        raise ValueError("order")
    if weight.shape[0] != (H + 2 * G) * D:
        raise ValueError("rows")
    def order(name):
        if name == "qkv":
            return [("q", h) for h in range(H)] + [("k", g) for g in range(G)] + [("v", g) for g in range(G)]
        if name == "per_head" and H != G:
            return [x for h in range(G) for x in (("q", h), ("k", h), ("v", h))]
        return [x for g in range(G) for x in [("q", g * R + r) for r in range(R)] + [("k", g), ("v", g)]]
    src = {n: i for i, n in enumerate(order(source))}
    return torch.cat([weight[src[n] * D:(src[n] + 1) * D] for n in order(target) if n in src])
"""),
    ("head_writes", "head-axis-on-output", """
def head_writes(heads, w_o):
    B, H, Q, Dv = heads.shape
    return torch.einsum('bhqd,hdm->bhqm', heads, w_o.view(H, Dv, -1))
"""),
    ("head_writes", "block-transposed", """
def head_writes(heads, w_o):
    B, H, Q, Dv = heads.shape
    w = w_o.T.contiguous()
    return torch.stack([heads[:, h] @ w[:, h * Dv:(h + 1) * Dv].T for h in range(H)], 1)
"""),
    ("head_writes", "one-block-for-all", """
def head_writes(heads, w_o):
    D = heads.shape[-1]
    return torch.einsum('bhqd,md->bhqm', heads, w_o[:, 0:D])
"""),
    ("head_writes", "summed-before-projection", """
def head_writes(heads, w_o):
    B, H, Q, D = heads.shape
    s = heads.sum(dim=1)
    return torch.stack([s @ w_o[:, h * D:(h + 1) * D].T for h in range(H)], dim=1)
"""),
    ("head_writes", "summed-inside", """
def head_writes(heads, w_o):
    B, H, Q, D = heads.shape
    merged = heads.transpose(1, 2).reshape(B, Q, H * D)
    return merged @ w_o.T
"""),
    ("permute_heads", "wo-not-permuted", """
def permute_heads(state, order):
    H = len(order)
    new = dict(state)
    for n in ("q_proj", "k_proj", "v_proj"):
        for s in ("weight", "bias"):
            k = n + "." + s
            if k in state:
                t = state[k]
                new[k] = t.reshape(H, -1, *t.shape[1:])[list(order)].reshape(t.shape)
    return new
"""),
    ("permute_heads", "only-wo-permuted", """
def permute_heads(state, order):
    new = {k: v.clone() for k, v in state.items()}
    w = state["o_proj.weight"]
    new["o_proj.weight"] = w.reshape(w.shape[0], len(order), -1)[:, list(order)].reshape(w.shape)
    return new
"""),
    ("permute_heads", "wo-inverse-order", """
def permute_heads(state, order):
    H = len(order)
    inv = [0] * H
    for j, o in enumerate(order):
        inv[o] = j
    new = dict(state)
    for n in "qkv":
        for s in ("weight", "bias"):
            k = f"{n}_proj.{s}"
            if k in state:
                t = state[k]
                new[k] = t.reshape(H, -1, *t.shape[1:])[list(order)].reshape(t.shape)
    w = state["o_proj.weight"]
    new["o_proj.weight"] = w.reshape(w.shape[0], H, -1)[:, inv].reshape(w.shape)
    return new
"""),
    ("permute_heads", "values-forgotten", """
def permute_heads(state, order):
    H = len(order)
    new = dict(state)
    for n in "qk":
        for s in ("weight", "bias"):
            k = f"{n}_proj.{s}"
            if k in state:
                t = state[k]
                new[k] = t.reshape(H, -1, *t.shape[1:])[list(order)].reshape(t.shape)
    w = state["o_proj.weight"]
    new["o_proj.weight"] = w.reshape(w.shape[0], H, -1)[:, list(order)].reshape(w.shape)
    return new
"""),
    ("permute_heads", "bias-forgotten", """
def permute_heads(state, order):
    H = len(order)
    new = dict(state)
    for n in "qkv":
        t = state[f"{n}_proj.weight"]
        new[f"{n}_proj.weight"] = t.reshape(H, -1, t.shape[1])[list(order)].reshape(t.shape)
    w = state["o_proj.weight"]
    new["o_proj.weight"] = w.reshape(w.shape[0], H, -1)[:, list(order)].reshape(w.shape)
    return new
"""),
    ("permute_heads", "wo-rows-permuted", """
def permute_heads(state, order):
    H = len(order)
    new = dict(state)
    for k, t in state.items():
        if k != "o_proj.bias":
            new[k] = t.reshape(H, -1, *t.shape[1:])[list(order)].reshape(t.shape)
    return new
"""),
    ("permute_heads", "width-from-q", """
def permute_heads(state, order):
    if sorted(order) != list(range(len(order))):
        raise ValueError("permutation")
    H = len(order)
    D = state["q_proj.weight"].shape[0] // H
    idx = torch.tensor([h * D + d for h in order for d in range(D)])
    new = {}
    for k, t in state.items():
        if k == "o_proj.weight":
            new[k] = t[:, idx]
        elif k == "o_proj.bias":
            new[k] = t.clone()
        else:
            new[k] = t[idx]
    return new
"""),
    ("parameter_ledger", "four-squares", """
def parameter_ledger(d_model, num_heads, d_qk, d_v, bias=True):
    n = d_model * d_model
    b = num_heads * d_qk if bias else 0
    per = n + b
    biases = (2 * num_heads * d_qk + num_heads * d_v + d_model) if bias else 0
    return dict(q=n + b, k=n + b, v=n + (num_heads * d_v if bias else 0), o=n + (d_model if bias else 0),
                weights=4 * n, biases=biases, total=4 * n + biases)
"""),
    ("parameter_ledger", "qkv-only", """
def parameter_ledger(d_model, num_heads, d_qk, d_v, bias=True):
    q = d_model * num_heads * d_qk
    v = d_model * num_heads * d_v
    b = int(bias)
    w = 2 * q + v
    bb = b * (2 * num_heads * d_qk + num_heads * d_v)
    return {"q": q + b * num_heads * d_qk, "k": q + b * num_heads * d_qk, "v": v + b * num_heads * d_v, "o": 0,
            "weights": w, "biases": bb, "total": w + bb}
"""),
    ("parameter_ledger", "qkv-only", """
def parameter_ledger(d_model, num_heads, d_qk, d_v, bias=True):
    q = d_model * num_heads * d_qk
    v = d_model * num_heads * d_v
    return {"q": q, "k": q, "v": v, "weights": 2 * q + v, "biases": 0, "total": 2 * q + v}
"""),
    ("parameter_ledger", "heads-always-cancel", """
def parameter_ledger(d_model, num_heads, d_qk, d_v, bias=True):
    q, v = d_model * d_model, d_model * d_model
    b = d_model if bias else 0
    return {"q": q + b, "k": q + b, "v": v + b, "o": v + b, "weights": 4 * q, "biases": 4 * b, "total": 4 * (q + b)}
"""),
    ("mac_ledger", "keys-use-query-length", """
def mac_ledger(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    B, T, S, M, H = batch, q_len, k_len, d_model, num_heads
    L = dict(q=B * T * M * H * d_qk, k=B * T * M * H * d_qk, v=B * T * M * H * d_v,
             scores=B * H * T * S * d_qk, values=B * H * T * S * d_v, o=B * T * H * d_v * M)
    L["total"] = sum(L.values())
    return L
"""),
    ("mac_ledger", "scores-square", """
def mac_ledger(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    B, T, S, M, H = batch, q_len, k_len, d_model, num_heads
    L = dict(q=B * T * M * H * d_qk, k=B * S * M * H * d_qk, v=B * S * M * H * d_v,
             scores=B * H * T * T * d_qk, values=B * H * T * T * d_v, o=B * T * H * d_v * M)
    L["total"] = sum(L.values())
    return L
"""),
    ("mac_ledger", "values-use-dqk", """
def mac_ledger(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    B, T, S, M, H = batch, q_len, k_len, d_model, num_heads
    pairs = B * H * T * S
    L = dict(q=B * T * M * H * d_qk, k=B * S * M * H * d_qk, v=B * S * M * H * d_v,
             scores=pairs * d_qk, values=pairs * d_qk, o=B * T * H * d_v * M)
    return {**L, "total": sum(L.values())}
"""),
    ("mac_ledger", "flops-not-macs", """
def mac_ledger(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    B, T, S, M, H = batch, q_len, k_len, d_model, num_heads
    L = dict(q=2 * B * T * M * H * d_qk, k=2 * B * S * M * H * d_qk, v=2 * B * S * M * H * d_v,
             scores=2 * B * H * T * S * d_qk, values=2 * B * H * T * S * d_v, o=2 * B * T * H * d_v * M)
    return {**L, "total": sum(L.values())}
"""),
    ("mac_ledger", "qkv-only", """
def mac_ledger(batch, q_len, k_len, d_model, num_heads, d_qk, d_v):
    B, T, S, M, H = batch, q_len, k_len, d_model, num_heads
    L = dict(q=B * T * M * H * d_qk, k=B * S * M * H * d_qk, v=B * S * M * H * d_v,
             scores=B * H * T * S * d_qk, values=B * H * T * S * d_v)
    return {**L, "total": sum(L.values())}
"""),
    ("checkpoint_bytes", "activations-counted", """
def checkpoint_bytes(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    w = d_model * num_heads * (2 * d_qk + 2 * d_v)
    b = (num_heads * (2 * d_qk + d_v) + d_model) if bias else 0
    acts = num_heads * (2 * d_qk + d_v)
    return (w + b + acts) * bytes_per_parameter
"""),
    ("checkpoint_bytes", "fusion-shrinks", """
def checkpoint_bytes(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    w = d_model * num_heads * (2 * d_qk + 2 * d_v)
    b = (num_heads * (2 * d_qk + d_v) + d_model) if bias else 0
    total = (w + b) * bytes_per_parameter
    return total // 3 if fused else total
"""),
    ("checkpoint_bytes", "four-squares", """
def checkpoint_bytes(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    n = 4 * d_model * d_model + (4 * d_model if bias else 0)
    return n * bytes_per_parameter
"""),
    ("checkpoint_bytes", "qkv-only", """
def checkpoint_bytes(d_model, num_heads, d_qk, d_v, bias, bytes_per_parameter, fused=False):
    rows = num_heads * (2 * d_qk + d_v)
    return (rows * d_model + (rows if bias else 0)) * bytes_per_parameter
"""),
    ("heterogeneous_heads", "one-scale", """
def heterogeneous_heads(x_q, x_kv, heads, w_o):
    outs = []
    for wq, wk, wv in heads:
        q, k, v = x_q @ wq.T, x_kv @ wk.T, x_kv @ wv.T
        outs.append((q @ k.transpose(1, 2) / (x_q.shape[-1] / len(heads)) ** 0.5).softmax(-1) @ v)
    return torch.cat(outs, -1) @ w_o.T
"""),
    ("heterogeneous_heads", "padded-scale", """
def heterogeneous_heads(x_q, x_kv, heads, w_o):
    D = max(h[0].shape[0] for h in heads)
    outs = []
    for wq, wk, wv in heads:
        q = F.pad(x_q @ wq.T, (0, D - wq.shape[0]))
        k = F.pad(x_kv @ wk.T, (0, D - wk.shape[0]))
        outs.append(F.scaled_dot_product_attention(q, k, x_kv @ wv.T))
    return F.linear(torch.cat(outs, -1), w_o)
"""),
    ("heterogeneous_heads", "equal-offsets", """
def heterogeneous_heads(x_q, x_kv, heads, w_o):
    out = 0
    for i, (wq, wk, wv) in enumerate(heads):
        q, k, v = x_q @ wq.T, x_kv @ wk.T, x_kv @ wv.T
        h = (q @ k.transpose(1, 2) / wq.shape[0] ** 0.5).softmax(-1) @ v
        d = wv.shape[0]
        out = out + h @ w_o[:, i * d:(i + 1) * d].T
    return out
"""),
    ("heterogeneous_heads", "equal-offsets", """
def heterogeneous_heads(x_q, x_kv, heads, w_o):
    out = 0
    step = max(h[2].shape[0] for h in heads)
    for i, (wq, wk, wv) in enumerate(heads):
        q, k, v = x_q @ wq.T, x_kv @ wk.T, x_kv @ wv.T
        h = (q @ k.transpose(1, 2) / wq.shape[0] ** 0.5).softmax(-1) @ v
        out = out + h @ w_o[:, i * step:i * step + wv.shape[0]].T
    return out
"""),
]

PARALLEL = '''
def tensor_parallel_attention(x, state, num_heads, group):
    import torch.distributed as dist
    r, w = dist.get_rank(group), dist.get_world_size(group)
    B, S, M = x.shape
    HD = state["q_proj.weight"].shape[0]
    D = HD // num_heads
    n = num_heads // w
    lo, hi = r * n * D, (r + 1) * n * D
    def proj(name):
        y = x @ state[name + "_proj.weight"][lo:hi].T
        if name + "_proj.bias" in state:
            y = y + state[name + "_proj.bias"][lo:hi]
        return y.view(B, S, n, D).transpose(1, 2)
    q, k, v = proj("q"), proj("k"), proj("v")
    out = torch.softmax(q @ k.transpose(-1, -2) / D ** 0.5, -1) @ v
    merged = out.transpose(1, 2).reshape(B, S, n * D)
    b = state.get("o_proj.bias", torch.zeros(M, dtype=x.dtype))
'''

SPELLINGS += [("tensor_parallel_attention", id, PARALLEL + tail) for id, tail in [
    ("bias-on-every-rank", """
    y = merged @ state["o_proj.weight"][:, lo:hi].T + b
    dist.all_reduce(y, group=group)
    return y
"""),
    ("wo-replicated", """
    y = merged @ state["o_proj.weight"].T
    dist.all_reduce(y, group=group)
    return y + b
"""),
    ("wo-split-on-outputs", """
    y = merged @ state["o_proj.weight"].chunk(w, dim=0)[r].T
    dist.all_reduce(y, group=group)
    return y + b
"""),
    ("wo-split-on-outputs", """
    y = torch.einsum('bsc,oc->bso', merged, state["o_proj.weight"][r * M // w:(r + 1) * M // w])
    dist.all_reduce(y, group=group)
    return y + b
"""),
    ("wo-split-on-outputs", """
    y = merged @ state["o_proj.weight"][lo:hi].T
    dist.all_reduce(y, group=group)
    return y + b
"""),
    ("reduction-missing", """
    return merged @ state["o_proj.weight"][:, lo:hi].T + b
"""),
    ("reduction-missing", """
    y = merged @ state["o_proj.weight"][:, lo:hi].T
    return y + b if r == 0 else y
"""),
    ("reduction-averages", """
    y = merged @ state["o_proj.weight"][:, lo:hi].T
    dist.all_reduce(y, group=group)
    return y / w + b
"""),
    ("reduction-averages", """
    y = merged @ state["o_proj.weight"][:, lo:hi].T + b
    dist.all_reduce(y, group=group)
    return y / w
"""),
    ("two-reductions", """
    scores = q @ k.transpose(-1, -2) / D ** 0.5
    dist.all_reduce(scores, group=group)
    out = torch.softmax(scores, -1) @ v
    y = out.transpose(1, 2).reshape(B, S, n * D) @ state["o_proj.weight"][:, lo:hi].T
    dist.all_reduce(y, group=group)
    return y + b
"""),
    ("two-reductions", """
    out = out.contiguous()
    dist.all_reduce(out, group=group)
    y = out.transpose(1, 2).reshape(B, S, n * D) @ state["o_proj.weight"][:, lo:hi].T
    dist.all_reduce(y, group=group)
    return y + b
"""),
    ("gathers-heads", """
    parts = [torch.empty_like(merged) for _ in range(w)]
    dist.all_gather(parts, merged.contiguous(), group=group)
    return torch.cat(parts, -1) @ state["o_proj.weight"].T + b
"""),
    ("gathers-heads", """
    full = torch.empty(w, *merged.shape, dtype=x.dtype)
    dist.all_gather_into_tensor(full, merged.contiguous(), group=group)
    return full.permute(1, 2, 0, 3).reshape(B, S, -1) @ state["o_proj.weight"].T + b
"""),
]]

SPELLINGS += [
    ("tensor_parallel_attention", "fused-cut-contiguously", """
def tensor_parallel_attention(x, state, num_heads, group):
    import torch.distributed as dist
    r, w = dist.get_rank(group), dist.get_world_size(group)
    B, S, M = x.shape
    fused = torch.cat([state[f"{n}_proj.weight"] for n in "qkv"])
    n = num_heads // w
    rows = fused.shape[0] // w
    y = x @ fused[r * rows:(r + 1) * rows].T
    if "q_proj.bias" in state:
        y = y + torch.cat([state[f"{n}_proj.bias"] for n in "qkv"])[r * rows:(r + 1) * rows]
    q, k, v = [t.reshape(B, S, n, -1).transpose(1, 2) for t in y.chunk(3, -1)]
    D = q.shape[-1]
    out = (q @ k.transpose(-1, -2) / D ** 0.5).softmax(-1) @ v
    merged = out.transpose(1, 2).reshape(B, S, -1)
    z = merged @ state["o_proj.weight"][:, r * n * D:(r + 1) * n * D].T
    dist.all_reduce(z, group=group)
    return z + state["o_proj.bias"] if "o_proj.bias" in state else z
"""),
    ("tensor_parallel_attention", "full-work-per-rank", """
def tensor_parallel_attention(x, state, num_heads, group):
    import torch.distributed as dist
    B, S, M = x.shape
    q, k, v = [F.linear(x, state[f"{n}_proj.weight"], state.get(f"{n}_proj.bias")).view(B, S, num_heads, -1)
               .transpose(1, 2) for n in "qkv"]
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, S, -1)
    return F.linear(out, state["o_proj.weight"], state.get("o_proj.bias"))
"""),
]
