"""follow: read an X-ray that is still written, and say what happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from minivllm.trace.records import Scheduled
from minivllm.xray.format import XRay, read_header

_PAUSE = 0.2  # seconds between two looks at a file that has not grown


def grown_lines(path: Path, go_on: Callable[[], bool]) -> Iterator[str]:
    """Yield the lines of a file, and those that are written later.

    A writer that has reached its bound replaces the file; the new one is read from its beginning.

    Args:
        path: of the file, which must exist.
        go_on: asked when nothing is left to read; False ends it.
    """
    while True:
        with open(path, encoding="utf-8") as file:
            number, rest = os.fstat(file.fileno()).st_ino, ""
            while True:
                rest += file.readline()
                if rest.endswith("\n"):
                    yield rest
                    rest = ""
                    continue
                if not go_on():
                    return
                time.sleep(_PAUSE)
                if path.stat().st_ino != number:
                    break


def follow(path: Path, say: Callable[[str], None], go_on: Callable[[], bool]) -> None:
    """Say once a second how many requests run and wait, and what the last step did.

    An empty file may be one that has just been made: its first line is waited for.

    Raises:
        OSError, ValueError: for a file that cannot be read, or is no X-ray.
    """
    xray: XRay | None = None
    said = 0.0
    for line in grown_lines(path, go_on):
        if line.startswith('{"minivllm_xray"') or xray is None:
            xray = read_header(line)
            continue
        xray.read_line(line)
        if time.monotonic() - said >= 1 and xray.trace.num_steps > xray.trace.first_step:
            said = time.monotonic()
            say(describe(xray))
    if xray is not None and xray.trace.num_steps:
        say(describe(xray))


def describe(xray: XRay) -> str:
    """The last step of a run in one line. What came before it is then forgotten."""
    trace = xray.trace
    last = trace.num_steps - 1
    state = trace.state_at(last)
    tokens = sum(r.num_tokens for r in trace.at(last) if isinstance(r, Scheduled))
    used = trace.num_blocks - 1 - state.num_free_blocks
    trace.forget_before(last)
    return (
        f"step {last}: {tokens} of {trace.max_num_batched_tokens} tokens, "
        f"{len(state.running)} running, {len(state.waiting)} waiting, "
        f"{used} of {trace.num_blocks - 1} blocks"
    )
