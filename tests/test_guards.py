"""course/guards.md: every row has tests that exist, and every test is linked where it is."""
import ast
import re
from functools import cache

import pytest

from autograder.exercises import SESSIONS, all_exercises
from autograder.publish import course_root

ROOT = course_root()
ROWS = [line for line in (ROOT / "course" / "guards.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| failure")]
NODES = [node for row in ROWS for node in re.findall(r"\[`([^`]+)`\]\(([^)]+)\)", row)]
BUILT = {e.name: {p.label for p in e.wrongs} for e in all_exercises()}
OWNERS = {"05": ("validate_call", "trace_call", "causal_visibility", "cross_attention", "decode_step",
                 "CrossKVLifecycle"),
          "08": ("supports", "gate_sensitivity", "prune_heads", "pruned_macs"),
          "09": ("overlap_heads", "talking_heads_attention", "compose_dynamic", "route_heads", "variant_ledger",
                 "collaborative_scores", "classic_as_collaborative")}


@cache
def functions(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_there_are_eleven_families_and_each_is_held():
    assert len(ROWS) == 11
    for row in ROWS:
        _, failure, guard, held, _ = row.split("|")
        assert failure.strip() and guard.strip() and len(re.findall(r"::test_", held)) >= 2, failure


@pytest.mark.parametrize("node, target", NODES, ids=[n for n, _ in NODES])
def test_a_guard_is_held_by_a_test_that_exists(node, target):
    path, _, rest = node.partition("::")
    name, _, parameter = rest.partition("[")
    assert target == f"../{path}" and name in functions(path)
    if not parameter:
        return
    exercise, _, label = parameter.removesuffix("]").partition("-")
    missing = next((number for number, names in OWNERS.items() if exercise in names), None)
    if missing and missing not in {s.number for s in SESSIONS}:
        pytest.skip(f"session {missing} is not in this build")
    assert label in BUILT[exercise], sorted(BUILT[exercise])
