import pytest
from nbformat.v4 import new_code_cell, new_output
from nbgrader.utils import determine_grade
from traitlets import TraitError
from traitlets.config import Config

from autograder.classroom.desk import NotJudged
from autograder.classroom.reports import ReportCells, score_of
from autograder.classroom.scores import SCORES
from autograder.classroom.store import Stored
from autograder.classroom.work import Outcome
from autograder.sandbox import SandboxError

from .helpers import answer_cell, grade_cell, notebook, report


@pytest.fixture
def judged(tmp_path):
    """judged(cells, outcome) runs the preprocessor on a submission whose programs all get this outcome."""
    lab = tmp_path / "submitted" / "ada" / "00-start" / "mha_lab"
    lab.mkdir(parents=True)
    (lab / "warmup.py").write_text("def identity_heads(x, num_heads): ...\n")

    def run(*cells, outcome=None, judge=None):
        pp = ReportCells(config=Config({"CourseDirectory": {"root": str(tmp_path)}}))
        pp.judge = judge or (lambda job: outcome or Outcome(Stored(report(), 0.01)))
        of = {"student": "ada", "assignment": "00-start", "notebook": "00-start"}
        return pp(notebook(*cells), {"nbgrader": of})
    return run


def test_the_report_takes_the_place_of_all_that_was_printed(judged):
    cell = grade_cell()
    cell.outputs = [new_output("stream", text="passed, 100 of 1\n")]
    failed = Outcome(Stored(report("failed"), 0.01))
    nb, resources = judged(cell, outcome=failed)
    assert resources[SCORES] == {"identity_heads": 0.0}
    panel, score = nb.cells[0].outputs
    assert panel.data["text/html"].startswith('<div class="mha-report"') and "not yet" in panel.data["text/plain"]
    assert "100" not in str(nb.cells[0].outputs)
    assert determine_grade(nb.cells[0]) == (0.0, 1.0)


def test_nbgrader_reads_the_same_score_from_the_cell(judged):
    nb, resources = judged(grade_cell(points=3))
    assert resources[SCORES] == {"identity_heads": 3.0}
    assert determine_grade(nb.cells[0]) == (3.0, 3.0)


def test_other_cells_lose_their_outputs_and_get_no_score(judged):
    other = new_code_cell("print('16 of 16')", outputs=[new_output("stream", text="16 of 16")], execution_count=7)
    nb, resources = judged(other, answer_cell())
    assert nb.cells[0].outputs == [] and nb.cells[0].execution_count is None
    assert resources[SCORES] == {}


def test_a_cell_of_no_exercise_is_left_to_a_hand(judged):
    nb, resources = judged(grade_cell("my_own_test"))
    assert resources[SCORES] == {}
    assert "by hand" in nb.cells[0].outputs[0].data["text/plain"]


def test_what_the_machine_could_not_decide_has_no_score(judged):
    open_ = report("not_measured")
    open_.note = "Only the time is open."
    nb, resources = judged(grade_cell(points=3), outcome=Outcome(Stored(open_, 0.01)))
    assert resources[SCORES] == {} and score_of(open_, 3.0) is None
    panel, said = nb.cells[0].outputs
    assert "not measured" in panel.data["text/plain"] and "Only the time is open." in panel.data["text/html"]
    assert "graded by hand" in said.data["text/plain"] and said.output_type == "display_data"


def test_what_could_not_be_judged_is_never_recorded(judged):
    with pytest.raises(NotJudged, match="keep dying"):
        judged(grade_cell(), outcome=Outcome(failure="the grading processes keep dying"))


def test_without_walls_it_says_how_to_grade_all_the_same(judged):
    def refuse(job):
        raise SandboxError("bubblewrap is not installed.")
    with pytest.raises(SandboxError, match="not installed.*MHA_WALLS=off.*ReportCells.walls"):
        judged(grade_cell(), judge=refuse)


def test_a_report_is_made_once(judged):
    judged(grade_cell())
    nb, _ = judged(grade_cell(), outcome=Outcome(failure="asked twice"))
    assert "passed" in nb.cells[0].outputs[0].data["text/plain"]


def test_walls_are_required_unless_told_so(monkeypatch):
    monkeypatch.delenv("MHA_WALLS", raising=False)
    assert ReportCells().walls == "required"
    assert ReportCells(config=Config({"ReportCells": {"walls": "off"}})).walls == "off"
    monkeypatch.setenv("MHA_WALLS", "auto")
    assert ReportCells().walls == "auto"
    monkeypatch.setenv("MHA_WALLS", "none")
    with pytest.raises(TraitError):
        _ = ReportCells().walls


@pytest.mark.parametrize("score", [float("nan"), -1, 2, float("inf")])
def test_an_impossible_score_is_an_error(score):
    bad = report()
    bad.score = score
    with pytest.raises(ValueError, match="score"):
        score_of(bad, 1.0)
