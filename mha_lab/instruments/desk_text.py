"""Words and limits of the attention desk: one source for the Python and the browser side."""

MOST_PAIRS, MOST_CHANNELS = 16384, 24

VIEWS = {"who": "who reads whom", "lens": "mask lens", "one": "one softmax, many heads", "writes": "head writes",
         "rank": "rank before and after"}
MASKS = {"cross": "all visible", "causal": "causal, upper left", "bottom-right": "causal, bottom right",
         "padding": "padding", "window": "window"}

SAYS = {
    "alt": "{view}: {heads} heads, {t} queries, {s} keys; {seen} of {all} pairs visible. {rows}",
    "sums": "Every row sums to 1.",
    "no_key": "No visible key for {rows}: the softmax of such a row does not exist.",
    "mask": "mask: ✓ visible; click a cell to change it",
    "head": "head {head}: queries down, keys across",
    "mean": "mean of {heads} heads",
    "reads": "{query} may read {key}. {pairs}.",
    "hidden": "{key} is hidden from {query}. {pairs}.",
    "pair": "head {head}: score {score}, weight {weight}",
    "row_sum": "The row of {name} sums to {sum}: a query shares out exactly 1.",
    "column_sum": "The column of {name} sums to {sum}: nothing fixes how much a key is read.",
    "lens": "head {head}, query {query}: four ways to use the mask",
    "lens_rows": ["scores", "✓ −∞, then softmax", "✗ scores × mask", "✗ softmax, then mask", "✗ polarity turned round"],
    "lens_note": "Whatever the mask, the first way alone gives hidden keys nothing and keeps the sum at 1.",
    "one": "query {query}: one softmax, and one for each head",
    "one_row": "one wide head",
    "mean_row": "mean",
    "one_note": "The wide head adds up the dot products of all heads before its single softmax.",
    "mixed": "query {query}: the values that each head mixed",
    "mixed_note": "Row h is the weighted mean of the value rows of head h.",
    "writes": "query {query}: what each head writes into the output",
    "bias_row": "bias",
    "writes_note": "Head h writes its mixed values through its own columns of W_O; the output row is the sum.",
    "first_channels": "Drawn are the first {shown} of {all} channels.",
    "no_w_o": "No W_O was given, so there is nothing to write through.",
    "rank": "rank of the scores and of the weights",
    "before": "scores h{head}",
    "after": "weights h{head}",
    "of": "{rank} of {most}",
    "rank_note": "Scores are products of D-wide rows, so their rank is at most D. The softmax acts on each entry and "
                 "each row; it is not bound by D.",
}
