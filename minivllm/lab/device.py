"""The device of a lecture: the CPU, unless the reader asks for a GPU; and cells that run on one.

What a lecture prints, and what its text says of it, was recorded on a CPU. On a GPU sums have other
last bits, and so now and then a text, a draw or a step would be another one. A notebook that prints
other numbers than its text is worse than a slow one: so a GPU is not used by itself. What is about
the GPU is in cells of its own, which run there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

from minivllm.utils.notebook import in_notebook

NAME = "MINIVLLM_DEVICE"
NO_GPU = f"This cell needs a GPU that torch sees, and no {NAME}=cpu: nothing was run."

ASKED = os.environ.get(NAME)  # before we chose


def choose_device() -> None:
    """Let the engines of a notebook run on the CPU, unless it is told otherwise, and say so."""
    if in_notebook():
        device = os.environ.setdefault(NAME, "cpu")
        if device == "auto":
            device = "cuda" if _has_gpu() else "cpu"
        other = f"{NAME}=cuda: a GPU" if device == "cpu" else "the text's numbers are a CPU's"
        print(f"Device: {device} ({other}).")


def on_gpu(code: str) -> None:
    """Run Python code on this machine's GPU, in a process of its own, and print what it prints.

    A process of its own, for Triton interprets in one that has set ``TRITON_INTERPRET=1``. Where
    there is no GPU, or the reader has asked for the CPU, it prints one sentence.
    """
    if ASKED == "cpu" or not _has_gpu():
        print(NO_GPU)
        return
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {NAME: "cuda", "MINIVLLM_LOGGING_LEVEL": "WARNING"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", check=False)
    print(done.stdout, end="")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        print("failed:", lines[-1])


def _has_gpu() -> bool:
    if find_spec("torch") is None:  # on a page of the site
        return False
    from minivllm.utils.platforms import pick_device

    return pick_device("auto").type == "cuda"
