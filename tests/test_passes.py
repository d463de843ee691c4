"""Two passes with something between them, inputs that may be stepped in, and a grader's function under vmap."""
import functools

import pytest
import torch

from autograder.lab import Mismatch, NotStarted, in_process
from autograder.passes import two_passes

Function = torch.autograd.Function
X, G = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)


def leaf():
    return X.clone().requires_grad_()


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def drive(program, **how):
    lab = in_process({"F": program})
    try:
        return two_passes(lab, "F", leaf(), cotangent=G, **how), lab
    finally:
        lab.close()


def test_value_and_gradient_come_back_and_enter_the_transcript():
    passes, lab = drive(Square, draw=2)
    assert torch.equal(passes.value, X * X) and torch.equal(passes.gradient(0, "x"), 2 * X)
    assert passes.rng_kept and passes.raised is None and passes.kept == []
    assert [o.asked for o in lab.transcript] == ["F", "backward"] and lab.signature == ((2, 3),)


def test_an_input_changed_between_the_passes_raises_unless_the_program_hid_it_from_autograd():
    assert "modified by an inplace operation" in drive(Square, change=0)[0].raised

    class Hidden(Square):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.x * g
    passes, _ = drive(Hidden, change=0)
    assert passes.raised is None and torch.equal(passes.gradient(0, "x"), 3 * X)


class Parcel:
    def __init__(self, inside):
        self.inside = inside


def in_a_closure(t):
    return lambda: t


@pytest.mark.parametrize("hide", [lambda t: t, lambda t: [{"deep": (t,)}], in_a_closure, Parcel,
                                  lambda t: functools.partial(torch.add, t)],
                         ids=["itself", "in a list", "in a closure", "in an object", "in a partial"])
def test_what_a_node_holds_is_found_where_ever_it_lies(hide):
    class Keeps(Square):
        @staticmethod
        def forward(ctx, x):
            ctx.hidden, ctx.seed, ctx.view = hide(torch.zeros(4, 5)), 7, x[0]
            return Square.forward(ctx, x)
    passes, _ = drive(Keeps, watch=True)
    assert passes.kept == [("ctx.hidden", torch.float32, (4, 5))]
    assert passes.larger_than(19) == [("ctx.hidden", (4, 5))] and passes.larger_than(20) == []


def test_saved_tensors_are_seen_and_a_state_of_the_generator_does_not_count():
    class Keeps(Square):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, torch.get_rng_state(), torch.zeros(9))
            return x * x
    passes, _ = drive(Keeps, watch=True)
    assert [where for where, *_ in passes.kept] == ["a saved tensor"] * 2
    assert passes.larger_than(6) == [("a saved tensor", (9,))]


def test_a_generator_that_was_moved_is_seen():
    class Draws(Square):
        @staticmethod
        def backward(ctx, g):
            torch.rand(1)
            return Square.backward(ctx, g)
    assert not drive(Draws)[0].rng_kept


def test_no_graph_an_error_and_a_stub_are_three_different_things():
    class Cut(Square):
        apply = staticmethod(lambda x: (x * x).detach())
    with pytest.raises(Mismatch, match="no gradient reaches x"):
        drive(Cut)[0].gradient(0, "x")

    class Fails(Square):
        @staticmethod
        def backward(ctx, g):
            raise KeyError("lost")
    with pytest.raises(Mismatch, match="backward pass raised KeyError: 'lost'"):
        drive(Fails)[0].gradient(0, "x")

    class Stub(Square):
        @staticmethod
        def backward(ctx, g):
            raise NotImplementedError("write this")
    with pytest.raises(NotStarted, match="write this"):
        drive(Stub)


def test_random_numbers_can_be_left_out_of_the_transcript():
    _, lab = drive(Square, record=False)
    assert {o.value for o in lab.transcript} == {"random"}


def test_a_forward_pass_that_changes_its_input_is_seen():
    class Changes(Square):
        @staticmethod
        def forward(ctx, x):
            x.data.add_(1)
            return x * 1
    assert drive(Changes)[1].mutated == ["F"]


def steps(f, x):
    kept = x[1].item()
    x[1] = kept + 1
    above = f(x)
    x[1] = kept
    return above


def test_an_input_may_be_stepped_in_when_the_case_says_so():
    x = torch.arange(3.0)
    for restores, mutated in ((False, ["steps"]), (True, [])):
        lab = in_process({"steps": steps})
        assert lab.call("steps", lambda p: p.sum(), x, restores=restores).item() == 4
        assert lab.mutated == mutated
        assert (lab.last.left is not None) == restores
    assert torch.equal(lab.last.left[0], torch.arange(3.0)) and torch.equal(x, torch.arange(3.0))


def test_what_was_left_in_an_input_comes_back():
    def leaves(f, x):
        x[0] = 9
        return f(x)
    lab = in_process({"leaves": leaves})
    lab.call("leaves", lambda p: p.sum(), torch.zeros(2), restores=True)
    assert lab.last.left[0].tolist() == [9, 0]


def test_a_function_of_the_grader_is_asked_sample_by_sample_under_vmap():
    asked = []

    def f(x, y):
        asked.append((x.tolist(), y.tolist()))
        return (x * y).sum()

    def nested(f, x, y):
        return torch.vmap(lambda a: torch.vmap(lambda b: f(a, b))(y))(x)
    lab = in_process({"nested": nested})
    x, y = torch.arange(4.0).reshape(2, 2), torch.arange(6.0).reshape(3, 2)
    assert torch.equal(lab.call("nested", f, x, y), x @ y.T)
    assert len(asked) == 6 and asked[0] == ([0.0, 1.0], [0.0, 1.0])
