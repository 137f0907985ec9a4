"""A server in a thread, as a command line asks for it, on a port that is free."""

from __future__ import annotations

import time
from contextlib import contextmanager

import httpx

from minivllm.entrypoints.openai.background import BackgroundServer

USUAL = [
    "--host", "127.0.0.1", "--max-model-len", "512", "--block-size", "32",
    "--max-num-seqs", "32", "--max-num-batched-tokens", "512",
    "--served-model-name", "minivllm", "embedded", "--disable-uvicorn-access-log",
    "--uvicorn-log-level", "warning",
]  # fmt: skip


class RunningServer(BackgroundServer):
    """A small server, its clients, and a look at whether it has anything to do."""

    def __init__(self, *words: str, **options):
        super().__init__(*USUAL, *words, **options)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def idle(self, seconds: float = 5.0) -> bool:
        """True as soon as no request waits or runs."""
        until = time.monotonic() + seconds
        scheduler = self.engine.engine_core.scheduler
        while time.monotonic() < until:
            if not (scheduler.requests or self.engine.request_ids):
                return True
            time.sleep(0.01)
        return False


@contextmanager
def serving(*words: str, **options):
    """A running server, ended at the end."""
    with RunningServer(*words, **options) as server:
        yield server
