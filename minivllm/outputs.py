"""RequestOutput and CompletionOutput: what users get back, with vLLM's fields."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.lora.request import LoRARequest


@dataclass
class RequestMetrics:
    """Timestamps of one request, in seconds of ``time.monotonic()``.

    (Names of 0.6.6: vllm/sequence.py, RequestMetrics)
    """

    arrival_time: float
    first_scheduled_time: float | None = None  # once: a preemption does not change it
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None

    @property
    def time_in_queue(self) -> float | None:
        """Seconds from arrival until it was scheduled for the first time."""
        if self.first_scheduled_time is None:
            return None
        return self.first_scheduled_time - self.arrival_time

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first output token."""
        if self.first_token_time is None:
            return None
        return self.first_token_time - self.arrival_time


@dataclass
class Logprob:
    """Log probability of a token, and its rank in the vocabulary, 1 for the best.

    Of tokens that are equally likely each one that was sampled counts all (vLLM does so).
    """

    logprob: float
    rank: int | None = None
    # its text; "" for a part of a character that it does not complete; None where no text is made
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One completion of a prompt.

    ``finish_reason`` is None while it goes on, then "stop", "length", "abort" or "error" (where
    nothing could be sampled: all tokens forbidden, logits that are no numbers, or a function of the
    user's that failed); ``stop_reason`` is the string or token id that stopped it, None for the
    tokenizer's end-of-sequence token. ``logprobs`` has one
    dict per token, from token ids to ``Logprob``: the token itself and as many of the best as were
    asked for, as the raw model saw them; ``cumulative_logprob`` is the sum over the tokens.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None  # the adapter that it was asked of

    def finished(self) -> bool:
        return self.finish_reason is not None

    def add(self, news: CompletionOutput) -> None:
        """Append a later DELTA of the same completion."""
        self.text += news.text
        self.token_ids = [*self.token_ids, *news.token_ids]
        self.cumulative_logprob = news.cumulative_logprob
        if news.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *news.logprobs]
        self.finish_reason, self.stop_reason = news.finish_reason, news.stop_reason


@dataclass
class BeamSearchSequence:
    """One beam of a finished beam search; tokens and text begin with the prompt."""

    tokens: list[int]
    text: str
    cum_logprob: float
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    """Result of a beam search for one prompt, the best beam first."""

    sequences: list[BeamSearchSequence]


@dataclass
class RequestOutput:
    """Output of a request so far; the last one has ``finished=True``.

    ``prompt_logprobs`` has one dict per prompt token, None for the first, before which is nothing.
    ``num_cached_tokens`` are those that the prefix cache spared when it was first scheduled.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    lora_request: LoRARequest | None = None
    num_cached_tokens: int | None = None

    def add(self, news: RequestOutput) -> None:
        """Append a later DELTA of the same request, if the reader was late.

        (vLLM: ``RequestOutput.add`` with aggregate=True)
        """
        mine = {completion.index: completion for completion in self.outputs}
        for completion in news.outputs:
            if completion.index in mine:
                mine[completion.index].add(completion)
            else:
                self.outputs.append(completion)
        self.finished |= news.finished
        self.metrics = news.metrics
        self.num_cached_tokens = news.num_cached_tokens
        if news.prompt_logprobs is not None:
            self.prompt_logprobs = news.prompt_logprobs
