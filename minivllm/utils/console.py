"""Terminal of all commands: any text can be shown, and bad input is one sentence, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape


class App(typer.Typer):
    """Commands whose answers are never lost, whatever the terminal can show."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command of ``sys.argv``."""
        allow_any_text()
        return super().__call__(*args, **kwargs)


def allow_any_text() -> None:
    """Let the standard streams take any text: what has no sign there becomes a question mark.

    So it is in old code pages (cp1252), in ASCII (``LC_ALL=C``), and for halves of surrogates, as
    names of files have them. Another choice (``PYTHONIOENCODING=ascii:xmlcharrefreplace``) is kept.
    """
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


def terminal_columns() -> int:
    """Columns of the terminal that is written to; a file or a pipe has no end, but COLUMNS."""
    return get_terminal_size(fallback=(sys.maxsize, 0)).columns


def folded(text: str, columns: int) -> str:
    """Text whose long lines go on in the next one, between words."""
    return "\n".join(
        line
        if len(line) <= columns
        else fill(
            line,
            columns,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.splitlines()
    )


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
