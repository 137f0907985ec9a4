"""ChunkWriter: a stream's chunks as bytes, of which only what changes is made anew.

A model per chunk would cost more than all else that the server does for a token, so the parts that
stay are made once for a stream. ``tests/test_21_serving.py`` holds them to the whole answers.
"""

from __future__ import annotations

import json

from minivllm.entrypoints.openai.errors import RequestError

DONE = b"data: [DONE]\n\n"
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class ChunkWriter:
    """Writes the events of one stream.

    Args:
        head: the keys that every event begins with: id, object, created, model.
        fingerprint: in the last event before ``[DONE]``.
        include_usage: there is a last event with the usage, without choices.
    """

    def __init__(self, head: dict, fingerprint: str, include_usage: bool):
        self._head = f'data: {_dumps(head)[:-1]},"choices":['
        self._fingerprint = f',"system_fingerprint":{_dumps(fingerprint)}'
        self._include_usage = include_usage

    def event(self, choice: str, finished: bool = False, more: dict | None = None) -> bytes:
        """One event.

        Args:
            choice: its only choice, as JSON.
            finished: it ends its choice.
            more: keys beside the choices.
        """
        tail = "]"
        if finished and not self._include_usage:
            tail += self._fingerprint
        for name, value in (more or {}).items():
            tail += f',"{name}":{_dumps(value)}'
        return f"{self._head}{choice}{tail}}}\n\n".encode()

    def usage(self, usage: dict, metrics: dict | None = None) -> bytes:
        """The last event of a stream that ``include_usage`` was asked of. It has no nulls."""
        times = ""
        if metrics is not None:
            known = {name: value for name, value in metrics.items() if value is not None}
            times = f',"metrics":{_dumps(known)}'
        return f'{self._head}]{self._fingerprint},"usage":{_dumps(usage)}{times}}}\n\n'.encode()


def to_json(value) -> str:
    """A value as it stands in an event."""
    return "null" if value is None else _dumps(value)


def error_event(error: Exception) -> bytes:
    """An error that came when the stream had begun."""
    return f"data: {_dumps(RequestError.of(error).body())}\n\n".encode()
