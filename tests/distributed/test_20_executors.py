"""Executors: calls to ranks in processes, errors that all raise or not, deaths, and the end."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers import is_alive, make_llm, wait_until

from minivllm import AsyncEngineArgs, AsyncLLM, SamplingParams
from minivllm.config.parallel import ParallelConfig
from minivllm.executor import distributed
from minivllm.executor.exceptions import EngineDeadError
from minivllm.executor.multiproc import MultiprocExecutor

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": list(range(3, 3 + n))} for n in (5, 12, 20)]
LIMITS = {"skip_tokenizer_init": True, "max_model_len": 64, "num_gpu_blocks_override": 40}
BACKENDS = pytest.mark.parametrize("backend", ["mp", "together"])


def tokens(llm):
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.llm_engine.check_integrity()
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture
def make(tiny_qwen2):
    """Make engines of two ranks, which are ended behind the test."""
    made = []

    def engine(**settings):
        llm = make_llm(tiny_qwen2, **{"tensor_parallel_size": 2, **settings})
        made.append(llm)
        return llm

    yield engine
    for llm in made:
        llm.shutdown()


def executor_of(llm):
    return llm.llm_engine.engine_core.executor


@pytest.mark.parametrize("size", [{"tensor_parallel_size": 2}, {"tensor_parallel_size": 4},
                                  {"pipeline_parallel_size": 2}], ids=str)  # fmt: skip
def test_processes_give_one_process_tokens(tiny_qwen2, make, size):
    one = tokens(make_llm(tiny_qwen2))
    llm = make(**{"tensor_parallel_size": 1, **size})
    assert tokens(llm) == one
    llm.shutdown()
    llm.shutdown()
    assert not [p for p in executor_of(llm)._processes if p.is_alive()]


def test_ranks_tell_the_next_ones_which_products_are_fast_here(make, monkeypatch):
    monkeypatch.setattr(distributed, "_timings", {})
    loaded = []
    call = MultiprocExecutor.collective_rpc

    def noted(self, method, timeout=None, args=(), **kwargs):
        loaded.extend(dict(arg) for arg in args if method == "load_model")
        return call(self, method, timeout, args, **kwargs)

    monkeypatch.setattr(MultiprocExecutor, "collective_rpc", noted)
    make()
    make()
    first, second = loaded
    assert first == {}
    assert second == distributed._timings != {}


def test_ranks_ignore_ctrl_c_and_are_named(make):
    llm = make()
    executor = executor_of(llm)
    for process in executor._processes:
        os.kill(process.pid, signal.SIGINT)
    assert tokens(llm)
    assert {p.name for p in executor._processes} == {"Worker_PP0_TP0", "Worker_PP0_TP1"}


@BACKENDS
def test_an_error_that_all_ranks_raise_is_raised_here_and_they_go_on(make, backend):
    llm = make(distributed_executor_backend=backend)
    executor = executor_of(llm)
    with pytest.raises(AttributeError, match="no_such_method"):
        executor.collective_rpc("no_such_method")
    executor.check_health()
    assert tokens(llm)


@BACKENDS
def test_a_future_is_the_result_of_its_own_call(make, backend):
    executor = executor_of(make(distributed_executor_backend=backend))
    early = executor.collective_rpc("determine_available_memory", non_block=True)
    (late, _) = executor.collective_rpc("determine_available_memory")
    assert early.result(5)[0] == late
    if backend == "mp":
        with pytest.raises(TimeoutError):
            executor.collective_rpc("determine_available_memory", timeout=0)
        assert executor.collective_rpc("determine_available_memory")[0] == late


def test_what_cannot_be_sent_to_a_rank_is_one_sentence(make):
    llm = make()
    params = SamplingParams(max_tokens=2, logits_processors=[lambda ids, logits: logits])
    with pytest.raises(ValueError, match="cannot be sent to a rank"):
        llm.generate(PROMPTS[:1], params, use_tqdm=False)
    llm.llm_engine.abort_request(list(llm.llm_engine.scheduler.requests))
    assert tokens(llm)


def test_a_backend_that_is_not_installed_is_one_sentence(tiny_qwen2, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "minivllm.executor.ray", raising=False)
    with pytest.raises(ValueError, match=r'pip install "minivllm\[ray\]"'):
        make_llm(tiny_qwen2, tensor_parallel_size=2, distributed_executor_backend="ray")


def test_more_ranks_than_gpus_are_refused_unless_ray_looks_for_them():
    with pytest.raises(ValueError, match=r"World size \(4\) is larger .* GPUs \(1\).*'ray'"):
        ParallelConfig(tensor_parallel_size=4).check_devices(1)
    ParallelConfig(4, distributed_executor_backend="ray").check_devices(1)


@pytest.fixture
def own(monkeypatch):
    """A function of the main module: sent by its name, which other processes do not know."""

    def own(ids, logits):
        return logits

    own.__module__, own.__qualname__ = "__main__", "own"
    monkeypatch.setattr("__main__.own", own, raising=False)
    return own


def test_what_a_rank_cannot_read_is_an_error_of_its_call(make, own):
    llm = make()
    with pytest.raises(AttributeError, match="own"):
        executor_of(llm).collective_rpc("check_params", args=(own,))
    params = SamplingParams(max_tokens=2, logits_processors=[own])
    with pytest.raises(ValueError, match="prompt 0 of 1: ranks cannot read sampling_params"):
        llm.generate(PROMPTS[:1], params, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert len(tokens(llm)) == len(PROMPTS)


FORMS = {
    "ranks under a thread": {"tensor_parallel_size": 2},
    "ranks under a process": {"tensor_parallel_size": 2, "engine_process": True},
    "a process": {"engine_process": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_function_that_cannot_be_read_is_refused_and_others_go_on(tiny_qwen2, own, form):
    async def run():
        settings = LIMITS | FORMS[form] | {"disable_log_stats": True}
        engine = AsyncLLM(AsyncEngineArgs(str(tiny_qwen2), **settings))

        async def answer(name, **given):
            params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, **given)
            outputs = [one async for one in engine.generate(PROMPTS[0], params, name)]
            return outputs[-1].outputs[0].token_ids

        other = asyncio.ensure_future(answer("other"))
        for number, function in enumerate((own, lambda ids, logits: logits)):
            with pytest.raises(ValueError, match=r"cannot (read|be sent)"):
                await answer(str(number), logits_processors=[function])
        assert len(await other) == 40
        assert await engine.reset_prefix_cache()
        engine.shutdown()

    asyncio.run(run())


@pytest.mark.parametrize("backend", ["uni", "mp", "together"])
def test_an_engine_that_was_shut_down_says_so(make, backend):
    size = 1 if backend == "uni" else 2
    llm = make(distributed_executor_backend=backend, tensor_parallel_size=size)
    llm.shutdown()
    with pytest.raises(EngineDeadError, match="it was shut down"):
        tokens(llm)


def test_a_rank_that_cannot_begin_says_why(make, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-network")
    with pytest.raises((RuntimeError, ValueError), match="no-such-network"):
        make()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert len(tokens(make())) == len(PROMPTS)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_one_sentence_and_the_next_engine_works(make, rank):
    llm = make()
    executor = executor_of(llm)
    reasons = []
    executor.register_failure_callback(reasons.append)
    pids = [process.pid for process in executor._processes]
    begin = time.monotonic()
    os.kill(pids[rank], signal.SIGKILL)
    wait_until(lambda: reasons)
    assert time.monotonic() - begin < 5
    assert f"Worker_PP0_TP{rank} (pid {pids[rank]}) died unexpectedly" in str(reasons[0])
    with pytest.raises(EngineDeadError, match="died unexpectedly"):
        tokens(llm)
    wait_until(lambda: not any(map(is_alive, pids)))
    assert tokens(make())


def test_a_rank_that_dies_amid_a_collective_ends_the_step(make):
    llm = make()
    executor = executor_of(llm)
    pid = executor._processes[1].pid
    os.kill(pid, signal.SIGSTOP)  # rank 0 will wait for it
    for number, prompt in enumerate(PROMPTS):
        llm.llm_engine.add_request(str(number), prompt, GREEDY)
    threading.Timer(0.3, lambda: os.kill(pid, signal.SIGKILL)).start()
    begin = time.monotonic()
    with pytest.raises(EngineDeadError, match="Worker_PP0_TP1"):
        llm.llm_engine.step()
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_an_idle_server_engine_notices_a_death(tiny_qwen2, process):
    before = ranks()

    async def run():
        args = AsyncEngineArgs(str(tiny_qwen2), tensor_parallel_size=2, engine_process=process,
                               disable_log_stats=True, **LIMITS)  # fmt: skip
        engine = AsyncLLM(args)
        async for _ in engine.generate(PROMPTS[0], GREEDY, "a"):
            pass
        ours = ranks() - before
        assert len(ours) >= 2
        os.kill(max(ours), signal.SIGKILL)
        deadline = time.monotonic() + 5
        while not engine.errored and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        with pytest.raises(EngineDeadError, match="died unexpectedly"):
            async for _ in engine.generate(PROMPTS[0], GREEDY, "b"):
                pass
        engine.shutdown()
        return ours

    ours = asyncio.run(run())
    wait_until(lambda: len([pid for pid in ours if is_alive(pid)]) <= 1)  # the forkserver stays


def ranks():
    """Processes of this user that a forkserver has made, and the forkservers themselves."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"multiprocessing.forkserver" in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found
