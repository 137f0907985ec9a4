"""Replicas: which engine gets a request, that each answers as one does, and how they end."""

import asyncio
import json
import os
import signal
from pathlib import Path

import httpx
import pytest
from cuda_stand_ins import pretend_gpu
from http_server import RunningServer
from test_20_executors import is_alive, wait_until
from test_20_parallelism import NGRAM, REQUESTS, TEXTS, texts_and_tokens

from minivllm import LLM, AsyncEngineArgs, AsyncLLM, SamplingParams
from minivllm.embedded import embedded_adapter_path
from minivllm.executor.exceptions import EngineDeadError
from minivllm.lora.request import LoRARequest
from minivllm.metrics.stats import SchedulerStats
from minivllm.scheduling.load_balancer import LoadBalancer

DATA = Path(__file__).parents[1] / "data"
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.mark.parametrize("number", range(3))
def test_choices_are_vllms(number):
    """Recorded from vLLM: loads that change, ranks that are given, requests that end."""
    run = json.loads((DATA / "replica_choices.json").read_text())["runs"][number]
    balancer = LoadBalancer(run["num_engines"])
    for kind, *rest in run["events"]:
        if kind == "choose":
            request_id, rank, chosen = rest
            assert balancer.choose(request_id, rank) == chosen
        elif kind == "finish":
            balancer.finish(rest[0])
        else:
            index, waiting, running, usage = rest
            balancer.update(index, SchedulerStats(running, waiting, kv_cache_usage=usage))


def two_engines(**settings):
    limits = {"num_gpu_blocks_override": 300, "max_num_batched_tokens": 24, "max_model_len": 100}
    args = AsyncEngineArgs(data_parallel_size=2, disable_log_stats=True, **(limits | settings))
    return AsyncLLM(args)


async def run(engine, request_id, prompt, params, **given):
    outputs = [one async for one in engine.generate(prompt, params, request_id, **given)]
    return outputs[-1]


def loads(engine):
    return [load.num_in_flight for load in engine._client.load_balancer.loads]


@pytest.mark.parametrize(
    "settings", [{}, {"speculative_config": NGRAM, "num_gpu_blocks_override": 14}], ids=str
)
def test_two_engines_give_one_engines_tokens(settings):
    """Requests of all kinds; with few blocks both engines preempt."""
    settings = dict(settings)
    engine = two_engines(**settings)

    async def all_of_them():
        names = [(f"{name} {number}", text, params) for name, params in REQUESTS.items()
                 for number, text in enumerate(TEXTS)]  # fmt: skip
        await engine.pause_generation()  # until all are there, however quick an engine is
        tasks = [asyncio.ensure_future(run(engine, *one)) for one in names]
        while sum(loads(engine)) < len(names):
            await asyncio.sleep(0.01)
        await engine.resume_generation()
        outputs = await asyncio.gather(*tasks)
        return outputs, await engine.get_metrics("m")

    outputs, metrics = asyncio.run(all_of_them())
    tokens = {o.request_id: [one.token_ids for one in o.outputs] for o in outputs}
    preempted = {
        m.labels["engine"] for m in metrics if m.name == "vllm:num_preemptions" and m.value
    }
    assert preempted == ({"0", "1"} if "num_gpu_blocks_override" in settings else set())
    settings.pop("num_gpu_blocks_override", None)
    assert tokens == texts_and_tokens(**settings)
    finished = {"0": 0, "1": 0}
    for metric in metrics:
        if metric.name == "vllm:request_success":
            finished[metric.labels["engine"]] += metric.value
    assert sum(finished.values()) == len(outputs)
    assert min(finished.values()) > len(outputs) / 3
    assert loads(engine) == [0, 0]
    engine.shutdown()


def test_aborts_stop_strings_and_calls_reach_the_engine_they_concern():
    engine = two_engines(max_model_len=500)

    async def use():
        async def long(name):
            return await run(engine, name, "Once", LONG, data_parallel_rank=1)

        await engine.pause_generation()
        tasks = [asyncio.ensure_future(long(name)) for name in "ab"]
        while loads(engine) != [0, 2]:
            await asyncio.sleep(0.01)
        await engine.resume_generation(1)  # both run, and none can end by itself
        assert not await engine.reset_prefix_cache()  # engine 0 could, engine 1 could not
        await engine.abort("a")
        assert (await tasks[0]).outputs[0].finish_reason == "abort"
        tasks[1].cancel()
        while loads(engine) != [0, 0]:
            await asyncio.sleep(0.01)
        await engine.resume_generation()
        stops = SamplingParams(max_tokens=80, stop=["e"], n=2, seed=1, ignore_eos=True)
        for _ in range(3):  # the id is free again when its engine has ended it
            output = await run(engine, "same id", "Once there was", stops)
            assert {one.stop_reason for one in output.outputs} == {"e"}
        while loads(engine) != [0, 0]:
            await asyncio.sleep(0.01)
        assert await engine.reset_prefix_cache()
        for rank in (-1, 2, True, "1"):
            with pytest.raises(ValueError, match=rf"data_parallel_rank {rank} is out of range \[0"):
                await run(engine, "c", "x", LONG, data_parallel_rank=rank)
        with pytest.raises(ValueError, match="LoRA is not enabled"):
            await engine.list_loras()
        await engine.pause_generation()
        await engine.resume_generation()
        assert (await run(engine, "d", "x", LONG)).finished

    asyncio.run(use())
    engine.shutdown()


def test_adapters_are_those_of_all_engines():
    """One is loaded where its requests are, and removed wherever it is."""
    engine = two_engines(enable_lora=True, max_lora_rank=8)
    pirate, sql = (
        LoRARequest(name, number, str(embedded_adapter_path(name)))
        for number, name in enumerate(("pirate", "sql-lora"), 1)
    )

    async def use():
        short = SamplingParams(temperature=0, max_tokens=2)
        for rank, lora in enumerate((pirate, sql)):
            await run(engine, lora.name, "x", short, lora_request=lora, data_parallel_rank=rank)
        assert await engine.list_loras() == {1, 2}
        assert await engine.remove_lora(2)
        assert await engine.list_loras() == {1}
        assert not await engine.remove_lora(2)
        assert await engine.add_lora(pirate)  # to the engine that has not got it
        assert not await engine.add_lora(pirate)

    asyncio.run(use())
    engine.shutdown()


def test_a_server_has_an_engine_for_each_header_and_ends_with_one_of_them():
    engine = two_engines()
    server = RunningServer(engine=engine)
    url = f"http://127.0.0.1:{server.port}"
    body = {"prompt": "Once", "max_tokens": 2, "temperature": 0}
    with httpx.Client(base_url=url) as client:
        for rank, status in (("0", 200), ("1", 200), ("1", 200), ("2", 400), ("x", 200)):
            headers = {"X-data-parallel-rank": rank}
            answer = client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == status
        text = client.get("/metrics").text
        lines = [line for line in text.splitlines() if line.startswith("vllm:generation_tokens")]
        counts = {line.split('engine="')[1][0]: float(line.split()[-1]) for line in lines}
        assert counts["1"] >= 4
        assert sum(counts.values()) == 8
        pids = [one._process.pid for one in engine._client.clients]
        os.kill(pids[1], signal.SIGKILL)
        wait_until(lambda: engine.errored)
        with pytest.raises(EngineDeadError, match="engine 1: its process has ended: -9"):
            engine.output_handler.check_health()
    server._thread.join(20)
    assert not server._thread.is_alive()
    wait_until(lambda: not any(map(is_alive, pids)))


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"LLM\(data_parallel_size=2\) is not supported"):
        LLM(data_parallel_size=2)
    for size in (0, "2", 2.0):
        with pytest.raises(ValueError, match="data_parallel_size must be an integer from 1"):
            LLM(data_parallel_size=size)
    with pytest.raises(ValueError, match="trace must be False with several engines"):
        two_engines(trace=True)
    with pytest.raises(FileNotFoundError):
        two_engines(model=str(tmp_path / "none"))


@pytest.mark.parametrize("visible", [None, "4,5,6,7"])
def test_each_has_its_share_of_gpus(monkeypatch, visible):
    from minivllm.engine import process_client

    pretend_gpu(monkeypatch, number=4)
    monkeypatch.delenv("MINIVLLM_DEVICE", raising=False)
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    name, args = "CUDA_VISIBLE_DEVICES", AsyncEngineArgs(data_parallel_size=2)
    args.tensor_parallel_size = 2
    for rank, mine in enumerate(("0,1", "2,3") if visible is None else ("4,5", "6,7")):
        monkeypatch.delenv(name, raising=False)
        if visible is not None:
            monkeypatch.setenv(name, visible)
        process_client._take_share(args, rank)
        assert os.environ[name] == mine
    args.data_parallel_size = 3
    with pytest.raises(ValueError, match="data_parallel_size must be at most 2 with 4 GPUs"):
        process_client._take_share(args, 0)
