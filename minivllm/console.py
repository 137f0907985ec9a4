"""What every command does alike: bad input is one sentence, not a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape


@contextmanager
def exit_on_bad_input() -> Iterator[None]:
    """Bad input, or a file that cannot be read, is one red sentence and exit status 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        console = Console(stderr=True, highlight=False, emoji=False)
        console.print(f"[bold red]Error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from error


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Packages that are not installed are a ``ValueError`` that names what brings them."""
    try:
        yield
    except ImportError as error:
        line = f'pip install "minivllm[{extra}]"'
        raise ValueError(f"this needs more packages, {line}: {error}") from error
