"""AttachedRun: the run that an X-ray file records, in an engine's place behind the glass page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI
from starlette.responses import HTMLResponse, RedirectResponse

from minivllm.config import CacheConfig, SchedulerConfig
from minivllm.entrypoints.openai.errors import RequestError, add_handlers
from minivllm.entrypoints.openai.glass.routes import LOOPBACK, add_glass, same_origin
from minivllm.lab.translation import translated
from minivllm.lab.viz.page.page import page
from minivllm.logger import init_logger
from minivllm.trace.records import Record
from minivllm.trace.state import State
from minivllm.utils.validation import check
from minivllm.xray.command import of_ended_steps
from minivllm.xray.fields import needed
from minivllm.xray.follow import Following, grown_lines
from minivllm.xray.format import load_xray
from minivllm.xray.replay import check_records
from minivllm.xray.reports import report
from minivllm.xray.waits_table import waits_table

logger = init_logger(__name__)

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
        first = next(grown_lines(path, lambda: False), "")
        check(first.endswith("\n"), "--attach", str(path), "a file whose first line is written")
        self.following = Following(lambda text: logger.warning("%s: %s.", path, text.rstrip(".")))
        self._begin(self.following.read(first))
        self.has_ended = False
        self._closed = threading.Event()

    @property
    def version(self) -> str:
        assert self.following.xray is not None
        return self.following.xray.header.get("vllm_version", "?")

    def _begin(self, news: Sequence[Record | State]) -> None:
        """Take the sizes of a run that begins, or begins again."""
        xray = self.following.xray
        if xray is None or not (news and isinstance(news[0], State)):
            return
        limits = {name: needed(xray.header, name) for name in _LIMITS}
        settings = xray.header["settings"]
        cache = CacheConfig(
            block_size=xray.trace.block_size,
            enable_prefix_caching=settings.get("enable_prefix_caching", True),
            prefix_cache_retention_interval=settings.get("prefix_cache_retention_interval", 0),
        )
        self.vllm_config = SimpleNamespace(
            cache_config=cache,
            scheduler_config=SchedulerConfig(**limits),
        )
        self.can_step = xray.trace.first_step == 0  # else its oldest steps were dropped
        self.kv_cache_config = SimpleNamespace(num_blocks=xray.trace.num_blocks, groups=())

    def follow(self, note: Callable[[list[Record | State]], None]) -> None:
        """Hand on the file's records, and those that are written later, in this event loop."""
        loop = asyncio.get_running_loop()
        arguments = (loop, note)
        threading.Thread(target=self._read, args=arguments, daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop, note: Callable) -> None:
        self.following.xray = None  # the first line comes again
        try:
            for line in grown_lines(self.path, lambda: not self._closed.is_set()):
                self._read_line(line, loop, note)
        except (OSError, ValueError) as error:
            logger.warning("%s: the page stands still: %s", self.path, error)
        else:
            self.has_ended = True  # of a compressed file
            self._hand_on([], loop, note)

    def _read_line(self, line: str, loop: asyncio.AbstractEventLoop, note: Callable) -> None:
        try:
            news = self.following.read(line)
            self._begin(news)
        except ValueError as error:
            return logger.warning("%s: %s", self.path, error)
        has_ended = self.has_ended
        self.has_ended = self.following.has_ended
        if news or has_ended != self.has_ended:
            self._hand_on(news, loop, note)

    def _hand_on(self, news: list, loop: asyncio.AbstractEventLoop, note: Callable) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(note, news)

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
    """The application with two pages, made inside of the event loop that serves it.

    /glass shows the run as it goes on; /glass/steps steps through what is there of it.
    """
    app = FastAPI()
    add_handlers(app)
    app.state.served = SimpleNamespace(args=SimpleNamespace(host=LOOPBACK[0]))
    add_glass(app, run, f"vLLM {run.version}", attached=True)  # type: ignore[arg-type]
    live = app.state.glass_page
    app.state.glass_page = lambda: (run.has_ended and steps_page(run)) or live()

    @app.get("/glass/steps", dependencies=[Depends(same_origin)])
    def steps():
        html = steps_page(run)
        return HTMLResponse(html) if html else RedirectResponse("../glass")

    return app


def steps_page(run: AttachedRun) -> str:
    """The page with a slider for what is there of a run; empty if it cannot be stepped through."""
    if not run.can_step:
        return ""
    try:
        xray = load_xray(run.path)
        check_records(xray)
        trace = of_ended_steps(xray.trace)
        if trace.num_steps == 0:
            return ""
        end = "recorded, ended at step #" if run.has_ended else "recorded up to step #"
        title = f"vLLM {run.version}, {translated(end).replace('#', str(trace.num_steps - 1))}"
        return page(trace, title, None, decode=None, waits=waits_table(report(xray), trace))
    except (OSError, ValueError) as error:  # a line of it is broken
        run.can_step = False
        logger.warning("%s cannot be stepped through: %s", run.path, error)
        return ""


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
