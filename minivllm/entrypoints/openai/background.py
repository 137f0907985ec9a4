"""BackgroundServer: ``minivllm serve`` in a thread of this process, for notebooks and scripts."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from minivllm.engine.async_llm import AsyncLLM
from minivllm.entrypoints.openai.api_server import build_app, make_server, open_socket
from minivllm.entrypoints.openai.cli_args import engine_args, parse_args

# Defaults, which the caller's words override: a free port, and no log line for each answer.
_USUAL = (
    "--host", "127.0.0.1", "--port", "0", "--disable-uvicorn-access-log",
    "--uvicorn-log-level", "warning",
)  # fmt: skip


class BackgroundServer:
    """A server that runs from its construction to ``stop``; also a context manager.

    Args:
        *words: as typed after ``minivllm serve``. The port is a free one by default, and the host
            this machine's loopback.
        engine: None makes one from the words. It is stopped with the server.

    Raises:
        ValueError, OSError: as ``run_server``.
    """

    def __init__(self, *words: str, engine: AsyncLLM | None = None):
        args = parse_args([*_USUAL, *words])
        self._socket = open_socket(args)
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://{host}:{port}"
        try:
            self.engine = engine or AsyncLLM.from_engine_args(engine_args(args))
            self.app = build_app(self.engine, args)
        except BaseException:
            self._socket.close()
            raise
        self.server = make_server(self.app, args)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="minivllm-server", daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not self.server.started:
            time.sleep(0.01)
        if self._error is not None:
            self._socket.close()
            raise self._error

    def _run(self) -> None:
        try:
            self.server.run([self._socket])
        except BaseException as error:
            self._error = error

    def stop(self, timeout: float = 30.0) -> None:
        """End open requests, then the server and its engine. A second call does nothing."""
        self.server.should_exit = True
        self._thread.join(timeout)
        self._socket.close()
        if self._thread.is_alive():
            raise TimeoutError(f"the server at {self.url} does not end within {timeout} seconds")

    def __enter__(self) -> BackgroundServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
