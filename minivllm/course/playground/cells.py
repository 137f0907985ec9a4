"""cell: one cell of a notebook, run as Jupyter runs it; its outputs as a notebook's file has them.

The cells of a page share their names, as they would in a kernel. IPython is not needed: ``display``
is all that our own code takes from it, and is made here.
"""

from __future__ import annotations

import ast
import linecache
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from io import TextIOBase
from types import ModuleType
from typing import Any

from minivllm.utils.validation import check, is_int, is_text

Output = dict[str, Any]


class Session:
    """Names of the cells that have run, and the outputs of the one that runs."""

    def __init__(self) -> None:
        self.module = ModuleType("__main__")
        self.module.__dict__["display"] = self.display  # which Jupyter has without an import
        self.outputs: list[Output] = []

    def run(self, source: str, number: int) -> dict[str, Any]:
        """Run a cell; what it printed and displayed before an error is kept.

        Args:
            source: of the cell.
            number: of the cell in its notebook; tracebacks and listings know its lines by it.

        Returns: "outputs" as in a notebook's file; after an error also "error" and "line".

        Raises:
            ValueError: for a source that is no text, or another number.
        """
        check(is_text(source), "source", source, "a text")
        check(is_int(number, 0), "number", number, "an integer of at least 0")
        self.outputs = []
        file = f"<cell {number}>"
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        sys.modules["__main__"] = self.module  # where inspect and pickle look for its classes
        sys.modules["IPython.display"] = self._display_module()
        reply: dict[str, Any] = {"outputs": self.outputs}
        with redirect_stdout(_Stream("stdout", self)), redirect_stderr(_Stream("stderr", self)):
            try:
                self._execute(source, file)
            except BaseException as error:  # SystemExit, too: the page goes on
                reply |= {"error": f"{type(error).__name__}: {error}".rstrip(": "),
                          "line": _line(error, file)}  # fmt: skip
        return reply

    def _execute(self, source: str, file: str) -> None:
        """Run the statements; a last expression is displayed, unless a semicolon ends it."""
        tree = ast.parse(source, file)
        shown = tree.body[-1:]
        quiet = source.rstrip().endswith(";")
        if shown and isinstance(shown[0], ast.Expr) and not quiet:
            tree.body.pop()
        else:
            shown = []
        names = self.module.__dict__
        exec(compile(tree, file, "exec"), names)
        for expression in shown:
            value = eval(compile(ast.Expression(expression.value), file, "eval"), names)
            if value is not None:
                self._show(value, "execute_result")

    def display(self, *values: Any) -> None:
        """``IPython.display.display``."""
        for value in values:
            self._show(value, "display_data")

    def _show(self, value: Any, output_type: str) -> None:
        data: dict[str, str] = {}
        metadata: dict[str, Any] = {}
        if hasattr(value, "_repr_mimebundle_"):
            bundle = value._repr_mimebundle_()
            data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        elif hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_()}
        text = "\n".join(repr(value).splitlines())  # as IPython prints it: no newline at the end
        data = {"text/plain": text, **data}
        self.outputs.append({"output_type": output_type, "data": data, "metadata": metadata})

    def _display_module(self) -> ModuleType:
        module = ModuleType("IPython.display")
        module.display = self.display
        return module


class _Stream(TextIOBase):
    """Text that a cell writes, as one output until something else comes between."""

    def __init__(self, name: str, session: Session):
        self.name = name
        self._session = session

    def write(self, text: str) -> int:
        outputs = self._session.outputs
        if not outputs or outputs[-1].get("name") != self.name:
            outputs.append({"output_type": "stream", "name": self.name, "text": ""})
        outputs[-1]["text"] += text
        return len(text)


def _line(error: BaseException, file: str) -> int | None:
    """The last line of this cell that led to the error."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == file]
    return lines[-1] if lines else None


_SESSION = Session()


def cell(source: str, number: int) -> dict[str, Any]:
    """Run a cell of the page's notebook; see ``Session.run``."""
    return _SESSION.run(source, number)
