"""check, hint, solution, progress and predict, as a notebook shows them."""
import shutil

import pytest

from autograder import notebook

STUB = "def identity_heads(x, num_heads):\n    raise NotImplementedError('identity_heads')\n"
TOKENS = ("def identity_heads(x, num_heads):\n    b, s, m = x.shape\n"
          "    return x.reshape(b, num_heads, s, m // num_heads).transpose(1, 2)\n")
RIGHT = ("def identity_heads(x, num_heads):\n    if x.shape[-1] % num_heads: raise ValueError('not divisible')\n"
         "    return x.unflatten(-1, (num_heads, -1))\n")


@pytest.fixture
def shown(monkeypatch, grader):
    panels = []
    monkeypatch.setattr(notebook, "display", panels.append)
    monkeypatch.setattr(notebook, "_grader", lambda: grader)

    def take():
        page = "".join(p._repr_html_() for p in panels)
        panels.clear()
        return page
    return take


@pytest.fixture
def workspace(lab, monkeypatch):
    folder = lab("warmup", STUB)
    (folder / ".mha").mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_the_panel_follows_the_file(workspace, shown, lab, monkeypatch):
    assert notebook.check("identity_heads") is None
    assert 'data-status="not_started"' in shown()
    lab("warmup", TOKENS)
    notebook.check("identity_heads")
    page = shown()
    assert "<code>tokens-as-heads</code>" in page and page.count("class=mha-cell") == 2
    assert "Hint 1 of 3" in page
    lab("warmup", RIGHT)
    notebook.check("identity_heads")
    page = shown()
    assert 'data-status="passed"' in page and "Hint" not in page
    maps = []
    monkeypatch.setattr(notebook, "show", maps.append)
    notebook.progress()
    assert "tokens-as-heads ✓" in maps[0].svg(session=0) and "1 of " in maps[0].alt()


def test_the_explorer_opens_where_the_layout_is_the_evidence(workspace, shown, lab, monkeypatch):
    opened = []
    monkeypatch.setattr(notebook, "show", lambda explorer, **state: opened.append(explorer))
    lab("warmup", TOKENS)
    notebook.check("identity_heads")
    (explorer,) = opened
    right, wrong = (explorer.layouts(chain=explorer.state()[side])[-1] for side in ("chain", "versus"))
    assert right.shape == wrong.shape == (2, 5, 3, 4) and right.strides != wrong.strides
    assert "hold another element" in explorer.alt() and "b1 t4" in explorer.probe(
        explorer.state(), "logical", len(right.origin) - 1)["text"]
    lab("warmup", RIGHT)
    notebook.check("identity_heads")
    lab("warmup", "def identity_heads(x, num_heads):\n    return x\n")
    notebook.check("identity_heads")
    assert len(opened) == 1


def test_hints_step(workspace, shown):
    for step in (1, 2, 3, 3):
        notebook.hint("identity_heads")
        assert f"Hint {step} of 3" in shown()


def test_the_solution_is_shown_in_a_workspace_and_not_in_an_assignment(workspace, shown):
    notebook.solution("identity_heads")
    assert "def identity_heads" in shown()
    shutil.rmtree(workspace / ".mha")
    notebook.solution("identity_heads")
    page = shown()
    assert "def identity_heads" not in page and "graded" in page


@pytest.mark.parametrize("value, word", [(None, "in place of None"), ((2, 3), "Noted: (2, 3)"), (object(), "plain")])
def test_predictions_are_literals(workspace, shown, value, word):
    notebook.predict("shape", value)
    assert word in shown()


def test_a_changed_prediction_says_what_it_was(workspace, shown):
    notebook.predict("shape", 1)
    shown()
    notebook.predict("shape", 2)
    assert "before: 1" in shown()


def test_a_wrong_name_is_answered_not_raised(workspace, shown):
    notebook.check("identity_head")
    assert "did you mean identity_heads" in shown()
    notebook.check()
    assert "name an exercise" in shown()


def test_nbgraders_validate_button_fails_with_a_failing_check(workspace, shown, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    with pytest.raises(AssertionError, match="identity_heads: not started"):
        notebook.check("identity_heads")


def test_outside_a_lab_it_says_where_to_go(tmp_path, monkeypatch, shown):
    monkeypatch.chdir(tmp_path)
    notebook.check("identity_heads")
    assert "mha start" in shown()


def test_a_note_appears_once_when_there_are_no_walls(workspace, shown, monkeypatch):
    class Plain:
        walled, walls_description = False, "no walls here"

        def check(self, exercises, folder):
            return notebook_reports

    from autograder.report import Report
    notebook_reports = [Report("identity_heads", "00-start", "passed", 1, 1)]
    monkeypatch.setattr(notebook, "_grader", Plain)
    notebook._said.clear()
    notebook.check("identity_heads")
    assert "no walls here" in shown()
    notebook.check("identity_heads")
    assert "no walls here" not in shown()
