"""``minivllm bench cpu``: every row is told, quiet and beside a busy process."""

import statistics
import sys
import time

import pytest
from helpers import nightly
from test_bench import KEYS, bench
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.lab.bench import cpu, machine, workloads

pytestmark = pytest.mark.slow


@pytest.fixture
def little(monkeypatch):
    """Two rows of three requests each, and ceilings that are found at once."""
    monkeypatch.setitem(machine.LARGE, "cpu", 2**20)
    monkeypatch.setitem(machine.MATRIX_SIZE, "cpu", 64)
    monkeypatch.setattr(cpu, "ROWS", {"float32": (("w2", False), ("w2", True))})
    monkeypatch.setitem(workloads.WORKLOADS["w2"], "num_requests", 3)


def test_each_row_is_told(little, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    text, found = bench("cpu", "--repeats", 2)
    assert list(found) == KEYS
    assert {"model", "instructions", "threads", "spin_count", "clock"} == set(found["workload"])
    assert list(found["results"]) == ["w2 float32", "w2 float32 beside a busy process"]
    for row in found["results"].values():
        assert len(row["all_seconds"]) == 2
        assert row["seconds"] == pytest.approx(statistics.median(row["all_seconds"]))
        assert row["share_of_ceiling"] > 0
    assert "Narrowed by ONEDNN_MAX_CPU_ISA=AVX2" in text
    assert "w2 float32 beside a busy process" in text


def test_steps_may_be_planned_ahead(little, monkeypatch):
    monkeypatch.setattr(cpu, "ROWS", {"float32": (("w2", False),)})
    asked = []

    class Engine(cpu.BenchEngine):
        def __init__(self, *args, **options):
            asked.append(options["async_scheduling"])
            super().__init__(*args, **options)

    monkeypatch.setattr(cpu, "BenchEngine", Engine)
    _, found = bench("cpu", "--repeats", 1, "--async-scheduling")
    assert found["workload"]["async_scheduling"] is True
    assert asked == [True]
    assert found["results"]["w2 float32"]["seconds"] > 0


STAND_IN = """
import os, time

class SamplingParams:
    def __init__(self, max_tokens, **others):
        self.max_tokens = max_tokens

class Answer:
    def __init__(self, count):
        self.outputs = [self]
        self.token_ids = [7] * count

class LLM:
    def __init__(self, model, dtype, **others):
        assert os.path.isfile(os.path.join(model, "config.json"))
        print("a line that an engine prints")

    def reset_prefix_cache(self):
        self.empty = True

    def generate(self, prompts, params, use_tqdm):
        assert self.empty and len(prompts) == len(params)
        self.empty = False
        time.sleep(0.2)
        return [Answer(p.max_tokens - MISSING) for p in params]
"""


def stand_in(folder, missing=0):
    """A Python in which vLLM is what stands above."""
    folder.mkdir()
    (folder / "vllm.py").write_text(f"MISSING = {missing}\n{STAND_IN}")
    (folder / "torch.py").write_text("def set_num_threads(number): pass")
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} $*\n")
    python.chmod(0o755)
    return python


def test_another_engine_has_its_turn_on_the_same_requests(little, monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "ROWS", {"float32": (("w2", False),)})
    peer = f"vllm={stand_in(tmp_path / 'right')}"
    options = (
        "--against",
        "vllm,openvino,llama",
        "--peer",
        peer,
        "--peer",
        f"llama={sys.executable}",
    )
    text, found = bench("cpu", "--repeats", 2, *options)
    assert "openvino is left out: --peer openvino=PYTHON says where it is." in text
    assert "llama is left out: it needs --peer llama=PYTHON,MODEL." in text
    ((name, theirs),) = found["against"].items()
    assert name == "w2 float32, vllm"
    assert len(theirs["all_seconds"]) == 2
    assert min(theirs["all_seconds"]) >= 0.2
    ours = found["results"]["w2 float32"]
    assert theirs["ratio"] == pytest.approx(theirs["seconds"] / ours["seconds"])
    assert theirs["share_of_ceiling"] == pytest.approx(ours["share_of_ceiling"] / theirs["ratio"])


def test_an_engine_that_fails_is_left_out(little, monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "ROWS", {"float32": (("w2", False),)})
    short = f"vllm={stand_in(tmp_path / 'short', missing=1)}"
    text, found = bench("cpu", "--repeats", 1, "--against", "vllm", "--peer", short)
    assert "vllm made other numbers of tokens than it was asked for: left out" in text
    assert found["against"] is None
    absent = f"llama={sys.executable},nowhere.gguf"
    text, found = bench("cpu", "--repeats", 1, "--against", "llama", "--peer", absent)
    assert "llama failed: " in text
    assert found["results"]["w2 float32"]["seconds"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--against", "ollama"), "against must be some of openvino, llama, vllm, got 'ollama'"),
        (("--peer", "vllm=/nowhere"), "peer must be a Python that can be run"),
        (("--peer", f"vllm={sys.executable}"), "against must be the engine of --peer vllm, too"),
    ],
)
def test_a_peer_that_is_refused(options, message):
    done = CliRunner().invoke(app, ["bench", "cpu", *options])
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize("model", ["embedded", pytest.param("tiny", marks=nightly)])
def test_the_start_of_a_process_is_told_with_nothing_compiled_and_with_all(model):
    _, found = bench("start", "--model", model, "--repeats", 1)
    empty, filled = (found["results"][cache] for cache in ("empty", "filled"))
    assert empty["compile_s"] > filled["compile_s"] == 0
    for seconds in (empty, filled):
        parts = [seconds[f"{part}_s"] for part in ("import", "load", "compile", "first_step")]
        assert min(parts[:2]) > 0 <= min(parts)
        assert sum(parts) == pytest.approx(seconds["total_s"])


def test_the_busy_process_ends_with_its_row(monkeypatch):
    processes = []

    class Popen(cpu.subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            processes.append(self)

    monkeypatch.setattr(cpu.subprocess, "Popen", Popen)
    with cpu._busy_process():
        time.sleep(0.1)
        assert processes[0].poll() is None
    assert processes[0].poll() == -9


def test_what_is_refused():
    done = CliRunner().invoke(app, ["bench", "cpu", "--repeats", "0"])
    assert done.exit_code == 2, done.output
    assert "repeats must be an integer of at least 1, got 0" in " ".join(done.stderr.split())
