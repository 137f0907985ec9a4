"""Checkpoint: the requests as they are before a step's tokens are appended. Reset: all else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.metrics.spec_decode import SpecDecodingStats
from minivllm.request import Request, Sequence
from minivllm.scheduling.encoder_inputs import EncoderInputs
from minivllm.scheduling.lora_slots import LoRASlots
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.request_queue import RequestQueue
from minivllm.trace import Trace


class SchedulerState(Protocol):
    """State of a Scheduler, as far as it is checked and made new here."""

    config: SchedulerConfig
    kv_manager: KVCacheManager
    lora_slots: LoRASlots
    encoder_inputs: EncoderInputs | None
    trace: Trace | None
    requests: dict[str, Request]
    sequences: dict[str, Sequence]
    waiting: RequestQueue
    swapped: RequestQueue
    running: list[Sequence]
    next_output: SchedulerOutput
    spec_decoding_stats: SpecDecodingStats | None


class Checkpoint:
    """Tokens of sequences before an update: all else can be computed again.

    Lists that an update replaces are kept as they are, and of those that it appends to, the length.
    """

    def __init__(self, seqs: Iterable[Sequence]):
        self._seqs = [
            (s, len(s.token_ids), s.cumulative_logprob, s.request.seqs, s.status) for s in seqs
        ]
        found = {seq.request.beam_search for seq, *_ in self._seqs}
        self._completed = [(search, search.completed) for search in found if search is not None]

    def restore(self) -> list[Request]:
        """Take back all that was appended, forked and finished since. Returns these requests."""
        for seq, num_tokens, cumulative_logprob, seqs, status in self._seqs:
            del seq.token_ids[num_tokens:]
            seq.cumulative_logprob = cumulative_logprob
            seq.status = status
            seq.stop_reason = None
            seq.request.seqs = seqs
        for search, completed in self._completed:
            search.completed = completed
        return [seq.request for seq, *_ in self._seqs]


def reset(scheduler: SchedulerState, checkpoint: Checkpoint | None) -> None:
    """Make everything of a scheduler but the requests and their tokens new.

    Which changes a failed step has made is not known. So all requests wait, no block is held or
    cached, and the next plan tells the runner to forget all sequences.
    """
    if checkpoint is not None:
        scheduler.requests |= {request.request_id: request for request in checkpoint.restore()}
    requests = list(scheduler.requests.values())
    for request in requests:
        request.restart()
    scheduler.sequences = {s.seq_id: s for request in requests for s in request.unfinished_seqs}
    scheduler.kv_manager.reset()
    scheduler.running = []
    scheduler.next_output = SchedulerOutput(reset=True)
    scheduler.lora_slots.reset()
    if scheduler.encoder_inputs is not None:
        scheduler.encoder_inputs.reset()
    scheduler.swapped.clear()
    scheduler.waiting.refill(requests)
    scheduler.spec_decoding_stats = None
    if scheduler.trace is not None:
        scheduler.trace.fail_step(request.request_id for request in scheduler.waiting)
