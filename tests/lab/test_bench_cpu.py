"""``minivllm bench cpu``: every row is told, quiet and beside a busy process."""

import statistics
import time

import pytest
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
        assert row["seconds"] == statistics.median(row["all_seconds"])
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
