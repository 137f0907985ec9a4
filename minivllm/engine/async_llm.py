"""AsyncLLM: the asynchronous engine. Requests at any time, each with a stream of outputs.

The engine core runs by itself (``core_client``), and this class lives in an event loop: a request
goes to the core as a message, and after every step the loop is woken once, makes text of the step's
tokens, and hands it out.
(vLLM: vllm/v1/engine/async_llm.py)
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from minivllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from minivllm.engine.core_client import CoreClient, ThreadClient
from minivllm.engine.input_processor import EngineInput, Prompt
from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.engine.output_handler import OutputHandler
from minivllm.engine.output_processor import OutputProcessor
from minivllm.engine.process_client import ProcessClient
from minivllm.engine.replicas import Replicas
from minivllm.executor.exceptions import EngineDeadError
from minivllm.logger import init_logger
from minivllm.lora.request import LoRARequest
from minivllm.metrics.families import EngineMetrics
from minivllm.metrics.loggers import make_stat_loggers
from minivllm.metrics.reader import Metric
from minivllm.outputs import PoolingRequestOutput, RequestOutput
from minivllm.pooling_params import PoolingParams
from minivllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from minivllm.trace.records import Record
from minivllm.utils.validation import check, is_int

logger = init_logger(__name__)

_MEDIA_THREADS = 8  # as in vLLM; some of them wait for hosts
METRICS_S = 5.0  # seconds that metrics wait for the engine: half of what Prometheus gives them


class AsyncLLM:
    """An engine in a thread or process of its own, used by any number of coroutines.

    With ``data_parallel_size`` over 1 it is several engines, each with the whole model: a request
    goes to the one with the least to do.

    Args:
        args: model, limits and options; None for the model in this package.

    Raises:
        FileNotFoundError, ValueError: as ``LLM``.
    """

    def __init__(self, args: EngineArgs | None = None):
        args = args or AsyncEngineArgs()
        handler = OutputHandler()
        client = _client_class(args)(args, handler.on_outputs, handler.on_error)
        client.wait_until_ready()
        self.args = args
        self.output_handler = handler
        self._client = client
        self.engine_core = client.engine_core  # None where it is out of reach
        self.vllm_config = client.vllm_config
        self.kv_cache_config = client.kv_cache_config
        self.model_config = client.vllm_config.model_config
        self.max_model_len = self.vllm_config.scheduler_config.max_model_len
        self.input_processor = client.get_input_processor()
        self.output_processor = OutputProcessor(self.tokenizer)
        self.metrics = [
            EngineMetrics.from_config(
                self.vllm_config,
                num_gpu_blocks=self.kv_cache_config.num_blocks,
                num_cpu_blocks=self.kv_cache_config.num_host_blocks,
            )
            for _ in range(self.data_parallel_size)
        ]
        self.metrics[0].processor_cache = self.input_processor.processor_cache  # one for all
        handler.output_processor = self.output_processor
        handler.metrics = self.metrics
        if not args.disable_log_stats:
            handler.stat_loggers = make_stat_loggers(self.metrics)
        handler.submit = client.submit
        self._paused = False
        # read, decode and process the pictures and sounds of prompts
        self._media_threads = ThreadPoolExecutor(_MEDIA_THREADS, "minivllm-media")
        weakref.finalize(self, self._client.shutdown)  # at the latest when Python ends

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> AsyncLLM:
        """vLLM's way to make an engine."""
        return cls(args)

    @property
    def data_parallel_size(self) -> int:
        """Number of engines."""
        return self.vllm_config.parallel_config.data_parallel_size

    # -- requests ----------------------------------------------------------------------------

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | BeamSearchParams,
        request_id: str,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt; yields an output whenever there is something new.

        Closing the iterator (or cancelling its task) ends the request: the next step goes without
        it, and its blocks are free.

        Args:
            prompt: as for ``LLM.generate``, but one.
            sampling_params: ``output_kind`` says what an output holds: all so far (CUMULATIVE),
                what is new (DELTA; joined, if the reader is late), or the whole at its end.
            request_id: any string that is not in use. It is until the engine has ended the request.
            priority: the smaller, the more important; needs ``scheduling_policy="priority"``.
            lora_request: the adapter to use; None: the base model.
            data_parallel_rank: the engine to use, from 0; None: the one with the least to do.

        Raises:
            ValueError: if it cannot be run; nothing has changed and the others go on.
            EngineDeadError: if the engine has stopped.
        """
        collector = await self.add_request(
            request_id,
            prompt,
            sampling_params,
            priority=priority,
            lora_request=lora_request,
            data_parallel_rank=data_parallel_rank,
        )
        try:
            finished = False
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield output
        finally:
            self.release(collector)

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Pool the hidden states of a prompt; yields one output. Otherwise as ``generate``.

        Args:
            prompt, request_id, lora_request, priority, data_parallel_rank: as for ``generate``.
            pooling_params: the task, and what it leaves open.

        Raises:
            ValueError, EngineDeadError: as ``generate``.
        """
        collector = await self.add_request(
            request_id,
            prompt,
            pooling_params,
            priority=priority,
            lora_request=lora_request,
            data_parallel_rank=data_parallel_rank,
        )
        try:
            output = await collector.get()
        finally:
            self.release(collector)
        yield output

    async def preprocess(self, prompt: Prompt) -> EngineInput:
        """``InputProcessor.preprocess`` in a thread: for prompts with pictures or sounds.

        Raises:
            ValueError: as there.
        """
        loop = asyncio.get_running_loop()
        preprocess = self.input_processor.preprocess
        return await loop.run_in_executor(self._media_threads, preprocess, prompt)

    async def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | BeamSearchParams | PoolingParams,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        data_parallel_rank: int | None = None,
    ) -> RequestOutputCollector:
        """Queue a prompt; arguments and errors are those of ``generate`` and ``encode``.

        This waits only for its pictures and sounds, which a thread prepares, and for the end of a
        request that had the same id. Returns the queue of its outputs: give it to ``release`` in
        the end.
        """
        # 1. Check the arguments, and make ids of the prompt.
        handler = self.output_handler
        size = self.data_parallel_size
        handler.bind_to_loop()
        rank = data_parallel_rank
        if rank is not None and not (is_int(rank, 0) and rank < size):  # vLLM's sentence
            raise ValueError(f"data_parallel_rank {rank} is out of range [0, {size}).")
        if isinstance(prompt, dict) and prompt.get("multi_modal_data") is not None:
            prompt = await self.preprocess(prompt)
            handler.check_health()
        make_request = self.input_processor.make_request
        request = make_request(
            request_id, prompt, params, priority=priority, lora_request=lora_request
        )
        # 2. Wait until its id is free.
        while request_id in handler.stopping:  # a stop string has ended it here, not yet there
            await asyncio.sleep(0.001)
            handler.check_health()
        states = self.output_processor.request_states
        check(request_id not in states, "request_id", request_id, "one not in use")
        if getattr(self.args, "enable_log_requests", False):
            logger.info("Added request %s.", request_id)
        # 3. A queue for its outputs first: the core may answer at once.
        delta = getattr(request.sampling_params, "output_kind", None) is RequestOutputKind.DELTA
        collector = RequestOutputCollector(request_id, delta)
        self.output_processor.add_request(request, collector)
        try:
            self._client.add(request, rank)
        except ValueError:
            del states[request_id]
            raise
        return collector

    def release(self, collector: RequestOutputCollector) -> None:
        """Read no more of these outputs: if the request has not finished, abort it."""
        collector.on_put = None
        request_id = collector.request_id
        state = self.output_processor.request_states.get(request_id)
        if state is not None and state.queue is collector:
            self._client.submit(("abort", [request_id]))  # its id is free when that is done

    async def infer(self, prompt: str, sampling_params: SamplingParams | None = None) -> str:
        """Return the text that completes a prompt, for scripts that want nothing else.

        (vLLM has no such method; there and here ``generate`` does the work.)
        """
        params = sampling_params or self.get_default_sampling_params()
        params = replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
        (last,) = [one async for one in self.generate(prompt, params, uuid.uuid4().hex)]
        return last.outputs[0].text

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Abort requests: each gets a last output with finish_reason "abort"."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        ok = all(isinstance(name, str) for name in ids)
        check(ok, "request_id", request_id, "a string or a list of strings")
        self._client.submit(("abort", ids))

    # -- state -------------------------------------------------------------------------------

    @property
    def tokenizer(self):
        """The Hugging Face tokenizer; None with ``skip_tokenizer_init=True``."""
        return self.input_processor.tokenizer

    def get_tokenizer(self):
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return vLLM's defaults, or those of the model's generation_config.json."""
        return SamplingParams(**self.model_config.default_sampling)

    @property
    def errored(self) -> bool:
        """True after a step has failed."""
        return self.output_handler.dead is not None

    @property
    def is_running(self) -> bool:
        return not self.errored

    @property
    def num_running(self) -> int:
        """Number of running requests after the last step or message."""
        return sum(metrics.scheduler.num_running_reqs for metrics in self.metrics)

    @property
    def num_waiting(self) -> int:
        """Number of waiting requests after the last step or message."""
        return sum(metrics.scheduler.num_waiting_reqs for metrics in self.metrics)

    @property
    def request_ids(self) -> list[str]:
        """Ids of all requests that have not finished."""
        return list(self.output_processor.request_states)

    async def check_health(self) -> None:
        """Raise ``EngineDeadError`` if the engine has stopped."""
        self.output_handler.check_health()

    async def is_paused(self) -> bool:
        return self._paused

    async def get_metrics(self, model_name: str | None = None) -> list[Metric]:
        """Current values of vLLM's metrics, with this model's name and the engine as labels."""
        with suppress(asyncio.TimeoutError):  # of an engine that stands still: its last ones
            await asyncio.wait_for(self.call("make_stats"), METRICS_S)  # with each engine's
        name = model_name or str(self.args.model or "minivllm")
        read = (one.read(model_name=name, engine=str(i)) for i, one in enumerate(self.metrics))
        return [metric for metrics in read for metric in metrics]

    # -- control -----------------------------------------------------------------------------

    async def pause_generation(self, mode: str = "abort", clear_cache: bool = True) -> None:
        """Take no more steps until ``resume_generation``; requests still come, and wait.

        Args:
            mode: for unfinished requests: "abort" ends them, "wait" finishes them first, "keep"
                leaves them as they are, to go on later.
            clear_cache: forget cached blocks, too, if no block is in use.

        Raises:
            ValueError: for another mode, or to wait for requests that are paused already.
        """
        check(mode in ("abort", "wait", "keep"), "mode", mode, "'abort', 'wait' or 'keep'")
        there = set(self.request_ids)
        ok = mode != "wait" or not (self._paused and there)
        check(ok, "mode", mode, "'abort' or 'keep' while requests are paused")
        self._paused = True
        if mode == "abort":
            await self.abort(there)
        elif mode == "wait":
            while not there.isdisjoint(self.request_ids):
                await asyncio.sleep(0.02)
        self._client.submit(("pause",))
        if clear_cache and mode != "keep":
            await self.reset_prefix_cache()

    async def resume_generation(self, num_steps: int | None = None) -> None:
        """Go on; given a number (vLLM knows none), take that many steps, and pause again.

        With nothing left to do it pauses earlier. Returns when the steps are taken and what they
        brought is handed out.
        """
        check(num_steps is None or is_int(num_steps, 1), "num_steps", num_steps, "None, or over 0")
        self._paused = num_steps is not None
        await self._answer("resume", num_steps)

    def follow(self, follower: Callable[[list[Record]], None]) -> None:
        """Call a function with the trace's new records after every step; the trace keeps none.

        Args:
            follower: called in the event loop, also with no records; the first call has what the
                trace has kept since the engine was made: the last ``TRACE_STEPS`` steps.

        Raises:
            ValueError: if the engine writes no trace.
        """
        check(self.args.trace, "trace", self.args.trace, "True, for one who follows the engine")
        self.output_handler.follower = follower
        self._client.submit(("follow",))

    async def wait_for_requests_to_drain(self, timeout: float | None = None) -> bool:
        """Wait until all requests are finished. Returns False after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while self.output_processor.request_states:
            if until is not None and loop.time() >= until:
                return False
            await asyncio.sleep(0.02)
        return True

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks. Refuses (False) while any block is in use."""
        return await self.call("reset_prefix_cache")

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter: see ``LoRARegistry.add``."""
        return await self.call("loras.add", lora_request)

    async def remove_lora(self, lora_int_id: int) -> bool:
        """Remove an adapter: see ``LoRARegistry.remove``."""
        return await self.call("loras.remove", lora_int_id)

    async def pin_lora(self, lora_int_id: int) -> bool:
        """Keep an adapter where it is: see ``LoRARegistry.pin``."""
        return await self.call("loras.pin", lora_int_id)

    async def list_loras(self) -> set[int]:
        """Ids of all adapters in host memory."""
        return await self.call("loras.list_loras")

    async def call(self, method: str, *arguments):
        """Call a method of the engine core between two steps. Returns or raises what it does.

        Args:
            method: its name, or a part's, such as ``scheduler.has_unfinished_requests``.
            arguments: its own; they must be picklable where the core has a process of its own.
        """
        return await self._answer("call", method, arguments)

    async def _answer(self, kind: str, *arguments):
        """Send a message that the core answers. Returns or raises the answer."""
        number, future = self.output_handler.add_call()
        try:
            self._client.submit((kind, number, *arguments))
        except ValueError:
            self.output_handler.forget_call(number)
            raise
        return await future

    def shutdown(self) -> None:
        """Stop the engine after its current step; unfinished requests get an error."""
        self._client.shutdown()
        self._media_threads.shutdown(wait=False, cancel_futures=True)
        self.output_handler.die(EngineDeadError("it was shut down"))


def _client_class(args: EngineArgs) -> type[CoreClient]:
    if args.data_parallel_size != 1:
        return Replicas
    return ProcessClient if getattr(args, "engine_process", False) else ThreadClient


AsyncLLMEngine = AsyncLLM
