"""Sequences of calls against a model, records of a contract on both sides, and what entered a product."""
import dataclasses
import functools

import pytest
import torch

from autograder.histories import ANYTHING, Refusal, differences, modelled, shortest
from autograder.lab import Mismatch, NotStarted, Record, in_process
from mha_lab.given import CachedKV, Identity

UP, DOWN, LOOK, RESET = ("up", (2,)), ("down", (1,)), ("look", ()), ("reset", ())


class Counter:
    """The contract: never below zero, "negative" otherwise."""

    def __init__(self):
        self.level = 0

    def up(self, n):
        self.level += n

    def down(self, n):
        if n > self.level:
            raise Refusal("negative")
        self.level -= n

    def look(self):
        return self.level

    def reset(self):
        self.level = ANYTHING


class Honest:
    def __init__(self):
        self.level = 0

    def up(self, n):
        self.level += n

    def down(self, n):
        if n > self.level:
            raise ValueError("this would be NEGATIVE")
        self.level -= n

    def look(self):
        return self.level

    def reset(self):
        self.level = "free to choose"


class Forgetful(Honest):
    def down(self, n):
        self.level -= n


class Wordless(Honest):
    def down(self, n):
        if n > self.level:
            raise ValueError("no")
        self.level -= n


class HalfDone(Honest):
    def down(self, n):
        self.level -= n
        if self.level < 0:
            raise ValueError("negative")


def found(kind, *histories):
    lab = in_process({"Counter": kind})
    return lab, differences(lab, "Counter", Counter, histories, ("level",))


def test_a_program_that_keeps_the_contract_has_no_difference():
    lab, none = found(Honest, [UP, DOWN, DOWN, DOWN, LOOK], [DOWN], [UP, RESET])
    assert none == [] and lab.transcript[-1].value == []


@pytest.mark.parametrize("kind", [Forgetful, Wordless, HalfDone])
def test_a_difference_ends_its_history_and_the_shortest_comes_first(kind):
    _, found_ = found(kind, [UP, DOWN, DOWN, DOWN, LOOK], [UP, LOOK], [DOWN, LOOK])
    assert [list(d.history) for d in found_] == [[DOWN], [UP, DOWN, DOWN, DOWN]]
    assert found_[1].before == (0,) and found_[1].want.refused == ("negative",)


def test_calls_that_a_difference_does_not_need_are_left_out():
    lab, found_ = found(Forgetful, [UP, LOOK, DOWN, UP, LOOK, DOWN, DOWN, DOWN, DOWN])
    before = list(lab.transcript)
    assert list(shortest(lab, "Counter", Counter, found_[0], ("level",)).history) == [DOWN]
    assert lab.transcript == before


def test_a_refused_call_leaves_a_model_as_it_was():
    assert [o.after for o in modelled(Counter, [UP, ("down", (3,)), DOWN], ("level",))] == [(2,), (2,), (1,)]


def test_a_stub_is_not_started_and_a_constructor_that_raises_is_a_mismatch():
    class Stub:
        def __init__(self):
            raise NotImplementedError("Counter: write this")

    class Broken:
        def __init__(self):
            raise KeyError("level")
    with pytest.raises(NotStarted):
        found(Stub, [UP])
    with pytest.raises(Mismatch, match="KeyError"):
        found(Broken, [UP])


def test_a_given_record_arrives_as_what_it_is_and_goes_back_by_name():
    def release(record):
        assert isinstance(record, CachedKV)
        return dataclasses.replace(record, adapter="lora-3")
    lab = in_process({"release": release})
    got = lab.call("release", Record("CachedKV", {"release_id": "r19", "adapter": None}))
    assert got == Record("CachedKV", {"release_id": "r19", "adapter": "lora-3"})
    assert lab.call("release", got) == got


@pytest.mark.parametrize("type_, fields", [("CachedKV", {"release_id": "r19"}), ("Nobody", {"a": 1}), ("attend", {})])
def test_a_record_that_is_no_given_one_stays_plain(type_, fields):
    lab = in_process({"name": lambda record: type(record).__name__})
    assert lab.call("name", Record(type_, fields)) == "Record"
    assert Identity.__name__ not in lab.call("name", Record(type_, fields))


def test_what_was_a_factor_of_a_product_is_known_by_its_storage():
    def one_of_two(a, b, c):
        return functools.reduce(torch.matmul, (a.T, b)) + c
    lab = in_process({"f": one_of_two})
    a, b, c = torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2)
    lab.call("f", a, b, c, count=True)
    used = set(lab.last.counts["multiplied"])
    assert used == {lab.last.numbers[id(a)], lab.last.numbers[id(b)]}
