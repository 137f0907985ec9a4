"""Run notebooks from a fresh kernel and write their outputs back: ``python notebooks/execute.py``.

Without arguments all of them. A change of picture then is one command and a readable diff. Cells
that need a model that is not here keep the outputs that they have: see ``needs_real.py``.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import needs_real  # noqa: E402

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def execute(path: Path) -> None:
    """Execute one notebook in place; raises at the first cell that fails."""
    notebook = nbformat.read(path, as_version=4)
    kept = {}
    for i, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            if needs_real.is_tagged(cell) and needs_real.missing() is not None:
                kept[i] = cell.outputs
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute()
    for i, outputs in kept.items():
        notebook.cells[i].outputs = outputs
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_VIEW, None)  # nothing is live in a file
        if "outputs" in cell:  # nor what was there only while the cell ran
            cell.outputs = [output for output in cell.outputs if output.get("data") != {}]
    # Only what every machine agrees on: nothing of this one's kernel or Python version.
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    print(path.name)


if __name__ == "__main__":
    os.environ["MINIVLLM_DEVICE"] = "cpu"  # what is stored is the same on every machine
    os.environ.pop("MPLBACKEND", None)  # a caller's choice would hide matplotlib's figures
    for notebook_path in [Path(p) for p in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        execute(notebook_path)
