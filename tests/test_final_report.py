"""The page that a learner takes away."""
import re
from html.parser import HTMLParser

import pytest

from autograder import notebook
from autograder.exercises import SESSIONS, all_exercises
from autograder.final_report import page
from autograder.progress import Progress
from autograder.report import Diagnosis, Report


class Cells(HTMLParser):
    """The rows of all tables, by caption."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.open = {}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open = tag
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open == "caption":
            self.rows = self.tables[data] = []
        elif self.open in ("td", "th"):
            self.rows[-1].append(data)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    (tmp_path / "mha_lab").mkdir()
    (tmp_path / ".mha").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(exercise, status, score, points, ids=()):
    named = Diagnosis(list(ids), "t", "e", "v") if ids else None
    return Report(exercise, "00-start", status, score, points, diagnosis=named)


def test_the_page_says_what_was_done(workspace):
    kept = Progress(workspace)
    kept.record(report("identity_heads", "failed", 0, 1, ["tokens-as-heads"]))
    kept.record(report("identity_heads", "passed", 1, 1))
    kept.record(report("split_heads", "failed", 0, 2, ["relabelled-bytes"]))
    kept.predict("00-first-number-of-head-1", 20)
    kept.note("TinyLM", {"1 head": "0.0027"})
    tables = Cells(page(Progress(workspace), SESSIONS)).tables
    rows = {row[1]: row for row in tables["Sessions"]}
    assert rows["identity_heads"][0] == "00 Start" and rows["identity_heads"][3:] == ["1 of 1", "2", "0"]
    assert "passed" in rows["identity_heads"][2] and "not started" in rows["merge_heads"][2]
    assert rows.keys() - {"exercise"} == {e.name for e in all_exercises()}
    assert tables["Named mistakes"][1:] == [["tokens-as-heads", "identity_heads", "yes"],
                                           ["relabelled-bytes", "split_heads", "not yet"]]
    assert tables["Predictions"][1:] == [["00-first-number-of-head-1", "20"]]
    assert tables["TinyLM"][1:] == [["1 head", "0.0027"]]


def test_the_page_stands_alone_and_nothing_in_it_can_run(workspace):
    kept = Progress(workspace)
    kept.predict("<script>alert(1)</script>", "<img src=x onerror=alert(2)>")
    kept.note("<b>", {"<i>": "</table><script>"})
    text = page(kept, SESSIONS)
    assert not re.search(r"<script|<img|<link|src=|href=|url\(|@import", re.sub(r"&lt;.*?&gt;", "", text))
    assert "&lt;script&gt;" in text and text.startswith("<!doctype html>") and 'lang="en"' in text


def test_an_empty_report_says_so(workspace):
    text = page(Progress(workspace), SESSIONS)
    assert "<p>0 of " in text and "<b>Named mistakes</b>: none yet." in text


def test_keep_and_export_write_one_file_beside_the_lab(workspace, monkeypatch):
    shown = []
    monkeypatch.setattr(notebook, "display", lambda m: shown.append(repr(m)))
    notebook.keep("losses", {"1 head": 0.0026636757, "steps": 25, "shape": (2, 9)})
    notebook.export_report()
    assert shown[0].endswith("losses, 3 values.") and "my-report.html" in shown[1]
    tables = Cells((workspace / "my-report.html").read_text(encoding="utf-8")).tables
    assert tables["losses"][1:] == [["1 head", "0.00266368"], ["shape", "(2, 9)"], ["steps", "25"]]
    before = sorted(workspace.rglob("*"))
    for name in ("../outside.html", "mha_lab/runtime.html", "notes.py"):
        notebook.export_report(name)
        assert "such as my-report.html" in shown[-1]
    assert sorted(workspace.rglob("*")) == before


def test_an_assignment_keeps_no_record_and_gets_no_report(tmp_path, monkeypatch):
    (tmp_path / "mha_lab").mkdir()
    monkeypatch.chdir(tmp_path)
    shown = []
    monkeypatch.setattr(notebook, "display", lambda m: shown.append(repr(m)))
    notebook.export_report()
    assert "mha start" in shown[0] and [p.name for p in tmp_path.iterdir()] == ["mha_lab"]
