"""Routes of a pooling model: those of its tasks, so that another path is not found.

(vLLM: vllm/entrypoints/pooling/factories.py and the routers beside it)
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request

from minivllm.entrypoints.openai.pooling.protocol import (
    ClassificationRequest,
    ClassificationResponse,
    EmbeddingRequest,
    EmbeddingResponse,
    PoolingRequest,
    PoolingResponse,
)
from minivllm.entrypoints.openai.pooling.scoring_protocol import (
    NAMES,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
)
from minivllm.entrypoints.openai.pooling.scoring_serving import OpenAIServingScores
from minivllm.entrypoints.openai.pooling.serving import OpenAIServingPooling
from minivllm.entrypoints.openai.routes import posted, validated
from minivllm.entrypoints.openai.served_model import ServedModel
from minivllm.entrypoints.scoring import why_no_scores


def add_pooling(app: FastAPI, served: ServedModel) -> None:
    """Add the routes of the model's tasks, and /invocations for all of them.

    Args:
        app: the application.
        served: a pooling model.
    """
    tasks = served.engine.model_config.supported_tasks
    app.state.pooling = OpenAIServingPooling(served)
    for task, router in (("embed", _embed), ("classify", _classify)):
        if task in tasks:
            app.include_router(router)
    app.include_router(_pooling)
    app.state.scores = None
    has_tokenizer = served.engine.tokenizer is not None
    if has_tokenizer and why_no_scores(served.engine.model_config) is None:
        app.state.scores = OpenAIServingScores(served)
        app.include_router(_scores)


_embed, _classify, _pooling, _scores = (posted() for _ in range(4))


@_embed.post("/v1/embeddings", response_model=EmbeddingResponse)
async def create_embedding(request: EmbeddingRequest, raw: Request):
    return await raw.app.state.pooling.create_embedding(request, raw)


@_classify.post("/classify", response_model=ClassificationResponse)
async def create_classify(request: ClassificationRequest, raw: Request):
    return await raw.app.state.pooling.create_classify(request, raw)


@_pooling.post("/pooling", response_model=PoolingResponse)
async def create_pooling(request: PoolingRequest, raw: Request):
    return await raw.app.state.pooling.create_pooling(request, raw)


@_scores.post("/score", response_model=ScoreResponse)
@_scores.post("/v1/score", response_model=ScoreResponse)
async def create_score(request: ScoreRequest, raw: Request):
    return await raw.app.state.scores.create_score(request, raw)


@_scores.post("/rerank", response_model=RerankResponse)
@_scores.post("/v1/rerank", response_model=RerankResponse)
@_scores.post("/v2/rerank", response_model=RerankResponse)
async def do_rerank(request: RerankRequest, raw: Request):
    return await raw.app.state.scores.rerank(request, raw)


@_pooling.post("/invocations")
async def invocations(body: dict[str, Any], raw: Request):
    """The others under SageMaker's name; the body's fields and the model's task say which."""
    config = raw.app.state.served.engine.model_config
    has_scores = raw.app.state.scores is not None
    if has_scores and "query" in body:
        return await do_rerank(validated(RerankRequest, body), raw)
    if has_scores and not body.keys().isdisjoint(NAMES):
        return await create_score(validated(ScoreRequest, body), raw)
    if config.pooler_config.task == "embed":
        return await create_embedding(validated(EmbeddingRequest, body), raw)
    if config.pooler_config.task == "classify":
        return await create_classify(validated(ClassificationRequest, body), raw)
    return await create_pooling(validated(PoolingRequest, body), raw)
