"""nbgrader's settings for this course. Run its commands, and JupyterLab with formgrader, in this folder."""
from pathlib import Path

from autograder.classroom import configure

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "mha"
configure(c, Path(__file__).parent)

# Students must be able to write to the exchange. Name a folder that they all see, or hand in without it (submitted/).
# c.Exchange.root = "/srv/nbgrader/exchange"
