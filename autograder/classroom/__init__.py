"""The classroom: nbgrader stays in charge, and our grading takes the place of its kernel."""
from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

HERE = "autograder.classroom"
STOCK = "nbgrader.preprocessors"


def configure(c, course: Path) -> None:
    """Fill an nbgrader config for the course folder `course`; call it from `nbgrader_config.py`.

    `nbgrader autograde` refuses to grade without walls. To trust every submission of a class all the same, set
    `c.ReportCells.walls = "off"` after this call, or MHA_WALLS=off in the environment.
    """
    import nbgrader

    from ..exercises import SESSIONS

    course = Path(course).resolve()
    c.CourseDirectory.root = str(course)
    c.Exchange.root = str(_made(course / "exchange"))
    c.ExchangeSubmit.strict = True

    c.GenerateAssignment.preprocessors = [
        f"{STOCK}.IncludeHeaderFooter", f"{STOCK}.LockCells", f"{HERE}.stubs.KeepStubs", f"{STOCK}.ClearOutput",
        f"{STOCK}.CheckCellMetadata", f"{STOCK}.ComputeChecksums", f"{STOCK}.SaveCells", f"{STOCK}.ClearHiddenTests",
        f"{STOCK}.ClearMarkScheme", f"{STOCK}.ComputeChecksums", f"{STOCK}.CheckCellMetadata",
    ]
    c.Autograde.sanitize_preprocessors = [
        f"{HERE}.trust.TrustCells", f"{STOCK}.ClearOutput", f"{STOCK}.OverwriteKernelspec", f"{STOCK}.OverwriteCells",
    ]
    c.Autograde.autograde_preprocessors = [
        f"{HERE}.reports.ReportCells", f"{HERE}.predictions.ReadPredictions", f"{HERE}.scores.SaveScores",
        f"{STOCK}.AssignLatePenalties",
    ]
    c.GenerateFeedback.preprocessors = [
        f"{HERE}.widgets.DropWidgets", f"{STOCK}.GetGrades", "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
    ]
    c.Autograde.exclude_overwriting = {s.id: [os.path.join("mha_lab", f"{m}.py") for m in s.modules]
                                        for s in SESSIONS}

    # pages without a CDN: our empty MathJax macro is found before nbconvert's
    c.HTMLExporter.extra_template_basedirs = [
        str(Path(__file__).parent / "templates"),
        str(Path(nbgrader.__file__).parent / "server_extensions" / "formgrader" / "templates"),
    ]
    c.HTMLExporter.filters = {"markdown2html": f"{HERE}.pages.safe_markdown"}
    _alembic_on_path()


def _made(folder: Path) -> Path:
    with contextlib.suppress(OSError):  # a course on a read-only disk: nbgrader says so when the exchange is used
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _alembic_on_path() -> None:
    """nbgrader calls `alembic` by its bare name, also where the environment was not activated."""
    tools = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "").split(os.pathsep)
    if tools not in path:
        os.environ["PATH"] = os.pathsep.join([*path, tools]).strip(os.pathsep)
