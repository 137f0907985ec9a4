"""The executor on two nodes of Ray: tokens, sentences, deaths. ``pytest -m ray``; both are here."""

import asyncio
import os
import signal
import subprocess
import threading
import time

import pytest
from helpers import is_alive, wait_until

from minivllm import LLM, AsyncEngineArgs, AsyncLLM, SamplingParams
from minivllm.executor.exceptions import EngineDeadError

pytestmark = [pytest.mark.ray, pytest.mark.slow]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = ["The capital of France is", "Once upon a time", "2 + 2 ="]
LIMITS = {"distributed_executor_backend": "ray", "max_model_len": 64, "num_gpu_blocks_override": 40}
TWO = {"tensor_parallel_size": 2}
NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 2**27}


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with room for a rank each; the first one has the engine."""
    pytest.importorskip("ray", reason='tests marked ray need Ray: pip install -e ".[ray]"')
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    cluster.second = cluster.add_node(**NODE)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def make(cluster, monkeypatch):
    """Make engines there, which are ended behind the test."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    made = []

    def engine(**settings):
        made.append(LLM(**{**LIMITS, **TWO, **settings}))
        return made[-1]

    yield engine
    for llm in made:
        llm.shutdown()


@pytest.fixture(scope="module")
def one():
    """Tokens of one process."""
    return tokens(LLM(**{**LIMITS, "distributed_executor_backend": "uni"}))


def tokens(llm):
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.llm_engine.check_integrity()
    return [output.outputs[0].token_ids for output in outputs]


def executor_of(llm):
    return llm.llm_engine.engine_core.executor


def pids(llm):
    return [pid for _, pid, _ in executor_of(llm)._found]


@pytest.mark.parametrize("size", [TWO, {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}],
                         ids=str)  # fmt: skip
def test_two_nodes_give_one_process_tokens(cluster, make, one, size):
    import ray

    from minivllm.executor.ray_utils import by_node

    begin = time.monotonic()
    llm = make(**size)
    assert tokens(llm) == one
    assert time.monotonic() - begin < 60
    (group,) = executor_of(llm)._places
    nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
    here = ray.get_runtime_context().get_node_id()
    assert [nodes[bundle] for bundle in by_node(group)] == [here, cluster.second.node_id]
    ours = pids(llm)
    llm.shutdown()
    llm.shutdown()
    wait_until(lambda: not any(map(is_alive, ours)))
    assert not ray.is_initialized()


def test_ranks_answer_errors_and_refuse_what_cannot_be_sent(make, one, monkeypatch):
    llm = make()
    executor = executor_of(llm)
    with pytest.raises(AttributeError, match="no_such_method"):
        executor.collective_rpc("no_such_method")
    params = SamplingParams(max_tokens=2, logits_processors=[lambda ids, logits: logits])
    with pytest.raises(ValueError, match="cannot be sent to a rank"):
        llm.generate(PROMPTS[:1], params, use_tqdm=False)
    llm.llm_engine.abort_request(list(llm.llm_engine.scheduler.requests))
    early = executor.collective_rpc("determine_available_memory", non_block=True)
    late = executor.collective_rpc("determine_available_memory")
    assert early.result(5) == late
    with pytest.raises(TimeoutError, match="from Worker_PP0_TP0, Worker_PP0_TP1"):
        executor.collective_rpc("determine_available_memory", timeout=0)
    for pid in pids(llm):
        os.kill(pid, signal.SIGINT)  # a rank ignores Ctrl-C
    with pytest.raises(ValueError, match=r"required CPUs \(4\) exceeds .* available CPUs \(2\)"):
        make(tensor_parallel_size=4)
    monkeypatch.setattr("minivllm.executor.ray_utils._PLACING", 0.5)
    with pytest.raises(ValueError, match="no places for 2 ranks within 1 seconds"):
        make()
    assert tokens(llm) == one


def test_a_killed_node_is_one_sentence(cluster, make, one, monkeypatch):
    from minivllm.executor.ray import RayExecutor

    def kill():
        cluster.remove_node(cluster.second, allow_graceful=False)

    def fails(call):
        begin = time.monotonic()
        with pytest.raises(EngineDeadError, match=r"Worker_PP0_TP1 .* died unexpectedly"):
            call()
        assert time.monotonic() - begin < 30
        cluster.second = cluster.add_node(**NODE)

    def run():
        while True:
            tokens(llm)

    def load_without_node(executor):
        kill()
        wait_until(lambda: not is_alive(executor._found[1][1]))
        usual(executor)

    usual = RayExecutor._load_model
    with monkeypatch.context() as patch:
        patch.setattr(RayExecutor, "_load_model", load_without_node)
        fails(make)
    llm = make()
    assert tokens(llm) == one
    threading.Timer(0.3, kill).start()
    fails(run)  # amid a step, most likely in a collective


def test_a_server_engine_notices_a_death_and_the_next_engine_works(make, one):
    async def run():
        engine = AsyncLLM(AsyncEngineArgs(**LIMITS, **TWO, disable_log_stats=True))
        async for output in engine.generate(PROMPTS[0], GREEDY, "a"):
            last = output.outputs[0].token_ids
        assert last == one[0]
        (_, first, _), (_, second, _) = engine.engine_core.executor._found
        os.kill(second, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while not engine.errored and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        expected = rf"Worker_PP0_TP1 \(pid {second} at [\d.]+\) died unexpectedly"
        with pytest.raises(EngineDeadError, match=expected):
            async for _ in engine.generate(PROMPTS[0], GREEDY, "b"):
                pass
        wait_until(lambda: not is_alive(first))
        assert tokens(make()) == one
        engine.shutdown()

    asyncio.run(run())


def test_an_address_without_a_cluster_is_one_sentence(make, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    begin = time.monotonic()
    with pytest.raises(ValueError, match=r"no cluster of Ray answers at RAY_ADDRESS=127.0.0.1:1\."):
        make()
    assert time.monotonic() - begin < 10


def test_without_a_cluster_one_is_started_and_ended(cluster, make, one, monkeypatch):
    import ray

    monkeypatch.setenv("RAY_ADDRESS", "local")
    before = raylets()
    llm = make()
    assert tokens(llm) == one
    assert len(raylets() - before) == 1
    llm.shutdown()
    wait_until(lambda: raylets() == before)
    assert not ray.is_initialized()


def raylets():
    """Nodes of Ray on this machine."""
    return set(subprocess.run(["pgrep", "raylet"], capture_output=True, text=True).stdout.split())
