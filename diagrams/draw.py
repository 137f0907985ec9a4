"""Draw all pictures again: ``python diagrams/draw.py``.

The timeline is of a real run. The diagrams are drawn by hand, in the files beside this one, and a
test looks up every class that they name. What a notebook shows lies below the notebooks: Jupyter
serves no file from above the folder in which it was started.
"""

import importlib
import sys
from functools import partial
from pathlib import Path

from minivllm import LLM, SamplingParams
from minivllm.viz import Figure, timeline
from minivllm.xray import shipped_run

HERE = Path(__file__).parent
DIAGRAMS = (
    "architecture", "life_of_a_request", "life_of_a_block", "one_step", "one_step_small",
    "course_map",
)  # fmt: skip
IN_NOTEBOOKS = ("architecture", "life_of_a_request", "life_of_a_block", "one_step_small")


def load(name: str):
    """The module of a diagram, from wherever this file is run."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    return importlib.import_module(name)


def path_of(name: str) -> Path:
    """Where a picture is, by its name without ".svg"."""
    folder = HERE.parent / "notebooks/diagrams" if name in IN_NOTEBOOKS else HERE
    return folder / f"{name}.svg"


def draw_diagram(name: str) -> Figure:
    if name == "one_step_small":
        return load("one_step").draw_small()
    return load(name).draw()


def draw_timeline() -> Figure:
    """Eight requests under a small budget, in a pool too small for all of them."""
    llm = LLM(
        block_size=4,
        max_model_len=64,
        max_num_batched_tokens=32,
        num_gpu_blocks_override=36,
        enable_prefix_caching=False,
        trace=True,
    )
    prompts = [
        "Hello, my name is",
        "The capital of France is",
        "The president of the United States is",
        "Once upon a time there was a girl who lived near the sea and",
        "The future of AI is",
        "My favourite food is",
        "In the morning I like to",
        "The best way to learn a language is",
    ]
    lengths = [12, 20, 9, 16, 14, 18, 8, 11]
    params = [
        SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths
    ]
    llm.generate(prompts, params, use_tqdm=False)
    return timeline(llm.trace)


def draw_xray() -> Figure:
    """Two thirds of a recorded run of vLLM."""
    mark = ("Q", 131, "634 tokens in chunks")
    return timeline(shipped_run().trace, first=105, last=200, mark=[mark])


PICTURES = {"timeline": draw_timeline, "xray": draw_xray}
PICTURES |= {name: partial(draw_diagram, name) for name in DIAGRAMS}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        draw().save(path_of(name))
        print(name)
