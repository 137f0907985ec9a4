"""OpenAIServingTokenization: the tokenizer. (vLLM: vllm/entrypoints/serve/tokenize/)"""

from __future__ import annotations

from typing import Any

from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.serving import OpenAIServing
from minivllm.entrypoints.openai.tokenize.protocol import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeRequest,
    TokenizeResponse,
)

_LARGEST_ID = 2**32 - 1  # tokenizers take 32 bits


class OpenAIServingTokenization(OpenAIServing):
    """Endpoints /tokenize, /detokenize and /tokenizer_info, which do not use the engine."""

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Tokenize a text, or a conversation as the chat template renders it.

        Pictures and sounds are read and processed, as their placeholders are tokens, too.
        """
        self.models.check_model(request.model)
        if isinstance(request, TokenizeChatRequest):
            token_ids = (await self.prompts.of_chat(request, truncates=True)).prompt_token_ids
        else:
            special = request.add_special_tokens
            token_ids = await self.prompts.encode(request.prompt, special, truncates=True)
        strings = None
        if request.return_token_strs:
            strings = self.tokenizer.convert_ids_to_tokens(token_ids)
        return TokenizeResponse(
            count=len(token_ids),
            max_model_len=self.served.max_model_len,
            tokens=token_ids,
            token_strs=strings,
        )

    def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """Decode token ids, special ones included. An unknown id has no text."""
        self.models.check_model(request.model)
        if any(token_id > _LARGEST_ID for token_id in request.tokens):
            raise RequestError(f"tokens must be from 0 to {_LARGEST_ID}")
        return DetokenizeResponse(prompt=self.tokenizer.decode(request.tokens))

    def tokenizer_info(self) -> dict[str, Any]:
        """Arguments of the tokenizer, for clients that make the same one."""
        made = self.tokenizer.init_kwargs.items()
        info = {name: _plain(value) for name, value in made if not name.endswith("_file")}
        return info | {
            "truncation_side": "left",  # the default of truncate_prompt_tokens
            "tokenizer_class": type(self.tokenizer).__name__,
            "chat_template": self.served.chat_template or self.tokenizer.chat_template,
        }


def _plain(value: Any) -> Any:
    """Convert a value to JSON's types; an added token becomes its text."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
