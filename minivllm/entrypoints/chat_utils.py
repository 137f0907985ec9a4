"""Chat templates: load them, and render a conversation as a prompt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from minivllm.entrypoints.chat_content_format import CONTENT_FORMATS, detect_content_format
from minivllm.entrypoints.chat_messages import template_messages
from minivllm.entrypoints.chat_parts import ChatMedia
from minivllm.utils.validation import check, is_text

# Arguments of transformers' ``apply_chat_template`` that are no variables of a template, and those
# that are arguments of the function below.
NOT_THE_TEMPLATES = {"conversation", "tools", "chat_template", "add_generation_prompt",
                     "continue_final_message", "tokenize", "padding", "truncation",
                     "max_length", "return_tensors", "return_dict",
                     "return_assistant_tokens_mask", "tokenizer_kwargs"}  # fmt: skip
_TOOL_TEMPLATES = Path(__file__).parent / "openai" / "tool_parsers"


def load_chat_template(chat_template: str | Path | None, *, is_literal: bool = False) -> str | None:
    """Read a chat template from a file, or return the argument if it is the template itself.

    The templates beside the tool parsers are found by file name, in any folder: vLLM's path
    ``examples/tool_chat_template_llama3_json.jinja`` works, too.

    Args:
        chat_template: a file's path, or Jinja; None stays None.
        is_literal: it is the template, even if a file has this name.

    Raises:
        FileNotFoundError: for a ``Path`` without a file.
        ValueError: for a string that is neither a file's path nor looks like Jinja.
        TypeError: for a literal that is a ``Path``.
    """
    if chat_template is None:
        return None
    if is_literal:
        if not isinstance(chat_template, str):
            raise TypeError(f"a literal chat_template must be a string, got {chat_template!r}.")
        return chat_template
    try:
        return Path(chat_template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        ours = {path.name: path for path in _TOOL_TEMPLATES.glob("*.jinja")}
        if (name := Path(chat_template).name) in ours:
            return ours[name].read_text(encoding="utf-8")
        if isinstance(chat_template, Path):
            raise
        if re.search(r"[{}\n]", chat_template):
            return chat_template
        raise ValueError(
            f"chat_template is {chat_template!r}, which looks like a file's path, but it cannot be "
            f"read ({error}); give a path that can, or a Jinja template."
        ) from error


def apply_chat_template(
    tokenizer,
    conversation: list[dict],
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: list[dict] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    chat_template_content_format: str = "auto",
    media: ChatMedia | None = None,
) -> str:
    """One conversation as text, special tokens included.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        conversation: messages, each with a "role" and a "content".
        chat_template, add_generation_prompt, continue_final_message, tools,
            chat_template_kwargs, chat_template_content_format: as for ``LLM.chat``.
        media: collects pictures and sounds; None: there may be none.

    Raises:
        ValueError: if there is no tokenizer or template, a message is not one, or the template
            cannot be rendered.
    """
    if tokenizer is None:
        raise ValueError("chat needs a tokenizer; skip_tokenizer_init=True leaves none.")
    ok = chat_template is None or is_text(chat_template)
    check(ok, "chat_template", chat_template, "a string without lone surrogates, or None")
    for name, flag in (
        ("add_generation_prompt", add_generation_prompt),
        ("continue_final_message", continue_final_message),
    ):
        check(isinstance(flag, bool), name, flag, "True or False")
    ok = tools is None or (isinstance(tools, (list, tuple)) and all(_is_schema(t) for t in tools))
    check(ok, "tools", tools, "a list of dicts, each the JSON schema of a function")
    more = {} if chat_template_kwargs is None else chat_template_kwargs
    ok = isinstance(more, dict) and all(isinstance(name, str) for name in more)
    check(ok, "chat_template_kwargs", more, "a dict of what the template is told, by name")
    ours = more.keys() & NOT_THE_TEMPLATES
    allowed = "without what chat() or the engine decides: " + ", ".join(sorted(ours))
    check(not ours, "chat_template_kwargs", more, allowed)
    if chat_template is None and tokenizer.chat_template is None:
        raise ValueError("this tokenizer has no chat template; pass chat_template=, or generate().")
    ok = isinstance(conversation, (list, tuple)) and len(conversation) > 0
    check(ok, "messages", conversation, "a non-empty list of messages")
    form = chat_template_content_format
    ok = isinstance(form, str) and form in CONTENT_FORMATS
    check(ok, "chat_template_content_format", form, f"one of {', '.join(CONTENT_FORMATS)}")
    source = tokenizer.get_chat_template(chat_template, tools=tools)
    form = detect_content_format(source) if form == "auto" else form
    messages = template_messages(conversation, source, form, media)
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tools=tools,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tokenize=False,
            **more,
        )
    except Exception as error:  # a template is a program: it can raise anything
        raise ValueError(
            f"the chat template cannot render these messages: {error or type(error).__name__}"
        ) from error
    check(is_text(text), "what the chat template renders", text, "text without lone surrogates")
    return text


def render_chat(
    tokenizer, conversation: list[dict], media: ChatMedia | None = None, **template_args: Any
) -> dict:
    """One conversation as ``{"prompt": text, "prompt_token_ids": ids}``, with its items if any.

    The template writes its own special tokens, so encoding adds none. Arguments and errors are
    those of ``apply_chat_template``.
    """
    text = apply_chat_template(tokenizer, conversation, media=media, **template_args)
    prompt = {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}
    if media is not None and media.items:
        prompt |= {"multi_modal_data": media.items, "multi_modal_uuids": media.uuids}
    return prompt


def _is_schema(tool: Any) -> bool:
    return isinstance(tool, dict) and all(isinstance(name, str) for name in tool)
