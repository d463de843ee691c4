"""Mutate the solutions and see whether the grader notices: a mutant that still passes is a hole, or an equal program.

Mutants come from cosmic-ray (`pip install cosmic-ray`) and from one operator of our own, which drops a method call.
Each is checked like a learner's file, in the sandbox. The text of an error message is left alone: a refusal that words
a number differently is the same refusal. Survivors that `benchmarks/equivalent_mutants.json` lists, with
the reason, behave as the original does; any other survivor makes this script exit with 1.

    python benchmarks/mutation.py                 # all exercises
    python benchmarks/mutation.py split_heads 03  # some
"""
from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cosmic_ray.mutating as mutating
import cosmic_ray.plugins as plugins
from cosmic_ray.ast import ast_nodes, get_ast

from autograder.exercise import Exercise
from autograder.exercises import all_exercises, select
from autograder.grading import Grader
from autograder.publish import course_root
from autograder.sandbox import Limits

EQUIVALENT = Path(__file__).parent / "equivalent_mutants.json"
ELEMENTWISE = ("ReplaceBinaryOperator_Mul_Add", "ReplaceBinaryOperator_Mul_Div", "ReplaceBinaryOperator_Add_Sub",
               "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_Div_Mul", "ReplaceBinaryOperator_FloorDiv_Mul",
               "ReplaceBinaryOperator_Mod_FloorDiv", "ReplaceBinaryOperator_Pow_Mul")


def operators() -> list[str]:
    """All of cosmic-ray's that need no argument, but one replacement for each arithmetic sign is enough."""
    return [name for name in plugins.operator_names() if not plugins.get_operator(name).arguments()
            and ("ReplaceBinaryOperator" not in name or name.split("/")[1] in ELEMENTWISE)]


def mutants(source: str, lines: range) -> Iterator[tuple[str, str]]:
    """(what was done, the mutated module) for every change inside these lines."""
    tree = get_ast(source)
    texts = error_texts(source)
    for name in operators():
        operator = plugins.get_operator(name)()
        occurrence, at = 0, Counter()
        for node in ast_nodes(tree):
            for (line, column), _ in operator.mutation_positions(node):
                if line in lines and not any(a <= (line, column) < b for a, b in texts):
                    changed = mutating.mutate_code(source, operator, occurrence)
                    if changed and changed != source:
                        at[line, column] += 1
                        yield f"{line - lines.start + 1}:{column} {name.split('/')[1]} {at[line, column]}", changed
                occurrence += 1
    yield from dropped_calls(source, lines)


def error_texts(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the formatted texts of `raise` statements begin and end, as (line, column)."""
    return [((text.lineno, text.col_offset), (text.end_lineno, text.end_col_offset))
            for statement in ast.walk(ast.parse(source)) if isinstance(statement, ast.Raise)
            for text in ast.walk(statement) if isinstance(text, ast.JoinedStr)]


def dropped_calls(source: str, lines: range) -> Iterator[tuple[str, str]]:
    """`x.f(...)` becomes `x`."""
    rows = source.splitlines(keepends=True)
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row.encode()))
    raw = source.encode()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.lineno in lines:
            if any(a <= (node.lineno, node.col_offset) < b for a, b in error_texts(source)):
                continue
            receiver = node.func.value
            if isinstance(receiver, ast.Name) and receiver.id in ("torch", "F", "nn", "math", "self", "dist"):
                continue
            end_of_receiver = starts[receiver.end_lineno - 1] + receiver.end_col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            changed = (raw[:end_of_receiver] + raw[end:]).decode()
            yield f"{node.lineno - lines.start + 1}:{node.col_offset} DropCall_{node.func.attr}", changed


def region(source: str, exercise: Exercise) -> range:
    """The lines of the exercise's own function or class."""
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == exercise.name:
            return range(node.lineno, node.end_lineno + 1)
    raise LookupError(f"solutions/{exercise.module}.py has no {exercise.name}")


def survivors(grader: Grader, exercise: Exercise, folder: Path) -> tuple[int, list[str]]:
    """How many mutants were tried, and which ones passed."""
    source = (course_root() / "solutions" / f"{exercise.module}.py").read_text(encoding="utf-8")
    target = folder / "mha_lab" / f"{exercise.module}.py"
    target.parent.mkdir(exist_ok=True)
    target.write_text(source)
    assert grader.check([exercise], folder)[0].status == "passed", f"the solution of {exercise.name} does not pass"
    tried, alive = 0, []
    for what, changed in mutants(source, region(source, exercise)):
        try:
            compile(changed, "mutant", "exec")
        except SyntaxError:
            continue
        target.write_text(changed)
        tried += 1
        if grader.check([exercise], folder)[0].status == "passed":
            alive.append(what)
    return tried, alive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    chosen = [e for n in args.names for e in select(n)] if args.names else list(all_exercises())
    known = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.is_file() else {}
    holes = 0
    with tempfile.TemporaryDirectory() as folder, Grader("auto", Limits(wall=10)) as grader:
        for exercise in chosen:
            tried, alive = survivors(grader, exercise, Path(folder))
            new = [m for m in alive if m not in known.get(exercise.name, {})]
            holes += len(new)
            print(f"{exercise.name}: {tried} mutants, {tried - len(alive)} caught, "
                  f"{len(alive) - len(new)} equal programs, {len(new)} holes", flush=True)
            for what in new:
                print(f"    {what}", flush=True)
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
