"""Recorder: gathers the rows of an X-ray, step by step, and hands them on.

It knows nothing of vLLM. The hooks in ``tracer.py`` append to ``rows``; whatever goes wrong in a
hook ends the X-ray with one line in the log, never vLLM's run.
"""

from __future__ import annotations

import atexit
import marshal
import time
from typing import Any

from minivllm import envs
from minivllm.logger import init_logger
from minivllm.trace.records import OWN_PLAN
from minivllm.xray.checker import Checker
from minivllm.xray.format import header_line, without_text
from minivllm.xray.live import Batch, LiveTrace
from minivllm.xray.writer import XRayWriter, path_of

logger = init_logger(__name__)


class Recorder:
    """The rows of the step that runs, and those who get them at its end.

    As a context manager it is a hook's guard: an error inside is logged, and ends the X-ray.

    Args:
        header: see ``XRay``.
        keep: whether the trace can be read in this process, so that it is kept.
        checker: compares each step with vLLM, in debug mode.
    """

    def __init__(self, header: dict[str, Any], keep: bool, checker: Checker | None = None):
        self.step = -1
        self.rows: list[tuple] = []  # of this step so far, or behind the last one
        self.requests: dict[str, dict] = {}  # what the new ones among them ask for
        self.trace = LiveTrace(header) if keep else None
        self._text = header["text"]
        self._checker = checker
        self.ending: int | None = OWN_PLAN  # the step whose plan ends in this one; None: of none
        self._said: set[tuple] = set()  # by plans that were taken back
        self._open = False
        self._on = True
        self._start = time.perf_counter()
        self._writer: XRayWriter | None = None
        if path := envs.xray_path():
            path = path_of(path, header.get("engine"))
            self._writer = XRayWriter(path, header_line(**header), envs.xray_max_bytes())
            atexit.register(self.close)

    @property
    def is_open(self) -> bool:
        """True between the start of a step and its end."""
        return self._open

    def now(self) -> float:
        """Seconds since the beginning, in microseconds."""
        return round(time.perf_counter() - self._start, 6)

    def start_step(self) -> None:
        """Begin a step. One without an end, whose plan is still on its way, ends here."""
        if self._open:
            self.ending = None
            self._end_step()
        elif self.rows:
            self._hand_on()
        self._open, self.ending = True, OWN_PLAN
        self.step += 1
        self.rows.append(("StepStarted", self.now()))

    def cancel_step(self) -> None:
        """Take a step back in which nothing was planned; why, is said once until the next one."""
        self._open = False
        self.step -= 1
        self.rows = [row for row in self.rows[1:] if row not in self._said]
        self._said.update(self.rows)

    def plan_step(self) -> None:
        self._said.clear()
        self.rows.append(("StepPlanned", self.now()))

    def end_step(self) -> None:
        """End the step that is open, unless what has ended is the plan of none."""
        if self._open and self.ending is not None:
            self._end_step()

    def _end_step(self) -> None:
        self._open = False
        row = ("StepEnded", self.now())
        self.rows.append(row if self.ending in (OWN_PLAN, self.step) else (*row, self.ending))
        self._hand_on()

    def close(self) -> None:
        """Write what is left, and end."""
        if self.rows:
            self._hand_on()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._checker is not None:
            self._checker.report()
            self._checker = None

    def _hand_on(self) -> None:
        rows = self.rows
        requests = self.requests
        self.rows = []
        self.requests = {}
        if not self._on:
            return
        if not self._text:
            rows = [without_text(row) for row in rows]
        batch: Batch = (self.step, rows, requests)
        # as bytes: rows that are kept would be looked through by the garbage collector
        packed = marshal.dumps(batch)
        if self.trace is not None:
            self.trace.add(self.step, packed)
        if self._writer is not None:
            self._writer.put(packed)
        if self._checker is not None:
            self._checker.check(batch)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, traceback) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self.give_up(error)
        return True

    def give_up(self, error: Exception) -> None:
        """End the X-ray, as a hook has failed; said once."""
        if self._on:
            self._on = False
            what = "the X-ray ends behind step %d, as it could not follow vLLM: %r. vLLM goes on."
            logger.warning(what, self.step - self._open, error)
