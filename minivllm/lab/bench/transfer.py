"""``minivllm bench transfer``: K and V of a prompt from one engine to another, beside computing it.

Two engines in this process take turns: one computes prompts and sends them, the other gets them and
computes their last token. The link is a folder; in ``/dev/shm`` it is memory.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

from minivllm.engine.llm_engine import LLMEngine
from minivllm.lab.bench import machine
from minivllm.lab.bench.engine import BenchEngine
from minivllm.lab.bench.models import bench_model
from minivllm.lab.bench.options import Dtype, Model, Repeats, Threads, count
from minivllm.lab.bench.report import Report
from minivllm.sampling_params import SamplingParams
from minivllm.utils.validation import check

WAYS = ("compute", "send", "fetch")
_COPIES = 4  # out of a cache, into a file, out of it, into the other cache


def bench_transfer(
    model: Model = "tiny",
    dtype: Dtype = "float32",
    num_tokens: Annotated[int, count("Of each prompt.", 2)] = 512,
    folder: Annotated[str, typer.Option(help="Where both engines see files.")] = "/dev/shm",
    repeats: Repeats = 7,
    threads: Threads = None,
) -> None:
    """Measure and print; of the runs the medians count."""
    check(Path(folder).is_dir(), "folder", folder, "a directory")
    report = Report(
        "transfer",
        {
            "model": model, "dtype": dtype, "num_tokens": num_tokens, "folder": folder,
            "threads": threads, "clock": f"wall time, medians of {repeats} runs in turn",
        },
    )  # fmt: skip
    with (
        bench_model(model, dtype) as (directory, load_format),
        TemporaryDirectory(prefix="minivllm-bench-", dir=folder) as shared,
    ):
        sender, receiver = (
            BenchEngine(
                directory, dtype, max_model_len=num_tokens + 2, max_num_seqs=1,
                max_num_batched_tokens=num_tokens, load_format=load_format,
                enable_prefix_caching=False, kv_transfer_config=_config(role, shared),
            ).llm.llm_engine
            for role in ("kv_producer", "kv_consumer")
        )  # fmt: skip
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        num_bytes = 0
        for number in range(repeats + 1):
            prompt = [(7 * number + 3 * i) % 250 for i in range(num_tokens)]
            found, num_bytes = _one(sender, receiver, Path(shared), prompt)
            if number:  # the first one warms up
                for way, took in found.items():
                    seconds[way].append(took)
        expected = receiver.worker.bytes_per_block * -(-num_tokens // receiver.worker.block_size)
    peaks = machine.measure(machine.default_device(), getattr(torch, dtype))
    least = _COPIES * num_bytes / (peaks["copy_gb_per_s"] * 1e9 / 2)
    why = f"{_COPIES} copies of these bytes, measured"
    report.ceiling({"transfer_s": least, "copy_gb_per_s": peaks["copy_gb_per_s"]}, why)
    _print(report, seconds, {"bytes": num_bytes, "bytes_by_formula": expected, "least_s": least})


def _config(role: str, folder: str) -> dict[str, Any]:
    settings = {"shared_storage_path": folder}
    return {
        "kv_connector": "ExampleConnector",
        "kv_role": role,
        "kv_connector_extra_config": settings,
    }


def _one(
    sender: LLMEngine, receiver: LLMEngine, shared: Path, prompt: list[int]
) -> tuple[dict[str, float], int]:
    """Move one prompt, and compute it by the receiver. Returns seconds, and bytes of its files."""
    params, _ = _answer(sender, prompt, {"do_remote_decode": True})
    begin = time.perf_counter()
    sender.end_transfers()
    send = time.perf_counter() - begin
    _, fetch = _answer(receiver, prompt, params)
    _, compute = _answer(receiver, prompt, None)
    files = (shared / params["remote_name"]).glob("rank_*/*")
    num_bytes = sum(path.stat().st_size for path in files)
    return {"compute": compute, "send": send, "fetch": fetch}, num_bytes


def _answer(engine: LLMEngine, prompt: list[int], params: Any) -> tuple[Any, float]:
    """Answer a prompt by one token. Returns the answer's transfer parameters and the seconds."""
    extra = {"kv_transfer_params": params}
    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, extra_args=extra)
    begin = time.perf_counter()
    engine.add_request("bench", {"prompt_token_ids": prompt}, sampling)
    while True:
        for output in engine.step():
            if output.finished:
                return output.kv_transfer_params, time.perf_counter() - begin


def _print(report: Report, seconds: dict[str, list[float]], facts: dict[str, Any]) -> None:
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    transfer = medians["send"] + medians["fetch"]
    ratio = transfer / medians["compute"]
    report.table(
        "one prompt",
        ("way", "ms"),
        [
            ("computed here", 1e3 * medians["compute"]),
            ("sent, behind its first token", 1e3 * medians["send"]),
            ("fetched, its last token computed", 1e3 * medians["fetch"]),
        ],
    )
    report.note(
        f"sent and fetched takes {ratio:.3f} of computing it; {facts['bytes']:,} bytes in files, "
        f"{facts['bytes_by_formula']:,} in blocks; {transfer / facts['least_s']:.1f} times what "
        "copying them takes"
    )
    results = {f"{way}_s": took for way, took in medians.items()}
    report.finish(results | {"transfer_s": transfer, "ratio": ratio, **facts}, None)
