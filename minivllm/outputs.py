"""RequestOutput, PoolingRequestOutput and their parts: what users get back, with vLLM's fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from minivllm.lora.request import LoRARequest

if TYPE_CHECKING:
    import torch


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
        self.finish_reason = news.finish_reason
        self.stop_reason = news.stop_reason


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
    kv_transfer_params: dict[str, Any] | None = None  # for another engine, which goes on

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
        self.kv_transfer_params = news.kv_transfer_params
        if news.prompt_logprobs is not None:
            self.prompt_logprobs = news.prompt_logprobs


@dataclass(eq=False)
class PoolingOutput:
    """Data of one pooling request: a vector, or for a task of tokens one row per token."""

    data: torch.Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolingOutput) and bool((self.data == other.data).all())

    def check_numbers(self) -> None:
        """Raise ``ValueError`` unless all of them are finite: a NaN compares with nothing."""
        if not bool(self.data.isfinite().all()):
            raise ValueError("the model's output for this input holds a NaN or an infinity.")


@dataclass(repr=False)
class EmbeddingOutput:
    """An embedding vector."""

    embedding: list[float]

    @classmethod
    def from_base(cls, output: PoolingOutput) -> EmbeddingOutput:
        """Make it of a pooler's vector. Raises ``ValueError`` for a matrix."""
        return cls(_vector(output, "an embedding"))

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


@dataclass(repr=False)
class ClassificationOutput:
    """Probabilities of the classes."""

    probs: list[float]

    @classmethod
    def from_base(cls, output: PoolingOutput) -> ClassificationOutput:
        """Make it of a pooler's vector. Raises ``ValueError`` for a matrix."""
        return cls(_vector(output, "probabilities"))

    @property
    def num_classes(self) -> int:
        return len(self.probs)

    def __repr__(self) -> str:
        return f"ClassificationOutput(num_classes={self.num_classes})"


@dataclass
class ScoringOutput:
    """Score of a pair of texts: the larger, the more they have to do with one another."""

    score: float

    @classmethod
    def from_base(cls, output: PoolingOutput) -> ScoringOutput:
        """Make it of a single number. Raises ``ValueError`` for more than one."""
        numbers = output.data.flatten().tolist()
        if len(numbers) != 1:
            raise ValueError(f"a score is one number, but the pooler gave {len(numbers)}.")
        return cls(numbers[0])


def _vector(output: PoolingOutput, what: str) -> list[float]:
    if output.data.ndim != 1:
        raise ValueError(f"{what} must be a vector, but the pooler gave {output.data.ndim} axes.")
    return output.data.tolist()


_Output = TypeVar("_Output")


@dataclass
class PoolingRequestOutput(Generic[_Output]):
    """Output of a pooling request: there is one, when its prompt has been computed.

    ``outputs`` is a ``PoolingOutput``; in the three classes below it is what a task makes of it.
    """

    request_id: str
    outputs: _Output
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """Output of an embedding request."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> EmbeddingRequestOutput:
        return cls(**vars(base) | {"outputs": EmbeddingOutput.from_base(base.outputs)})


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """Output of a classification request."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> ClassificationRequestOutput:
        return cls(**vars(base) | {"outputs": ClassificationOutput.from_base(base.outputs)})


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """Output of a scoring request, of a pair of texts."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> ScoringRequestOutput:
        return cls(**vars(base) | {"outputs": ScoringOutput.from_base(base.outputs)})
