"""``minivllm bench scheduler``: the cost of deciding, per running request.

One step is ``schedule()`` and ``update_from_output()`` while ``num_requests`` sequences decode. A
figure is the mean over 16 steps, in which each of them fills one block, and the best of several
such windows. With asynchronous scheduling a plan is in flight while the next one is made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from statistics import median
from typing import Annotated, Any

import typer

from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.kv_cache_spec import FullAttentionSpec, SlidingWindowSpec
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.bench.hashing import hashing_us, least_hashing_us, least_lookup_us, lookup_us
from minivllm.lab.bench.machine import best_cpu_seconds
from minivllm.lab.bench.options import AsyncScheduling, count
from minivllm.lab.bench.report import Report
from minivllm.lab.bench.workloads import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    PROMPT_TOKENS,
    prompt_of,
)
from minivllm.lab.sim.loop import run_steps, runner_output
from minivllm.lab.sim.make import make_request, make_scheduler
from minivllm.request import Request, Sequence
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.utils.math_utils import cdiv
from minivllm.utils.validation import check, is_int

WINDOWS = 8  # of which the best counts
SHORT_RUN = WINDOWS * BLOCK_SIZE  # steps
LONGEST_RUN = 8000  # steps; a sequence then has nearly as many tokens as it may have
POOL_SIZES = (1, 8, 64)  # times the blocks that a short run fills
CACHE_SIZES = (100, 1_000, 10_000, 100_000)  # blocks
WINDOW = 128  # tokens that a layer sees, where there are two KV cache groups


def bench_scheduler(
    num_requests: Annotated[int, count("Sequences that decode.")] = 256,
    num_steps: Annotated[
        int, typer.Option(help="Of the longest run, up to its last figure.")
    ] = 4096,
    async_scheduling: AsyncScheduling = False,
) -> None:
    """Measure and print."""
    ok = is_int(num_steps, SHORT_RUN) and num_steps <= LONGEST_RUN
    check(ok, "num_steps", num_steps, f"an integer from {SHORT_RUN} to {LONGEST_RUN}")
    workload = {
        "decodes": num_requests,
        "prompt_tokens": PROMPT_TOKENS,
        "block_size": BLOCK_SIZE,
        "steps": num_steps,
        "clock": "CPU time of the process",
        "figure": f"mean of {BLOCK_SIZE} steps, best of {WINDOWS} times",
        **({"async_scheduling": True} if async_scheduling else {}),
    }
    report = Report("scheduler", workload)
    least = least_step_us(num_requests)
    why = "a loop that writes each request down, counts its token and appends it"
    report.ceiling({"us_per_request": least}, why)

    by_steps = [
        {"caching": caching, "steps_done": steps, "us_per_request": us}
        for caching in (True, False)
        for steps, us in _by_steps_done(num_requests, num_steps, caching, async_scheduling).items()
    ]
    by_pool = [
        {"caching": caching, "num_blocks": size, "us_per_request": us}
        for caching in (True, False)
        for size, us in _by_pool_size(num_requests, caching, async_scheduling).items()
    ]
    by_groups = [
        {"caching": caching, "steps_done": steps, "us_per_request": us}
        for caching in (True, False)
        for steps, us in _by_steps_done(
            num_requests, num_steps, caching, async_scheduling, with_window=True
        ).items()
    ]
    with_window = f"µs per request and step, one full group and one with a window of {WINDOW}"
    for title, name, rows in (
        ("µs per request and step, by how long it has run", "steps_done", by_steps),
        ("µs per request and step, by the pool's size", "num_blocks", by_pool),
        (with_window, "steps_done", by_groups),
    ):
        report.table(
            title,
            ("prefix caching", name.replace("_", " "), "µs", "share of ceiling"),
            [
                ("on" if row["caching"] else "off", row[name], row["us_per_request"],
                 f"{least / row['us_per_request']:.0%}")
                for row in rows
            ],
        )  # fmt: skip

    hashing = hashing_us()
    digest = least_hashing_us()
    report.ceiling({"hashing_us_per_block": digest}, "SHA-256 of as many bytes")
    share = f"{digest / hashing:.0%} of the ceiling"
    report.note(f"hashing: {hashing:.2f} µs per block of {BLOCK_SIZE}, {share}")
    lookups = [dict(zip(("hit_us_per_block", "miss_us"), lookup_us(size), strict=True))
               | {"cached_blocks": size} for size in CACHE_SIZES]  # fmt: skip
    report.ceiling({"lookup_us": least_lookup_us(CACHE_SIZES[-1])}, "one entry of a large dict")
    report.table(
        "µs to look a prompt up",
        ("cached blocks", "per block that hits", "a prompt that does not"),
        [(row["cached_blocks"], row["hit_us_per_block"], row["miss_us"]) for row in lookups],
    )
    results = {
        **_headline(by_steps + by_pool, least),
        "by_steps_done": by_steps,
        "by_pool_size": by_pool,
        "with_window": by_groups,
        "hashing_us_per_block": hashing,
        "lookup": lookups,
    }
    report.finish(results, None)


def _headline(rows: list[dict[str, Any]], least: float) -> dict[str, Any]:
    """The median of the figures with caching and without it, and their share of the ceiling."""
    us = {
        name: median(row["us_per_request"] for row in rows if row["caching"] == caching)
        for name, caching in (("caching_on", True), ("caching_off", False))
    }
    return {"us_per_request": us, "share_of_ceiling": {k: least / v for k, v in us.items()}}


def _blocks_filled(num_requests: int, num_steps: int) -> int:
    """Blocks that the sequences hold in the end, and the null block.

    At least what one of them could grow to: less is refused.
    """
    filled = num_requests * cdiv(PROMPT_TOKENS + 1 + num_steps, BLOCK_SIZE)
    return max(filled, cdiv(MAX_MODEL_LEN, BLOCK_SIZE)) + 1


def _by_steps_done(
    num_requests: int,
    num_steps: int,
    caching: bool,
    async_scheduling: bool,
    with_window: bool = False,
) -> dict[int, float]:
    """One long run, looked at when it has done few steps, a quarter of them, and all."""
    num_blocks = _blocks_filled(num_requests, num_steps + async_scheduling)
    core = RunningDecodes(
        num_requests,
        (1 + with_window) * num_blocks,
        caching,
        async_scheduling=async_scheduling,
        with_window=with_window,
    )
    windows = []
    figures = {}
    marks = {SHORT_RUN, num_steps // 4, num_steps}
    for steps in range(BLOCK_SIZE, num_steps + 1, BLOCK_SIZE):
        windows.append(window_us(core))
        if len(windows) >= WINDOWS and any(0 <= steps - mark < BLOCK_SIZE for mark in marks):
            figures[steps] = min(windows[-WINDOWS:])
    return figures


def _by_pool_size(num_requests: int, caching: bool, async_scheduling: bool) -> dict[int, float]:
    """Short runs in pools of very different sizes."""
    enough = _blocks_filled(num_requests, SHORT_RUN + async_scheduling)
    figures = {}
    for factor in POOL_SIZES:
        num_blocks = factor * enough
        core = RunningDecodes(num_requests, num_blocks, caching, async_scheduling=async_scheduling)
        figures[num_blocks] = min(window_us(core) for _ in range(WINDOWS))
    return figures


# -- what is timed, and the least that no scheduler in Python can do without ---------------------


class RunningDecodes:
    """Our scheduler with a number of sequences in it, all of which decode.

    Args:
        num_requests: that run.
        num_blocks: the pool's size.
        caching: of prefixes; on, every block that fills is hashed and registered.
        async_scheduling: make each plan before the one before it has ended.
        with_window: there are two KV cache groups, one of them with a sliding window.
    """

    def __init__(
        self,
        num_requests: int,
        num_blocks: int,
        caching: bool,
        async_scheduling: bool = False,
        with_window: bool = False,
    ):
        self.num_requests = num_requests
        budget = num_requests * PROMPT_TOKENS
        manager = KVCacheManager(num_blocks, BLOCK_SIZE, caching)
        if with_window:
            heads = {"num_kv_heads": 1, "head_size": 1, "bytes_per_number": 1}
            manager = HybridKVCacheManager(
                num_blocks,
                BLOCK_SIZE,
                caching,
                specs=[
                    FullAttentionSpec(BLOCK_SIZE, **heads),
                    SlidingWindowSpec(BLOCK_SIZE, **heads, sliding_window=WINDOW),
                ],
                max_model_len=MAX_MODEL_LEN,
                max_in_flight_tokens=budget * (1 + async_scheduling),
            )
        self.scheduler = make_scheduler(
            manager,
            max_num_batched_tokens=budget,
            max_num_seqs=num_requests,
            max_model_len=MAX_MODEL_LEN,
            async_scheduling=async_scheduling,
        )
        most = MAX_MODEL_LEN - PROMPT_TOKENS
        requests = [make_request(str(i), prompt_of(i), most) for i in range(num_requests)]
        self._steps: Iterator[Any] = run_steps(self.scheduler, requests, self._execute)
        if async_scheduling:
            self._steps = self._overlapped_steps(requests)
        self._planned = self._executed = 0.0
        self.step()

    def step(self) -> float:
        """CPU seconds of one ``schedule()`` and one ``update_from_output()``.

        What lies between them is the model's and is not timed.
        """
        begin = time.process_time()
        next(self._steps)
        return self._planned - begin + time.process_time() - self._executed

    def _overlapped_steps(self, requests: list[Request]) -> Iterator[None]:
        """Make a plan and end the one before it, again and again."""
        for request in requests:
            self.scheduler.add_request(request)
        queue = BatchQueue(self.scheduler, size=2)
        while True:
            oldest = queue.advance(self._launch)
            if oldest is not None:
                plan, output = oldest
                self.scheduler.update_from_output(plan, output)
                yield

    def _launch(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        future: Future[ModelRunnerOutput] = Future()
        future.set_result(self._execute(self.scheduler, plan))
        self._executed = time.process_time()
        return future

    def _execute(
        self, scheduler: Scheduler, scheduler_output: SchedulerOutput
    ) -> ModelRunnerOutput:
        self._planned = time.process_time()
        sampled = dict.fromkeys(scheduler_output.num_scheduled_tokens, 7)
        assert len(sampled) == self.num_requests, "all of them decode, all the time"
        output = runner_output(sampled)
        self._executed = time.process_time()
        return output


def window_us(core) -> float:
    """µs per request and step, mean over the steps in which each request fills one block."""
    seconds = sum(core.step() for _ in range(BLOCK_SIZE))
    return seconds / BLOCK_SIZE / core.num_requests * 1e6


def least_step_us(num_requests: int) -> float:
    """µs per request to write down that it runs, to count its token and to append it."""
    request = make_request("0", prompt_of(0))
    seqs = [Sequence(request, index) for index in range(num_requests)]

    def touch_each_request():
        plan = {}
        for seq in seqs:
            plan[seq.seq_id] = 1
        for seq in seqs:
            seq.num_computed_tokens += plan[seq.seq_id]
            seq.token_ids.append(7)

    return best_cpu_seconds(touch_each_request, 50) / num_requests * 1e6
