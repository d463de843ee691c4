import json

import pytest

from autograder.progress import Progress, find_lab
from autograder.report import Diagnosis, Report


def report(status, score=0, ids=()):
    named = Diagnosis(list(ids), "t", "e", "v") if ids else None
    return Report("split_heads", "01-shape-machine", status, score, 3, diagnosis=named)


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "mha_lab").mkdir()
    (tmp_path / ".mha").mkdir()
    return tmp_path


def test_a_mistake_is_met_and_then_beaten_and_the_best_score_stays(workspace):
    kept = Progress(workspace)
    kept.record(report("failed", ids=["relabelled-bytes"]))
    assert Progress(workspace).exercise("split_heads")["met"] == ["relabelled-bytes"]
    kept.record(report("passed", 3))
    kept.record(report("failed"))
    entry = Progress(workspace).exercise("split_heads")
    assert entry["beaten"] == ["relabelled-bytes"] and entry["best"] == 3 and entry["status"] == "failed"
    assert entry["checks"] == 3


def test_hints_come_one_by_one_and_the_last_repeats(workspace):
    assert [Progress(workspace).next_hint("split_heads", 3) for _ in range(4)] == [1, 2, 3, 3]


def test_outside_a_workspace_nothing_is_written(tmp_path):
    (tmp_path / "mha_lab").mkdir()
    Progress(tmp_path).record(report("failed"))
    assert [p.name for p in tmp_path.iterdir()] == ["mha_lab"]


def test_a_damaged_file_is_set_aside(workspace):
    file = workspace / ".mha" / "progress.json"
    file.write_text("{not json")
    Progress(workspace).predict("q", (2, 3))
    assert json.loads(file.read_text())["predictions"] == {"q": "(2, 3)"}
    assert (workspace / ".mha" / "progress.damaged.json").read_text() == "{not json"


def test_the_lab_is_found_from_below(workspace):
    below = workspace / "notes" / "more"
    below.mkdir(parents=True)
    assert find_lab(below) == workspace
    with pytest.raises(LookupError, match="mha start"):
        find_lab("/")
