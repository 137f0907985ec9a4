"""Cells that need a model that people have: those with the tag ``needs-real``.

Their stored outputs are those of a run with the model. Without it each prints one sentence.
"""

from __future__ import annotations

import nbformat

from minivllm.models.packages import pulled_model

TAG, MODEL = "needs-real", "smollm2"


def is_tagged(cell: nbformat.NotebookNode) -> bool:
    return TAG in cell.metadata.get("tags", ())


def missing() -> str | None:
    """The sentence that says how to get the model; None if it is here."""
    try:
        pulled_model(MODEL)
    except FileNotFoundError as error:
        return str(error)
    return None


def outputs_without(sentence: str) -> list[nbformat.NotebookNode]:
    """What a tagged cell prints without the model."""
    return [nbformat.v4.new_output("stream", name="stdout", text=f"{sentence}\n")]
