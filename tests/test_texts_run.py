"""The sessions as a learner runs them: from top to bottom, with stubs and with the course's own answers."""
import re
import shutil

import nbclient
import nbformat
import pytest

from autograder.exercises import SESSIONS, find
from autograder.publish import course_root, start


def run(folder, session):
    book = nbformat.read(folder / f"{session.id}.ipynb", as_version=4)
    client = nbclient.NotebookClient(book, timeout=60, kernel_name="python3", resources={"metadata": {"path": folder}})
    client.execute()
    return [(cell.source, output) for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.mark.parametrize("session", SESSIONS, ids=lambda s: s.id)
@pytest.mark.parametrize("solved", [False, True], ids=["stubs", "answers"])
def test_a_session_runs_from_top_to_bottom(tmp_path, session, solved):
    start(tmp_path / "work")
    if solved:
        for module in session.modules:
            shutil.copy(course_root() / "solutions" / f"{module}.py", tmp_path / "work" / "mha_lab")
    outputs = run(tmp_path / "work", session)
    assert not [o for _, o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    panels = {source: o["data"]["text/plain"] for source, o in outputs
              if source.startswith("check(") and "data" in o and "status" in o["data"].get("text/html", "")}
    assert len(panels) == len(session.exercises)
    word = "passed" if solved else "not started"
    expected = {f'check("{e.name}")': "not measured" if e.unavailable() else word for e in session.exercises}
    timed = {f'check("{e.name}")' for e in session.exercises if solved and e.timing}  # a busy machine leaves time open
    assert [text for source, text in panels.items() if f": {expected[source]} (" not in text
            and not (source in timed and ": not measured (" in text)] == []
    printed = "".join(o.text for _, o in outputs if o.output_type == "stream")
    assert "nan" not in printed.replace("module [nan, nan]", "")
    tries = any("Not yet" in source for source, _ in outputs)
    assert ("Not yet" in printed) == (tries and not solved)


def test_the_walk_of_session_00_meets_the_mistake_that_it_names(grader, lab):
    text = (course_root() / "course" / "00-start.md").read_text(encoding="utf-8")
    stub = (course_root() / "mha_lab" / "warmup.py").read_text(encoding="utf-8")
    wrong = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)[1]
    walked = lab("warmup", re.sub(r"    raise NotImplementedError\(.*\)", lambda _: wrong, stub))
    [report] = grader.check([find("identity_heads")], walked)
    assert report.status == "failed" and report.diagnosis.ids == ["tokens-as-heads"]
    assert "`tokens-as-heads`" in text
