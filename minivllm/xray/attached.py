"""AttachedRun: the run that an X-ray file records, in an engine's place behind the glass page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI

from minivllm.config import CacheConfig, SchedulerConfig
from minivllm.entrypoints.openai.errors import RequestError, add_handlers
from minivllm.entrypoints.openai.glass.routes import LOOPBACK, add_glass
from minivllm.trace.records import Record
from minivllm.utils.validation import check
from minivllm.xray.follow import grown_lines
from minivllm.xray.format import XRay, read_header

_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")


class AttachedRun:
    """An engine as ``GlassShow`` sees it, read from a file that a real vLLM writes.

    Args:
        path: of the file, whose first line must be there.

    Raises:
        OSError, ValueError: if it cannot be read, or is no X-ray.
    """

    tokenizer = None  # token ids are shown

    def __init__(self, path: Path):
        self.path = path
        with open(path, encoding="utf-8") as file:
            first = file.readline()
        check(first.endswith("\n"), "--attach", str(path), "a file whose first line is written")
        self.xray: XRay = read_header(first)
        header = self.xray.header
        limits = {name: header["settings"][name] for name in _LIMITS}
        self.vllm_config = SimpleNamespace(
            cache_config=CacheConfig(block_size=header["block_size"]),
            scheduler_config=SchedulerConfig(**limits),
        )
        self.kv_cache_config = SimpleNamespace(num_blocks=header["num_blocks"])
        self._closed = threading.Event()

    def follow(self, note: Callable[[list[Record]], None]) -> None:
        """Hand on the file's records, and those that are written later, in this event loop."""
        loop = asyncio.get_running_loop()
        arguments = (loop, note)
        threading.Thread(target=self._read, args=arguments, daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop, note: Callable) -> None:
        for number, line in enumerate(grown_lines(self.path, lambda: not self._closed.is_set())):
            if number == 0 or line.startswith('{"minivllm_xray"'):
                continue
            self.xray.read_line(line)
            records = self.xray.trace.take()
            if records and not loop.is_closed():
                loop.call_soon_threadsafe(note, records)

    async def is_paused(self) -> bool:
        """False: it is another process that runs."""
        return False

    async def resume_generation(self, num_steps: int | None = None) -> None:
        """Do nothing, if it is to run at full speed.

        Raises:
            RequestError: for single steps.
        """
        if num_steps is not None:
            await self.pause_generation()

    async def pause_generation(self, **_: Any) -> None:
        """Raise ``RequestError``: another process runs."""
        raise RequestError(
            "a run that is attached cannot be paused: it is another process's",
            status=HTTPStatus.CONFLICT, kind="Conflict",
        )  # fmt: skip

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()


def make_app(run: AttachedRun) -> FastAPI:
    """The application with the page, made inside of the event loop that serves it."""
    app = FastAPI()
    add_handlers(app)
    app.state.served = SimpleNamespace(args=SimpleNamespace(host=LOOPBACK[0]))
    add_glass(app, run, f"vLLM {run.xray.header['vllm_version']}")  # type: ignore[arg-type]
    return app


def run_attached(path: Path, port: int) -> None:
    """Serve the page on this machine until Ctrl-C. Raises as ``AttachedRun``."""
    run = AttachedRun(path)

    async def main() -> None:
        config = uvicorn.Config(make_app(run), LOOPBACK[0], port, log_level="warning")
        print(f"http://127.0.0.1:{port}/glass  (Ctrl-C ends it)")
        await uvicorn.Server(config).serve()

    try:
        asyncio.run(main())
    finally:
        run.close()
