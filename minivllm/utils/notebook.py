"""A line in a notebook for those who wait, of which the file keeps nothing."""

from __future__ import annotations

import sys
from typing import Any

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def in_notebook() -> bool:
    """True in a notebook's kernel; not in a script, nor in IPython in a terminal."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def show_until_the_cell_ends(line: str) -> None:
    """Show a line below the running cell of a notebook; without one, or ipywidgets, do nothing.

    It is a widget and nothing else: a strict run does not compare what is live. At the end of the
    cell it goes, and what is saved is an empty output.
    """
    if not in_notebook():
        return
    try:
        from IPython.display import display
        from ipywidgets import Label
    except ImportError:
        return
    shell: Any = sys.modules["IPython"].get_ipython()
    label = Label(line)
    view = {WIDGET_VIEW: label._repr_mimebundle_()[WIDGET_VIEW]}
    shown = display(view, raw=True, display_id=True)

    def clear(result) -> None:
        shell.events.unregister("post_run_cell", clear)
        label.close()
        shown.update({}, raw=True)

    shell.events.register("post_run_cell", clear)
