"""``minivllm bench serve``: send a load to a server, and print what its clients saw."""

from __future__ import annotations

import asyncio
import contextlib
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tqdm import tqdm

from minivllm.embedded import embedded_model_path
from minivllm.lab.bench.serving.args import headers, parse_args, request_fields
from minivllm.lab.bench.serving.arrivals import arrival_times, ramp_up
from minivllm.lab.bench.serving.client import Client, ServedModel
from minivllm.lab.bench.serving.datasets import (
    SampleRequest,
    draw_adapters,
    random_requests,
    sharegpt_requests,
    table_requests,
)
from minivllm.lab.bench.serving.metrics import RequestFuncOutput, calculate_metrics
from minivllm.lab.bench.serving.report import details, make_result, result_table, save_result
from minivllm.utils.validation import check

_USUAL_INPUT_LEN = 1024  # vLLM's, where it fits
_CHAT_TEMPLATE = 32  # tokens of a prompt that a chat's template may add
_MOST_ERRORS = 10  # that are printed
_HEALTH_PAUSE = 0.02  # seconds between an answer of /health and the next question
_PAUSE = 0.5  # seconds between two looks at a server that starts


def bench_serve(words: list[str]) -> dict[str, Any]:
    """Measure, print, and save if asked to.

    Args:
        words: of the command line.

    Returns:
        The figures, under vLLM's keys.

    Raises:
        ValueError: for bad options, a server that cannot be asked or refuses the first request.
        OSError: for a file that cannot be read or written.
    """
    return asyncio.run(_bench(parse_args(words)))


async def _bench(args: Namespace) -> dict[str, Any]:
    model = await _wait_for_model(args)
    loaded = args.model if args.served_model_name else None
    tokenizer_id = args.tokenizer or loaded or _tokenizer_of(model)
    requests = make_requests(args, tokenizer_id, model.max_model_len)
    if args.lora_modules:
        requests = draw_adapters(requests, args.lora_modules, args.seed)
    async with Client(
        args.base_url, args.backend, args.endpoint, headers=headers(args),
        fields=request_fields(args, model.name), insecure=args.insecure,
    ) as client:  # fmt: skip
        first = await client.request(requests[0], f"{args.request_id_prefix}first")
        if not first.success:
            raise ValueError(f"the server does not answer the first request: {first.error}")
        await asyncio.gather(
            *(client.request(requests[0], f"{args.request_id_prefix}warmup{i}")
              for i in range(args.num_warmups))
        )  # fmt: skip
        print(f"{len(requests)} requests ({args.dataset_name}) to {model.name}")
        rates = [args.request_rate] * len(requests)
        if args.ramp_up_strategy is not None:
            rates = ramp_up(
                len(requests),
                args.ramp_up_strategy,
                args.ramp_up_start_rps,
                end=args.ramp_up_end_rps,
            )
        times = arrival_times(rates, args.burstiness, args.seed)
        start, cpu = time.perf_counter(), time.process_time()
        health: list[float] = []
        asking = asyncio.ensure_future(ask_health(client, health)) if args.health else None
        outputs = await send(client, requests, times, args=args)
        if asking is not None and not asking.cancel():
            asking.result()  # it has ended by itself, with an error
        duration, cpu = time.perf_counter() - start, time.process_time() - cpu
    figures = calculate_metrics(
        outputs,
        duration,
        args.percentile_metrics,
        percentiles=args.metric_percentiles,
        goodput=args.goodput,
    )
    result = make_result(
        args, model.name, tokenizer_id, figures=figures, client_cpu=cpu
    ) | health_figures(health)
    for output in [output for output in outputs if output.error][:_MOST_ERRORS]:
        print(f"failed: {output.error}")
    if args.save_result or args.append_result or args.save_detailed:
        more = details(outputs) if args.save_detailed else {}
        print(f"saved: {save_result(args, result | more)}")
    print(*result_table(result, args.metric_percentiles), sep="\n")
    return result


async def send(
    client: Client, requests: Sequence[SampleRequest], times: Sequence[float], args: Namespace
) -> list[RequestFuncOutput]:
    """Send each request when its time has come. Returns their outputs in the same order."""
    start = time.perf_counter()
    room: Any = contextlib.nullcontext()
    if args.max_concurrency is not None:
        room = asyncio.Semaphore(args.max_concurrency)
    with tqdm(total=len(requests), disable=args.disable_tqdm) as progress:

        async def one(index: int, due: float) -> RequestFuncOutput:
            await asyncio.sleep(start + due - time.perf_counter())
            came = time.perf_counter()
            async with room:
                output = await client.request(requests[index], f"{args.request_id_prefix}{index}")
            output.queue_time = output.start_time - came
            progress.update()
            return output

        return await asyncio.gather(*(one(index, due) for index, due in enumerate(times)))


async def ask_health(client: Client, seconds: list[float]) -> None:
    """Ask /health again and again until cancelled, and note how long each answer took.

    Raises:
        ValueError: if it is not answered with status 200.
    """
    while True:
        seconds.append(await client.health())
        await asyncio.sleep(_HEALTH_PAUSE)


def health_figures(seconds: list[float]) -> dict[str, float]:
    """Figures of what ``ask_health`` has noted, in milliseconds; none if it was not asked."""
    if not seconds:
        return {}
    return {
        "health_requests": len(seconds),
        "mean_health_ms": 1000 * fmean(seconds),
        "median_health_ms": 1000 * median(seconds),
        "max_health_ms": 1000 * max(seconds),
    }


async def _wait_for_model(args: Namespace) -> ServedModel:
    """The model that is served, as soon as the server says so."""
    until = time.monotonic() + args.ready_check_timeout_sec
    async with Client(
        args.base_url, args.backend, headers=headers(args), insecure=args.insecure
    ) as client:
        while True:
            try:
                return await client.served_model(args.served_model_name or args.model)
            except ValueError:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(_PAUSE)


def _tokenizer_of(model: ServedModel) -> str:
    """The served model's own, where its directory is here. It makes texts; servers count tokens."""
    here = model.root and (Path(model.root) / "tokenizer_config.json").is_file()
    return str(model.root if here else embedded_model_path())


def make_requests(
    args: Namespace, tokenizer_id: str, max_model_len: int | None
) -> list[SampleRequest]:
    """The requests that a command line asks for.

    Raises:
        ValueError: if they would be longer than the model can read.
        OSError: for a tokenizer that is not there.
    """
    if args.dataset_name == "table":
        return table_requests(
            args.num_prompts,
            args.table_rows,
            args.table_questions,
            output_len=args.table_output_len,
            seed=args.seed,
        )
    from transformers import AutoTokenizer

    trusted = args.trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_id, trust_remote_code=trusted)
    if args.dataset_name == "sharegpt":
        return sharegpt_requests(
            tokenizer,
            args.num_prompts,
            args.dataset_path,
            output_len=args.sharegpt_output_len,
            max_model_len=max_model_len,
            seed=args.seed,
            shuffle=not args.disable_shuffle,
            oversample=not args.no_oversample,
        )
    input_len = args.random_input_len or _USUAL_INPUT_LEN
    if max_model_len is not None:
        room = _room(args, max_model_len)
        input_len = args.random_input_len or min(input_len, room)
        allowed = f"at most {room}, as the model reads {max_model_len} tokens, answers included"
        check(input_len <= room, "random_input_len", input_len, allowed)
    return random_requests(
        tokenizer,
        args.num_prompts,
        input_len,
        output_len=args.random_output_len,
        range_ratio=args.random_range_ratio,
        prefix_len=args.random_prefix_len,
        seed=args.seed,
    )


def _room(args: Namespace, max_model_len: int) -> int:
    """Most tokens of a random prompt, beside its prefix, template and answer."""
    fixed = args.random_prefix_len + (_CHAT_TEMPLATE if args.backend == "openai-chat" else 0)
    room = int((max_model_len - fixed) / (1 + args.random_range_ratio)) - args.random_output_len
    allowed = f"so small that a prompt fits into the model's {max_model_len} tokens, too"
    check(room >= 1, "random_output_len", args.random_output_len, allowed)
    return room
