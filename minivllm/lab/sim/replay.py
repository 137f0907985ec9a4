"""Replay: run a recorded workload and describe every step in the recording's own format.

The recordings are of vLLM's scheduler (``minivllm/lab/sim/golden``); equal files mean equal
decisions, block ids included. A made-up model takes the place of the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.drafting import check_speculative, fake_drafts
from minivllm.lab.sim.loop import Step, fake_execute, run_steps
from minivllm.lab.sim.make import make_request, make_vllms_scheduler
from minivllm.lab.sim.replay_encoder import (
    EncoderCacheRecorder,
    encoder_limits,
    read_items,
    validate_encoder_config,
    validate_items,
)
from minivllm.lab.sim.replay_groups import (
    cached_by_group,
    make_manager,
    tables_of,
    validate_groups,
)
from minivllm.lab.sim.replay_kv import ScriptedConnector, check_kv_role, check_transfer
from minivllm.lab.sim.replay_queue import CallRecorder
from minivllm.lora.request import LoRARequest
from minivllm.pooling_params import PoolingParams
from minivllm.request import Request
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.scheduling.remote_kvs import connect
from minivllm.scheduling.scheduler import Scheduler
from minivllm.utils.validation import check, is_int

# what a config has, and the least of each number
_NUMBERS = {"num_gpu_blocks": 2, "max_num_batched_tokens": 1, "max_num_seqs": 1,
            "long_prefill_token_threshold": 0, "max_model_len": 2}  # fmt: skip
_MOST = 10**6  # of all of them: a step and a block take time and memory here, too
_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len",
           "enable_chunked_prefill", "long_prefill_token_threshold")  # fmt: skip
_SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill")
_STATS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens",
          "num_accepted_tokens_per_pos")  # fmt: skip
_MODES = ("async", "pp", "pp_async", "kv")  # recorded by calls: several plans, or transfers
_OVERLAPPED = ("async", "pp_async")  # also of one sequence
_REQUEST = ("id", "arrival_step", "prompt_token_ids", "max_tokens")


def replay(workload: dict[str, Any], policy: SchedulingPolicy | None = None) -> dict[str, Any]:
    """Run a workload and describe every step of it.

    Args:
        workload: has ``config`` and ``requests`` as in a recording; other keys are kept.
        policy: one of your own, instead of the one that the config names.

    Returns:
        The same object, with ``steps`` and ``results`` of this run.

    Raises:
        ValueError: for a missing key or a value out of range, by name.
    """
    scheduler, requests, speculative = _prepare(workload, policy, KVCacheManager)
    encoder = EncoderCacheRecorder(scheduler, workload["config"])
    if workload["config"].get("mode") is not None:
        steps = _describe_calls(workload, scheduler, requests, encoder)
    else:
        steps = _describe_steps(scheduler, requests, speculative, encoder)
    described = list(steps)
    results = {r.request_id: _result(r, speculative is not None) for r in requests}
    return {**workload, "steps": described, "results": results}


def _result(request: Request, with_stop_reason: bool) -> dict[str, Any]:
    (seq,) = request.seqs
    result = {
        "prompt_len": seq.num_prompt_tokens,
        "output": seq.output_token_ids,
        "preemptions": request.num_preemptions,
        "status": seq.status.name,
    }
    return {**result, "stop_reason": seq.stop_reason} if with_stop_reason else result


def replay_steps(
    workload: dict[str, Any],
    kv_cache_manager_cls: type[KVCacheManager] = KVCacheManager,
    scheduler_cls: type[Scheduler] | None = None,
) -> Iterator[dict[str, Any]]:
    """The steps of a replay one by one, with a ``KVCacheManager`` and a ``Scheduler`` of your own.

    A scheduler of your own serves workloads without drafts, with one plan in flight.
    """
    scheduler, requests, speculative = _prepare(
        workload, None, kv_cache_manager_cls, scheduler_cls=scheduler_cls
    )
    encoder = EncoderCacheRecorder(scheduler, workload["config"])
    return _describe_steps(scheduler, requests, speculative, encoder)


def _prepare(
    workload: dict[str, Any],
    policy: SchedulingPolicy | None,
    kv_cache_manager_cls: type[KVCacheManager],
    scheduler_cls: type[Scheduler] | None = None,
) -> tuple[Scheduler, list[Request], dict[str, Any] | None]:
    _validate(workload)
    config = workload["config"]
    manager = make_manager(config, kv_cache_manager_cls, num_plans=_num_plans(config))
    speculative = config.get("speculative")
    overlapped = config.get("mode") in _OVERLAPPED
    scheduler = make_vllms_scheduler(
        manager,
        speculative=speculative,
        num_stages=config.get("pp_size", 1) if overlapped else 1,
        policy=policy or config["policy"],
        max_loras=config.get("max_loras", 0),
        num_sampled_tokens_per_step=int(config.get("runner_type") != "pooling"),
        async_scheduling=overlapped,
        **encoder_limits(config),
        scheduler_cls=scheduler_cls,
        **{name: config[name] for name in _LIMITS},
    )
    return scheduler, [recorded_request(entry) for entry in workload["requests"]], speculative


def _describe_steps(
    scheduler: Scheduler,
    requests: list[Request],
    speculative: dict[str, Any] | None,
    encoder: EncoderCacheRecorder,
) -> Iterator[dict[str, Any]]:
    """Every step, as a recording describes it."""
    manager = scheduler.kv_manager
    described = {}
    sampled = {}

    def execute(scheduler: Scheduler, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Fake forward pass that first describes what was scheduled."""
        described.clear()
        if not scheduler.has_unfinished_requests():
            described["idle"] = True
            return ModelRunnerOutput()
        described.update(
            scheduled=_scheduled(scheduler_output, manager),
            total=scheduler_output.total_num_scheduled_tokens,
            preempted=scheduler_output.preempted_req_ids,
            running=[seq.seq_id for seq in scheduler.running],
            waiting=[request.request_id for request in scheduler.waiting],
            free_blocks=manager.block_pool.num_free_blocks,
            **cached_by_group(manager),
            **encoder.after_schedule(scheduler_output),
        )
        output = fake_execute(scheduler, scheduler_output)
        for seq_id, token_ids in output.sampled_token_ids.items():
            sampled[seq_id] = list(token_ids) if speculative is not None else token_ids[0]
        return output

    for number, step in enumerate(run_steps(scheduler, requests, execute)):
        if "idle" not in described:
            described["sampled"] = dict(sampled)
            if scheduler.spec_decoding_stats is not None:
                stats = asdict(scheduler.spec_decoding_stats)
                described["spec_stats"] = {key: stats[key] for key in _STATS}
            finished = scheduler.next_output.finished_req_ids
            described["finished"] = [r.request_id for r in requests if r.request_id in finished]
            described["free_blocks_after"] = manager.block_pool.num_free_blocks
            described.update(encoder.after_update())
            if speculative is not None:
                described["drafts"] = _drafts(scheduler, step, speculative)
                scheduler.update_draft_token_ids(described["drafts"])
        sampled.clear()
        yield {"step": number, **described}


def _describe_calls(
    workload: dict[str, Any],
    scheduler: Scheduler,
    requests: list[Request],
    encoder: EncoderCacheRecorder,
) -> Iterator[dict[str, Any]]:
    """Every call of an engine with several plans in flight, as a recording describes it."""

    def describe(plan: SchedulerOutput) -> list[dict[str, Any]]:
        described = []
        for entry in _scheduled(plan, scheduler.kv_manager):
            seq = scheduler.sequences[entry["id"]]
            known, placeholders = seq.num_tokens, seq.num_output_placeholders
            described.append({**entry, "num_known": known, "placeholders": placeholders})
        return described

    entries = workload["requests"]
    aborts = {e["id"]: e["abort_step"] for e in entries if e.get("abort_step") is not None}
    config = workload["config"]
    connector = None
    if config["mode"] == "kv":
        connector = ScriptedConnector()
        connect(scheduler, connector)
    return CallRecorder(
        scheduler,
        requests,
        aborts,
        size=_num_plans(config),
        describe=describe,
        connector=connector,
        encoder=encoder,
    ).calls()


def _num_plans(config: dict[str, Any]) -> int:
    """Number of plans in flight at most: one for each stage, and one that is made ahead."""
    return config.get("pp_size", 1) + (config.get("mode") in _OVERLAPPED)


def _drafts(scheduler: Scheduler, step: Step, speculative: dict[str, Any]) -> dict[str, list[int]]:
    """Drafts for those that got a token and go on."""
    going_on = [seq for seq in step.updated if not seq.status.is_finished]
    drafts = {
        seq.seq_id: fake_drafts(seq.token_ids, speculative, scheduler.config.max_model_len)
        for seq in going_on
    }
    return {seq_id: token_ids for seq_id, token_ids in drafts.items() if token_ids}


def _scheduled(scheduler_output: SchedulerOutput, manager: KVCacheManager) -> list[dict[str, Any]]:
    kinds = {data.seq_id: "new" for data in scheduler_output.scheduled_new_reqs}
    kinds |= dict.fromkeys(scheduler_output.resumed_req_ids, "resumed")
    entries = []
    for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
        kind = kinds.get(seq_id, "running")
        computed = scheduler_output.num_computed_tokens[seq_id]
        entry = {
            "id": seq_id,
            "kind": kind,
            "num_scheduled": num_new,
            "num_computed": computed,
            **tables_of(manager, seq_id, scheduler_output.new_block_ids.get(seq_id), kind),
        }
        if drafts := scheduler_output.scheduled_spec_decode_tokens.get(seq_id):
            entry["spec"] = drafts
        entries.append(entry if kind == "running" else {**entry, "num_cached": computed})
    return entries


def recorded_request(entry: dict[str, Any]) -> Request:
    """Make a request of a recording from its entry."""
    lora = entry.get("lora")
    return make_request(
        entry["id"],
        entry["prompt_token_ids"],
        entry["max_tokens"],
        arrival_time=entry["arrival_step"],
        priority=entry.get("priority", 0),
        lora_request=None if lora is None else LoRARequest(lora["name"], lora["id"], lora["path"]),
        pooling_params=PoolingParams() if entry.get("pooling", False) else None,
        mm_features=read_items(entry),
        stop_token_ids=entry.get("stop_token_ids", []),
        kv_transfer_params=entry.get("kv_transfer_params"),
    )


def _validate(workload: dict[str, Any]) -> None:
    check(isinstance(workload, dict), "a workload", type(workload).__name__, "an object")
    for key, kind in (("config", dict), ("requests", list)):
        check(key in workload, f"the workload's {key!r}", None, "given")
        ok = isinstance(workload[key], kind)
        check(ok, f"the workload's {key!r}", workload[key], f"a {kind.__name__}")
    config = workload["config"]
    has_groups = "groups" in config
    numbers = _NUMBERS if has_groups else {"block_size": 1, **_NUMBERS}
    for key in (*numbers, *_SWITCHES, "policy"):
        check(key in config, f"config[{key!r}]", None, "given")
    for key, low in numbers.items():
        ok = is_int(config[key], low) and config[key] <= _MOST
        check(ok, f"config[{key!r}]", config[key], f"an integer from {low} to {_MOST}")
    for key in _SWITCHES:
        check(isinstance(config[key], bool), f"config[{key!r}]", config[key], "true or false")
    max_loras = config.get("max_loras", 0)
    ok = is_int(max_loras, 0) and max_loras <= _MOST
    check(ok, "config['max_loras']", max_loras, f"an integer from 0 to {_MOST}")
    runner_type = config.get("runner_type", "generate")
    ok = runner_type in ("generate", "pooling")
    check(ok, "config['runner_type']", runner_type, "'generate' or 'pooling'")
    validate_encoder_config(config)
    if has_groups:
        validate_groups(config)
    mode = config.get("mode")
    check(mode in (None, *_MODES), "config['mode']", mode, f"one of {_MODES}, or absent")
    if mode in ("pp", "pp_async"):
        stages = config.get("pp_size")
        ok = is_int(stages, 1) and stages <= _MOST
        check(ok, "config['pp_size']", stages, f"an integer from 1 to {_MOST}")
    if mode == "kv":
        check_kv_role(config)
    if config.get("speculative") is not None:
        check_speculative(config["speculative"])
    for index, entry in enumerate(workload["requests"]):
        where = f"requests[{index}]"
        check(isinstance(entry, dict), where, entry, "an object")
        for key in _REQUEST:
            check(key in entry, f"{where}[{key!r}]", None, "given")
        check(isinstance(entry["id"], str), f"{where}['id']", entry["id"], "a string")
        for key, low in (("arrival_step", 0), ("max_tokens", 1)):
            ok = is_int(entry[key], low) and entry[key] <= _MOST
            check(ok, f"{where}[{key!r}]", entry[key], f"an integer from {low} to {_MOST}")
        priority = entry.get("priority", 0)
        check(is_int(priority), f"{where}['priority']", priority, "an integer")
        pools = entry.get("pooling", False)
        allowed = runner_type == "pooling"
        check(pools is allowed, f"{where}['pooling']", pools, f"{allowed}, as the runner_type says")
        if (lora := entry.get("lora")) is not None:
            _validate_lora(f"{where}['lora']", lora, max_loras)
        if (transfer := entry.get("kv_transfer_params")) is not None:
            name = f"{where}['kv_transfer_params']"
            check(mode == "kv", name, transfer, "absent unless config['mode'] is 'kv'")
            check_transfer(name, transfer)
        stops = entry.get("stop_token_ids", [])
        ok = isinstance(stops, list) and all(is_int(i, 0) for i in stops)
        check(ok, f"{where}['stop_token_ids']", stops, "a list of integers of at least 0")
        prompt = entry["prompt_token_ids"]
        ok = isinstance(prompt, list) and all(is_int(i, 0) and i < 2**63 for i in prompt)
        ok = ok and len(prompt) > 0
        allowed = "a list of integers from 0 to 2**63 - 1, at least one"
        check(ok, f"{where}['prompt_token_ids']", prompt, allowed)
        validate_items(where, entry)


def _validate_lora(where: str, lora: Any, max_loras: int) -> None:
    ok = isinstance(lora, dict) and lora.keys() >= {"name", "id", "path"}
    check(ok, where, lora, "an object with name, id and path")
    check(max_loras > 0, where, lora, "absent where config['max_loras'] is 0 or absent")
    try:
        LoRARequest(lora["name"], lora["id"], lora["path"])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
