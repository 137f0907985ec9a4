"""PoolingMixin: the methods of ``LLM`` for models whose output is vectors.

(vLLM: vllm/entrypoints/pooling/offline.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tqdm.auto import tqdm

from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.chat_utils import load_chat_template
from minivllm.entrypoints.progress_bar import check_use_tqdm, collect_outputs
from minivllm.entrypoints.scorer import ScoringParams, check_pairs
from minivllm.entrypoints.scoring import make_scorer
from minivllm.entrypoints.truncation import TruncationParams
from minivllm.lora.request import LoRARequest
from minivllm.outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from minivllm.pooling_params import PoolingParams, check_task
from minivllm.request import Request
from minivllm.utils.validation import check, is_int

Params = PoolingParams | Sequence[PoolingParams] | None
UseTqdm = bool | Callable[..., tqdm] | None
LoRA = LoRARequest | list[LoRARequest | None] | None


class PoolingMixin:
    """Offline pooling: prompts in, one tensor for each back, in the same order."""

    llm_engine: LLMEngine  # this and the next three are those of ``LLM``
    get_tokenizer: Callable[[], Any]
    _make_requests: Callable[..., list[Request]]
    _outputs_of: Callable[[list[Request]], Iterator[Any]]

    def encode(
        self,
        prompts: str | dict | list,
        pooling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: LoRA = None,
        pooling_task: str | None = None,
        priority: int | list[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Pool the hidden states of prompts.

        Args:
            prompts: as for ``generate``.
            pooling_params: one for all, or a list of one for each; None: the model's usual.
            use_tqdm, lora_request, priority: as for ``generate``.
            pooling_task: the task of those whose parameters name none; None: the engine's.
            tokenization_kwargs: as for ``generate``.

        Returns:
            One output per prompt, in the order of the prompts; ``outputs.data`` is float32,
            ``[embedding_size]`` or ``[num_labels]``, for a task of tokens a row for each.

        Raises:
            ValueError: if the model generates, or any prompt cannot be run, naming it; then none
                has been started. Or if a number that comes out is NaN or infinite.
        """
        check_use_tqdm(use_tqdm)
        self._check_runner("encode", "pooling")
        check_task("pooling_task", pooling_task)
        params: Any = PoolingParams() if pooling_params is None else pooling_params
        if isinstance(params, (list, tuple)):
            params = [_with_task(one, pooling_task) for one in params]
        else:
            params = _with_task(params, pooling_task)
        requests = self._make_requests(prompts, params, priority, lora_request, tokenization_kwargs)
        outputs = collect_outputs(self._outputs_of(requests), len(requests), use_tqdm)
        ordered = [outputs[request.request_id] for request in requests]
        for index, output in enumerate(ordered):
            try:
                output.outputs.check_numbers()
            except ValueError as error:
                raise ValueError(f"prompt {index} of {len(ordered)}: {error}") from error
        return ordered

    def embed(
        self,
        prompts: str | dict | list,
        use_tqdm: UseTqdm = True,
        pooling_params: Params = None,
        lora_request: LoRA = None,
        priority: int | list[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Embed prompts: one vector each, of norm 1 unless ``use_activation=False``.

        Args and errors are those of ``encode``.
        """
        outputs = self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            pooling_task="embed",
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
        )
        return [EmbeddingRequestOutput.from_base(output) for output in outputs]

    def classify(
        self,
        prompts: str | dict | list,
        use_tqdm: UseTqdm = True,
        pooling_params: Params = None,
        lora_request: LoRA = None,
        priority: int | list[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """Classify prompts: a probability for each label.

        Args and errors are those of ``encode``.
        """
        outputs = self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            pooling_task="classify",
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
        )
        return [ClassificationRequestOutput.from_base(output) for output in outputs]

    def score(
        self,
        data_1: str | list[str],
        data_2: str | list[str],
        /,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRA = None,
        chat_template: str | None = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[ScoringRequestOutput]:
        """Score pairs of texts: the larger, the more they have to do with one another.

        Args:
            data_1: a query for all documents, or a list with one for each.
            data_2: one document or several.
            use_tqdm, lora_request: as for ``generate``.
            pooling_params: for all; ``extra_kwargs`` may have ``max_tokens_per_query`` and
                ``max_tokens_per_doc``, and a template's ``chat_template_kwargs``.
            chat_template: of a cross-encoder: a file or Jinja, for messages of the roles "query"
                and "document"; None: the tokenizer's way to write pairs.
            truncate_prompt_tokens: most tokens of a prompt; -1: what the model takes.
            tokenization_kwargs: as for ``generate``.

        Returns:
            One output for each document; ``outputs.score`` is a number.

        Raises:
            ValueError: as ``encode``; if the lengths are neither 1:1, 1:N nor N:N; if the model
                gives no scores.
        """
        check_use_tqdm(use_tqdm)
        self._check_runner("score", "pooling")
        engine = self.llm_engine
        model_config = engine.model_config
        scorer = make_scorer(self.get_tokenizer(), model_config, engine.max_model_len)
        queries, documents = check_pairs(data_1, data_2)
        ok = truncate_prompt_tokens is None or is_int(truncate_prompt_tokens, -1)
        allowed = f"None, or from -1 to {engine.max_model_len}"
        ok = ok and (truncate_prompt_tokens or 0) <= engine.max_model_len
        check(ok, "truncate_prompt_tokens", truncate_prompt_tokens, allowed)
        pooling_params = _with_task(pooling_params or PoolingParams(), None)
        extra = pooling_params.extra_kwargs or {}
        truncation = TruncationParams(
            truncate_prompt_tokens,
            max_tokens_per_query=extra.get("max_tokens_per_query", 0),
            max_tokens_per_doc=extra.get("max_tokens_per_doc", 0),
        )
        how = ScoringParams(
            truncation.with_kwargs(tokenization_kwargs, engine.max_model_len),
            load_chat_template(chat_template),
            extra.get("chat_template_kwargs"),
        )
        prompts = scorer.prompts(queries, documents, pooling_params, how)
        given, params = zip(*prompts, strict=True)
        outputs = self.encode(list(given), list(params), use_tqdm, lora_request)
        return scorer.scores(outputs, len(queries))

    def _check_runner(self, method: str, runner: str) -> None:
        """Raise ``ValueError`` unless the engine was made for this method."""
        is_runner = self.llm_engine.model_config.runner_type
        if is_runner != runner:
            raise ValueError(
                f"LLM.{method}() is for {'generative' if runner == 'generate' else runner} models, "
                f"but this one was loaded with runner={is_runner!r}; load it with "
                f"runner={runner!r} (or the task= that you want)."
            )


def _with_task(params: Any, task: str | None) -> PoolingParams:
    check(isinstance(params, PoolingParams), "pooling_params", params, "a PoolingParams")
    if None not in (params.task, task) and params.task != task:
        raise ValueError(f"pooling_params has task={params.task!r}, but {task!r} was asked for.")
    return replace(params, task=params.task or task)
