"""The words of ``minivllm bench serve``: those of ``vllm bench serve`` that a text model needs."""

from __future__ import annotations

import argparse
import os
from typing import Any

from minivllm.entrypoints.argparse_utils import FlexibleArgumentParser
from minivllm.lab.bench.serving.arrivals import RAMP_UP_STRATEGIES
from minivllm.lab.bench.serving.client import ENDPOINTS
from minivllm.lab.bench.serving.metrics import LATENCIES
from minivllm.utils.toml_data import load_toml
from minivllm.utils.validation import check, check_names

DATASETS = ("random", "sharegpt", "table")
# Fields of a request that have a flag of their own; None leaves them to the server.
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty",
)  # fmt: skip


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"a pair as name=value, not {text!r}")
    return name.strip(), value.strip()


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"one like ttft:200, not {text!r}") from None


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def make_parser() -> FlexibleArgumentParser:
    """The parser of all flags, in groups."""
    parser = FlexibleArgumentParser(
        prog="minivllm bench serve",
        description="Load an OpenAI server with requests, and measure what its clients see.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE.yaml", help="flags and their values; typed win")
    choices = {
        "backend": ENDPOINTS,
        "dataset-name": DATASETS,
        "ramp-up-strategy": RAMP_UP_STRATEGIES,
    }
    types = {"pair": _pair, "limit": _limit, "numbers": _numbers}
    groups = load_toml(__package__, "args")
    parser.refuse(groups.pop("refused"))
    parser.add_groups(groups, choices, types)
    parser.set_defaults(ignore_eos=None)  # it depends on the dataset
    return parser


def parse_args(words: list[str]) -> argparse.Namespace:
    """The values of a command line, checked.

    Bad syntax ends the program with status 2 and a sentence, as argparse does.

    Raises:
        ValueError: for a value that is not allowed.
    """
    args = make_parser().parse(words)
    args.base_url = (args.base_url or f"http://{args.host}:{args.port}").rstrip("/")
    # two stand for those of each dataset, as in vLLM
    if args.input_len is not None:
        args.random_input_len = args.input_len
    if args.output_len is not None:
        args.random_output_len = args.sharegpt_output_len = args.output_len
        args.table_output_len = args.output_len
    if args.ignore_eos is None:
        args.ignore_eos = args.dataset_name == "random"
    embeds = args.backend == "openai-embeddings"
    usual = "e2el" if embeds else "ttft,tpot,itl"
    metrics = args.percentile_metrics
    args.percentile_metrics = (usual if metrics is None else metrics).split(",")
    check_names("--percentile-metrics", args.percentile_metrics, LATENCIES)
    args.goodput = dict(args.goodput)
    check_names("--goodput", args.goodput, ("ttft", "tpot", "e2el"))
    for name in ("num_prompts", "max_concurrency", "random_input_len", "random_output_len",
                 "sharegpt_output_len", "table_questions", "table_output_len"):  # fmt: skip
        value = getattr(args, name)
        check(value is None or value >= 1, name, value, "an integer of at least 1")
    for name in ("num_warmups", "random_prefix_len", "ready_check_timeout_sec"):
        check(getattr(args, name) >= 0, name, getattr(args, name), "at least 0")
    for name in ("request_rate", "burstiness"):
        check(getattr(args, name) > 0, name, getattr(args, name), "a number above 0, or inf")
    _check_ramp_up(args)
    ratio = args.random_range_ratio
    rows = args.table_rows
    check(0 <= ratio < 1, "random_range_ratio", ratio, "a number from 0 to below 1")
    check(1 <= rows <= 100, "table_rows", rows, "an integer from 1 to 100")
    for p in args.metric_percentiles:
        check(0 <= p <= 100, "metric_percentiles", p, "numbers from 0 to 100")
    check(isinstance(args.extra_body, dict), "extra_body", args.extra_body, "a JSON object")
    if embeds:  # there is no answer but the vector
        args.random_output_len = 0
        args.ignore_eos = False
        args.temperature = None
    named = args.dataset_path is not None
    allowed = "a file, with --dataset-name sharegpt and only then"
    check(named == (args.dataset_name == "sharegpt"), "dataset_path", args.dataset_path, allowed)
    return args


def _check_ramp_up(args: argparse.Namespace) -> None:
    strategy = args.ramp_up_strategy
    start = args.ramp_up_start_rps
    end = args.ramp_up_end_rps
    if strategy is None:
        for name, value in (("ramp_up_start_rps", start), ("ramp_up_end_rps", end)):
            check(value is None, name, value, "left out without --ramp-up-strategy")
        return
    rate = args.request_rate
    check(rate == float("inf"), "request_rate", rate, "left out beside --ramp-up-strategy")
    check(start is not None and start >= 1, "ramp_up_start_rps", start, "an integer of at least 1")
    allowed = "an integer, no less than --ramp-up-start-rps"
    check(end is not None and end >= start, "ramp_up_end_rps", end, allowed)


def request_fields(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """Fields of every request's body beside its prompt and length."""
    given = {name: getattr(args, name) for name in SAMPLING}
    if args.logprobs is not None:
        chat = {"logprobs": True, "top_logprobs": args.logprobs}
        given |= chat if args.backend == "openai-chat" else {"logprobs": args.logprobs}
    if args.ignore_eos:
        given["ignore_eos"] = True
    fields = {name: value for name, value in given.items() if value is not None}
    return {"model": model} | fields | args.extra_body


def headers(args: argparse.Namespace) -> dict[str, str]:
    """Headers of every request beside those that HTTP wants."""
    key = os.environ.get("OPENAI_API_KEY")
    own = {"Authorization": f"Bearer {key}"} if key else {}
    return own | dict(args.header)
