"""X-ray inside of a real vLLM, whose Python MINIVLLM_VLLM_PYTHON names; else it is skipped."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from record_runs import ENVIRONMENT

from minivllm.trace.records import RequestAdded, Scheduled
from minivllm.xray import load_xray, report, verify

ROOT = Path(__file__).parents[2]
CAMPAIGN = ROOT / ".ci/xray"
PYTHON = os.environ.get("MINIVLLM_VLLM_PYTHON", "")
needs_vllm = pytest.mark.skipif(
    not PYTHON, reason="MINIVLLM_VLLM_PYTHON names no Python that has vLLM 0.32"
)
SCRIPT = """
from record_runs import record
record("waits", "minivllm.xray.PolicyScheduler")
"""


def run(arguments, folder, **environment):
    """Run vLLM's Python; returns its output."""
    paths = {"PYTHONPATH": f"{ROOT}:{CAMPAIGN}:{folder}"}
    done = subprocess.run(
        [PYTHON, *arguments], env=os.environ | paths | environment, cwd=folder,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@needs_vllm
@pytest.mark.parametrize(
    "name",
    [
        "tight",
        "chunks",
        "prefixes",
        "drafts",
        "priorities",
        "overtakes",
        "called_off",
        "resets",
        "again",
        "grammars",
        "overlapped",
        "groups",
        "retained",
    ],
)
def test_a_run_is_recorded_as_vllm_decides_it(tmp_path, name):
    said = run([str(CAMPAIGN / "record_runs.py"), str(tmp_path), name], tmp_path)
    assert "all equal" in said
    assert verify(load_xray(tmp_path / f"{name}.jsonl.gz"))


@needs_vllm
@pytest.mark.parametrize(
    ("name", "cause"),
    [("grammars", "a grammar that compiles"), ("adapters", "a slot of its adapter")],
)
def test_why_vllm_steps_over_a_request_is_recorded(tmp_path, name, cause):
    run([str(CAMPAIGN / "record_runs.py"), str(tmp_path), name], tmp_path)
    waited = report(load_xray(tmp_path / f"{name}.jsonl.gz")).steps_waited
    assert waited[cause] > 0
    assert "unknown" not in waited


@needs_vllm
def test_with_plans_in_flight_each_step_is_vllms_own(tmp_path):
    said = run(
        [str(ROOT / "tests/xray/overlapped_vllm.py"), str(tmp_path)], tmp_path, **ENVIRONMENT
    )
    assert said.count("all equal") == 24
    assert sum(map(int, re.findall(r"Preempted (\d+)", said))) > 20
    for seed in range(24):
        xray = load_xray(tmp_path / f"{seed}.jsonl")
        assert bool(xray.trace.groups) == (seed >= 12)  # the others have sliding windows
        assert verify(xray), seed


@needs_vllm
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return len(request.prompt_token_ids)", ""),
        ("return 1 / 0", "ZeroDivisionError('division by zero'): vLLM goes on in its own order"),
    ],
    ids=["shortest first", "raises"],
)
def test_a_policy_of_ours_orders_vllms_queue(tmp_path, body, said):
    (tmp_path / "mine.py").write_text(
        "from minivllm.scheduling.policies import SchedulingPolicy\n\n\n"
        f"class Mine(SchedulingPolicy):\n    def key(self, request):\n        {body}\n"
    )
    path = tmp_path / "run.jsonl"
    mine = {"MINIVLLM_XRAY": str(path), "MINIVLLM_XRAY_POLICY": "mine:Mine"}
    output = run(["-c", SCRIPT], tmp_path, **(ENVIRONMENT | mine))
    assert "all equal" in output
    assert said in output
    assert ("ERROR" in output) == bool(said)
    trace = load_xray(path).trace
    firsts = [r.seq_id for r in trace.of(Scheduled) if r.kind == "new"]
    prompts = {r.request_id: len(r.prompt_token_ids) for r in trace.of(RequestAdded)}
    arrived = list(prompts)
    assert (firsts == arrived) == bool(said), (firsts, prompts)


@pytest.mark.skipif(
    "MINIVLLM_VLLM_REQUIREMENTS" not in os.environ,
    reason="MINIVLLM_VLLM_REQUIREMENTS names no file with the requirements of vLLM 0.32",
)
def test_pip_can_install_both_in_one_environment(tmp_path):
    report = tmp_path / "report.json"
    needs = os.environ["MINIVLLM_VLLM_REQUIREMENTS"]
    arguments = ["-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
                 "--report", str(report), str(ROOT), "-r", needs]  # fmt: skip
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    names = {item["metadata"]["name"].lower() for item in json.loads(report.read_text())["install"]}
    assert {"minivllm", "numba", "transformers"} <= names
