"""Errors of all commands: bad input is one sentence, not a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape


@contextmanager
def exit_on_bad_input() -> Iterator[None]:
    """Context manager: turn bad input or an unreadable file into one red line and exit status 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        console = Console(stderr=True, highlight=False, emoji=False)
        console.print(f"[bold red]Error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from error


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Context manager: an ``ImportError`` becomes a ``ValueError`` that names the extra."""
    try:
        yield
    except ImportError as error:
        line = f'pip install "minivllm[{extra}]"'
        raise ValueError(f"this needs more packages, {line}: {error}") from error
