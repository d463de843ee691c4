from autograder.classroom.widgets import DropWidgets

from .helpers import notebook


def test_widget_state_goes_and_the_rest_stays():
    nb = notebook()
    nb.metadata.update(widgets={"state": {}}, kernelspec={"name": "python3"})
    nb, _ = DropWidgets()(nb, {})
    assert nb.metadata == {"kernelspec": {"name": "python3"}}
