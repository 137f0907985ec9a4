"""Metrics and log line of a KV connector, under vLLM's names."""

from helpers import make_llm
from remote_kv_engine import Engine, FailingConnector, fetching

from minivllm import SamplingParams
from minivllm.lab.sim.make import make_request
from minivllm.metrics.families import EngineMetrics
from minivllm.metrics.loggers import LoggingStatLogger
from minivllm.metrics.stats import IterationStats
from minivllm.request import RequestStatus
from minivllm.scheduling.stats import make_stats


def stages(engine):
    return tuple(make_stats(engine.scheduler).num_kv_fetch_reqs_by_stage.values())


def test_requests_are_counted_by_the_stage_of_their_transfer():
    engine = Engine(max_num_seqs=1)
    engine.scheduler.add_request(make_request("first", [1] * 6, 3))
    engine.scheduler.add_request(fetching("a", delay=1))
    assert stages(engine) == (1, 0, 0)
    seen = []
    while engine.queue.has_work:
        engine.step()
        stats = make_stats(engine.scheduler)
        seen.append(stages(engine))
        assert stats.num_running_reqs == len(engine.scheduler.running)
        assert stats.num_waiting_reqs + stats.num_running_reqs == len(engine.scheduler.requests)
    assert (0, 1, 0) in seen or (0, 0, 1) in seen
    assert seen[-1] == (0, 0, 0)


def test_queries_and_hits_are_those_of_requests_that_are_admitted():
    engine = Engine(max_num_seqs=1)
    engine.scheduler.add_request(make_request("first", [1] * 6, 3))
    for _ in range(2):
        engine.step()
    engine.scheduler.add_request(make_request("gone", [2] * 6, 3))
    engine.step()
    engine.scheduler.finish_requests(["gone"], RequestStatus.FINISHED_ABORTED)
    engine.scheduler.add_request(fetching("a", num_tokens=12))
    engine.run()
    stats = make_stats(engine.scheduler)
    assert stats.external_prefix_cache_queries == 6 + 12
    assert stats.external_prefix_cache_hits == 12


def test_what_has_failed_is_computed_here():
    engine = Engine(FailingConnector({"a"}), recomputes=True)
    request = fetching("a")
    engine.scheduler.add_request(request)
    engine.run()
    assert request.num_external_computed_tokens == request.num_cached_tokens == 0


def metrics_line(engine, capsys):
    metrics = EngineMetrics(64, {"enable_prefix_caching": True}, fetches=True)
    metrics.record(make_stats(engine.scheduler), IterationStats())
    LoggingStatLogger(metrics).log()
    return capsys.readouterr().out.splitlines()[-1]


def test_the_log_line_is_vllms(capsys):
    engine = Engine(num_blocks=9)
    engine.scheduler.add_request(fetching("a", num_tokens=12, delay=9))
    engine.scheduler.add_request(fetching("b", num_tokens=30, delay=9))
    engine.step()
    line = metrics_line(engine, capsys)
    assert (
        "Running: 0 reqs, Waiting: 1 reqs, Deferred: 1 reqs, KV fetch: 1 waiting to start, "
        "1 in progress, 0 completed waiting, GPU KV cache usage: "
    ) in line
    assert line.endswith("External prefix cache hit rate: 100.0%")
    plain = Engine()
    plain.scheduler.add_request(make_request("a", [1] * 6, 3))
    line = metrics_line(plain, capsys)
    assert "Deferred" not in line
    assert "External" not in line


def values(llm, name):
    return {
        metric.labels.get("source", metric.labels.get("stage")): metric.value
        for metric in llm.get_metrics()
        if metric.name == f"vllm:{name}"
    }


def test_a_prompts_tokens_are_told_apart_by_where_they_come_from(tiny_qwen2, tmp_path):
    config = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    limits = {"block_size": 4, "max_model_len": 64, "num_gpu_blocks_override": 60}
    llm = make_llm(tiny_qwen2, kv_transfer_config=config, **limits)

    def ask(prompt, params):
        extra = {"kv_transfer_params": params}
        sampling = SamplingParams(temperature=0, max_tokens=1, extra_args=extra)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        return output.kv_transfer_params

    asked = ask([5] * 13, {"do_remote_decode": True})
    llm.reset_prefix_cache()
    ask([5] * 6, None)  # one block of it is cached again
    ask([5] * 13, asked)
    assert values(llm, "prompt_tokens_by_source") == {
        "local_compute": 13 + 6 + 1, "local_cache_hit": 4, "external_kv_transfer": 8,
    }  # fmt: skip
    assert values(llm, "external_prefix_cache_queries") == {None: 13 + 6 + 9}
    assert values(llm, "external_prefix_cache_hits") == {None: 9}
    found = values(llm, "prompt_tokens_cached_by_source")
    assert found == {"device": 4, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 9}
    stage = values(llm, "num_requests_kv_fetch_by_stage")
    assert stage == {"waiting_to_start": 0, "in_progress": 0, "completed_waiting": 0}
    alone = make_llm(tiny_qwen2, **limits)
    assert values(alone, "num_requests_kv_fetch_by_stage") == {}
    assert values(alone, "external_prefix_cache_hits") == {None: 0}
