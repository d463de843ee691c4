"""One call on several ranks of a real process group: in this process, in the worker, and without walls."""
import os
import time

import pytest
import torch

from autograder import lab as labs
from autograder.sandbox import Limits, Sandbox
from autograder.worker import ranks

SOURCE = """
import os, time
import torch
import torch.distributed as dist

def total(x, group):
    y = x * (dist.get_rank(group) + 1)
    dist.all_reduce(y, group=group)
    return y

def many_ways(x, group):
    from torch.distributed import _functional_collectives as functional
    y = x.clone()
    dist.all_reduce(y, group=group)
    group.allreduce([y]).wait()
    y = functional.all_reduce(y, "sum", group) * 1
    dist.broadcast(y, 0, group=group)
    parts = [torch.empty_like(y) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, y, group=group)
    dist.barrier(group=group)
    return parts[0]

def products(x, group):
    weight = torch.ones(6, 4, dtype=x.dtype)
    return torch.nn.functional.linear(x, weight) + torch.einsum("bsi,oi->bso", x, weight) + x @ weight.T

def only_rank_0(x, group):
    if dist.get_rank(group) == 0:
        dist.all_reduce(x.clone(), group=group)
    return x

def raises_on_rank_1(x, group):
    if dist.get_rank(group) == 1:
        raise ValueError("not divisible")
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y

def refuses(x, group):
    raise ValueError("not divisible")

def leaves(x, group):
    if dist.get_rank(group) == 1:
        os._exit(0)
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y

def sleeps(x, group):
    time.sleep(60)

def changes(x, group):
    return x.add_(1)

def stub(x, group):
    raise NotImplementedError("write this")

def children():
    # without reaping any: in this process they may be someone else's
    try:
        return "alive" if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None else "a zombie"
    except ChildProcessError:
        return "none"
"""
X = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)


@pytest.fixture(scope="module", params=["in process", "auto", "off"])
def lab(request):
    """The lab of SOURCE, in this process, behind walls where there are some, and without."""
    if request.param == "in process":
        namespace: dict = {}
        exec(SOURCE, namespace)
        yield labs.in_process(namespace)
        return
    box = Sandbox(request.param, Limits(wall=60))
    made = labs.in_worker(box, "direct_sum", {"mha_lab/direct_sum.py": SOURCE.encode()})
    yield made
    made.close()
    box.close()


@pytest.fixture(autouse=True)
def begin(lab):
    lab.begin()


@pytest.mark.parametrize("world", [2, 4])
def test_every_rank_returns_its_value(lab, world):
    answers = lab.ranks("total", X, world=world)
    assert len(answers) == world
    for rank in answers:
        assert torch.equal(rank.value, X * sum(range(1, world + 1)))
        assert rank.collectives == {"allreduce": 1} and not rank.error and not rank.timeout
    assert lab.transcript[-1].error is None and lab.signature[-1] == world


def test_collectives_are_counted_however_they_are_called(lab):
    for rank in lab.ranks("many_ways", X):
        assert rank.collectives == {"allreduce": 3, "broadcast": 1, "allgather": 1, "barrier": 1}


def test_contractions_are_counted_however_they_are_written(lab):
    for rank in lab.ranks("products", X):
        assert sum(rows * inner * columns for rows, inner, columns in rank.contractions) == 3 * 6 * 4 * 6
        assert {inner for _, inner, _ in rank.contractions} == {4}


def test_a_collective_that_others_do_not_call_is_said(lab):
    with pytest.raises(labs.Mismatch, match="rank 0 of 2 still waited for a collective that rank 1 never called"):
        lab.ranks("only_rank_0", X, seconds=2)


def test_a_rank_that_fails_is_named(lab):
    with pytest.raises(labs.Mismatch, match="rank 1 of 2: raises_on_rank_1 raised ValueError: not divisible"):
        lab.ranks("raises_on_rank_1", X, seconds=3)
    with pytest.raises(labs.Mismatch, match="rank 1 of 2: leaves raised Ended: the process ended"):
        lab.ranks("leaves", X, seconds=3)


def test_time_ends_and_nobody_is_left(lab):
    before, begin = lab.call("children"), time.monotonic()
    with pytest.raises(labs.Mismatch, match="ranks 0, 1 of 2 still waited after 1 s"):
        lab.ranks("sleeps", X, seconds=1)
    assert time.monotonic() - begin < 10
    assert lab.call("children") == before


def test_a_refusal_is_one_on_every_rank(lab):
    lab.ranks_raise(ValueError, "divisible", "refuses", X)
    with pytest.raises(labs.Mismatch, match="rank 0 was accepted|rank 0.*accepted"):
        lab.ranks_raise(ValueError, "divisible", "total", X)
    with pytest.raises(labs.Mismatch, match='does not say "heads"'):
        lab.ranks_raise(ValueError, "heads", "refuses", X)


def test_a_changed_input_is_noticed(lab):
    lab.ranks("changes", X)
    assert lab.mutated == ["changes"]


def test_a_stub_is_not_started_and_a_missing_function_is_said(lab):
    with pytest.raises(labs.NotStarted):
        lab.ranks("stub", X)
    with pytest.raises((labs.Gone, labs.Mismatch), match="nowhere"):
        lab.ranks("nowhere", X)


def test_no_file_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [first, _] = ranks.run(lambda x, group: x + 1, [X], lambda group: ([X, group], {}), 2, 8.0)
    assert torch.equal(first["value"], X + 1) and os.listdir(tmp_path) == []
