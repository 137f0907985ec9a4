"""Compiling: who waits for it is told, a notebook keeps nothing of that, and it is done ahead."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from helpers import nightly
from nbclient import NotebookClient
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.cpu import compiling
from minivllm.logger import show_on_stderr
from minivllm.utils.notebook import WIDGET_VIEW

LINE = compiling.LINE + "\n"
EXECUTE = Path(__file__).parents[2] / "notebooks" / "execute.py"


class Clock:
    """In the place of time: it goes on when a test says so."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(compiling, "time", clock)
    return clock


def compile_for(clock, listener, seconds):
    """One loop, which calls another that takes half of the time."""
    listener.on_start(None)
    listener.on_start(None)
    clock.now += seconds / 2
    listener.on_end(None)
    clock.now += seconds / 2
    listener.on_end(None)


def test_compiling_is_told_once_after_two_seconds(clock, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    listener = compiling.CompileListener()
    compile_for(clock, listener, 1.9)
    clock.now += 50  # of something else
    assert capsys.readouterr().out == ""
    for _ in range(2):
        compile_for(clock, listener, 1.9)
    assert capsys.readouterr() == ("INFO " + LINE, "")


def test_one_long_loop_is_told_while_it_is_compiled(clock, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    listener = compiling.CompileListener()
    listener.on_start(None)
    clock.now += 3
    listener.on_start(None)
    assert capsys.readouterr().out == "INFO " + LINE


def test_a_command_tells_it_beside_its_output(clock, monkeypatch, capsys):
    """Also in a pipe, and though other lines of the log are not shown."""
    CliRunner().invoke(app, ["quantize", "nowhere", "nowhere"])
    compile_for(clock, compiling.CompileListener(), 3)
    assert capsys.readouterr() == ("", LINE)
    show_on_stderr("minivllm.cpu.compiling")  # a second time changes nothing
    compile_for(clock, compiling.CompileListener(), 3)
    assert capsys.readouterr() == ("", LINE)


def test_elsewhere_it_is_for_debugging(clock, monkeypatch, capsys):
    """A script whose output is kept says the same in the first run and the second."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    compile_for(clock, compiling.CompileListener(), 3)
    assert capsys.readouterr() == ("", "")


CELL = """
import numba
from minivllm.cpu import compiling
compiling.TOLD_AFTER = 0

@numba.njit
def double(x):
    return 2 * x

print(double(21))
"""


class Listening(NotebookClient):
    """A front end that notes what it is sent."""

    def process_message(self, msg, cell, cell_index):
        self.messages.append(msg)
        return super().process_message(msg, cell, cell_index)


@pytest.mark.slow
def test_a_notebook_shows_it_while_the_cell_runs_and_stores_nothing(tmp_path):
    cells = [nbformat.v4.new_code_cell(source) for source in (CELL, "print(double(1.5))")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = Listening(notebook, timeout=120, kernel_name="python3")
    client.messages = []
    client.execute()
    shown = [m["content"]["data"] for m in client.messages if m["msg_type"] == "display_data"]
    (view,) = shown  # once, though two loops were compiled
    assert view.keys() == {WIDGET_VIEW}  # which a strict run does not compare
    labels = [
        m["content"]["data"]["state"]["value"]
        for m in client.messages
        if m["msg_type"] == "comm_open" and "value" in m["content"]["data"]["state"]
    ]
    assert labels == [compiling.LINE]
    stored = [
        [(output.output_type, output.get("text"), output.get("data")) for output in cell.outputs]
        for cell in notebook.cells
    ]
    printed = [("stream", "42\n", None)]
    assert stored == [[("display_data", None, {}), *printed], [("stream", "3.0\n", None)]]
    path = tmp_path / "one.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)]), path)
    subprocess.run([sys.executable, EXECUTE, path], check=True, capture_output=True)
    (cell,) = nbformat.read(path, as_version=4).cells
    assert [(output.output_type, output.text) for output in cell.outputs] == [("stream", "42\n")]


@nightly
def test_warm_compiles_what_a_model_needs(tiny_chat, tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "minivllm", "warm", str(tiny_chat)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"The kernels of {tiny_chat} are compiled" in done.stdout
    kept = {file.name.split("-")[0].split(".")[-1] for file in tmp_path.rglob("*.nbi")}
    assert kept >= {"_prefill", "_decode", "write_slots_loop", "merge_attn_states_loop"}
