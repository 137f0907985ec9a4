"""Writing: the process beside a running vLLM that makes JSON of its steps.

``python -m minivllm.xray.writing FILE MAX_BYTES`` reads from its standard input what ``XRayWriter``
marshals: the header, and then lists of marshalled batches.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from minivllm.xray.format import ended_line, step_line
from minivllm.xray.truncate import drop_oldest

_MOST_LINES = 1000  # written at once


def write_all(stream: BinaryIO, path: str, max_bytes: int) -> None:
    """Write the file until the stream ends, and say so in its last line.

    Raises:
        OSError: if it cannot be written.
        ValueError: for a record that is no JSON.
    """
    header = marshal.load(stream)
    size = Path(path).write_bytes(header.encode())
    for batches in _groups(stream):
        for first in range(0, len(batches), _MOST_LINES):
            some = batches[first : first + _MOST_LINES]
            parts = (marshal.loads(batch) for batch in some)
            text = "".join(step_line(step, rows, requests) for step, rows, requests in parts)
            size += _append(path, text)
            if size > max_bytes:
                drop_oldest(path, max_bytes // 2)
                size = os.path.getsize(path)
    _append(path, ended_line())


def _groups(stream: BinaryIO) -> Iterator[list[bytes]]:
    while True:
        try:
            yield marshal.load(stream)
        except (EOFError, ValueError, TypeError):  # vLLM was killed, amid what it said
            return


def _append(path: str, text: str) -> int:
    data = text.encode()
    with open(path, "ab") as file:
        file.write(data)
    return len(data)


if __name__ == "__main__":
    try:
        write_all(sys.stdin.buffer, sys.argv[1], int(sys.argv[2]))
    except (OSError, ValueError, TypeError) as error:
        sys.exit(str(error))
