"""EncoderInputs: which items, such as pictures, a step encodes.

A placeholder needs a row of its item's encoder output. So an item is encoded, whole, in the first
step that computes one of them, and its output is kept until the last is computed. If it does not
fit into the step or into the encoder cache, the chunk ends before it.
(vLLM: ``_try_schedule_encoder_inputs`` in vllm/v1/core/sched/scheduler.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minivllm.config import SchedulerConfig
from minivllm.request import Sequence
from minivllm.scheduling.encoder_cache import EncoderCacheManager
from minivllm.scheduling.output import SchedulerOutput
from minivllm.trace import Trace
from minivllm.trace.records import ItemEncoded


class EncoderInputs:
    """Encoder inputs of the step that is planned, within its encoder budget.

    Args:
        config: has the budget and the size of the cache, in embeddings.
        trace: listens, if given.

    Attributes:
        cache: the encoder cache.
        budget: embeddings that the step may still compute.
    """

    def __init__(self, config: SchedulerConfig, trace: Trace | None = None):
        self.config = config
        self.trace = trace
        self.cache = EncoderCacheManager(config.encoder_cache_size, trace)
        self.budget = config.max_num_encoder_input_tokens
        # of the sequence that is tried: items to be encoded, and those that are the same again
        self._promised: list[int] = []
        self._repeated: list[int] = []
        self._outputs: set[str] = set()  # identifiers whose outputs the runner has
        self._scheduled: dict[str, list[int]] = {}  # items to be encoded, by sequence
        self._planned: dict[str, tuple[str, int]] = {}  # by identifier: sequence, embeddings

    def limit(self, seq: Sequence, num_new: int) -> int:
        """Limit a chunk to what can be encoded for it. Asked once for each sequence tried.

        The sequence refers to the outputs that are there. Those that are not are promised until
        the next call; ``schedule`` takes them into the step. Entries that gave way are gone.

        Args:
            seq: its computed tokens are where the chunk begins.
            num_new: the chunk's tokens.

        Returns:
            The tokens that can be computed now; 0 if its first one needs what cannot be encoded.
        """
        self._promised = []
        self._repeated = []
        features = seq.request.mm_features
        start = seq.num_computed_tokens
        if not features or start >= features[-1].mm_position.end:
            return num_new
        end = start + num_new
        budget = self.budget
        num_promised_slots = 0
        promised = set()
        for index, feature in enumerate(features):
            position = feature.mm_position
            if position.end <= start:
                continue
            if position.offset >= end:
                break
            cuts = self.config.disable_chunked_mm_input and end < position.end
            if cuts and start < position.offset:
                return position.offset - start
            if feature.identifier in promised:
                self._repeated.append(index)
                continue
            size = position.num_embeds
            has_entry = self.cache.check_and_update_cache(seq, index)
            if has_entry and self._is_encoded(feature.identifier):
                continue
            if has_entry:  # of a victim, which did not come to be encoded
                fits = size <= budget
            else:
                fits = self.cache.can_allocate(seq, index, budget, num_promised_slots)
            if not fits:
                if has_entry:
                    self.cache.free_encoder_input(seq, index)
                return max(position.offset - start, 0)
            if not position.embeds_in(start, end):
                continue  # only breaks between its rows
            self._promised.append(index)
            promised.add(feature.identifier)
            budget -= size
            num_promised_slots += 0 if has_entry else size
        return num_new

    def schedule(self, seq: Sequence) -> None:
        """Take into the step what was promised to a sequence: it has its blocks."""
        for index in (*self._promised, *self._repeated):
            self.cache.allocate(seq, index)
        for index in self._promised:
            feature = seq.request.mm_features[index]
            size = feature.mm_position.num_embeds
            self.budget -= size
            self._planned[feature.identifier] = seq.seq_id, size
        if self._promised:
            self._scheduled[seq.seq_id] = self._promised

    def free(self, seq: Sequence) -> None:
        """Drop all references of a sequence that has ended or gives way.

        If it was in the step, that gets the budget of its items back. One that another sequence
        counts on by now is encoded all the same. (vLLM takes it out of the plan, and that
        sequence's step fails.)
        """
        for index in self._scheduled.pop(seq.seq_id, ()):
            feature = seq.request.mm_features[index]
            if self.cache.cached[feature.identifier] - {seq.seq_id}:
                self._scheduled.setdefault(seq.seq_id, []).append(index)
            else:
                self.budget += feature.mm_position.num_embeds
                del self._planned[feature.identifier]
        self.cache.free(seq)

    def complete(self, output: SchedulerOutput) -> None:
        """Complete a plan: tell the runner what to forget, and begin the next step's budget."""
        output.scheduled_encoder_inputs = self._scheduled
        output.free_encoder_mm_hashes = self.cache.get_freed_mm_hashes()
        self._outputs.difference_update(output.free_encoder_mm_hashes)
        self._outputs.update(self._planned)
        if self.trace is not None:
            for identifier, (seq_id, size) in self._planned.items():
                self.trace.record(ItemEncoded, seq_id, identifier, size)
        self._begin_step()

    def free_processed(self, output: SchedulerOutput, sequences: Mapping[str, Sequence]) -> None:
        """Drop references to items whose placeholders are all processed, after a step.

        Args:
            output: the step's plan.
            sequences: those that are not finished.
        """
        for seq_id in output.num_scheduled_tokens:
            seq = sequences.get(seq_id)
            if seq is None:
                continue
            processed = seq.num_computed_tokens - seq.num_in_flight_tokens
            for index in self.cache.get_cached_input_ids(seq):
                if seq.request.mm_features[index].mm_position.end <= processed:
                    self.cache.free_encoder_input(seq, index)

    def reset(self) -> None:
        """Forget all outputs, after a step that has failed: they are computed again."""
        self.cache.reset()
        self._outputs = set()
        self._begin_step()

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raise ``AssertionError`` unless references are to what is there, and still needed."""
        running = list(running)
        self.cache.check_integrity(running)
        assert not self._planned, "a plan is not complete"
        for seq in running:
            processed = seq.num_computed_tokens - seq.num_in_flight_tokens
            for index in self.cache.get_cached_input_ids(seq):
                feature = seq.request.mm_features[index]
                position = feature.mm_position
                assert processed < position.end, f"{seq} refers to what it has processed"
                if position.embeds_in(processed, seq.num_computed_tokens):
                    assert feature.identifier in self._outputs, f"{seq} lacks an encoder output"

    def _begin_step(self) -> None:
        self.budget = self.config.max_num_encoder_input_tokens
        self._scheduled = {}
        self._planned = {}

    def _is_encoded(self, identifier: str) -> bool:
        return identifier in self._outputs or identifier in self._planned


def make_encoder_inputs(config: SchedulerConfig, trace: Trace | None) -> EncoderInputs | None:
    """Make the encoder inputs of a model that takes pictures or other items; None of another."""
    return EncoderInputs(config, trace) if config.encoder_cache_size else None
