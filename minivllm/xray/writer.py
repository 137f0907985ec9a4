"""XRayWriter: the thread that writes an X-ray file beside a running vLLM."""

from __future__ import annotations

import marshal
import os
import queue
import subprocess
import sys
import threading

from minivllm.logger import init_logger
from minivllm.xray.format import step_line

logger = init_logger(__name__)

MOST_BATCHES = 20_000  # that may wait for the disk
_PAUSE = 0.1  # seconds from one write to the next; a process that is killed loses as much


class XRayWriter:
    """Writes steps to a file, one line each. ``put`` never waits.

    A file that cannot be written costs one sentence in the log; vLLM goes on.

    Args:
        path: is replaced if it exists.
        header: the first line.
        max_bytes: at this size the file's older half is dropped, by another process.
    """

    def __init__(self, path: str, header: str, max_bytes: int):
        self.path = path
        self._header = header
        self._max_bytes = max_bytes
        self._batches: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._failed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="minivllm-xray", daemon=True)
        self._thread.start()

    def put(self, batch: bytes) -> None:
        """Let the thread write a marshalled batch."""
        if self._failed:
            return
        self._batches.put(batch)
        if self._batches.qsize() > MOST_BATCHES:
            self._give_up(f"{MOST_BATCHES} steps wait for the disk")

    def close(self) -> None:
        """Write what is left. At most 10 seconds."""
        self._closing.set()
        self._batches.put(None)
        self._thread.join(10)

    def _give_up(self, why: object) -> None:
        if not self._failed:
            self._failed = True
            logger.warning("%s is written no further: %s. vLLM goes on.", self.path, why)

    def _run(self) -> None:
        try:
            self._write_all()
        except (OSError, subprocess.SubprocessError) as error:
            self._give_up(error)
        except Exception as error:  # of a record that is no JSON
            self._give_up(repr(error))

    def _write_all(self) -> None:
        size = self._write(self._header, "w")
        while not self._failed and (batch := self._batches.get()) is not None:
            lines = [step_line(*marshal.loads(batch))]
            self._closing.wait(_PAUSE)  # else it would ask for the interpreter lock in each step
            while not self._batches.empty() and len(lines) < 1000:
                if (batch := self._batches.get()) is None:
                    self._batches.put(None)
                    break
                lines.append(step_line(*marshal.loads(batch)))
            size += self._write("".join(lines), "a")
            if size > self._max_bytes:
                self._drop_older_half()
                size = os.path.getsize(self.path)

    def _write(self, text: str, mode: str) -> int:
        data = text.encode()
        with open(self.path, mode + "b") as file:
            file.write(data)
        return len(data)

    def _drop_older_half(self) -> None:
        """Rewrite the file in a process of its own: reading it takes longer than a step."""
        command = [sys.executable, "-m", "minivllm.xray.dropping", self.path]
        half = str(self._max_bytes // 2)
        subprocess.run([*command, half], check=True, capture_output=True, timeout=600)
