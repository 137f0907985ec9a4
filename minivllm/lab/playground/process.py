"""PythonProcess: the page's Python as a process of its own, which can be stopped.

The child reads requests from its input, a line of JSON each, and writes a line for each reply.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading

CHILD = ("-m", "minivllm.lab.playground.process")
STOPPED = json.dumps({"error": "Stopped.", "stopped": True})


class PythonProcess:
    """A child that answers requests one after the other, and is started anew once it is stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # one request at a time
        self._child = self._start()

    def _start(self) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, *CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            encoding="utf-8",
        )  # fmt: skip

    def ask(self, request: str, seconds: float) -> str:
        """The reply to a request; an error if it takes longer, or the child ends.

        Args:
            request: JSON in one line.
            seconds: that it may take; the child is then killed.
        """
        with self._lock:
            if self._child.poll() is not None:
                self._child = self._start()
            child, late = self._child, threading.Event()
            timer = threading.Timer(seconds, lambda: (late.set(), child.kill()))
            timer.start()
            try:
                child.stdin.write(request + "\n")
                child.stdin.flush()
                reply = child.stdout.readline()
            except OSError:  # it ended in between
                reply = ""
            finally:
                timer.cancel()
        if late.is_set():
            error = f"Stopped after {seconds:g} seconds: it did not end."
            return json.dumps({"error": error, "stopped": True})
        return reply.strip() or STOPPED

    def stop(self) -> None:
        """End what runs, and the child; the next request starts another one."""
        self._child.kill()
        self._child.wait()


def answer_lines() -> None:
    """Answer each line of the input; what else is printed goes to the error stream."""
    from minivllm.lab.playground.answer import answer

    replies, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(answer(line), file=replies, flush=True)


if __name__ == "__main__":
    answer_lines()
