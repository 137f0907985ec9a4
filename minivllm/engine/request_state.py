"""RequestState: output tokens, text and logprobs of one request, and how much was sent.

(vLLM: ``RequestState`` in vllm/v1/engine/output_processor.py)
"""

from __future__ import annotations

from typing import Any

from minivllm.engine.core_outputs import EngineCoreOutput
from minivllm.engine.detokenizer import Detokenizer
from minivllm.engine.logprobs import as_dict
from minivllm.engine.output_collector import OutputQueue
from minivllm.metrics.stats import FinishedRequestStats, IterationStats
from minivllm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from minivllm.request import Request
from minivllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from minivllm.scheduling.output import TokenLogprobs


class RequestState:
    """The output side of one request: its samples or beams.

    Args:
        request: the one that the core gets, too.
        tokenizer: a Hugging Face tokenizer, or None if no text is made.
        queue: where the outputs go; None: to the caller of the engine's step.
    """

    def __init__(self, request: Request, tokenizer, queue: OutputQueue | None):
        params = request.sampling_params
        self.request_id = request.request_id
        self.prompt = request.prompt
        self.lora_request = request.lora_request
        self.prompt_token_ids = request.prompt_token_ids
        self._ids_to_show = list(request.prompt_token_ids)  # the reader's own from here on
        self.params = params
        self.tokenizer = tokenizer if params.detokenize else None
        self.queue = queue
        self.metrics = RequestMetrics(request.arrival_time)
        self.num_cached_tokens: int | None = None
        self.kv_transfer_params: dict[str, Any] | None = None
        self.num_preemptions = 0
        self.last_token_times: dict[int, float] = {}  # by index of the sequence
        self.prompt_positions: dict[int, TokenLogprobs] = {}
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self.n = request.n
        self.num_unfinished = request.n  # samples, those not begun included
        self.stopped: set[int] = set()  # samples that end with a stop string; the core may lag
        self.beams: list[BeamState] | None = None
        self.samples: list[SampleState] = []
        if request.beam_params is not None:
            self.beams = [BeamState(EngineCoreOutput(self.request_id, 0, []))]
            self.beam_params = request.beam_params
        else:
            self.samples = [SampleState(0, params, self.prompt_token_ids, self.tokenizer)]

    def add(self, output: EngineCoreOutput, now: float, iteration: IterationStats) -> bool:
        """Add the output of a step for one sequence, and count its tokens.

        Args:
            output: with new tokens, or all of a beam's.
            now: end of the step, seconds of ``time.monotonic()``.
            iteration: the step's numbers, of all requests.

        Returns:
            True if its text now holds a stop string: the core must end it.
        """
        # 1. Tokens, and the time since the last ones.
        metrics = self.metrics
        num_new = 1 if self.beams is not None else len(output.new_token_ids)
        iteration.num_generation_tokens += num_new
        if metrics.first_token_time is None:
            iteration.num_prompt_tokens += len(self.prompt_token_ids)
            iteration.num_cached_tokens += output.num_cached_tokens or 0
            iteration.num_external_tokens += output.num_external_computed_tokens
            iteration.time_to_first_tokens.append(now - metrics.arrival_time)
        elif output.index in self.last_token_times:
            gap = (now - self.last_token_times[output.index]) / max(1, num_new)
            iteration.inter_token_latencies += [gap] * num_new
        self.last_token_times[output.index] = now
        # 2. The request as a whole.
        self.num_cached_tokens = output.num_cached_tokens
        self.num_preemptions = output.num_preemptions
        self.kv_transfer_params = output.kv_transfer_params or self.kv_transfer_params
        metrics.first_scheduled_time = output.first_scheduled_time
        if output.new_token_ids:
            metrics.first_token_time = metrics.first_token_time or now
            metrics.last_token_time = now
        # 3. A beam is replaced whole.
        if self.beams is not None:
            if output.index == 0:
                self.beams.clear()  # a beam's past changes when another takes its place
            self.beams.append(BeamState(output))
            return False
        # 4. A sample grows.
        if output.index >= len(self.samples):
            self._begin_samples(output.index + 1)
        sample = self.samples[output.index]
        must_stop = sample.add(output)
        if sample.finish_reason is not None:
            self.num_unfinished -= 1
        if must_stop:
            self.stopped.add(output.index)
        return must_stop

    def _begin_samples(self, count: int) -> None:
        """Begin siblings: when the prompt is complete, all in one step."""
        for index in range(len(self.samples), count):
            sample = SampleState(index, self.params, self.prompt_token_ids, self.tokenizer)
            self.samples.append(sample)

    def finished_stats(self, now: float) -> FinishedRequestStats:
        """Make the FinishedRequestStats of a request that has just finished."""
        times = self.metrics
        params = self.params
        first = times.first_token_time or now
        last = times.last_token_time or now
        begun = times.first_scheduled_time or first
        sequences = self.samples if self.beams is None else self.beams
        lengths = [len(sequence.token_ids) for sequence in sequences]
        return FinishedRequestStats(
            finish_reason=sequences[0].finish_reason or "error",
            e2e_latency=now - times.arrival_time,
            queued_time=begun - times.arrival_time,
            prefill_time=first - begun,
            decode_time=last - first,
            num_prompt_tokens=len(self.prompt_token_ids),
            num_cached_tokens=self.num_cached_tokens or 0,
            num_generation_tokens=sum(lengths),
            max_num_generation_tokens=max(lengths),
            num_preemptions=self.num_preemptions,
            params_n=self.n,
            params_max_tokens=params.max_tokens and min(params.max_tokens, 2**53),  # a float there
        )

    def abort(self) -> None:
        """Finish all samples that have not finished, as aborted; also those not begun."""
        if self.beams is None:
            self._begin_samples(self.n)
            self.num_unfinished = 0
        for sequence in self.samples if self.beams is None else self.beams:
            sequence.finish_reason = sequence.finish_reason or "abort"

    def make_output(self, now: float) -> RequestOutput | None:
        """The request's next output; None for FINAL_ONLY before the end."""
        # 1. Is there anything to say?
        kind = self.params.output_kind
        finished = self.num_unfinished == 0
        delta = kind is RequestOutputKind.DELTA
        if self.beams is not None:
            finished = all(beam.finish_reason is not None for beam in self.beams)
        if finished:
            self.metrics.finished_time = now
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        # 2. Its sequences; of a DELTA those with something new.
        if self.beams is not None:
            outputs = [beam.completion(self.tokenizer, self.beam_params) for beam in self.beams]
        else:
            outputs = [s.completion(delta) for s in self.samples if not delta or s.has_news]
        for output in outputs:
            output.lora_request = self.lora_request
        # 3. What was asked of the prompt, as soon as all of it has been computed.
        prompt_logprobs = None
        if self.params.prompt_logprobs is not None and self.metrics.first_token_time is not None:
            prompt_logprobs = self._prompt_logprobs(delta)
        return RequestOutput(
            self.request_id,
            self.prompt,
            self._ids_to_show,
            prompt_logprobs=prompt_logprobs,
            outputs=outputs,
            finished=finished,
            metrics=self.metrics,
            lora_request=self.lora_request,
            num_cached_tokens=self.num_cached_tokens,
            kv_transfer_params=self.kv_transfer_params,
        )

    def _prompt_logprobs(self, delta: bool) -> list[dict[int, Logprob] | None] | None:
        """Prompt logprobs: an entry per prompt token, None for the first; DELTA sends them once."""
        if self.prompt_logprobs is None:
            known = self.prompt_positions
            prompt = self.prompt_token_ids
            self.prompt_logprobs = [
                as_dict(known[i], self.tokenizer, prompt[max(0, i - 3) : i]) if i in known else None
                for i in range(len(prompt))
            ]
            if delta:
                return self.prompt_logprobs
        return None if delta else self.prompt_logprobs


class SampleState:
    """One sample of a request: tokens, text, and how much of them was sent."""

    def __init__(self, index: int, params: SamplingParams, prompt_token_ids, tokenizer):
        self.index = index
        self.params = params
        self.prompt_token_ids = prompt_token_ids
        self.tokenizer = tokenizer
        self.detokenizer: Detokenizer | None = None
        if tokenizer is not None:
            self.detokenizer = Detokenizer(tokenizer, prompt_token_ids, params)
        self.token_ids: list[int] = []
        self.logprobs: list[dict[int, Logprob]] | None = None
        if params.logprobs is not None:
            self.logprobs = []
        self.sum_of_logprobs = 0.0  # of those that are asked for
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.num_tokens_sent = 0
        self.num_chars_sent = 0
        self.end_is_sent = False

    def add(self, output: EngineCoreOutput) -> bool:
        """Add tokens. Returns True if the text now holds a stop string; it ends there."""
        stop_string = None
        for i, token_id in enumerate(output.new_token_ids):
            if self.logprobs is not None and output.new_logprobs:
                before = (self.prompt_token_ids[-3:] + self.token_ids[-3:])[-3:]
                self.logprobs.append(as_dict(output.new_logprobs[i], self.tokenizer, before))
                self.sum_of_logprobs += output.new_logprobs[i].logprobs[0]
            self.token_ids.append(token_id)
            last = i + 1 == len(output.new_token_ids)
            if self.detokenizer is not None and not (last and output.finish_reason == "stop"):
                stop_string = self.detokenizer.append(token_id)
                if stop_string is not None:
                    break
        if stop_string is not None:
            self.finish_reason = "stop"
            self.stop_reason = stop_string
        else:
            self.finish_reason = output.finish_reason
            self.stop_reason = output.stop_reason
        return stop_string is not None and output.finish_reason is None

    @property
    def has_news(self) -> bool:
        more = len(self.token_ids) > self.num_tokens_sent or self.finish_reason is not None
        return more and not self.end_is_sent

    def completion(self, delta: bool) -> CompletionOutput:
        """Make a CompletionOutput: of the whole sample, or of the part that was not sent yet."""
        # 1. The final part of the text; all of it at the end.
        finished = self.finish_reason is not None
        text = ""
        if self.detokenizer is not None:
            if finished and not self.detokenizer.finished:
                self._finish_text(self.detokenizer)
            text = self.detokenizer.text
            if self.params.stop_strings:
                text = self.detokenizer.streamable(finished)
        # 2. From here on it counts as sent.
        chars, tokens = (self.num_chars_sent, self.num_tokens_sent) if delta else (0, 0)
        self.num_chars_sent = len(text)
        self.num_tokens_sent = len(self.token_ids)
        self.end_is_sent = finished
        return CompletionOutput(
            index=self.index,
            text=text[chars:],
            token_ids=self.token_ids[tokens:],
            cumulative_logprob=None if self.logprobs is None else self.sum_of_logprobs,
            logprobs=None if self.logprobs is None else self.logprobs[tokens:],
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _finish_text(self, detokenizer: Detokenizer) -> None:
        """Let the text have its end: characters that were held back, and maybe the last token."""
        by_token = self.finish_reason == "stop" and not detokenizer.stopped
        if by_token and self.params.include_stop_str_in_output:
            detokenizer.append(self.token_ids[-1])
        detokenizer.finish()


class BeamState:
    """One beam: its tokens after the last step."""

    def __init__(self, output: EngineCoreOutput):
        self.output = output
        self.token_ids = output.new_token_ids
        self.finish_reason = output.finish_reason

    def completion(self, tokenizer, params: BeamSearchParams) -> CompletionOutput:
        """The whole beam as a CompletionOutput: a fork may have replaced its past."""
        token_ids = self.token_ids
        text = ""
        if tokenizer is not None:
            stopped = self.finish_reason == "stop"
            whole = stopped and params.include_stop_str_in_output
            shown = token_ids[:-1] if stopped and not whole else token_ids
            skip = params.skip_special_tokens and not whole
            text = tokenizer.decode(shown, skip_special_tokens=skip)
        return CompletionOutput(
            index=self.output.index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=self.output.cumulative_logprob,
            finish_reason=self.finish_reason,
            stop_reason=self.output.stop_reason,
        )
