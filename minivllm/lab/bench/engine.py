"""BenchEngine: an ``LLM`` on seeded work, and what a timed run of it gives."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minivllm.engine.arg_utils import EngineArgs
from minivllm.entrypoints.llm import LLM
from minivllm.lab.bench.machine import peak_memory
from minivllm.lab.bench.workloads import Round
from minivllm.lora.request import LoRARequest
from minivllm.sampling_params import SamplingParams


def check_options(directory: Path, dtype: str, **options) -> None:
    """Raise ``ValueError`` for options that ``BenchEngine`` would refuse; nothing is loaded."""
    args = EngineArgs(model=str(directory), dtype=dtype, skip_tokenizer_init=True, **options)
    args.create_engine_config()


@dataclass(frozen=True)
class Run:
    """Seconds, answers and memory of one run of the engine."""

    answers: list[list[int]]  # token ids, samples side by side, in the order of the requests
    seconds: float  # wall time of all rounds
    num_cached_tokens: int  # of all prompts, those that the prefix cache had
    memory: dict[str, float]  # see minivllm.lab.bench.machine


class BenchEngine:
    """An engine that is loaded once and then answers rounds of requests, any number of times.

    It decodes greedily (samples of one prompt at temperature 1), ignores the end-of-sequence token
    and makes no text.

    Args:
        directory: of the model.
        dtype: of weights, activations, K and V.
        options: other arguments of ``LLM``.
    """

    def __init__(self, directory: Path, dtype: str, **options):
        self.llm = LLM(str(directory), dtype=dtype, skip_tokenizer_init=True, **options)

    def repeat(self, rounds: list[Round], repeats: int) -> list[Run]:
        """Run once to warm up, then so often; return all runs but the first."""
        return [self.run(rounds) for _ in range(1 + repeats)][1:]

    def run(self, rounds: list[Round], loras: Sequence[LoRARequest | None] = (None,)) -> Run:
        """Answer all rounds, timed, beginning with an empty prefix cache.

        Requests take the adapters in turn.
        """
        self.llm.reset_prefix_cache()
        gc.collect()
        num_cached = 0
        answers = []
        begin = time.perf_counter()
        for requests in rounds:
            params = [SamplingParams(**request.sampling_params) for request in requests]
            prompts = [{"prompt_token_ids": request.prompt_token_ids} for request in requests]
            turns = [loras[i % len(loras)] for i in range(len(requests))]
            outputs = self.llm.generate(prompts, params, use_tqdm=False, lora_request=turns)
            num_cached += sum(output.num_cached_tokens or 0 for output in outputs)
            answers += [list(o.token_ids) for output in outputs for o in output.outputs]
        return Run(answers, time.perf_counter() - begin, num_cached, memory=peak_memory())
