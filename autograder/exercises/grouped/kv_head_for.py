"""Which key/value head a query head reads."""
from ... import expect
from ...exercise import CONTRACT, Exercise

NAME = "kv_head_for"
exercise = Exercise(
    NAME, step=1, points=1, minutes=2, difficulty=1, importance=5, tensor=False,
    summary="The key/value head of a query head: neighbours share.",
    hints=(
        "Draw 12 query heads as dots in a row and put them into 3 boxes, neighbours together. How many are in a box?",
        "The number of boxes and the size of a box are two numbers. By which of them do you divide to find the box?",
        "Two refusals, each a ValueError with a word of its own: heads that the groups cannot share evenly, and a "
        "head that there is not.",
    ),
    hides="G = 1 and R = 1 hide h mod G; R = G hides a division by G.",
)
SIZES = {
    "12 query heads over 3 key/value heads": (12, 3),
    "12 over 4": (12, 4),
    "8 over 2": (8, 2),
    "64 over 8, Llama-3-70B": (64, 8),
}


def _check(lab, heads, groups):
    got = []
    for head in range(heads):
        found = lab.call(NAME, head, heads, groups)
        expect.true(isinstance(found, int) and not isinstance(found, bool),
                    f"{NAME}({head}, {heads}, {groups}) is {found!r}, a {type(found).__name__}, expected an int")
        got.append(found)
    boxes = [box for box in range(groups) for _ in range(heads // groups)]
    wrong = [h for h in range(heads) if got[h] != boxes[h]]
    if wrong:
        h = wrong[0]
        raise expect.Mismatch(f"query head {h} of {heads} reads key/value head {got[h]}, expected {boxes[h]}: the "
                              f"{groups} groups are {heads // groups} neighbours each; your map is {got}")


def _case(title, heads, groups):
    @exercise.case(title)
    def table(lab):
        _check(lab, heads, groups)


for _title, _sizes in SIZES.items():
    _case(_title, *_sizes)


@exercise.case("as many key/value heads as query heads, and one for all", CONTRACT)
def ends(lab):
    _check(lab, 6, 6)
    _check(lab, 6, 1)


@exercise.case("refuses 12 heads over 5, and 4 over 8", CONTRACT)
def uneven(lab):
    lab.raises(ValueError, "divisible", NAME, 3, 12, 5)
    lab.raises(ValueError, "divisible", NAME, 0, 4, 8)


@exercise.case("refuses heads that there are not: 12 and 15 of 12, and -1", CONTRACT)
def outside(lab):
    for head in (12, 15, -1):
        lab.raises(ValueError, "range", NAME, head, 12, 3)


def _range(query_head, num_heads):
    if query_head < 0 or query_head >= num_heads:
        raise ValueError("query head out of range")


def _checked(query_head, num_heads, num_kv_heads):
    if num_heads % num_kv_heads:
        raise ValueError("heads are not divisible")
    _range(query_head, num_heads)
    return num_heads // num_kv_heads


@exercise.right
def quotient(query_head, num_heads, num_kv_heads):
    return query_head // _checked(query_head, num_heads, num_kv_heads)


@exercise.right
def scaled(query_head, num_heads, num_kv_heads):
    _checked(query_head, num_heads, num_kv_heads)
    return query_head * num_kv_heads // num_heads


@exercise.right
def with_divmod(query_head, num_heads, num_kv_heads):
    return divmod(query_head, _checked(query_head, num_heads, num_kv_heads))[0]


@exercise.right
def lookup(query_head, num_heads, num_kv_heads):
    size = _checked(query_head, num_heads, num_kv_heads)
    return [g for g in range(num_kv_heads) for _ in range(size)][query_head]


@exercise.right
def counted(query_head, num_heads, num_kv_heads):
    size, group = _checked(query_head, num_heads, num_kv_heads), 0
    while query_head >= size:
        query_head, group = query_head - size, group + 1
    return group


@exercise.wrong
def modulo(query_head, num_heads, num_kv_heads):
    """h mod G is the tiled order: query heads 0, G, 2G, … share. It is a consistent map, but your head layout differs
    from the contract, and from the one that checkpoints have."""
    _checked(query_head, num_heads, num_kv_heads)
    return query_head % num_kv_heads


@exercise.wrong(id="modulo")
def modulo_of_the_group_size(query_head, num_heads, num_kv_heads):
    return query_head % _checked(query_head, num_heads, num_kv_heads)


@exercise.wrong
def divides_by_kv_heads(query_head, num_heads, num_kv_heads):
    """The group size is H/G, not G."""
    _checked(query_head, num_heads, num_kv_heads)
    return query_head // num_kv_heads


@exercise.wrong
def uneven_groups_accepted(query_head, num_heads, num_kv_heads):
    """12 heads cannot share 5."""
    _range(query_head, num_heads)
    return query_head // max(1, num_heads // num_kv_heads)


@exercise.wrong(id="uneven-groups-accepted")
def rounded_up(query_head, num_heads, num_kv_heads):
    _range(query_head, num_heads)
    return query_head // -(-num_heads // num_kv_heads)


@exercise.wrong(id="uneven-groups-accepted")
def scaled_and_rounded(query_head, num_heads, num_kv_heads):
    _range(query_head, num_heads)
    return query_head * num_kv_heads // num_heads


@exercise.wrong(id="uneven-groups-accepted")
def divided_by_nothing(query_head, num_heads, num_kv_heads):
    _range(query_head, num_heads)
    return query_head // (num_heads // num_kv_heads)


@exercise.recognise("uneven-groups-accepted")
def any_answer_for_five(trials):
    return any(o.asked == f"{NAME}(3, 12, 5)" and o.error is None for t in trials for o in t.transcript)


@exercise.wrong
def unknown_head_accepted(query_head, num_heads, num_kv_heads):
    """There is no query head 12 among 12, and -1 counts from no end: the map must say so."""
    if num_heads % num_kv_heads:
        raise ValueError("not divisible")
    return query_head // (num_heads // num_kv_heads)


@exercise.wrong(id="unknown-head-accepted")
def last_head_by_minus_one(query_head, num_heads, num_kv_heads):
    if num_heads % num_kv_heads:
        raise ValueError("not divisible")
    if query_head >= num_heads:
        raise ValueError("out of range")
    return query_head // (num_heads // num_kv_heads)


@exercise.wrong(id="unknown-head-accepted")
def one_too_many(query_head, num_heads, num_kv_heads):
    if num_heads % num_kv_heads:
        raise ValueError("not divisible")
    if not 0 <= query_head <= num_heads:
        raise ValueError("out of range")
    return query_head // (num_heads // num_kv_heads)
