"""LLMEngine: requests go in, each step moves all of them, outputs come out.

(vLLM: vllm/v1/engine/llm_engine.py)
"""

from __future__ import annotations

from minivllm.config import EngineArgs
from minivllm.engine import function_trace
from minivllm.engine.input_processor import InputProcessor, load_tokenizer
from minivllm.engine.output_processor import OutputProcessor
from minivllm.engine.stat_logger import LoggingStatLogger
from minivllm.kv.manager import KVCacheManager
from minivllm.models.hub import model_directory, tokenizer_directory
from minivllm.models.model_config import ModelConfig
from minivllm.outputs import RequestOutput
from minivllm.request import Request, RequestStatus
from minivllm.sampling_params import BeamSearchParams, SamplingParams
from minivllm.scheduling.policies import make_policy
from minivllm.scheduling.scheduler import Scheduler
from minivllm.structured_output.manager import StructuredOutputManager
from minivllm.trace import Trace
from minivllm.worker.worker import Worker, describe_gpu, pick_device


class LLMEngine:
    """Scheduler and worker, with text at both ends.

    (In vLLM V1 the four lines of ``step`` are ``EngineCore.step``, in a process of its own.)

    Args:
        args: what to run and within which limits.

    Raises:
        FileNotFoundError, ValueError: if the model cannot be had or the limits contradict each
            other.
    """

    def __init__(self, args: EngineArgs):
        function_trace.start_if_asked()
        directory = model_directory(args)
        self.model_config = ModelConfig.from_directory(directory)
        device = pick_device(args.device)
        limits = args.resolve_limits(self.model_config.max_model_len, describe_gpu(device))
        self.max_model_len = limits.max_model_len
        self.tokenizer = None
        if not args.skip_tokenizer_init:
            self.tokenizer = load_tokenizer(tokenizer_directory(args, directory))
        self.structured_output_manager = StructuredOutputManager(
            self.tokenizer,
            self.model_config.vocab_size,
            self.model_config.eos_token_ids,
            args.structured_outputs_config,
        )
        self.input_processor = InputProcessor(
            self.tokenizer,
            self.model_config,
            args.seed,
            self.max_model_len,
            args.max_logprobs,
            self.structured_output_manager,
        )
        self.worker = worker = Worker(args, directory, self.model_config, limits, device)
        self.model_runner = worker.model_runner
        budget = limits.max_num_batched_tokens
        self.trace = Trace(worker.num_blocks, args.block_size, budget) if args.trace else None
        kv_cache_manager_cls = args.kv_cache_manager_cls or KVCacheManager
        self.scheduler = Scheduler(
            kv_cache_manager_cls(
                worker.num_blocks,
                args.block_size,
                args.enable_prefix_caching,
                worker.num_host_blocks,
                self.trace,
            ),
            max_num_batched_tokens=budget,
            max_num_seqs=limits.max_num_seqs,
            max_model_len=self.max_model_len,
            enable_chunked_prefill=args.enable_chunked_prefill,
            long_prefill_token_threshold=args.long_prefill_token_threshold,
            policy=make_policy(args.scheduling_policy),
            preemption_mode=args.preemption_mode,
            append_text=lambda seq: self.output_processor.append_text(seq),
            trace=self.trace,
        )
        self.stats = LoggingStatLogger(self.scheduler, enabled=not args.disable_log_stats)
        self.output_processor = OutputProcessor(self.tokenizer, self.stats)

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> LLMEngine:
        """vLLM's way to make an engine."""
        return cls(args)

    def add_request(
        self,
        request_id: str,
        prompt: str | dict,
        params: SamplingParams | BeamSearchParams,
        arrival_time: float | None = None,
        priority: int = 0,
    ) -> None:
        """Queue a prompt: text, or ``{"prompt_token_ids": [...]}``.

        Args:
            request_id: any string that is not in use.
            prompt: see ``InputProcessor.make_request``.
            params: how to sample, or how to search, and when to stop.
            arrival_time: seconds of ``time.monotonic()``; None is now.
            priority: the smaller, the more important; needs ``scheduling_policy="priority"``.

        Raises:
            ValueError: if it cannot be run; nothing has changed and the others go on.
        """
        request = self.input_processor.make_request(
            request_id, prompt, params, arrival_time, priority
        )
        self.submit(request)

    def submit(self, request: Request) -> None:
        """Queue a request that the processor has made. Raises like ``add_request``."""
        self.structured_output_manager.grammar_init(request)
        self.scheduler.add_request(request)

    def step(self) -> list[RequestOutput]:
        """Move every sequence that fits into the budget. Returns those that got a token."""
        scheduler_output = self.scheduler.schedule()
        scheduler_output.grammar_output = self.structured_output_manager.grammar_output(
            scheduler_output, self.scheduler.sequences
        )
        output = self.model_runner.execute_model(scheduler_output)
        updated = self.scheduler.update_from_output(
            scheduler_output, output.sampled, output.logprobs
        )
        return self.output_processor.process_outputs(output, updated)

    def abort_request(self, request_id: str | list[str]) -> list[RequestOutput]:
        """End requests and free their blocks. Returns their last outputs; unknown ids have none."""
        outputs = []
        for one in [request_id] if isinstance(request_id, str) else request_id:
            request = self.scheduler.requests.get(one)
            if request is not None:
                self.scheduler.finish_request(one, RequestStatus.FINISHED_ABORTED)
                outputs.append(self.output_processor.make_output(request))
        return outputs

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks. Refuses (False) while any block is in use."""
        return self.scheduler.kv_manager.reset_prefix_cache()

    def has_unfinished_requests(self) -> bool:
        """True while ``step`` has something to do."""
        return self.scheduler.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        """Requests that wait or run."""
        return len(self.scheduler.requests)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if the engine's books do not balance."""
        self.scheduler.check_integrity()
        alive = {seq.seq_id for r in self.scheduler.requests.values() for seq in r.seqs}
        assert self.output_processor.sequences.keys() <= alive
