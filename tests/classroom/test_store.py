import json
import os

import pytest

from autograder.classroom.store import ReportStore, Stored, read_json, write_json
from autograder.report import CaseResult, Diagnosis, Figure

from .helpers import report


@pytest.fixture
def store(tmp_path):
    return ReportStore(tmp_path / "reports")


def test_a_report_comes_back_whole(store):
    made = report("failed")
    made.cases = [CaseResult("a case", "failed", "heads[0] holds token 1")]
    made.diagnosis = Diagnosis(["tokens-as-heads"], "t", "e", "s")
    made.figure = Figure("heads", "token", "channel", "", [["1"]], [["2"]], (0, 0))
    store.put("identity_heads", "k", Stored(made, 0.25))
    assert store.get("identity_heads", "k") == Stored(made, 0.25)
    assert store.get("identity_heads", "other") is None


@pytest.mark.parametrize("damage", [
    lambda text: "", lambda text: text[:40], lambda text: "[]", lambda text: "null",
    lambda text: text.replace('"passed"', '"perfect"'), lambda text: text.replace('"score": 1', '"score": 1000'),
    lambda text: text.replace('"score": 1', '"score": NaN'), lambda text: text.replace('"format": 1', '"format": 0'),
    lambda text: text.replace('"key": "k"', '"key": "of another"'),
    lambda text: text.replace('"exercise": "identity_heads"', '"exercise": "split_heads"')])
def test_a_damaged_report_counts_as_none(store, damage):
    store.put("identity_heads", "k", Stored(report(), 0.25))
    path = store.path("identity_heads", "k")
    text = path.read_text()
    assert damage(text) != text
    path.write_text(damage(text))
    assert store.get("identity_heads", "k") is None


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})

    def killed(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_no_file_and_no_json_read_as_none(tmp_path):
    assert read_json(tmp_path / "none.json") is None
    (tmp_path / "bad.json").write_text("{")
    assert read_json(tmp_path / "bad.json") is None
