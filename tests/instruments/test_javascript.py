"""The browser's arithmetic, figures and drawings against the torch-backed model, through `node --test`."""

import json
import os
import random
import subprocess
from dataclasses import asdict
from pathlib import Path

import torch

from mha_lab.instruments import esm
from mha_lab.instruments.drawing import draw, wrap
from mha_lab.instruments.figures import shown
from mha_lab.instruments.shape_machine import STAGE_IDS, ShapeMachine, divisors
from mha_lab.instruments.shape_text import SENTENCES, SPEC

from .kit import needs_node

FACTS = ("shape", "strides", "offset", "contiguous", "shares_storage", "elements", "bytes", "macs", "weights",
         "biases")


def some_machines() -> list[dict]:
    """States with every size at 1 sometimes: strides of such axes and copies of merges differ there."""
    rng = random.Random(3)
    states = [dict(batch=2, q_len=5, k_len=7, d_model=12, num_heads=3, d_v=None, cross=True),
              dict(batch=2, q_len=5, k_len=7, d_model=512, num_heads=8, d_v=48, cross=True),
              dict(batch=1, q_len=32, k_len=32, d_model=24, num_heads=24, d_v=1, cross=False)]
    for _ in range(70):
        d_model = rng.choice([1, 2, 6, 12, 16, 30])
        states.append(dict(batch=rng.randint(1, 3), q_len=rng.choice([1, 2, 5, 12]), k_len=rng.choice([1, 3, 11]),
                           d_model=d_model, num_heads=rng.choice(divisors(d_model)),
                           d_v=rng.choice([None, 1, 2, 9]), cross=rng.random() < 0.6))
    return states


def machine_case(state: dict) -> dict:
    machine = ShapeMachine(**state)
    facts = {fact.name: {key: asdict(fact)[key] for key in FACTS}
             for stage in machine.stages() for fact in stage.tensors + stage.wrong}
    return {"state": state, "sizes": machine.sizes, "facts": facts, "totals": machine.totals()}


def figure_cases(states: list[dict]) -> list[dict]:
    rng, cases = random.Random(4), []
    for state in states:
        machine = ShapeMachine(**state)
        for stage in STAGE_IDS:
            tensor, head = rng.choice("qkv"), rng.randrange(machine.num_heads)
            data = machine.figure(stage, tensor, head)
            cases.append({"sizes": machine.sizes, "stage": stage, "tensor": tensor, "head": head, "data": data,
                          "drawn": {"beside": draw(data), "stacked": draw(data, stacked=True)}})
    return cases


def view_cases() -> list[dict]:
    rng, cases = random.Random(5), []
    while len(cases) < 400:
        sizes = [rng.choice([1, 2, 3, 4]) for _ in range(4)]
        tensor = torch.empty(sizes).permute(rng.sample(range(4), 4))
        if rng.random() < 0.3:
            tensor = tensor[:, : max(1, tensor.shape[1] - 1)]
        target, left = [], tensor.numel()
        while left > 1:
            target.append(rng.choice([n for n in divisors(left) if n > 1]))
            left //= target[-1]
        target.insert(rng.randint(0, len(target)), 1)
        try:
            expected = list(tensor.view(target).stride())
        except RuntimeError:
            expected = None
        cases.append({"shape": list(tensor.shape), "strides": list(tensor.stride()), "target": target,
                      "expected": expected})
    return cases


@needs_node
def test_browser_agrees_with_torch(tmp_path):
    states = some_machines()
    windows = [dict(count=n, limit=limit, first=first, last=last, expected=shown(n, limit, first, last))
               for n in (1, 7, 8, 9, 12, 13, 40, 512) for limit in (8, 10, 12, 24)
               for first, last in ((0, 0), (0, 4), (n // 2, n), (n // 3, n // 2))]
    wraps = [dict(sentence=text, limit=limit, lines=wrap(text, limit))
             for text in SENTENCES.values() for limit in (5, 30, 61)]
    cases = {"spec": SPEC, "machines": [machine_case(state) for state in states],
             "figures": figure_cases(states[:12]), "views": view_cases(), "windows": windows, "wraps": wraps}
    assert {case["expected"] is None for case in cases["views"]} == {True, False}
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases), encoding="utf-8")
    script = Path(__file__).with_name("agreement.test.mjs")
    done = subprocess.run(["node", "--test", str(script)], capture_output=True, text=True, timeout=60,
                          env=os.environ | {"MHA_CASES": str(path), "MHA_MODULES": str(esm.FOLDER)})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "# pass 5" in done.stdout or "ℹ pass 5" in done.stdout


@needs_node
def test_the_joined_module_loads_alone(tmp_path):
    joined = tmp_path / "joined.mjs"
    joined.write_text(esm.module("shape_machine.js"), encoding="utf-8")
    code = f'import * as all from "{joined.as_uri()}"; ' \
           'if (typeof all.default.render !== "function" || typeof all.ledger !== "function") process.exit(1);'
    done = subprocess.run(["node", "--input-type=module", "-e", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert '"./' not in esm.module("shape_machine.js")
