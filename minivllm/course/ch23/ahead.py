"""run_ahead: requests without a model, each step planned before the last one's tokens are known."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import Arrivals, fake_tokens
from minivllm.lab.sim.stub_runner import StubRunner
from minivllm.logger import silenced
from minivllm.request import Request
from minivllm.scheduling.async_scheduler import AsyncScheduler
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace


def run_ahead(
    requests: Iterable[Request],
    *,
    num_blocks: int,
    block_size: int = 4,
    num_plans: int = 2,
    enable_prefix_caching: bool = True,
    max_num_batched_tokens: int = 64,
    scheduler_cls: type[Scheduler] = AsyncScheduler,
    kv_cache_manager_cls: type[KVCacheManager] = KVCacheManager,
) -> Trace:
    """Serve requests without a model; ``check_integrity`` looks after each call.

    Args:
        requests: each joins the queue at the call that its ``arrival_time`` counts.
        num_plans: in flight at most; with one the device waits for each plan.
        scheduler_cls, kv_cache_manager_cls: of your own; with one plan any scheduler is right.
        num_blocks, block_size, enable_prefix_caching, max_num_batched_tokens: as for ``dry_run``.

    Raises:
        AssertionError: if queues, requests and blocks are not consistent after a call.
    """
    trace = Trace(num_blocks, block_size, max_num_batched_tokens)
    manager = kv_cache_manager_cls(num_blocks, block_size, enable_prefix_caching, trace=trace)
    config = SchedulerConfig(max_num_batched_tokens=max_num_batched_tokens, max_model_len=256)
    scheduler = scheduler_cls(config, manager, trace)
    queue = BatchQueue(scheduler, num_plans)
    runner = StubRunner()

    def execute(plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        for seq_id in plan.resumed_req_ids:  # it is told their tokens, as vLLM's runner is
            runner.token_ids[seq_id] = list(scheduler.sequences[seq_id].token_ids)
        future: Future[ModelRunnerOutput] = Future()
        future.set_result(runner.execute(plan))
        return future

    to_come = Arrivals(requests)
    call = 0
    with silenced("minivllm.scheduling.preemption"):
        while to_come or queue.has_work:
            for request in to_come.pop_until(call):
                scheduler.add_request(request)
            if (oldest := queue.advance(execute)) is not None:
                scheduler_output, runner_output = oldest
                scheduler.update_from_output(scheduler_output, runner_output)
            scheduler.check_integrity()
            call += 1
    return trace


def wrong_answers(requests: Iterable[Request]) -> list[str]:
    """Requests whose tokens are not those that the made-up model says behind each other."""
    found = []
    for request in requests:
        for seq in request.seqs:
            known = seq.token_ids[: seq.num_prompt_tokens]
            if seq.output_token_ids != fake_tokens(known, seq.num_output_tokens):
                found.append(seq.seq_id)
    return found
