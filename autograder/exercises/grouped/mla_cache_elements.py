"""The numbers that multi-head latent attention caches."""
from ... import expect
from ...exercise import Exercise

NAME = "mla_cache_elements"
exercise = Exercise(
    NAME, step=8, points=1, minutes=2, difficulty=2, importance=4, tensor=False,
    summary="What latent attention caches, for one token in one layer.",
    hints=(
        "A later query needs everything from which its keys and values can be made. Which rows is that, if all heads "
        "share them?",
        "Keys and values of one token are made of the same latent row. How often does it have to be stored?",
        "One of the three arguments does not matter. What is stored beside the latent row, so that positions reach the "
        "scores?",
    ),
    hides="one head hides a product with the number of heads; a rotary key of width 0 hides that it was forgotten.",
)
CASES = {
    "latent 512, rotary key 64, 128 heads: DeepSeek-V2": (512, 64, 128),
    "latent 4, rotary key 2, 3 heads": (4, 2, 3),
    "latent 96, rotary key 24, 16 heads": (96, 24, 16),
    "without a rotary key": (40, 0, 5),
}


def _case(title, latent, rope, heads):
    @exercise.case(title)
    def probe(lab):
        got, want = lab.call(NAME, latent, rope, heads), sum(len(row) for row in ([0] * latent, [0] * rope))
        expect.true(isinstance(got, (int, float)) and not isinstance(got, bool) and got == want,
                    f"{NAME}({latent}, {rope}, {heads}) is {got!r}, expected {want}: one latent row of {latent} and "
                    f"one rotary key of {rope}, whatever the {heads} heads make of them")


for _title, _args in CASES.items():
    _case(_title, *_args)


@exercise.right
def the_sum(latent, rope_dim, num_heads):
    return latent + rope_dim


@exercise.right
def counted(latent, rope_dim, num_heads):
    return len([*range(latent), *range(rope_dim)])


@exercise.wrong
def cache_times_heads(latent, rope_dim, num_heads):
    """The latent is shared by all heads, and so is the rotary key."""
    return (latent + rope_dim) * num_heads


@exercise.wrong(id="cache-times-heads")
def a_latent_for_every_head(latent, rope_dim, num_heads):
    return latent * num_heads + rope_dim


@exercise.wrong(id="cache-times-heads")
def a_rotary_key_for_every_head(latent, rope_dim, num_heads):
    return latent + rope_dim * num_heads


@exercise.wrong(id="cache-times-heads")
def the_latent_shared_out(latent, rope_dim, num_heads):
    return latent // num_heads + rope_dim


@exercise.wrong
def two_latents(latent, rope_dim, num_heads):
    """One latent serves K and V."""
    return 2 * latent + rope_dim


@exercise.wrong(id="two-latents")
def everything_twice(latent, rope_dim, num_heads):
    return 2 * (latent + rope_dim)


@exercise.wrong
def rope_key_forgotten(latent, rope_dim, num_heads):
    """The rotary key is cached beside the latent."""
    return latent


@exercise.wrong(id="rope-key-forgotten")
def rotary_part_of_the_latent(latent, rope_dim, num_heads):
    return latent - rope_dim


@exercise.wrong(id="rope-key-forgotten")
def two_latents_and_no_key(latent, rope_dim, num_heads):
    return 2 * latent
