"""The probability that a wrapper hands to SDPA."""
from ... import expect
from ...exercise import CONTRACT, Exercise

exercise = Exercise(
    "attention_dropout_p", step=2, points=1, minutes=2, difficulty=1, importance=4,
    summary="The dropout probability for one SDPA call, from the module's probability and its mode.",
    hints=(
        "SDPA takes a number and no mode. Whatever number it gets, it applies.",
        "In evaluation nothing may be dropped. Which number says that?",
        "In training p goes through as it is. Refuse what is no probability of dropping, 1 included: nothing would be "
        "left to grow by 1/(1-p).",
    ),
    tensor=False,
    hides="p = 0.5 hides p against 1-p; p = 0 hides the mode.",
)


@exercise.case("in training p goes through, in evaluation nothing is dropped")
def both_modes(lab):
    for p in (0.1, 0.3, 0.9, 0.0):
        for training in (True, False):
            expect.equal(lab.call("attention_dropout_p", p, training), p if training else 0.0,
                         f"attention_dropout_p({p}, training={training})")


@exercise.case("refuses what is no probability, in both modes", CONTRACT)
def refuses(lab):
    for p in (1.0, 1.5, -0.1, float("nan")):
        for training in (True, False):
            lab.raises(ValueError, "probability", "attention_dropout_p", p, training)


def checked(p):
    if not 0 <= p < 1:
        raise ValueError("probability")
    return p


@exercise.right
def conditional(p, training):
    return checked(p) if training else 0.0 * checked(p)


@exercise.right
def product(p, training):
    return checked(p) * training


@exercise.wrong
def always_on(p, training):
    """SDPA drops whenever its p is above 0, in evaluation too; it does not ask for the mode."""
    return checked(p)


@exercise.wrong
def keep_probability(p, training):
    """p is the probability that a link is dropped, not that it is kept."""
    return 1 - checked(p) if training else 0.0


@exercise.wrong(id="keep-probability")
def keeps_all_in_evaluation(p, training):
    return 1 - checked(p) if training else 1.0


@exercise.wrong
def never_on(p, training):
    """Training uses p; with 0 in both modes the layer is never regularised."""
    checked(p)
    return 0.0


@exercise.wrong(id="never-on")
def modes_exchanged(p, training):
    return 0.0 if training else checked(p)
