"""How a call is spelled in a message."""
import torch

from autograder.wording import spell


def test_tensors_are_spelled_by_their_shapes_however_deep_they_lie():
    call = spell("split_qkv", ((torch.ones(4, 2), None), {"q": (0, 4)}), {"orders": [torch.ones(3)], "one": (1,)})
    assert call == ("split_qkv((a tensor [4, 2], None), {'q': (0, 4)}, orders=[a tensor [3]], one=(1,))")


def test_a_function_is_called_a_function():
    assert spell("f", (len,), {}) == "f(a function)"
