"""LLMEngine: requests go in, each step moves all of them, outputs come out.

(vLLM: vllm/v1/engine/llm_engine.py)
"""

from __future__ import annotations

import time
from pathlib import Path

from minivllm.config import EngineArgs
from minivllm.engine.detokenizer import Detokenizer
from minivllm.engine.processor import Processor, load_tokenizer
from minivllm.kv.manager import KVCacheManager
from minivllm.models.embedded import embedded_model_path
from minivllm.models.model_config import ModelConfig
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.sampling_params import BeamSearchParams, SamplingParams
from minivllm.scheduling.policies import make_policy
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.worker.worker import Worker


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
        directory = Path(args.model) if args.model is not None else embedded_model_path()
        self.model_config = ModelConfig.from_directory(directory)
        self.max_model_len, budget = args.resolve_limits(self.model_config.max_position_embeddings)
        self.tokenizer = None
        if not args.skip_tokenizer_init:
            self.tokenizer = load_tokenizer(args.tokenizer or directory)
        self.processor = Processor(self.tokenizer, self.model_config, args.seed)
        worker = Worker(args, directory, self.model_config, self.max_model_len)
        self.model_runner = worker.model_runner
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
            max_num_seqs=args.max_num_seqs,
            max_model_len=self.max_model_len,
            enable_chunked_prefill=args.enable_chunked_prefill,
            long_prefill_token_threshold=args.long_prefill_token_threshold,
            policy=make_policy(args.scheduling_policy),
            preemption_mode=args.preemption_mode,
            append_text=self._append_text,
            trace=self.trace,
        )
        self._detokenizers: dict[str, Detokenizer] = {}

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
            prompt: see ``Processor.make_request``.
            params: how to sample, or how to search, and when to stop.
            arrival_time: seconds of ``time.monotonic()``; None is now.
            priority: the smaller, the more important; needs ``scheduling_policy="priority"``.

        Raises:
            ValueError: if it cannot be run; nothing has changed and the others go on.
        """
        request = self.processor.make_request(request_id, prompt, params, arrival_time, priority)
        self.submit(request)

    def submit(self, request: Request) -> None:
        """Queue a request that the processor has made. Raises like ``add_request``."""
        self.scheduler.add_request(request)

    def step(self) -> list[RequestOutput]:
        """Move every sequence that fits into the budget. Returns those that got a token."""
        plan = self.scheduler.schedule()
        output = self.model_runner.execute_model(plan)
        updated = self.scheduler.update_from_output(plan, output.sampled, output.logprobs)
        return [self._make_output(r) for r in dict.fromkeys(seq.request for seq in updated)]

    def abort_request(self, request_id: str | list[str]) -> list[RequestOutput]:
        """End requests and free their blocks. Returns their last outputs; unknown ids have none."""
        outputs = []
        for one in [request_id] if isinstance(request_id, str) else request_id:
            request = self.scheduler.requests.get(one)
            if request is not None:
                self.scheduler.finish_request(one, RequestStatus.FINISHED_ABORTED)
                outputs.append(self._make_output(request))
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
        assert self._detokenizers.keys() <= alive

    def _append_text(self, seq: Sequence) -> str | None:
        detokenizer = self._detokenizer(seq)
        return detokenizer and detokenizer.append(seq.token_ids[-1])

    def _detokenizer(self, seq: Sequence) -> Detokenizer | None:
        """The sequence's own, made with its first token; None if no text is asked for."""
        params = seq.request.sampling_params
        if self.tokenizer is None or not params.detokenize:
            return None
        if seq.seq_id not in self._detokenizers:
            self._detokenizers[seq.seq_id] = Detokenizer(
                self.tokenizer, seq.request.prompt_token_ids, params
            )
        return self._detokenizers[seq.seq_id]

    def _make_output(self, request: Request) -> RequestOutput:
        completions = [
            CompletionOutput(
                index=index,
                text=self._text(seq) if request.beam_params is None else self._beam_text(seq),
                token_ids=seq.output_token_ids,
                cumulative_logprob=None if request.beam_params is None else seq.cumulative_logprob,
                finish_reason=seq.status.finish_reason,
                stop_reason=seq.stop_reason,
            )
            for index, seq in enumerate(request.seqs)
        ]
        finished = not request.unfinished_seqs
        self._note_time(request, finished)
        if finished:
            for seq in request.seqs:
                self._detokenizers.pop(seq.seq_id, None)
        return RequestOutput(
            request.request_id,
            request.prompt,
            request.prompt_token_ids,
            prompt_logprobs=None,
            outputs=completions,
            finished=finished,
            metrics=request.metrics,
            num_cached_tokens=request.num_cached_tokens,
        )

    def _text(self, seq: Sequence) -> str:
        """The text that is certain so far; all of it at the end."""
        detokenizer = self._detokenizer(seq)
        if detokenizer is None:
            return ""
        if seq.status.is_finished and not detokenizer.finished:
            by_token = seq.status == RequestStatus.FINISHED_STOPPED and not detokenizer.stopped
            if by_token and seq.request.sampling_params.include_stop_str_in_output:
                detokenizer.append(seq.token_ids[-1])
            detokenizer.finish()
        return detokenizer.streamable(seq.status.is_finished)

    def _beam_text(self, seq: Sequence) -> str:
        """A beam's past changes when another takes its place, so its text is made anew."""
        if self.tokenizer is None:
            return ""
        token_ids = seq.output_token_ids
        if seq.status == RequestStatus.FINISHED_STOPPED:
            if seq.request.beam_params.include_stop_str_in_output:
                return self.tokenizer.decode(token_ids)
            token_ids = token_ids[:-1]
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    @staticmethod
    def _note_time(request: Request, finished: bool) -> None:
        metrics, now = request.metrics, time.monotonic()
        if request.seqs[0].num_output_tokens:
            metrics.first_token_time = metrics.first_token_time or now
            metrics.last_token_time = now
        if finished:
            metrics.finished_time = now
