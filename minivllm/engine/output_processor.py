"""OutputProcessor: what a step has computed becomes what a user reads.

(vLLM: vllm/v1/engine/output_processor.py, vllm/v1/engine/logprobs.py)
"""

from __future__ import annotations

import time

from minivllm.engine.detokenizer import Detokenizer
from minivllm.engine.stat_logger import LoggingStatLogger
from minivllm.outputs import CompletionOutput, Logprob, RequestOutput
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.sampling_params import RequestOutputKind
from minivllm.scheduling.output import ModelRunnerOutput, TokenLogprobs


class RequestState:
    """What has been made of one sequence, and how much of it has been handed out."""

    def __init__(self, tokenizer, seq: Sequence):
        params = seq.request.sampling_params
        self.tokenizer = tokenizer if params.detokenize else None
        self.detokenizer: Detokenizer | None = None
        if self.tokenizer is not None:
            self.detokenizer = Detokenizer(tokenizer, seq.request.prompt_token_ids, params)
        self.logprobs: list[dict[int, Logprob]] | None = None
        self.cumulative_logprob: float | None = None
        if params.logprobs is not None:
            self.logprobs, self.cumulative_logprob = [], 0.0
        self.num_tokens_sent = self.num_chars_sent = 0
        self.end_is_sent = False

    def add_logprobs(self, logprobs: TokenLogprobs) -> None:
        self.logprobs.append(as_dict(logprobs, self.tokenizer))
        self.cumulative_logprob += logprobs.logprobs[0]

    def text(self, seq: Sequence) -> str:
        """The text that is certain so far; all of it at the end."""
        detokenizer = self.detokenizer
        if detokenizer is None:
            return ""
        if seq.status.is_finished and not detokenizer.finished:
            by_token = seq.status == RequestStatus.FINISHED_STOPPED and not detokenizer.stopped
            if by_token and seq.request.sampling_params.include_stop_str_in_output:
                detokenizer.append(seq.token_ids[-1])
            detokenizer.finish()
        return detokenizer.streamable(seq.status.is_finished)

    def completion(self, seq: Sequence, delta: bool) -> CompletionOutput:
        """All so far, or only what has not been handed out yet."""
        text, token_ids = self.text(seq), seq.output_token_ids
        chars, tokens = (self.num_chars_sent, self.num_tokens_sent) if delta else (0, 0)
        self.num_chars_sent, self.num_tokens_sent = len(text), len(token_ids)
        self.end_is_sent = seq.status.is_finished
        return CompletionOutput(
            index=seq.index,
            text=text[chars:],
            token_ids=token_ids[tokens:],
            cumulative_logprob=self.cumulative_logprob,
            logprobs=None if self.logprobs is None else self.logprobs[tokens:],
            finish_reason=seq.status.finish_reason,
            stop_reason=seq.stop_reason,
        )


def as_dict(logprobs: TokenLogprobs, tokenizer) -> dict[int, Logprob]:
    """By token id: the token itself and the best ones, as vLLM hands them out."""
    ranks = [logprobs.rank, *range(1, len(logprobs.token_ids))]
    found: dict[int, Logprob] = {}
    for token_id, logprob, rank in zip(logprobs.token_ids, logprobs.logprobs, ranks, strict=True):
        if token_id not in found:
            text = None if tokenizer is None else tokenizer.decode([token_id])
            found[token_id] = Logprob(logprob, rank, text)
    return found


class OutputProcessor:
    """Keeps the text and the logprobs of all sequences that are not finished.

    Args:
        tokenizer: a Hugging Face tokenizer, or None if no text is made.
        stats: counts what every step gave.
    """

    def __init__(self, tokenizer, stats: LoggingStatLogger):
        self.tokenizer = tokenizer
        self.stats = stats
        self.sequences: dict[str, RequestState] = {}  # by sequence id
        # by request id: of each prompt position (but the first), and what users get of them
        self.prompt_positions: dict[str, dict[int, TokenLogprobs]] = {}
        self.prompt_logprobs: dict[str, list[dict[int, Logprob] | None]] = {}

    def append_text(self, seq: Sequence) -> str | None:
        """Add a sequence's last token to its text. Returns the stop string that it now holds."""
        detokenizer = self._of(seq).detokenizer
        return detokenizer and detokenizer.append(seq.token_ids[-1])

    def process_outputs(
        self, output: ModelRunnerOutput, updated: list[Sequence]
    ) -> list[RequestOutput]:
        """What there is to hand out after a step.

        Args:
            output: what the runner has computed.
            updated: the sequences that got a token.
        """
        for request_id, known in output.prompt_logprobs.items():
            self.prompt_positions.setdefault(request_id, {}).update(known)
        for seq in updated:
            got_token = seq.status != RequestStatus.FINISHED_ERROR
            if seq.seq_id in output.logprobs and got_token and seq.request.beam_params is None:
                self._of(seq).add_logprobs(output.logprobs[seq.seq_id])
        self.stats.record(updated)
        made = [self.make_output(r) for r in dict.fromkeys(seq.request for seq in updated)]
        return [output for output in made if output is not None]

    def make_output(self, request: Request) -> RequestOutput | None:
        """The request's next output; None if its kind of stream has nothing to say now."""
        kind = request.sampling_params.output_kind
        finished = not request.unfinished_seqs
        _note_time(request, finished)
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        delta = kind is RequestOutputKind.DELTA
        output = RequestOutput(
            request.request_id,
            request.prompt,
            request.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs(request, delta),
            outputs=self._completions(request, delta),
            finished=finished,
            metrics=request.metrics,
            num_cached_tokens=request.num_cached_tokens,
        )
        if finished:
            self.prompt_logprobs.pop(request.request_id, None)
            for seq in request.seqs:
                self.sequences.pop(seq.seq_id, None)
        return output

    def _completions(self, request: Request, delta: bool) -> list[CompletionOutput]:
        if request.beam_params is not None:
            return [self._beam(place, seq) for place, seq in enumerate(request.seqs)]
        completions = []
        for seq in request.seqs:
            mine = self._of(seq)
            news = seq.num_output_tokens > mine.num_tokens_sent or seq.status.is_finished
            if not delta or (news and not mine.end_is_sent):
                completions.append(mine.completion(seq, delta))
        return completions

    def _beam(self, place: int, seq: Sequence) -> CompletionOutput:
        """A beam's past changes when another takes its place, so all of it is made anew."""
        token_ids, text = seq.output_token_ids, ""
        if self.tokenizer is not None:
            stopped = seq.status == RequestStatus.FINISHED_STOPPED
            whole = stopped and seq.request.beam_params.include_stop_str_in_output
            shown = token_ids[:-1] if stopped and not whole else token_ids
            text = self.tokenizer.decode(shown, skip_special_tokens=not whole)
        return CompletionOutput(
            index=place,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=seq.cumulative_logprob,
            finish_reason=seq.status.finish_reason,
            stop_reason=seq.stop_reason,
        )

    def _of(self, seq: Sequence) -> RequestState:
        if seq.seq_id not in self.sequences:
            self.sequences[seq.seq_id] = RequestState(self.tokenizer, seq)
        return self.sequences[seq.seq_id]

    def _prompt_logprobs(self, request: Request, delta: bool) -> list[dict | None] | None:
        """One entry per prompt token, None for the first; a stream of news has them once."""
        request_id, params = request.request_id, request.sampling_params
        if request_id in self.prompt_positions:
            known = self.prompt_positions.pop(request_id)
            tokenizer = self.tokenizer if params.detokenize else None
            self.prompt_logprobs[request_id] = [
                as_dict(known[position], tokenizer) if position in known else None
                for position in range(len(request.prompt_token_ids))
            ]
        if delta:
            return self.prompt_logprobs.pop(request_id, None)
        return self.prompt_logprobs.get(request_id)


def _note_time(request: Request, finished: bool) -> None:
    metrics, now = request.metrics, time.monotonic()
    if request.seqs[0].num_output_tokens:
        metrics.first_token_time = metrics.first_token_time or now
        metrics.last_token_time = now
    if finished:
        metrics.finished_time = now
