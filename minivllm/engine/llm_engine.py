"""LLMEngine: the synchronous engine. Requests in, one step for all of them, outputs out.

(vLLM: vllm/v1/engine/llm_engine.py)
"""

from __future__ import annotations

from minivllm.config import VllmConfig
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.input_processor import InputProcessor
from minivllm.engine.output_collector import OutputQueue
from minivllm.engine.output_processor import OutputProcessor
from minivllm.engine.pipeline import core_class
from minivllm.executor.uniproc import UniProcExecutor
from minivllm.lora.request import LoRARequest
from minivllm.metrics.families import EngineMetrics
from minivllm.metrics.loggers import LoggingStatLogger
from minivllm.metrics.reader import Metric
from minivllm.outputs import PoolingRequestOutput, RequestOutput
from minivllm.pooling_params import PoolingParams
from minivllm.request import Request
from minivllm.sampling_params import BeamSearchParams, SamplingParams
from minivllm.scheduling.scheduler import Scheduler
from minivllm.scheduling.stats import make_stats
from minivllm.trace import Trace
from minivllm.utils.validation import check
from minivllm.worker.model_runner import ModelRunner
from minivllm.worker.worker import Worker


class LLMEngine:
    """Input processor, engine core and output processor in one process.

    Args:
        args: model, limits and options.

    Raises:
        FileNotFoundError, ValueError: if the model cannot be had or the limits contradict each
            other.
    """

    def __init__(self, args: EngineArgs):
        self.args = args
        self.vllm_config: VllmConfig = args.create_engine_config()
        config = self.vllm_config
        if (size := args.data_parallel_size) != 1:
            raise ValueError(
                f"LLM(data_parallel_size={size}) is not supported for single-process usage and may "
                "hang. Please use AsyncLLM, or minivllm serve --data-parallel-size."
            )
        self.model_config = config.model_config
        self.max_model_len = config.scheduler_config.max_model_len
        self.input_processor = InputProcessor.from_config(config)
        self.tokenizer = self.input_processor.tokenizer
        self.structured_output_manager = self.input_processor.structured_output_manager
        self.engine_core = core_class(config)(
            config, structured_output_manager=self.structured_output_manager
        )
        self.output_processor = OutputProcessor(self.tokenizer)
        cache = self.engine_core.kv_cache_config
        self.metrics = EngineMetrics.from_config(config, cache.num_blocks, cache.num_host_blocks)
        self.metrics.processor_cache = self.input_processor.processor_cache
        self.stat_logger: LoggingStatLogger | None = None
        if not config.observability_config.disable_log_stats:
            self.stat_logger = LoggingStatLogger(self.metrics)

    @property
    def trace(self) -> Trace | None:
        return self.engine_core.trace

    @property
    def scheduler(self) -> Scheduler:
        """The core's scheduler, for inspection: it runs in this process."""
        return self.engine_core.scheduler

    @property
    def worker(self) -> Worker:
        """The core's only worker, for inspection.

        Raises:
            ValueError: if there are others, or it is in another process.
        """
        executor = self.engine_core.executor
        if not isinstance(executor, UniProcExecutor):
            raise ValueError("worker is in reach only with distributed_executor_backend='uni'.")
        return executor.worker

    @property
    def model_runner(self) -> ModelRunner:
        return self.worker.model_runner

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> LLMEngine:
        """vLLM's way to make an engine."""
        return cls(args)

    def add_request(
        self,
        request_id: str,
        prompt: str | dict,
        params: SamplingParams | BeamSearchParams | PoolingParams,
        arrival_time: float | None = None,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> None:
        """Queue a prompt: text, or ``{"prompt_token_ids": [...]}``.

        Args:
            request_id: any string that is not in use.
            prompt: see ``InputProcessor.make_request``.
            params: how to sample, or how to search, and when to stop; of a pooling model what it
                does with the prompt.
            arrival_time: seconds of ``time.monotonic()``; None is now.
            priority: the smaller, the more important; needs ``scheduling_policy="priority"``.
            lora_request: the adapter to use; None: the base model.

        Raises:
            ValueError: if it cannot be run; nothing has changed and the others go on.
        """
        request = self.input_processor.make_request(
            request_id,
            prompt,
            params,
            arrival_time=arrival_time,
            priority=priority,
            lora_request=lora_request,
        )
        self.submit(request)

    def submit(self, request: Request, queue: OutputQueue | None = None) -> None:
        """Queue a request that the input processor has made. Raises like ``add_request``.

        Its outputs go to ``queue``; None: ``step`` returns them.
        """
        self.engine_core.add_request(request)
        self.output_processor.add_request(request, queue)

    def step(self) -> list[RequestOutput | PoolingRequestOutput]:
        """Run one step. Returns the outputs of the requests that got a token, or are pooled.

        If anything raises, no request has lost or got a token. The next call goes on: all requests
        are computed again.
        """
        # 1. Compute a step.
        core_outputs = self.engine_core.step()
        # 2. Make text of its tokens.
        processed = self.output_processor.process_outputs(core_outputs)
        # 3. End the sequences whose text holds a stop string.
        if processed.stopped:
            self.engine_core.scheduler.stop_sequences(processed.stopped)
        # 4. Count.
        stats = make_stats(self.engine_core.scheduler)
        self.metrics.record(stats, processed.iteration_stats)
        if self.stat_logger is not None:
            self.stat_logger.record()
        return processed.request_outputs

    def end_transfers(self) -> None:
        """Step until the K and V of all requests that have ended are sent."""
        remote = self.scheduler.remote_kvs
        while remote is not None and remote.sending:
            self.step()

    def abort_request(
        self, request_id: str | list[str]
    ) -> list[RequestOutput | PoolingRequestOutput]:
        """Abort requests and free their blocks. Returns their last outputs; unknown ids have none.

        Raises:
            ValueError: if it is no string and no list of strings; nothing has ended then.
        """
        ids = [request_id] if isinstance(request_id, str) else request_id
        ok = isinstance(ids, (list, tuple, set, frozenset)) and all(isinstance(i, str) for i in ids)
        check(ok, "request_id", request_id, "a string or a list of strings")
        self.engine_core.abort_requests(ids)
        return self.output_processor.abort_requests(ids)

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Refuses (False) while any block is in use."""
        return self.engine_core.reset_prefix_cache()

    def get_metrics(self, model_name: str | None = None) -> list[Metric]:
        """Current values of vLLM's metrics, with the model's name as a label."""
        self.metrics.scheduler = make_stats(self.scheduler)
        model_name = model_name or str(self.args.model or "minivllm")
        return self.metrics.read(model_name=model_name, engine="0")

    def shutdown(self) -> None:
        """End the workers and free their memory. A second call does nothing."""
        self.engine_core.shutdown()

    def has_unfinished_requests(self) -> bool:
        """True while ``step`` has something to do."""
        return self.engine_core.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        """Number of requests that wait or run."""
        return len(self.scheduler.requests)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless scheduler, blocks and output processor agree."""
        self.engine_core.check_integrity()
        assert self.output_processor.request_states.keys() == self.scheduler.requests.keys()
