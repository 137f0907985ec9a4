"""Fields of a conversation: messages, tools, and a tool choice.

(vLLM: vllm/entrypoints/openai/chat_completion/protocol.py, vllm/renderers/chat_utils.py)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator
from typing_extensions import NotRequired, TypedDict

from minivllm.entrypoints.chat_parts import MEDIA_PARTS
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.protocol import OpenAIBaseModel
from minivllm.utils.validation import is_one_of

# Types of parts that are taken from a client; a picture of PIL is none.
_PARTS = ("text", "refusal", "thinking", *(kind for kind in MEDIA_PARTS if kind != "image_pil"))


class FunctionDefinition(BaseModel):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatCompletionToolsParam(BaseModel):
    """A function that the model may call. Unknown fields are left out."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


def shown_tools(tools: list[ChatCompletionToolsParam] | None) -> list[dict[str, Any]] | None:
    """The tools for a chat template: ``strict`` only if it is set."""
    if tools is None:
        return None
    without = {"function": {"strict"}}
    return [t.model_dump(exclude=without if t.function.strict is None else None) for t in tools]


class NamedFunction(TypedDict):
    name: str


class NamedToolChoice(TypedDict):
    """The tool that must be called."""

    type: NotRequired[Literal["function"]]
    function: NamedFunction


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    """Check a message: it has a role, and a content that is text or a list of parts.

    A message without a content gets an empty one.

    Raises:
        ValueError: for a bad message.
        RequestError: for a part of another type.
    """
    if not isinstance(message.get("role"), str):
        raise ValueError("a message needs a role, which is a string")
    if not isinstance(message.get("name") or "", str):
        raise ValueError("the name in a message must be a string")
    content = message.get("content", "")
    if content is None and message["role"] == "assistant":
        return message if "tool_calls" in message else message | {"content": ""}
    if not isinstance(content, (str, list)):
        raise ValueError("a message's content must be text, or a list of parts")
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or not _is_known(part):
            raise RequestError(
                f"a part of a message must have one of the types {', '.join(_PARTS)}, got "
                f"{str(part)[:100]}"
            )
    return message | {"content": content}


def _is_known(part: dict[str, Any]) -> bool:
    """True for a part of a known type, and for vLLM's short form: {"image_url": "https://..."}."""
    if "type" in part:
        return is_one_of(part["type"], _PARTS)
    return any(kind in part for kind in MEDIA_PARTS if kind in _PARTS)


Message = Annotated[dict[str, Any], AfterValidator(_checked)]


class MediaFields(OpenAIBaseModel):
    """Options for reading and processing pictures and sounds; see ``PromptProcessor``."""

    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


class ConversationFields(MediaFields):
    """Fields of a conversation that the chat template renders."""

    messages: list[Message]
    tools: list[ChatCompletionToolsParam] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_ending(self):
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt cannot both be true"
            )
        return self

    def with_own_fields(self, template_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Variables of the template: those given, unless a kind of request has more."""
        return template_kwargs
