"""Request and response types of /v1/embeddings, /pooling and /classify.

Each takes texts or token ids as ``input``, or one conversation as ``messages``.
(vLLM: the protocol modules in vllm/entrypoints/pooling/)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Tag, model_validator

from minivllm.entrypoints.openai.chat_completion.conversation import (
    ConversationFields,
    MediaFields,
)
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.protocol import (
    EngineFields,
    OpenAIBaseModel,
    TokenId,
    UsageInfo,
)
from minivllm.entrypoints.truncation import TruncationParams
from minivllm.pooling_params import PoolingParams, check_task

MOST_PROMPTS = 8192  # of one request


class PoolingFields(EngineFields, MediaFields):
    """Fields of every request to a pooling model."""

    use_activation: bool | None = None
    padding: Literal["do_not_pad"] | None = None  # prompts of any lengths share a batch

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, body: Any) -> Any:
        """Refuse fields that would be ignored: an earlier vLLM's, and one of two inputs."""
        if not isinstance(body, dict):
            return body
        if None not in (body.get("input"), body.get("messages")):
            raise RequestError("a request has either input or messages, not both", "messages")
        if "normalize" in body:
            raise RequestError(
                "Parameter `normalize` was removed; use `use_activation` instead.", "normalize"
            )
        return body

    @property
    def truncation(self) -> TruncationParams:
        """Limits of a prompt's length."""
        return TruncationParams(self.truncate_prompt_tokens, self.truncation_side)


class Texts(PoolingFields):
    """A text, texts, token ids, or lists of token ids."""

    input: list[TokenId] | list[list[TokenId]] | str | list[str]
    messages: None = None
    add_special_tokens: bool = True

    @property
    def prompts(self) -> list[str | list[int]]:
        """One prompt or several, as a list."""
        given: Any = self.input
        one = isinstance(given, str) or (given and isinstance(given[0], int))
        return [given] if one else given


class Conversation(PoolingFields, ConversationFields):
    """One conversation, which the chat template renders."""

    add_generation_prompt: bool = False


def _form(body: Any) -> str:
    chat = isinstance(body, dict) and body.get("messages") is not None
    return "Chat" if chat else "Texts"


_BY_FORM = Discriminator(_form)


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
    _BY_FORM,
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
    _BY_FORM,
]


class ClassificationCompletionRequest(Texts):
    """Body of /classify with texts or token ids."""


class ClassificationChatRequest(Conversation):
    """Body of /classify with a conversation."""


ClassificationRequest = Annotated[
    Annotated[ClassificationCompletionRequest, Tag("Texts")]
    | Annotated[ClassificationChatRequest, Tag("Chat")],
    _BY_FORM,
]


def pooling_params(request: PoolingFields, task: str | None) -> PoolingParams:
    """The PoolingParams of a request.

    Raises:
        ValueError: for a value out of its range.
    """
    dimensions = getattr(request, "dimensions", None)
    return PoolingParams(task=task, use_activation=request.use_activation, dimensions=dimensions)


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
