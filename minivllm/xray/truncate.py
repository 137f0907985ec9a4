"""Truncate the start of an X-ray file; keep the state at the cut.

A process of its own (``python -m minivllm.xray.truncate FILE BYTES``), which the writer starts. It
holds one state in memory, and never the file.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from itertools import islice

from minivllm.xray.format import XRay, beginning_line, read_header


def drop_oldest(path: str, max_bytes: int) -> None:
    """Drop the oldest steps of a file until at most ``max_bytes`` of steps are left.

    The last step is always kept. Another file takes its place, so readers see the old or the new.
    """
    first = _first_kept(path, max_bytes)
    with open(path, encoding="utf-8") as file, open(path + ".part", "w", encoding="utf-8") as part:
        header = next(file)
        part.write(header + _beginning_behind(read_header(header), islice(file, first)))
        shutil.copyfileobj(file, part)
    os.replace(path + ".part", path)


def _first_kept(path: str, max_bytes: int) -> int:
    """Number of lines between the header and the first that stays, with which a step begins."""
    with open(path, "rb") as file:
        next(file)
        lines = [(len(line), b'["StepStarted"' in line) for line in file]
    first = len(lines)
    size = 0
    for index in range(len(lines) - 1, -1, -1):
        num_bytes, begins = lines[index]
        size += num_bytes
        if first < len(lines) and size > max_bytes:
            break
        if begins:
            first = index
    return first


def _beginning_behind(xray: XRay, lines: Iterable[str]) -> str:
    """The line that stands for these: the state behind all that they say."""
    for line in lines:
        xray.read_line(line)
        alive = xray.trace.forget_all()
        for request_id in xray.requests.keys() - alive:
            del xray.requests[request_id]
    return beginning_line(xray.trace.beginning(), xray.requests)


if __name__ == "__main__":
    drop_oldest(sys.argv[1], int(sys.argv[2]))
