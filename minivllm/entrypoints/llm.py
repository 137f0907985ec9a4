"""LLM: offline inference, as in vLLM. Prompts in, finished outputs back, in the same order.

(vLLM: vllm/entrypoints/llm.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tqdm.auto import tqdm

from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.input_processor import check_not_cut
from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.chat_parts import ChatMedia
from minivllm.entrypoints.chat_utils import load_chat_template, render_chat
from minivllm.entrypoints.offline_pooling import PoolingMixin
from minivllm.entrypoints.progress_bar import check_use_tqdm, collect_outputs
from minivllm.entrypoints.truncation import TruncationParams, tokenized
from minivllm.kv.memory_profile import MemoryProfile
from minivllm.lora.request import LoRARequest
from minivllm.metrics.reader import Metric
from minivllm.outputs import BeamSearchOutput, BeamSearchSequence, CompletionOutput, RequestOutput
from minivllm.request import Request
from minivllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from minivllm.scheduling.livelock import make_progress
from minivllm.trace import Trace
from minivllm.utils.validation import check, check_names, is_int, is_text
from minivllm.utils.vllm_arguments import check_default, without_defaults

AnyParams = SamplingParams | BeamSearchParams


class LLM(PoolingMixin):
    """Offline inference: a model and the engine that runs it.

    Args:
        model: a Hugging Face directory, a GGUF file, the name of a pulled model or of a hub's; None
            for the small chat model that ships with minivllm.
        chat_template: a file or Jinja that ``chat`` uses in place of the tokenizer's own.
        **kwargs: any field of ``EngineArgs``; the names and defaults are vLLM's.

    Raises:
        ValueError, FileNotFoundError: for an unknown argument, a value out of range or a model
            that cannot be loaded.
    """

    def __init__(
        self, model: str | None = None, *, chat_template: str | Path | None = None, **kwargs
    ):
        self.chat_template = load_chat_template(chat_template)
        kwargs = without_defaults("LLM", "EngineArgs", kwargs)
        check_names("LLM", kwargs, [field.name for field in fields(EngineArgs)])
        self.llm_engine = LLMEngine(EngineArgs(model=model, **kwargs))
        self._num_requests = 0

    @property
    def trace(self) -> Trace | None:
        """The engine's Trace, if it was made with ``trace=True``."""
        return self.llm_engine.trace

    def get_tokenizer(self):
        """The Hugging Face tokenizer; None with ``skip_tokenizer_init=True``."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return vLLM's defaults, or those of the model's generation_config.json."""
        return SamplingParams(**self.llm_engine.model_config.default_sampling)

    def generate(
        self,
        prompts: str | dict | list,
        sampling_params: AnyParams | Sequence[AnyParams] | None = None,
        use_tqdm: bool | Callable[..., tqdm] | None = True,
        priority: int | list[int] | None = None,
        lora_request: LoRARequest | list[LoRARequest | None] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, as many at once as fit.

        Args:
            prompts: one prompt or a list of them; a prompt is text, a list of token ids,
                ``{"prompt": text}`` or ``{"prompt_token_ids": [...]}``. Beside these, a dict may
                have ``"multi_modal_data"``: by modality an item or a list of items, as ``{"image":
                picture}`` with a picture of PIL or an array; its text has the model's placeholder
                for each of them, or numbered ones, ``<|image_1|>``. ``"multi_modal_uuids"`` names
                them: an item that was there need not be given again.
            sampling_params: one for all, or a list of one for each; ``BeamSearchParams`` search
                instead of sampling; None for ``get_default_sampling_params()``.
            use_tqdm: show a progress bar; a function makes one of ``total``, ``desc``,
                ``dynamic_ncols`` and ``postfix``, as tqdm does; anything empty shows none.
            priority: one for all, or a list of one for each prompt; the smaller the more important.
                Needs ``scheduling_policy="priority"``.
            lora_request: the adapter to use, one for all, or a list of one or None for each prompt.
                Needs ``enable_lora=True``.
            tokenization_kwargs: options for the tokenizer, as ``{"truncation": True,
                "max_length": 20}``; see ``TruncationParams.with_kwargs``.
            mm_processor_kwargs: options of the model's processor of pictures or sounds, for all
                prompts that have none of their own.

        Returns:
            One finished output per prompt, in the order of the prompts.

        Raises:
            ValueError: if any prompt cannot be run, naming it; then none has been started. Or if a
                scheduling policy of your own never admits a request (``LivelockError``).
        """
        check_use_tqdm(use_tqdm)
        self._check_runner("generate", "generate")
        if mm_processor_kwargs and self.llm_engine.input_processor.multimodal is None:
            raise ValueError(f"{self._model_name()} is not a multimodal model")
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        requests = self._make_requests(
            prompts,
            params,
            priority,
            lora_request,
            tokenization_kwargs=tokenization_kwargs,
            mm_kwargs=mm_processor_kwargs,
        )
        for request in requests:
            request.sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
        outputs = collect_outputs(self._outputs_of(requests), len(requests), use_tqdm)
        return [outputs[request.request_id] for request in requests]

    def stream(
        self,
        prompts: str | dict | list,
        sampling_params: AnyParams | list[AnyParams] | None = None,
        priority: int | list[int] | None = None,
        lora_request: LoRARequest | list[LoRARequest | None] | None = None,
    ) -> Iterator[RequestOutput]:
        """Complete prompts; yields the new outputs after every step.

        ``SamplingParams.output_kind`` says what an output holds: all so far (CUMULATIVE), what is
        new (DELTA), or the whole at its end (FINAL_ONLY). Closing the iterator aborts its requests.
        (vLLM's ``LLM`` has no such method; there it is ``AsyncLLM.generate``.)

        Args:
            prompts, sampling_params, priority, lora_request: as for ``generate``.

        Returns:
            Outputs of all prompts as they come; ``request_id`` counts up in the order of prompts
            (numbers in use are left out).

        Raises:
            ValueError: at once, if any prompt cannot be run, naming it.
        """
        self._check_runner("stream", "generate")
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        requests = self._make_requests(prompts, params, priority, lora_request)
        return self._outputs_of(requests)

    def chat(
        self,
        messages: list[dict] | list[list[dict]],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., tqdm] | None = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        priority: int | list[int] | None = None,
        chat_template_content_format: str = "auto",
        lora_request: LoRARequest | list[LoRARequest | None] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations: each is rendered by the chat template, then generated.

        Args:
            messages: one conversation or a list of them; a conversation is a list of
                ``{"role": ..., "content": ...}``. A content may have pictures among its parts:
                ``{"type": "image_url", "image_url": {"url": ...}}`` with a data URI, a path below
                ``allowed_local_media_path`` or a URL of ``allowed_media_domains``; or
                ``{"type": "image_pil", "image_pil": picture}``.
            sampling_params, use_tqdm: as for ``generate``.
            chat_template: a Jinja template to use instead of the tokenizer's own.
            add_generation_prompt: open the assistant's turn.
            continue_final_message: go on with the last message instead of answering it.
            tools: JSON schemas of functions that the model may call.
            chat_template_kwargs: what else the template is told, as Qwen3's ``enable_thinking``.
            priority: as for ``generate``, one for all or for each conversation.
            chat_template_content_format: "string" gives the template each content as one text,
                "openai" as a list of parts, and "auto" what it seems to read.
            lora_request: as for ``generate``, one for all or for each conversation.
            tokenization_kwargs: as for ``generate``; the template writes its own special tokens,
                so by default none are added.
            mm_processor_kwargs: as for ``generate``.

        Raises:
            ValueError: if a conversation cannot be rendered or run; then none has been started.
        """
        ok = isinstance(messages, (list, tuple)) and len(messages) > 0
        check(ok, "messages", messages, "a non-empty list of messages, or of conversations")
        conversations: list = [messages] if isinstance(messages[0], dict) else messages
        prompts = [
            render_chat(
                self.get_tokenizer(),
                conversation,
                ChatMedia.of(self.llm_engine.input_processor, self._model_name()),
                chat_template=self.chat_template if chat_template is None else chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
                chat_template_content_format=chat_template_content_format,
            )
            for conversation in conversations
        ]
        given = {} if tokenization_kwargs is None else tokenization_kwargs
        check(isinstance(given, dict), "tokenization_kwargs", given, "a dict, or None")
        encoded: dict[str, Any] | None = None
        if given or self.llm_engine.model_config.do_lower_case:  # then they are encoded again
            for prompt in prompts:
                del prompt["prompt_token_ids"]
            given = {"add_special_tokens": False} | given
            encoded = given
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            priority=priority,
            lora_request=lora_request,
            tokenization_kwargs=encoded,
            mm_processor_kwargs=mm_processor_kwargs,
        )

    def _model_name(self) -> str:
        return str(self.llm_engine.args.model or "minivllm")

    def beam_search(
        self,
        prompts: str | dict | list,
        params: BeamSearchParams,
        use_tqdm: bool | Callable[..., tqdm] | None = False,
        lora_request: LoRARequest | list[LoRARequest | None] | None = None,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Beam search: the most likely continuations of prompts.

        Args:
            prompts: as for ``generate``.
            params: how many, how long, and how they are scored.
            use_tqdm, lora_request: as for ``generate``.
            concurrency_limit: only None is here: as many prompts are searched at once as fit.

        Returns:
            For each prompt its ``beam_width`` best continuations, the best first.

        Raises:
            ValueError: if any prompt cannot be run, naming it; then none has been started.
        """
        check(isinstance(params, BeamSearchParams), "params", params, "a BeamSearchParams")
        check_default("LLM.beam_search()", "LLM", "concurrency_limit", concurrency_limit)
        outputs = self.generate(prompts, params, use_tqdm, lora_request=lora_request)
        return [
            BeamSearchOutput([self._with_prompt(output, found, params) for found in output.outputs])
            for output in outputs
        ]

    def _with_prompt(
        self, output: RequestOutput, found: CompletionOutput, params: BeamSearchParams
    ) -> BeamSearchSequence:
        tokens = [*output.prompt_token_ids, *found.token_ids]
        tokenizer = self.get_tokenizer()
        skip = params.skip_special_tokens
        return BeamSearchSequence(
            tokens,
            "" if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=skip),
            cum_logprob=found.cumulative_logprob or 0.0,
            finish_reason=found.finish_reason,
            stop_reason=found.stop_reason,
        )

    def profile_memory(self) -> MemoryProfile:
        """The MemoryProfile: weights, activations, KV cache. It is logged as a table.

        A GPU is measured when the engine starts, since the KV cache gets what is left. On a CPU its
        size is stated, so the largest step that the limits allow is run now, once.
        """
        return self.llm_engine.engine_core.executor.collective_rpc("profile_memory")[0]

    def shutdown(self) -> None:
        """End the engine and free its memory. A second call does nothing."""
        self.llm_engine.shutdown()

    def get_metrics(self) -> list[Metric]:
        """Current values of vLLM's metrics, counted since the engine began.

        Returns:
            ``Counter``, ``Gauge``, ``Histogram`` and ``Vector`` objects of
            ``minivllm.metrics.reader``.
        """
        return self.llm_engine.get_metrics()

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Refuses (False) while any block is in use."""
        return self.llm_engine.reset_prefix_cache()

    def _make_requests(
        self, prompts, params, priority, lora_request, tokenization_kwargs=None, mm_kwargs=None
    ) -> list[Request]:
        """One request per prompt, all of them checked; the engine knows nothing of them yet."""
        prompts = _as_list(prompts)
        engine = self.llm_engine
        how = TruncationParams(do_lower_case=engine.model_config.do_lower_case)
        how = how.with_kwargs(tokenization_kwargs, engine.max_model_len)
        # 1. One of everything for each prompt.
        params = params if isinstance(params, (list, tuple)) else [params] * len(prompts)
        pools = self.llm_engine.model_config.runner_type == "pooling"
        name = f"len({'pooling' if pools else 'sampling'}_params)"
        ok = len(params) == len(prompts)
        check(ok, name, len(params), f"{len(prompts)}, one for each prompt")
        priority = 0 if priority is None else priority
        priority = [priority] * len(prompts) if is_int(priority) else priority
        ok = isinstance(priority, (list, tuple))
        check(ok, "priority", priority, "an integer, or a list of them")
        ok = len(priority) == len(prompts)
        check(ok, "len(priority)", len(priority), f"{len(prompts)}, one for each prompt")
        loras = lora_request if isinstance(lora_request, (list, tuple)) else None
        if loras is not None and len(loras) != len(prompts):
            raise ValueError(
                f"The lengths of prompts ({len(prompts)}) and lora_request ({len(loras)}) must be "
                "the same."
            )
        loras = [lora_request] * len(prompts) if loras is None else loras
        # 2. Nothing is submitted before all are right: one bad prompt must not start the others.
        requests = []
        number = self._num_requests
        each = zip(prompts, params, priority, loras, strict=True)
        for index, (prompt, one, rank, lora) in enumerate(each):
            try:
                if mm_kwargs and isinstance(prompt, dict):
                    prompt = {"mm_processor_kwargs": mm_kwargs} | prompt
                if tokenization_kwargs is not None:
                    prompt = self._tokenized(prompt, how)
                request = self.llm_engine.input_processor.make_request(
                    str(number), prompt, one, priority=rank, lora_request=lora
                )
                number = self._free_number(request, number + 1)
                self.llm_engine.engine_core.check_request(request)
            except ValueError as error:
                raise ValueError(f"prompt {index} of {len(prompts)}: {error}") from error
            requests.append(request)
        self._num_requests = number
        return requests

    def _tokenized(self, prompt: Any, how: TruncationParams) -> Any:
        """A prompt with its token ids, cut; one with pictures or sound is refused instead."""
        engine = self.llm_engine
        has_items = isinstance(prompt, dict) and prompt.get("multi_modal_data") is not None
        if not has_items:
            return tokenized(prompt, engine.tokenizer, how, engine.max_model_len)
        keep = how.keep(engine.max_model_len)
        whole = replace(how, truncate_prompt_tokens=None)
        text = prompt.get("prompt")
        if is_text(text):
            prompt = prompt | {"prompt": engine.input_processor.with_own_placeholders(text)}
        prompt = tokenized(prompt, engine.tokenizer, whole, engine.max_model_len)
        processed = engine.input_processor.preprocess(prompt)
        if keep is not None:
            check_not_cut(processed, keep)
        return processed

    def _free_number(self, request: Request, number: int) -> int:
        """Rename a request while its id is in use, from this number on. Returns the next number."""
        while self.llm_engine.scheduler.ids_in_use(request):
            request.rename(str(number))
            number += 1
        return number

    def _outputs_of(self, requests: list[Request]) -> Iterator[Any]:
        """Step until these requests are finished; outputs of others go to their own queues."""
        queue: SimpleQueue[Any] = SimpleQueue()
        unfinished: dict[str, None] = {}
        try:
            for request in requests:
                self._num_requests = self._free_number(request, self._num_requests)
                unfinished[request.request_id] = None
                self.llm_engine.submit(request, queue)
            while unfinished:
                if queue.empty():
                    if not unfinished.keys() & self.llm_engine.scheduler.requests.keys():
                        return  # they were aborted
                    make_progress(self.llm_engine.scheduler, self.llm_engine.step)
                    continue
                output = queue.get_nowait()
                if output.finished:
                    del unfinished[output.request_id]
                yield output
            self.llm_engine.end_transfers()
        finally:  # interrupted, or closed: leave no orphan in the engine
            self.llm_engine.abort_request(list(unfinished))


def _as_list(prompts: Any) -> list:
    """One prompt becomes a list of one; a list of integers is one prompt."""
    if isinstance(prompts, (list, tuple)):
        return [list(prompts)] if prompts and isinstance(prompts[0], int) else list(prompts)
    return [prompts]
