"""What `merge_adjoint` and `split_adjoint` share: they move numbers, and each is the adjoint of a movement."""
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ... import expect
from ...exercise import CONTRACT, Exercise
from ...standard import normal


def declare(exercise: Exercise, forward: str, gradient: Callable[[], torch.Tensor], kwargs: Mapping[str, Any],
            oracle: Callable[..., torch.Tensor], names: Sequence[str]) -> None:
    """Adds the identity that makes a map an adjoint, and the dtypes. `forward` is the movement's name in words."""

    @exercise.case(f"the identity of an adjoint: ⟨{forward}(u), g⟩ = ⟨u, yours(g)⟩")
    def identity(lab):
        g = normal(*gradient().shape, seed=4)
        u = normal(*oracle(g, **kwargs).shape, seed=5)
        got = expect.tensor(lab.call(exercise.name, g, **kwargs))
        expect.shape(got, u.shape, "the result")
        expect.dtype(got, g.dtype)
        ours, theirs = (u * oracle(g, **kwargs)).sum().item(), (u * got).sum().item()
        expect.true(abs(ours - theirs) < 1e-9, f"for random u and g, ⟨{forward}(u), g⟩ is {ours:.6g} and ⟨u, yours(g)⟩ "
                                               f"is {theirs:.6g}: an adjoint makes them equal")
        expect.close(got, oracle(g, **kwargs), "the result", names)

    @exercise.case("the dtype follows the input, and two calls agree", CONTRACT)
    def dtypes(lab):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            g = normal(*gradient().shape, seed=6, dtype=dtype)
            first, again = (expect.tensor(lab.call(exercise.name, g, **kwargs)) for _ in range(2))
            want = oracle(g, **kwargs)
            expect.shape(first, want.shape)
            expect.dtype(first, dtype)
            expect.close(first, want, "the result", names, atol=0, rtol=0)
            expect.close(again, first, "the second call's result", names, atol=0, rtol=0)
