"""``minivllm lab`` and ``minivllm grade``: what a class needs on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minivllm.utils.console import exit_on_bad_input, needs_extra

app = typer.Typer(help="Build your own engine; notebooks for a class.", no_args_is_help=True)
Notebooks = Annotated[list[Path], typer.Argument(help="Notebooks (.ipynb).")]


@app.command()
def new(
    directory: Annotated[Path, typer.Argument(help="A new or an empty directory.")],
    requirement: Annotated[
        str, typer.Option(help="How pip finds minivllm; a line of requirements.txt.")
    ] = "minivllm",
) -> None:
    """Write a repository with stubs, tests and a CI file for an engine of your own."""
    from minivllm.course.classroom.repository import new_repository

    with exit_on_bad_input():
        for name in new_repository(directory, requirement):
            print(directory / name)


@app.command()
def handout(
    notebooks: Notebooks,
    student: Annotated[str, typer.Option(help="A student's number: the seed of the exercises.")],
    to: Annotated[Path, typer.Option(help="The directory for the copies.")],
) -> None:
    """Copy notebooks for a student: seeds of their own, no outputs, nbgrader's metadata."""
    with exit_on_bad_input(), needs_extra("notebooks"):
        from minivllm.course.classroom.handout import write_handouts

        for path in write_handouts(notebooks, student, to):
            print(path)


def grade(
    notebooks: Notebooks,
    csv: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    gradescope: Annotated[
        Path | None, typer.Option(help="Write Gradescope's results.json, of one notebook.")
    ] = None,
) -> None:
    """Run notebooks, and their code, and count the points of their exercises."""
    with exit_on_bad_input(), needs_extra("notebooks"):
        from minivllm.course.classroom.grade import check_tables, write_csv, write_gradescope
        from minivllm.course.classroom.grade import grade as grade_one

        check_tables(notebooks, csv, gradescope)
        grades = []
        for path in notebooks:
            grades.append(grade_one(path))
            found = grades[-1]
            print(f"{found.file}: {found.points:.3g} of {len(found.expected)}; {found.status}")
        if csv:
            write_csv(grades, csv)
        if gradescope:
            write_gradescope(grades, gradescope)
