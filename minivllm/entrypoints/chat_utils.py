"""A conversation becomes a prompt: the tokenizer's chat template, applied."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from minivllm.validation import check


def render_chat(tokenizer, conversation: list[dict], **template_args: Any) -> dict:
    """One conversation as ``{"prompt": text, "prompt_token_ids": ids}``.

    The template writes its own special tokens, so encoding adds none.

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
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **template_args)
    except (TemplateError, TypeError) as error:
        raise ValueError(f"the chat template cannot render these messages: {error}") from error
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
        return {**message, "content": "\n".join(texts)}
    ok = isinstance(content, str) or "tool_calls" in message
    check(ok, "a message's content", content, "text, or a list of text parts")
    return message
