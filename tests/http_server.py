"""A server in a thread, as a command line asks for it, on a port that is free."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager

import httpx

from minivllm import AsyncLLM
from minivllm.entrypoints.openai.api_server import build_app, make_server, open_socket
from minivllm.entrypoints.openai.cli_args import engine_args, parse_args

USUAL = [
    "--host", "127.0.0.1", "--port", "0", "--max-model-len", "512", "--block-size", "32",
    "--max-num-seqs", "32", "--max-num-batched-tokens", "512",
    "--served-model-name", "minivllm", "embedded", "--disable-uvicorn-access-log",
    "--uvicorn-log-level", "warning",
]  # fmt: skip


class RunningServer:
    """A server, where it listens, and the engine behind it."""

    def __init__(self, *words: str, engine: AsyncLLM | None = None):
        args = parse_args([*USUAL, *words])
        self.engine = engine or AsyncLLM.from_engine_args(engine_args(args))
        self.app = build_app(self.engine, args)
        self.server = make_server(self.app, args)
        self._socket = open_socket(args)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def _run(self) -> None:
        asyncio.run(self.server.serve(sockets=[self._socket]))

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(30)
        self._socket.close()
        assert not self._thread.is_alive(), "the server does not end"

    def idle(self, seconds: float = 5.0) -> bool:
        """True as soon as nobody waits and nothing runs."""
        until = time.monotonic() + seconds
        scheduler = self.engine.engine.scheduler
        while time.monotonic() < until:
            if not (scheduler.requests or self.engine.request_ids):
                return True
            time.sleep(0.01)
        return False


@contextmanager
def serving(*words: str, **options):
    """A running server, ended at the end."""
    server = RunningServer(*words, **options)
    try:
        yield server
    finally:
        server.stop()
