"""PromptProcessor: a request's text or messages as token ids that fit into the context.

(vLLM: vllm/renderers/hf.py, vllm/entrypoints/serve/engine/serving.py)
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from minivllm.engine.input_processor import EngineInput, check_not_cut
from minivllm.entrypoints.chat_parts import ChatMedia
from minivllm.entrypoints.chat_utils import NOT_THE_TEMPLATES, apply_chat_template
from minivllm.entrypoints.openai.conversation import ConversationFields, MediaFields, shown_tools
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.protocol import EngineFields
from minivllm.entrypoints.openai.served_model import ServedModel
from minivllm.utils.validation import check, is_text

_LONGEST = 2_000_000  # characters of a text; longer ones are refused before they are tokenized
SHORT = 4000  # characters that are tokenized in the event loop; longer texts in a thread


class PromptProcessor:
    """Chat template, tokenizer and limits of the served model.

    Args:
        served: the model.
    """

    def __init__(self, served: ServedModel):
        self.served = served
        self.engine = served.engine
        self.args = served.args
        self.tokenizer = served.engine.tokenizer
        pools = served.engine.model_config.runner_type == "pooling"
        together = "" if pools else ", prompt and answer together"
        self._context = f"the context holds {served.max_model_len} tokens{together}"

    async def of_chat(self, request: ConversationFields, truncates: bool) -> EngineInput:
        """The prompt of a conversation: rendered, tokenized, and its items fetched and processed.

        Items are prepared in a thread, so that the event loop goes on. A client's uuids are not
        taken: its items are the same only if their content is.

        Args:
            request: with the messages.
            truncates: the prompt may be longer than the context.

        Raises:
            RequestError, ValueError: for messages that cannot be rendered, and items that may not
                or cannot be read.
        """
        options = self._media_options(request)
        media = ChatMedia.of(self.engine.input_processor, self.served.models.model_name())
        text = self.render(request, media)
        token_ids = await self.encode(text, request.add_special_tokens, truncates)
        prompt = {"prompt": text, "prompt_token_ids": token_ids,
                  "cache_salt": getattr(request, "cache_salt", None)}  # fmt: skip
        if not media.items:
            return self.engine.input_processor.preprocess(prompt)
        if any(item is None for items in media.items.values() for item in items):
            raise RequestError("a uuid alone names nothing here; send the picture or sound again")
        return await self.engine.preprocess(prompt | options | {"multi_modal_data": media.items})

    def _media_options(self, request: MediaFields) -> dict[str, Any]:
        """Options of a request for its items. Raises ``RequestError`` unless they are trusted."""
        options = {}
        for name in ("media_io_kwargs", "mm_processor_kwargs"):
            if not (value := getattr(request, name)):
                continue
            if self.engine.input_processor.multimodal is None:
                raise RequestError(f"{name} is for images and sounds; this server has none", name)
            if not self.args.trust_request_mm_kwargs:
                raise RequestError(
                    f"this server takes no {name} from a request; it would need "
                    "--trust-request-mm-kwargs",
                    name,
                )
            options[name] = value
        return options

    def render(self, request: ConversationFields, media: ChatMedia) -> str:
        """Write a conversation with the chat template. A request's own fields have precedence.

        Args:
            request: with the messages.
            media: collects pictures and sounds.

        Raises:
            RequestError, ValueError: for a template that is not trusted, or that fails.
        """
        template = request.chat_template
        asked = request.chat_template_kwargs or {}
        untrusted = template is not None or "chat_template" in asked
        if untrusted and not self.args.trust_request_chat_template:
            raise RequestError(
                "this server takes no chat template from a request; it would need "
                "--trust-request-chat-template"
            )
        more = request.with_own_fields(self.args.default_chat_template_kwargs | asked)
        none = getattr(request, "tool_choice", None) == "none"
        hidden = none and self.args.exclude_tools_when_tool_choice_none
        tools = None if hidden else shown_tools(request.tools)
        tools = tools or more.get("tools")
        more = {name: value for name, value in more.items() if name not in NOT_THE_TEMPLATES}
        return apply_chat_template(
            self.tokenizer,
            request.messages,
            chat_template=template or self.served.chat_template,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=tools,
            chat_template_kwargs=more,
            chat_template_content_format=self.args.chat_template_content_format,
            media=media,
        )

    async def encode(self, text: str, add_special_tokens: bool, truncates: bool) -> list[int]:
        """Tokenize a text; a long one in a thread, so that the event loop goes on."""
        self.check_text(text, truncates)
        text = text.lower() if self.served.engine.model_config.do_lower_case else text
        if len(text) <= SHORT:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(
            self.tokenizer.encode, text, add_special_tokens=add_special_tokens
        )

    def check_text(self, text: str, truncates: bool) -> None:
        """Check a text before it is tokenized.

        Raises:
            RequestError, ValueError: if it is too long for that, or cannot be encoded.
        """
        limit = self.served.max_model_len
        if self.tokenizer is None:
            raise RequestError("this server has no tokenizer; send token ids", "prompt")
        if not truncates and len(text) > self.served.longest_token * limit:
            raise RequestError(
                f"{self._context}, but a text of {len(text)} characters has more; shorten it",
                "input_text",
            )
        if len(text) > _LONGEST:
            raise RequestError(f"a text may have {_LONGEST} characters", "prompt")
        check(is_text(text), "prompt", text, "a string without lone surrogates")

    def truncate(
        self, prompt: EngineInput, request: EngineFields, max_tokens: int | None
    ) -> EngineInput:
        """Cut a prompt to ``truncate_prompt_tokens``; by default its last tokens are kept.

        Args:
            prompt: with items it is refused instead of cut.
            request: with the number, and the side that is cut.
            max_tokens: of the answer, as the request asks.

        Raises:
            RequestError, ValueError: if it would be cut and has items, or does not fit into the
                context nevertheless.
        """
        keep = request.truncate_prompt_tokens
        limit = self.served.max_model_len
        if keep is not None:
            self.check_keep(keep)
            keep = limit - bool(max_tokens) if keep == -1 else keep  # room for one more token
            check_not_cut(prompt, keep)
            right = request.truncation_side == "right"
            ids = prompt.prompt_token_ids
            ids = ids[:keep] if right else ids[max(0, len(ids) - keep) :]
            prompt = replace(prompt, prompt_token_ids=ids)
        self.check_length(prompt.prompt_token_ids)
        return prompt

    def check_keep(self, keep: int | None) -> None:
        """Check ``truncate_prompt_tokens``. Raises ``RequestError`` for more than the context."""
        limit = self.served.max_model_len
        if keep is not None and keep > limit:
            raise RequestError(
                f"truncate_prompt_tokens must be at most {limit}, got {keep}",
                "truncate_prompt_tokens",
            )

    def check_length(self, token_ids: list[int]) -> None:
        """Check a prompt. Raises ``RequestError`` if it does not fit into the context."""
        if len(token_ids) > self.served.max_model_len:
            raise RequestError(
                f"{self._context}, but the prompt alone has {len(token_ids)}; shorten it",
                "input_tokens",
            )

    def max_tokens(self, asked: int | None, prompt_length: int, name: str = "max_tokens") -> int:
        """Number of tokens that a request may generate: the least of three limits.

        They are its own, the model's, and the rest of the context.

        Args:
            asked: the request's own limit, if it has one.
            prompt_length: in tokens.
            name: the field of the request's limit.

        Raises:
            RequestError: if it asks for more than the context could ever hold.
        """
        limit = self.served.max_model_len
        if asked is not None and asked > limit:
            raise RequestError(
                f"{name} is {asked}, but the context holds {limit} tokens, prompt and answer "
                "together; ask for less",
                name,
            )
        bounds = (asked, limit - prompt_length, self.served.default_sampling.get("max_tokens"))
        most = int(min(bound for bound in bounds if bound is not None))
        if most < 1:
            raise RequestError(
                f"max_tokens must be at least 1, got {most} (the prompt has {prompt_length} of "
                f"{limit} tokens)",
                "max_tokens",
            )
        return most
