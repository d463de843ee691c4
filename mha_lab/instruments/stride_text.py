"""Words and examples of the stride explorer: one source for the Python and the browser side."""

INDEX_LETTERS = "ijklmnop"

SAYS = {
    "steps": "Operations",
    "columns": ["", "operation", "shape", "strides", "offset", "contiguous", "storage"],
    "first": "first tensor",
    "same": "the same",
    "copied": "copy of {bytes} bytes",
    "formula": "address = {formula}",
    "logical": "logical cells [{shape}]",
    "logical_axes": "logical cells [{shape}], {rows} down, {cols} across",
    "storage": "storage of {size} cells",
    "storage_copied": "new storage of {size} cells, written by a copy",
    "unread_cells": "{count} cells with a dashed frame are not read.",
    "cell": "logical [{index}]: {sum} = {address}. Storage cell {address} holds {holds}.",
    "jump": "The next element in row-major order lies at {jump}.",
    "read_by": "Storage cell {address} holds {holds} and is read by {count} logical cell(s): {readers}",
    "unread": "Storage cell {address} holds {holds} and is read by no logical cell.",
    "nothing": "something else",
    "alt": "{op}: shape [{shape}], strides ({strides}), offset {offset}, storage: {storage}.",
    "differ": "{differ} of {total} cells hold another element than on the right side.",
    "agree": "All {total} cells hold the same element as on the right side: such sizes hide the fault.",
    "other_shape": "The shapes differ: [{right}] and [{wrong}].",
    "corner": "Drawn is the corner {shape} of {whole}; strides and addresses are those of the whole tensor.",
}

_SMALL = {"B": 2, "T": 5, "H": 3, "D": 4}

EXAMPLES = [
    {"id": "split", "title": "split heads", "base": "B, T, H*D", "sizes": _SMALL,
     "chain": "view(B, T, H, D).transpose(1, 2)", "versus": "view(B, H, T, D)"},
    {"id": "merge", "title": "merge heads", "base": "B, H, T, D", "sizes": _SMALL,
     "chain": "transpose(1, 2).reshape(B, T, H*D)", "versus": "reshape(B, T, H*D)"},
    {"id": "key", "title": "the K third of a fused projection", "base": "B, T, 3*H*D",
     "sizes": {"B": 1, "T": 4, "H": 2, "D": 3}, "chain": "[..., H*D:2*H*D].view(B, T, H, D)",
     "versus": "as_strided((B, T, H, D), (T*H*D, H*D, D, 1), H*D)"},
    {"id": "repeat", "title": "repeat K/V heads", "base": "B, G, T, D",
     "sizes": {"B": 1, "G": 2, "R": 3, "T": 3, "D": 2},
     "chain": "unsqueeze(2).expand(B, G, R, T, D).reshape(B, G*R, T, D)",
     "versus": "unsqueeze(1).expand(B, R, G, T, D).reshape(B, G*R, T, D)"},
    {"id": "refused", "title": "a view that is refused", "base": "T, D", "sizes": {"T": 3, "D": 4},
     "chain": "transpose(0, 1).view(D*T)", "versus": ""},
    {"id": "window", "title": "overlapping windows", "base": "N", "sizes": {"N": 12},
     "chain": "as_strided((5, 4), (2, 1), 0)", "versus": ""},
]
