"""Measure what the tracer costs: two vLLMs in one process, with it and without, in turn.

``MINIVLLM_XRAY=FILE python .ci/xray/overhead.py MODEL [RUNS]`` with vLLM's Python. Two vLLMs
without it differ by 2 %, too, so take many runs.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import sys
import time
from typing import Any

from record_runs import ENVIRONMENT


def requests() -> list[tuple[list[int], int]]:
    """Make the workload W1: 64 prompts of 32 to 256 token ids, 16 to 128 tokens of answer each."""
    rng = random.Random(1234)
    made = []
    for _ in range(64):
        prompt = [rng.randrange(10, 3000) for _ in range(rng.randint(32, 256))]
        made.append((prompt, rng.randint(16, 128)))
    return made


class Measured:
    """A vLLM whose runs, and its scheduler's part of them, are timed."""

    def __init__(self, model: str, **arguments: Any):
        from vllm import LLM, SamplingParams

        self.llm = LLM(
            model, dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=64,
            max_num_batched_tokens=2048, skip_tokenizer_init=True, **arguments,
        )  # fmt: skip
        some = requests()
        self.prompts = [{"prompt_token_ids": prompt} for prompt, _ in some]
        self.params = [
            SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False)
            for _, n in some
        ]
        self.spent = 0.0
        scheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        scheduler.schedule = self._timed(scheduler.schedule)
        scheduler.update_from_output = self._timed(scheduler.update_from_output)

    def _timed(self, function):
        def timed(*args, **kwargs):
            start = time.thread_time()
            returned = function(*args, **kwargs)
            self.spent += time.thread_time() - start
            return returned

        return timed

    def run(self) -> tuple[float, float, float]:
        """Answer all requests; returns seconds of the clock, of the processor, of the scheduler."""
        self.llm.reset_prefix_cache()
        self.spent = 0.0
        clock = time.perf_counter()
        processor = time.process_time()
        self.llm.generate(self.prompts, self.params, use_tqdm=False)
        return time.perf_counter() - clock, time.process_time() - processor, self.spent


def main(model: str, runs: str = "15") -> None:
    """Print medians of the ratios of all pairs, their spread, and the median without the tracer.

    The processor's times are those of vLLM's process; the last line is what writing took beside it.
    """
    plain = Measured(model)
    traced = Measured(model, scheduler_cls="minivllm.xray.TracingScheduler")
    for warmed in (plain, traced):
        warmed.run()
    pairs = []
    for index in range(int(runs)):
        if index % 2:
            without = plain.run()
            with_tracer = traced.run()
        else:
            with_tracer = traced.run()
            without = plain.run()
        pairs.append((with_tracer, without))
    for column, name in enumerate(("clock", "processor", "scheduler")):
        ratios = sorted(with_tracer[column] / without[column] for with_tracer, without in pairs)
        seconds = statistics.median(without[column] for _, without in pairs)
        middle = statistics.median(ratios)
        print(f"{name:10} {middle:.3f} x ({ratios[0]:.3f} to {ratios[-1]:.3f}) of {seconds:.3f} s")
    traced.llm.llm_engine.engine_core.shutdown()  # the process that writes the file ends, too
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = (used.ru_utime + used.ru_stime) / (int(runs) + 1)
    print(f"writing    {seconds:.3f} s of the processor for each run, in a process of its own")


if __name__ == "__main__":
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value if name != "MINIVLLM_XRAY_CHECK" else "0")
    main(*sys.argv[1:])
