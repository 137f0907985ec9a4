"""``minivllm lab`` and ``minivllm grade``: what a class needs on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minivllm.utils.console import exit_on_bad_input, needs_extra
from minivllm.utils.validation import check

app = typer.Typer(help="Build your own engine; notebooks for a class.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Of a lab or a milestone; none for the next one.")]
CLASS = "A class as CSV: number, name. The number is the seed, and the folder's name."
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
def status() -> None:
    """Say which labs are passed, how much help was looked at, and which one is next."""
    from minivllm.course import loop

    with exit_on_bad_input():
        loop.status()


@app.command("next")
def next_lab() -> None:
    """Begin the next lab: what to read, and a file with its stub."""
    from minivllm.course import loop
    from minivllm.course.grading.milestones import begin_progress

    with exit_on_bad_input():
        begin_progress()
        loop.begin_next()


@app.command("test")
def check_lab(
    name: Name = "",
    seed: Annotated[int, typer.Option(help="Another one is another lot of inputs.")] = 0,
) -> None:
    """Grade what you wrote; what is passed is noted. Exit status 1 if it is not right yet."""
    from minivllm.course import loop
    from minivllm.course.grading.milestones import begin_progress

    with exit_on_bad_input():
        begin_progress()
        if not loop.grade_file(name, seed):
            raise typer.Exit(1)


@app.command()
def peek(name: Name = "") -> None:
    """Show a hint; the next time the idea, then the solution. Each look is counted."""
    from minivllm.course import loop
    from minivllm.course.grading.milestones import begin_progress

    with exit_on_bad_input():
        begin_progress()
        loop.peek(name)


@app.command()
def handout(
    notebooks: Notebooks,
    to: Annotated[Path, typer.Option(help="The directory for the copies.")],
    student: Annotated[
        str | None, typer.Option(help="A student's number: the seed of the exercises.")
    ] = None,
    students: Annotated[Path | None, typer.Option(help=CLASS)] = None,
) -> None:
    """Copy notebooks for a student or a class: own seeds, no outputs, nbgrader's metadata."""
    with exit_on_bad_input(), needs_extra("notebooks"):
        from minivllm.course.classroom.handout import write_handouts
        from minivllm.course.classroom.students import read_students

        is_one = (student is None) != (students is None)
        check(is_one, "student", student, "a number, or none beside --students FILE")
        if students is None:
            folders = {student or "": to}
        else:
            folders = {number: to / number for number in read_students(students)}
        for path in write_handouts(notebooks, folders):
            print(path)


def grade(
    notebooks: Notebooks,
    csv: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    gradescope: Annotated[
        Path | None, typer.Option(help="Write Gradescope's results.json, of one notebook.")
    ] = None,
    students: Annotated[Path | None, typer.Option(help=CLASS)] = None,
    jobs: Annotated[int, typer.Option(help="Notebooks that run at a time.")] = 1,
) -> None:
    """Run notebooks, and their code, and count the points of their exercises."""
    with exit_on_bad_input(), needs_extra("notebooks"):
        from minivllm.course.classroom.grade import Grade, grade_all
        from minivllm.course.classroom.students import read_students
        from minivllm.course.classroom.tables import check_tables, write_csv, write_gradescope

        check(jobs >= 1, "jobs", jobs, "at least 1")
        names = read_students(students) if students else None
        check_tables(notebooks, csv, gradescope)
        grades = []
        for found in grade_all(notebooks, names, jobs):
            grades.append(found)
            print(f"{found.file}: {found.points:.3g} of {len(found.expected)}; {found.status}")
        for number, name in (names or {}).items():
            if all(found.student != number for found in grades):
                print(f"{number} {name}: nothing handed in")
                grades.append(Grade("", number, name, status="nothing handed in"))
        if csv:
            write_csv(grades, csv)
        if gradescope:
            write_gradescope(grades, gradescope)
