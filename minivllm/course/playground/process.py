"""PythonProcess: the page's Python as a process of its own, which can be stopped.

The child reads requests from its input, a line with a number and JSON each, and answers each with a
line that begins with the same number. Both go through descriptors that no process of a cell has.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from queue import Empty, SimpleQueue
from typing import TextIO

CHILD = ("-m", "minivllm.course.playground.process")
STOPPED = json.dumps({"error": "Stopped.", "stopped": True})


class PythonProcess:
    """A child that answers requests one after the other, and is started anew once it is stopped.

    ``language`` is the one that it speaks, such as "zh"; None: this process's.
    """

    def __init__(self, language: str | None = None) -> None:
        self._language = {} if language is None else {"MINIVLLM_LANG": language}
        self._lock = threading.Lock()  # one request at a time
        self._child = self._start()
        self._num_asked = 0

    def _start(self) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, *CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            encoding="utf-8", start_new_session=True, env={**os.environ, **self._language},
        )  # fmt: skip

    def ask(self, request: str, seconds: float) -> str:
        """The reply to a request; an error if it takes longer, or the child ends.

        Args:
            request: JSON in one line.
            seconds: that it may take; the child is then killed.
        """
        with self._lock:
            if self._child.returncode is None and self._child.poll() is not None:
                _end(self._child)  # it has ended by itself; what it has started may not have
            if self._child.returncode is not None:
                self._child = self._start()
            self._num_asked += 1
            replies: SimpleQueue[str] = SimpleQueue()
            asked = self._child, self._num_asked, request, replies
            threading.Thread(target=_exchange, args=asked, daemon=True).start()
            try:
                reply = replies.get(timeout=seconds)
            except Empty:
                _end(self._child)
                error = f"Stopped after {seconds:g} seconds: it did not end."
                return json.dumps({"error": error, "stopped": True})
            if not reply:
                _end(self._child)
            return reply or STOPPED

    def stop(self) -> None:
        """End what runs, the child and its processes; the next request starts another child."""
        _end(self._child)


def _exchange(
    child: subprocess.Popen, number: int, request: str, replies: SimpleQueue[str]
) -> None:
    """Send a request and put its reply; an empty one if the child has ended."""
    reply = ""
    with contextlib.suppress(OSError, ValueError):  # a pipe that broke, or was closed meanwhile
        child.stdin.write(f"{number} {request}\n")
        child.stdin.flush()
        for line in child.stdout:
            if line.startswith(f"{number} "):
                reply = line.partition(" ")[2].strip()
                break
    replies.put(reply)


def _end(child: subprocess.Popen) -> None:
    """Kill a child and the processes that it has started: all of its group."""
    if sys.platform == "win32":
        child.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def answer_lines() -> None:
    """Answer each line of the input; what cells and their processes print is not among the replies.

    They have an empty input, and the error stream in place of the output.
    """
    from minivllm.course.playground.answer import answer

    lines = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    requests: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(lines, requests), daemon=True).start()
    print(file=replies)  # whatever an interpreter that starts has printed ends here
    own = os.getpid()
    while True:
        number, _, request = requests.get().partition(" ")
        reply = answer(request)
        if os.getpid() != own:  # a cell has forked this process: the parent answers
            os._exit(0)
        print(number, reply, file=replies, flush=True)


def _read(lines: TextIO, requests: SimpleQueue[str]) -> None:
    """Pass on each line; at the end, when the server is gone, end this process and its group."""
    for line in lines:
        requests.put(line)
    if sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    answer_lines()
