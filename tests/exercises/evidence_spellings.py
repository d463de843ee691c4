"""Session 08 in other people's words: (exercise, id of the fault or None for a right program, program)."""
import torch
from einops import einsum, rearrange

from autograder.exercises.evidence import check_pipeline, supports

# --- right programs ---

def score_by_einops(grad_output, heads, w_o):
    blocks = rearrange(w_o, "m (h d) -> h d m", h=heads.shape[1])
    writes = einsum(heads, blocks, "n h q d, h d m -> n h q m")
    return einsum(writes, grad_output, "n h q m, n q m -> n h").abs().mean(dim=0)


def score_by_vmap(grad_output, heads, w_o):
    def one(grad, example):
        return torch.stack([(grad * (head @ block.T)).sum() for head, block in
                            zip(example, w_o.chunk(heads.shape[1], 1), strict=True)])
    return torch.vmap(one)(grad_output, heads).abs().mean(0)


def interaction_by_deltas_of_numpy_floats(loss, gates, i, j):
    if {i, j} == {i}:
        raise ValueError("needs two distinct heads")

    def value(*shut):
        vector = torch.where(torch.isin(torch.arange(len(gates)), torch.tensor(shut, dtype=torch.long)),
                             torch.zeros_like(gates), gates)
        return loss(vector).numpy().item()
    whole = value()
    return (value(i, j) - whole) - (value(i) - whole) - (value(j) - whole)


def gate_with_where(log_alpha, u=None, beta=2 / 3, gamma=-0.1, zeta=1.1):
    if u is None:
        s = torch.sigmoid(log_alpha)
    else:
        if bool(((u <= 0) | (u >= 1)).any()):
            raise ValueError("noise u must be inside (0, 1)")
        s = torch.special.expit((torch.logit(u) + log_alpha) / beta)
    stretched = s.mul(zeta - gamma).add(gamma)
    return torch.where(stretched < 0, stretched * 0, torch.where(stretched > 1, stretched * 0 + 1, stretched))


def dropout_by_channels_of_an_image(heads, p, training, generator=None):
    if p < 0 or p >= 1:
        raise ValueError("probability must be in [0, 1)")
    if not training:
        return heads
    if generator is None:
        return torch.nn.functional.dropout2d(heads, p, True)
    keep = torch.rand(heads.shape[0], heads.shape[1], generator=generator).ge(p)
    return heads.mul(keep[:, :, None, None]).div(1 - p)


def prune_by_narrow_and_stack(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    retained = tuple(retained)
    if len(retained) == 0 or any(b <= a for a, b in zip(retained, retained[1:], strict=False)):
        raise ValueError("retained heads must rise")
    if retained[0] < 0 or retained[-1] > num_heads - 1:
        raise ValueError("retained heads must exist")

    def region(tensor, axis, start, width):
        return [tensor.narrow(axis, start + h * width, width) for h in retained]

    def take(name, tensor):
        if tensor.dim() == 0 or name == "o_proj.bias":
            return tensor.clone()
        if name == "o_proj.weight":
            parts = region(tensor, 1, 0, d_v)
            return torch.cat(parts, 1)
        if name.startswith("qkv"):
            k = num_heads * d_qk
            return torch.cat(region(tensor, 0, 0, d_qk) + region(tensor, 0, k, d_qk) + region(tensor, 0, 2 * k, d_v))
        return torch.cat(region(tensor, 0, 0, d_v if name[0] == "v" else d_qk))
    moved = None
    if optimizer is not None:
        moved = {}
        for name, tensors in optimizer.items():
            moved[name] = {key: take(name, tensor) for key, tensor in tensors.items()}
    return {"d_v": d_v, "d_qk": d_qk, "num_heads": len(retained), "head_map": {n: o for n, o in enumerate(retained)},
            "optimizer": moved, "state": {name: take(name, tensor) for name, tensor in state.items()}}


def pipeline_as_one_pass_over_stages(log):
    found = set()
    index = {}
    for place, one in enumerate(log):
        step = one["step"]
        cut = index.get("surgery", -1)
        changed = max(cut, index.get("fine-tune", -1))

        def since(name, wall):
            return name in index and index[name] > wall  # noqa: B023
        rules = {"gate": since("freeze", -1), "score": since("gate", -1), "select": since("score", -1),
                 "logical-eval": since("select", cut), "surgery": since("logical-eval", cut),
                 "parity": since("surgery", -1), "test": since("parity", cut), "release": since("test", changed)}
        if not rules.get(step, True):
            found.add("order")
        if step == "select" and changed >= 0 and not since("score", changed):
            found.add("stale")
        if step == "fine-tune" and not since("parity", cut):
            found.add("parity")
        if ("test" in one["reads"] and step != "test") or (step == "test" and set(one["reads"]) - {"test"}):
            found.add("split")
        if step == "release":
            base = log[index["freeze"]].get("artifact") if "freeze" in index else None
            if base is None or one.get("baseline") != base:
                found.add("rollback")
            if "speed" in one.get("claims", []) and not since("profile", cut):
                found.add("profile")
        index[step] = place
    if any(step not in index for step in check_pipeline.without("fine-tune", "profile")):
        found.add("order")
    return sorted(found)


# --- wrong ones ---

def signed_sum_then_size(grad_output, heads, w_o):
    grad_heads = rearrange(grad_output @ w_o, "n q (h d) -> n h q d", h=heads.shape[1])
    return (grad_heads * heads).sum(dim=(0, 2, 3)).abs() / len(heads)


def softmax_of_the_score(grad_output, heads, w_o):
    score = score_by_einops(grad_output, heads, w_o)
    return score / score.sum()


def closes_the_gates_of_the_caller(loss, gates, i, j):
    if i == j:
        raise ValueError("distinct")
    full = loss(gates).item()
    values = []
    for shut in ((i,), (j,), (i, j)):
        kept = gates.clone()
        gates[list(shut)] = 0
        values.append(loss(gates).item())
        if len(shut) == 1:
            gates.copy_(kept)
    return values[2] - values[0] - values[1] + full


def straight_sigmoid(log_alpha, u=None, beta=2 / 3, gamma=-0.1, zeta=1.1):
    if u is not None and not ((u > 0) & (u < 1)).all():
        raise ValueError("u")
    return torch.sigmoid(log_alpha if u is None else (torch.logit(u) + log_alpha) / beta)


def noise_whenever_it_is_missing(log_alpha, u=None, beta=2 / 3, gamma=-0.1, zeta=1.1):
    if u is None:
        u = torch.empty_like(log_alpha).uniform_(0.01, 0.99)
    return gate_with_where(log_alpha, u, beta, gamma, zeta)


def bernoulli_without_a_factor(heads, p, training, generator=None):
    if not 0 <= p < 1:
        raise ValueError("probability")
    if not training:
        return heads
    keep = torch.bernoulli(torch.full(heads.shape[:2], 1 - p), generator=generator)
    return heads * keep.to(heads.dtype)[..., None, None]


def one_row_of_links(heads, p, training, generator=None):
    if not 0 <= p < 1:
        raise ValueError("probability")
    keep = torch.rand(heads.shape[:3], generator=generator) >= p
    return heads * keep[..., None] / (1 - p) if training else heads


def deletes_in_the_caller_s_dict(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    new = prune_by_narrow_and_stack(state, retained, num_heads, d_qk, d_v, optimizer, layout)
    state.clear()
    return new


def widths_from_m(state, retained, num_heads, d_qk, d_v, optimizer=None, layout="separate"):
    new = prune_by_narrow_and_stack(state, retained, num_heads, d_qk, d_v, optimizer, layout)
    return new | {"d_qk": new["state"]["o_proj.weight"].shape[0] // new["num_heads"]}


def map_proves_necessity(evidence, claim):
    if (evidence["kind"], claim) == ("map", "causal_necessity"):
        return True, "one can see it"
    return supports.table(evidence, claim)


def no_head_is_ever_useless(evidence, claim):
    return False, "more research is needed on " + " ".join(supports.FIELDS)


def any_profile(log):
    return sorted(set(check_pipeline.oracle(log)) - {"profile"})


PROGRAMS = [
    ("gate_sensitivity", None, score_by_einops), ("gate_sensitivity", None, score_by_vmap),
    ("interaction", None, interaction_by_deltas_of_numpy_floats), ("hard_concrete", None, gate_with_where),
    ("head_dropout", None, dropout_by_channels_of_an_image), ("prune_heads", None, prune_by_narrow_and_stack),
    ("check_pipeline", None, pipeline_as_one_pass_over_stages),
    ("gate_sensitivity", "signed-average", signed_sum_then_size),
    ("gate_sensitivity", "normalised-unasked", softmax_of_the_score),
    ("interaction", "gates-left-changed", closes_the_gates_of_the_caller),
    ("hard_concrete", "not-stretched", straight_sigmoid),
    ("hard_concrete", "noise-at-test", noise_whenever_it_is_missing),
    ("head_dropout", "not-rescaled", bernoulli_without_a_factor), ("head_dropout", "links-dropped", one_row_of_links),
    ("prune_heads", "source-modified", deletes_in_the_caller_s_dict),
    ("prune_heads", "width-recomputed", widths_from_m),
    ("supports", "map-is-cause", map_proves_necessity), ("supports", "rejects-everything", no_head_is_ever_useless),
    ("check_pipeline", "profile-skipped", any_profile),
]
