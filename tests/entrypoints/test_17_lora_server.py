"""Adapters at the server: names in requests and answers, loading, unloading, cards, the gauge."""

import asyncio
import json
import subprocess
import threading

import pytest
from http_server import serving

from minivllm import LLM, SamplingParams
from minivllm.engine.arg_utils import AsyncEngineArgs
from minivllm.engine.async_llm import AsyncLLM
from minivllm.entrypoints.openai.api_server import main
from minivllm.entrypoints.openai.cli_args import make_parser, parse_args
from minivllm.lab.bench.serving.command import bench_serve
from minivllm.lab.bench.serving.datasets import draw_adapters, table_requests
from minivllm.lora.request import LoRARequest

LORA = ("--enable-lora", "--max-loras", "2", "--max-cpu-loras", "4", "--max-lora-rank", "8")
CAPITAL = {"prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def save_adapter(directory, seed, rank=4, **settings):
    """Write an adapter of the embedded model's query projection, large enough to be seen."""
    import torch
    from safetensors.torch import save_file

    config = LLM_CONFIG
    torch.manual_seed(seed)
    directory.mkdir()
    target = {"r": rank, "lora_alpha": 16, "target_modules": ["q_proj", "o_proj"]} | settings
    (directory / "adapter_config.json").write_text(json.dumps(target))
    width = config["hidden_size"]
    heads = config["num_attention_heads"]
    inner = heads * (config.get("head_dim") or width // heads)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, a, b in (("q_proj", width, inner), ("o_proj", inner, width)):
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(rank, a) * 0.2
            tensors[f"{key}.lora_B.weight"] = torch.randn(b, rank) * 0.2
    save_file(tensors, directory / "adapter_model.safetensors")
    return str(directory)


def embedded_config():
    from minivllm.embedded import embedded_model_path

    return json.loads((embedded_model_path() / "config.json").read_text())


LLM_CONFIG = embedded_config()


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Directories: two good adapters, and one whose rank is too large."""
    root = tmp_path_factory.mktemp("adapters")
    return {
        "a": save_adapter(root / "a", 1),
        "b": save_adapter(root / "b", 2),
        "wide": save_adapter(root / "wide", 3, rank=16),
    }


@pytest.fixture(scope="module")
def server(adapters):
    card = json.dumps({"name": "b", "path": adapters["b"], "base_model_name": "second"})
    words = ["--served-model-name", "first", "second", "--lora-modules", f"a={adapters['a']}", card]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIVLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
        with serving(*LORA, *words) as server:
            yield server


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def names(client):
    return [card["id"] for card in client.get("/v1/models").json()["data"]]


def error(answer):
    found = answer.json()["error"]
    assert found["code"] == answer.status_code
    return answer.status_code, found["type"], found["message"]


def text(client, model, **more):
    answer = client.post("/v1/completions", json=CAPITAL | {"model": model} | more)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == ("first" if model in ("first", "second") else model)
    return [choice["text"] for choice in answer.json()["choices"]]


# -- names -----------------------------------------------------------------------------------------


def test_cards_show_base_names_first_and_whom_an_adapter_descends_from(client, adapters):
    cards = client.get("/v1/models").json()["data"]
    assert [(c["id"], c["root"], c["parent"]) for c in cards] == [
        ("first", "minivllm", None),
        ("second", "minivllm", None),
        ("a", adapters["a"], "first"),
        ("b", adapters["b"], "second"),
    ]
    assert [c["max_model_len"] for c in cards] == [512, 512, None, None]
    assert all(c["owned_by"] == "vllm" and len(c["permission"]) == 1 for c in cards)
    assert client.get("/v1/models/a").json()["parent"] == "first"


def test_an_answer_is_the_adapters_and_has_its_name(client, adapters):
    llm = LLM(enable_lora=True, max_loras=2, max_model_len=512, max_lora_rank=8)
    params = SamplingParams(temperature=0, max_tokens=6)
    loras = [None, LoRARequest("a", 1, adapters["a"]), LoRARequest("b", 2, adapters["b"])]
    outputs = llm.generate([CAPITAL["prompt"]] * 3, params, use_tqdm=False, lora_request=loras)
    wanted = [output.outputs[0].text for output in outputs]
    assert len(set(wanted)) == 3, "the adapters change what is said"
    assert [text(client, name)[0] for name in ("second", "a", "b")] == wanted
    assert text(client, "a", prompt=[CAPITAL["prompt"]] * 2) == [wanted[1]] * 2
    assert len(text(client, "a", n=2, temperature=1.0, seed=3)) == 2
    beams = llm.beam_search([CAPITAL["prompt"]], _beams(), lora_request=loras[1])
    found = text(client, "a", use_beam_search=True, n=2)
    assert beams[0].sequences[0].text.removeprefix(CAPITAL["prompt"]) == found[0]


def _beams():
    from minivllm.sampling_params import BeamSearchParams

    return BeamSearchParams(beam_width=2, max_tokens=6)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_every_chunk_of_a_stream_has_the_adapters_name(client, path):
    body = CAPITAL | {"model": "a", "stream": True}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    lines = client.post(path, json=body).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert {chunk["model"] for chunk in chunks} == {"a"}
    whole = client.post(path, json=body | {"stream": False}).json()
    assert whole["model"] == "a"
    choice = whole["choices"][0]
    said = [c["choices"][0] for c in chunks]
    if "chat" in path:
        pieces = [one["delta"].get("content") or "" for one in said]
        assert "".join(pieces) == choice["message"]["content"]
    else:
        assert "".join(one["text"] for one in said) == choice["text"]


def test_tokens_are_the_base_models_whatever_the_name(client):
    asked = {"prompt": "some text"}
    tokens = [client.post("/tokenize", json=asked | {"model": m}).json() for m in ("a", "first")]
    assert tokens[0] == tokens[1]
    body = {"tokens": tokens[0]["tokens"], "model": "b"}
    assert client.post("/detokenize", json=body).json()["prompt"].endswith("some text")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_an_unknown_name_is_a_404(client, path):
    body = {"model": "c", "prompt": "x"}
    if "chat" in path:
        body = {"model": "c", "messages": [{"role": "user", "content": "x"}]}
    status, kind, message = error(client.post(path, json=body))
    assert (status, kind) == (404, "NotFoundError")
    assert message == "The model `c` does not exist; served are: first, second, a, b."


# -- loading and unloading -------------------------------------------------------------------------


def test_what_load_and_unload_answer(client, adapters):
    load = {"lora_name": "c", "lora_path": adapters["a"]}
    taken = "The lora adapter 'a' has already been loaded. If you want to load the adapter in "
    base = "The lora adapter 'second' conflicts with a served base model."
    for changes, status, kind, message in (
        ({"lora_name": ""}, 400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be"),
        ({"lora_path": ""}, 400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be"),
        ({"lora_name": "second"}, 400, "InvalidUserInput", base),
        ({"lora_name": "a"}, 400, "InvalidUserInput", taken + "place, set 'load_inplace' to True."),
        ({"lora_path": "/no/such"}, 404, "NotFoundError",
         "Loading lora c failed: No adapter found for /no/such"),
        ({"lora_path": adapters["wide"]}, 400, "BadRequestError",
         "LoRA rank 16 is greater than max_lora_rank 8."),
        ({"lora_name": "\ud800"}, 400, "BadRequestError", "lora_name must be"),
    ):  # fmt: skip
        sent = json.dumps(load | changes)
        answer = client.post(LOAD, content=sent, headers={"content-type": "application/json"})
        found = error(answer)
        assert found[:2] == (status, kind)
        assert message in found[2]
    gone = error(client.post(UNLOAD, json={"lora_name": "c"}))
    assert gone == (404, "NotFoundError", "The lora adapter 'c' cannot be found.")
    empty = error(client.post(UNLOAD, json={"lora_name": ""}))
    assert empty[2] == "'lora_name' needs to be provided to unload a LoRA adapter."
    for body in ({}, {"lora_name": "c"}, {"lora_name": 5, "lora_path": "x"}, [], None):
        assert client.post(LOAD, json=body).status_code == 400
    assert client.post(LOAD, content="{}").status_code == 400, "another media type"
    assert names(client) == ["first", "second", "a", "b"], "nothing has changed"


def test_an_adapter_comes_and_goes_and_keeps_its_id(client, server, adapters):
    wanted = text(client, "b")
    answer = client.post(LOAD, json={"lora_name": "c", "lora_path": adapters["a"]})
    assert (answer.status_code, answer.text) == (
        200, "Success: LoRA adapter 'c' added successfully."
    )  # fmt: skip
    first = server.app.state.models.lora_requests["c"]
    body = {"lora_name": "c", "lora_path": adapters["b"], "load_inplace": True}
    assert client.post(LOAD, json=body).status_code == 200
    again = server.app.state.models.lora_requests["c"]
    assert (again.lora_int_id, again.load_inplace) == (first.lora_int_id, False)
    assert text(client, "c") == wanted
    assert names(client)[-1] == "c"
    answer = client.post(UNLOAD, json={"lora_name": "c", "lora_int_id": 77})
    assert (answer.status_code, answer.text) == (
        200, "Success: LoRA adapter 'c' removed successfully."
    )  # fmt: skip
    assert names(client) == ["first", "second", "a", "b"]
    assert client.post("/v1/completions", json=CAPITAL | {"model": "c"}).status_code == 404


def test_a_stream_goes_on_when_its_adapter_is_unloaded(client, server, adapters):
    client.post(LOAD, json={"lora_name": "c", "lora_path": adapters["a"]})
    long = CAPITAL | {"model": "c", "max_tokens": 60, "ignore_eos": True}
    (wanted,) = text(client, "a", max_tokens=60, ignore_eos=True)
    with client.stream("POST", "/v1/completions", json=long | {"stream": True}) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        with server.client() as other:
            assert other.post(UNLOAD, json={"lora_name": "c"}).status_code == 200
        rest = [line for line in lines if line.startswith("data: {")]
    chunks = [json.loads(line[6:]) for line in [first, *rest]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == wanted
    assert {chunk["model"] for chunk in chunks} == {"c"}


def test_one_of_several_that_load_a_name_at_once_wins(client, server, adapters):
    answers = []

    def load():
        with server.client() as other:
            body = {"lora_name": "d", "lora_path": adapters["a"]}
            answers.append(other.post(LOAD, json=body).status_code)

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] + [400] * 5
    client.post(UNLOAD, json={"lora_name": "d"})


def test_the_notes_curl_lines(server, adapters):
    """Lines of the notes, as they are typed but for the port, the paths and ``jq``."""
    script = f"""
    set -e
    curl -s -X POST {server.url}/v1/load_lora_adapter -H "Content-Type: application/json" \
      -d '{{"lora_name": "sql_adapter", "lora_path": "{adapters["b"]}"}}'
    curl -s {server.url}/v1/completions -H "Content-Type: application/json" \
      -d '{{"model": "sql_adapter", "prompt": "San Francisco is a", "max_tokens": 7,
           "temperature": 0}}'
    curl -s {server.url}/v1/models
    curl -s -X POST {server.url}/v1/unload_lora_adapter -H "Content-Type: application/json" \
      -d '{{"lora_name": "sql_adapter"}}'
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    added, rest = done.stdout.split("successfully.", 1)
    assert added == "Success: LoRA adapter 'sql_adapter' added "
    completion, end = json.JSONDecoder().raw_decode(rest)
    assert completion["model"] == "sql_adapter"
    assert completion["usage"]["completion_tokens"] <= 7
    assert '"id":"sql_adapter"' in rest[end:]
    assert rest.endswith("Success: LoRA adapter 'sql_adapter' removed successfully.")


# -- what a server is started with -----------------------------------------------------------------


def test_lora_modules_have_two_forms_also_in_a_file(tmp_path):
    card = {"name": "b", "path": "/b", "base_model_name": "base"}
    typed = parse_args(["--lora-modules", "a=/a=1", json.dumps(card)]).lora_modules
    assert [vars(one) for one in typed] == [
        {"name": "a", "path": "/a=1", "base_model_name": None}, card
    ]  # fmt: skip
    file = tmp_path / "config.yaml"
    file.write_text(f"lora-modules: [a=/a=1, {json.dumps(card)}]\n")
    assert parse_args(["--config", str(file)]).lora_modules == typed
    assert parse_args([]).lora_modules == []
    assert "--lora-modules" in make_parser().format_help()


def test_an_adapter_that_cannot_be_loaded_stops_the_server(capsys, adapters):
    start = ["--host", "127.0.0.1", "--port", "0", "--max-model-len", "64"]
    for words, message in (
        ([*LORA, "--lora-modules", "x=/no/such"],
         "Error: Loading lora x failed: No adapter found for /no/such"),
        ([*LORA, "--lora-modules", f"x={adapters['wide']}"], "greater than max_lora_rank 8"),
        (["--lora-modules", f"x={adapters['a']}"], "Error: LoRA is not enabled; start the server"),
    ):  # fmt: skip
        assert main([*start, *words]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="No adapter found for /no/such"), serving(
        *LORA, "--lora-modules", "x=/no/such"
    ):  # fmt: skip
        pass


def test_a_server_without_the_variable_or_without_lora_loads_nothing(adapters, monkeypatch):
    body = {"lora_name": "a", "lora_path": adapters["a"]}
    monkeypatch.delenv("MINIVLLM_ALLOW_RUNTIME_LORA_UPDATING", raising=False)
    with serving() as server, server.client() as client:
        assert client.post(LOAD, json=body).json() == {"detail": "Not Found"}
        assert "lora_requests_info" not in client.get("/metrics").text
    monkeypatch.setenv("MINIVLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    with serving("--api-key", "secret") as server, server.client() as client:
        assert client.post(LOAD, json=body).status_code == 401
        client.headers["authorization"] = "Bearer secret"
        status, kind, message = error(client.post(LOAD, json=body))
        assert (status, kind) == (400, "InvalidUserInput")
        assert message == "LoRA is not enabled; start the server with --enable-lora."


# -- the gauge, the client, a process --------------------------------------------------------------


def test_the_gauge_names_adapters_by_where_their_requests_are(client):
    def labels():
        lines = client.get("/metrics").text.splitlines()
        (line,) = [one for one in lines if one.startswith("vllm:lora_requests_info{")]
        return line[line.index("{") : line.index("}") + 1]

    idle = '{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""}'
    assert "".join(sorted(labels())) == "".join(sorted(idle))
    body = CAPITAL | {"model": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        while 'running_lora_adapters="a"' not in labels():  # after the step that is on its way
            next(lines)


def test_a_load_draws_an_adapter_for_each_request(server, client):
    requests = draw_adapters(table_requests(40), ["a", "b"])
    assert {one.lora_name for one in requests} == {"a", "b"}
    result = bench_serve(
        ["--base-url", server.url, "--lora-modules", "a", "b", "--num-prompts", "4",
         "--dataset-name", "table", "--table-output-len", "2", "--disable-tqdm"]
    )  # fmt: skip
    assert result["completed"] == 4


def test_an_engine_in_a_process_has_adapters_too(adapters):
    async def talk():
        args = AsyncEngineArgs(
            enable_lora=True, max_cpu_loras=2, max_model_len=64, engine_process=True,
            disable_log_stats=True,
        )  # fmt: skip
        engine = AsyncLLM(args)
        try:
            a = LoRARequest("a", 1, adapters["a"])
            assert await engine.add_lora(a)
            assert not await engine.add_lora(a)
            assert await engine.pin_lora(1)
            with pytest.raises(ValueError, match="No adapter found for /no/such"):
                await engine.add_lora(LoRARequest("x", 2, "/no/such"))
            params = SamplingParams(temperature=0, max_tokens=6)
            outputs = engine.generate(CAPITAL["prompt"], params, "one", lora_request=a)
            (*_, last) = [output async for output in outputs]
            assert last.lora_request == a
            assert await engine.list_loras() == {1}
            assert await engine.remove_lora(1)
            return last.outputs[0].text
        finally:
            engine.shutdown()

    llm = LLM(enable_lora=True, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=6)
    lora = LoRARequest("a", 1, adapters["a"])
    wanted = llm.generate(CAPITAL["prompt"], params, use_tqdm=False, lora_request=lora)
    assert asyncio.run(talk()) == wanted[0].outputs[0].text
