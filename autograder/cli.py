"""The command `mha`."""
from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as RichProgress
from rich.syntax import Syntax
from rich.table import Table

app = typer.Typer(help="A course on multi-head attention, and the grader that names what a program did.",
                  no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
out, err = Console(), Console(stderr=True)
COULD_NOT_RUN = 2

Lab = Annotated[Path | None, typer.Option("--lab", help="A folder that holds mha_lab/ (default: found from here).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def main() -> None:
    """Run the command; a known problem is one clear line and exit code 2."""
    from .publish import PublishError
    from .sandbox import SandboxError
    try:
        app()
    except (LookupError, PublishError, SandboxError, NotADirectoryError) as e:
        err.print(f"[red]mha:[/red] {escape(str(e.args[0] if e.args else e))}", highlight=False)
        raise SystemExit(COULD_NOT_RUN) from None
    except Exception:
        traceback.print_exc()
        raise SystemExit(COULD_NOT_RUN) from None


def _lab(folder: Path | None) -> Path:
    from .progress import find_lab
    if folder is None:
        return find_lab()
    if not (folder / "mha_lab").is_dir():
        raise LookupError(f"{folder} holds no mha_lab folder; --lab names the folder above it")
    return folder


@app.command()
def start(folder: Annotated[Path, typer.Argument(metavar="DIR")] = Path("mha-workspace")) -> None:
    """Make a learner's workspace, or update one without touching an edited file."""
    from .publish import start as make
    result = make(folder)
    for title, paths in (("created", result.created), ("updated", result.updated), ("kept", result.kept)):
        if paths:
            out.print(f"{title}: {', '.join(map(str, paths))}", highlight=False)
    for path in result.conflicts:
        out.print(f"[yellow]you edited a file that the course has changed too; the new one lies beside it:[/yellow] "
                  f"{escape(str(path))}", highlight=False)
    out.print(f"Your workspace is {escape(str(folder))}. Open 00-start.ipynb in JupyterLab.", highlight=False)


@app.command()
def check(names: Annotated[list[str] | None, typer.Argument(metavar="[EXERCISE or SESSION ...]")] = None,
          lab: Lab = None, as_json: AsJson = False,
          walls: Annotated[str, typer.Option(help="auto, required (refuse without a sandbox) or off.")] = "auto"
          ) -> None:
    """Check exercises. Exit code 0: all pass; 1: one does not; 2: could not run."""
    from .sandbox import Sandbox
    if walls not in ("auto", "required", "off"):
        raise LookupError(f"--walls is auto, required or off, not {walls!r}")
    folder = _lab(lab)
    sandbox = Sandbox(walls)
    sandbox.prepare()  # warms up while this process imports torch too
    from .exercises import all_exercises, select
    from .grading import Grader
    from .progress import Progress
    exercises = list(dict.fromkeys(e for n in names for e in select(n))) if names else list(all_exercises())
    with Grader(sandbox=sandbox) as grader:
        reports = grader.check(exercises, folder)
        unwalled = "" if grader.walled else grader.walls_description
    kept = Progress(folder)
    for report in reports:
        kept.record(report)
    if as_json:
        print(json.dumps({"exercises": [r.public() for r in reports]}, indent=1))
    else:
        for report in reports:
            out.print(report.to_text(), markup=False, highlight=False, soft_wrap=True)
        out.print(f"{sum(r.score for r in reports):g} of {sum(r.points for r in reports)} points", highlight=False)
        if unwalled:
            err.print(f"note: {unwalled}", highlight=False)
    raise typer.Exit(0 if all(r.status == "passed" for r in reports) else 1)


@app.command()
def hint(exercise: str, lab: Lab = None,
         step: Annotated[int | None, typer.Option(min=1, max=3, help="Show this step again.")] = None) -> None:
    """Show the next of three hints."""
    from .exercises import find
    from .progress import Progress
    found = find(exercise)
    if step is None:
        try:
            kept = Progress(_lab(lab))
            step = kept.next_hint(exercise, len(found.hints))
        except LookupError:
            if lab is not None:
                raise
            step = 1
    out.print(f"Hint {step} of {len(found.hints)}, {exercise}: {found.hints[step - 1]}", markup=False, highlight=False)


@app.command()
def solution(exercise: str) -> None:
    """Show the course's own answer."""
    from .exercises import find
    from .publish import solution_source
    source = solution_source(find(exercise))
    if out.is_terminal:
        out.print(Syntax(source, "python", background_color="default"))
    else:
        print(source)


@app.command()
def progress(lab: Lab = None) -> None:
    """Show what is done, and which named mistakes were met and beaten."""
    from .exercises import SESSIONS
    from .progress import Progress
    from .report import MARKS, WORDS
    kept = Progress(_lab(lab))
    table = Table("session", "exercise", "last check", "points", "mistakes met (✓ beaten)")
    done = total = 0
    for session in SESSIONS:
        for exercise in session.exercises:
            entry = kept.exercise(exercise.name)
            done, total = done + entry["best"], total + exercise.points
            table.add_row(session.id, exercise.name, f"{MARKS[entry['status']]} {WORDS[entry['status']]}",
                          f"{entry['best']:g} of {exercise.points}",
                          ", ".join(f"{i}{' ✓' if i in entry['beaten'] else ''}" for i in entry["met"]))
    out.print(table)
    out.print(f"{done:g} of {total} points", highlight=False)


@app.command()
def exercises(as_json: AsJson = False) -> None:
    """List every exercise."""
    from .exercises import all_exercises
    rows = [{"session": e.session, "module": e.module, "name": e.name, "points": e.points, "minutes": e.minutes,
             "difficulty": e.difficulty, "wrong": list(dict.fromkeys(p.id for p in e.wrongs)),
             "right": len(e.rights)} for e in all_exercises()]
    if as_json:
        print(json.dumps({"exercises": rows}, indent=1))
        return
    table = Table("session", "exercise", "points", "minutes", "difficulty", "wrong programs it names")
    for row in rows:
        table.add_row(row["session"], row["name"], str(row["points"]), str(row["minutes"]),
                      "●" * row["difficulty"], str(len(row["wrong"])))
    out.print(table)


@app.command()
def build(check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if drift is found.")] = False
          ) -> None:
    """Cut the stubs from the solutions, and make nbgrader's source from the text notebooks."""
    from .publish import build as make
    from .publish import course_root
    changed = make(course_root(), check=check)
    for path in changed:
        out.print(f"{'would change' if check else 'wrote'}: {path}", markup=False, highlight=False)
    if check and changed:
        out.print("Built files differ from their source: run `mha build` and commit what it writes.")
        raise typer.Exit(1)
    if not changed:
        out.print("Everything is as built.")


@app.command()
def grade(assignment: str,
          course: Annotated[Path, typer.Option(help="The folder that holds nbgrader_config.py.")] = Path("course"),
          workers: Annotated[int | None, typer.Option(min=1)] = None,
          dask: Annotated[str | None, typer.Option(help="A Dask scheduler, tcp://...")] = None,
          without_walls: Annotated[bool, typer.Option(help="Grade although there is no sandbox.")] = False) -> None:
    """Grade a class: in parallel, resumable; then nbgrader records scores. Exit code 1: a submission has a problem."""
    from .classroom.grade import grade_assignment
    from .exercises import session
    with RichProgress(console=err, transient=True) as shown:
        graded, recorded = shown.add_task("graded", total=None), shown.add_task("recorded", total=None)
        summary = grade_assignment(
            course, session(assignment).id, workers=workers, dask=dask, walls="off" if without_walls else "required",
            on_report=lambda p: shown.update(graded, total=p.total, completed=p.done),
            on_record=lambda row: shown.update(recorded, advance=1))
    out.print(summary)
    out.print(summary.report.to_text(), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1 if summary.problems else 0)


@app.command()
def doctor() -> None:
    """Show what this machine has, and what each missing thing costs."""
    from .doctor import examine
    table = Table("part", "here", "what it costs if missing")
    for row in examine():
        table.add_row(row.part, f"{'✓' if row.found else '✗'} {row.detail}", "" if row.found else row.cost)
    out.print(table)


if __name__ == "__main__":
    main()
