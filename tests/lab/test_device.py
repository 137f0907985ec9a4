"""The device of a lecture, and the cells that run on a GPU."""

import os
import sys
from types import SimpleNamespace

import pytest
from cuda_stand_ins import pretend_gpu, pretend_no_gpu

from minivllm.lab import device


@pytest.fixture
def notebook(monkeypatch):
    """IPython as it is in a notebook's kernel."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setenv("MINIVLLM_DEVICE", "what the reader has not said")
    monkeypatch.delenv("MINIVLLM_DEVICE")


def test_a_lecture_is_the_cpus_on_every_machine(notebook, monkeypatch, capsys):
    said = []
    for pretend in (pretend_no_gpu, pretend_gpu):
        pretend(monkeypatch)
        device.choose_device()
        said.append(capsys.readouterr().out)
        assert os.environ["MINIVLLM_DEVICE"] == "cpu"
    assert said == ["Device: cpu (MINIVLLM_DEVICE=cuda: a GPU).\n"] * 2


@pytest.mark.parametrize("asked", ["cuda", "auto"])
def test_a_reader_may_ask_for_the_gpu(notebook, monkeypatch, capsys, asked):
    pretend_gpu(monkeypatch)
    monkeypatch.setenv("MINIVLLM_DEVICE", asked)
    device.choose_device()
    assert capsys.readouterr().out == "Device: cuda (the text's numbers are a CPU's).\n"
    assert os.environ["MINIVLLM_DEVICE"] == asked


def test_a_script_is_left_alone(monkeypatch, capsys):
    monkeypatch.delenv("MINIVLLM_DEVICE", raising=False)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    device.choose_device()
    assert capsys.readouterr().out == ""
    assert "MINIVLLM_DEVICE" not in os.environ


@pytest.mark.parametrize(("asked", "pretend"), [(None, pretend_no_gpu), ("cpu", pretend_gpu)])
def test_a_cell_for_a_gpu_is_one_sentence_without(monkeypatch, capsys, asked, pretend):
    pretend(monkeypatch)
    monkeypatch.setattr(device, "ASKED", asked)
    device.on_gpu("print(1)")
    assert capsys.readouterr().out == device.NO_GPU + "\n"


def test_a_cell_for_a_gpu_runs_in_a_process_that_compiles(monkeypatch, capsys):
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(device, "ASKED", None)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("MINIVLLM_DEVICE", "cpu")  # which was our choice
    device.on_gpu("import os; print(*map(os.environ.get, ('MINIVLLM_DEVICE', 'TRITON_INTERPRET')))")
    assert capsys.readouterr().out == "cuda None\n"
    device.on_gpu("print('so far'); raise ValueError('no more')")
    assert capsys.readouterr().out == "so far\nfailed: ValueError: no more\n"
