"""Request and response types of /v1/embeddings, /pooling and /classify.

Each takes texts or token ids as ``input``, or one conversation as ``messages``.
(vLLM: the protocol modules in vllm/entrypoints/pooling/)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Tag, model_validator

from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.pooling.base_protocol import BY_FORM, Conversation, Texts
from minivllm.entrypoints.openai.protocol import OpenAIBaseModel, UsageInfo
from minivllm.pooling_params import check_task


class EmbeddingFields(OpenAIBaseModel):
    """Fields of a request whose answer is a vector, and how its numbers are written."""

    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
    embed_dtype: Literal["float32", "float16"] = "float32"  # of base64
    endianness: Literal["native", "little", "big"] = "native"


class EmbeddingCompletionRequest(EmbeddingFields, Texts):
    """Body of /v1/embeddings with texts or token ids."""


class EmbeddingChatRequest(EmbeddingFields, Conversation):
    """Body of /v1/embeddings with a conversation."""


EmbeddingRequest = Annotated[
    Annotated[EmbeddingCompletionRequest, Tag("Texts")]
    | Annotated[EmbeddingChatRequest, Tag("Chat")],
    BY_FORM,
]


class _WithTask(OpenAIBaseModel):
    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_task(cls, body: Any) -> Any:
        """Refuse tasks of earlier vLLMs, saying what has become of them."""
        task = body.get("task") if isinstance(body, dict) else None
        if isinstance(task, str):
            try:
                check_task("task", task)
            except ValueError as error:
                raise RequestError(str(error), "task") from error
        return body


class PoolingCompletionRequest(_WithTask, EmbeddingCompletionRequest):
    """Body of /pooling with texts or token ids."""


class PoolingChatRequest(_WithTask, EmbeddingChatRequest):
    """Body of /pooling with a conversation."""


PoolingRequest = Annotated[
    Annotated[PoolingCompletionRequest, Tag("Texts")] | Annotated[PoolingChatRequest, Tag("Chat")],
    BY_FORM,
]


class ClassificationCompletionRequest(Texts):
    """Body of /classify with texts or token ids."""


class ClassificationChatRequest(Conversation):
    """Body of /classify with a conversation."""


ClassificationRequest = Annotated[
    Annotated[ClassificationCompletionRequest, Tag("Texts")]
    | Annotated[ClassificationChatRequest, Tag("Chat")],
    BY_FORM,
]


class EmbeddingResponseData(BaseModel):
    index: int
    object: str = "embedding"
    embedding: list[float] | str


class EmbeddingResponse(BaseModel):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[EmbeddingResponseData]
    usage: UsageInfo


class PoolingResponseData(BaseModel):
    index: int
    object: str = "pooling"
    data: list[list[float]] | list[float] | str


class PoolingResponse(BaseModel):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[PoolingResponseData]
    usage: UsageInfo


class ClassificationData(BaseModel):
    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassificationResponse(BaseModel):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[ClassificationData]
    usage: UsageInfo
