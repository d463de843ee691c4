"""A fused projection in another order of rows."""
import torch
from einops import rearrange

from ... import expect, standard
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "reorder_fused_qkv", step=8, points=4, minutes=8, difficulty=4, importance=4,
    summary="Convert a fused projection between the orders qkv, per_head and per_kv_group.",
    hints=(
        "Write the block order on paper for 2 heads (q0 k0 v0 q1 k1 v1) and for 4 query heads in 2 groups. A block is "
        "D whole rows.",
        "Cut the rows into blocks of D first: [H + 2G, D, ...]. Converting is then a list of block numbers, and you "
        "only need one list for each order.",
        "Go through one common order: undo the source, then apply the target. In a group the R query heads come first; "
        "with G = H a group is a head, so two of the three orders are one list.",
    ),
    hides="one head hides all; G = H hides the group order; with 3 heads the per_head order is its own inverse, so "
          "exchanged source and target show only with other numbers; D = 1 hides interleaved rows.",
)

SQUARE, FIVE, GROUPED = (3, 3, 4, 12), (5, 5, 2, 6), (12, 3, 8, 20)


def tags(num_heads, num_kv_heads, head_dim, order):
    """(role, head, channel) of every row, written down order by order."""
    group = num_heads // num_kv_heads
    blocks = [("q", h) for h in range(num_heads)] + [(r, g) for r in "kv" for g in range(num_kv_heads)]
    if order != "qkv":
        blocks = [block for g in range(num_kv_heads)
                  for block in [*(("q", h) for h in range(g * group, (g + 1) * group)), ("k", g), ("v", g)]]
    return [(role, head, d) for role, head in blocks for d in range(head_dim)]


def oracle(weight, num_heads, num_kv_heads, head_dim, source, target):
    """The row of each tag, looked up in the source."""
    at = {tag: i for i, tag in enumerate(tags(num_heads, num_kv_heads, head_dim, source))}
    return torch.stack([weight[at[tag]] for tag in tags(num_heads, num_kv_heads, head_dim, target)])


def _fixture(sizes, source, bias=False):
    heads, kv_heads, d, width = sizes
    rows = (heads + 2 * kv_heads) * d
    weight = torch.arange(rows * width, dtype=torch.float64).reshape(rows, width)
    return weight[:, 0] / width if bias else weight


def _blocks(rows, sizes, source, divisor):
    """The result as runs of blocks, in words: "q0 k0 v0"; rows that are no whole block show as their tags."""
    names, held = tags(*sizes[:3], source), []
    for value in rows.tolist():
        row = value / divisor
        held.append(names[int(row)] if 0 <= row < len(names) and row == int(row) else ("?", 0, 0))
    d = sizes[2]
    words = []
    for i in range(0, len(held), d):
        block = held[i:i + d]
        whole = len({b[:2] for b in block}) == 1 and [b[2] for b in block] == list(range(d))
        words.append(f"{block[0][0]}{block[0][1]}" if whole else
                     "(" + " ".join(f"{r}{h}.{c}" for r, h, c in block) + ")")
    return held, " ".join(words[:8]) + (" ..." if len(words) > 8 else "")


def _check(lab, sizes, source, target, bias=False):
    weight = _fixture(sizes, source, bias)
    divisor = 1 if bias else sizes[3]
    got = lab.call("reorder_fused_qkv", weight, *sizes[:3], source, target)
    want = oracle(weight, *sizes[:3], source, target)
    what = "the bias" if bias else "the weight"
    expect.shape(got, want.shape, what)
    expect.dtype(got, want.dtype, what)
    wrong = (got != want).reshape(len(want), -1).any(1).nonzero()
    if len(wrong):
        at = wrong[0].item()
        first = [t.reshape(len(want), -1)[:, 0].double() for t in (got, want)]
        (held, ours), (expected, theirs) = (_blocks(t, sizes, source, divisor) for t in first)
        spoken = [f"{r} head {h} channel {d}" if r != "?" else "no row of the input" for r, h, d in
                  (held[at], expected[at])]
        raise expect.Mismatch(f"{source} to {target}: row {at} of {what} holds {spoken[0]}, expected {spoken[1]}; your "
                              f"blocks are {ours}, the {target} order is {theirs}")


def _case(title, sizes, source, target, kind, bias=False):
    @exercise.case(title, kind)
    def probe(lab):
        _check(lab, sizes, source, target, bias)


_case("per_head to qkv: H=G=3 D4 M12", SQUARE, "per_head", "qkv", "values")
_case("per_head to qkv: H=G=5 D2 M6, where an order and its inverse differ", FIVE, "per_head", "qkv", "values")
_case("per_kv_group to qkv: H12 G3 D8 M20", GROUPED, "per_kv_group", "qkv", "values")
_case("qkv to per_head: H=G=5 D2 M6", FIVE, "qkv", "per_head", CONTRACT)
_case("qkv to per_kv_group: H12 G3 D8 M20", GROUPED, "qkv", "per_kv_group", CONTRACT)
_case("per_head to per_kv_group is no change when G = H: H=G=5", FIVE, "per_head", "per_kv_group", CONTRACT)
_case("per_kv_group to per_head is no change when G = H: H=G=3", SQUARE, "per_kv_group", "per_head", CONTRACT)
_case("one key/value head: per_kv_group is qkv already, H6 G1 D4 M10", (6, 1, 4, 10), "per_kv_group", "qkv", CONTRACT)
_case("the same order on both sides: per_kv_group, H12 G3", GROUPED, "per_kv_group", "per_kv_group", CONTRACT)
_case("a bias, [rows]: per_kv_group to qkv", GROUPED, "per_kv_group", "qkv", CONTRACT, bias=True)

standard.tensor_cases(
    exercise, lambda: ([standard.normal(30, 6, seed=1)], dict(num_heads=5, num_kv_heads=5, head_dim=2,
                                                              source="per_head", target="qkv")),
    oracle, ("row", "input"))


@exercise.case("refuses an order that is none", CONTRACT)
def unknown(lab):
    lab.raises(ValueError, "order", "reorder_fused_qkv", torch.ones(36, 12), 3, 3, 4, "interleaved", "qkv")
    lab.raises(ValueError, "order", "reorder_fused_qkv", torch.ones(36, 12), 3, 3, 4, "qkv", "kqv")


@exercise.case("refuses per_head when the heads share keys and values", CONTRACT)
def grouped_per_head(lab):
    weight = _fixture(GROUPED, "qkv")
    lab.raises(ValueError, "per_head", "reorder_fused_qkv", weight, 12, 3, 8, "per_head", "qkv")
    lab.raises(ValueError, "per_head", "reorder_fused_qkv", weight, 12, 3, 8, "qkv", "per_head")


@exercise.case("refuses a number of rows that does not fit", CONTRACT)
def rows_refused(lab):
    for rows in (32, 40):
        lab.raises(ValueError, "rows", "reorder_fused_qkv", torch.ones(rows, 12), 3, 3, 4, "qkv", "per_kv_group")


def _checked(weight, H, G, D, *orders, groups=True):
    for order in orders:
        if order not in ("qkv", "per_head", "per_kv_group"):
            raise ValueError(f"unknown order {order}")
        if groups and order == "per_head" and H != G:
            raise ValueError("per_head needs one key and one value a head")
    if weight.shape[0] != (H + 2 * G) * D:
        raise ValueError("the rows do not fit")


def _roles(blocks, H, G, order):
    """q, k and v blocks of [blocks, D, ...]."""
    if order == "qkv":
        return blocks[:H], blocks[H:H + G], blocks[H + G:]
    group = blocks.unflatten(0, (G, H // G + 2))
    return group[:, :-2].flatten(0, 1), group[:, -2], group[:, -1]


def _joined(q, k, v, G, order):
    if order == "qkv":
        return torch.cat([q, k, v])
    grouped = q.unflatten(0, (G, -1))
    return torch.cat([grouped, k[:, None], v[:, None]], dim=1).flatten(0, 1)


def _convert(weight, H, G, D, source, target, read=_roles, write=_joined):
    q, k, v = read(weight.unflatten(0, (-1, D)), H, G, source)
    return write(q, k, v, G, target).flatten(0, 1)


@exercise.right
def view_and_permute(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    return _convert(weight, num_heads, num_kv_heads, head_dim, source, target)


@exercise.right
def index_select_by_a_row_map(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    rows = torch.arange(weight.shape[0])
    old, new = (_convert(rows, num_heads, num_kv_heads, head_dim, "qkv", o) for o in (source, target))
    place = torch.empty_like(rows)
    place[old] = rows
    return weight.index_select(0, place[new])


@exercise.right
def list_of_blocks(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    D, R = head_dim, num_heads // num_kv_heads

    def names(order):
        if order == "qkv":
            return [("q", h) for h in range(num_heads)] + [(r, g) for r in "kv" for g in range(num_kv_heads)]
        return [n for g in range(num_kv_heads) for n in [("q", g * R + r) for r in range(R)] + [("k", g), ("v", g)]]
    blocks = {n: weight[i * D:(i + 1) * D] for i, n in enumerate(names(source))}
    return torch.cat([blocks[n] for n in names(target)])


@exercise.right
def scatter_then_gather(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    rows = torch.arange(weight.shape[0])
    old, new = (_convert(rows, num_heads, num_kv_heads, head_dim, "qkv", o) for o in (source, target))
    plain = torch.zeros_like(weight).index_copy(0, old, weight)
    return plain[new]


@exercise.right
def permutation_product(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    rows = torch.arange(weight.shape[0])
    old, new = (_convert(rows, num_heads, num_kv_heads, head_dim, "qkv", o) for o in (source, target))
    eye = torch.eye(len(rows), dtype=weight.dtype)
    return eye[new] @ (eye[old].T @ weight)


@exercise.right
def einops_by_hand(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    G, D, R = num_kv_heads, head_dim, num_heads // num_kv_heads
    flat = weight.reshape(weight.shape[0], -1)
    if source != "qkv":
        group = rearrange(flat, "(g r d) m -> g r d m", g=G, d=D)
        flat = torch.cat([rearrange(part, "g r d m -> (g r d) m") for part in (group[:, :R], group[:, R:R + 1],
                                                                              group[:, R + 1:])])
    if target != "qkv":
        q, k, v = flat.split([G * R * D, G * D, G * D])
        flat = rearrange(torch.cat([rearrange(q, "(g x) m -> g x m", g=G), rearrange(k, "(g x) m -> g x m", g=G),
                                    rearrange(v, "(g x) m -> g x m", g=G)], 1), "g x m -> (g x) m")
    return flat.reshape(weight.shape)


@exercise.wrong
def flat_three_way_split(weight, num_heads, num_kv_heads, head_dim, source, target):
    """A per-head fused tensor was cut into thirds: Q received parts of K and V."""
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    return _convert(weight, num_heads, num_kv_heads, head_dim, "qkv", target)


@exercise.wrong(id="flat-three-way-split")
def groups_are_read_well(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    source = "qkv" if source == "per_head" else source
    return _convert(weight, num_heads, num_kv_heads, head_dim, source, target)


def _read_triples(blocks, H, G, order):
    if order != "per_kv_group":
        return _roles(blocks, H, G, order)
    return blocks[0::3], blocks[1::3], blocks[2::3]


def _write_by_group(q, k, v, G, order):
    if order == "qkv":
        return torch.cat([q, k, v])
    return torch.cat([q.unflatten(0, (len(k), -1)), k[:, None], v[:, None]], dim=1).flatten(0, 1)


@exercise.wrong
def group_read_as_per_head(weight, num_heads, num_kv_heads, head_dim, source, target):
    """A group holds R queries before its k and v."""
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    return _convert(weight, num_heads, num_kv_heads, head_dim, source, target, _read_triples, _write_by_group)


def _read_one_query(blocks, H, G, order):
    if order != "per_kv_group":
        return _roles(blocks, H, G, order)
    group = blocks.unflatten(0, (G, -1))
    return group[:, 0], group[:, 1], group[:, 2]


@exercise.wrong(id="group-read-as-per-head")
def one_query_in_each_group(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    return _convert(weight, num_heads, num_kv_heads, head_dim, source, target, _read_one_query)


def _read_key_second(blocks, H, G, order):
    if order != "per_kv_group":
        return _roles(blocks, H, G, order)
    group = blocks.unflatten(0, (G, -1))
    return torch.cat([group[:, :1], group[:, 3:]], dim=1).flatten(0, 1), group[:, 1], group[:, 2]


def _write_key_second(q, k, v, G, order):
    if order == "qkv":
        return torch.cat([q, k, v])
    grouped = q.unflatten(0, (G, -1))
    return torch.cat([grouped[:, :1], k[:, None], v[:, None], grouped[:, 1:]], dim=1).flatten(0, 1)


@exercise.wrong(id="group-read-as-per-head")
def key_and_value_after_the_first_query(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    return _convert(weight, num_heads, num_kv_heads, head_dim, source, target, _read_key_second, _write_key_second)


@exercise.wrong(id="group-read-as-per-head")
def triples_of_as_many_as_heads(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)

    def read(blocks, H, G, order):
        if order == "qkv":
            return _roles(blocks, H, G, order)
        return blocks.reshape(H, 3, *blocks.shape[1:]).unbind(1)
    return _convert(weight, num_heads, num_kv_heads, head_dim, source, target, read, _write_by_group)


def _read_rows(weight, H, G, order):
    """Roles of single rows."""
    if order == "qkv":
        return weight.split([H, G, G])
    rows = weight.unflatten(0, (-1, H // G + 2))
    return rows[:, :-2].flatten(0, 1), rows[:, -2], rows[:, -1]


def _by_rows(weight, H, G, D, source, target, only_per_head=False):
    def rowwise(order):
        return order == "per_head" or (order == "per_kv_group" and not only_per_head)
    parts = (_read_rows(weight, H, G, source) if rowwise(source)
             else [p.flatten(0, 1) for p in _roles(weight.unflatten(0, (-1, D)), H, G, source)])
    if rowwise(target):
        q, k, v = parts
        return torch.cat([q.unflatten(0, (G * D, -1)), k[:, None], v[:, None]], dim=1).flatten(0, 1)
    return _joined(*(p.unflatten(0, (-1, D)) for p in parts), G, target).flatten(0, 1)


@exercise.wrong
def rows_not_blocks(weight, num_heads, num_kv_heads, head_dim, source, target):
    """Single rows were interleaved instead of D-row blocks."""
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    return _by_rows(weight, num_heads, num_kv_heads, head_dim, source, target)


@exercise.wrong(id="rows-not-blocks")
def only_in_per_head(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    return _by_rows(weight, num_heads, num_kv_heads, head_dim, source, target, only_per_head=True)


@exercise.wrong(id="rows-not-blocks")
def channel_before_head(weight, num_heads, num_kv_heads, head_dim, source, target):
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    H, G, D = num_heads, num_kv_heads, head_dim

    def read(order):
        if order == "qkv":
            return [p.flatten(0, 1) for p in _roles(weight.unflatten(0, (-1, D)), H, G, order)]
        rows = weight.unflatten(0, (D, -1))
        q, k, v = rows[:, :H], rows[:, H:H + G], rows[:, H + G:]
        return [p.transpose(0, 1).flatten(0, 1) for p in (q, k, v)]
    q, k, v = read(source)
    if target == "qkv":
        return torch.cat([q, k, v])
    parts = [p.unflatten(0, (-1, D)).transpose(0, 1) for p in (q, k, v)]
    return torch.cat(parts, dim=1).flatten(0, 1)


def _read_tiled(blocks, H, G, order):
    if order != "per_kv_group":
        return _roles(blocks, H, G, order)
    group = blocks.unflatten(0, (G, -1))
    return group[:, :-2].transpose(0, 1).flatten(0, 1), group[:, -2], group[:, -1]


def _write_tiled(q, k, v, G, order):
    if order != "per_kv_group":
        return _joined(q, k, v, G, order)
    return torch.cat([q.unflatten(0, (-1, G)).transpose(0, 1), k[:, None], v[:, None]], dim=1).flatten(0, 1)


@exercise.wrong
def groups_tiled(weight, num_heads, num_kv_heads, head_dim, source, target):
    """Head layout differs from the contract: queries h, h+G, ... were put in one group."""
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    return _convert(weight, num_heads, num_kv_heads, head_dim, source, target, _read_tiled, _write_tiled)


@exercise.wrong
def inverse_direction(weight, num_heads, num_kv_heads, head_dim, source, target):
    """Source and target were exchanged."""
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target)
    return _convert(weight, num_heads, num_kv_heads, head_dim, target, source)


@exercise.wrong
def per_head_with_groups(weight, num_heads, num_kv_heads, head_dim, source, target):
    """"per_head" does not exist when G < H."""
    _checked(weight, num_heads, num_kv_heads, head_dim, source, target, groups=False)
    return _convert(weight, num_heads, num_kv_heads, head_dim, source, target)


@exercise.recognise("per-head-with-groups")
def accepted(trials):
    """Right in every value, and the order that does not exist was served, or ended in an error of torch."""
    if any(not t.passed for t in trials if t.case.kind != CONTRACT):
        return False
    return any(not t.passed and t.transcript and t.transcript[-1].error in (None, "RuntimeError", "IndexError")
               for t in trials if t.case.probe is grouped_per_head)
