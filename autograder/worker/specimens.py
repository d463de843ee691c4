"""Modules made from a plain recipe: parameters that are copies, one object, or slices of one storage.

A recipe is {"storages": [1-d tensor, ...], "parameters": [(storage number, shape, stride, offset), ...],
"names": {"q.weight": parameter number, ...}}. Strides and offsets count elements. Two names with one parameter
number are one Parameter object; two parameters in one storage may share elements or not.

{"attention": "sdpa" | "products" | "none", "q": ..., "k": ..., "v": ..., "options": {...}, "only": "MATH" or None} is
a function of no arguments instead: PyTorch's attention with these options (on one backend only), the same by two matrix
products, or none at all. A recipe with "surface" is a call to trace (surfaces.py); one with
"vocabulary" a model that writes down how it is called (scribe.py).
"""
from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional as F

from .scribe import Scribe
from .surfaces import Surface


class Specimen(nn.Module):
    """A module, or a part of one, that only holds parameters."""


class AttentionCall:
    """A call that is ready to be made."""

    def __init__(self, recipe: dict[str, Any]):
        self._recipe = recipe

    def __call__(self):
        q, k, v = (self._recipe[name] for name in "qkv")
        if self._recipe["attention"] == "none":
            return q + 1
        if self._recipe["attention"] == "products":
            return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        if not self._recipe.get("only"):
            return F.scaled_dot_product_attention(q, k, v, **self._recipe["options"])
        from torch.nn.attention import SDPBackend, sdpa_kernel
        with sdpa_kernel(getattr(SDPBackend, self._recipe["only"])):
            return F.scaled_dot_product_attention(q, k, v, **self._recipe["options"])


def build(recipe: dict[str, Any]) -> nn.Module | AttentionCall:
    """What a recipe describes. A dotted name puts a parameter into a part of its own."""
    if "attention" in recipe:
        return AttentionCall(recipe)
    if "surface" in recipe:
        return Surface(recipe)
    if "vocabulary" in recipe:
        return Scribe(recipe["vocabulary"], recipe["training"])
    storages = [storage.clone() for storage in recipe["storages"]]
    parameters = [nn.Parameter(storages[number].as_strided(tuple(shape), tuple(stride), offset))
                  for number, shape, stride, offset in recipe["parameters"]]
    module = Specimen()
    for name, number in recipe["names"].items():
        *path, leaf = name.split(".")
        owner = module
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, Specimen())
            owner = owner._modules[part]
        owner.register_parameter(leaf, parameters[number])
    return module
