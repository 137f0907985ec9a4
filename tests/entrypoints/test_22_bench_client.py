"""``minivllm bench serve``: its client, the words it refuses, and a run against a real server."""

import asyncio
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from http_server import serving
from serving_results import FAILED, VLLM_DETAILS, VLLM_KEYS
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.embedded import embedded_model_path
from minivllm.lab.bench.serving.args import headers, parse_args, request_fields
from minivllm.lab.bench.serving.client import Client
from minivllm.lab.bench.serving.command import bench_serve
from minivllm.lab.bench.serving.datasets import SampleRequest

pytestmark = pytest.mark.slow

# -- the client ------------------------------------------------------------------------------------


class Script(BaseHTTPRequestHandler):
    """Answers every request with the lines of ``server.lines``."""

    def do_POST(self):
        length = int(self.headers["content-length"])
        self.server.asked.append((self.path, json.loads(self.rfile.read(length)), self.headers))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write("\n\n".join(self.server.lines).encode() + b"\n\n")

    def log_message(self, *args):
        pass


@pytest.fixture
def script():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Script)
    server.status, server.asked, server.lines = 200, [], []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(script, *words, status=200, lines=()):
    script.status, script.lines = status, lines
    args = parse_args(["--base-url", script.url, *words])

    async def once():
        fields = request_fields(args, "m")
        async with Client(args.base_url, args.backend, None, headers(args), fields) as client:
            return await client.request(SampleRequest([{"role": "user", "content": "Hi"}], 9), "r1")

    return asyncio.run(once())


USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 6}}'


def test_events_are_not_tokens(script):
    lines = [
        ": a comment that keeps the connection open",
        'data: {"choices": [{"text": "one two"}]}',
        'data:{"choices": [{"text": " three"}]}',
        'data: {"choices": [{"text": "", "finish_reason": "stop"}]}',
        USAGE,
        "data: [DONE]",
    ]
    output = ask(script, "--ignore-eos", "--top_k", "3", "--logprobs", "1", lines=lines)
    assert output.success
    assert output.generated_text == "one two three"
    assert (output.prompt_len, output.output_tokens, len(output.itl)) == (4, 6, 2)
    assert output.ttft + sum(output.itl) == pytest.approx(output.latency)
    path, body, sent = script.asked[0]
    assert path == "/v1/completions"
    assert body == {
        "model": "m", "prompt": "Hi", "max_tokens": 9, "stream": True, "temperature": 0.0,
        "stream_options": {"include_usage": True}, "ignore_eos": True, "top_k": 3, "logprobs": 1,
    }  # fmt: skip
    assert sent["x-request-id"] == "r1"


def test_the_first_token_of_a_chat_is_not_its_role(script, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    lines = [
        'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}',
        'data: {"choices": [{"delta": {"content": "Hello"}, "finish_reason": null}]}',
        'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}',
        USAGE,
        "data: [DONE]",
    ]
    words = ("--backend", "openai-chat", "--logprobs", "2", "--header", "x-one=two")
    output = ask(script, *words, "--extra-body", '{"top_p": 0.5}', lines=lines)
    assert (output.success, output.generated_text, len(output.itl)) == (True, "Hello", 1)
    path, body, sent = script.asked[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert (body["top_logprobs"], body["top_p"], body["max_completion_tokens"]) == (2, 0.5, 9)
    assert (sent["authorization"], sent["x-one"]) == ("Bearer secret", "two")


@pytest.mark.parametrize(
    ("status", "lines", "error"),
    [
        (503, ["busy"], "status 503: busy"),
        (200, ['data: {"error": {"message": "too long"}}'], "in the stream: .*too long"),
        (200, ["data: {"], "an event that is no JSON"),
        (200, ["data: [1]"], "AttributeError: 'list' object"),
        (200, ['data: {"usage": {"completion_tokens": 3}}'], "KeyError: 'prompt_tokens'"),
        (200, ['data: {"choices": [{"text": "a"}]}'], "the stream ended before its answer did"),
        (200, ["data: [DONE]"], "the stream ended before its answer did"),
    ],
)
def test_what_goes_wrong_is_a_failed_request(script, status, lines, error):
    output = ask(script, status=status, lines=lines)
    assert not output.success
    assert re.match(error, output.error)


def test_nobody_listens(script):
    script.server_close()
    assert "ConnectError" in ask(script).error


# -- words that are refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-prompts 0", "num_prompts must be an integer of at least 1, got 0"),
        ("--request-rate 0", "request_rate must be a number above 0, or inf"),
        ("--burstiness nan", "burstiness must be a number above 0"),
        ("--random-range-ratio 1", "random_range_ratio must be a number from 0 to below 1"),
        ("--metric-percentiles 101", "metric_percentiles must be numbers from 0 to 100"),
        ("--percentile-metrics ttft,tpto", "did you mean 'tpot'"),
        ("--goodput itl:5", "--goodput has no argument 'itl'"),
        ("--dataset-name sharegpt", "dataset_path must be a file"),
        ("--dataset-path x.json", "with --dataset-name sharegpt and only then"),
        ("--extra-body 3", "extra_body must be a JSON object"),
        ("--table-rows 500", "table_rows must be an integer from 1 to 100"),
        ("--output-len 0", "random_output_len must be an integer of at least 1, got 0"),
        ("--ramp-up-end-rps 3", "ramp_up_end_rps must be left out without --ramp-up-strategy"),
        ("--ramp-up-strategy linear --ramp-up-end-rps 3", "ramp_up_start_rps must be an integer"),
        (
            "--ramp-up-strategy linear --ramp-up-start-rps 3 --ramp-up-end-rps 2",
            "ramp_up_end_rps must be an integer, no less than --ramp-up-start-rps, got 2",
        ),
        ("--ramp-up-strategy linear --request-rate 3", "request_rate must be left out beside"),
    ],
)
def test_bad_values_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        parse_args(words.split())


def test_flags_of_vllms_that_are_not_there_say_why(capsys):
    with pytest.raises(SystemExit):
        parse_args(["--num-prompts", "3", "--use_beam_search"])
    assert "--use-beam-search is not there: it is --extra-body" in capsys.readouterr().err


def test_lengths_for_every_dataset_and_answers_that_do_not_end_early():
    args = parse_args(["--input-len", "30", "--output-len", "7"])
    assert (args.random_input_len, args.random_output_len, args.sharegpt_output_len) == (30, 7, 7)
    assert args.table_output_len == 7
    assert request_fields(args, "m")["ignore_eos"] is True, "random text, as vLLM has it"
    assert "ignore_eos" not in request_fields(parse_args(["--no-ignore-eos"]), "m")
    assert "ignore_eos" not in request_fields(parse_args(["--dataset-name", "table"]), "m")


def test_the_command_says_what_is_wrong_in_a_sentence(script):
    result = CliRunner().invoke(app, ["bench", "serve", "--base-url", script.url])
    assert result.exit_code == 2
    assert "/v1/models does not say what is served" in result.stderr
    assert "Traceback" not in result.output


# -- a real run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


COUNTED = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


def counts(server):
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return [sum(float(v) for k, v in values.items() if k.startswith(name)) for name in COUNTED]


def test_a_run_counts_what_the_server_counts(server, tmp_path):
    words = f"""--base-url {server.url} --num-prompts 12 --random-input-len 24 --ignore-eos
        --random-output-len 6 --max-concurrency 4 --request-rate 200 --disable-tqdm --num-warmups 2
        --save-detailed --result-dir {tmp_path} --label small --ready-check-timeout-sec 5"""
    before = counts(server)
    result = CliRunner().invoke(app, ["bench", "serve", *words.split()])
    assert result.exit_code == 0, result.output
    after = counts(server)
    (file,) = tmp_path.glob("small-200.0qps-concurrency4-minivllm-*.json")
    saved = json.loads(file.read_text(encoding="utf-8"))
    assert (saved["completed"], saved["failed"]) == (12, 0)
    assert saved["input_lens"] == [24] * 12
    assert saved["output_lens"] == [6] * 12
    # one request first, to see whether it is answered, and two to warm up
    assert [b - a for a, b in zip(before, after, strict=True)] == [24 * 15, 6 * 15]
    assert 1 <= saved["max_concurrent_requests"] <= 4
    assert 0 < saved["mean_ttft_ms"] <= saved["duration"] * 1000
    for ttft, itl, e2el in zip(saved["ttfts"], saved["itls"], saved["latencies"], strict=True):
        assert ttft + sum(itl) == pytest.approx(e2el)
    assert saved["client_cpu_s"] > 0
    assert set(saved) >= {*VLLM_KEYS, *VLLM_DETAILS}
    assert "Successful requests:                     12" in result.stdout
    assert server.idle()


def test_a_run_of_embeddings_counts_what_the_server_counts(tmp_path):
    with serving("--task", "embed") as server:
        words = f"""--base-url {server.url} --backend openai-embeddings --num-prompts 12
            --random-input-len 24 --disable-tqdm --save-result --result-dir {tmp_path}"""
        result = CliRunner().invoke(app, ["bench", "serve", *words.split()])
        assert result.exit_code == 0, result.output
        assert counts(server) == [24 * 13, 0]  # one request first, to see whether it is answered
    (file,) = tmp_path.iterdir()
    saved = json.loads(file.read_text(encoding="utf-8"))
    assert (saved["completed"], saved["failed"]) == (12, 0)
    assert (saved["total_input_tokens"], saved["total_output_tokens"]) == (24 * 12, 0)
    assert saved["mean_e2el_ms"] > 0
    assert "mean_ttft_ms" not in saved
    assert "End-to-end Latency" in result.stdout


def test_tables_by_chat_are_found_in_the_cache(server, capsys):
    words = f"""--base-url {server.url} --backend openai-chat --dataset-name table --num-prompts 8
        --table-questions 8 --disable-tqdm --table-output-len 12 --max-concurrency 1"""
    found = bench_serve(words.split())
    assert (found["completed"], found["max_concurrent_requests"]) == (8, 1)
    assert "8 requests (table) to minivllm" in capsys.readouterr().out
    with server.client() as client:
        text = client.get("/metrics").text
    hits = next(line for line in text.splitlines() if line.startswith("vllm:prefix_cache_hits_t"))
    assert float(hits.split()[-1]) > 7 * 32, "seven of eight find the table"


def test_prompts_are_as_long_as_the_model_can_read(server, capsys):
    words = f"--base-url {server.url} --num-prompts 1 --random-output-len 12 --disable-tqdm"
    found = bench_serve(words.split())
    assert found["total_input_tokens"] == 512 - 12
    with pytest.raises(ValueError, match="random_input_len must be at most 500, as the model"):
        bench_serve([*words.split(), "--random-input-len", "501"])
    with pytest.raises(ValueError, match="model must be one of minivllm, embedded, got 'gpt'"):
        bench_serve([*words.split(), "--model", "gpt"])
    as_vllms_guide_says = ["--model", str(embedded_model_path()), "--served-model-name", "embedded"]
    found = bench_serve([*words.split(), *as_vllms_guide_says])
    assert (found["model_id"], found["completed"]) == ("embedded", 1)
    assert found["tokenizer_id"] == str(embedded_model_path())
    with pytest.raises(ValueError, match=r"does not answer the first request: .*max_logprobs=20"):
        bench_serve([*words.split(), "--logprobs", "21"])


def test_fewer_conversations_than_asked_for(server, capsys, tmp_path):
    file = tmp_path / "talks.json"
    turns = [{"value": "How old is Ada Hart?"}, {"value": "She is 36 years old."}]
    file.write_text(json.dumps([{"conversations": turns}] * 3))
    words = f"""--base-url {server.url} --dataset-name sharegpt --dataset-path {file}
        --num-prompts 9 --no-oversample --disable-shuffle --output-len 4 --disable-tqdm --insecure
        --trust-remote-code
        --ramp-up-strategy exponential --ramp-up-start-rps 10 --ramp-up-end-rps 90"""
    found = bench_serve(words.split())
    assert "3 requests (sharegpt) to minivllm" in capsys.readouterr().out
    assert (found["completed"], found["ramp_up_end_rps"]) == (3, 90)
    assert found["duration"] > 1 / 10 + 1 / 30 + 1 / 90


def test_the_exit_status_says_that_all_failed(server, monkeypatch):
    async def refused(client, requests, times, args):
        return [FAILED]

    monkeypatch.setattr("minivllm.lab.bench.serving.command.send", refused)
    words = ["bench", "serve", "--base-url", server.url, "--random-input-len", "9"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "failed: status 503: busy" in result.stdout


def test_health_is_asked_meanwhile(server, capsys):
    words = ["--base-url", server.url, "--num-prompts", "4", "--random-input-len", "480",
             "--random-output-len", "4", "--disable-tqdm"]  # fmt: skip
    result = bench_serve([*words, "--health"])
    assert result["completed"] == 4
    assert result["health_requests"] >= 1
    assert 0 < result["median_health_ms"] <= result["max_health_ms"]
    line = re.search("Longest .*", capsys.readouterr().out)[0]
    assert line.split()[-1] == f"{result['max_health_ms']:.2f}"
    assert "health_requests" not in bench_serve(words)


def test_a_server_that_is_not_well_is_named(server, monkeypatch):
    monkeypatch.setattr(type(server.engine), "errored", property(lambda self: True))
    words = ["--base-url", server.url, "--num-prompts", "2", "--random-input-len", "48",
             "--random-output-len", "40", "--disable-tqdm", "--health"]  # fmt: skip
    with pytest.raises(ValueError, match="/health: Server error '503"):
        bench_serve(words)
