"""Calls of an engine that plans ahead, held to vLLM's recordings, or to what the model says."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from minivllm.config import SchedulerConfig
from minivllm.course.ch23.ahead import run_ahead, wrong_answers
from minivllm.course.grading.run import Fault, describe_error
from minivllm.course.grading.verdicts import first_difference
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.make import make_request
from minivllm.lab.sim.recordings import ASYNC_GOLDEN, load_recording
from minivllm.lab.sim.replay import recorded_request
from minivllm.lab.sim.replay_encoder import EncoderCacheRecorder
from minivllm.lab.sim.replay_queue import CallRecorder
from minivllm.request import Request
from minivllm.scheduling.async_scheduler import AsyncScheduler
from minivllm.scheduling.output import SchedulerOutput

NUM_WORKLOADS = 30
_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "enable_chunked_prefill",
           "long_prefill_token_threshold", "policy")  # fmt: skip
# what is compared of each sequence in a plan
_ENTRY = ("id", "num_scheduled", "num_computed", "num_known", "placeholders", "block_ids")


def compare_calls(scheduler_cls: type[AsyncScheduler]) -> tuple[int, int]:
    """Compare each call of the recordings that vLLM made with two plans in flight.

    Returns: how many calls are equal, of how many recordings.

    Raises:
        Fault: for the first call that differs, or if the class raises.
    """
    num_calls = 0
    num_recordings = 0
    for path in ASYNC_GOLDEN:
        recording = load_recording(path)
        if recording["config"]["mode"] != "async":
            continue
        name = path.name.split(".")[0]
        calls = _calls(recording, scheduler_cls)
        try:
            for want, got in zip(recording["steps"], calls, strict=True):
                if different := first_difference(_described(want), got):
                    raise Fault(f"recording {name}, call {want['step']}: {different}")
                num_calls += 1
        except (Fault, NotImplementedError):
            raise
        except Exception as error:
            raise Fault(f"recording {name}: {describe_error(error)}") from error
        num_recordings += 1
    return num_calls, num_recordings


def _described(call: dict[str, Any]) -> dict[str, Any]:
    """A recorded call with what ``_calls`` says of each sequence."""
    if "scheduled" not in call:
        return call
    entries = [{key: entry[key] for key in _ENTRY} for entry in call["scheduled"]]
    return {**call, "scheduled": entries}


def _calls(
    recording: dict[str, Any], scheduler_cls: type[AsyncScheduler]
) -> Iterator[dict[str, Any]]:
    """Calls of the engine on a recorded workload, as the recording describes them."""
    config = recording["config"]
    manager = KVCacheManager(
        config["num_gpu_blocks"], config["block_size"], config["enable_prefix_caching"]
    )
    manager.forgets_called_off = False  # a habit of vLLM
    scheduler = scheduler_cls(SchedulerConfig(**{n: config[n] for n in _LIMITS}), manager)

    def describe(plan: SchedulerOutput) -> list[dict[str, Any]]:
        described = []
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            seq = scheduler.sequences[seq_id]
            entry = {
                "id": seq_id,
                "num_scheduled": num_new,
                "num_computed": plan.num_computed_tokens[seq_id],
                "num_known": seq.num_tokens,
                "placeholders": seq.num_output_placeholders,
                "block_ids": manager.get_block_ids(seq_id),
            }
            described.append(entry)
        return described

    requests = [recorded_request(entry) for entry in recording["requests"]]
    steps = {entry["id"]: entry.get("abort_step") for entry in recording["requests"]}
    aborts = {name: step for name, step in steps.items() if step is not None}
    encoder = EncoderCacheRecorder(scheduler, config)
    return CallRecorder(
        scheduler, requests, aborts, size=2, describe=describe, encoder=encoder
    ).calls()


def compare_drawn(scheduler_cls: type[AsyncScheduler], seed: int) -> int:
    """Let the class serve drawn workloads without a model. Returns how many answers are right.

    Raises:
        Fault: for the first that is not, or if the class raises.
    """
    num_right = 0
    for number in range(NUM_WORKLOADS):
        rng = Random(f"lab calls {seed} {number}")
        requests = [_drawn_request(rng, str(index)) for index in range(8)]
        limits = {
            "num_blocks": rng.choice([12, 16, 30]),
            "max_num_batched_tokens": rng.choice([6, 12, 40]),
            "num_plans": rng.choice([2, 3]),
        }
        try:
            run_ahead(requests, scheduler_cls=scheduler_cls, **limits)
        except (Fault, NotImplementedError):
            raise
        except Exception as error:
            raise Fault(f"drawn workload {number}: {describe_error(error)}") from error
        if wrong := wrong_answers(requests):
            raise Fault(f"drawn workload {number}: the tokens of {', '.join(wrong)} are not right")
        num_right += len(requests)
    return num_right


def _drawn_request(rng: Random, name: str) -> Request:
    prompt = [rng.randrange(9) for _ in range(rng.randrange(1, 20))]
    stops = rng.sample(range(5, 1005), rng.choice([0, 60]))
    num_output = rng.randrange(1, 12)
    arrival = rng.randrange(9)
    return make_request(name, prompt, num_output, arrival_time=arrival, stop_token_ids=stops)
