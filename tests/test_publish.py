"""From what people write to what people open: stubs, notebooks, drift."""
import ast
import json

import nbformat
import pytest
from toy_course import DOUBLE, SESSION, SOLUTIONS, TEXT, write_course

from autograder import publish
from autograder.exercises import SESSIONS, all_exercises
from autograder.stubs import PublishError, answer, cut
from autograder.texts import LABELS, exercise_line, notebook

REAL = publish.course_root()


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A course of one session in a folder of its own, without drawn figures."""
    monkeypatch.setattr(publish, "_figures", lambda: {"drawn.svg": "<svg/>\n"})
    return write_course(tmp_path)


def made(root, grading=True):
    return nbformat.reads(notebook(root / "course" / "00-toy.md", SESSION, grading), as_version=4)


# --- stubs ---

def test_a_region_becomes_one_raise_and_the_rest_stays():
    stub = cut(SOLUTIONS, "toy")
    assert "for _ in range" not in stub and "SOLUTION" not in stub
    assert '    raise NotImplementedError("double: write this in mha_lab/toy.py")\n' in stub
    assert '        raise NotImplementedError("Twice.__init__: write this in mha_lab/toy.py")\n' in stub
    assert '"""Twice x."""' in stub and "super().__init__()" in stub
    rest = [line for line in SOLUTIONS.splitlines() if line.strip() in stub]
    assert set(stub.splitlines()) - set(rest) == {line for line in stub.splitlines() if "raise NotImpl" in line}


@pytest.mark.parametrize("source, problem", [
    ("def f():\n    ### BEGIN SOLUTION\n    pass\n", "line 2.*without an"),
    ("def f():\n    pass\n    ### END SOLUTION\n", "line 3.*without a"),
    ("def f():\n    ### BEGIN SOLUTION\n    a = 1\n    ### BEGIN SOLUTION\n    ### END SOLUTION\n", "line 4.*inside"),
    ("def f():\n    ### BEGIN SOLUTION\n    ### END SOLUTION\n    pass\n", "empty"),
    ("x = 1  ### BEGIN SOLUTION\n", "alone on its line"),
    ("def f(:\n", "line 1"),
    ("if 1:\n    pass\n### BEGIN SOLUTION\nelse:\n    pass\n  ### END SOLUTION\nelif 2:\n    pass\n", "toy.py, line"),
])
def test_bad_markers_are_clear_errors(source, problem):
    with pytest.raises(PublishError, match=problem):
        cut(source, "toy")


def test_a_region_anywhere_is_named_for_what_is_around_it():
    assert 'raise NotImplementedError("toy: ' in cut("### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n", "toy")
    inside = "class A:\n    ### BEGIN SOLUTION\n    x = 1\n    ### END SOLUTION\n"
    assert '    raise NotImplementedError("A: ' in cut(inside, "toy")
    part = "def f(x):\n    if x:\n        ### BEGIN SOLUTION\n        x = 1\n        ### END SOLUTION\n    return x\n"
    stub = cut(part, "toy")
    assert '        raise NotImplementedError("f: ' in stub and "return x" in stub


def test_an_answer_is_the_function_without_markers():
    assert answer(SOLUTIONS, "double").startswith("def double(") and "SOLUTION" not in answer(SOLUTIONS, "Twice")
    with pytest.raises(LookupError):
        answer(SOLUTIONS, "triple")
    for exercise in all_exercises():
        source = publish.solution_source(exercise)
        assert "NotImplementedError" not in source and "SOLUTION" not in source
        ast.parse(source)


def public(tree):
    """Top-level functions and classes, and what classes hold; a function inside a function is nobody's interface."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.ClassDef):
            yield from node.body


def signatures(source):
    """{dotted name: arguments, defaults and annotations} of everything defined in a module, and its imports."""
    tree, found = ast.parse(source), {}

    def visit(node, path):
        for child in node.body:
            if isinstance(child, ast.FunctionDef):
                found[f"{path}{child.name}"] = ast.dump(child.args), child.returns and ast.dump(child.returns)
            elif isinstance(child, ast.ClassDef):
                found[f"{path}{child.name}"] = [ast.dump(base) for base in child.bases]
                visit(child, f"{path}{child.name}.")
    visit(tree, "")
    return found


MODULES = [(s, m) for s in SESSIONS for m in s.modules]


@pytest.mark.parametrize("session, module", MODULES, ids=[m for _, m in MODULES])
def test_stub_and_solution_promise_the_same(session, module):
    stub = (REAL / "mha_lab" / f"{module}.py").read_text(encoding="utf-8")
    solution = (REAL / "solutions" / f"{module}.py").read_text(encoding="utf-8")
    assert signatures(stub) == signatures(solution)
    assert {e.name for e in session.exercises if e.module == module} <= set(signatures(stub))
    for node in public(ast.parse(solution)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module}.{node.name} says nothing"
            kernel = "triton.jit" in map(ast.unparse, node.decorator_list)  # pointers and strides have no Python type
            if isinstance(node, ast.FunctionDef) and not kernel:
                bare = [a.arg for a in node.args.args if a.annotation is None and a.arg != "self"]
                assert not bare, f"{module}.{node.name}: no type for {bare}"


@pytest.mark.parametrize("session, module", MODULES, ids=[m for _, m in MODULES])
def test_stubs_hold_no_logic(session, module):
    tree = ast.parse((REAL / "mha_lab" / f"{module}.py").read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert functions
    for function in functions:
        body = function.body[1:] if ast.get_docstring(function) else function.body
        *before, last = [ast.unparse(statement) for statement in body]
        assert last.startswith("raise NotImplementedError(") and before in ([], ["super().__init__()"])


def test_learner_code_knows_nothing_of_the_grader():
    for path in [*(REAL / "mha_lab").rglob("*.py"), *(REAL / "solutions").glob("*.py")]:
        imports = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                   if isinstance(n, ast.Import | ast.ImportFrom)]
        names = [a.name for n in imports for a in n.names] + [getattr(n, "module", "") or "" for n in imports]
        assert not [n for n in names if n.split(".")[0] == "autograder"], path


# --- notebooks ---

def test_nbgrader_metadata_comes_from_the_exercises(toy):
    graded = {c.metadata.nbgrader.grade_id: c for c in made(toy).cells if "nbgrader" in c.metadata}
    assert list(graded) == ["predict-toy-first", "double", "Twice", "explain-00"]
    assert graded["Twice"].metadata.nbgrader == {
        "schema_version": 3, "grade_id": "Twice", "cell_type": "code", "grade": True, "solution": False, "task": False,
        "locked": True, "points": 3}
    assert graded["predict-toy-first"].metadata.nbgrader == {
        "schema_version": 3, "grade_id": "predict-toy-first", "cell_type": "code", "grade": False, "solution": True,
        "task": False, "locked": False}
    explain = graded["explain-00"]
    assert explain.cell_type == "markdown" and explain.metadata.nbgrader.points == 4
    assert explain.metadata.nbgrader.solution and not explain.metadata.nbgrader.locked


def test_a_notebook_is_normal_repeatable_and_empty_of_outputs(toy):
    first, second = (notebook(toy / "course" / "00-toy.md", SESSION, True) for _ in range(2))
    assert first == second
    book = json.loads(first)
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(c["outputs"] == [] and c["execution_count"] is None for c in book["cells"] if c["cell_type"] == "code")
    nbformat.validate(nbformat.reads(first, as_version=4))


def test_ids_survive_a_cell_that_is_put_in_before(toy):
    before = {c.source: c.id for c in made(toy).cells}
    write_course(toy, TEXT.replace("# Toy", "# Toy\n\n```{code-cell}\n1 + 1\n```\n"))
    after = {c.source: c.id for c in made(toy).cells}
    assert after['check("Twice")'] == before['check("Twice")'] and len(after) == len(before) + 2


def test_a_figure_travels_inside_the_notebook_and_page_cells_stay_out(toy):
    text = json.dumps(made(toy))
    assert 'alt=\\"Two cells\\" src=\\"data:image/svg+xml;base64,' in text and "figures/two.svg" not in text
    assert "Only for readers" not in text


def test_a_workspace_notebook_carries_no_grading_metadata(toy):
    assert not [cell for cell in made(toy, grading=False).cells if "nbgrader" in cell.metadata]


@pytest.mark.parametrize("old, new, problem", [
    ('check("Twice")', 'check("Thrice")', "'Thrice'.*names no exercise.*double, Twice"),
    ('```{code-cell}\ncheck("Twice")\n```', "", "Twice has no cell"),
    ('check("Twice")', 'check("double")', "two cells for 'double'"),
    ('check("Twice")', 'x = 1\ncheck("Twice")', "one call"),
    ('check("Twice")', 'y = check("Twice")', "one call"),
    ('check("Twice")', 'check("double", "Twice")', "one call"),
    ('predict("toy-first", None)', 'predict("toy-first", 1 + x)', "prediction cell"),
    ('predict("toy-first", None)', "check(", "not Python"),
    (exercise_line(DOUBLE), exercise_line(DOUBLE).replace("4 minutes", "5 minutes"), "the line must be"),
    ("**[Derivation]**", "**[Surely]**", "no evidence label"),
    ("figures/two.svg", "figures/three.svg", "three.svg is not there"),
    ('"explain": "00"', '"explain": "01"', "says '01'"),
])
def test_a_text_that_is_not_in_order_is_refused(toy, old, new, problem):
    assert old in TEXT
    write_course(toy, TEXT.replace(old, new))
    with pytest.raises(PublishError, match=problem):
        made(toy)


def test_the_real_texts_use_every_label_that_they_explain():
    assert set(LABELS) == {line.split("**[")[1].split("]**")[0]
                           for line in (REAL / "course" / "00-start.md").read_text().splitlines()
                           if line.startswith("| **[")}


@pytest.mark.parametrize("session", SESSIONS, ids=lambda s: s.id)
def test_a_released_session_is_complete(session):
    book = json.loads(notebook(REAL / "course" / f"{session.id}.md", session, True))
    graded = [c["metadata"]["nbgrader"] for c in book["cells"] if c["metadata"].get("nbgrader", {}).get("grade")]
    assert {g["grade_id"]: g["points"] for g in graded} == (
        {e.name: e.points for e in session.exercises} | {f"explain-{session.number}": 4})


# --- drift ---

def test_build_writes_once_and_then_nothing(toy):
    changed = publish.build(toy, sessions=[SESSION])
    assert {str(p) for p in changed} == {
        "mha_lab/toy.py", "course/figures/drawn.svg", "course/source/00-toy/00-toy.ipynb",
        "course/source/00-toy/mha_lab/__init__.py", "course/source/00-toy/mha_lab/toy.py"}
    assert publish.build(toy, sessions=[SESSION]) == publish.build(toy, check=True, sessions=[SESSION]) == []
    assert (toy / "mha_lab/toy.py").read_text() == cut(SOLUTIONS, "toy")
    assert "extend_path" in (toy / "course/source/00-toy/mha_lab/__init__.py").read_text()


def test_check_writes_nothing_and_sees_each_drift(toy):
    tracked = ["mha_lab/toy.py", "course/figures/drawn.svg"]
    assert list(map(str, publish.build(toy, check=True, sessions=[SESSION]))) == tracked
    assert not (toy / "mha_lab").exists()
    publish.build(toy, sessions=[SESSION])
    for name in [*tracked, "course/source/00-toy/00-toy.ipynb"]:
        path, kept = toy / name, (toy / name).read_bytes()
        path.write_bytes(kept + b" ")
        assert list(map(str, publish.build(toy, check=True, sessions=[SESSION]))) == [name]
        assert path.read_bytes() == kept + b" "
        path.write_bytes(kept)
    (toy / "course/source/00-toy/00-toy.ipynb").unlink()
    assert publish.build(toy, check=True, sessions=[SESSION]) == []


def test_an_installed_course_is_not_built_in_place(toy):
    (toy / "autograder").mkdir()
    with pytest.raises(PublishError, match="works in a clone"):
        publish.build(toy, sessions=[SESSION])
    assert not (toy / "mha_lab").exists()


def test_the_real_course_is_as_built():
    assert publish.build(REAL, check=True) == []


def test_a_write_leaves_all_or_nothing(tmp_path, monkeypatch):
    target = tmp_path / "deep" / "file"
    publish.write(target, b"old")

    def fails(*_):
        raise OSError("no")
    monkeypatch.setattr(publish.os, "replace", fails)
    with pytest.raises(OSError):
        publish.write(target, b"new")
    assert [p.name for p in target.parent.iterdir()] == ["file"] and target.read_bytes() == b"old"
