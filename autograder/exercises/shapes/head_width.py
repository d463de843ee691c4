"""The width of one head, and the head counts that have none."""
from ... import expect
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "head_width", step=1, points=1, minutes=3, difficulty=1, importance=3, tensor=False,
    summary="How many channels one head owns, and which pairs of numbers have no answer.",
    hints=(
        "The heads share d_model evenly. What is left over when they cannot, and which operator tells you?",
        "Test the numbers before you divide by one of them: what does Python do with 12 % 0, and with 12 % -3?",
        "Two different refusals, each a ValueError with its own word: first values below 1, then the remainder.",
    ),
    hides="12 channels over 3 heads hide every fault: the pair is in order.",
)


@exercise.case("512 channels over 8 heads are 64 each, 768 over 12 too, 12 over 1 are 12, 1 over 1 is 1")
def table(lab):
    for d_model, num_heads, want in ((512, 8, 64), (12, 1, 12), (768, 12, 64), (1, 1, 1)):
        got = lab.call("head_width", d_model, num_heads)
        expect.equal(got, want, f"head_width({d_model}, {num_heads})")
        expect.true(isinstance(got, int), f"head_width({d_model}, {num_heads}) is {got!r}, a {type(got).__name__}; "
                                          "a count of channels is an int")


def refusal(d_model, num_heads, word, title):
    @exercise.case(title, CONTRACT)
    def refused(lab):
        lab.raises(ValueError, word, "head_width", d_model, num_heads)


refusal(13, 3, "divisible", "refuses 13 channels over 3 heads")
refusal(12, 0, "positive", "refuses zero heads")
refusal(0, 4, "positive", "refuses zero channels")
refusal(12, -3, "positive", "refuses -3 heads, although 12 % -3 is 0")


def _positive(*values):
    if min(values) < 1:
        raise ValueError(f"d_model and num_heads must be positive, not {values}")


def _divisible(d_model, num_heads):
    if d_model % num_heads:
        raise ValueError(f"d_model {d_model} is not divisible by num_heads {num_heads}")


@exercise.right
def remainder_and_quotient(d_model, num_heads):
    _positive(d_model, num_heads)
    _divisible(d_model, num_heads)
    return d_model // num_heads


@exercise.right
def with_divmod(d_model, num_heads):
    if d_model < 1 or num_heads < 1:
        raise ValueError("both numbers must be Positive")
    width, rest = divmod(d_model, num_heads)
    if rest:
        raise ValueError("not DIVISIBLE")
    return width


@exercise.right
def counted_by_subtraction(d_model, num_heads):
    _positive(d_model, num_heads)
    width = 0
    while d_model >= num_heads:
        d_model, width = d_model - num_heads, width + 1
    if d_model:
        raise ValueError("the width is not divisible")
    return width


@exercise.wrong
def floors_silently(d_model, num_heads):
    """13 channels over 3 heads became 4; one channel would vanish."""
    _positive(d_model, num_heads)
    return d_model // num_heads


@exercise.wrong
def zero_division_escapes(d_model, num_heads):
    """Zero heads ended in ZeroDivisionError, not in a ValueError that names the cause."""
    if d_model < 1 or num_heads < 0:
        raise ValueError("must be positive")
    _divisible(d_model, num_heads)
    return d_model // num_heads


@exercise.wrong
def negative_heads_accepted(d_model, num_heads):
    """(12,-3) divides evenly and still is not a head count."""
    if d_model < 1 or num_heads == 0:
        raise ValueError("must be positive")
    _divisible(d_model, num_heads)
    return d_model // num_heads


@exercise.wrong
def asserts(d_model, num_heads):
    """An `assert` disappears under `python -O`; raise ValueError."""
    assert min(d_model, num_heads) > 0, "must be positive"
    assert d_model % num_heads == 0, "must be divisible"
    return d_model // num_heads


@exercise.wrong(id="asserts")
def asserts_the_remainder(d_model, num_heads):
    _positive(d_model, num_heads)
    assert d_model % num_heads == 0, "must be divisible"
    return d_model // num_heads


@exercise.wrong(id="asserts")
def asserts_the_sign(d_model, num_heads):
    assert d_model > 0, "must be positive"
    assert num_heads > 0, "must be positive"
    _divisible(d_model, num_heads)
    return d_model // num_heads


@exercise.recognise("asserts")
def any_assertion(trials):
    return any((o.error or "").startswith("AssertionError") for t in trials for o in t.transcript)


@exercise.recognise("negative-heads-accepted")
def any_answer_for_minus_three(trials):
    return any(o.asked == "head_width(12, -3)" and isinstance(o.value, int) for t in trials for o in t.transcript)
