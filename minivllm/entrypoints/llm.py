"""LLM: the offline face, as in vLLM. Prompts in, finished outputs back, in the same order.

(vLLM: vllm/entrypoints/llm.py)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from tqdm.auto import tqdm

from minivllm.config import EngineArgs
from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.chat_utils import render_chat
from minivllm.kv.memory import MemoryProfile
from minivllm.outputs import BeamSearchOutput, BeamSearchSequence, CompletionOutput, RequestOutput
from minivllm.request import Request
from minivllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from minivllm.trace import Trace
from minivllm.validation import check, check_names

AnyParams = SamplingParams | BeamSearchParams


class LLM:
    """A model and the engine that runs it.

    Args:
        model: a Hugging Face directory; None for the small chat model that ships with minivllm.
        **kwargs: any field of ``EngineArgs``; the names and defaults are vLLM's.

    Raises:
        ValueError, FileNotFoundError: for an unknown argument, a value out of range or a model
            that cannot be loaded.
    """

    def __init__(self, model: str | None = None, **kwargs):
        check_names("LLM", kwargs, [field.name for field in fields(EngineArgs)])
        self.llm_engine = LLMEngine(EngineArgs(model=model, **kwargs))
        self._num_requests = 0
        self._inboxes: dict[str, deque[RequestOutput]] = {}  # by request id: who waits for it

    @property
    def trace(self) -> Trace | None:
        """What the engine has done so far, if it was made with ``trace=True``."""
        return self.llm_engine.trace

    def get_tokenizer(self):
        """The Hugging Face tokenizer; None with ``skip_tokenizer_init=True``."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """vLLM's defaults, or what the model's generation_config.json has in their place."""
        return SamplingParams(**self.llm_engine.model_config.default_sampling)

    def generate(
        self,
        prompts: str | dict | list,
        sampling_params: AnyParams | list[AnyParams] | None = None,
        use_tqdm: bool | Callable[..., tqdm] = True,
        priority: list[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, as many at once as fit.

        Args:
            prompts: one prompt or a list of them; a prompt is text, a list of token ids,
                ``{"prompt": text}`` or ``{"prompt_token_ids": [...]}``.
            sampling_params: one for all, or a list of one for each; ``BeamSearchParams`` search
                instead of sampling; None for ``get_default_sampling_params()``.
            use_tqdm: show a progress bar (or a function that makes one, in tqdm's manner).
            priority: one for each prompt, the smaller the more important; needs
                ``scheduling_policy="priority"``.

        Returns:
            One finished output per prompt, in the order of the prompts.

        Raises:
            ValueError: if any prompt cannot be run, naming it; then none has been started.
        """
        requests = self._make_requests(prompts, sampling_params, priority)
        for request in requests:
            request.sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
        outputs = self._with_progress(requests, use_tqdm)
        return [outputs[request.request_id] for request in requests]

    def stream(
        self,
        prompts: str | dict | list,
        sampling_params: AnyParams | list[AnyParams] | None = None,
        priority: list[int] | None = None,
    ) -> Iterator[RequestOutput]:
        """Complete prompts, and hand out what there is after every step.

        What an output holds says ``SamplingParams.output_kind``: all so far (CUMULATIVE), what is
        new (DELTA), or the whole at its end (FINAL_ONLY). Whoever stops listening ends the
        requests. (vLLM's ``LLM`` has no such method; there it is ``AsyncLLM.generate``.)

        Args:
            prompts, sampling_params, priority: as for ``generate``.

        Returns:
            Outputs of all prompts as they come; ``request_id`` counts up in the order of prompts.

        Raises:
            ValueError: at once, if any prompt cannot be run, naming it.
        """
        return self._outputs_of(self._make_requests(prompts, sampling_params, priority))

    def chat(
        self,
        messages: list[dict] | list[list[dict]],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., tqdm] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations: each is rendered by the chat template, then generated.

        Args:
            messages: one conversation or a list of them; a conversation is a list of
                ``{"role": ..., "content": ...}``.
            sampling_params, use_tqdm: as for ``generate``.
            chat_template: a Jinja template to use instead of the tokenizer's own.
            add_generation_prompt: open the assistant's turn.
            continue_final_message: go on with the last message instead of answering it.
            tools: JSON schemas of functions that the model may call.

        Raises:
            ValueError: if a conversation cannot be rendered or run; then none has been started.
        """
        ok = isinstance(messages, (list, tuple)) and len(messages) > 0
        check(ok, "messages", messages, "a non-empty list of messages, or of conversations")
        conversations = messages
        if isinstance(messages[0], dict):
            conversations = [messages]
        prompts = [
            render_chat(
                self.get_tokenizer(),
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm)

    def beam_search(
        self,
        prompts: str | dict | list,
        params: BeamSearchParams,
        use_tqdm: bool | Callable[..., tqdm] = False,
    ) -> list[BeamSearchOutput]:
        """Find the likeliest continuations of prompts.

        Args:
            prompts: as for ``generate``.
            params: how many, how long, and how they are scored.
            use_tqdm: as for ``generate``.

        Returns:
            For each prompt its ``beam_width`` best continuations, the best first.

        Raises:
            ValueError: if any prompt cannot be run, naming it; then none has been started.
        """
        check(isinstance(params, BeamSearchParams), "params", params, "a BeamSearchParams")
        return [
            BeamSearchOutput([self._with_prompt(output, found) for found in output.outputs])
            for output in self.generate(prompts, params, use_tqdm)
        ]

    def _with_prompt(self, output: RequestOutput, found: CompletionOutput) -> BeamSearchSequence:
        tokens, tokenizer = [*output.prompt_token_ids, *found.token_ids], self.get_tokenizer()
        return BeamSearchSequence(
            tokens,
            "" if tokenizer is None else tokenizer.decode(tokens),
            found.cumulative_logprob,
            found.finish_reason,
            found.stop_reason,
        )

    def profile_memory(self) -> MemoryProfile:
        """Where the memory goes: weights, activations, KV cache. The log gets it as a table.

        A GPU is measured when the engine starts, since the KV cache gets what is left. On a CPU its
        size is stated, so the largest step that the limits allow is run now, once.
        """
        return self.llm_engine.worker.profile_memory()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks. Refuses (False) while any block is in use."""
        return self.llm_engine.reset_prefix_cache()

    def _make_requests(self, prompts, sampling_params, priority) -> list[Request]:
        """One request per prompt, all of them checked; the engine knows nothing of them yet."""
        prompts = _as_list(prompts)
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        params = params if isinstance(params, (list, tuple)) else [params] * len(prompts)
        ok = len(params) == len(prompts)
        check(ok, "len(sampling_params)", len(params), f"{len(prompts)}, one for each prompt")
        priority = [0] * len(prompts) if priority is None else priority
        check(isinstance(priority, (list, tuple)), "priority", priority, "a list of integers")
        ok = len(priority) == len(prompts)
        check(ok, "len(priority)", len(priority), f"{len(prompts)}, one for each prompt")
        requests = []
        for index, (prompt, one, rank) in enumerate(zip(prompts, params, priority, strict=True)):
            request_id = str(self._num_requests + index)
            try:
                request = self.llm_engine.input_processor.make_request(
                    request_id, prompt, one, priority=rank
                )
                self.llm_engine.scheduler.check_request(request)
            except ValueError as error:
                raise ValueError(f"prompt {index} of {len(prompts)}: {error}") from error
            requests.append(request)
        self._num_requests += len(requests)
        return requests

    def _outputs_of(self, requests: list[Request]) -> Iterator[RequestOutput]:
        """Step until these are finished; whoever else is running gets what is theirs, too."""
        inbox: deque[RequestOutput] = deque()
        unfinished = {request.request_id for request in requests}
        try:
            for request in requests:
                self.llm_engine.submit(request)
                self._inboxes[request.request_id] = inbox
            while unfinished:
                if not inbox:
                    if not unfinished & self.llm_engine.scheduler.requests.keys():
                        return  # somebody has aborted them
                    for output in self.llm_engine.step():
                        if output.request_id in self._inboxes:
                            self._inboxes[output.request_id].append(output)
                    continue
                output = inbox.popleft()
                if output.finished:
                    unfinished.remove(output.request_id)
                    del self._inboxes[output.request_id]
                yield output
        finally:  # interrupted, or nobody listens any more: leave no orphan in the engine
            for request_id in unfinished:
                self._inboxes.pop(request_id, None)
                self.llm_engine.abort_request(request_id)

    def _with_progress(
        self, requests: list[Request], use_tqdm: bool | Callable[..., tqdm]
    ) -> dict[str, RequestOutput]:
        """The finished outputs of requests by id, with a progress bar."""
        outputs: dict[str, RequestOutput] = {}
        make_bar = tqdm if isinstance(use_tqdm, bool) else use_tqdm
        tokens_in = tokens_out = 0
        with make_bar(
            total=len(requests),
            desc="Processed prompts",
            dynamic_ncols=True,
            disable=not use_tqdm,
            postfix="est. speed input: 0.00 toks/s, output: 0.00 toks/s",
        ) as bar:
            for output in self._outputs_of(requests):
                outputs[output.request_id] = output
                tokens_in += len(output.prompt_token_ids)
                tokens_out += sum(len(c.token_ids) for c in output.outputs)
                seconds = bar.format_dict["elapsed"] or 1e-9 if use_tqdm else 1
                bar.postfix = (
                    f"est. speed input: {tokens_in / seconds:.2f} toks/s, "
                    f"output: {tokens_out / seconds:.2f} toks/s"
                )
                bar.update(1)
        return outputs


def _as_list(prompts: Any) -> list:
    """One prompt becomes a list of one; a list of integers is one prompt."""
    if isinstance(prompts, (list, tuple)):
        return [list(prompts)] if prompts and isinstance(prompts[0], int) else list(prompts)
    return [prompts]
