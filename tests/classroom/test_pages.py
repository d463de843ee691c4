import pytest
from jinja2 import Environment

from autograder.classroom.pages import safe_markdown
from autograder.exercises import SESSIONS
from autograder.publish import course_root

from .helpers import Tags


def shown(source, **cell):
    environment = Environment()
    environment.filters["md"] = safe_markdown
    return environment.from_string("{{ source | md }}").render(source=source, cell=cell)


def harmless(page):
    for tag, attributes in Tags(page).found:
        assert tag not in ("script", "iframe", "object", "embed", "style", "link", "form", "input", "svg", "math")
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("src", "data:image/").startswith("data:image/") or ":" not in attributes["src"]


@pytest.mark.parametrize("attack, trace", [
    ("<script>alert(1)</script>", "<script"),
    ('<img src="x" onerror="alert(1)">', "onerror="),
    ("<svg onload=alert(1)>", "<svg"),
    ("<svg/onload=alert(1)>", "<svg"),
    ('<a href="javascript:alert(1)">x</a>', "javascript"),
    ("[x](javascript:alert(1))", 'href="javascript'),
    ("[x](data:text/html;base64,PHNjcmlwdD4=)", 'href="data'),
    ('<iframe src="https://example.org"></iframe>', "<iframe"),
    ('<img src="https://example.org/seen.png">', "example.org"),
    ("![x](https://example.org/seen.png)", "src="),
    ('<form action="/api"><input name="_xsrf"></form>', "<form"),
    ("<style>body {display: none}</style>", "<style"),
    ('<p style="position: fixed; background: url(https://example.org)">x</p>', "position"),
    ('<div data-link="x">x</div>', "data-link"),
    ("<!-- <script> --><scr<!-- -->ipt>alert(1)</script>", "<script"),
    ('<math><mtext><style><img src=x onerror="alert(1)"></style></mtext></math>', "<img src=x onerror"),
])
def test_nothing_that_a_student_wrote_runs_or_loads(attack, trace):
    page = shown(f"Heads move.\n\n{attack}\n")
    assert trace not in page
    harmless(page)


def test_an_attachment_cannot_leave_its_attribute():
    harmless(shown("![x](attachment:a.png)", attachments={"a.png": {'image/png" onerror="alert(1)': "AAAA"}}))
    page = shown("![x](attachment:a.png)", attachments={"a.png": {"image/png": "AAAA"}})
    assert '<img src="data:image/png;base64,AAAA" alt="x">' in page


@pytest.mark.parametrize("source, kept", [
    ("`a < b` and **bold**", "<code>a &lt; b</code> and <strong>bold</strong>"),
    ("| a | b |\n|---|--:|\n| 1 | 2 |", 'style="text-align:right"'),
    ("<details><summary>Why?</summary>\n\nBecause.\n\n</details>", "<details><summary>Why?</summary>"),
    ('<img alt="a" src="data:image/svg+xml;base64,AAAA">', 'src="data:image/svg+xml;base64,AAAA"'),
    ("[a paper](https://example.org)", '<a href="https://example.org">'),
    ("## Heads", 'id="Heads"'),
])
def test_what_the_course_writes_stays(source, kept):
    assert kept in shown(source).replace("text-align: right", "text-align:right").replace(";\"", '"')


@pytest.mark.parametrize("session", [s.id for s in SESSIONS])
def test_no_tag_of_a_text_is_lost(session):
    text = (course_root() / "course" / f"{session}.md").read_text(encoding="utf-8").split("---", 2)[2]
    assert "&lt;details" not in shown(text) and "&lt;img" not in shown(text) and "&lt;figure" not in shown(text)
