"""Recorder and writer of an X-ray, without vLLM: what a file holds, and what goes wrong."""

import subprocess
import sys
import time

import pytest

from minivllm.trace.records import OWN_PLAN, RequestSkipped, Sampled, StepEnded
from minivllm.xray.format import header_line, load_xray
from minivllm.xray.recorder import Recorder

HEADER = {
    "vllm_version": "0.32.0", "scheduler": "TracingScheduler", "started": 0.0, "model": "none",
    "num_blocks": 8, "block_size": 4, "text": True,
    "settings": {"max_num_batched_tokens": 16, "max_num_seqs": 2, "max_model_len": 32},
}  # fmt: skip


def run(recorder, num_steps=3):
    """Record a request that gets a token in each step."""
    recorder.requests["a"] = {"max_tokens": num_steps}
    recorder.rows.append(("RequestAdded", "a", [5, 6, 7], 0, 0.0, None))
    for step in range(num_steps):
        recorder.start_step()
        kind, start, new = ("new", 0, 3) if step == 0 else ("running", 2 + step, 1)
        recorder.rows.append(("Scheduled", "a", kind, start, new, True))
        recorder.plan_step()
        recorder.rows.append(("Sampled", "a", 40 + step))
        recorder.end_step()
    recorder.close()


@pytest.fixture
def said(monkeypatch):
    """Sentences in the log."""
    lines = []
    for module in ("recorder", "writer"):
        note = lambda text, *values: lines.append(text % values)  # noqa: E731
        monkeypatch.setattr(f"minivllm.xray.{module}.logger.warning", note)
    return lines


def test_a_step_may_end_an_earlier_ones_plan():
    recorder = Recorder(HEADER, keep=True)
    recorder.start_step()
    recorder.plan_step()
    recorder.start_step()  # its plan is still on its way
    recorder.plan_step()
    recorder.ending = 0
    recorder.end_step()
    recorder.start_step()
    recorder.plan_step()
    recorder.ending = None  # what came was no step's
    recorder.end_step()
    assert recorder.is_open
    recorder.start_step()
    recorder.plan_step()
    recorder.end_step()  # its own
    assert [r.plan for r in recorder.trace.of(StepEnded)] == [None, 0, None, OWN_PLAN]


def test_file_and_live_trace_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIVLLM_XRAY", str(tmp_path / "run.jsonl"))
    recorder = Recorder(HEADER, keep=True)
    run(recorder)
    xray = load_xray(tmp_path / "run.jsonl")
    assert xray.trace.records == recorder.trace.records
    assert xray.requests == recorder.trace.requests == {"a": {"max_tokens": 3}}
    assert [r.token_id for r in xray.trace.of(Sampled)] == [40, 41, 42]


def test_without_text_no_token_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIVLLM_XRAY", str(tmp_path / "run.jsonl"))
    run(Recorder({**HEADER, "text": False}, keep=False))
    assert "[5,6,7]" not in (tmp_path / "run.jsonl").read_text()
    trace = load_xray(tmp_path / "run.jsonl").trace
    assert [r.token_id for r in trace.of(Sampled)] == [0, 0, 0]


def test_the_oldest_steps_are_dropped_at_the_bound(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIVLLM_XRAY", str(tmp_path / "run.jsonl"))
    monkeypatch.setenv("MINIVLLM_XRAY_MAX_BYTES", "20000")
    run(Recorder(HEADER, keep=False), num_steps=400)
    assert (tmp_path / "run.jsonl").stat().st_size < 20000
    trace = load_xray(tmp_path / "run.jsonl").trace
    assert 0 < trace.first_step < trace.num_steps == 400
    assert trace.state_at(399).sequences["a"].token_ids[-1] == 40 + 399


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path, monkeypatch, said):
    monkeypatch.setenv("MINIVLLM_XRAY", str(tmp_path / "no" / "run.jsonl"))
    recorder = Recorder(HEADER, keep=True)
    run(recorder)
    assert len(said) == 1
    assert "is written no further" in said[0]
    assert recorder.trace.num_steps == 3


def test_a_hook_that_fails_ends_the_xray_and_nothing_else(monkeypatch, said):
    monkeypatch.delenv("MINIVLLM_XRAY", raising=False)
    recorder = Recorder(HEADER, keep=True)
    for _ in range(2):
        with recorder:
            raise KeyError("as another vLLM would")
    run(recorder)
    assert len(said) == 1
    assert "could not follow vLLM" in said[0]
    with pytest.raises(KeyboardInterrupt), recorder:
        raise KeyboardInterrupt


def test_why_plans_are_empty_is_said_once_until_a_step_is_made():
    recorder = Recorder(HEADER, keep=True)
    recorder.rows.append(("RequestAdded", "a", [5, 6, 7], 0, 0.0, None))
    for _ in range(3):
        recorder.start_step()
        recorder.rows.append(("RequestSkipped", "a", "grammar"))
        recorder.cancel_step()
    recorder.start_step()
    recorder.rows.append(("RequestSkipped", "a", "grammar"))
    recorder.plan_step()
    recorder.end_step()
    trace = recorder.trace
    assert [(r.step, r.reason) for r in trace.of(RequestSkipped)] == [
        (-1, "grammar"),
        (0, "grammar"),
    ]
    assert trace.num_steps == 1


def test_the_file_says_when_its_writer_is_killed_too(tmp_path, monkeypatch):
    """vLLM is killed: what it has handed over is written, and that nothing more comes."""
    path = tmp_path / "run.jsonl"
    code = (
        "import marshal, os, time\n"
        "from pathlib import Path\n"
        "from minivllm.xray.writer import XRayWriter\n"
        f"path = Path({str(path)!r})\n"
        f"writer = XRayWriter(str(path), {header_line(**HEADER)!r}, 10**9)\n"
        "writer.put(marshal.dumps((0, [('StepStarted', 0.0)], {})))\n"
        "while not (path.exists() and 'StepStarted' in path.read_text()):\n"
        "    time.sleep(0.05)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not (path.exists() and '"ended"' in path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    xray = load_xray(path)
    assert (xray.trace.num_steps, xray.has_ended) == (1, True)


def test_an_id_that_is_used_again_is_told_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIVLLM_XRAY", str(tmp_path / "run.jsonl"))
    recorder = Recorder(HEADER, keep=True)
    for number in range(3):
        recorder.requests["a"] = {"max_tokens": number}
        recorder.rows.append(("RequestAdded", "a", [5, number], 0, 0.0, None))
        recorder.start_step()
        recorder.rows += [("Scheduled", "a", "new", 0, 2, True), ("Sampled", "a", 1),
                          ("Finished", "a", "stop")]  # fmt: skip
        recorder.rows.insert(2, ("StepPlanned", 0.0))
        recorder.end_step()
    recorder.close()
    for xray in (load_xray(tmp_path / "run.jsonl"), recorder.trace):
        assert {name: asked["max_tokens"] for name, asked in xray.requests.items()} == {
            "a": 0, "a#2": 1, "a#3": 2,
        }  # fmt: skip
    assert [r.seq_id for r in recorder.trace.of(Sampled)] == ["a", "a#2", "a#3"]
