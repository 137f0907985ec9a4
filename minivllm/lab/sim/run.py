"""simulate: serve a workload with the real scheduler, in simulated time and without a model.

Requests arrive, the scheduler plans a step, the cost model says how long it takes, its tokens are
appended. Only the token ids are made up. Of a cluster the same scheduler is used, or several.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence as AnySequence
from copy import deepcopy
from functools import partial

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.contiguous.manager import RESERVATIONS, ContiguousKVCacheManager
from minivllm.lab.sim.clock import Clock
from minivllm.lab.sim.cluster import Cluster
from minivllm.lab.sim.cost import HARDWARE, MODELS, CostModel, Hardware, ModelShape
from minivllm.lab.sim.machines import NODES, Node
from minivllm.lab.sim.make import make_scheduler
from minivllm.lab.sim.pipeline_replica import PipelineReplica
from minivllm.lab.sim.replica import Replica
from minivllm.lab.sim.result import SimulationResult
from minivllm.lab.sim.run_workload import Run
from minivllm.lab.sim.workloads import SimRequest
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.trace import Trace
from minivllm.utils.validation import check, is_int

MANAGERS = ("paged", *(f"contiguous-{reservation}" for reservation in RESERVATIONS))

_MOST = 10**7  # blocks, tokens or sequences: each takes memory here, too


def simulate(
    workload: AnySequence[SimRequest],
    *,
    hardware: str | Hardware | Node = "a100",
    model: str | ModelShape = "llama-8b",
    policy: str | SchedulingPolicy = "fcfs",
    manager: str = "paged",
    allocator: str = "buddy",
    num_blocks: int | None = None,
    block_size: int = 16,
    gpu_memory_utilization: float = 0.9,
    max_model_len: int | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 4096,
    enable_chunked_prefill: bool = True,
    enable_prefix_caching: bool = True,
    max_concurrency: int | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    async_scheduling: bool = False,
    disable_frontend_multiprocessing: bool = False,
    trace: bool = False,
) -> SimulationResult:
    """Serve a workload in simulated time.

    Args:
        workload: what is asked, see ``minivllm.lab.sim.workloads``.
        hardware: a device by its peaks, a preset of ``HARDWARE`` by name or your own; or a machine
            of several by what they reach, a preset of ``NODES`` or your own.
        model: a preset of ``MODELS`` by name, or your own.
        policy: who comes first, by name, or an object of your own.
        manager: "paged", or how a contiguous one reserves: "contiguous-exact", "contiguous-pow2",
            "contiguous-max". Those get the same number of slots.
        allocator: of a contiguous manager, "buddy" or "first_fit".
        num_blocks: the pool's size, the null block included; None: what the weights leave.
        max_model_len: None: what the model knows.
        block_size, gpu_memory_utilization, max_num_seqs, max_num_batched_tokens,
            enable_chunked_prefill, enable_prefix_caching: as for ``LLM``.
        max_concurrency: the most requests that the client has under way, who holds others back;
            None: each is sent when its time has come.
        tensor_parallel_size, pipeline_parallel_size: ranks per layer and stages of each engine, as
            for ``LLM``, with as many machines as they need; more than one only on a ``Node``.
        data_parallel_size: replicas, engines that each have the whole model.
        async_scheduling: plan a step while the one before runs on the device, as for ``LLM``; False
            lets the device wait for the CPU.
        disable_frontend_multiprocessing: one process for the API server and the engine, which then
            waits while its tokens are sent. False lets the API server work meanwhile.
        trace: keep what happened, with what each rank did, as ``result.traces``.

    Raises:
        ValueError: for an unknown name, a value out of range, those of ``hardware`` and ``model``
            included, a request that could never run, a policy that never admits a request, heads
            that do not divide, more stages than layers, or weights that leave no room for K and V.
    """
    begin = time.perf_counter()
    check(len(workload) > 0, "workload", len(workload), "at least one request")
    cost = _cost(
        hardware, model, tensor_parallel_size, pipeline_parallel_size=pipeline_parallel_size
    )
    _check_size("data_parallel_size", data_parallel_size)
    max_model_len = cost.model.max_model_len if max_model_len is None else max_model_len
    for name, value, low in (
        ("block_size", block_size, 1),
        ("max_num_seqs", max_num_seqs, 1),
        ("max_num_batched_tokens", max_num_batched_tokens, 1),
        ("max_model_len", max_model_len, 2),
    ):
        ok = is_int(value, low) and value <= _MOST
        check(ok, name, value, f"an integer from {low} to {_MOST}")
    ok = max_concurrency is None or is_int(max_concurrency, 1)
    check(ok, "max_concurrency", max_concurrency, "None or an integer of at least 1")
    check(
        enable_chunked_prefill or max_num_batched_tokens >= max_model_len,
        "max_num_batched_tokens",
        max_num_batched_tokens,
        f"at least max_model_len={max_model_len} when enable_chunked_prefill=False, "
        "since a prompt is then never split",
    )
    check(manager in MANAGERS, "manager", manager, "one of " + ", ".join(map(repr, MANAGERS)))
    if num_blocks is None:
        num_blocks = cost.num_blocks(block_size, gpu_memory_utilization)
    ok = is_int(num_blocks, 2) and num_blocks <= _MOST
    check(ok, "num_blocks", num_blocks, f"an integer from 2 to {_MOST}")
    for name, switch in (
        ("async_scheduling", async_scheduling),
        ("disable_frontend_multiprocessing", disable_frontend_multiprocessing),
    ):
        check(isinstance(switch, bool), name, switch, "True or False")
    alone = cost.num_ranks == data_parallel_size == 1 and not (trace or async_scheduling)
    allowed = "'paged' with several ranks or replicas, with async_scheduling or with trace=True"
    check(alone or manager == "paged", "manager", manager, allowed)
    make_manager = partial(
        KVCacheManager, num_blocks, block_size, enable_prefix_caching=enable_prefix_caching
    )
    if manager != "paged":
        reservation = manager.removeprefix("contiguous-")
        num_slots = (num_blocks - 1) * block_size
        make_manager = partial(
            ContiguousKVCacheManager,
            num_slots,
            max_model_len,
            reservation=reservation,
            allocator=allocator,
        )
    limits = {
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "max_model_len": max_model_len,
        "enable_chunked_prefill": enable_chunked_prefill,
        "async_scheduling": async_scheduling,
    }
    num_stages = len(cost.stages)
    size = num_stages + async_scheduling  # of the queue of plans
    replicas: list[Replica] = []
    for _ in range(data_parallel_size):
        clock = Clock()
        listener = None
        if trace:
            listener = Trace(num_blocks, block_size, max_num_batched_tokens, clock=clock)
        kv_manager = make_manager(trace=listener) if trace else make_manager()
        own = policy if data_parallel_size == 1 else deepcopy(policy)
        scheduler = make_scheduler(
            kv_manager, listener, num_stages=num_stages, policy=own, **limits
        )
        api_waits = disable_frontend_multiprocessing
        if size == 1:
            replicas.append(Replica(scheduler, cost, clock, api_waits=api_waits))
        else:
            replicas.append(PipelineReplica(scheduler, cost, clock, api_waits=api_waits, size=size))
    run = Run(workload, replicas, max_concurrency)
    run.until_all_is_done()
    return run.result(time.perf_counter() - begin)


def _cost(
    hardware: str | Hardware | Node,
    model: str | ModelShape,
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
) -> CostModel | Cluster:
    """The seconds of a step, after checking where it runs."""
    hardware = _preset("hardware", hardware, HARDWARE | NODES)
    model = _preset("model", model, MODELS)
    hardware.check("hardware")
    model.check("model")
    sizes = {
        "tensor_parallel_size": tensor_parallel_size,
        "pipeline_parallel_size": pipeline_parallel_size,
    }
    for name, size in sizes.items():
        _check_size(name, size)
        allowed = f"1 on {hardware.name}, a single device; {' and '.join(NODES)} have links"
        check(size == 1 or isinstance(hardware, Node), name, size, allowed)
    if isinstance(hardware, Hardware):
        cost: CostModel | Cluster = CostModel(hardware, model)
    else:
        cost = Cluster(hardware, model, **sizes)
    if not math.isfinite(sum(stage.step_seconds(1, 1, 1) for stage in cost.stages) + sum(cost.cpu)):
        raise ValueError(f"a step on {hardware.name!r} takes more seconds than a float holds.")
    return cost


def _check_size(name: str, size: int) -> None:
    check(is_int(size, 1) and size <= 1024, name, size, "an integer from 1 to 1024")


def _preset(name: str, value, presets: dict):
    """A preset by its name, or the object itself."""
    kinds = tuple(dict.fromkeys(map(type, presets.values())))
    known = isinstance(value, kinds) or value in tuple(presets)
    names = ", ".join(map(repr, presets))
    own = " or ".join(f"a {kind.__name__}" for kind in kinds)
    check(known, name, value, f"one of {names} or {own}")
    return value if isinstance(value, kinds) else presets[value]
