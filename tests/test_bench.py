"""The benchmarks run, and their last line says all that is documented. Nothing here is timed."""

import json
import sys

import pytest
from typer.testing import CliRunner

from minivllm.bench.scheduler_core import RunningDecodes, hashing_us, lookup_us
from minivllm.cli import app

KEYS = ["benchmark", "environment", "workload", "ceiling", "results", "against"]


def bench(*args):
    done = CliRunner().invoke(app, ["bench", *map(str, args)])
    assert done.exit_code == 0, done.output
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


def positive(numbers) -> bool:
    return all(isinstance(number, float) and number > 0 for number in numbers)


# -- scheduler ---------------------------------------------------------------------------------


@pytest.fixture
def no_vllm(monkeypatch):
    monkeypatch.setattr("minivllm.bench.scheduler.is_installed", lambda: False)


def test_scheduler(no_vllm, monkeypatch):
    monkeypatch.setattr("minivllm.bench.scheduler.CACHE_SIZES", (10, 100))
    text, found = bench("scheduler", "--num-requests", 3, "--num-steps", 512)
    assert list(found) == KEYS
    assert found["workload"]["decodes"] == 3
    assert {"python", "cpu", "cores", "minivllm"} <= set(found["environment"])
    assert positive(found["ceiling"].values())
    results = found["results"]
    assert positive(results["us_per_request"].values())
    assert [row["steps_done"] for row in results["by_steps_done"]] == [128, 512] * 2
    sizes = [row["num_blocks"] for row in results["by_pool_size"]]
    assert sizes == [513, 8 * 513, 64 * 513] * 2, "at least one longest sequence"
    assert [row["cached_blocks"] for row in results["lookup"]] == [10, 100]
    for name, us in results["us_per_request"].items():
        share = results["share_of_ceiling"][name]
        assert share == pytest.approx(found["ceiling"]["us_per_request"] / us)
        assert found["against"]["ratio"][name] == pytest.approx(us / 10.5)
    assert found["against"]["recorded_elsewhere"] is True
    assert "recorded on another machine" in text


def test_what_the_scheduler_benchmark_times():
    """Running decodes that fill their blocks, each with a token per step."""
    core = RunningDecodes(num_requests=5, num_blocks=1000, caching=True)
    for _ in range(20):
        assert core.step() > 0
    core.scheduler.check_integrity()
    assert [seq.num_tokens for seq in core.scheduler.running] == [128 + 1 + 20] * 5
    assert core.scheduler.kv_manager.block_pool.num_free_blocks == 999 - 5 * 10
    assert len(list(core.scheduler.kv_manager.prefix_cache)) == 5 * 9
    assert hashing_us() > 0
    assert all(us > 0 for us in lookup_us(num_cached=70, num_hit=8))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--num-requests", "0"], "num_requests must be an integer of at least 1, got 0"),
        (["--num-steps", "5"], "num_steps must be an integer from 128 to 8000, got 5"),
        (["--against", "sglang"], "against must be 'vllm' or nothing, got 'sglang'"),
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
