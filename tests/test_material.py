"""The course's own pages: links, figures, alternative texts, provenance, evidence labels."""
import hashlib
import json

import pytest

from autograder.exercises.runtime.check_publication import CLASSES as TAUGHT
from autograder.material import CLASSES, Problem, problems
from autograder.publish import _figures, course_root
from mha_lab.given import SOURCE_CLASSES

SVG = "<svg/>"
PAGE = """# Page

## 1 · A section

A sentence with its label. **[Derivation]**

![Two heads, one beside the other](figures/drawn.svg)

See [the other page](other.md#a-heading), [itself](#1--a-section), and [the paper](https://example.org/paper).
`[no](link)` in code, and

```text
[no](link-either) **[No label]**
```
"""


@pytest.fixture
def course(tmp_path):
    """A small course that is in order. Returns write(path, text)."""
    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
        return tmp_path
    write("course/page.md", PAGE)
    write("course/other.md", "# Other\n\n## A heading\n")
    write("course/figures/drawn.svg", SVG)
    return write


def codes(root, drawn=("drawn.svg",)):
    return [(p.page, p.code) for p in problems(root, drawn)]


def test_the_pages_of_the_course_are_in_order():
    assert [str(p) for p in problems(course_root(), _figures())] == []


def test_a_course_in_order_has_no_problem(course):
    assert codes(course("README.md", "[the course](course/page.md)\n")) == []


@pytest.mark.parametrize("text, code", [
    ("[gone](gone.md)", "link"), ("[gone](other.md#no-such-heading)", "link"), ("[gone](#nowhere)", "link"),
    ("[plain](http://example.org)", "link"), ("[outside](../../outside.md)", "link"),
    ("![](figures/drawn.svg)", "alt"), ("![   ](figures/drawn.svg)", "alt"), ("![drawn.svg](figures/drawn.svg)", "alt"),
    ("![Image](figures/drawn.svg)", "alt"), ("![Three heads](figures/gone.svg)", "link"),
    ("A sentence. **[Certain]**", "label"), ("A sentence. **[Derivation; Guess]**", "label")])
def test_a_problem_is_found_where_it_is(course, text, code):
    root = course("course/page.md", PAGE + "\n" + text + "\n")
    [problem] = problems(root, ["drawn.svg"])
    assert (problem.page, problem.code, problem.line) == ("course/page.md", code, PAGE.count("\n") + 2)


def test_a_section_that_teaches_without_a_label_is_named(course):
    root = course("course/page.md", PAGE + "\n## 2 · Another\n\nA claim.\n\n## Recall\n\nAn answer. **[Derivation]**\n")
    assert [p.text for p in problems(root, ["drawn.svg"])] == ["'2 · Another' teaches without a label"]


def record(**changes):
    return {"digest": hashlib.sha256(SVG.encode()).hexdigest(), "source_class": "reconstruction", "upstream": None,
            "derivative": False, "permission": None, "made": "by hand"} | changes


PAPER = {"source_class": "paper-extract", "upstream": "Vaswani et al. 2017, figure 2", "permission": "CC BY 4.0"}


@pytest.mark.parametrize("changes, code", [
    ({}, None), (PAPER, None), ({"digest": "0" * 64}, "provenance"), ({"source_class": "figure"} | {
        k: v for k, v in PAPER.items() if k != "source_class"}, "provenance"), ({"made": " "}, "provenance"),
    (PAPER | {"upstream": " "}, "provenance"), (PAPER | {"permission": None}, "permission"),
    (PAPER | {"derivative": True}, "provenance"), (PAPER | {"source_class": "paper-derivative"}, "provenance"),
    (PAPER | {"source_class": "paper-derivative", "derivative": True}, None)])
def test_a_figure_that_nobody_draws_needs_a_record(course, changes, code):
    course("course/figures/photo.svg", SVG)
    course("course/figures/provenance.json", json.dumps({"photo.svg": record(**changes)}))
    root = course("README.md", "![A photograph of the panel](course/figures/photo.svg)\n")
    assert codes(root) == ([("course/figures/provenance.json", code)] if code else [])


def test_figures_without_a_page_a_record_or_a_file(course):
    course("course/figures/photo.svg", SVG)
    root = course("course/figures/provenance.json", json.dumps({"gone.svg": record()}))
    assert codes(root, ["drawn.svg", "never.svg"]) == [
        ("course/figures/never.svg", "figure"), ("course/figures/photo.svg", "figure"),
        ("course/figures/photo.svg", "provenance"), ("course/figures/provenance.json", "provenance")]


def test_a_problem_reads_like_a_compiler_s():
    assert str(Problem("course/a.md", 3, "link", "b.md is not there")) == "course/a.md:3: link: b.md is not there"


def test_session_10_teaches_the_classes_that_the_course_uses():
    assert CLASSES == TAUGHT == SOURCE_CLASSES
