import json
import socket
from dataclasses import dataclass

import pytest
import torch

from autograder.worker import wire


def across(value, layouts=False):
    packer = wire.Packer(layouts=layouts)
    unpacker = wire.Unpacker(*packer.message(packer.pack(value)), layouts=layouts)
    return unpacker.unpack(unpacker.body), unpacker


@dataclass
class Stage:
    name: str
    shape: tuple


@pytest.mark.parametrize("value", [
    None, True, 3, -0.5, "text", [1, [2]], (1, 2), {"a": (1,), 2: None}, {1, 2}, frozenset({"q"}), torch.float16,
    float("inf"), torch.Size([2, 3])])
def test_plain_values_arrive_as_they_are(value):
    got, _ = across(value)
    assert got == value and isinstance(got, tuple if isinstance(value, tuple) else type(value))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool,
                                   torch.int64])
def test_tensors_arrive_bitwise(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    got, _ = across(tensor)
    assert got.dtype == dtype and torch.equal(got, tensor)


def test_layouts_and_aliases_survive_the_way_to_the_worker():
    fused = torch.arange(24.0).reshape(2, 12)
    k_slice = fused[:, 4:8]
    (a, b, c), _ = across((k_slice, fused, k_slice), layouts=True)
    assert a.stride() == (12, 1) and a.storage_offset() == 4 and a is c
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    assert torch.equal(a, k_slice)


def test_an_answer_describes_its_layout_but_carries_values_only():
    transposed = torch.arange(6.0).reshape(2, 3).T
    got, unpacker = across(transposed)
    assert unpacker.layouts[id(got)].stride == (1, 3)
    assert got.is_contiguous() and torch.equal(got, transposed)


def test_records_and_strangers():
    record, _ = across(Stage("view", (2, 3)))
    assert record.name == "view" and record.shape == (2, 3) and "Stage" in repr(record)
    stranger, _ = across(object())
    assert stranger.type == "object"


def test_a_tensor_subclass_arrives_plain():
    class Liar(torch.Tensor):
        def __eq__(self, other):
            return True

    got, _ = across(torch.ones(2).as_subclass(Liar))
    assert type(got) is torch.Tensor


@pytest.mark.parametrize("header", [b"", b"[]", b"{}", b'{"body": 1}',
                                    b'{"body": {"t": 0}, "tensors": [{"blob": "t0"}]}'])
def test_garbage_is_refused(header):
    with pytest.raises(wire.WireError):
        wire.Unpacker(header, b"", layouts=False)


def test_a_description_that_lies_about_its_bytes_is_refused():
    packer = wire.Packer(layouts=False)
    header, blob = packer.message(packer.pack(torch.zeros(2, 2)))
    message = json.loads(header)
    message["tensors"][0]["shape"] = [2, 1000000]
    with pytest.raises(wire.WireError, match="do not fit"):
        wire.Unpacker(json.dumps(message).encode(), blob, layouts=False)


@pytest.mark.parametrize("change", [{"shape": [2, 10**9]}, {"stride": [10**6, 1]}, {"offset": 1}, {"offset": -1},
                                    {"stride": [-2, 1]}, {"shape": [-1, -2]}])
def test_a_layout_that_reaches_beyond_its_storage_is_refused(change):
    packer = wire.Packer(layouts=True)
    header, blob = packer.message(packer.pack(torch.zeros(2, 2)))
    message = json.loads(header)
    message["tensors"][0] |= change
    with pytest.raises(wire.WireError):
        wire.Unpacker(json.dumps(message).encode(), blob, layouts=True)


def test_depth_and_size_are_bounded():
    nested = []
    for _ in range(30):
        nested = [nested]
    with pytest.raises(wire.WireError, match="deep"):
        across(nested)
    a, b = socket.socketpair()
    wire.send(a, b"x" * 100)
    with pytest.raises(wire.WireError, match="limit"):
        wire.receive(b, 50)
    a.close()
    b.close()
