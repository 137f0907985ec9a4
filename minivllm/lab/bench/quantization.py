"""``minivllm bench quantization``: decode steps of one shape, by the bits of its weights.

Weights of few bits are read sooner, and must be widened. So beside the time of a step there are the
memory of the weights, and the bytes that a step reads of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from minivllm.lab.bench.engine import BenchEngine
from minivllm.lab.bench.models import bench_model
from minivllm.lab.bench.options import Repeats, Threads, count
from minivllm.lab.bench.quantized_models import group_size, write_gguf, write_gptq, write_int8
from minivllm.lab.bench.report import Report
from minivllm.lab.bench.workloads import single_round
from minivllm.lab.sim.shapes import SHAPES
from minivllm.models.decoder import DecoderModel
from minivllm.utils.validation import check

FLOATS = ("float32", "bfloat16")
QUANTIZED: dict[str, Callable[[Path, str], Path]] = {
    "int4": write_gptq,
    "int8": write_int8,
    "Q8_0": lambda directory, shape: write_gguf(directory / "model.gguf", shape, "Q8_0"),
    "Q4_0": lambda directory, shape: write_gguf(directory / "model.gguf", shape, "Q4_0"),
}


def bench_quantization(
    model: Annotated[str, typer.Option(help="small or tiny: shapes of Qwen2.")] = "small",
    batch_size: Annotated[int, count("Requests at once.")] = 1,
    input_len: Annotated[int, count("Tokens of each prompt.")] = 16,
    output_len: Annotated[int, count("Tokens of each answer.", 2)] = 32,
    repeats: Repeats = 5,
    threads: Threads = None,
) -> None:
    """Measure and print; of each kind of weights the fastest run counts."""
    check(model in SHAPES, "model", model, f"one of {', '.join(SHAPES)}")
    report = Report(
        "quantization",
        {
            "model": model, "batch_size": batch_size, "input_len": input_len,
            "output_len": output_len, "threads": threads, "int4_group_size": group_size(model),
            "clock": f"wall time of a decode step, best of {repeats} runs",
        },
    )  # fmt: skip
    sizes = batch_size, input_len, output_len
    results: dict[str, dict[str, Any]] = {}
    for dtype in FLOATS:
        with bench_model(model, dtype) as (directory, load_format):
            results[dtype] = _measure(
                directory, dtype, sizes, repeats=repeats, load_format=load_format
            )
    for name, write in QUANTIZED.items():
        with TemporaryDirectory(prefix="minivllm-bench-") as made:
            directory = write(Path(made) / "model", model)
            results[name] = _measure(directory, "float32", sizes, repeats=repeats)
    for found in results.values():
        for dtype in FLOATS:
            found[f"ratio_{dtype}"] = results[dtype]["step_s"] / found["step_s"]
    report.table(
        "decode steps; those of few bits compute in float32",
        ("weights", "ms", *(f"x {dtype}" for dtype in FLOATS), "GiB in memory", "MB read"),
        [
            (
                name, 1e3 * found["step_s"], *(found[f"ratio_{dtype}"] for dtype in FLOATS),
                found["weight_bytes"] / 2**30, found["bytes_of_step"] / 1e6,
            )
            for name, found in results.items()
        ],
    )  # fmt: skip
    report.finish(results, None)


def _measure(
    model: Path, dtype: str, sizes: tuple[int, int, int], repeats: int, **options
) -> dict[str, Any]:
    """Seconds of a decode step, and bytes of the weights: held, and read by a step."""
    batch_size, input_len, output_len = sizes
    engine = BenchEngine(
        model, dtype, max_model_len=input_len + output_len, max_num_seqs=batch_size,
        max_num_batched_tokens=max(2048, batch_size * input_len), enable_prefix_caching=False,
        **options,
    )  # fmt: skip
    decoder = engine.llm.llm_engine.worker.model
    vocab_size = decoder.config.vocab_size
    first, whole = (
        single_round(Random(0), batch_size, vocab_size, prompt=input_len, answer=n)
        for n in (1, output_len)
    )
    to_first, to_last = (
        min(run.seconds for run in engine.repeat(rounds, repeats)) for rounds in (first, whole)
    )
    return {
        "step_s": (to_last - to_first) / (output_len - 1),
        "weight_bytes": engine.llm.profile_memory().weights,
        "bytes_of_step": _bytes_of_step(decoder),
    }


def _bytes_of_step(model: DecoderModel) -> int:
    """Bytes of all weights but an embedding's own, of which a step reads a row."""
    looked_up = {id(p) for p in model.model.embed_tokens.parameters()}
    looked_up -= {id(p) for p in model.lm_head.parameters()}
    return sum(p.nbytes for p in model.parameters() if id(p) not in looked_up)
