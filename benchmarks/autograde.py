"""Grading a class: `mha grade` (grade and record) against nbgrader's own pipeline, a kernel for each notebook.

The same submitted modules on the same machine, interleaved pairs, medians, and the ratio of each pair. The stock
notebook is the session's own, made light for a kernel: the first cell imports torch and the module, each grade cell
asserts a little of what our cases check, and no instrument is drawn. No two programs are alike, so that nothing is
judged once for several. `python benchmarks/autograde.py --pairs 3 --students 12`.
"""
from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import nbformat
import torch
from nbgrader.apps.api import NbGraderAPI
from rich.console import Console
from rich.table import Table
from traitlets.config import Config

from autograder.classroom.course import Course, quiet
from autograder.classroom.grade import grade_assignment
from autograder.exercises import session
from autograder.publish import course_root, session_files
from autograder.sandbox import walls_available

SESSION = session("01")
MISTAKES = (
    ("", ""),
    (".unflatten(-1, (num_heads, packed.shape[-1] // num_heads)).transpose(1, 2)",
     ".reshape(packed.shape[0], num_heads, packed.shape[1], packed.shape[2] // num_heads)"),
    ("return heads.transpose(1, 2).flatten(2)", "b, h, q, d = heads.shape; return heads.reshape(b, q, h * d)"),
    ("self.head_dim**-0.5", "self.d_model**-0.5"),
)
PREAMBLE = """
import torch
from torch import nn
from einops import rearrange
from mha_lab.shapes import (MultiHeadAttention, head_width, insert_head_axis, merge_heads, shape_ledger, split_heads)

def predict(*args):
    pass
"""
ASSERTIONS = {
    "head_width": """
assert head_width(512, 8) == 64
try:
    head_width(13, 3)
except ValueError:
    pass
else:
    raise AssertionError("13 channels have no 3 heads")
""",
    "split_heads": """
packed = torch.arange(2 * 7 * 12, dtype=torch.float64).reshape(2, 7, 12)
assert torch.equal(split_heads(packed, 3), rearrange(packed, "b s (h d) -> b h s d", h=3))
""",
    "merge_heads": """
heads = torch.arange(2 * 3 * 5 * 4, dtype=torch.float64).reshape(2, 3, 5, 4)
assert torch.equal(merge_heads(heads), rearrange(heads, "b h q d -> b q (h d)"))
""",
    "insert_head_axis": """
mask = torch.rand(2, 5, 5) > 0.5
assert torch.equal(insert_head_axis(mask), mask[:, None])
""",
    "shape_ledger": """
ledger = shape_ledger(2, 5, 7, 12, 3)
assert ledger["scores"] == (2, 3, 5, 7) and ledger["output"] == (2, 5, 12)
""",
    "MultiHeadAttention": """
torch.manual_seed(0)
ours, theirs = MultiHeadAttention(12, 3).double(), nn.MultiheadAttention(12, 3, bias=False, batch_first=True).double()
theirs.load_state_dict({"in_proj_weight": torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight]),
                        "out_proj.weight": ours.o_proj.weight})
x = torch.randn(2, 5, 12, dtype=torch.float64)
assert torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0])
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--students", type=int, default=12)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "autograde.json")
    args = parser.parse_args()
    walled = walls_available()[0]
    ours, theirs, grading = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        mine, stock = _our_course(root / "ours"), _stock_course(root / "stock")
        programs = _programs(args.students)
        for course in (mine, stock):
            _hand_in(course, programs)
        for number in range(args.pairs):
            for which in ((0, 1) if number % 2 else (1, 0)):
                course = _afresh(mine if which else stock, root / f"run-{number}-{which}")
                start = time.perf_counter()
                if which:
                    reported = []
                    summary = grade_assignment(course, SESSION.id, workers=args.workers,
                                               walls="required" if walled else "off",
                                               on_report=lambda p, into=reported: into.append(time.perf_counter()))
                    ours.append(time.perf_counter() - start)
                    grading.append(reported[-1] - start)
                    _check(summary, programs)
                else:
                    _stock(course, programs)
                    theirs.append(time.perf_counter() - start)
                    _check_stock(course, programs)
                shutil.rmtree(course)
    record = {
        "session": SESSION.id, "exercises": len(SESSION.exercises), "students": args.students, "pairs": args.pairs,
        "workers": args.workers or os.cpu_count(), "walls": walled,
        "ours_s": _summary(ours), "of_that_grade_phase_s": _summary(grading),
        "nbgrader_s": _summary(theirs),
        "ours_per_submission_s": round(statistics.median(ours) / args.students, 3),
        "nbgrader_per_submission_s": round(statistics.median(theirs) / args.students, 3),
        "ratio": round(statistics.median(t / o for t, o in zip(theirs, ours, strict=True)), 1),
        "python": platform.python_version(), "torch": torch.__version__, "cpus": os.cpu_count(),
        "machine": platform.machine(), "nbgrader": importlib.metadata.version("nbgrader"),
        "nbclient": importlib.metadata.version("nbclient"),
    }
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    _show(record)


def _programs(count: int) -> dict[str, str]:
    right = (course_root() / "solutions" / f"{SESSION.module}.py").read_text(encoding="utf-8")
    made = {}
    for i in range(count):
        old, new = MISTAKES[i % len(MISTAKES)]
        assert old in right
        made[f"student{i:03}"] = (right.replace(old, new) if old else right) + f"\n# {i}\n"
    return made


def _course(folder: Path, files: dict[str, bytes], config: str) -> Path:
    folder.mkdir()
    (folder / "nbgrader_config.py").write_text(config)
    for name, content in files.items():
        path = folder / "source" / SESSION.id / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with quiet():
        result = Course(folder).api.generate_assignment(SESSION.id)
    assert result["success"], result
    return folder


def _our_course(folder: Path) -> Path:
    config = (course_root() / "course" / "nbgrader_config.py").read_text(encoding="utf-8")
    return _course(folder, session_files(course_root(), SESSION, grading=True), config)


def _stock_course(folder: Path) -> Path:
    """nbgrader as it comes, with what any course that hands out a module has to say about it."""
    files = session_files(course_root(), SESSION, grading=True)
    notebook = nbformat.reads(files[f"{SESSION.id}.ipynb"].decode(), as_version=4)
    for cell in notebook.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if grade_id in ASSERTIONS:
            cell.source = ASSERTIONS[grade_id].strip()
        elif cell.cell_type == "code" and not grade_id.startswith("predict-"):
            cell.source = ""
    next(c for c in notebook.cells if c.cell_type == "code").source = PREAMBLE.strip()
    files[f"{SESSION.id}.ipynb"] = nbformat.writes(notebook).encode()
    config = ("from pathlib import Path\nc = get_config()\nhere = Path(__file__).parent\n"
              "(here / 'exchange').mkdir(exist_ok=True)\nc.CourseDirectory.root = str(here)\n"
              "c.Exchange.root = str(here / 'exchange')\n"
              f"c.Autograde.exclude_overwriting = {{'{SESSION.id}': ['mha_lab/{SESSION.module}.py']}}\n")
    return _course(folder, files, config)


def _hand_in(course: Path, programs: dict[str, str]) -> None:
    for student, source in programs.items():
        folder = course / "submitted" / student / SESSION.id
        shutil.copytree(course / "release" / SESSION.id, folder)
        (folder / "mha_lab" / f"{SESSION.module}.py").write_text(source)


def _afresh(course: Path, folder: Path) -> Path:
    shutil.copytree(course, folder)
    return folder


def _stock(folder: Path, programs: dict[str, str]) -> None:
    api: NbGraderAPI = Course(folder, Config()).api
    with quiet():
        for student in programs:
            result = api.autograde(SESSION.id, student)
            assert result["success"], result


def _check_stock(folder: Path, programs: dict[str, str]) -> None:
    scores = Course(folder).auto_scores(SESSION.id)
    for i, student in enumerate(programs):
        wrong = sum(score == 0 for score in scores[student].values())
        assert wrong == (i % len(MISTAKES) > 0), (student, scores[student])


def _check(summary, programs: dict[str, str]) -> None:
    assert not summary.problems and summary.made == len(programs) * len(SESSION.exercises)
    for i, row in enumerate(summary.rows):
        wrong = sum(status != "passed" for status in row.statuses.values())
        assert wrong == (i % len(MISTAKES) > 0), row


def _summary(samples: list[float]) -> dict:
    return {"median": round(statistics.median(samples), 2), "min": round(min(samples), 2),
            "max": round(max(samples), 2)}


def _show(record: dict) -> None:
    table = Table("", "median s", "min s", "max s", "s a submission",
                  title=f"{record['students']} submissions, {record['exercises']} exercises, {record['pairs']} pairs")
    for name, key in (("mha grade", "ours"), ("nbgrader, a kernel each", "nbgrader")):
        samples = record[f"{key}_s"]
        table.add_row(name, *(f"{samples[k]:.2f}" for k in ("median", "min", "max")),
                      f"{record[f'{key}_per_submission_s']:.3f}")
    table.caption = f"ratio of pairs, median: {record['ratio']}"
    Console().print(table)


if __name__ == "__main__":
    main()
