"""Constraints on an answer: OpenAI's ``response_format`` and vLLM's ``structured_outputs``.

(vLLM: vllm/entrypoints/generate/base/protocol.py)
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from minivllm.config.structured_outputs import StructuredOutputsParams
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.protocol import OpenAIBaseModel


class JsonSchemaResponseFormat(OpenAIBaseModel):
    name: str
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(OpenAIBaseModel):
    """OpenAI's form of a constraint; the type "text" is none."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaResponseFormat | None = None

    def constraint(self) -> dict[str, Any]:
        """Arguments of ``StructuredOutputsParams``; none for "text".

        Raises:
            RequestError: for a missing schema, or a type that is not supported.
        """
        if self.type == "text":
            return {}
        if self.type == "json_object":
            return {"json_object": True}
        if self.type == "structural_tag":
            raise RequestError("structural tags are not there; use a grammar", "response_format")
        if self.json_schema is None:
            raise RequestError("type 'json_schema' needs json_schema", "response_format")
        return {"json": self.json_schema.json_schema}


class StructuredOutputs(OpenAIBaseModel):
    """Fields of ``StructuredOutputsParams`` in a body, and ``structural_tag``, which is refused."""

    json_schema: str | dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def constraint(self) -> dict[str, Any]:
        """Arguments of ``StructuredOutputsParams``.

        Raises:
            RequestError: for two kinds, or one that is not supported.
        """
        if self.structural_tag is not None:
            raise RequestError("structural tags are not there; use a grammar", "structured_outputs")
        if sum(kind is not None for kind in (self.json_schema, self.regex, self.choice)) > 1:
            raise RequestError(
                "structured_outputs takes one of json, regex and choice, got several",
                "structured_outputs",
            )
        values = {name: getattr(self, name) for name in type(self).model_fields}
        del values["structural_tag"]
        return {"json": values.pop("json_schema")} | values | (self.model_extra or {})


def structured_outputs_params(
    form: ResponseFormat | None, kinds: StructuredOutputs | None
) -> StructuredOutputsParams | None:
    """Make ``StructuredOutputsParams`` from both fields together; None if both are empty.

    Raises:
        RequestError: unless they name one kind, well formed.
    """
    values = (kinds.constraint() if kinds else {}) | (form.constraint() if form else {})
    try:
        return StructuredOutputsParams(**values) if values else None
    except (ValueError, TypeError) as error:
        raise RequestError(str(error)) from error
