"""Runs the browser side of an instrument against cases that its torch-backed model made, under node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from mha_lab.instruments import esm
from mha_lab.instruments.kit import FILLS, Instrument
from mha_lab.instruments.paint import paint_bars, paint_grid

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
SCRIPT = Path(__file__).with_name("agreement.mjs")


def node(module: str, calls: list[dict], tmp_path: Path) -> list:
    """What the functions of the joined ES module answer: calls are {"call": name, "with": [arguments]}."""
    joined, asked = tmp_path / f"{module}.mjs", tmp_path / f"{module}.json"
    joined.write_text(esm.module(f"{module}.js"), encoding="utf-8")
    asked.write_text(json.dumps(calls), encoding="utf-8")
    done = subprocess.run(["node", str(SCRIPT), str(joined), str(asked)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def assert_agreement(instrument: Instrument, states: list[dict], tmp_path: Path,
                     probes: list[tuple[dict, str, int, dict]] = ()) -> None:
    """For every state the browser makes the scene of the model, and paints it alike; for every probe
    (state, part, index, {"text", "marks", ...}) it says and marks the same."""
    module, data = instrument.name.replace("-", "_"), json.loads(json.dumps(instrument.data()))
    scenes = [instrument.scene(state) for state in states]
    parts = [part for scene in scenes for part in scene["parts"]]
    calls = [{"call": "scene", "with": [data, state]} for state in states]
    calls += [{"call": "probe", "with": [data, *probe[:3]]} for probe in probes]
    answers = node(module, calls + _paint_calls(parts), tmp_path)
    for state, expected, answer in zip(states, scenes, answers, strict=False):
        assert answer == expected, state
    for (state, part, index, expected), answer in zip(probes, answers[len(states):], strict=False):
        assert answer == expected, (state, part, index)
    _assert_painted(parts, answers[len(calls):])


def assert_painted(parts: list[dict], tmp_path: Path) -> None:
    """Grids and bars are the same strings from both sides."""
    _assert_painted(parts, node("paint", _paint_calls(parts), tmp_path))


def _paint_calls(parts: list[dict]) -> list[dict]:
    fills = {key: list(fill) for key, fill in FILLS.items()}
    return [{"call": "paintGrid", "with": [part, "k", fills]} if part["kind"] == "grid"
            else {"call": "paintBars", "with": [part, fills]} for part in _painted(parts)]


def _assert_painted(parts: list[dict], answers: list) -> None:
    for part, answer in zip(_painted(parts), answers, strict=True):
        assert answer == list(paint_grid(part, "k") if part["kind"] == "grid" else paint_bars(part)), part["id"]


def _painted(parts: list[dict]) -> list[dict]:
    return [part for part in parts if part["kind"] in ("grid", "bars")]
