"""``pytest tests/gpu`` where there is no GPU: one sentence, with pytest, torch and triton alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SENTENCE = "tests/gpu: not run, for torch sees no GPU here;"

pytestmark = pytest.mark.slow


def test_without_a_gpu_and_without_plugins_all_are_skipped_with_one_sentence(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "MINIVLLM_GPU"))}
    env |= {"CUDA_VISIBLE_DEVICES": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env |= {"PYTHONPATH": str(ROOT), "MINIVLLM_GPU_REPORT": str(tmp_path / "report.json")}
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / "gpu"), "-q"]
    command += ["-p", "no:cacheprovider"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(SENTENCE) == 1
    assert " skipped in " in done.stdout.splitlines()[-1]
    assert "passed" not in done.stdout
    assert "warning" not in done.stdout
    assert not list(tmp_path.iterdir()), "nothing was run, and so nothing is reported"
