"""Steps of vLLM's own scheduler, each with what it had before it: what a plan is held to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from minivllm.lab.sim.recordings import GOLDEN, load_recording


@dataclass(frozen=True)
class RecordedStep:
    """One step: what the scheduler saw before it, and what it decided.

    Attributes:
        name: recording and step.
        config: the limits, as recorded.
        running: (tokens, computed tokens) of each running request, in order of admission.
        waiting: tokens of each waiting request, in the order of the queue.
        num_free_blocks: before the step.
        plan: tokens scheduled of each request, in order.
        missing: tokens not computed yet, of each request in the plan.
    """

    name: str
    config: dict[str, Any]
    running: dict[str, tuple[int, int]]
    waiting: dict[str, int]
    num_free_blocks: int
    plan: dict[str, int]
    missing: dict[str, int]


def recorded_steps(**config: Any) -> Iterator[RecordedStep]:
    """Every step without preemption of the recordings whose config says this.

    Args:
        config: what a recording's config must have, as a value or as a test of one.
    """
    for path in GOLDEN:
        recording = load_recording(path)
        if all(_fits(recording["config"][name], want) for name, want in config.items()):
            yield from _steps(path.name.split(".")[0], recording)


def _fits(value: Any, want: Any) -> bool:
    return want(value) if callable(want) else value == want


def _steps(name: str, recording: dict[str, Any]) -> Iterator[RecordedStep]:
    num_tokens = {r["id"]: len(r["prompt_token_ids"]) for r in recording["requests"]}
    running: dict[str, int] = {}  # computed tokens
    num_free = recording["config"]["num_gpu_blocks"] - 1
    for step in recording["steps"]:
        if "scheduled" not in step:
            continue  # no request was there
        plan = {entry["id"]: entry["num_scheduled"] for entry in step["scheduled"]}
        admitted = [e["id"] for e in step["scheduled"] if e["kind"] != "running"]
        if not step["preempted"]:
            yield RecordedStep(
                f"recording {name}, step {step['step']}",
                recording["config"],
                running={i: (num_tokens[i], computed) for i, computed in running.items()},
                waiting={i: num_tokens[i] for i in (*admitted, *step["waiting"])},
                num_free_blocks=num_free,
                plan=plan,
                missing={
                    e["id"]: num_tokens[e["id"]] - e["num_computed"] for e in step["scheduled"]
                },
            )
        computed = {e["id"]: e["num_computed"] + e["num_scheduled"] for e in step["scheduled"]}
        running = {
            i: computed.get(i, running.get(i, 0))
            for i in step["running"]
            if i not in step["finished"]
        }
        for i in step["sampled"]:
            num_tokens[i] += 1
        num_free = step["free_blocks_after"]
