"""at_most_instructions: an end for a reader's kernel that has none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from minivllm.course.grading.run import NOT_THE_READERS, Fault

LIMIT = 100_000  # of one launch; our longest kernel runs some thousands
_UNCOUNTED = (*NOT_THE_READERS, "<frozen", "<string>")  # the last has methods of dataclasses


@contextmanager
def at_most_instructions(limit: int = LIMIT) -> Iterator[None]:
    """Context manager: end what runs within it after so much of the reader's own code.

    Args:
        limit: how many instructions of Python may run, those of a loop counted each time.

    Raises:
        Fault: at the first one too many.
    """
    left = limit
    counted: dict[str, bool] = {}  # by file

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in counted:
            counted[file] = not file.startswith(_UNCOUNTED)
        frame.f_trace_opcodes = counted[file]  # a loop on one line has no second event "line"
        return count if counted[file] else None

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        left -= event == "opcode"
        if left < 0:
            name = frame.f_code.co_name
            raise Fault(f"{name} does not end: {limit:,} instructions have run, look at its loop")
        return count

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)
