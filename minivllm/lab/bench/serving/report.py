"""The report of a load: vLLM's table, and its keys in a file.

(vLLM: vllm/benchmarks/serve.py)
"""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from minivllm.lab.bench.serving.metrics import LATENCIES, RequestFuncOutput
from minivllm.utils.toml_data import load_toml

_WIDTH = 50
_LINES = load_toml(__package__, "report")


def result_table(result: dict[str, Any], percentiles: Sequence[float]) -> Iterator[str]:
    """Lines of the table.

    Args:
        result: see ``make_result``.
        percentiles: those that it holds.
    """
    yield f"{' Serving Benchmark Result ':=^{_WIDTH}}"
    for key, words in _LINES["load"].items():
        value = result[key]
        if value is not None and value != "inf":
            yield _line(words, value)
    for name, (short, long) in LATENCIES.items():
        if f"mean_{name}_ms" not in result:
            continue
        yield f"{long:-^{_WIDTH}}"
        yield _line(f"Mean {short} (ms):", result[f"mean_{name}_ms"])
        yield _line(f"Median {short} (ms):", result[f"median_{name}_ms"])
        for p in percentiles:
            yield _line(f"P{p:g} {short} (ms):", result[f"p{p:g}_{name}_ms"])
    if "health_requests" in result:
        yield f"{'/health, meanwhile':-^{_WIDTH}}"
        for key, words in _LINES["health"].items():
            yield _line(words, result[key])
    yield "=" * _WIDTH


def _line(words: str, value: float) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{words:<40} {shown:<10}".rstrip()


def make_result(
    args: Namespace, model: str, tokenizer: str, figures: dict[str, Any], client_cpu: float
) -> dict[str, Any]:
    """Object that is saved: how it was measured, then the figures.

    Args:
        args: see ``args.parse_args``.
        model: its name at the server.
        tokenizer: where it is from.
        figures: see ``calculate_metrics``.
        client_cpu: seconds of CPU that the client itself used: a client that is busy all the time
            measures itself.
    """
    rate = args.request_rate
    names = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
    ramp_up = {name: getattr(args, name) for name in names if args.ramp_up_strategy is not None}
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": model,
        "tokenizer_id": tokenizer,
        "num_prompts": args.num_prompts,
        **dict(args.metadata),
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": "inf" if math.isinf(args.burstiness) else args.burstiness,
        "max_concurrency": args.max_concurrency,
        **ramp_up,
        **figures,
        "client_cpu_s": client_cpu,
    }


def details(outputs: Sequence[RequestFuncOutput]) -> dict[str, list]:
    """Details of each request, in the order of sending; times in seconds."""
    return {
        "input_lens": [output.prompt_len for output in outputs],
        "output_lens": [output.output_tokens for output in outputs],
        "ttfts": [output.ttft for output in outputs],
        "itls": [output.itl for output in outputs],
        "latencies": [output.latency for output in outputs],
        "start_times": [output.start_time for output in outputs],
        "queue_times": [output.queue_time for output in outputs],
        "generated_texts": [output.generated_text for output in outputs],
        "errors": [output.error for output in outputs],
    }


def save_result(args: Namespace, result: dict[str, Any]) -> Path:
    """Write it as JSON, with ``--append-result`` as one more line. Returns the file."""
    path = Path(args.result_dir or ".") / (args.result_filename or _file_name(result))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if args.append_result else "w", encoding="utf-8") as file:
        if file.tell():
            file.write("\n")
        file.write(json.dumps(result))
    return path


def _file_name(result: dict[str, Any]) -> str:
    label = result["label"] or result["backend"]
    most = result["max_concurrency"]
    at_once = "" if most is None else f"-concurrency{most}"
    model = result["model_id"].split("/")[-1]
    rate = f"{result['request_rate']}qps"
    if "ramp_up_strategy" in result:
        start, end = result["ramp_up_start_rps"], result["ramp_up_end_rps"]
        rate = f"ramp-up-{result['ramp_up_strategy']}-{start}qps-{end}qps"
    return f"{label}-{rate}{at_once}-{model}-{result['date']}.json"
