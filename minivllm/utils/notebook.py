"""A line in a notebook for those who wait, of which the file keeps nothing."""

from __future__ import annotations

import sys
from typing import Any

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def show_until_the_cell_ends(line: str) -> None:
    """Show a line below the running cell of a notebook; without one, or ipywidgets, do nothing.

    It is a widget and nothing else: a strict run does not compare what is live. At the end of the
    cell it goes, and what is saved is an empty output.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:  # no IPython, or one in a terminal
        return
    try:
        from IPython.display import display
        from ipywidgets import Label
    except ImportError:
        return
    label = Label(line)
    view = {WIDGET_VIEW: label._repr_mimebundle_()[WIDGET_VIEW]}
    shown = display(view, raw=True, display_id=True)

    def clear(result) -> None:
        shell.events.unregister("post_run_cell", clear)
        label.close()
        shown.update({}, raw=True)

    shell.events.register("post_run_cell", clear)
