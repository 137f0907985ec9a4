"""follow: read an X-ray that is still written, and say what happens."""

from __future__ import annotations

import gzip
import os
import time
import zlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import IO

from minivllm.trace.records import Record, Scheduled, StepStarted
from minivllm.trace.state import State
from minivllm.xray.format import XRay, read_header
from minivllm.xray.replay import apply_record, check_record

_PAUSE = 0.2  # seconds between two looks at a file that has not grown


def grown_lines(path: Path, go_on: Callable[[], bool]) -> Iterator[str]:
    """Yield the lines of a file, and those that are written later.

    A writer that has reached its bound replaces the file, and a vLLM that is started again writes
    it anew; then it is read from its beginning. A compressed file (".gz") is whole, and ends.

    Args:
        path: of the file, which must exist.
        go_on: asked when nothing is left to read; False ends it.

    Raises:
        OSError, ValueError: for a file that cannot be read.
    """
    if path.name.endswith(".gz"):
        try:
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as text:
                yield from text
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} cannot be read further: {error}.") from None
        return
    while True:
        with open(path, "rb") as file:
            head = file.readline()
            rest = b""
            file.seek(0)
            while True:
                rest += file.readline()
                if rest.endswith(b"\n"):
                    yield rest.decode(errors="replace")
                    rest = b""
                    continue
                if not go_on():
                    return
                time.sleep(_PAUSE)
                if _is_another(path, file, head):
                    break


def _is_another(path: Path, file: IO[bytes], head: bytes) -> bool:
    """True if another file is there now, or another run in the same one."""
    try:
        now = path.stat()
        if now.st_ino != os.fstat(file.fileno()).st_ino or now.st_size < file.tell():
            return True
        with open(path, "rb") as again:
            return not again.readline().startswith(head)
    except FileNotFoundError:  # not there yet
        return False


class Following:
    """The run of a growing file so far, without the lines that cannot be read.

    Args:
        say: gets a sentence about each of these, and about a run that begins again.
    """

    def __init__(self, say: Callable[[str], None]):
        self.xray: XRay | None = None
        self.state: State | None = None
        self.num_step_tokens = 0  # of the last plan
        self._say = say
        self._has_gap = False  # behind a line that is left out, until the next step
        self._has_lost = False  # so later records may not fit, which is said no more

    @property
    def has_ended(self) -> bool:
        """True if the run's writer has said that nothing more will come."""
        return self.xray is not None and self.xray.has_ended

    def read(self, line: str) -> list[Record | State]:
        """Take the next line. Returns its records; a State first, if they begin anew behind it.

        Raises:
            ValueError: if the first line of all is no header.
        """
        try:
            if self.xray is None or line.startswith('{"minivllm_xray"'):
                return self._begin(line)
            begins = line.startswith('{"beginning"')
            self.xray.read_line(line)
        except ValueError as error:
            if self.xray is None:
                raise
            self._has_gap = self._has_lost = True
            self._say(str(error))
            return []
        self.xray.requests.clear()
        if begins:
            self.state = self.xray.trace.beginning()
            return [self.xray.trace.beginning()]
        return self._fitting(self.xray.trace.take())

    def _begin(self, line: str) -> list[Record | State]:
        again = self.xray
        self.xray = read_header(line)
        if again is not None and again.header.get("started") != self.xray.header.get("started"):
            self._say("vLLM was started again")
        self._has_gap = False
        self._has_lost = False
        self.num_step_tokens = 0
        self.state = self.xray.trace.beginning()
        return [self.xray.trace.beginning()]

    def _fitting(self, records: list[Record]) -> list[Record | State]:
        """Those of a line's records that can follow; behind a gap first the state, at a step.

        What a line that is left out had changed is not known.
        """
        assert self.state is not None
        fitting: list[Record | State] = []
        for record in records:
            if isinstance(record, StepStarted):
                self.num_step_tokens = 0
                if self._has_gap:
                    fitting = [self._state_before(record.step)]
                    self._has_gap = False
            try:
                check_record(self.state, record)
                self._has_gap |= not self._applies(record)
            except ValueError as error:
                if not self._has_lost:
                    self._say(str(error))
                self._has_lost = True
                continue
            fitting.append(record)
            if isinstance(record, Scheduled):
                self.num_step_tokens += record.num_tokens
        self.state.forget_finished()
        return [] if self._has_gap else fitting

    def _applies(self, record: Record) -> bool:
        """Apply a record; if it cannot be, the state may be changed in part."""
        assert self.state is not None
        try:
            apply_record(self.state, record)
        except ValueError:
            return False
        return True

    def _state_before(self, step: int) -> State:
        """The state that is known before a step; of plans in flight nothing is."""
        assert self.state is not None
        self.state.step = step - 1
        for seq in self.state.sequences.values():
            seq.in_flight = []
            seq.num_scheduled_tokens = 0
        return deepcopy(self.state)


def follow(path: Path, say: Callable[[str], None], go_on: Callable[[], bool]) -> None:
    """Say once a second how many requests run and wait, and what the last step did.

    An empty file may be one that has just been made: its first line is waited for.

    Raises:
        OSError, ValueError: for a file that cannot be read, or is no X-ray.
    """
    following = Following(say)
    said = 0.0
    last = ""
    for line in grown_lines(path, go_on):
        following.read(line)
        if time.monotonic() - said >= 1 or following.has_ended:
            said = time.monotonic()
            last = _say_once(describe(following), last, say)
        if following.has_ended:
            say("the run has ended")
    _say_once(describe(following), last, say)


def _say_once(text: str, last: str, say: Callable[[str], None]) -> str:
    if text and text != last:
        say(text)
    return text


def describe(following: Following) -> str:
    """The last step of a run in one line; empty before the first."""
    state = following.state
    xray = following.xray
    if state is None or xray is None or state.step < 0:
        return ""
    used = state.num_blocks - 1 - len(state.free_queue)
    return (
        f"step {state.step}: {following.num_step_tokens} of "
        f"{xray.trace.max_num_batched_tokens} tokens, {len(state.running)} running, "
        f"{len(state.waiting)} waiting, {used} of {state.num_blocks - 1} blocks"
    )
