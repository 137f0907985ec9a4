"""Steps of our own scheduler, on workloads that a seed draws: a second lot to hold a plan to."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from minivllm.course.grading.recorded_steps import RecordedStep
from minivllm.lab.sim.dry_run import dry_run
from minivllm.trace import Trace
from minivllm.trace.records import Preempted, Scheduled

NUM_WORKLOADS = 12


def drawn_steps(seed: int, with_threshold: bool) -> Iterator[RecordedStep]:
    """Every step without preemption of a dozen drawn workloads.

    Args:
        seed: the same one draws the same workloads.
        with_threshold: whether prompts are cut by long_prefill_token_threshold.
    """
    rng = Random(f"lab steps {seed}")
    for number in range(NUM_WORKLOADS):
        config = {
            "max_num_batched_tokens": rng.choice([8, 12, 24]),
            "max_num_seqs": rng.randint(2, 5),
            "block_size": rng.choice([2, 4]),
            "num_gpu_blocks": rng.randint(20, 40),
            "long_prefill_token_threshold": rng.randint(3, 7) if with_threshold else 0,
        }
        workload = [(rng.randint(1, 30), rng.randint(1, 9)) for _ in range(8)]
        limits = {name: value for name, value in config.items() if name != "num_gpu_blocks"}
        trace = dry_run(workload, num_blocks=config["num_gpu_blocks"], max_model_len=40, **limits)
        yield from _steps(f"drawn workload {number}", config, trace)


def _steps(name: str, config: dict[str, Any], trace: Trace) -> Iterator[RecordedStep]:
    for step in range(trace.num_steps):
        records = trace.at(step)
        if any(isinstance(record, Preempted) for record in records):
            continue
        state = trace.state_at(step - 1)
        num_tokens = {i: len(seq.token_ids) for i, seq in state.sequences.items()}
        computed = {i: seq.num_computed_tokens for i, seq in state.sequences.items()}
        plan = {r.seq_id: r.num_tokens for r in records if isinstance(r, Scheduled)}
        yield RecordedStep(
            f"{name}, step {step}",
            config,
            running={i: (num_tokens[i], computed[i]) for i in state.running},
            waiting={i: num_tokens[i] for i in state.waiting},
            num_free_blocks=config["num_gpu_blocks"] - 1 - len(state.ref_counts),
            plan=plan,
            missing={i: num_tokens[i] - computed[i] for i in plan},
        )
