import json

from autograder.classroom.class_report import ClassReport
from autograder.report import Diagnosis

from .helpers import report


def failed(*ids):
    made = report("failed")
    made.diagnosis = Diagnosis(list(ids), "", "", "") if ids else None
    return made


def test_counts_by_exercise_and_by_mistake(tmp_path):
    classes = [[report()], [failed("a")], [failed("b", "c")], [failed("a")], [failed()], [report("timeout")], [None]]
    counted = ClassReport.of("00-start", classes)
    assert counted.submissions == 7
    assert counted.exercises[0].statuses == {"passed": 1, "failed": 4, "timeout": 1}
    assert list(counted.exercises[0].mistakes.items()) == [("a", 2), ("b or c", 1)]
    counted.write(tmp_path)
    assert json.loads((tmp_path / "class_report.json").read_text()) == counted.to_dict()
    text = (tmp_path / "class_report.txt").read_text()
    assert "identity_heads: 1 of 6 passed (4 failed, 1 timeout)" in text and "2 × a" in text


def test_an_empty_class():
    assert ClassReport.of("00-start", []).to_text() == "00-start: 0 submissions"
