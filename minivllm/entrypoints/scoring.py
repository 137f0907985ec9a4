"""Scores of pairs of texts, by a model of one of three kinds; its task says which.

A bi-encoder embeds each text alone: N queries and M documents are N + M prompts. A cross-encoder
reads a pair as one prompt, so all pairs are N × M. Late interaction (ColBERT, Khattab and Zaharia
2020) keeps an embedding for each token: N + M prompts, compared token by token.
(vLLM: vllm/entrypoints/pooling/scoring/io_processor.py)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn.functional import cosine_similarity

from minivllm.entrypoints.chat_utils import apply_chat_template
from minivllm.entrypoints.scorer import Prompt, Scorer
from minivllm.entrypoints.truncation import encode_texts
from minivllm.outputs import PoolingOutput, ScoringOutput, ScoringRequestOutput


class BiEncoder(Scorer):
    """Bi-encoder: the cosine of the angle between two embeddings."""

    task = "embed"

    @staticmethod
    def similarity(query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        """Similarity of two embeddings ``[size]``."""
        return cosine_similarity(query, document, dim=0)

    def _prompts(self, queries, documents, pooling, how):
        limits = how.truncation
        prompts = []
        for texts, most in (
            (queries, limits.max_tokens_per_query),
            (documents, limits.max_tokens_per_doc),
        ):
            # only here: a cross-encoder reads texts as they are
            lower = limits.do_lower_case or self.model_config.do_lower_case
            alone = replace(limits, max_tokens_per_query=most, do_lower_case=lower)
            for text in texts:
                ids, _ = encode_texts(self.tokenizer, [text], alone, self.max_model_len)
                prompts.append(({"prompt": text, "prompt_token_ids": ids}, pooling))
        return prompts

    def scores(self, outputs, num_queries):
        queries = outputs[:num_queries]
        documents = outputs[num_queries:]
        if num_queries == 1:
            queries = queries * len(documents)
        pad = self.tokenizer.pad_token_id
        between = [] if pad is None else [pad]
        return [
            ScoringRequestOutput(
                f"{query.request_id}_{document.request_id}",
                outputs=self._score(query.outputs, document.outputs),
                prompt_token_ids=query.prompt_token_ids + between + document.prompt_token_ids,
                num_cached_tokens=query.num_cached_tokens + document.num_cached_tokens,
                finished=True,
            )
            for query, document in zip(queries, documents, strict=True)
        ]

    def _score(self, query: PoolingOutput, document: PoolingOutput) -> ScoringOutput:
        found = PoolingOutput(self.similarity(query.data, document.data))
        found.check_numbers()  # products of finite numbers may be too large
        return ScoringOutput.from_base(found)


class LateInteraction(BiEncoder):
    """Late interaction: each token of the query meets the token of the document most like it."""

    task = "token_embed"

    @staticmethod
    def similarity(query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        """MaxSim of two matrices ``[num_tokens, size]``: the sum of the query's best products."""
        return (query @ document.T).amax(dim=-1).sum()


class CrossEncoder(Scorer):
    """Cross-encoder: a classifier with one label reads both texts as one prompt."""

    task = "classify"

    def _prompts(self, queries, documents, pooling, how):
        if len(queries) == 1:
            queries = queries * len(documents)
        return [
            self._prompt(query, document, pooling, how)
            for query, document in zip(queries, documents, strict=True)
        ]

    def _prompt(self, query, document, pooling, how) -> Prompt:
        limits = how.truncation
        text = None
        if how.chat_template is not None or not self._separates:
            query = self._cut(query, limits.max_tokens_per_query)
            document = self._cut(document, limits.max_tokens_per_doc)
            limits = replace(limits, max_tokens_per_query=0, max_tokens_per_doc=0)
            text = query + document
        if how.chat_template is not None:
            messages = [{"role": "query", "content": query},
                        {"role": "document", "content": document}]  # fmt: skip
            text = apply_chat_template(
                self.tokenizer,
                messages,
                how.chat_template,
                add_generation_prompt=False,
                chat_template_kwargs=how.chat_template_kwargs,
            )
        texts = [query, document] if text is None else [text]
        ids, types = encode_texts(self.tokenizer, texts, limits, self.max_model_len)
        if self._has_types and 1 in types:
            more = {"compressed_token_type_ids": types.index(1)}
            pooling = replace(pooling, extra_kwargs=(pooling.extra_kwargs or {}) | more)
        return {"prompt": text, "prompt_token_ids": ids}, pooling

    def _cut(self, text: str, most: int) -> str:
        """The text's first tokens, before it becomes a part of another text; 0: all of it."""
        fast = self.tokenizer.backend_tokenizer
        ends = [end for _, end in fast.encode(text, add_special_tokens=False).offsets]
        return text[: ends[most - 1]] if 0 < most < len(ends) else text

    def scores(self, outputs, num_queries):
        return [ScoringRequestOutput.from_base(output) for output in outputs]


SCORERS: dict[str | None, Callable[..., Scorer]] = {
    kind.task: kind for kind in (BiEncoder, CrossEncoder, LateInteraction)
}


def why_no_scores(model_config) -> str | None:
    """A sentence that says why a pooling model gives no scores of pairs; None if it does."""
    task = model_config.pooler_config.task
    if task not in SCORERS:
        return f"a model whose task is {task!r} gives no scores of pairs."
    if task == "classify" and model_config.num_labels != 1:
        return (
            f"a cross-encoder has one label, but this classifier has {model_config.num_labels}; "
            "use classify."
        )
    return None


def make_scorer(tokenizer, model_config, max_model_len: int) -> Scorer:
    """Make the scorer of a pooling model.

    Raises:
        ValueError: if the model gives no scores.
    """
    if (why := why_no_scores(model_config)) is not None:
        raise ValueError(why)
    if tokenizer is None:
        raise ValueError("scores need a tokenizer; skip_tokenizer_init=True leaves none.")
    return SCORERS[model_config.pooler_config.task](tokenizer, model_config, max_model_len)
