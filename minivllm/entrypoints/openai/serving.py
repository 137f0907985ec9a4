"""OpenAIServing: base of the endpoints for completions, chat and tokenization.

(vLLM: vllm/entrypoints/serve/engine/serving.py)
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import aclosing
from typing import Any
from weakref import WeakValueDictionary

from fastapi import Request

from minivllm.entrypoints.chat_utils import NOT_THE_TEMPLATES, apply_chat_template
from minivllm.entrypoints.openai.answer_events import show_stop_tokens
from minivllm.entrypoints.openai.chat_protocol import ChatCompletionRequest
from minivllm.entrypoints.openai.conversation import shown_tools
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.generation_request import GenerationRequest
from minivllm.entrypoints.openai.output_stream import Asked
from minivllm.entrypoints.openai.protocol import PromptTokenUsageInfo, UsageInfo
from minivllm.entrypoints.openai.served_model import ServedModel
from minivllm.logger import init_logger
from minivllm.outputs import RequestMetrics, RequestOutput
from minivllm.sampling_params import BeamSearchParams, SamplingParams
from minivllm.validation import check, is_text

logger = init_logger(__name__)

_LONGEST = 2_000_000  # characters: what is cut afterwards is tokenized before
_SHORT = 4000  # characters that are encoded in the event loop; more go to a thread


class OpenAIServing:
    """Base class of an endpoint."""

    def __init__(self, served: ServedModel):
        self.served = served
        self.engine = served.engine
        self.args = served.args
        # By the engine's request id, also those that it has not been asked yet.
        self._asked: WeakValueDictionary[str, Asked] = WeakValueDictionary()

    @property
    def tokenizer(self):
        return self.engine.tokenizer

    @staticmethod
    def request_id(prefix: str, request: GenerationRequest, raw: Request) -> str:
        """The caller's id, from the header or the body, or the one that the body was given."""
        return f"{prefix}-{raw.headers.get('x-request-id', request.request_id)}"

    def to_ask(
        self, request: GenerationRequest, prompt: dict, params: Any, name: str, raw: Request
    ) -> Asked:
        """What the engine is to be asked for one prompt; it is checked, but for the tokens.

        The engine's request id is this name, or begins with it: callers may choose one twice. It is
        logged, at DEBUG without ``--enable-log-requests``, the prompt cut to ``--max-log-len``.
        """
        if name in self._asked or name in self.engine.request_ids:
            name = f"{name}-{uuid.uuid4().hex[:8]}"
        level = logging.INFO if self.args.enable_log_requests else logging.DEBUG
        if logger.isEnabledFor(level):
            text, token_ids = prompt["prompt"], prompt["prompt_token_ids"]
            shown = (token_ids if text is None else text)[: self.args.max_log_len]
            logger.log(level, "Received request %s: prompt: %r, params: %s", name, shown, params)
        self._asked[name] = asked = Asked(name, prompt, params, self.priority(request, raw))
        return asked

    async def last_output(self, request: GenerationRequest, asked: Asked) -> RequestOutput:
        """A prompt's whole output."""
        outputs = self.engine.generate(asked.prompt, asked.params, asked.request_id, asked.priority)
        async with aclosing(outputs):
            async for output in outputs:
                last = output
        if request.use_beam_search:
            show_stop_tokens(last, request.include_stop_str_in_output)
        return last

    @staticmethod
    def head(request_id: str, kind: str, model: str) -> dict[str, Any]:
        return {"id": request_id, "object": kind, "created": int(time.time()), "model": model}

    def priority(self, request: GenerationRequest, raw: Request) -> int:
        """From the header or the body; it counts only where the policy asks for it."""
        if self.engine.args.scheduling_policy != "priority":
            return 0
        try:
            return int(raw.headers.get("x-vllm-priority") or request.priority)
        except ValueError:
            return request.priority  # a proxy may have written that header

    @staticmethod
    def check_rank(raw: Request) -> None:
        """Raise if a load balancer means another one of several engines: there is one, rank 0."""
        try:
            rank = int(raw.headers.get("x-data-parallel-rank", "0"))
        except ValueError:
            return  # as a priority that is none
        if rank != 0:
            raise RequestError(f"X-data-parallel-rank must be 0, for the one engine, got {rank}")

    def wants_usage(self, request: GenerationRequest) -> tuple[bool, bool]:
        """True if a stream ends with the usage; and True if every event has it."""
        if self.args.enable_force_include_usage:
            return True, True
        options = request.stream_options
        at_end = bool(options and options.include_usage)
        return at_end, at_end and bool(options and options.continuous_usage_stats)

    def shows_ids(self, request: GenerationRequest) -> bool:
        """Whether logprobs name tokens by id."""
        asked = request.return_tokens_as_token_ids
        return self.args.return_tokens_as_token_ids if asked is None else asked

    # -- prompts -----------------------------------------------------------------------------

    async def encode(self, text: str, add_special_tokens: bool, truncates: bool) -> list[int]:
        """Token ids of a text; a long one is encoded beside the event loop."""
        limit = self.served.max_model_len
        if self.tokenizer is None:
            raise RequestError("this server has no tokenizer; send token ids", "prompt")
        if not truncates and len(text) > self.served.longest_token * limit:
            raise RequestError(
                f"the context holds {limit} tokens, prompt and answer together, but a text of "
                f"{len(text)} characters has more; shorten it",
                "input_text",
            )
        if len(text) > _LONGEST:
            raise RequestError(f"a text may have {_LONGEST} characters", "prompt")
        check(is_text(text), "prompt", text, "a string without lone surrogates")
        if len(text) <= _SHORT:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(
            self.tokenizer.encode, text, add_special_tokens=add_special_tokens
        )

    def render(self, messages: list[dict], request) -> str:
        """A conversation as the chat template writes it; a request's own fields have the last word.

        Raises:
            RequestError, ValueError: for a template that is not trusted, or that fails.
        """
        template, asked = request.chat_template, request.chat_template_kwargs or {}
        untrusted = template is not None or "chat_template" in asked
        if untrusted and not self.args.trust_request_chat_template:
            raise RequestError(
                "this server takes no chat template from a request; it would need "
                "--trust-request-chat-template"
            )
        more = self.args.default_chat_template_kwargs | asked
        if isinstance(request, ChatCompletionRequest):
            more = request.with_own_fields(more)
        tools = None if self._hides_tools(request) else shown_tools(request.tools)
        tools = tools or more.get("tools")
        more = {name: value for name, value in more.items() if name not in NOT_THE_TEMPLATES}
        return apply_chat_template(
            self.tokenizer,
            messages,
            chat_template=template or self.served.chat_template,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=tools,
            chat_template_kwargs=more,
            chat_template_content_format=self.args.chat_template_content_format,
        )

    def _hides_tools(self, request) -> bool:
        none = getattr(request, "tool_choice", None) == "none"
        return none and self.args.exclude_tools_when_tool_choice_none

    async def check_grammar(self, params: SamplingParams | BeamSearchParams) -> None:
        """Compile a request's grammar, if it has one, beside the event loop; it is kept.

        Raises:
            ValueError: if it cannot be done.
        """
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            manager = self.engine.input_processor.structured_output_manager
            await asyncio.to_thread(manager.compile_grammar, params.structured_outputs, ())

    def cut(self, token_ids: list[int], request: GenerationRequest, most: int | None) -> list[int]:
        """What ``truncate_prompt_tokens`` leaves of a prompt, at its right end unless told else.

        Raises:
            RequestError: if it does not fit into the context nevertheless.
        """
        keep, limit = request.truncate_prompt_tokens, self.served.max_model_len
        if keep is not None:
            if keep > limit:
                raise RequestError(
                    f"truncate_prompt_tokens must be at most {limit}, got {keep}",
                    "truncate_prompt_tokens",
                )
            keep = limit - bool(most) if keep == -1 else keep  # room for one token of an answer
            right = request.truncation_side == "right"
            token_ids = token_ids[:keep] if right else token_ids[max(0, len(token_ids) - keep) :]
        if len(token_ids) > limit:
            raise RequestError(
                f"the context holds {limit} tokens, prompt and answer together, but the prompt "
                f"alone has {len(token_ids)}; shorten it",
                "input_tokens",
            )
        return token_ids

    def max_tokens(self, asked: int | None, prompt_length: int, name: str = "max_tokens") -> int:
        """What a request may generate: what it asks for, the model's limit, what the context has.

        Args:
            asked: None is as much as possible.
            prompt_length: in tokens.
            name: of the field that asks.

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

    # -- answers -----------------------------------------------------------------------------

    def usage(self, outputs: list[RequestOutput]) -> UsageInfo:
        """Tokens of whole outputs, one for each prompt."""
        prompt = sum(len(output.prompt_token_ids) for output in outputs)
        answer = sum(len(c.token_ids) for output in outputs for c in output.outputs)
        cached = sum(output.num_cached_tokens or 0 for output in outputs)
        return UsageInfo(
            prompt_tokens=prompt,
            completion_tokens=answer,
            total_tokens=prompt + answer,
            prompt_tokens_details=self.prompt_details(prompt, cached),
        )

    def prompt_details(self, prompt: int, cached: int) -> PromptTokenUsageInfo | None:
        """How many of the prompts' tokens the cache had, if the server tells."""
        if not self.args.enable_prompt_tokens_details:
            return None
        return PromptTokenUsageInfo(cached_tokens=cached)

    def metrics(
        self, num_choices: int, times: RequestMetrics | None, tokens: int
    ) -> dict[str, float | None] | None:
        """Times of an answer's choice, in milliseconds, if the server is told to show them.

        Several choices have none: which one would it be?
        """
        if num_choices != 1 or times is None or not self.args.enable_per_request_metrics:
            return None
        arrived, first = times.arrival_time, times.first_token_time or times.arrival_time
        begun, last = times.first_scheduled_time or arrived, times.last_token_time or first
        return {
            "time_to_first_token_ms": 1000 * (first - arrived),
            "generation_time_ms": 1000 * (last - first),
            "queue_time_ms": 1000 * (begun - arrived),
            "mean_itl_ms": 1000 * (last - first) / (tokens - 1) if tokens > 1 else None,
            "tokens_per_second": tokens / (last - begun) if last > begun else None,
            "speculative_decoding": None,
        }
