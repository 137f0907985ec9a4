"""OpenAIServingScores: scores of pairs of texts, and documents in the order of their scores.

(vLLM: vllm/entrypoints/pooling/scoring/serving.py)
"""

from __future__ import annotations

from fastapi import Request

from minivllm.entrypoints.openai.errors import JSON
from minivllm.entrypoints.openai.pooling.base_protocol import pooling_params
from minivllm.entrypoints.openai.pooling.base_serving import PoolingServing, in_thread
from minivllm.entrypoints.openai.pooling.scoring_protocol import (
    RerankDocument,
    RerankRequest,
    RerankResponse,
    RerankResult,
    RerankUsage,
    ScoreRequest,
    ScoreResponse,
    ScoreResponseData,
)
from minivllm.entrypoints.openai.protocol import UsageInfo
from minivllm.entrypoints.openai.served_model import ServedModel
from minivllm.entrypoints.scorer import ScoringParams, check_pairs
from minivllm.entrypoints.scoring import make_scorer


class OpenAIServingScores(PoolingServing):
    """Endpoints /score and /rerank.

    Raises:
        ValueError: if the model gives no scores.
    """

    def __init__(self, served: ServedModel):
        super().__init__(served)
        self.scorer = make_scorer(
            self.tokenizer, self.engine.model_config, self.served.max_model_len
        )

    async def create_score(self, request: ScoreRequest, raw: Request) -> JSON:
        """Score pairs: one number for each document."""
        queries, documents = check_pairs(*request.data)
        request_id = self.request_id("score", request, raw)
        found = await self._scores(request, raw, request_id, queries, documents)
        if found is None:
            return JSON(None)  # the client has gone
        scores, usage, model = found
        data = [ScoreResponseData(index=i, score=score) for i, score in enumerate(scores)]
        head = self.head(request_id, "list", model)
        return JSON(ScoreResponse(**head, data=data, usage=usage).model_dump())

    async def rerank(self, request: RerankRequest, raw: Request) -> JSON:
        """Put documents in order: the one with the largest score first."""
        queries, documents = check_pairs(*request.data)
        request_id = self.request_id("score", request, raw)
        found = await self._scores(request, raw, request_id, queries, documents)
        if found is None:
            return JSON(None)
        scores, usage, model = found
        order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        results = [
            RerankResult(
                index=index,
                document=RerankDocument(text=documents[index]),
                relevance_score=scores[index],
            )
            for index in order[: request.top_n or None]
        ]
        tokens = RerankUsage(prompt_tokens=usage.prompt_tokens, total_tokens=usage.total_tokens)
        response = RerankResponse(id=request_id, model=model, usage=tokens, results=results)
        return JSON(response.model_dump())

    async def _scores(
        self,
        request: ScoreRequest | RerankRequest,
        raw: Request,
        request_id: str,
        queries: list[str],
        documents: list[str],
    ) -> tuple[list[float], UsageInfo, str] | None:
        """The documents' scores, the usage, and the model's name; None if the client has gone."""
        pairs_are_prompts = self.scorer.task == "classify"
        num_prompts = len(documents) + (0 if pairs_are_prompts else len(queries))
        lora_request = self.begin(request, raw, num_prompts)
        params = pooling_params(request, self.scorer.task)
        how = ScoringParams(request.truncation, self.served.chat_template, request.template_kwargs)
        texts = queries + documents
        for text in texts:
            self.prompts.check_text(text, request.truncate_prompt_tokens is not None)
        prompts = await in_thread(
            texts, lambda: self.scorer.prompts(queries, documents, params, how)
        )
        outputs = await self.outputs(request, raw, request_id, prompts, lora_request)
        if outputs is None:
            return None
        scores = [one.outputs.score for one in self.scorer.scores(outputs, len(queries))]
        return scores, self.usage_of(outputs), self.models.model_name(lora_request)
