"""DraftModelProposer: a small model drafts the next tokens of each sequence (notebook 14b).

It computes what the target computes, in the same step and through the same block tables: its K and
V are further layers behind the same block ids. So a block that is copied, swapped, forked or found
by another sequence holds both models' past, and a rejected draft is overwritten as the target's is.
Where n-grams are looked up, too, it guesses only what they do not find: it would copy no better.
(vLLM: vllm/v1/spec_decode/draft_model.py, llm_base_proposer.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.kv_cache import KVCache
from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.step import StepAttention
from minivllm.config.speculative import SpeculativeConfig, num_useful_drafts
from minivllm.models.decoder import DecoderModel
from minivllm.sampling.random import Purpose, stream_keys, uniform
from minivllm.sampling.rejection_sampler import DrawnDrafts
from minivllm.sampling.sampler import sample_from_cdf
from minivllm.scheduling.output import NO_TOKEN, SchedulerOutput
from minivllm.spec_decode.proposer import ngram_proposer
from minivllm.utils.tensors import best_tokens, make_tensor
from minivllm.worker.input_batch import CachedRequestState, InputBatch
from minivllm.worker.model_input import ModelInput


@dataclass
class _Decodes:
    """Decode batch of the draft model: a row per sequence, and the position of its next draft."""

    seq_ids: list[str] = field(default_factory=list)
    num_drafts: list[int] = field(default_factory=list)  # of use
    rows: list[int] = field(default_factory=list)  # of their newest tokens in the first batch
    positions: list[int] = field(default_factory=list)  # of the first draft
    block_tables: list[list[int]] = field(default_factory=list)


class DraftModelProposer:
    """Drafts for all sequences that got a token: a forward pass per draft position.

    Args:
        config: how many drafts, and how they are chosen.
        model: the draft model, on the target's device.
        kv_cache: its layers.
        block_size: positions per block.
        max_model_len: the longest sequence of the engine.
        attention: how its layers write and read the cache.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        model: DecoderModel,
        kv_cache: KVCache,
        block_size: int,
        max_model_len: int,
        attention: AttentionBackend,
    ):
        self.k = config.num_speculative_tokens
        self.draws = config.draft_sample_method == "probabilistic"
        self.ngrams = ngram_proposer(config)
        self.model = model
        self.kv_cache = kv_cache
        self.group = kv_cache.layer_groups[0]  # whose block ids lead to its layers, all of them
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.num_positions = min(max_model_len, model.config.max_model_len)  # that it knows
        self.attention = attention
        self.device = kv_cache.data.device

    def propose(
        self, scheduler_output: SchedulerOutput, batch: InputBatch, sampled: dict[str, list[int]]
    ) -> dict[str, list[int]]:
        """Compute a step's tokens with the draft model, and propose drafts behind them.

        Args:
            scheduler_output: the step's plan.
            batch: what is known of its sequences, their new tokens included.
            sampled: these new tokens.

        Returns:
            The drafts of each sequence that may have any.
        """
        num_drafts = self._num_drafts(scheduler_output, batch, sampled)
        copied = self._look_up(batch, num_drafts)
        to_guess = {seq_id: n for seq_id, n in num_drafts.items() if seq_id not in copied}
        # 1. What the target has computed, without rejected drafts, and the token that came of it.
        model_input, decodes = self._read_along(scheduler_output, batch, to_guess)
        if not model_input.token_ids:
            return copied
        token_ids, positions, (metadata,) = model_input.to_tensors(self.device)
        hidden = self._forward(token_ids, positions, metadata)
        if not decodes.seq_ids:
            return copied
        # 2. From here on a token at a time: its own best one, or one that it draws.
        states = [batch.states[seq_id] for seq_id in decodes.seq_ids]
        hidden = hidden[make_tensor(decodes.rows, "int64", self.device)]
        positions = make_tensor(decodes.positions, "int64", self.device)
        metadata = AttentionMetadata.build(
            query_lens=[1] * len(states),
            seq_lens=decodes.positions,
            block_tables=decodes.block_tables,
            slot_mapping=decodes.positions,  # of the right length; each step computes its own
            device=self.device,
        )
        drafts: list[torch.Tensor] = []
        probs: list[torch.Tensor] = []
        for step in range(max(decodes.num_drafts)):
            if step:
                metadata = self._next(metadata, positions)
                hidden = self._forward(drafts[-1], positions, metadata)
                positions = (positions + 1).clamp(max=self.num_positions - 1)
            logits = self.model.compute_logits(hidden)
            drafts.append(self._choose(logits, states, step, probs))
        return copied | self._deal_out(decodes, states, torch.stack(drafts, 1), probs)

    def _num_drafts(
        self, scheduler_output: SchedulerOutput, batch: InputBatch, sampled: dict[str, list[int]]
    ) -> dict[str, int]:
        """Number of useful drafts, for each sequence that got a token and has slots behind it."""
        wanted = {}
        for seq_id in scheduler_output.num_scheduled_tokens:
            state = batch.states[seq_id]
            has_token = sampled.get(seq_id, [NO_TOKEN])[-1] != NO_TOKEN
            if not has_token or state.is_beam or seq_id in scheduler_output.forks:
                continue
            num_known = len(state.token_ids)
            num_useful = num_useful_drafts(
                self.k,
                num_known,
                num_output_tokens=num_known - state.num_prompt_tokens,
                max_tokens=state.sampling_params.max_tokens,
                max_model_len=self.max_model_len,
            )
            if num_useful > 0:
                wanted[seq_id] = num_useful
        return wanted

    def _look_up(self, batch: InputBatch, wanted: dict[str, int]) -> dict[str, list[int]]:
        """Drafts from n-grams, for the sequences that have any."""
        if self.ngrams is None:
            return {}
        states = [batch.states[seq_id] for seq_id in wanted]
        found = zip(wanted.items(), self.ngrams.propose(states), strict=True)
        return {seq_id: token_ids[:n] for (seq_id, n), token_ids in found if token_ids}

    def _read_along(
        self, scheduler_output: SchedulerOutput, batch: InputBatch, wanted: dict[str, int]
    ) -> tuple[ModelInput, _Decodes]:
        """All that is new, and who goes on from there; none that is longer than it knows."""
        model_input = ModelInput()
        decodes = _Decodes()
        for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
            state = batch.states[seq_id]
            start = scheduler_output.num_computed_tokens[seq_id]
            num_known = len(state.token_ids)
            num_drafts = wanted.get(seq_id, 0) if num_known < self.num_positions else 0
            stop = num_known if num_drafts > 0 else min(start + num_new, num_known)
            stop = min(stop, self.num_positions)
            if start >= stop:
                continue
            block_ids = state.block_ids[self.group]
            model_input.add(state.token_ids[start:stop], start, (block_ids,), self.block_size)
            if num_drafts > 0:
                decodes.seq_ids.append(seq_id)
                decodes.num_drafts.append(num_drafts)
                decodes.rows.append(len(model_input.token_ids) - 1)
                decodes.positions.append(stop)
                decodes.block_tables.append(block_ids)
        return model_input, decodes

    def _next(self, metadata: AttentionMetadata, positions: torch.Tensor) -> AttentionMetadata:
        """One more token of each sequence, at these positions; nothing waits for the device."""
        blocks = metadata.block_table.long().gather(1, (positions // self.block_size)[:, None])
        return replace(
            metadata,
            seq_lens=(positions + 1).int(),
            slot_mapping=blocks[:, 0] * self.block_size + positions % self.block_size,
            max_seq_len=min(metadata.max_seq_len + 1, self.num_positions),
        )

    def _forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        of_layers = [metadata] * len(self.kv_cache.layer_groups)
        attention = StepAttention(self.attention, self.kv_cache, of_layers)
        return self.model(token_ids, positions, attention)

    def _choose(
        self,
        logits: torch.Tensor,
        states: list[CachedRequestState],
        step: int,
        probs: list[torch.Tensor],
    ) -> torch.Tensor:
        """The next draft of each row, int64 ``[n]``; what it was drawn from is added to ``probs``.

        Of a request's parameters only the temperature counts: others make drafts no better.
        """
        _, best = best_tokens(logits)
        if not self.draws:
            return best
        temperature = [float(state.sampling_params.temperature) or 1.0 for state in states]
        column = make_tensor(temperature, "float64", logits.device)[:, None]
        probs.append((logits.double() / column).softmax(-1).float())
        keys = stream_keys([state.seed for state in states], Purpose.DRAFT)
        numbers = uniform(keys, [len(state.token_ids) + step for state in states])
        drawn = sample_from_cdf(probs[-1].double(), make_tensor(numbers, "float64", logits.device))
        are_drawn = [_is_drawn(state) for state in states]
        drawn = drawn.clamp(max=logits.shape[-1] - 1)  # of NaN there is no draw, and no harm either
        return torch.where(make_tensor(are_drawn, "bool", logits.device), drawn, best)

    def _deal_out(
        self,
        decodes: _Decodes,
        states: list[CachedRequestState],
        drafts: torch.Tensor,
        probs: list[torch.Tensor],
    ) -> dict[str, list[int]]:
        """Assign sequences their drafts, int ``[n, steps]``, and keep the distributions."""
        found = {}
        for row, (seq_id, state) in enumerate(zip(decodes.seq_ids, states, strict=True)):
            token_ids = drafts[row, : decodes.num_drafts[row]].tolist()
            found[seq_id] = token_ids
            if self.draws:
                drawn = None
                if _is_drawn(state):
                    mine = torch.stack([p[row] for p in probs[: len(token_ids)]])
                    drawn = DrawnDrafts(len(state.token_ids), token_ids, mine)
                state.drawn_drafts = drawn
        return found


def _is_drawn(state: CachedRequestState) -> bool:
    """True if drafts are drawn at random: a greedy request's are not.

    Nor are those of a request whose form is given: a draft that the grammar forbids is cut before
    it is verified, and that may depend on where the text is, but not on a draw.
    """
    params = state.sampling_params
    return not params.greedy and params.structured_outputs is None
