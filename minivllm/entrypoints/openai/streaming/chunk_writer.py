"""ChunkWriter: the chunks of a stream as server-sent events, in bytes.

A pydantic model per chunk would cost more than all other work of the server for a token. So the
constant parts are encoded once per stream. ``tests/entrypoints/test_21_serving.py`` compares chunks
with whole answers.
"""

from __future__ import annotations

import json

from minivllm.entrypoints.openai.errors import RequestError

DONE = b"data: [DONE]\n\n"
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class ChunkWriter:
    """Encoder of the chunks of one stream.

    Args:
        head: the first keys of every chunk: id, object, created, model.
        fingerprint: of the server, in the last chunk before ``[DONE]``.
        include_usage: the last chunk has the usage and no choices.
    """

    def __init__(self, head: dict, fingerprint: str, include_usage: bool):
        self._head = f'data: {_dumps(head)[:-1]},"choices":['
        self._fingerprint = f',"system_fingerprint":{_dumps(fingerprint)}'
        self._include_usage = include_usage

    def chunk(self, choice: str, finished: bool = False, more: dict | None = None) -> bytes:
        """The event of a chunk with one choice.

        Args:
            choice: the choice, as JSON.
            finished: the choice ends.
            more: keys beside the choices.
        """
        tail = "]"
        if finished and not self._include_usage:
            tail += self._fingerprint
        for name, value in (more or {}).items():
            tail += f',"{name}":{_dumps(value)}'
        return f"{self._head}{choice}{tail}}}\n\n".encode()

    def usage(self, usage: dict, metrics: dict | None = None) -> bytes:
        """The event of the last chunk with ``include_usage``. It has no nulls."""
        times = ""
        if metrics is not None:
            known = {name: value for name, value in metrics.items() if value is not None}
            times = f',"metrics":{_dumps(known)}'
        return f'{self._head}]{self._fingerprint},"usage":{_dumps(usage)}{times}}}\n\n'.encode()


def to_json(value) -> str:
    """Encode a value as compact JSON."""
    return "null" if value is None else _dumps(value)


def error_event(error: Exception) -> bytes:
    """The event of an error after the beginning of a stream."""
    return f"data: {_dumps(RequestError.of(error).body())}\n\n".encode()
