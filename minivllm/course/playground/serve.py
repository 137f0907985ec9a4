"""serve: the real scheduler and block manager on requests, by the clock of a cost model."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.course.playground.settings import EngineSettings
from minivllm.kv.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    table_groups,
)
from minivllm.lab.sim.clock import Clock
from minivllm.lab.sim.cost import HARDWARE, MODELS, CostModel, attended_pairs
from minivllm.lab.sim.loop import TooManySteps, fake_execute, run_steps
from minivllm.lab.sim.make import make_traced_scheduler
from minivllm.request import Request
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.utils.validation import check

COST = CostModel(HARDWARE["a100"], MODELS["llama-8b"])
PCIE_BYTES_PER_S = 25e9  # between host and device, to swap
MAX_STEPS = 3000


def step_seconds(
    scheduler: Scheduler, output: SchedulerOutput, windows: Sequence[int | None] = ()
) -> float:
    """Seconds of a plan by the cost model, blocks to and from the host included.

    ``windows`` are those of KV cache groups, with equally many layers each; None: there is none.
    """
    num_tokens = attended = num_kv = 0
    windows = windows or [None]
    for seq_id, num_new in output.num_scheduled_tokens.items():
        computed = output.num_computed_tokens[seq_id]
        num_tokens += num_new
        pairs = attended_pairs(computed, num_new)
        attended += sum(min(pairs, num_new * (w or pairs)) for w in windows) / len(windows)
        num_kv += sum(min(computed, w or computed) for w in windows) / len(windows) + 2 * num_new
    num_swapped = len(output.swaps_out) + len(output.swaps_in)
    block_bytes = COST.model.bytes_per_block(scheduler.kv_manager.block_size) / len(windows)
    swap_seconds = num_swapped * block_bytes / PCIE_BYTES_PER_S
    return COST.step_seconds(num_tokens, attended, num_kv) + swap_seconds


def groups_of(engine: EngineSettings) -> list[KVCacheSpec]:
    """KV cache groups of a model, half of whose layers have a window; none without one."""
    if not engine.sliding_window:
        return []
    heads = {"num_kv_heads": 1, "head_size": 1, "bytes_per_number": 1}  # there are no tensors
    size = engine.block_size
    windows = SlidingWindowSpec(size, sliding_window=engine.sliding_window, **heads)
    return [windows, FullAttentionSpec(size, **heads)]


def serve(
    requests: Sequence[Request], engine: EngineSettings, policy: str | SchedulingPolicy
) -> Trace:
    """Serve requests in simulated time.

    Args:
        requests: each joins the queue at its ``arrival_time``, in seconds.
        engine: all settings but the policy.
        policy: by name, or the reader's.

    Returns: the trace; its clock is the simulated one.

    Raises:
        ValueError: for a request that could never run, or a budget that is too small for prompts
            that are not split; if some requests are not done after ``MAX_STEPS``, or a policy never
            admits them.
    """
    longest = max(len(r.prompt_token_ids) + r.sampling_params.max_tokens for r in requests)
    budget = engine.max_num_batched_tokens
    check(engine.enable_chunked_prefill or budget >= longest, "max_num_batched_tokens", budget,
          f"at least {longest}, the tokens of the longest request, since no prompt is split with "
          "enable_chunked_prefill=False")  # fmt: skip
    clock = Clock()
    groups = groups_of(engine)
    windows = [group.sliding_window for group in table_groups(groups)]
    scheduler = make_traced_scheduler(
        num_blocks=engine.num_blocks,
        block_size=engine.block_size,
        max_num_batched_tokens=budget,
        enable_prefix_caching=engine.enable_prefix_caching,
        num_host_blocks=engine.num_blocks if engine.preemption_mode == "swap" else 0,
        groups=groups,
        prefix_cache_retention_interval=engine.prefix_cache_retention_interval,
        clock=clock,
        max_num_seqs=engine.max_num_seqs,
        max_model_len=longest,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        policy=policy,
        preemption_mode=engine.preemption_mode,
    )

    def execute(scheduler: Scheduler, output: SchedulerOutput) -> ModelRunnerOutput:
        """Let the time of a step pass, in the model's place. Returns its tokens."""
        clock.now += step_seconds(scheduler, output, windows)
        return fake_execute(scheduler, output)

    try:
        for _ in run_steps(scheduler, requests, execute, clock, max_steps=MAX_STEPS):
            pass
    except TooManySteps as error:
        raise ValueError(
            f"after {MAX_STEPS:,} steps {len(scheduler.requests)} of {len(requests)} requests are "
            "not done; ask for fewer, or let more of them run at once."
        ) from error
    assert scheduler.trace is not None
    return scheduler.trace
