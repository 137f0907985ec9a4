"""What a user gets back: RequestOutput and CompletionOutput, with vLLM's fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class RequestMetrics:
    """When things happened to one request, in seconds of ``time.monotonic()``."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first output token."""
        if self.first_token_time is None:
            return None
        return self.first_token_time - self.arrival_time


@dataclass
class CompletionOutput:
    """One completion of a prompt.

    ``finish_reason`` is None while it goes on, then "stop", "length" or "abort"; ``stop_reason`` is
    the string or token id that stopped it, None for the end-of-sequence token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class BeamSearchSequence:
    """One continuation that a beam search has found; tokens and text begin with the prompt."""

    tokens: list[int]
    text: str
    cum_logprob: float
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    """What a beam search has found for one prompt, the best first."""

    sequences: list[BeamSearchSequence]


@dataclass
class RequestOutput:
    """Everything known about a request so far; its last one has ``finished=True``.

    ``num_cached_tokens`` are those that the prefix cache spared when it was first scheduled.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[Any] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    lora_request: Any = None
    num_cached_tokens: int | None = None
