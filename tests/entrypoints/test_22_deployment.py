"""The deployment files: each one's own command line starts, its schema holds, its names exist."""

import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import promql_parser
import pytest
import yaml
from helpers import nightly
from http_server import serving
from prometheus_client.parser import text_string_to_metric_families

from minivllm.entrypoints.openai.cli_args import parse_args

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "minivllm" / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
GUIDE = ROOT / "notebooks" / "guide" / "deployment.md"


def load(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


DEPLOYMENT, SERVICE = load("kubernetes.yaml")
CONTAINER = DEPLOYMENT["spec"]["template"]["spec"]["containers"][0]
(COMPOSE,) = load("compose.yaml")
(PROMETHEUS,) = load("prometheus.yaml")
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8"))


def instruction(name):
    """An instruction of the Dockerfile in JSON form."""
    found = re.search(rf"^{name} .*?(\[[^\n]*\])$", DOCKERFILE, re.MULTILINE | re.DOTALL)
    return json.loads(found[1])


# -- each file's own command line ------------------------------------------------------------------


def from_config(name="config.yaml"):
    """The line that the file itself names."""
    line = re.search(
        r"^(?:#|\{#-) (minivllm serve .*?)(?: -#\})?$", (DEPLOY / name).read_text(), re.M
    )
    return shlex.split(line[1])


def from_compose():
    """The image's entry point, with what the service adds."""
    return [*instruction("ENTRYPOINT"), *COMPOSE["services"]["minivllm"]["command"]]


def from_kubernetes():
    """A shell's line; whatever is added to it is typed last, and wins."""
    return [*CONTAINER["command"], CONTAINER["args"][0]]


@contextmanager
def started(command, port):
    """A command as its file has it, but for the address. Its server has answered /health."""
    ours = ["--host", "127.0.0.1", "--port", str(port)]
    if command[0] == "/bin/sh":
        command = [*command[:-1], f"{command[-1]} {shlex.join(ours)}"]
    else:
        command = [*command, *ours]
    if command[0] == "python":
        command[0] = sys.executable
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    running = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PATH": path})
    try:
        until = time.monotonic() + 60
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            except httpx.ConnectError:
                pass
            assert running.poll() is None, "the server ended"
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.1)
        yield running
    finally:
        running.kill()
        running.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command_of",
    [
        pytest.param(from_config, marks=nightly),
        pytest.param(from_compose, marks=nightly),
        from_kubernetes,
    ],
)
def test_the_files_own_command_starts_a_server(command_of):
    port = free_port()
    with started(command_of(), port) as running:
        url = f"http://127.0.0.1:{port}"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = CONTAINER[probe]["httpGet"]
            assert asked["port"] in {entry["name"] for entry in CONTAINER["ports"]}
            assert httpx.get(url + asked["path"]).status_code == 200
        check = [word.replace(":8000", f":{port}") for word in instruction("HEALTHCHECK")]
        assert check != instruction("HEALTHCHECK")
        assert subprocess.run([sys.executable, *check[1:]]).returncode == 0
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "minivllm"
        body = {"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30).json()
        assert answer["choices"][0]["text"].startswith(" Paris")
        assert_dashboard_fits(httpx.get(url + scrape_path()).text)
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=20) == 0
    assert subprocess.run([sys.executable, *check[1:]], capture_output=True).returncode != 0


@pytest.mark.slow
def test_the_template_writes_the_prompts():
    """A system prompt for requests without one, and one that a request names, as in the guide."""
    port = free_port()
    user = {"role": "user", "content": "What is the capital of France?"}
    turn = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    with started(from_config("template_chatml.jinja"), port):
        for system, messages, more in (
            ("Answer in one sentence.", [user], {}),
            (
                "Answer in rhymes.",
                [user],
                {"chat_template_kwargs": {"system": "Answer in rhymes."}},
            ),
            ("Be kind.", [{"role": "system", "content": "Be kind."}, user], {}),
        ):
            body = {"messages": messages, "max_tokens": 8, "return_prompt_text": True, **more}
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            answer = httpx.post(url, json=body | {"temperature": 0}, timeout=30).json()
            assert answer["prompt_text"] == f"<|im_start|>system\n{system}<|im_end|>\n{turn}"
            assert answer["choices"][0]["message"]["content"]


def test_requests_have_time_to_end():
    """Docker and Kubernetes wait longer for the server's end than the server does."""
    words = shlex.split(CONTAINER["args"][0])
    ours = parse_args(words[words.index("serve") + 1 :]).shutdown_timeout
    assert DEPLOYMENT["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > ours > 0
    service = COMPOSE["services"]["minivllm"]
    ours = parse_args(service["command"]).shutdown_timeout
    assert int(service["stop_grace_period"].rstrip("s")) > ours > 0


@pytest.mark.parametrize(
    ("role", "line"),
    [("--head", "--head --node-ip-address=10.0.0.1 --port=6379 --include-dashboard=false"),
     ("--worker", "--address=10.0.0.1:6379")],
)  # fmt: skip
def test_a_node_of_a_cluster_is_a_container(tmp_path, role, line):
    """Docker's arguments, from a docker that prints them."""
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    docker.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    command = ["sh", DEPLOY / "run_cluster.sh", "image", "10.0.0.1", role, "/models"]

    def run(words):
        return subprocess.run(words, env={"PATH": path}, capture_output=True, text=True)

    words = run(command).stdout.splitlines()
    assert words[-3:] == ["image", "-c", f"ray start --block {line}"]
    assert {"--shm-size", "RAY_USAGE_STATS_ENABLED=0"} < set(words)
    refused = run(command[:-1])
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert f"{role} CACHE" in refused.stderr


def test_every_recipe_has_shared_memory():
    """Ranks of a machine share it, and a container's own is 64 MiB."""
    assert COMPOSE["services"]["minivllm"]["shm_size"] == "1gb"
    (shm,) = (v for v in DEPLOYMENT["spec"]["template"]["spec"]["volumes"] if v["name"] == "shm")
    assert shm["emptyDir"]["medium"] == "Memory"
    assert {"name": "shm", "mountPath": "/dev/shm"} in CONTAINER["volumeMounts"]
    runs = re.findall(r"^docker run (.*)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert runs
    assert all("--shm-size" in line for line in runs)


# -- schemas ---------------------------------------------------------------------------------------


def test_kubernetes_knows_every_field():
    validate = pytest.importorskip("kubernetes_validate")
    for resource in (DEPLOYMENT, SERVICE):
        validate.validate(resource, "1.37", strict=True)
    wrong = json.loads(json.dumps(DEPLOYMENT))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, "1.37", strict=True)
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"].items() <= labels.items()
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.slow
def test_compose_knows_every_field(tmp_path):
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, DEPLOY / "compose.yaml"], check=True)
    wrong = tmp_path / "compose.yaml"
    wrong.write_text("services: {one: {imag: x}}")
    assert subprocess.run([*command, wrong], capture_output=True).returncode == 1


# -- what the files say of each other --------------------------------------------------------------


def test_compose_names_what_is_there():
    services = COMPOSE["services"]
    build = services["minivllm"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    assert f" AS {build['target']}\n" in DOCKERFILE
    mounted = {}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                assert (DEPLOY / source).is_file()
                mounted[target] = source
            else:
                assert source in COMPOSE["volumes"]
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), "no other machine reaches it"
    (provider,) = load("grafana/provider.yaml")
    folder = provider["providers"][0]["options"]["path"]
    assert mounted[f"{folder}/minivllm.json"] == "./grafana/dashboard.json"
    assert services["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ] == f"{folder}/minivllm.json"  # fmt: skip


def test_addresses_are_those_of_services():
    (source,) = load("grafana/datasource.yaml")
    host, port = source["datasources"][0]["url"].removeprefix("http://").split(":")
    assert COMPOSE["services"][host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    (target,) = PROMETHEUS["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in COMPOSE["services"]
    assert re.search(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)[1] == port
    assert {"name": "http", "containerPort": int(port)} in CONTAINER["ports"]
    notes = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/port"] == port
    assert notes["prometheus.io/path"] == scrape_path()


def test_images_get_what_they_copy_and_install():
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists()
            assert f"!{source}" in ignore
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    # The README's line, found as the Dockerfile finds it. Without the bound pip would get a newer
    # torch, and then replace it by one of PyPI's, which has gigabytes of CUDA.
    grep = re.search(r"\$\((grep .*)\)\"", DOCKERFILE)[1]
    line = subprocess.run(["sh", "-c", grep], cwd=ROOT, capture_output=True, text=True, check=True)
    bound = re.search(r'"torch>=[\d.]+,(<[\d.]+)"', declared)[1]
    assert line.stdout.startswith(f'pip install "torch{bound}" --index-url https://')
    for extras in re.findall(r'pip install "\.\[(.*)\]"', DOCKERFILE):
        for extra in extras.split(","):
            assert re.search(rf"^{extra} = \[", declared, re.MULTILINE)


# -- the dashboard ---------------------------------------------------------------------------------


def scrape_path():
    return PROMETHEUS["scrape_configs"][0].get("metrics_path", "/metrics")


def queries():
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def missing(exported, query):
    """Names and labels that a query asks for and no metric has; what is no PromQL raises."""
    query = query.replace("$__rate_interval", "1m").replace("$model_name", "minivllm")
    assert "$" not in query
    promql_parser.parse(query)
    names = set(re.findall(r"vllm:\w+", query))
    assert names
    if unknown := names - set(exported):
        return unknown
    labels = set.intersection(*(exported[name] for name in names))
    by = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
    return (by | set(re.findall(r"(\w+)=\"", query))) - labels


def assert_dashboard_fits(text):
    exported = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            exported.setdefault(sample.name, set()).update(sample.labels)
    for query in queries():
        assert not missing(exported, query), query
    # the check itself notices a name, a label and a syntax that are not there
    assert missing(exported, "rate(vllm:tokens_total[1m])") == {"vllm:tokens_total"}
    assert missing(exported, "sum by (reason) (vllm:request_success_total)") == {"reason"}
    with pytest.raises(ValueError):
        missing(exported, "sum(vllm:num_requests_running")
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(
                r"label_values\((.*), (.*)\)", variable["definition"]
            ).groups()
            assert label in exported[name]


def test_panels_do_not_overlap():
    places, ids = set(), set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not places & cells
        assert panel["id"] not in ids
        places |= cells
        ids.add(panel["id"])
        assert panel["description"]


def test_the_dashboard_asks_for_what_vllms_does():
    """The names of vLLM's own dashboard, so that ours serves its server, too."""
    asked = set(re.findall(r"vllm:(\w+)", " ".join(queries())))
    assert asked >= set(
        """e2e_request_latency_seconds_bucket prompt_tokens_total
        generation_tokens_total inter_token_latency_seconds_bucket num_requests_running
        num_requests_waiting time_to_first_token_seconds_bucket kv_cache_usage_perc
        request_prompt_tokens_bucket request_generation_tokens_bucket request_success_total
        request_queue_time_seconds_sum request_prefill_time_seconds_sum
        request_decode_time_seconds_sum request_max_num_generation_tokens_sum""".split()
    )


# -- the guide -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["Dockerfile", "config.yaml", "kubernetes.yaml", "compose.yaml", "prometheus.yaml",
     "template_chatml.jinja", "grafana/datasource.yaml", "grafana/provider.yaml", "run_cluster.sh"],
)  # fmt: skip
def test_the_guide_explains_every_line(name):
    """The pieces that its section shows are the file, whole and in order."""
    text = GUIDE.read_text(encoding="utf-8")
    section = re.split(r"^## ", text.split(f"\n## `{name}`")[1], flags=re.MULTILINE)[0]
    shown = "\n".join(
        re.findall(r"^```(?:dockerfile|yaml|jinja|sh)\n(.*?)^```$", section, re.M | re.DOTALL)
    )

    def lines(some):
        return [line for line in some.splitlines() if line.strip()]

    assert lines(shown) == lines((DEPLOY / name).read_text(encoding="utf-8"))


HALF = "\ud800"
FORMS = [{"json": {"enum": [HALF]}}, {"json": {"maximum": math.nan}}, {"json": {"const": math.inf}},
         {"regex": HALF}, {"choice": [HALF]}, {"grammar": f'start: "{HALF}"'}]  # fmt: skip


def test_what_the_guide_says_of_surrogates_nan_and_encodings_is_so():
    """Rows of the table of different answers; the limit of a body has its own test."""
    talk = [{"role": "user", "content": "Hi"}]

    def tool(parameters, strict):
        function = {"name": "f", "strict": strict, "parameters": parameters}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}

    with serving("--enable-auto-tool-choice", "--tool-call-parser", "hermes") as server:

        def answer(body, path="/v1/chat/completions", encoding="utf-8"):
            data = body if isinstance(body, bytes) else json.dumps(body).encode(encoding)
            head = {"Content-Type": "application/json"}
            found = httpx.post(server.url + path, content=data, headers=head)
            return found.status_code, found.json().get("error", {}).get("message", "")

        for form in FORMS:
            (field,) = form
            status, message = answer({"messages": talk, "structured_outputs": form})
            assert (status, message.split()[0]) == (400, field)
        for bad, says in (
            ({"enum": [HALF]}, "what the chat template renders must be text"),
            ({"maximum": math.nan}, "tools must be a schema of"),
        ):
            status, message = answer({"messages": talk, **tool(bad, strict=True)})
            assert (status, message.startswith(says)) == (400, True)
        for body, field in (
            ({"messages": [{"role": "user", "content": HALF}]}, "content"),
            ({"messages": talk, "bad_words": [HALF]}, "bad_words"),
            ({"messages": talk, "cache_salt": HALF}, "cache_salt"),
        ):
            status, message = answer(body)
            assert status == 400
            assert f"{field} must be" in message
        few = {"prompt": "a", "max_tokens": 1}
        for encoding in ("utf-16", "utf-32"):
            assert answer(few, "/v1/completions", encoding)[0] == 200
        status, message = answer('{"prompt": "é"}'.encode("latin-1"), "/v1/completions")
        assert (status, message) == (400, "body: it is not UTF-8")
