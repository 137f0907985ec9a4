"""Threads: how many a step has, how long they spin, and that a user's own settings win."""

import os
import subprocess
import sys
import time
from itertools import pairwise

import pytest
import torch

from minivllm.cpu import contention, threads
from minivllm.cpu.contention import WINDOW, CPUContention, seconds_without_core
from minivllm.cpu.spin import SPIN_COUNT
from minivllm.cpu.threads import ThreadBounds

pytestmark = pytest.mark.slow


def in_a_new_process(code, **environment):
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


SHOW = (
    "import os; from minivllm.cpu.spin import describe_spinning;"
    "print(os.environ.get('GOMP_SPINCOUNT'), '|', describe_spinning())"
)


def test_importing_minivllm_bounds_the_spinning_before_torch_is_there():
    said = in_a_new_process(f"import minivllm; {SHOW}")
    assert said == f"{SPIN_COUNT} | GOMP_SPINCOUNT={SPIN_COUNT}"


@pytest.mark.parametrize(
    ("name", "value"), [("GOMP_SPINCOUNT", "77"), ("OMP_WAIT_POLICY", "passive")]
)
def test_a_users_setting_wins(name, value):
    said = in_a_new_process(f"import minivllm; {SHOW}", **{name: value})
    spin_count = value if name == "GOMP_SPINCOUNT" else None
    assert said == f"{spin_count} | {name}={value}"


def test_where_torch_came_first_the_log_says_so():
    code = (
        "import torch, minivllm; from minivllm.cpu.threads import log_threads;"
        f"log_threads(); {SHOW}"
    )
    line, setting = in_a_new_process(code, MINIVLLM_LOGGING_LEVEL="DEBUG").splitlines()
    assert line.startswith("DEBUG ")
    assert line.endswith("unbounded, since torch was imported before minivllm.")
    assert setting.startswith("None | ")
    assert len(in_a_new_process(code).splitlines()) == 1  # nothing at INFO


class CountsThreads(torch.nn.Module):
    """Has the number of threads of its last call; may raise an error in it."""

    error = None

    def forward(self, rows):
        self.num_threads = torch.get_num_threads()
        if self.error is not None:
            raise self.error


@pytest.fixture
def bounded(monkeypatch):
    """A module for whose work two threads are worth it from 1,024 rows on; torch has two."""
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "contention", CPUContention(waited=lambda: 0.0))
    torch.set_num_threads(2)
    module = CountsThreads()
    ThreadBounds().bound(module, threads.WORTH_SHARING >> 10)
    yield module
    torch.set_num_threads(before)


def test_a_user_s_number_of_threads_stays(bounded):
    for rows, expected in ((2**10 - 1, 1), (2**10, 2)):
        bounded(torch.empty(rows))
        assert bounded.num_threads == expected
        assert torch.get_num_threads() == 2
    bounded.error = KeyError(1)
    with pytest.raises(KeyError):
        bounded(torch.empty(1))
    assert (bounded.num_threads, torch.get_num_threads()) == (1, 2)


def test_after_ctrl_c_the_next_call_gives_the_threads_back(bounded):
    bounded.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        bounded(torch.empty(1))
    bounded.error = None
    bounded(torch.empty(2**10))
    assert (bounded.num_threads, torch.get_num_threads()) == (2, 2)


def test_under_contention_a_step_has_a_thread_less_until_it_is_tried_again():
    """Two processes that are busy, for a second, and then none; looked at every 120 ms."""
    now, waited, chosen = 0.0, 0.0, []
    ours = CPUContention(waited=lambda: waited, clock=lambda: now)
    while now < 2.5:
        now += 0.12
        took_a_core = max(0, ours.threads(8) - 6) if now < 1 else 0
        waited += 0.12 * 0.8 * took_a_core
        chosen.append(ours.threads(8))
    assert chosen[:3] == [8, 7, 6]
    assert min(chosen) == 6  # not 5: then no thread waits
    assert chosen[-1] == 8
    tries = sum(b > a for a, b in pairwise(chosen))
    assert 3 <= tries <= 4  # once in half a second

    alone = CPUContention(waited=lambda: 9.0 * now, clock=lambda: now)
    for _ in range(20):
        now += 0.12
        assert alone.threads(2) >= 1
        assert alone.threads(1) == 1


def test_a_step_looks_for_contention_only_where_it_has_work_for_several_threads(
    bounded, monkeypatch
):
    monkeypatch.setattr(
        threads, "contention", CPUContention(waited=lambda: 9 * time.perf_counter())
    )
    torch.set_num_threads(4)
    time.sleep(WINDOW)
    for rows, expected in ((1, 1), (2**10, 3)):
        bounded(torch.empty(rows))
        assert bounded.num_threads == expected
        assert torch.get_num_threads() == 4


def test_the_time_without_a_core_is_read_from_the_system_if_it_tells(monkeypatch, tmp_path):
    assert seconds_without_core() >= 0
    for name, text in (("1", "5 2500000000 7\n"), ("2", "1 500000000 1\n"), ("3", ""), ("4", "?")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(contention, "TASKS", str(tmp_path / "*"))
    assert seconds_without_core() == 3.0
    monkeypatch.setattr(contention, "TASKS", str(tmp_path / "nowhere" / "*"))
    assert seconds_without_core() == 0.0


def test_loops_have_torch_s_number_of_threads_or_one_for_little_work():
    code = """
import minivllm, numba, numpy, torch
from minivllm.cpu.compiled import parallel_kernel
from minivllm.cpu.sharing import shared_range

@parallel_kernel(10)
def who(share, threads):
    for i in shared_range(share, len(threads)):
        threads[i] = numba.get_thread_id()

def count(num_threads, work):
    torch.set_num_threads(num_threads)
    who(work, threads := numpy.full(64, -1))
    return len(set(threads.tolist()))

print(count(1, 10), count(2, 10), count(2, 9), torch.get_num_threads())
"""
    assert in_a_new_process(code, NUMBA_NUM_THREADS="2", OMP_NUM_THREADS="2") == "1 2 1 2"


def test_threads_share_a_loop_so_that_each_index_comes_once():
    """Lengths below, at and above the number of threads, which numba's bounds."""
    code = """
import minivllm, numpy, torch
from minivllm.cpu.compiled import parallel_kernel
from minivllm.cpu.sharing import shared_range

@parallel_kernel(0)
def count(share, counts, numbers):
    twice = 2 * numbers  # before the loop: each has its own
    for i in shared_range(share, len(counts)):
        counts[i] += twice[i]

for num_threads in (1, 2, 3, 7):
    torch.set_num_threads(num_threads)
    for length in (0, 1, 2, 3, 4, 5, 64):
        count(0, counts := numpy.zeros(length), numpy.arange(length))
        assert counts.tolist() == (2 * numpy.arange(length)).tolist(), (num_threads, length)
    assert torch.get_num_threads() == num_threads
print("each once")
"""
    assert in_a_new_process(code, NUMBA_NUM_THREADS="3", OMP_NUM_THREADS="2") == "each once"


def test_a_loop_is_compiled_once_for_one_thread_and_for_several():
    code = """
import minivllm, numpy, torch
from numba.core import event
from minivllm.cpu.compiled import parallel_kernel
from minivllm.cpu.sharing import shared_range

@parallel_kernel(10)
def fill(share, numbers):
    for i in shared_range(share, len(numbers)):
        numbers[i] = 1

torch.set_num_threads(2)
with event.install_recorder("numba:compile") as compiled:
    for work in (1, 10):
        fill(work, numbers := numpy.zeros(4))
        assert numbers.tolist() == [1, 1, 1, 1]
names = [e.data["dispatcher"].py_func.__name__ for _, e in compiled.buffer if e.is_start]
print(names.count("fill"))
"""
    assert in_a_new_process(code, NUMBA_NUM_THREADS="2", OMP_NUM_THREADS="2") == "1"
