"""``minivllm bench serve``: when it asks, what it asks, and its arithmetic."""

import json
import math
import statistics

import pytest
from serving_results import ANSWERS, FAILED, VLLM_DETAILS, VLLM_KEYS
from transformers import AutoTokenizer

from minivllm.embedded import embedded_model_path
from minivllm.lab.bench.serving.args import parse_args
from minivllm.lab.bench.serving.arrivals import arrival_times, ramp_up
from minivllm.lab.bench.serving.datasets import random_requests, sharegpt_requests, table_requests
from minivllm.lab.bench.serving.metrics import (
    RequestFuncOutput,
    calculate_metrics,
    is_good,
    peak_concurrency,
)
from minivllm.lab.bench.serving.report import details, make_result, result_table, save_result

# -- arrivals --------------------------------------------------------------------------------------


def gaps(times):
    return [b - a for a, b in zip([0.0, *times], times, strict=False)]


def test_equal_seeds_give_equal_arrivals():
    times = arrival_times([10] * 50, seed=3)
    assert times == arrival_times([10] * 50, seed=3)
    assert times != arrival_times([10] * 50, seed=4)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(5.0), "50 requests at 10 a second"


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (4.0, 0.5), (0.25, 2.0)])
def test_how_much_gaps_vary(burstiness, variation):
    """A gamma distribution's deviation is its mean over the root of its shape."""
    found = gaps(arrival_times([100] * 40_000, burstiness, seed=1))
    assert statistics.fmean(found) == pytest.approx(0.01)
    assert statistics.pstdev(found) / 0.01 == pytest.approx(variation, rel=0.05)


def test_a_poisson_process_forgets():
    """A gap that has lasted t lasts t more as often as a new gap lasts t."""
    found = gaps(arrival_times([1.0] * 40_000, seed=2))
    longer = [g for g in found if g > 1]
    assert len(longer) / len(found) == pytest.approx(math.exp(-1), abs=0.02)
    assert sum(g > 2 for g in longer) / len(longer) == pytest.approx(math.exp(-1), abs=0.02)


def test_all_at_once_and_as_a_metronome():
    assert arrival_times([math.inf] * 3) == [0, 0, 0]
    assert arrival_times([2.0] * 4, math.inf) == pytest.approx([0.5, 1.0, 1.5, 2.0])


def test_a_rate_that_grows():
    assert ramp_up(5, "linear", 2, 10) == pytest.approx([2, 4, 6, 8, 10])
    assert ramp_up(3, "exponential", 1, 100) == pytest.approx([1, 10, 100])
    assert ramp_up(1, "linear", 2, 10) == [2]
    assert arrival_times([1, 2, 4], math.inf) == pytest.approx([1, 1.5, 1.75])
    found = gaps(arrival_times(ramp_up(40_000, "linear", 10, 30), seed=1))
    for share, rate in ((0, 10), (0.5, 20), (0.95, 29)):
        here = found[int(share * 40_000) :][:2000]
        assert 1 / statistics.fmean(here) == pytest.approx(rate, rel=0.1)
    assert sum(found) == pytest.approx(2000 * math.log(3), rel=0.001), "the integral of 1 / rate"


# -- arithmetic ------------------------------------------------------------------------------------


def test_figures_by_hand():
    found = calculate_metrics([*ANSWERS, FAILED], 2.0, percentiles=(50, 90, 99.5))
    assert (found["completed"], found["failed"]) == (3, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (60, 8)
    assert found["request_throughput"] == 1.5
    assert found["output_throughput"] == 4.0
    assert found["total_token_throughput"] == 34.0
    assert found["mean_ttft_ms"] == pytest.approx(300)
    assert found["std_ttft_ms"] == pytest.approx(1000 * math.sqrt(0.02 / 3))
    assert found["p90_ttft_ms"] == pytest.approx(300 + 0.8 * 100)  # place 1.8 of 0, 1, 2
    # (0.6 - 0.2) / 4 and (0.5 - 0.4) / 1; an answer of one token has none
    assert found["mean_tpot_ms"] == pytest.approx(100)
    # gaps 100, 100 and 300: three events are not five tokens
    assert found["median_itl_ms"] == found["p50_itl_ms"] == pytest.approx(100)
    assert found["mean_itl_ms"] == pytest.approx(500 / 3)
    assert found["p99.5_itl_ms"] == pytest.approx(100 + 0.99 * 200)
    assert found["mean_e2el_ms"] == pytest.approx(1400 / 3)
    assert found["max_output_tokens_per_s"] == pytest.approx(5 + 1)  # two come in the next second
    assert found["max_concurrent_requests"] == 2


def test_a_request_that_follows_another_is_not_beside_it():
    one, two = RequestFuncOutput(0.0, True, latency=1.0), RequestFuncOutput(1.0, True, latency=1.0)
    assert peak_concurrency([one, two]) == 1
    two.start_time = 0.99
    assert peak_concurrency([one, two]) == 2


def test_goodput_counts_requests_within_every_limit():
    limits = {"ttft": 350.0, "tpot": 150.0}
    assert [is_good(answer, limits) for answer in ANSWERS] == [True, False, True]
    assert calculate_metrics(ANSWERS, 2.0, goodput=limits)["request_goodput"] == 1.0
    assert calculate_metrics(ANSWERS, 2.0, goodput={"e2el": 300})["request_goodput"] == 0.5


def test_a_run_that_failed_has_figures_too():
    found = calculate_metrics([FAILED], 1.0)
    assert (found["completed"], found["failed"], found["mean_ttft_ms"]) == (0, 1, 0)
    assert found["max_output_tokens_per_s"] == found["max_concurrent_requests"] == 0


def result_of(*words):
    args = parse_args(list(words))
    figures = calculate_metrics(
        ANSWERS, 2.0, args.percentile_metrics, args.metric_percentiles, args.goodput
    )
    return args, make_result(args, "some/model", "there", figures, 0.5)


def test_the_saved_keys_are_vllms():
    _, result = result_of("--metadata", "run=one", "--percentile-metrics", "ttft,itl")
    of_latencies = {f"{kind}_{name}_ms" for name in ("ttft", "itl")
                    for kind in ("mean", "median", "std", "p99")}  # fmt: skip
    assert set(result) == {*VLLM_KEYS, *of_latencies, "run", "client_cpu_s"}
    assert result["request_rate"] == "inf"
    assert result["request_goodput"] is None
    assert list(details(ANSWERS)) == VLLM_DETAILS
    assert json.loads(json.dumps(result)) == result


def test_the_table_is_vllms():
    words = "--request-rate 4 --max-concurrency 8 --goodput ttft:350 --metric-percentiles 90,99"
    args, result = result_of(*words.split(), "--percentile-metrics", "tpot")
    assert (
        "\n".join(result_table(result, args.metric_percentiles))
        == """\
============ Serving Benchmark Result ============
Successful requests:                     3
Failed requests:                         0
Maximum request concurrency:             8
Request rate configured (RPS):           4.00
Benchmark duration (s):                  2.00
Total input tokens:                      60
Total generated tokens:                  8
Request throughput (req/s):              1.50
Request goodput (req/s):                 1.00
Output token throughput (tok/s):         4.00
Peak output token throughput (tok/s):    6.00
Peak concurrent requests:                2
Total token throughput (tok/s):          34.00
Client CPU time (s):                     0.50
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          100.00
Median TPOT (ms):                        100.00
P90 TPOT (ms):                           100.00
P99 TPOT (ms):                           100.00
=================================================="""
    )


def test_results_are_a_line_each_in_one_file(tmp_path):
    words = ["--result-dir", str(tmp_path), "--result-filename", "all.jsonl"]
    for label in "abc":
        args, result = result_of(*words, "--label", label, "--append-result")
        save_result(args, result)
    lines = (tmp_path / "all.jsonl").read_text().split("\n")
    assert [json.loads(line)["label"] for line in lines] == ["a", "b", "c"]
    args, result = result_of(*words, "--save-result")
    assert json.loads(save_result(args, result).read_text())["label"] is None


def test_a_file_says_how_the_rate_grew(tmp_path):
    words = "--ramp-up-strategy linear --ramp-up-start-rps 2 --ramp-up-end-rps 8 --save-result"
    args, result = result_of(*words.split(), "--result-dir", str(tmp_path))
    assert (result["ramp_up_strategy"], result["request_rate"]) == ("linear", "inf")
    assert (result["ramp_up_start_rps"], result["ramp_up_end_rps"]) == (2, 8)
    assert save_result(args, result).name.startswith("openai-ramp-up-linear-2qps-8qps-model-")


# -- requests --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(embedded_model_path())


def test_random_texts_have_the_tokens_asked_for(tokenizer):
    asked = random_requests(tokenizer, 20, 40, 7, seed=5)
    assert asked == random_requests(tokenizer, 20, 40, 7, seed=5)
    assert asked != random_requests(tokenizer, 20, 40, 7, seed=6)
    lengths = [len(tokenizer.encode(request.prompt)) for request in asked]
    assert lengths == [40] * 20
    assert {request.output_len for request in asked} == {7}
    spread = random_requests(tokenizer, 50, 40, 8, 0.5, seed=5)
    lengths = [len(tokenizer.encode(request.prompt)) for request in spread]
    assert min(lengths) >= 20
    assert max(lengths) <= 60
    assert len(set(lengths)) > 10
    assert {request.output_len for request in spread} == set(range(4, 13))


def test_a_prefix_is_shared(tokenizer):
    asked = random_requests(tokenizer, 3, 10, 4, prefix_len=30, seed=1)
    ids = [tokenizer.encode(request.prompt)[:28] for request in asked]
    assert ids[0] == ids[1] == ids[2]
    assert len({request.prompt for request in asked}) == 3


def test_conversations_that_fit(tokenizer, tmp_path):
    def talk(*values):
        return {"conversations": [{"from": "x", "value": value} for value in values]}

    file = tmp_path / "talks.json"
    good = [talk(f"How old is Ada Hart, number {i}?", "She is 36 years old.") for i in range(3)]
    bad = [talk("only a question"), talk("Hi", "She is 36."), talk("How old is she?", "36"),
           talk("word " * 2000, "She is 36 years old.")]  # fmt: skip
    file.write_text(json.dumps([*bad, *good]), encoding="utf-8")
    asked = sharegpt_requests(tokenizer, 3, file, seed=1)
    assert sorted(r.prompt for r in asked) == [t["conversations"][0]["value"] for t in good]
    answer = len(tokenizer.encode("She is 36 years old."))
    assert {request.output_len for request in asked} == {answer}
    assert {r.output_len for r in sharegpt_requests(tokenizer, 9, file, output_len=5)} == {5}
    assert len(sharegpt_requests(tokenizer, 9, file)) == 9
    assert len(sharegpt_requests(tokenizer, 9, file, oversample=False)) == 3
    in_order = sharegpt_requests(tokenizer, 3, file, seed=1, shuffle=False)
    assert [r.prompt for r in in_order] == [t["conversations"][0]["value"] for t in good]
    with pytest.raises(ValueError, match="a question and answer of 4 to 10 tokens"):
        sharegpt_requests(tokenizer, 3, file, max_model_len=10)
    file.write_text('[{"text": "no conversation"}]')
    with pytest.raises(ValueError, match="dataset_path must be a list of"):
        sharegpt_requests(tokenizer, 3, file)


def test_questions_about_tables_share_them():
    asked = table_requests(20, num_rows=5, num_questions=8, seed=2)
    assert asked == table_requests(20, num_rows=5, num_questions=8, seed=2)
    tables = [request.messages[0]["content"] for request in asked]
    assert sorted(tables.count(table) for table in set(tables)) == [4, 8, 8]
    assert all(table.count("\n| ") == 6 for table in tables), "a heading and five people"
    assert asked[0].prompt.startswith(tables[0])
