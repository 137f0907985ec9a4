"""A conversation becomes a prompt: the tokenizer's chat template, applied."""

from __future__ import annotations

from typing import Any

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
    for message in conversation:
        ok = isinstance(message, dict) and isinstance(message.get("role"), str)
        check(ok, "a message", message, "a dict with a 'role' and a 'content'")
    text = tokenizer.apply_chat_template(conversation, tokenize=False, **template_args)
    return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}
