"""Dropping: rewrite an X-ray file so that it begins later, with the state behind what is gone.

A process of its own (``python -m minivllm.xray.dropping FILE BYTES``), which the writer starts.
"""

from __future__ import annotations

import os
import sys

from minivllm.xray.format import beginning_line, read_header


def drop_oldest(path: str, max_bytes: int) -> None:
    """Drop the oldest steps of a file until at most ``max_bytes`` of steps are left.

    The last step is always kept. Another file takes its place, so readers see the old or the new.
    """
    with open(path, encoding="utf-8") as file:
        header, *lines = file
    first = _first_kept(lines, max_bytes)
    xray = read_header(header)
    for line in lines[:first]:
        xray.read_line(line)
    state = xray.trace.state_at(xray.trace.step) if xray.trace.records else xray.trace.beginning()
    alive = state.forget_finished()
    requests = {name: asked for name, asked in xray.requests.items() if name in alive}
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(header + beginning_line(state, requests))
        file.writelines(lines[first:])
    os.replace(path + ".part", path)


def _first_kept(lines: list[str], max_bytes: int) -> int:
    """Index of the first line that stays: one with which a step begins."""
    first, size = len(lines), 0
    for index in range(len(lines) - 1, 0, -1):
        size += len(lines[index])
        if first < len(lines) and size > max_bytes:
            break
        if '["StepStarted"' in lines[index]:
            first = index
    return first


if __name__ == "__main__":
    drop_oldest(sys.argv[1], int(sys.argv[2]))
