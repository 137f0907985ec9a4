"""Request and response types of /score and /rerank.

(vLLM: vllm/entrypoints/pooling/scoring/protocol.py)
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.pooling.base_protocol import PoolingFields
from minivllm.entrypoints.openai.protocol import UsageInfo
from minivllm.entrypoints.truncation import TruncationParams

TextOrTexts = str | list[str]
_PAIRS = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)
NAMES = {name for pair in _PAIRS for name in pair}


class ScoringFields(PoolingFields):
    """Common fields of requests for scores of pairs of texts."""

    max_tokens_per_query: Annotated[int, Field(ge=0)] = 0
    max_tokens_per_doc: Annotated[int, Field(ge=0)] = 0
    instruction: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the chat template; ``instruction`` is short for one of them."""
        short = {} if self.instruction is None else {"instruction": self.instruction}
        return short | (self.chat_template_kwargs or {})

    @property
    def truncation(self) -> TruncationParams:
        return TruncationParams(
            self.truncate_prompt_tokens,
            self.truncation_side,
            max_tokens_per_query=self.max_tokens_per_query,
            max_tokens_per_doc=self.max_tokens_per_doc,
        )


class ScoreRequest(ScoringFields):
    """Body of /score: two lists of texts, under one of four pairs of names."""

    queries: TextOrTexts | None = None
    documents: TextOrTexts | None = None
    items: TextOrTexts | None = None
    data_1: TextOrTexts | None = None
    data_2: TextOrTexts | None = None
    text_1: TextOrTexts | None = None
    text_2: TextOrTexts | None = None

    @property
    def data(self) -> tuple[TextOrTexts, TextOrTexts]:
        """Queries and documents. Raises ``RequestError`` if there are no two lists."""
        for first, second in _PAIRS:
            found = getattr(self, first), getattr(self, second)
            if None not in found:
                return found
        names = ", ".join(f"{first} and {second}" for first, second in _PAIRS)
        raise RequestError(f"a score needs two lists of texts, one of: {names}")


class RerankRequest(ScoringFields):
    """Body of /rerank: a query, and documents to be put in order."""

    query: str
    documents: TextOrTexts
    top_n: Annotated[int, Field(ge=0)] = 0  # 0: all

    @property
    def data(self) -> tuple[TextOrTexts, TextOrTexts]:
        """Queries and documents."""
        return self.query, self.documents


class ScoreResponseData(BaseModel):
    index: int
    object: str = "score"
    score: float


class ScoreResponse(BaseModel):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[ScoreResponseData]
    usage: UsageInfo


class RerankDocument(BaseModel):
    text: str
    multi_modal: None = None


class RerankResult(BaseModel):
    index: int  # of the document in the request
    document: RerankDocument
    relevance_score: float


class RerankUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class RerankResponse(BaseModel):
    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]
