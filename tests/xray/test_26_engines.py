"""Several engines of one vLLM: a file for each, read together or singly."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.xray import report
from minivllm.xray.engines import load_engines, report_engines
from minivllm.xray.recorder import Recorder
from minivllm.xray.vllm_version import engine_of
from minivllm.xray.waits import Walk
from minivllm.xray.writer import path_of

ROOT = Path(__file__).parents[2]
RUNS = [ROOT / "tests/data/xray" / f"{name}.jsonl.gz" for name in ("tight", "chunks")]
HEADER = {
    "vllm_version": "0.32.0", "scheduler": "TracingScheduler", "started": 0.0, "model": "none",
    "num_blocks": 8, "block_size": 4, "text": True,
    "settings": {"max_num_batched_tokens": 16, "max_num_seqs": 2, "max_model_len": 32},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for number, run in enumerate(RUNS):
        lines = gzip.decompress(run.read_bytes()).decode().splitlines(keepends=True)
        header = json.loads(lines[0]) | {"started": 1000.0 + number, "engine": number}
        text = json.dumps(header) + "\n" + "".join(lines[1:])
        (tmp_path / f"run.dp{number}.jsonl").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "engine", "name"),
    [
        ("a/run.jsonl", None, "a/run.jsonl"),
        ("a/run.jsonl", 0, "a/run.dp0.jsonl"),
        ("a/run", 12, "a/run.dp12"),
        ("a.b/run.x.jsonl", 1, "a.b/run.x.dp1.jsonl"),
    ],
)
def test_the_name_says_which_engine(path, engine, name):
    assert path_of(path, engine) == name


def test_each_engine_writes_a_file_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIVLLM_XRAY", str(tmp_path / "run.jsonl"))
    recorders = [Recorder(HEADER | {"engine": number}, keep=False) for number in range(2)]
    for recorder in recorders:
        recorder.start_step()
        recorder.plan_step()
        recorder.end_step()
        recorder.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.dp0.jsonl", "run.dp1.jsonl"]
    assert [x.header["engine"] for x in load_engines(tmp_path / "run.jsonl").values()] == [0, 1]


@pytest.mark.parametrize(
    ("size", "index", "process", "engine"),
    [
        (1, 0, "MainProcess", None),
        (1, 0, "EngineCore", None),
        (1, 0, "EngineCore_DP0", 0),
        (1, 1, "EngineCore_DP1", 1),
        (2, 0, "MainProcess", 0),
    ],
)
def test_vllm_says_which_engine_it_is(monkeypatch, size, index, process, engine):
    monkeypatch.setattr(
        "minivllm.xray.vllm_version.multiprocessing.current_process",
        lambda: SimpleNamespace(name=process),
    )
    parallel = SimpleNamespace(data_parallel_size=size, data_parallel_index=index)
    assert engine_of(parallel) == engine


def test_a_report_for_each_engine_and_for_all(folder):
    xrays = load_engines(folder / "run.jsonl")
    assert list(xrays) == ["run.dp0.jsonl", "run.dp1.jsonl"]
    text = str(report_engines({name: report(xray) for name, xray in xrays.items()}))
    assert text.count("vLLM 0.32.0, ") == 2
    assert "== all 2 engines ==\n16 requests (run.dp0.jsonl 8, run.dp1.jsonl 8), 181 steps" in text
    (alone,) = load_engines(folder / "run.dp1.jsonl").values()
    assert alone.trace.num_steps == 45


def test_files_of_an_older_run_are_left_out(folder):
    lines = (folder / "run.dp1.jsonl").read_text().splitlines(keepends=True)
    old = json.loads(lines[0]) | {"started": 5.0, "engine": 2}
    (folder / "run.dp2.jsonl").write_text(json.dumps(old) + "\n" + "".join(lines[1:]))
    assert list(load_engines(folder / "run.jsonl")) == ["run.dp0.jsonl", "run.dp1.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "== all 2 engines =="),
        (["--verify"], "== run.dp1.jsonl == all 45 steps are equal"),
        (["--what-if", "num_blocks=x2"], "== run.dp1.jsonl =="),
    ],
)
def test_the_command_reads_all_engines(folder, arguments, words):
    out = folder / "pages"
    command = ["xray", str(folder / "run.jsonl"), *arguments]
    done = CliRunner().invoke(app, command if arguments else [*command, "-o", str(out)])
    assert (done.exit_code, words in " ".join(done.output.split())) == (0, True), done.output
    if not arguments:
        assert sorted(path.name for path in out.iterdir()) == ["run.dp0", "run.dp1"]


def test_a_run_is_walked_once_for_its_report_and_its_page(folder, monkeypatch):
    walked = []
    walk = Walk.__init__

    def noted(self, trace, *args, **kwargs):
        walked.append(trace)
        walk(self, trace, *args, **kwargs)

    monkeypatch.setattr(Walk, "__init__", noted)
    run, out = str(folder / "run.dp1.jsonl"), str(folder / "pages")
    done = CliRunner().invoke(app, ["xray", run, "--output", out])
    assert (done.exit_code, len(walked)) == (0, 1), done.output


def test_json_of_several_engines(folder):
    done = CliRunner().invoke(app, ["xray", str(folder / "run.jsonl"), "--json"])
    assert json.loads(done.stdout).keys() == {"run.dp0.jsonl", "run.dp1.jsonl"}


def test_no_file_is_one_sentence(tmp_path):
    done = CliRunner().invoke(app, ["xray", str(tmp_path / "no" / "run.jsonl")])
    assert done.exit_code == 2
