"""``minivllm bench kv-cache``: decode steps of long contexts, by the bits of K and V.

A step reads all of them. Fewer bits are read sooner, but must be widened and, before that, rounded.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated, Any

from minivllm.config import KV_CACHE_DTYPES
from minivllm.engine.llm_engine import LLMEngine
from minivllm.lab.bench.engine import BenchEngine
from minivllm.lab.bench.models import bench_model
from minivllm.lab.bench.options import Dtype, Model, Threads, count
from minivllm.lab.bench.report import Report
from minivllm.sampling_params import SamplingParams

NAMES = tuple(name for name in KV_CACHE_DTYPES if name != "fp8_e4m3")  # that is fp8


def bench_kv_cache(
    model: Model = "tiny",
    dtype: Dtype = "bfloat16",
    batch_size: Annotated[int, count("Sequences that decode.")] = 8,
    context: Annotated[int, count("Tokens of each.")] = 4000,
    repeats: Annotated[int, count("Timed steps.")] = 30,
    threads: Threads = None,
) -> None:
    """Measure and print; engines take turns, step after step, and each one's median counts."""
    report = Report(
        "kv-cache",
        {
            "model": model, "dtype": dtype, "batch_size": batch_size, "context": context,
            "threads": threads, "clock": f"wall time of a decode step, median of {repeats}",
        },
    )  # fmt: skip
    with bench_model(model, dtype) as (directory, load_format):
        engines = {}
        for name in NAMES:
            engine = BenchEngine(
                directory, dtype, kv_cache_dtype=name, max_model_len=context + repeats + 2,
                max_num_seqs=batch_size, max_num_batched_tokens=batch_size * context,
                load_format=load_format, enable_prefix_caching=False,
            )  # fmt: skip
            engines[name] = engine.llm.llm_engine
            _prefill(engines[name], batch_size, context, max_tokens=repeats + 2)
        seconds: dict[str, list[float]] = {name: [] for name in NAMES}
        for _ in range(repeats):
            for name, llm_engine in engines.items():
                begin = time.perf_counter()
                llm_engine.step()
                seconds[name].append(time.perf_counter() - begin)
    results: dict[str, dict[str, Any]] = {}
    for name, llm_engine in engines.items():
        worker = llm_engine.worker
        results[name] = {
            "step_s": statistics.median(seconds[name]),
            "bytes_per_token": worker.bytes_per_block // worker.block_size,
        }
    for found in results.values():
        found["ratio"] = results["auto"]["step_s"] / found["step_s"]
    report.table(
        "decode steps",
        ("kv_cache_dtype", "ms", "x auto", "bytes a token"),
        [(n, 1e3 * r["step_s"], r["ratio"], r["bytes_per_token"]) for n, r in results.items()],
    )
    report.finish(results, None)


def _prefill(engine: LLMEngine, batch_size: int, context: int, max_tokens: int) -> None:
    """Compute all prompts in a step, and one more, which warms up."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for number in range(batch_size):
        prompt = [(7 * number + 3 * i) % 250 for i in range(context)]
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    engine.step()
    engine.step()
