"""UsagePolicy: token counts and times in answers, as the server's options allow."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from copy import copy
from typing import Any

from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.input_processor import EngineInput
from minivllm.entrypoints.openai.generation_request import GenerationRequest
from minivllm.entrypoints.openai.protocol import PromptTokenUsageInfo, UsageInfo
from minivllm.outputs import RequestMetrics, RequestOutput


class UsagePolicy:
    """Token counts and times in the answers of an endpoint.

    Args:
        args: of the server.
    """

    def __init__(self, args: Namespace):
        self._shows_cached = args.enable_prompt_tokens_details
        self._shows_times = args.enable_per_request_metrics
        self._in_all_streams = args.enable_force_include_usage

    def in_stream(self, request: GenerationRequest) -> tuple[bool, bool]:
        """Two flags of a stream: it ends with the usage; every chunk has it."""
        if self._in_all_streams:
            return True, True
        options = request.stream_options
        at_end = bool(options and options.include_usage)
        return at_end, at_end and bool(options and options.continuous_usage_stats)

    def of(self, outputs: list[RequestOutput]) -> UsageInfo:
        """Usage of whole outputs, one for each prompt."""
        prompt = sum(len(output.prompt_token_ids) for output in outputs)
        answer = sum(len(c.token_ids) for output in outputs for c in output.outputs)
        cached = sum(output.num_cached_tokens or 0 for output in outputs)
        return UsageInfo(
            prompt_tokens=prompt,
            completion_tokens=answer,
            total_tokens=prompt + answer,
            prompt_tokens_details=self.prompt_details(prompt, cached),
        )

    def prompt_details(self, prompt: int, cached: int) -> PromptTokenUsageInfo | None:
        """Number of the prompts' tokens that were in the prefix cache, if the server shows it."""
        return PromptTokenUsageInfo(cached_tokens=cached) if self._shows_cached else None

    def times(
        self, num_choices: int, metrics: RequestMetrics | None, num_tokens: int
    ) -> dict[str, float | None] | None:
        """Times of an answer in milliseconds, if the server shows them; None for several choices.

        They are of one choice, and several share their request's metrics.
        """
        if num_choices != 1 or metrics is None or not self._shows_times:
            return None
        arrived = metrics.arrival_time
        first = metrics.first_token_time or arrived
        begun = metrics.first_scheduled_time or arrived
        last = metrics.last_token_time or first
        return {
            "time_to_first_token_ms": 1000 * (first - arrived),
            "generation_time_ms": 1000 * (last - first),
            "queue_time_ms": 1000 * (begun - arrived),
            "mean_itl_ms": 1000 * (last - first) / (num_tokens - 1) if num_tokens > 1 else None,
            "tokens_per_second": num_tokens / (last - begun) if last > begun else None,
            "speculative_decoding": None,
        }


class ChatUsagePolicy(UsagePolicy):
    """UsagePolicy of chat: it also counts tokens added to the prefix cache, in whole blocks.

    ``for_prompt`` makes one that counts a prompt's pictures and sounds, too.

    Args:
        args: of the server.
        engine_args: of the engine.
    """

    def __init__(self, args: Namespace, engine_args: EngineArgs):
        super().__init__(args)
        self._block_size = (
            None if engine_args.enable_prefix_caching is False else engine_args.block_size or 16
        )
        self._multimodal_tokens: Counter[str] = Counter()

    def for_prompt(self, prompt: EngineInput) -> ChatUsagePolicy:
        """The policy for answers to a prompt: its details count placeholders by modality."""
        policy = copy(self)
        policy._multimodal_tokens = Counter()
        for feature in prompt.mm_features:
            policy._multimodal_tokens[feature.modality] += feature.mm_position.length
        return policy

    def prompt_details(self, prompt: int, cached: int) -> PromptTokenUsageInfo | None:
        details = super().prompt_details(prompt, cached)
        if details is not None:
            whole = prompt - prompt % self._block_size if self._block_size else 0
            details.created_cache_tokens = max(0, whole - cached)
            details.multimodal_tokens = dict(self._multimodal_tokens) or None
        return details


def usage_dict(
    prompt: int, answer: int, details: PromptTokenUsageInfo | None = None
) -> dict[str, Any]:
    """Usage in a chunk of a stream."""
    usage: dict[str, Any] = {
        "prompt_tokens": prompt, "total_tokens": prompt + answer, "completion_tokens": answer,
    }  # fmt: skip
    if details:
        usage["prompt_tokens_details"] = details.model_dump(exclude_none=True)
    return usage
