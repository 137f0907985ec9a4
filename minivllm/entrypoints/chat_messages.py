"""Messages as a chat template reads them: content parts, tool calls and the developer role.

(vLLM: ``parse_chat_messages`` in vllm/renderers/chat_utils.py, vllm/renderers/hf.py)
"""

from __future__ import annotations

import json
import re
from typing import Any

from minivllm.entrypoints.chat_parts import ChatMedia, media_part
from minivllm.logger import init_logger
from minivllm.utils.validation import check, is_one_of, is_text

logger = init_logger(__name__)

# Types of parts, and the key of the text. Clients send null for a text or a refusal that is none.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text",
               "refusal": "refusal", "thinking": "thinking"}  # fmt: skip
_MAY_BE_NULL = ("text", "refusal")
_TEXT = "text, or a list of text parts, without lone surrogates"
_KNOWS_DEVELOPERS = re.compile(r"""["']developer["']""")


def template_messages(
    conversation: list[dict],
    chat_template: str,
    content_format: str,
    media: ChatMedia | None = None,
) -> list[dict]:
    """The messages of a conversation, checked, as a template reads them.

    Args:
        conversation: messages as they were sent.
        chat_template: the template, which may not support the developer role.
        content_format: "string" or "openai"; see ``detect_content_format``.
        media: collects pictures and sounds; None: there may be none.

    Raises:
        ValueError: for a bad message.
    """
    media = ChatMedia() if media is None else media
    messages = [_checked(message) for message in conversation]
    if not _KNOWS_DEVELOPERS.search(chat_template):
        messages = _without_developers(messages)
    for message in messages:
        parts = _parts(message["content"])
        if content_format == "openai" and message["role"] != "tool":  # a tool's result is text
            message["content"] = media.parts_of(parts)
        else:
            message["content"] = media.text_of(parts)
    return messages


def text_of(content: Any) -> str:
    """The text of a message's content. Each of several parts is on its own line, if it has any.

    Raises:
        ValueError: for a part that is not text.
    """
    return "\n".join(text for text in _parts(content, only_text=True) if text)


def _parts(content: Any, only_text: bool = False) -> list[Any]:
    """The texts and items of a content, without parts that are null; an empty list for None."""
    if not isinstance(content, (list, tuple)):
        return [] if content is None else [content]
    parts = []
    for part in content:
        item = None if only_text else media_part(part)
        if item is not None:
            parts.append(item)
        elif not _is_null(part):
            text = _text_of_part(part)
            check(is_text(text), "a message's content", content, _TEXT)
            parts.append(text)
    return parts


def _text_of_part(part: Any) -> Any:
    """The text of a part: a dict has it under a key, and a plain string is one."""
    kind = part.get("type") if isinstance(part, dict) else None
    return part.get(_TEXT_PARTS[str(kind)]) if is_one_of(kind, _TEXT_PARTS) else part


def _is_null(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return is_one_of(kind, _MAY_BE_NULL) and _text_of_part(part) is None


def _checked(message: Any) -> dict:
    """A message with its role and content first; tool calls have arguments that are objects."""
    ok = isinstance(message, dict) and is_text(message.get("role"))
    check(ok, "a message", message, "a dict with a 'role' and a 'content'")
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        _parts(content)
    else:
        may_lack = message["role"] == "assistant" or "tool_calls" in message
        ok = is_text(content) or (content is None and may_lack)
        check(ok, "a message's content", content, _TEXT)
    checked = {"role": message["role"], "content": content} | message
    calls = message.get("tool_calls") if message["role"] == "assistant" else None
    if calls is not None:
        check(isinstance(calls, list), "tool_calls", calls, "a list of calls")
        checked["tool_calls"] = [_with_arguments(call) for call in calls]
    if not calls:
        checked.pop("tool_calls", None)  # templates test whether the key is there
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning is not None:  # today's name, and the one in most templates
        checked["reasoning"] = checked["reasoning_content"] = reasoning
    return checked


def _without_developers(messages: list[dict]) -> list[dict]:
    """The messages with the developer role, OpenAI's new name for system, turned into system.

    Most templates allow one system message, at the beginning. So if there is a developer's, all
    system messages are joined into one.
    """
    if all(message["role"] != "developer" for message in messages):
        return messages
    systems = [m for m in messages if m["role"] in ("developer", "system")]
    if systems == messages[:1]:
        return [messages[0] | {"role": "system"}, *messages[1:]]
    texts = [text for system in systems if (text := text_of(system["content"]))]
    others = [m for m in messages if m["role"] not in ("developer", "system")]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _with_arguments(call: Any) -> dict:
    """A tool call whose arguments are an object: clients send JSON text, templates need a dict.

    Arguments that are no JSON object become an empty one. They are sent again in every later turn,
    so an error would make it impossible to continue the conversation.
    """
    ok = isinstance(call, dict) and call.get("type", "function") == "function"
    ok = ok and isinstance(call.get("function"), dict)
    check(ok, "every one of tool_calls", call, "of type 'function', with a dict of that name")
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        name = function.get("name")
        logger.warning("The arguments of a call of %r are no JSON object: taken as none.", name)
        arguments = {}
    return {**call, "function": {**function, "arguments": arguments}}
