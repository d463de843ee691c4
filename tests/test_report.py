import pytest
import torch

from autograder.report import STATUSES, CaseResult, Diagnosis, Figure, Reading, Report


def report(**changes):
    base = dict(exercise="split_heads", session="01-shape-machine", status="failed", score=0, points=3,
                cases=[CaseResult("layout", "failed", "heads[0,1] holds <b>")],
                diagnosis=Diagnosis(["relabelled-bytes"], "relabelled bytes", "`view` renames & moves nothing.",
                                    "here"))
    return Report(**{**base, **changes})


def test_text_says_the_name_and_the_cell():
    text = report().to_text()
    assert "relabelled-bytes" in text and "Seen at: here" in text and "0 of 3" in text


def test_html_escapes_what_learners_write():
    page = report().to_html()
    assert "holds &lt;b&gt;" in page and "<code>view</code> renames &amp; moves" in page


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_is_shown_in_words_not_only_in_colour(status):
    page = report(status=status, diagnosis=None).to_html()
    assert f'data-status="{status}"' in page
    assert report(status=status).headline in report(status=status).to_text()


def test_a_figure_shows_both_sides_and_marks_the_cell():
    got, want = torch.arange(24.0).reshape(2, 3, 4), torch.arange(24.0).reshape(2, 3, 4) + 1
    figure = Figure.around(got, want, (1, 2, 3), "heads", lambda v: f"{v:g}", ("batch", "token", "channel"))
    assert figure.holds[figure.at[0]][figure.at[1]] == "23" and figure.expected[figure.at[0]][figure.at[1]] == "24"
    page = report(figure=figure).to_html()
    assert page.count("class=mha-cell") == 2 and "batch 1" in page and "rows are token" in page


def test_a_figure_of_a_long_axis_stays_small():
    long = torch.zeros(3, 100)
    figure = Figure.around(long, long + 1, (0, 60), "row", lambda v: f"{v:g}")
    assert len(figure.holds[0]) == 6 and figure.at == (0, 5)
    assert Figure.around(torch.tensor(1.0), torch.tensor(2.0), (), "x", str) is None


def test_a_stored_report_keeps_how_the_source_was_read():
    figure = Figure("heads", "token", "channel", "", [["1"]], [["2"]], (0, 0),
                    Reading({"token": 3, "channel": 4}, [3, 4], [0, 4, 1], [0, 1, 3]))
    again = Report.from_dict(report(figure=figure).to_dict())
    assert again.figure == figure and "reading" not in str(again.public())
