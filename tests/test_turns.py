"""The worker's side of the clock, and what a worker is given: variables, no compiler."""
import pytest
import torch

from autograder.lab import Gone, in_process, in_worker
from autograder.sandbox import Limits, Sandbox, SandboxError
from autograder.worker import wire
from autograder.worker.compiling import as_written
from autograder.worker.turns import Turns

POOLS = [torch.arange(64.0), torch.arange(100.0, 228.0)]
TURN = {"at": [[0, 16], [32, 48]], "shapes": [[2, 8], [3, 4]], "factor": 0.5, "fixed": {"shift": 1.0}}


def f(x, y, shift):
    return x.sum() + 1000 * y[0, 0] + shift


@pytest.fixture
def turns():
    made = Turns()
    made.stage([p.clone() for p in POOLS], None)
    return made


def test_inputs_begin_where_the_turn_says_and_the_first_is_scaled(turns):
    first, second = turns.take(f, TURN)["outputs"]
    assert first == 0.5 * POOLS[0][:16].sum() + 1000 * 116 + 1
    assert second == 0.5 * POOLS[0][32:48].sum() + 1000 * 148 + 1


def test_an_echo_costs_no_program_and_gives_the_last_answers(turns):
    outputs = turns.take(f, TURN)["outputs"]
    assert turns.echo(TURN)["outputs"] is outputs


@pytest.mark.parametrize("change", [lambda x, y: x.add_(1), lambda x, y: x.data.add_(1), lambda x, y: y.mul_(2),
                                    lambda x, y: y.data.mul_(2), lambda x, y: x.numpy().fill(0)])
def test_a_changed_input_is_seen_however_it_was_changed(turns, change):
    turns.take(f, TURN)
    assert turns.intact(TURN) == {"intact": True}
    turns.take(lambda x, y, shift: change(x, y), TURN)
    assert turns.intact(TURN) == {"intact": False}


def test_turns_through_the_wire():
    lab = in_process({"f": f})

    def asked(**body):
        packer = wire.Packer(layouts=True)
        reply = wire.Unpacker(*lab.send(*packer.message(packer.pack(body))), layouts=False)
        return reply.unpack(reply.body)
    assert asked(do="stage", pools=POOLS, core=None) == {"staged": True}
    outputs = asked(do="turn", how="take", name="f", **TURN)["outputs"]
    assert [o.item() for o in outputs] == [o.item() for o in asked(do="turn", how="echo", name="f", **TURN)["outputs"]]
    assert asked(do="turn", how="intact", name="f", **TURN) == {"intact": True}
    assert asked(do="turn", how="take", name="g", **TURN)["error"]["type"] == "KeyError"
    lab.close()


def test_a_request_to_compile_returns_what_was_given():
    assert as_written(f) is f and as_written(model=f, fullgraph=True) is f
    assert as_written(mode="max-autotune")(f) is f


@pytest.mark.parametrize("walls", [pytest.param("required", marks=pytest.mark.walls), "off"])
def test_a_worker_gets_its_variables_and_no_compiler(walls):
    sandbox = Sandbox(walls, Limits(wall=30), environment={"MALLOC_TOP_PAD_": "4096"})
    with pytest.raises(SandboxError, match="no worker"):
        _ = sandbox.pid
    source = (b"import os\nimport torch\ndef variable(name):\n    return os.environ.get(name)\n"
              b"def compiled():\n    return torch.compile(variable) is variable\n")
    lab = in_worker(sandbox, "timed", {"mha_lab/timed.py": source})
    try:
        assert lab.call("variable", "MALLOC_TOP_PAD_") == "4096" and lab.call("compiled") is True
        assert isinstance(sandbox.pid, int)
    finally:
        lab.close()
        sandbox.close()


def test_a_frame_to_a_worker_that_ended_is_gone(grader, lab):
    sandbox = Sandbox("auto", Limits(wall=30))
    worker = in_worker(sandbox, "timed", {"mha_lab/timed.py": b"import os\ndef f():\n    os._exit(0)\n"})
    packer = wire.Packer(layouts=True)
    body = packer.pack({"do": "call", "name": "f", "args": [], "kwargs": {}})
    try:
        reply = worker.send(*packer.message(body))
        unpacker = wire.Unpacker(*reply, layouts=False)
        assert "gone" in unpacker.unpack(unpacker.body)
        with pytest.raises(Gone):
            worker.send(*packer.message(body))
    finally:
        worker.close()
        sandbox.close()
