"""OpenAIServing: base of all endpoints that have to do with a model.

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

from minivllm.engine.input_processor import EngineInput
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.generation_request import GenerationRequest
from minivllm.entrypoints.openai.logprobs import TokenNames
from minivllm.entrypoints.openai.prompts import PromptProcessor
from minivllm.entrypoints.openai.protocol import EngineFields
from minivllm.entrypoints.openai.served_model import ServedModel
from minivllm.entrypoints.openai.streaming.chunk_builder import show_stop_tokens
from minivllm.entrypoints.openai.streaming.generation_response import EngineRequest
from minivllm.entrypoints.openai.usage import UsagePolicy
from minivllm.logger import init_logger
from minivllm.lora.request import LoRARequest
from minivllm.outputs import RequestOutput
from minivllm.pooling_params import PoolingParams
from minivllm.sampling_params import BeamSearchParams, SamplingParams

logger = init_logger(__name__)


class OpenAIServing:
    """Base class of an endpoint."""

    def __init__(self, served: ServedModel):
        self.served = served
        self.models = served.models
        self.engine = served.engine
        self.args = served.args
        self.tokenizer = served.engine.tokenizer
        self.prompts = PromptProcessor(served)
        self.usage = UsagePolicy(served.args)
        # By the engine's request id; also requests that the engine does not have yet.
        self._requests: WeakValueDictionary[str, EngineRequest] = WeakValueDictionary()

    @staticmethod
    def request_id(prefix: str, request: EngineFields, raw: Request) -> str:
        """Request id: the header's, else the body's, which has a random default."""
        return f"{prefix}-{raw.headers.get('x-request-id', request.request_id)}"

    def engine_request(
        self,
        request: EngineFields,
        prompt: EngineInput,
        params: SamplingParams | BeamSearchParams | PoolingParams,
        name: str,
        raw: Request,
        lora_request: LoRARequest | None,
    ) -> EngineRequest:
        """Make the engine's request for one prompt, and log it.

        Its id is the name, with a suffix if that is in use: callers may choose a name twice. The
        log has level INFO with ``--enable-log-requests``, else DEBUG, and cuts the prompt to
        ``--max-log-len``.
        """
        if name in self._requests or name in self.engine.request_ids:
            name = f"{name}-{uuid.uuid4().hex[:8]}"
        level = logging.INFO if self.args.enable_log_requests else logging.DEBUG
        if logger.isEnabledFor(level):
            text = prompt.prompt
            shown = (prompt.prompt_token_ids if text is None else text)[: self.args.max_log_len]
            logger.log(level, "Received request %s: prompt: %r, params: %s", name, shown, params)
        made = EngineRequest(
            name,
            prompt,
            params,
            priority=self.priority(request, raw),
            lora_request=lora_request,
            data_parallel_rank=self.data_parallel_rank(raw),
        )
        self._requests[name] = made
        return made

    async def final_output(
        self, request: GenerationRequest, engine_request: EngineRequest
    ) -> RequestOutput:
        """Generate, and return a prompt's whole output."""
        outputs = self.engine.generate(
            engine_request.prompt,
            engine_request.params,
            engine_request.request_id,
            priority=engine_request.priority,
            lora_request=engine_request.lora_request,
            data_parallel_rank=engine_request.data_parallel_rank,
        )
        async with aclosing(outputs):
            async for output in outputs:
                last = output
        if request.use_beam_search:
            show_stop_tokens(last, request.include_stop_str_in_output)
        return last

    @staticmethod
    def head(request_id: str, kind: str, model: str) -> dict[str, Any]:
        return {"id": request_id, "object": kind, "created": int(time.time()), "model": model}

    def priority(self, request: EngineFields, raw: Request) -> int:
        """Priority from the header or the body; 0 unless the scheduling policy uses it."""
        if self.engine.args.scheduling_policy != "priority":
            return 0
        try:
            return int(raw.headers.get("x-vllm-priority") or request.priority)
        except ValueError:
            return request.priority  # a bad header, perhaps a proxy's

    def data_parallel_rank(self, raw: Request) -> int | None:
        """Number of the engine that the header asks for. Load balancers send it.

        Raises:
            RequestError: if there is none of this number.
        """
        size = self.engine.data_parallel_size
        try:
            rank = int(raw.headers.get("x-data-parallel-rank", ""))
        except ValueError:
            return None  # ignored like a bad priority
        if not 0 <= rank < size:
            raise RequestError(f"data_parallel_rank {rank} is out of range [0, {size}).")
        return rank

    def token_names(self, request: GenerationRequest) -> TokenNames:
        """Names of tokens in a request's logprobs: by text, or by id."""
        asked = request.return_tokens_as_token_ids
        as_ids = self.args.return_tokens_as_token_ids if asked is None else asked
        return TokenNames(self.tokenizer, as_ids)

    async def check_grammar(self, params: SamplingParams | BeamSearchParams) -> None:
        """Compile a request's grammar, if it has one, in a thread. The engine finds it cached.

        Raises:
            ValueError: for a grammar that cannot be compiled.
        """
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            manager = self.engine.input_processor.structured_output_manager
            await asyncio.to_thread(manager.compile_grammar, params.structured_outputs, ())
