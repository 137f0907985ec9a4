"""The words of ``minivllm bench serve``: those of ``vllm bench serve`` that a text model needs."""

from __future__ import annotations

import argparse
import os
from typing import Any

from minivllm.entrypoints.argparse_utils import FlexibleArgumentParser, parse_json
from minivllm.lab.bench.serving.arrivals import RAMP_UP_STRATEGIES
from minivllm.lab.bench.serving.client import ENDPOINTS
from minivllm.lab.bench.serving.metrics import LATENCIES
from minivllm.utils.validation import check, check_names

DATASETS = ("random", "sharegpt", "table")
# Flags of vLLM's that are refused, and why.
_NOT_HERE = {
    "--lora-modules": "there are no adapters yet",
    "--plot-timeline": "--save-detailed writes the times of every request",
    "--profile": "profile the server's process, with py-spy for example",
    "--skip-tokenizer-init": "random texts are made of a tokenizer's tokens",
    "--use-beam-search": 'it is --extra-body \'{"use_beam_search": true, "n": 4}\'',
}
# Fields of a request that have a flag of their own; None leaves them to the server.
SAMPLING = {
    "temperature": float, "top_p": float, "top_k": int, "min_p": float,
    "frequency_penalty": float, "presence_penalty": float, "repetition_penalty": float,
}  # fmt: skip


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
    _server_flags(parser.add_argument_group("server", "who is asked"))
    _dataset_flags(parser.add_argument_group("dataset", "what is asked"))
    _load_flags(parser.add_argument_group("load", "how many ask, and when"))
    _request_flags(parser.add_argument_group("request", "fields of each; none: the server's own"))
    _report_flags(parser.add_argument_group("report", "what is said and saved"))
    parser.refuse(_NOT_HERE)
    return parser


def _server_flags(group: Any) -> None:
    group.add_argument("--backend", choices=tuple(ENDPOINTS), default="openai",
                       help="form of requests (default: openai, which completes text)")  # fmt: skip
    group.add_argument("--base-url", metavar="URL", help="instead of host and port")
    group.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1)")
    group.add_argument("--port", type=int, default=8000, help="(default: 8000)")
    group.add_argument("--endpoint", metavar="PATH", help="(default: the backend's)")
    group.add_argument("--model", help="its name there (default: the first served); beside "
                       "--served-model-name what was loaded, for its tokenizer")  # fmt: skip
    group.add_argument("--served-model-name", metavar="NAME", help="its name there")
    group.add_argument("--tokenizer", metavar="NAME",
                       help="directory or hub's name (default: the served model's, if it "
                            "is here, else the embedded model's)")  # fmt: skip
    group.add_argument("--header", type=_pair, nargs="*", default=[], metavar="NAME=VALUE",
                       help="of each request; OPENAI_API_KEY becomes one by itself")  # fmt: skip
    group.add_argument("--trust-remote-code", action="store_true",
                       help="a tokenizer may bring its own code")  # fmt: skip
    group.add_argument("--insecure", action="store_true",
                       help="do not check the server's TLS certificate")  # fmt: skip
    group.add_argument("--ready-check-timeout-sec", type=float, default=0, metavar="SECONDS",
                       help="how long to wait for a server that starts (default: 0)")  # fmt: skip


def _dataset_flags(group: Any) -> None:
    group.add_argument("--dataset-name", choices=DATASETS, default="random",
                       help="(default: random)")  # fmt: skip
    group.add_argument("--dataset-path", metavar="FILE.json", help="of sharegpt")
    group.add_argument("--seed", type=int, default=0, help="of texts and arrivals (default: 0)")
    group.add_argument("--input-len", type=int, metavar="N",
                       help="tokens of a prompt, where a dataset lets them be chosen")  # fmt: skip
    group.add_argument("--output-len", type=int, metavar="N",
                       help="tokens of an answer, whatever the dataset")  # fmt: skip
    group.add_argument("--random-input-len", type=int, metavar="N",
                       help="tokens (default: 1024, or what fits into the model)")  # fmt: skip
    group.add_argument("--random-output-len", type=int, default=128, metavar="N",
                       help="tokens (default: 128)")  # fmt: skip
    group.add_argument("--random-range-ratio", type=float, default=0.0, metavar="R",
                       help="lengths differ by this share at most (default: 0)")  # fmt: skip
    group.add_argument("--random-prefix-len", type=int, default=0, metavar="N",
                       help="tokens more that all share (default: 0)")  # fmt: skip
    group.add_argument("--sharegpt-output-len", type=int, metavar="N",
                       help="tokens (default: as many as the answer has)")  # fmt: skip
    group.add_argument("--disable-shuffle", action="store_true",
                       help="conversations in the file's order")  # fmt: skip
    group.add_argument("--no-oversample", action="store_true",
                       help="fewer requests if the file has fewer")  # fmt: skip
    group.add_argument("--table-rows", type=int, default=4, metavar="N",
                       help="people in a table (default: 4)")  # fmt: skip
    group.add_argument("--table-questions", type=int, default=8, metavar="N",
                       help="requests about the same table (default: 8)")  # fmt: skip
    group.add_argument("--table-output-len", type=int, default=48, metavar="N",
                       help="most tokens (default: 48)")  # fmt: skip


def _load_flags(group: Any) -> None:
    group.add_argument("--num-prompts", type=int, default=1000, metavar="N",
                       help="(default: 1000)")  # fmt: skip
    group.add_argument("--request-rate", type=float, default=float("inf"), metavar="R",
                       help="requests a second (default: inf, all at once)")  # fmt: skip
    group.add_argument("--burstiness", type=float, default=1.0, metavar="B",
                       help="1: Poisson, less: bursts, more: even (default: 1)")  # fmt: skip
    group.add_argument("--ramp-up-strategy", choices=RAMP_UP_STRATEGIES,
                       help="how the rate grows meanwhile, for no --request-rate")  # fmt: skip
    group.add_argument("--ramp-up-start-rps", type=int, metavar="R", help="from this one")
    group.add_argument("--ramp-up-end-rps", type=int, metavar="R", help="to this one")
    group.add_argument("--max-concurrency", type=int, metavar="N",
                       help="requests under way at once (default: no limit)")  # fmt: skip
    group.add_argument("--num-warmups", type=int, default=0, metavar="N",
                       help="requests before the clock starts (default: 0)")  # fmt: skip


def _request_flags(group: Any) -> None:
    for name, kind in SAMPLING.items():
        default = 0.0 if name == "temperature" else None
        text = "(default: 0, greedy)" if name == "temperature" else None
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, type=kind, default=default, metavar="X", help=text)
    group.add_argument("--logprobs", type=int, metavar="N", help="of so many tokens each")
    group.add_argument("--ignore-eos", action=argparse.BooleanOptionalAction,
                       help="answers of just that length (default: to random text)")  # fmt: skip
    group.add_argument("--extra-body", type=parse_json, default={}, metavar="JSON",
                       help="further fields")  # fmt: skip
    group.add_argument("--request-id-prefix", default="bench-", metavar="TEXT")


def _report_flags(group: Any) -> None:
    names = ",".join(LATENCIES)
    group.add_argument("--percentile-metrics", default="ttft,tpot,itl", metavar="NAMES",
                       help=f"some of {names} (default: ttft,tpot,itl)")  # fmt: skip
    group.add_argument("--metric-percentiles", type=_numbers, default=[99.0], metavar="NUMBERS",
                       help="such as 50,90,99 (default: 99)")  # fmt: skip
    group.add_argument("--goodput", type=_limit, nargs="+", default=[], metavar="NAME:MS",
                       help="count requests within these limits of ttft, tpot, e2el")  # fmt: skip
    group.add_argument("--health", action="store_true",
                       help="ask /health meanwhile, and say how soon it is answered")  # fmt: skip
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    group.add_argument("--save-result", action="store_true", help="write the figures to a file")
    group.add_argument("--append-result", action="store_true",
                       help="a line more in that file, instead of a new file")  # fmt: skip
    group.add_argument("--save-detailed", action="store_true", help="and those of each request")
    group.add_argument("--result-dir", metavar="DIR", help="(default: where you are)")
    group.add_argument("--result-filename", metavar="NAME",
                       help="(default: label or backend, rate, model and time)")  # fmt: skip
    group.add_argument("--label", metavar="TEXT", help="stands in the file and in its name")
    group.add_argument("--metadata", type=_pair, nargs="*", default=[], metavar="NAME=VALUE",
                       help="stand in the file, too")  # fmt: skip


def parse_args(words: list[str]) -> argparse.Namespace:
    """The values of a command line, checked.

    Bad syntax ends the program with status 2 and a sentence, as argparse does.

    Raises:
        ValueError: for a value that is not allowed.
    """
    args = make_parser().parse(words)
    args.base_url = (args.base_url or f"http://{args.host}:{args.port}").rstrip("/")
    _general_lengths(args)
    if args.ignore_eos is None:
        args.ignore_eos = args.dataset_name == "random"
    args.percentile_metrics = args.percentile_metrics.split(",")
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
    ratio, rows = args.random_range_ratio, args.table_rows
    check(0 <= ratio < 1, "random_range_ratio", ratio, "a number from 0 to below 1")
    check(1 <= rows <= 100, "table_rows", rows, "an integer from 1 to 100")
    for p in args.metric_percentiles:
        check(0 <= p <= 100, "metric_percentiles", p, "numbers from 0 to 100")
    check(isinstance(args.extra_body, dict), "extra_body", args.extra_body, "a JSON object")
    named = args.dataset_path is not None
    allowed = "a file, with --dataset-name sharegpt and only then"
    check(named == (args.dataset_name == "sharegpt"), "dataset_path", args.dataset_path, allowed)
    return args


def _general_lengths(args: argparse.Namespace) -> None:
    """``--input-len`` and ``--output-len`` stand for those of each dataset (as in vLLM)."""
    if args.input_len is not None:
        args.random_input_len = args.input_len
    if args.output_len is not None:
        args.random_output_len = args.sharegpt_output_len = args.output_len
        args.table_output_len = args.output_len


def _check_ramp_up(args: argparse.Namespace) -> None:
    strategy, start, end = args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps
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
