"""Modules made from a recipe hold exactly the memory that it describes."""
import torch

from autograder import lab as labs
from autograder.worker import specimens


def names(module, **kwargs):
    return [n for n, _ in module.named_parameters(**kwargs)]


def test_copies_one_object_and_slices():
    module = specimens.build({
        "storages": [torch.arange(12.0), torch.arange(12.0)],
        "parameters": [(0, (2, 3), (3, 1), 0), (0, (2, 3), (3, 1), 6), (1, (2, 3), (3, 1), 0), (1, (3, 2), (1, 3), 0)],
        "names": {"a.weight": 0, "b.weight": 1, "c.inner.weight": 2, "d": 3, "e.weight": 2}})
    a, b, c, d = module.a.weight, module.b.weight, module.c.inner.weight, module.d
    assert names(module) == ["d", "a.weight", "b.weight", "c.inner.weight"]
    assert names(module, remove_duplicate=False) == ["d", "a.weight", "b.weight", "c.inner.weight", "e.weight"]
    assert module.e.weight is c and torch.equal(a, c) and a.data_ptr() != c.data_ptr()
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and b.data_ptr() - a.data_ptr() == 24
    with torch.no_grad():
        d[0, 1] = 99
    assert c[1, 0] == 99 and b[0, 0] == 6
    assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad for p in module.parameters())


def test_a_program_receives_the_module():
    lab = labs.in_process({"count": lambda module: sum(p.numel() for p in module.parameters())})
    recipe = {"storages": [torch.arange(6.0)], "parameters": [(0, (2, 3), (3, 1), 0)], "names": {"q.weight": 0}}
    assert lab.call("count", lab.specimen(recipe)) == 6
