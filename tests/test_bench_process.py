"""Engines in processes of their own: they answer, they fail with one line, and they end."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from minivllm.lab.bench.process import engine_processes, take_turns, timed_run
from minivllm.lab.bench.workloads import BenchRequest

pytestmark = pytest.mark.slow

ROUNDS = [[BenchRequest([1, 2], 3)], [BenchRequest([4], 1)]]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Echo:
    """Answers with the prompts, its greeting and how many threads it was told to use."""

    name = "echo"
    num_cached_tokens = 7

    def __init__(self, greeting: int):
        print("this must not be read as a line of JSON")
        self.first = [greeting, int(os.environ.get("OMP_NUM_THREADS", "0"))]
        self.runs = 0

    def fresh(self, rounds):
        self.runs += 1
        return nullcontext()

    def run(self, rounds):
        prompts = [request.prompt_token_ids for requests in rounds for request in requests]
        return [[*self.first, self.runs], *prompts]


class Unloadable(Echo):
    name = "unloadable"

    def __init__(self, greeting: int):
        raise ValueError("no such\n  model")


class Unrunnable(Echo):
    name = "unrunnable"

    def run(self, rounds):
        raise EOFError("half a file")


class Mortal(Echo):
    name = "mortal"

    def run(self, rounds):
        os._exit(9)


class Endless(Echo):
    name = "endless"

    def run(self, rounds):
        print(os.getpid(), file=sys.stderr, flush=True)
        time.sleep(600)


def test_engines_take_turns(capfd):
    with engine_processes([Echo], 3, 5) as engines:
        runs = take_turns(engines, ROUNDS, repeats=2)["echo"]
    assert [run.answers for run in runs] == [[[5, 3, n], [1, 2], [4]] for n in (2, 3)]
    assert all(run.seconds > 0 and run.num_cached_tokens == 7 for run in runs)
    here = timed_run(Echo(5), ROUNDS)
    assert here.answers[1:] == runs[0].answers[1:], "the same as in this process"
    assert multiprocessing.active_children() == []
    assert capfd.readouterr().out.count("JSON") == 1, "that of this process only"


@on_linux
def test_memory_is_that_of_the_process_alone():
    ballast = b"\1" * (300 * 2**20)
    with engine_processes([Echo], 1, 5) as (engine,):
        peak = engine.run(ROUNDS).memory["peak_memory_mib"]
    assert 5 < peak < 200 < timed_run(Echo(5), ROUNDS).memory["peak_memory_mib"]
    del ballast


@pytest.mark.parametrize(
    ("engine_class", "message"),
    [
        (Unloadable, "unloadable failed: ValueError: no such model"),
        (Unrunnable, "unrunnable failed: EOFError: half a file"),
        (Mortal, "mortal ended in the middle of its work, with exit code 9"),
    ],
)
def test_a_failure_is_one_line(engine_class, message):
    with (
        pytest.raises(ChildProcessError, match=message),
        engine_processes([Echo, engine_class], 1, 5) as engines,
    ):
        take_turns(engines, ROUNDS, repeats=1)
    assert multiprocessing.active_children() == []


@on_linux
@pytest.mark.parametrize("how", ["Ctrl-C", "killed"])
def test_no_engine_outlives_its_parent(how):
    code = (
        "from test_bench_process import *\n"
        "with engine_processes([Endless], 1, 5) as (engine,): engine.run(ROUNDS)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parent,
        start_new_session=True,
        # a shell's background jobs ignore Ctrl-C, and so would whatever these tests start
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with parent:
        lines = (line.strip() for line in parent.stderr)
        child = int(next(line for line in lines if line.isdigit()))
        if how == "Ctrl-C":
            os.killpg(parent.pid, signal.SIGINT)  # a terminal sends it to all of the group
        else:
            parent.kill()
        said = parent.stderr.read()  # until both are gone
    assert not is_alive(child)
    assert said.count("KeyboardInterrupt") == (1 if how == "Ctrl-C" else 0), said


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # dead, and nobody has asked how it went
