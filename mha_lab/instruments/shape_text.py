"""Words, colours and slider values of the shape machine: one source for the Python and the browser side.

`SPEC` is plain data (JSON-able). The ES module receives it from the widget, so that no sentence and no
colour is written twice. Axis letters follow the course: B batch, T query length, S key length, M model
width, H heads, D key width of a head, D_v value width of a head. `H·D` is one axis that packs two.
"""

AXES = {
    "B": {"colour": "#57606a", "means": "batch"},
    "T": {"colour": "#0a5ca8", "means": "query tokens"},
    "S": {"colour": "#9a4a00", "means": "key tokens"},
    "M": {"colour": "#33691e", "means": "model width"},
    "H": {"colour": "#a3195b", "means": "heads"},
    "D": {"colour": "#5a3ea6", "means": "key width"},
    "D_v": {"colour": "#00686b", "means": "value width"},
}

TOKEN_FILLS = ["#bcd7f2", "#ffd6a5", "#c9e7b8", "#f6c1d3", "#dccff3", "#f4ec9a", "#b3e4df", "#e4cfb9"]

CHOICES = {
    "batch": [1, 2, 3, 4],
    "q_len": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 32],
    "k_len": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 32],
    "d_model": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 18, 20, 24, 32, 48, 64, 128, 256, 512, 768],
    "d_v": [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128],
}
MAX_SLIDER_HEADS = 32


def _projected(letter: str, long: str, length: str, width: str) -> dict[str, dict]:
    """The four tensors of one projection path, by the id of their stage, and the famous wrong split."""
    return {
        "inputs": {"name": f"{long}_in", "axes": ["B", length, "M"], "parents": [], "op": long},
        "packed": {"name": f"{letter}_packed", "axes": ["B", length, f"H·{width}"],
                   "parents": [f"{long}_in"], "op": f"{letter}_proj({long})"},
        "split": {"name": f"{letter}_split", "axes": ["B", length, "H", width],
                  "parents": [f"{letter}_packed"], "op": f"packed.view(B, {length}, H, {width})"},
        "heads": {"name": f"{letter}_heads", "axes": ["B", "H", length, width],
                  "parents": [f"{letter}_split"], "op": "split.transpose(1, 2)"},
        "wrong": {"name": f"{letter}_wrong", "axes": ["B", "H", length, width],
                  "parents": [f"{letter}_packed"], "op": f"packed.view(B, H, {length}, {width})"},
    }


_PATHS = {"q": _projected("q", "query", "T", "D"), "k": _projected("k", "key", "S", "D"),
          "v": _projected("v", "value", "S", "D_v")}


def _three(stage: str) -> list[dict]:
    return [path[stage] for path in _PATHS.values()]


STAGES = [
    {"id": "inputs", "title": "Inputs", "tensors": _three("inputs"), "wrong": [],
     "explain": "A token is one row of M channels. Self-attention gives one tensor three names; in "
                "cross-attention queries come from the target, keys and values from the source."},
    {"id": "packed", "title": "Project", "tensors": _three("packed"), "wrong": [],
     "explain": "One learned matrix product per projection. Its rows hold all heads side by side: head h "
                "owns channels h·D to h·D + D − 1, and each of them may read all M input channels."},
    {"id": "split", "title": "Split", "tensors": _three("split"), "wrong": [],
     "explain": "The view gives the packed axis two names, H and D. No byte moves: the strides say how far "
                "apart two heads and two channels lie."},
    {"id": "heads", "title": "Heads first", "tensors": _three("heads"), "wrong": _three("wrong"),
     "explain": "The transpose puts the head axis in front of the tokens by swapping two strides; still no "
                "byte moves. Why not view(B, H, T, D)? It gives the same shape from the same storage without an "
                "error, but it cuts the storage into H chunks, so a head receives other tokens' channels."},
    {"id": "scores", "title": "Scores", "wrong": [],
     "tensors": [{"name": "scores", "axes": ["B", "H", "T", "S"], "parents": ["q_heads", "k_heads"],
                  "op": "q @ k.transpose(-2, -1) / sqrt(D)"}],
     "explain": "In each head apart, every query token meets every key token. A cell is one dot product over "
                "D channels, divided by √D. D is summed away."},
    {"id": "probabilities", "title": "Softmax", "wrong": [],
     "tensors": [{"name": "probabilities", "axes": ["B", "H", "T", "S"], "parents": ["scores"],
                  "op": "softmax(scores, dim=-1)"}],
     "explain": "The softmax runs along S, the keys: for each head and query, the row sums to 1. "
                "The shape stays."},
    {"id": "head_output", "title": "Mix values", "wrong": [],
     "tensors": [{"name": "head_output", "axes": ["B", "H", "T", "D_v"],
                  "parents": ["probabilities", "v_heads"], "op": "probabilities @ v"}],
     "explain": "Each query's S weights mix the S value rows of its head: S is summed away, D_v appears."},
    {"id": "token_major", "title": "Tokens first", "wrong": [],
     "tensors": [{"name": "token_major", "axes": ["B", "T", "H", "D_v"], "parents": ["head_output"],
                  "op": "head_output.transpose(1, 2)"}],
     "explain": "The head axis moves back behind the tokens. Two strides are swapped; the bytes still lie "
                "head by head."},
    {"id": "merged", "title": "Merge",
     "tensors": [{"name": "merged", "axes": ["B", "T", "H·D_v"], "parents": ["token_major"],
                  "op": "token_major.reshape(B, T, H * D_v)"}],
     "wrong": [{"name": "merged_wrong", "axes": ["B", "T", "H·D_v"], "parents": ["head_output"],
                "op": "head_output.reshape(B, T, H * D_v)"}],
     "explain": "A token's heads become one row. They are not neighbours in storage, so reshape has to copy "
                "(unless T, H or D_v is 1). Leave the transpose out and the shape is right all the same, "
                "but a row then holds several tokens."},
    {"id": "output", "title": "Output", "wrong": [],
     "tensors": [{"name": "output", "axes": ["B", "T", "M"], "parents": ["merged"], "op": "o_proj(merged)"}],
     "explain": "W_O reads all H·D_v channels of a token and writes M. Up to here no head has seen another."},
]

SENTENCES = {
    "split_right": "Row r of every head is token r. Head {head} takes channels c{first} to c{last} of it.",
    "split_wrong": "Head {head} takes cells of {tokens}. In all heads, {differ} of {total} cells are not the "
                   "ones that the right split takes.",
    "merge_right": "Row r is token r: its heads side by side, channels c0 to c{last}.",
    "merge_wrong": "Row 0 holds {tokens}. {differ} of {total} cells are not where they belong.",
    "key": "Colour and hatch: the token that a cell comes from. t0 query token 0, s0 key token 0, "
           "c0 packed channel 0, h0 head 0.",
    "agree": "With one token or one head the two agree: no test should use such sizes alone.",
}

MAX_ELEMENTS = 2**24

SPEC = {"axes": AXES, "fills": TOKEN_FILLS, "choices": CHOICES, "max_heads": MAX_SLIDER_HEADS,
        "max_elements": MAX_ELEMENTS, "stages": STAGES, "sentences": SENTENCES}
