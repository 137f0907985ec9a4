"""Times of a request's events, the engine's log, and the environment's table."""

import logging
import os
import re
import subprocess
import sys

import pytest

from minivllm import LLM, SamplingParams, envs
from minivllm.metrics import loggers

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture
def llm(tiny_qwen2):
    return LLM(
        str(tiny_qwen2), skip_tokenizer_init=True, num_gpu_blocks_override=41, block_size=4,
        max_num_seqs=2, max_model_len=64,
    )  # fmt: skip


def test_times_of_a_request_are_in_order(llm):
    outputs = llm.generate([[i, 1, 2] for i in range(4)], PARAMS, use_tqdm=False)
    for output in outputs:
        m = output.metrics
        assert (
            m.arrival_time <= m.first_scheduled_time <= m.first_token_time
            <= m.last_token_time <= m.finished_time
        )  # fmt: skip
        assert m.time_in_queue == m.first_scheduled_time - m.arrival_time
    begun = [output.metrics.first_scheduled_time for output in outputs]
    assert max(begun[:2]) < min(o.metrics.finished_time for o in outputs) <= min(begun[2:])


def test_the_log_says_what_the_engine_does(llm, monkeypatch, capsys):
    clock = iter(range(100))
    monkeypatch.setattr(loggers.time, "monotonic", lambda: float(next(clock)))
    engine = llm.llm_engine
    engine.stat_logger = loggers.LoggingStatLogger(engine.metrics)
    for i in range(4):
        engine.add_request(str(i), {"prompt_token_ids": [5] * 9}, PARAMS, arrival_time=0.0)
    while engine.has_unfinished_requests():
        engine.step()
        if engine.metrics.num_generation_tokens == 4:
            engine.stat_logger.log()
    logged = [line for line in capsys.readouterr().out.splitlines() if "throughput" in line]
    number = r"(\d+\.\d)"
    line = re.compile(
        rf"Avg prompt throughput: {number} tokens/s, Avg generation throughput: {number} tokens/s, "
        rf"Running: (\d+) reqs, Waiting: (\d+) reqs, GPU KV cache usage: {number}%, "
        rf"Prefix cache hit rate: {number}%"
    )
    first = line.search(logged[0])
    assert (first[3], first[4]) == ("2", "2")
    assert float(first[1]) > 0
    # two of 18 blocks' worth of tokens came from the cache: the second prompt's first two blocks
    assert (first[5], first[6]) == ("10.0", f"{100 * 8 / 18:.1f}")
    assert (engine.metrics.num_prompt_tokens, engine.metrics.num_generation_tokens) == (36, 16)


def test_cached_tokens_of_a_prompt_are_not_tokens_of_a_step(llm):
    for _ in range(2):  # nine computed, then one; four generated each time
        llm.generate([[5] * 9], PARAMS, use_tqdm=False)
    values = {metric.name: metric for metric in llm.get_metrics()}
    assert values["vllm:prompt_tokens"].value == 18
    assert values["vllm:prompt_tokens_cached"].value == 8
    assert values["vllm:iteration_tokens_total"].sum == 9 + 1 + 2 * 4
    assert values["vllm:request_prefill_kv_computed_tokens"].sum == 9 + 1
    sources = {
        metric.labels["source"]: metric.value
        for metric in llm.get_metrics()
        if metric.name == "vllm:prompt_tokens_by_source"
    }
    assert sources == {"local_compute": 10, "local_cache_hit": 8, "external_kv_transfer": 0}


def test_what_is_swapped_is_in_the_log(tiny_qwen2, capsys):
    llm = LLM(
        str(tiny_qwen2), skip_tokenizer_init=True, num_gpu_blocks_override=13, block_size=4,
        max_model_len=48, max_num_seqs=3, preemption_mode="swap", enable_prefix_caching=False,
        disable_log_stats=False,
    )  # fmt: skip
    engine = llm.llm_engine
    for i in range(3):
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        engine.add_request(str(i), {"prompt_token_ids": [i] * 12}, params)
    while not engine.scheduler.swapped:
        engine.step()
    engine.stat_logger.log()
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"Swapped: 1 reqs, CPU KV cache usage: [1-9]\d*\.\d%$", line)


def test_statistics_are_logged_only_when_asked_for(tiny_qwen2, monkeypatch, capsys):
    monkeypatch.setenv("MINIVLLM_LOG_STATS_INTERVAL", "1e-9")
    for disabled in (True, False):
        llm = LLM(
            str(tiny_qwen2), skip_tokenizer_init=True, num_gpu_blocks_override=41,
            disable_log_stats=disabled,
        )  # fmt: skip
        llm.generate([1, 2, 3], PARAMS, use_tqdm=False)
        assert ("Avg prompt throughput" in capsys.readouterr().out) == (not disabled)


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("MINIVLLM_LOGGING_LEVEL", "LOUD", envs.logging_level),
        ("MINIVLLM_LOG_STATS_INTERVAL", "0", envs.log_stats_interval),
        ("MINIVLLM_LOG_STATS_INTERVAL", "often", envs.log_stats_interval),
        ("MINIVLLM_CPU_KVCACHE_SPACE", "-1", envs.cpu_kvcache_bytes),
    ],
)
def test_a_bad_value_in_the_environment_is_named(monkeypatch, name, value, read):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{name} must be .* got '{value}'"):
        read()


@pytest.mark.parametrize(
    "level",
    ["CRITICAL", "critical", "FATAL", "Error", "WARN", "WARNING", "INFO", "debug", "NOTSET"],
)
def test_every_level_of_pythons_and_vllms_is_taken(monkeypatch, level):
    monkeypatch.setenv("MINIVLLM_LOGGING_LEVEL", level)
    logging.getLogger("a test's own").setLevel(envs.logging_level())
    assert envs.logging_level() == level.upper()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("critical", "model '/no/such' is not a directory"),
        ("LOUD", "MINIVLLM_LOGGING_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL, got "),
    ],
)
def test_a_command_takes_a_level_or_says_in_a_sentence_why_not(level, message):
    command = [sys.executable, "-m", "minivllm", "generate", "x", "--model", "/no/such"]
    env = os.environ | {"MINIVLLM_LOGGING_LEVEL": level}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: {message}")
    assert done.stderr.count("\n") == 1
