"""``minivllm bench cpu``: every row is told, quiet and busy, beside a peer of any Python."""

import os
import sys
from pathlib import Path

import pytest
from test_bench import KEYS, bench
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.cpu.spin import SPIN_COUNT
from minivllm.lab.bench import cpu, machine, workloads
from minivllm.lab.bench.process import EngineProcess, spin_count

pytestmark = pytest.mark.slow


@pytest.fixture
def little(monkeypatch):
    """Two rows of three requests each, and ceilings that are found at once."""
    monkeypatch.setitem(machine.LARGE, "cpu", 2**20)
    monkeypatch.setitem(machine.MATRIX_SIZE, "cpu", 64)
    monkeypatch.setattr(cpu, "ROWS", {"float32": (("w2", False), ("w2", True))})
    monkeypatch.setitem(workloads.WORKLOADS, "w2", (workloads.w2, 3))


def test_each_row_is_told(little, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    text, found = bench(
        "cpu", "--repeats", 1, "--against", "transformers", "--peer-python", sys.executable
    )
    assert list(found) == KEYS
    assert {"instructions", "threads", "spinning"} <= set(found["workload"])
    assert list(found["results"]) == ["w2 float32", "w2 float32 beside a busy process"]
    for row in found["results"].values():
        peer = row["against"]["transformers"]
        assert peer["ratio"] == pytest.approx(peer["seconds"] / row["seconds"])
        assert (peer["same_answers"], peer["answers"]) == (3, 3)
        assert len(row["all_seconds"]["minivllm"]) == 1
        assert row["share_of_ceiling"] > 0
    assert "Narrowed by ONEDNN_MAX_CPU_ISA=AVX2" in text
    assert "w2 float32 beside a busy process" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--repeats", "0"], "repeats must be an integer of at least 1, got 0"),
        (["--peer-python", "/nowhere/python", "--against", "vllm"], "peer_python must be the file"),
        (["--peer-python", sys.executable], "peer_python must be the file of an interpreter that"),
        (["--against", "sglang"], "against must be one of 'transformers',"),
    ],
)
def test_what_is_refused(args, message):
    done = CliRunner().invoke(app, ["bench", "cpu", *args])
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())


def test_a_python_that_is_none_is_a_failure_and_not_an_endless_wait(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    engine = EngineProcess("peer", 1, Path(python))
    with pytest.raises(ChildProcessError, match="exit code 3"):
        engine.load(object)
    engine.close()


def test_peers_spin_as_they_do_by_themselves(monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", SPIN_COUNT)
    assert (spin_count("minivllm"), spin_count("vllm")) == (SPIN_COUNT, None)
    monkeypatch.setenv("GOMP_SPINCOUNT", "77")
    assert (spin_count("minivllm"), spin_count("vllm")) == ("77", "77")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    assert spin_count("minivllm") is None
    assert "GOMP_SPINCOUNT" not in os.environ
