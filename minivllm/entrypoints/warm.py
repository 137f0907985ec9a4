"""``minivllm warm``: compile ahead what a model needs, so that its first answer comes soon."""

from __future__ import annotations

import time

from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import SamplingParams
from minivllm.utils.numba_support import numba_obstacle
from minivllm.utils.validation import check

_LENGTHS = (5, 272)  # of prompts: one of a few rows; one worth reading once for all
_NUM_SAMPLES = 16  # of the long one


def run_warm(model: str | None) -> None:
    """Run a model's loops once, so that they are compiled, and print the time.

    Raises:
        ValueError: if numba cannot be used, or cannot keep what it compiles.
    """
    obstacle = numba_obstacle()
    check(obstacle is None, "numba", obstacle, "there, or nothing is compiled")
    begin = time.perf_counter()
    llm = LLM(model)
    _run_each_loop(llm)
    name = model or "the embedded model"
    print(f"The kernels of {name} are compiled ({time.perf_counter() - begin:.0f} s).")


def _run_each_loop(llm: LLM) -> None:
    config = llm.llm_engine.vllm_config
    longest = config.scheduler_config.max_model_len - 2
    short, long = ([1] * min(length, longest) for length in _LENGTHS)
    if config.model_config.runner_type == "pooling":
        llm.encode([short, long], use_tqdm=False)
        return
    greedy = SamplingParams(temperature=0, max_tokens=2)
    llm.generate([short, long], greedy, use_tqdm=False)
    several = SamplingParams(n=_NUM_SAMPLES, max_tokens=2)
    llm.generate([long], several, use_tqdm=False)
