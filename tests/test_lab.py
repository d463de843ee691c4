"""The lab answers alike in this process and in the worker."""
import pytest
import torch

from autograder import lab as labs
from autograder.sandbox import Limits, Sandbox

SOURCE = """
import torch
from dataclasses import dataclass

@dataclass
class Stage:
    name: str
    shape: tuple

def twice(x):
    return x * 2

def view(x):
    return x.transpose(0, 1)

def stages(x):
    return [Stage("one", tuple(x.shape))]

def change(x):
    x.add_(1)
    return x

def noise(x):
    return torch.rand(3)

def ask(f, x):
    return f(x) + 1

def compare_storage(f, x):
    y = f(x)
    return y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), y.stride(), y.storage_offset(), y

def same_object(a, b):
    return a is b

def refuse(x):
    raise ValueError("not divisible")

class Linear(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = torch.nn.Linear(n, n, bias=False)

    def forward(self, x):
        return self.w(x)
"""


@pytest.fixture(scope="module")
def sandbox():
    box = Sandbox("auto", Limits(wall=20))
    yield box
    box.close()


@pytest.fixture(params=["in process", "in the worker"])
def lab(request, sandbox):
    if request.param == "in process":
        namespace = {}
        exec(SOURCE, namespace)
        lab = labs.in_process(namespace)
    else:
        lab = labs.in_worker(sandbox, "shapes", {"mha_lab/shapes.py": SOURCE.encode()})
    yield lab
    lab.close()


def test_a_value_comes_back_and_enters_the_transcript(lab):
    x = torch.arange(3.0)
    assert torch.equal(lab.call("twice", x), x * 2)
    assert [o.asked for o in lab.transcript] == ["twice"] and lab.mutated == []


def test_layout_facts_come_beside_the_value(lab):
    x = torch.arange(6.0).reshape(2, 3)
    got = lab.call("view", x)
    assert lab.last.layout(got).stride == (1, 3) and lab.last.shares_storage(got, x)
    fresh = lab.call("twice", x)
    assert not lab.last.shares_storage(fresh, x)


def test_records_come_back_with_their_fields(lab):
    (stage,) = lab.call("stages", torch.zeros(2, 3))
    assert stage.name == "one" and stage.shape == (2, 3)


def test_a_changed_input_is_seen_and_the_graders_tensor_is_not_touched(lab):
    x = torch.zeros(3)
    lab.call("change", x)
    assert lab.mutated == ["change"] and not x.any()


def test_random_numbers_follow_the_seed(lab):
    first, again, other = (lab.call("noise", torch.zeros(1), seed=s) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_aliases_arrive_as_one_object(lab):
    x = torch.zeros(2)
    assert lab.call("same_object", x, x) is True and lab.call("same_object", x, x.clone()) is False


def test_a_callback_runs_on_the_graders_side(lab):
    asked = []
    got = lab.call("ask", lambda x: asked.append(x) or x * 10, torch.ones(2))
    assert torch.equal(got, torch.full((2,), 11.0)) and len(asked) == 1


@pytest.mark.parametrize("answer, shares, stride, offset", [
    (lambda x: x[1:].T, True, (1, 3), 3), (lambda x: x.T.contiguous(), False, (2, 1), 0)])
def test_what_a_callback_answers_with_its_argument_stays_a_view_of_it(lab, answer, shares, stride, offset):
    x = torch.arange(6.0).reshape(2, 3)
    got = lab.call("compare_storage", answer, x)
    assert got[:3] == (shares, stride, offset) and torch.equal(got[3], answer(x))


def test_gradients_follow_the_cotangent(lab):
    x = torch.ones(3, requires_grad=True)
    got = lab.call("twice", x)
    assert torch.equal(lab.backward((got, torch.arange(3.0))).of(x), torch.tensor([0.0, 2.0, 4.0]))


def test_modules_are_built_loaded_and_differentiated(lab):
    handle, shapes = lab.build("Linear", 2)
    assert shapes == {"w.weight": (2, 2)}
    weight = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    lab.load(handle, {"w.weight": weight})
    x = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    got = lab.method(handle, "__call__", x)
    assert torch.equal(got, x @ weight.T)
    grads = lab.backward((got, torch.ones_like(got)))
    assert torch.equal(grads.params["w.weight"], torch.tensor([[1.0, 3.0], [1.0, 3.0]], dtype=torch.float64))


def test_refusals_are_held_to_type_and_word(lab):
    lab.raises(ValueError, "Divisible", "refuse", 1)
    with pytest.raises(labs.Mismatch, match="does not say"):
        lab.raises(ValueError, "positive", "refuse", 1)
    with pytest.raises(labs.Mismatch, match="asks for TypeError"):
        lab.raises(TypeError, "divisible", "refuse", 1)
    with pytest.raises(labs.Mismatch, match="was accepted"):
        lab.raises(ValueError, "divisible", "twice", torch.zeros(1))


def test_counts_see_contractions_and_new_storage(lab):
    handle, _ = lab.build("Linear", 4)
    lab.method(handle, "__call__", torch.zeros(3, 4), count=True)
    assert lab.last.counts["contractions"] == 1 and 3 * 4 * 4 in lab.last.counts["new_storages"]


@pytest.mark.parametrize("lab", ["in the worker"], indirect=True)
def test_a_missing_name_is_said(lab):
    with pytest.raises(labs.Gone, match="has no nothing_here"):
        lab.call("nothing_here")
