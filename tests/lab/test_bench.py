"""The benchmarks run, and their last line says all that is documented. Nothing here is timed."""

import json
import sys
from itertools import pairwise

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

from minivllm import LLM
from minivllm.cli import app
from minivllm.embedded import embedded_model_path
from minivllm.lab.bench import everything, machine
from minivllm.lab.bench.command import app as bench_app
from minivllm.lab.bench.embed import PEER, make_directory, make_texts
from minivllm.lab.bench.engine import BenchEngine
from minivllm.lab.bench.everything import COMMANDS
from minivllm.lab.bench.hashing import hashing_us, lookup_us
from minivllm.lab.bench.models import bench_model
from minivllm.lab.bench.report import Report
from minivllm.lab.bench.roofline import work_of
from minivllm.lab.bench.scheduler import RunningDecodes
from minivllm.lab.bench.speculation_texts import Texts, texts
from minivllm.lab.bench.workloads import WORKLOADS, BenchRequest, make_workload
from minivllm.lab.sim.cost import Hardware
from minivllm.lab.sim.shapes import SHAPES

pytestmark = pytest.mark.slow

KEYS = ["benchmark", "environment", "workload", "ceiling", "results", "against"]


def bench(*args):
    done = CliRunner().invoke(app, ["bench", *map(str, args)])
    assert done.exit_code == 0, done.output
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


def positive(numbers) -> bool:
    return all(isinstance(number, float) and number > 0 for number in numbers)


@pytest.fixture
def small_ceiling(monkeypatch):
    """The machine is measured on little, so that it takes no time; the figures mean nothing."""
    monkeypatch.setattr("minivllm.lab.bench.machine.LARGE", {"cpu": 2**16, "cuda": 2**16})
    monkeypatch.setattr("minivllm.lab.bench.machine.MATRIX_SIZE", {"cpu": 64, "cuda": 64})


# -- quantized weights -------------------------------------------------------------------------


def test_quantization(small_ceiling):
    sizes = "--model", "tiny", "--input-len", 4, "--output-len", 3
    _, found = bench("quantization", *sizes, "--repeats", 1)
    assert list(found) == KEYS
    assert list(found["results"]) == ["float32", "bfloat16", "int4", "int8", "Q8_0", "Q4_0"]
    for figures in found["results"].values():
        step = found["results"]["bfloat16"]["step_s"]
        assert figures["ratio_bfloat16"] == pytest.approx(step / figures["step_s"])
        assert figures["bytes_of_step"] <= figures["weight_bytes"]
    half, eighth, quarter = (
        found["results"][name]["bytes_of_step"] for name in ("bfloat16", "Q4_0", "Q8_0")
    )
    # a scale of 16 bits for 32 numbers of 4 or 8; norms and biases stay float32
    assert eighth == pytest.approx(half * 4.5 / 16, rel=0.02)
    assert quarter == pytest.approx(half * 8.5 / 16, rel=0.02)


def test_kv_cache(small_ceiling):
    sizes = "--model", "tiny", "--batch-size", 2, "--context", 20
    _, found = bench("kv-cache", *sizes, "--repeats", 2)
    assert list(found) == KEYS
    size = {name: figures["bytes_per_token"] for name, figures in found["results"].items()}
    assert size["fp8"] == size["fp8_e5m2"] == size["auto"] / 2
    assert size["int8_per_token_head"] == size["auto"] / 2 * (32 + 4) / 32
    for figures in found["results"].values():
        step = found["results"]["auto"]["step_s"]
        assert figures["ratio"] == pytest.approx(step / figures["step_s"])


def test_transfer(small_ceiling, tmp_path):
    """Files have the bytes that the formula says, and their heads."""
    sizes = "--model", "tiny", "--num-tokens", 40, "--folder", tmp_path
    text, found = bench("transfer", *sizes, "--repeats", 2)
    assert list(found) == KEYS
    results = found["results"]
    assert min(results.values()) > 0
    assert results["ratio"] == pytest.approx(results["transfer_s"] / results["compute_s"])
    assert 0 < results["bytes"] - results["bytes_by_formula"] < 1000 * 40
    assert "of computing it" in text
    assert not list(tmp_path.iterdir())


def test_ranks(small_ceiling):
    sizes = "--model", "embedded", "--num-requests", 2, "--workload", "w1-short"
    _, found = bench("ranks", *sizes, "--repeats", 1)
    assert list(found) == KEYS
    results = found["results"]
    sums = results.pop("all_reduce_s")
    assert 0 < sums["shared memory"] < sums["gloo"]
    assert list(results) == ["one process", "TP 2", "PP 2"]
    for figures in results.values():
        ratio = figures["seconds"] / results["one process"]["seconds"]
        assert figures["ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--pipeline-parallel-size", "99"], "pipeline_parallel_size must be at most the number"),
        (["--pipeline-parallel-size", "2000"], "pipeline_parallel_size must be an integer from 1"),
        (["--tensor-parallel-size", "3"], "attention heads (8) must be divisible by tensor parall"),
        (["--tensor-parallel-size", "2000"], "tensor_parallel_size must be an integer from 1 to"),
    ],
)
def test_ranks_that_cannot_be_are_refused_before_anything_is_measured(args, message, monkeypatch):
    for name in ("machine.measure", "time_all_reduce", "BenchEngine"):
        monkeypatch.setattr(f"minivllm.lab.bench.ranks.{name}", _never)
    done = CliRunner().invoke(app, ["bench", "ranks", *args])
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())


def _never(*args, **options):
    raise AssertionError("something was measured")


# -- structured outputs ------------------------------------------------------------------------


def test_structured(small_ceiling, monkeypatch):
    monkeypatch.setattr("minivllm.lab.bench.structured.WALKS", 2)
    monkeypatch.setattr("minivllm.lab.bench.structured.MAX_TOKENS", 6)
    text, found = bench("structured", "--batch-size", 2)
    assert list(found) == KEYS
    assert positive(found["ceiling"].values())
    results = found["results"]
    assert results["compile_ms"].keys() == results["mask_us"].keys()
    assert positive(results["compile_ms"].values())
    for times in results["mask_us"].values():
        assert 0 < times["p50"] <= times["p99"] <= times["max"]
    for name, step in results["step"].items():
        assert positive(step.values()), name
        assert step["share"] == pytest.approx(
            (step["fill_us"] + step["apply_us"]) / step["step_ms"] / 1e3
        )
        assert step["share"] < 1
    assert "fill and apply, share" in text


# -- scheduler ---------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--no-async-scheduling", "--async-scheduling"])
def test_scheduler(monkeypatch, option):
    monkeypatch.setattr("minivllm.lab.bench.scheduler.CACHE_SIZES", (10, 100))
    monkeypatch.setattr("minivllm.lab.bench.scheduler.POOL_SIZES", (1, 3))
    text, found = bench("scheduler", "--num-requests", 3, "--num-steps", 256, option)
    assert list(found) == KEYS
    assert found["workload"].get("async_scheduling", False) == (option == "--async-scheduling")
    assert found["workload"]["decodes"] == 3
    assert {"python", "cpu", "cores", "minivllm"} <= set(found["environment"])
    assert positive(found["ceiling"].values())
    results = found["results"]
    assert positive(results["us_per_request"].values())
    assert [row["steps_done"] for row in results["by_steps_done"]] == [128, 256] * 2
    sizes = [row["num_blocks"] for row in results["by_pool_size"]]
    assert sizes == [513, 3 * 513] * 2, "at least one longest sequence"
    assert [row["steps_done"] for row in results["with_window"]] == [128, 256] * 2
    assert positive(row["us_per_request"] for row in results["with_window"])
    assert [row["cached_blocks"] for row in results["lookup"]] == [10, 100]
    for name, us in results["us_per_request"].items():
        share = results["share_of_ceiling"][name]
        assert share == pytest.approx(found["ceiling"]["us_per_request"] / us)
    assert "µs per request and step, by the pool's size" in text


def test_the_scheduler_benchmark_times_windows():
    """Decodes with two groups: the window's blocks go back while the others stay."""
    core = RunningDecodes(5, num_blocks=1000, caching=True, with_window=True)
    for _ in range(40):
        core.step()
    core.scheduler.check_integrity()
    assert [seq.num_tokens for seq in core.scheduler.running] == [128 + 1 + 40] * 5
    manager = core.scheduler.kv_manager
    held = [[len(t.held_blocks) for t in each.tables] for each in manager.block_tables.values()]
    assert held == [[11, 9]] * 5


@pytest.mark.parametrize("overlaps", [False, True])
def test_what_the_scheduler_benchmark_times(overlaps):
    """Running decodes that fill their blocks, each with a token per step."""
    core = RunningDecodes(5, num_blocks=1000, caching=True, async_scheduling=overlaps)
    for _ in range(20):
        assert core.step() > 0
    core.scheduler.check_integrity()
    assert [seq.num_tokens for seq in core.scheduler.running] == [128 + 1 + 20] * 5
    assert {seq.num_output_placeholders for seq in core.scheduler.running} == {int(overlaps)}
    assert core.scheduler.kv_manager.block_pool.num_free_blocks == 999 - 5 * 10
    assert len(list(core.scheduler.kv_manager.prefix_cache)) == 5 * 9
    assert hashing_us() > 0
    assert all(us > 0 for us in lookup_us(num_cached=70, num_hit=8))


def test_a_terminal_is_not_filled_with_json_and_lines_go_on_between_words(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    facts = {"figure": "mean of 16 steps, best of 8 times", "clock": "CPU time of this process"}
    report = Report("scheduler", facts | {"decodes": 256})
    report.finish({"us": 1 / 3}, None)
    *lines, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["results"] == {"us": 0.33333333}
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).endswith("this process, decodes 256")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    report.finish({"us": 1 / 3}, None)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--num-requests", "0"], "num_requests must be an integer of at least 1, got 0"),
        (["--num-steps", "5"], "num_steps must be an integer from 128 to 8000, got 5"),
    ],
)
def test_scheduler_refuses(args, message):
    done = CliRunner().invoke(app, ["bench", "scheduler", *args])
    assert done.exit_code == 2
    assert message in done.stderr


def test_the_scheduler_is_timed_without_torch():
    import subprocess

    code = (
        "import sys; sys.argv = ['minivllm', 'bench', 'scheduler', '--num-steps', '0']\n"
        "from minivllm.cli import app\n"
        "try: app()\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False"
    assert "num_steps must be" in done.stderr


# -- engines and kernels -----------------------------------------------------------------------


ONCE = ("--repeats", 1, "--attention-backend", "paged_torch")


def test_throughput(small_ceiling):
    text, found = bench("throughput", "--num-requests", 2, "--workload", "w2", *ONCE)
    assert list(found) == KEYS
    assert (
        found["workload"] | {"name": "w2", "requests": 2, "output_tokens": 32}
        == (found["workload"])
    )
    peaks = {"read_gb_per_s", "copy_gb_per_s", "bandwidth_gb_per_s", "gflop_per_s"}
    assert set(found["ceiling"]) == peaks | {"seconds"}
    results = found["results"]
    assert results["num_cached_tokens"] == 512, "what the second request shares with the first"
    assert len(results["all_seconds"]) == 1, "the run that warms up is not told"
    assert results["output_tokens_per_second"] == pytest.approx(32 / results["seconds"])
    share = found["ceiling"]["seconds"] / results["seconds"]
    assert results["share_of_ceiling"] == pytest.approx(share)
    assert ("peak_memory_mib" in results) == ("peak memory, MiB: process" in text)
    assert "share of roofline" in text


@pytest.mark.parametrize("workload", ["multi-turn", "n-samples"])
def test_the_engine_on_other_workloads(workload):
    with bench_model("tiny", "float32") as (directory, load_format):
        engine = BenchEngine(directory, "float32", load_format=load_format)
    runs = engine.repeat(make_workload(workload, 2, 4096), 2)
    assert len(runs) == 2
    for run in runs:
        assert [len(a) for a in run.answers] == [32] * (8 if workload == "n-samples" else 2)
        assert run.seconds > 0
    if workload == "multi-turn":
        assert runs[0].answers == runs[1].answers
        assert runs[0].num_cached_tokens == runs[1].num_cached_tokens, "each begins without a cache"


def test_rounds_and_requests_of_different_lengths():
    rounds = [[BenchRequest([11, 12, 13, 14, 15], 3), BenchRequest([21, 22], 5)],
              [BenchRequest([31, 32, 33], 2)]]  # fmt: skip
    with bench_model("tiny", "float32") as (directory, load_format):
        engine = BenchEngine(directory, "float32", load_format=load_format, max_num_seqs=4)
    assert [len(answer) for answer in engine.run(rounds).answers] == [3, 5, 2]


def test_latency_of_one_batch(small_ceiling):
    args = ("--input-len", 8, "--output-len", 4, "--batch-size", 2)
    text, found = bench("latency", *args, *ONCE)
    assert list(found) == KEYS
    results, least = found["results"], found["ceiling"]
    assert {"ttft_s", "step_s", "latency_s", "latency_percentiles_s"} <= set(results)
    assert results["ttft_s"] + 3 * results["step_s"] == pytest.approx(results["latency_s"])
    assert least["ttft_s"] + 3 * least["step_s"] == pytest.approx(least["latency_s"])
    assert results["share_of_step"] == pytest.approx(least["step_s"] / results["step_s"])
    assert "A decode step of this batch reads" in text


def test_kernels(small_ceiling):
    args = ("--batch", 2, "--context", 21, "--alone", 40, "--prefill", 9, "--num-heads", 4,
            "--num-kv-heads", 2, "--head-dim", 8, "--block-size", 4)  # fmt: skip
    _, found = bench("kernels", "--backend", "paged_torch", "--backend", "reference", *args)
    assert list(found) == KEYS
    results, cases = found["results"], ["decode", "decode alone", "prefill"]
    assert list(results) == ["paged_torch", "reference"]
    for by_case in results.values():
        assert list(by_case) == cases
    for case, tokens in (("decode", 2 * 21), ("decode alone", 40)):
        row = results["paged_torch"][case]
        assert row["gb_per_s"] == pytest.approx(2 * tokens * 2 * 8 * 4 / row["seconds"] / 1e9)
        share = row["gb_per_s"] / found["ceiling"]["bandwidth_gb_per_s"]
        assert row["share_of_bandwidth"] == pytest.approx(share)
    row = results["paged_torch"]["prefill"]
    assert row["gflop_per_s"] == pytest.approx(4 * 45 * 4 * 8 / row["seconds"] / 1e9)
    ratio = found["against"]["prefill"]["seconds"] / row["seconds"]
    assert found["against"]["ratio"]["paged_torch"]["prefill"] == pytest.approx(ratio)


def test_kernels_read_what_dense_attention_reads():
    """The blocks that are timed hold real K and V: paged and dense agree on the same numbers."""
    import torch

    from minivllm.attention.selector import make_backend
    from minivllm.lab.bench.kernels import Case, Shape, _paged

    shape = Shape(4, 2, 8, 4, torch.float32, torch.device("cpu"))
    case = Case("decode", 3, 10, 2)
    torch.manual_seed(0)
    first = _paged(make_backend("reference", shape.device), case, shape)()
    torch.manual_seed(0)
    second = _paged(make_backend("paged_torch", shape.device), case, shape)()
    assert first.shape == (6, 4, 8)
    torch.testing.assert_close(first.float(), second, atol=1e-5, rtol=1e-5)


def test_the_roofline_by_hand(tmp_path):
    """One request of 3 tokens in and 3 out, on a model of one small layer."""
    from types import SimpleNamespace

    config = SimpleNamespace(hidden_size=4, num_heads=2, num_kv_heads=1, head_dim=2, num_layers=1,
                             intermediate_size=8, vocab_size=10, architecture="toy",
                             max_model_len=16)  # fmt: skip
    work = work_of(config, [[BenchRequest([1, 2, 3], 3)]], bytes_per_number=4)
    layer, head = 4 * (4 + 2 * 2) + 4 * 4 + 3 * 4 * 8, 40
    per_pair = 4 * 4
    assert work.prefill.flops == 2 * layer * 3 + 2 * head + per_pair * 6
    assert work.decode.flops == 2 * (layer + head) * 2 + per_pair * (4 + 5)
    assert work.decode.num_bytes == 2 * (layer + head) * 4 + (4 + 5) * 2 * 2 * 4
    slow_arithmetic, slow_memory = Hardware("a", 1.0, 1e9, 0), Hardware("m", 1e12, 1.0, 0)
    assert work.least_seconds(slow_arithmetic) == work.prefill.flops + work.decode.flops
    assert work.least_seconds(slow_memory) == pytest.approx(work.decode.num_bytes)
    hit = work_of(config, [[BenchRequest([1, 2, 3], 3)]], 4, num_cached_tokens=2)
    assert hit.prefill.flops == 2 * layer + 2 * head + per_pair * 3
    small = work_of(config, [[BenchRequest([1], 9)]], 4, cache_bytes=2**20)
    assert small.decode.num_bytes == 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_seeded(name):
    first, again = make_workload(name, 6, 100), make_workload(name, 6, 100)
    assert first == again
    requests = [request for batch in first for request in batch]
    assert len(requests) == 6
    assert all(10 <= t < 100 for request in requests for t in request.prompt_token_ids)


def test_a_turn_goes_on_from_the_last_one():
    rounds = make_workload("multi-turn", 7, 100)
    assert [len(batch) for batch in rounds] == [2, 2, 2, 1]
    for before, after in pairwise(rounds):
        for past, now in zip(before, after, strict=False):
            said = past.prompt_token_ids
            assert now.prompt_token_ids[: len(said)] == said


def test_w1_is_the_one_that_others_were_measured_on():
    """Figures for other engines are known for exactly these requests."""
    (requests,) = make_workload("w1", None, 4096)
    assert requests[0].prompt_token_ids[:4] == [1815, 488, 40, 381]
    assert sum(len(request.prompt_token_ids) for request in requests) == 9522
    assert sum(request.max_tokens for request in requests) == 4877


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["throughput", "--workload", "w9"], "workload must be one of 'nano', 'w1'"),
        (["throughput", "--model", "huge"], "model must be one of 'tiny', 'small', 'qwen3-0.6b'"),
        (["throughput", "--num-requests", "0"], "num_requests must be an integer of at least 1"),
        (["throughput", "--repeats", "0"], "repeats must be an integer of at least 1, got 0"),
        (["latency", "--output-len", "1"], "output_len must be an integer of at least 2, got 1"),
        (["latency", "--attention-backend", "flash"], "attention_backend must be one of"),
        (["latency", "--threads", "0"], "threads must be an integer of at least 1, got 0"),
        (["kernels", "--alone", "0"], "alone must be an integer of at least 1, got 0"),
        (["kernels", "--backend", "flash"], "backends must be one of paged_torch, paged_numba"),
        (["kernels", "--num-kv-heads", "5"], "num_heads must be a multiple of num_kv_heads=5"),
        (["kernels", "--dtype", "int4"], "dtype must be one of"),
        (["ranks", "--repeats", "0"], "repeats must be an integer of at least 1, got 0"),
        (["ranks", "--tensor-parallel-size", "0"], "tensor_parallel_size must be an integer of at"),
    ],
)
def test_engines_and_kernels_refuse(args, message):
    done = CliRunner().invoke(app, ["bench", *args])
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())


def test_speculation_counts_what_each_text_gives(small_ceiling, monkeypatch, tmp_path):
    """On two questions; and with the model as its own draft, which is always right."""
    few = Texts(texts()["table"].chats[:2], 24)
    monkeypatch.setattr("minivllm.lab.bench.speculation.texts", lambda: {"table": few})
    monkeypatch.setattr("minivllm.lab.bench.speculation.BATCHES", ((1, 20), (2, 10)))
    monkeypatch.setattr("minivllm.lab.bench.speculation.NUM_ROWS", (1, 3))
    monkeypatch.setattr("minivllm.lab.bench.speculation.STEPS", 4)
    text, found = bench(
        "speculation", "--repeats", 1, "--draft-model", embedded_model_path(), "--draft-tokens", 2
    )
    assert list(found) == KEYS
    table = found["results"]["table"]
    assert table["none"]["tokens_per_step"] == 1
    assert 1.5 < table["ngram"]["tokens_per_step"] < 4
    assert 0.1 < table["ngram"]["accepted_share"] < 0.9
    assert table["draft_model"]["accepted_share"] == 1
    assert 2.5 < table["draft_model"]["tokens_per_step"] <= 3
    assert table["ngram"]["tokens_per_step"] < table["both"]["tokens_per_step"] <= 3
    assert found["results"]["step"].keys() == {"q3_batch1_context20", "q3_batch2_context10"}
    assert found["results"]["proposer_us"] > 0
    assert "seconds over those without" in text


# -- models, and all in turn --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "millions"), list(zip(SHAPES, (3.9, 494, 596, 8030), strict=True))
)
def test_shapes_are_what_they_are_called(name, millions):
    """Read as any checkpoint's config.json is, and as large as the models of that name."""
    import torch

    from minivllm.models.loader import load_config
    from minivllm.models.registry import get_model_class

    with bench_model(name, "bfloat16") as (directory, load_format):
        assert load_format == "dummy"
        assert [path.name for path in directory.iterdir()] == ["config.json"]
        config = load_config(directory)
    assert config.dtype == torch.bfloat16
    with torch.device("meta"):
        model = get_model_class(config.architecture)(config)
    size = sum(parameter.numel() for parameter in model.parameters())
    assert size == pytest.approx(millions * 1e6, rel=0.01)
    assert not directory.exists()


@pytest.mark.parametrize("command", [c for commands in COMMANDS.values() for c in commands])
def test_what_all_runs_are_commands(command):
    """Their arguments are understood; what they would run is not run."""
    name, *words = command.split()
    assert get_command(bench_app).commands[name].make_context(name, words).params


SCHEDULER = "scheduler --num-requests 3 --num-steps"


def test_all_in_turn(monkeypatch, tmp_path):
    """A benchmark that fails does not keep the next one from running."""
    broken, whole = f"{SCHEDULER} 5", f"{SCHEDULER} 128"
    monkeypatch.setattr(everything, "COMMANDS", dict.fromkeys(("cpu", "cuda"), (broken, whole)))
    output = tmp_path / "results.json"
    done = CliRunner().invoke(app, ["bench", "all", "--output", str(output)])
    assert done.exit_code == 1, "one failed"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads(output.read_text())
    assert list(found) == KEYS
    assert list(found["results"]) == [broken, whole]
    assert found["results"][broken] is None
    assert found["results"][whole]["benchmark"] == "scheduler"
    assert positive(found["results"][whole]["results"]["us_per_request"].values())
    assert "µs per request and step" in done.stdout, "what a benchmark prints is passed on"


def test_all_of_this_machine_is_only_named():
    text, found = bench("all", "--dry-run")
    text = " ".join(text.split())  # long lines are folded
    commands = COMMANDS[found["workload"]["device"]]
    assert found["results"] == dict.fromkeys(commands)
    for command in commands:
        assert f"minivllm bench {command}" in text


def test_the_ceiling_of_products_is_that_of_the_faster_dtype(monkeypatch):
    """A CPU may multiply 16-bit numbers slower than float32: then float32's is the ceiling."""
    monkeypatch.setitem(machine.MATRIX_SIZE, "cpu", 256)
    seconds = {torch.bfloat16: 1.0, torch.float32: 0.5}
    monkeypatch.setattr(machine, "best_seconds", lambda function, device: seconds[function().dtype])
    cpu = torch.device("cpu")
    assert machine.flops_per_second(cpu, torch.bfloat16) == 2 * 256**3 / 0.5
    seconds[torch.bfloat16] = 0.1
    assert machine.flops_per_second(cpu, torch.bfloat16) == 2 * 256**3 / 0.1
    assert machine.flops_per_second(cpu, torch.float32) == 2 * 256**3 / 0.5


# -- embeddings --------------------------------------------------------------------------------


def test_embed(small_ceiling):
    """Texts have as many tokens as is said; the peer is measured where it is installed."""
    text, found = bench(
        "embed", "--num-texts", 3, "--num-layers", 1, "--hidden-size", 32, "--repeats", 1
    )
    assert list(found) == KEYS
    assert found["results"].keys() == {"5 to 200", "5 to 20", "decoder"}
    decoder = found["results"].pop("decoder")
    assert positive([decoder["ratio"], *decoder["ms"].values()])
    for result in found["results"].values():
        assert positive(result["seconds"].values())
        assert ("ratio" in result) == (PEER in result["seconds"])
        assert result.get("difference", 0) < 1e-5
    assert "texts/s" in text


def test_texts_have_as_many_tokens_as_is_said(tmp_path):
    make_directory(tmp_path, num_layers=1, hidden_size=32)
    outputs = LLM(str(tmp_path)).embed(make_texts(20, 5, 20), use_tqdm=False)
    lengths = [len(output.prompt_token_ids) for output in outputs]
    assert min(lengths) >= 5
    assert max(lengths) <= 20
    assert len(set(lengths)) > 5


# -- pictures ----------------------------------------------------------------------------------


def test_images(small_ceiling):
    """Both steps have the same rows, and a second question finds the picture's blocks."""
    sizes = "--num-pictures", 1, "--num-layers", 1, "--hidden-size", 32
    text, found = bench("images", *sizes, "--repeats", 2)
    assert list(found) == KEYS
    results = found["results"]
    assert results.keys() == {"step", "tower", "question"}
    assert results["step"]["ms"].keys() == {"pictures", "text"}
    for figures in results.values():
        assert positive([figures["ratio"], *figures["ms"].values()])
    assert results["tower"]["difference"] < 1e-4
    assert results["question"]["cached_tokens"] == 256
    assert "a second question" in text
