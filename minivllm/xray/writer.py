"""XRayWriter: hands the steps of a running vLLM to a process of its own, which writes the file."""

from __future__ import annotations

import marshal
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from minivllm.logger import init_logger

logger = init_logger(__name__)

MOST_BATCHES = 20_000  # that may wait for the disk
_PAUSE = 0.1  # seconds from one hand-over to the next
_PATIENCE = 10  # seconds that vLLM's end waits for the last steps to be written


class XRayWriter:
    """Writes steps to a file, one line each. ``put`` never waits.

    JSON is made in the other process (``writing.py``): here it would take vLLM's interpreter lock.
    When vLLM is killed, that process ends too, behind what it was given. A file that cannot be
    written costs one sentence in the log; vLLM goes on.

    Args:
        path: is replaced if it exists.
        header: the first line.
        max_bytes: at this size the file's older half is dropped.
    """

    def __init__(self, path: str, header: str, max_bytes: int):
        self.path = path
        self._command = [sys.executable, "-m", "minivllm.xray.writing", path, str(max_bytes)]
        self._header = header
        self._batches: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._failed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="minivllm-xray", daemon=True)
        self._thread.start()

    def put(self, batch: bytes) -> None:
        """Let a marshalled batch be written."""
        if self._failed:
            return
        self._batches.put(batch)
        if self._batches.qsize() > MOST_BATCHES:
            self._give_up(f"{MOST_BATCHES} steps wait for the disk")

    def close(self) -> None:
        """Write what is left. At most 10 seconds."""
        self._closing.set()
        self._batches.put(None)
        self._thread.join(_PATIENCE)

    def _give_up(self, why: object) -> None:
        if not self._failed:
            self._failed = True
            logger.warning("%s is written no further: %s. vLLM goes on.", self.path, why)

    def _run(self) -> None:
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            with process:  # Ctrl-C is not for it: it ends when nothing comes any more
                assert process.stdin is not None
                assert process.stderr is not None
                with suppress(BrokenPipeError), process.stdin as pipe:
                    self._hand_over(pipe)
                said = process.stderr.read().decode(errors="replace").strip()
        except (OSError, ValueError) as error:
            return self._give_up(error)
        if process.returncode:
            self._give_up(said.splitlines()[-1] if said else f"exit code {process.returncode}")

    def _hand_over(self, pipe: IO[bytes]) -> None:
        marshal.dump(self._header, pipe)
        more = True
        while more and not self._failed:
            group = [self._batches.get()]
            self._closing.wait(_PAUSE)  # else it would ask for the interpreter lock in each step
            while not self._batches.empty():
                group.append(self._batches.get())
            more = None not in group
            pipe.write(marshal.dumps([batch for batch in group if batch is not None]))
            pipe.flush()


def path_of(path: str, engine: int | None) -> str:
    """The file of one of several engines: "run.jsonl" becomes "run.dp1.jsonl"."""
    if engine is None:
        return path
    where = Path(path)
    return str(where.with_name(f"{where.stem}.dp{engine}{where.suffix}"))
