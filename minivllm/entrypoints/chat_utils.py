"""A conversation becomes a prompt: the tokenizer's chat template, applied.

(vLLM: vllm/entrypoints/chat_utils.py)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minivllm.validation import check


def load_chat_template(template: str | Path | None) -> str | None:
    """A chat template from a file, or as it is typed: a Jinja text in one line.

    Raises:
        ValueError: if there is no such file and it does not look like a template.
    """
    if template is None:
        return None
    try:
        return Path(template).read_text(encoding="utf-8")
    except OSError as error:
        if isinstance(template, Path) or not any(c in template for c in "{}\n"):
            raise ValueError(
                f"chat_template must be a readable file or a Jinja template, got {template!r} "
                f"({error})."
            ) from error
    return template


def apply_chat_template(tokenizer, conversation: list[dict], **template_args: Any) -> str:
    """One conversation as text.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        conversation: messages, each with a "role" and a "content".
        **template_args: passed on to ``apply_chat_template``.

    Raises:
        ValueError: if there is no tokenizer or template, or a message is not one.
    """
    if tokenizer is None:
        raise ValueError("chat needs a tokenizer; skip_tokenizer_init=True leaves none.")
    if template_args.get("chat_template") is None and tokenizer.chat_template is None:
        raise ValueError("this tokenizer has no chat template; pass chat_template=, or generate().")
    ok = isinstance(conversation, (list, tuple)) and len(conversation) > 0
    check(ok, "messages", conversation, "a non-empty list of messages")
    messages = [_checked(message) for message in conversation]
    template = template_args.get("chat_template") or tokenizer.chat_template
    if "developer" not in template:  # what OpenAI calls the system's role now
        system = {"role": "system"}
        messages = [m | system if m["role"] == "developer" else m for m in messages]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **template_args)
    except Exception as error:  # a template is a program: it may fail in any way
        raise ValueError(f"the chat template cannot render these messages: {error}") from error


def render_chat(tokenizer, conversation: list[dict], **template_args: Any) -> dict:
    """One conversation as ``{"prompt": text, "prompt_token_ids": ids}``.

    The template writes its own special tokens, so encoding adds none. Arguments and errors are
    those of ``apply_chat_template``.
    """
    text = apply_chat_template(tokenizer, conversation, **template_args)
    return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}


def _checked(message: Any) -> dict:
    """A message with its content as one string; OpenAI's list of text parts is joined."""
    ok = isinstance(message, dict) and isinstance(message.get("role"), str)
    check(ok, "a message", message, "a dict with a 'role' and a 'content'")
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        ok = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
        check(ok, "a message's content", content, "text, or a list of text parts")
        message = {**message, "content": "\n".join(texts)}
    else:
        ok = isinstance(content, str) or "tool_calls" in message
        check(ok, "a message's content", content, "text, or a list of text parts")
    if calls := message.get("tool_calls"):
        check(isinstance(calls, list), "tool_calls", calls, "a list of calls")
        message = {**message, "tool_calls": [_with_arguments(c) for c in message["tool_calls"]]}
    return message


def _with_arguments(call: Any) -> Any:
    """A tool call whose arguments are an object: clients send JSON text, templates want more."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        raise ValueError(
            f"the arguments of a tool call must be a JSON object, got {function['arguments']!r}."
        ) from error
    return {**call, "function": {**function, "arguments": arguments}}
