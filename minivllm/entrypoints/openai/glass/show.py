"""GlassShow: live pictures of the engine for pages at /glass, and their pause and step."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from functools import lru_cache
from typing import Any, cast

from minivllm.engine.async_llm import AsyncLLM
from minivllm.entrypoints.openai.glass.transcripts import LastTurn, Transcripts
from minivllm.kv.kv_cache_spec import table_groups
from minivllm.lab.translation import translated
from minivllm.lab.viz.model.live import LiveRun
from minivllm.lab.viz.page.live import picture
from minivllm.logger import init_logger
from minivllm.metrics.loggers import WINDOWS_KEEP_ENDS
from minivllm.trace.records import Record
from minivllm.trace.state import State

logger = init_logger(__name__)

_SECONDS_BETWEEN = 0.04  # at least, from one picture to the next
_REST = 9  # times a picture's CPU time, at least, until the next one
_dumps = json.JSONEncoder(separators=(",", ":")).encode


class GlassShow:
    """Pictures of an engine's trace for the open pages.

    The engine never waits for a page: it hands its records on, several steps become one picture,
    and a slow page gets the latest one when it is ready. Only one picture is kept, and the data
    that it is made from.

    Args:
        engine: one that writes a trace.
        chat_template: the server's; None: the tokenizer's own.
        small: whether the pool is small because no size was asked for.
        attached: whether it is a run that another process makes, or has made.

    Raises:
        ValueError: if it writes none.
    """

    def __init__(
        self,
        engine: AsyncLLM,
        chat_template: str | None = None,
        small: bool = False,
        attached: bool = False,
    ):
        self.engine = engine
        self._id = secrets.token_hex(4)  # by which a page knows that another server came
        self._small = small
        self._attached = attached
        self._last_turn = _last_turn(engine.tokenizer, chat_template)
        self.pace: float | None = None  # steps a second; None: full speed; 0: paused
        self.num_watchers = 0
        self._begin()
        self._records: list[Record | State] = []
        self._news = asyncio.Event()
        self._drawn = asyncio.Event()
        self._picture = b""
        self._painter: asyncio.Task | None = None
        self._walker: asyncio.Task | None = None
        self._closed = False
        engine.follow(self._note)

    def _begin(self, state: State | None = None) -> None:
        """Begin with a state; None: with that before the first step."""
        config = self.engine.vllm_config
        tokenizer = self.engine.tokenizer
        decode = None if tokenizer is None else lru_cache(None)(self._token_text)
        limits = config.scheduler_config
        groups = self.engine.kv_cache_config.groups
        self._run = LiveRun(
            num_blocks=self.engine.kv_cache_config.num_blocks,
            block_size=config.cache_config.block_size,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            decode=decode,
            called=lambda seq_id: seq_id.removeprefix("chatcmpl-").removeprefix("cmpl-"),
            encoder_limits=(limits.max_num_encoder_input_tokens, limits.encoder_cache_size),
            groups=table_groups(group.kv_cache_spec for group in groups),
        )
        if state is not None:
            self._run.begin(state)
        self._transcripts = Transcripts(self._run, self._text_of, self._last_turn)

    async def watch(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, each a whole picture: one at once, then one after each change.

        When the last page closes, a paused engine resumes.
        """
        self.num_watchers += 1
        try:
            drawn = self._drawn
            self._wake()
            while True:
                await drawn.wait()
                if self._closed:
                    return
                drawn = self._drawn  # the next picture may come while this one is sent
                yield self._picture
        finally:
            self.num_watchers -= 1
            if not self.num_watchers and self.pace is not None:
                await self.set_pace(None)

    async def set_pace(self, pace: float | None) -> None:
        """Set the engine's pace in steps a second; 0 pauses it, None is full speed."""
        if self._walker is not None:
            self._walker.cancel()
            self._walker = None
        self.pace = pace
        if pace is None:
            await self.engine.resume_generation()
        else:
            await self.engine.pause_generation(mode="keep")
            if pace:
                self._walker = asyncio.ensure_future(self._walk(pace))
        self._wake()

    async def take_step(self) -> None:
        """Run one step, and pause."""
        await self.set_pace(0)
        await self.engine.resume_generation(num_steps=1)

    def close(self) -> None:
        """End all streams, when the server ends."""
        self._closed = True
        self._records = []
        self._drawn.set()
        for task in (self._painter, self._walker):
            if task is not None:
                task.cancel()

    async def _walk(self, pace: float) -> None:
        while True:
            await self.engine.resume_generation(num_steps=1)
            await asyncio.sleep(1 / pace)

    def _text_of(self, token_ids: Sequence[int], plain: bool) -> str:
        """Text of a request or of its answer; numbers, where the engine has no tokenizer.

        ``plain`` leaves special tokens out.
        """
        if self.engine.tokenizer is None:
            return " ".join(map(str, token_ids))
        return self.engine.tokenizer.decode(token_ids, skip_special_tokens=plain)

    def _token_text(self, token_id: int) -> str:
        """Text of one token, as it is drawn; a special one has a short name."""
        tokenizer = self.engine.tokenizer
        if token_id == tokenizer.eos_token_id:
            return "⟨end⟩"
        return "⟨…⟩" if token_id in tokenizer.all_special_ids else tokenizer.decode([token_id])

    def _server_to_json(self) -> dict[str, Any]:
        """Sizes of this server: after a restart a page has to learn them again."""
        limits = self.engine.vllm_config.scheduler_config
        return {
            "id": self._id,
            "attached": self._attached,
            "steps": getattr(self.engine, "can_step", False),
            "tokens": limits.max_num_batched_tokens,
            "seqs": limits.max_num_seqs,
            "length": limits.max_model_len,
            "small": self._small,
        }

    def _note_on_hits(self) -> str:
        """Words beside the prefix cache's hits; "" if they need no explanation."""
        cache = self.engine.vllm_config.cache_config
        windows = any(group.sliding_window for group in self._run.state.groups)
        sparse = windows and cache.prefix_cache_retention_interval == 0
        return translated(WINDOWS_KEEP_ENDS) if sparse and cache.enable_prefix_caching else ""

    # -- from the trace to a picture -----------------------------------------------------------

    def _note(self, records: Sequence[Record | State]) -> None:
        """Take the new records, in the event loop after every turn of the engine.

        A State among them says that a run begins there: a recorded one can do so again.
        """
        if not self._closed:
            self._records += records
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        if self._painter is None and not self._closed:
            self._painter = asyncio.ensure_future(self._paint())

    async def _paint(self) -> None:
        """Draw new pictures at intervals, so that most of the time is left to the engine."""
        while True:
            await self._news.wait()
            self._news.clear()
            records = self._records
            self._records = []
            try:
                content, seconds = await asyncio.to_thread(self._draw, records)
            except Exception as error:
                logger.error("/glass shows nothing any more: %r", error, exc_info=error)
                return self.close()
            if content is not None:
                paused = await self.engine.is_paused()  # perhaps not by a page, but at /pause
                content["ended"] = getattr(self.engine, "has_ended", False)  # a recorded run may
                content["pace"] = 0 if paused and self.pace is None else self.pace
                self._picture = f"data: {_dumps(content)}\n\n".encode()
                self._drawn.set()
                self._drawn = asyncio.Event()
            await asyncio.sleep(max(_SECONDS_BETWEEN, _REST * seconds))

    def _draw(self, records: list[Record | State]) -> tuple[dict | None, float]:
        """Draw one picture for all pages; without a page only update the state.

        Returns the picture and this thread's CPU time. On a busy machine the wall-clock time is
        longer, and pages would wait for the work of other processes.
        """
        began = time.thread_time()
        first = 0
        for index, record in enumerate(records):
            if isinstance(record, State):
                self._begin(record)
                first = index + 1
        self._run.update(cast(list[Record], records[first:]))
        self._transcripts.update()
        content = None
        if self.num_watchers:
            content = picture(self._run) | {"requests": self._transcripts.to_json()}
            content["numbers"]["note"] = self._note_on_hits()
            content["server"] = self._server_to_json()
        return content, time.thread_time() - began


def _last_turn(tokenizer: Any, chat_template: str | None) -> LastTurn | None:
    try:
        return LastTurn(tokenizer, chat_template)
    except ValueError:  # no tokenizer, no template, or one of another kind
        return None
