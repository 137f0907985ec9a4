"""Scorer: prompts for pairs of texts, and scores from what a model makes of them.

(vLLM: ``ScoringIOProcessor`` in vllm/entrypoints/pooling/scoring/io_processor.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

from minivllm.entrypoints.truncation import TruncationParams
from minivllm.outputs import PoolingRequestOutput, ScoringRequestOutput
from minivllm.pooling_params import PoolingParams
from minivllm.utils.validation import check, is_int, is_text

Prompt = tuple[dict, PoolingParams]  # of the engine


@dataclass
class ScoringParams:
    """Parameters that say how pairs become prompts.

    Args:
        truncation: what is kept of long texts.
        chat_template: of a cross-encoder, with messages of the roles "query" and "document". Only
            one that is asked for is used: many checkpoints hold one for another purpose.
        chat_template_kwargs: variables of the template, such as its instruction.
    """

    truncation: TruncationParams = field(default_factory=TruncationParams)
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def check_pairs(data_1: Any, data_2: Any) -> tuple[list[str], list[str]]:
    """Two lists of texts that can be paired: 1:1, 1:N or N:N. A text becomes a list of one.

    Raises:
        ValueError: for other lengths, and for what is no text.
    """
    lists = []
    for name, data in (("data_1", data_1), ("data_2", data_2)):
        data = list(data) if isinstance(data, (list, tuple)) else [data]
        for text in data:
            check(is_text(text), name, text, "a text, or a list of texts")
        lists.append(data)
    queries, documents = lists
    if len(queries) > 1 and len(queries) != len(documents):
        raise ValueError("Input lengths must be either 1:1, 1:N or N:N")
    for name, data in (("text", queries), ("text_pair", documents)):
        if not data:
            raise ValueError(f"At least one {name} element must be given")
    return queries, documents


class Scorer(ABC):
    """Prompts for pairs of texts, and scores from what the model makes of them.

    Args:
        tokenizer: a Hugging Face tokenizer.
        model_config: of the pooling model.
        max_model_len: most tokens of a prompt.
    """

    task: str  # of the requests

    def __init__(self, tokenizer, model_config, max_model_len: int):
        self.tokenizer = tokenizer
        self.model_config = model_config
        self.max_model_len = max_model_len
        has_types = model_config.type_vocab_size > 1  # tokenizers may give some to any model
        self._has_types = has_types and "token_type_ids" in tokenizer.model_input_names
        hf_config = getattr(model_config, "hf_config", None)
        self._separates = getattr(hf_config, "use_sep_token", True)

    def prompts(
        self,
        queries: list[str],
        documents: list[str],
        pooling_params: PoolingParams | None = None,
        params: ScoringParams | None = None,
    ) -> list[Prompt]:
        """Make the engine's prompts.

        Args:
            queries: one for all documents, or one for each; see ``check_pairs``.
            documents: at least one.
            pooling_params: without a task; None: the model's usual.
            params: how pairs become prompts.

        Raises:
            ValueError: for another task, a limit out of range, or a template that fails.
        """
        params = params or ScoringParams()
        for name in ("max_tokens_per_query", "max_tokens_per_doc"):
            limit = getattr(params.truncation, name)
            ok = is_int(limit, 0) and limit < self.max_model_len
            check(ok, name, limit, f"from 0 (no limit) to {self.max_model_len - 1}")
        pooling_params = pooling_params or PoolingParams()
        task = pooling_params.task
        check(task in (None, self.task), "task", task, f"{self.task!r}, this model's for scores")
        return self._prompts(queries, documents, replace(pooling_params, task=self.task), params)

    @abstractmethod
    def _prompts(
        self, queries: list[str], documents: list[str], pooling: PoolingParams, how: ScoringParams
    ) -> list[Prompt]:
        """Make the prompts of checked arguments."""

    @abstractmethod
    def scores(
        self, outputs: list[PoolingRequestOutput], num_queries: int
    ) -> list[ScoringRequestOutput]:
        """One score for each document.

        Args:
            outputs: of the prompts, in their order.
            num_queries: how many queries there were.
        """
