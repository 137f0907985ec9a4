"""ModelRunner: scheduled tokens become tensors, tensors logits, logits the next tokens.

(vLLM: vllm/v1/worker/gpu/model_runner.py)
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.kv_cache import KVCache
from minivllm.attention.metadata import AttentionMetadata
from minivllm.lora.worker_manager import WorkerLoRAManager
from minivllm.models.decoder import DecoderModel
from minivllm.models.token_types import encode_token_type_ids
from minivllm.sampling.grammar_bitmask import apply_grammar_bitmask
from minivllm.sampling.logprobs import prompt_logprobs
from minivllm.sampling.rejection_sampler import num_tokens_that_count
from minivllm.sampling.sampler import Sampler, SamplerOutput
from minivllm.scheduling.output import (
    NO_TOKEN,
    ModelRunnerOutput,
    SchedulerOutput,
    TokenLogprobs,
)
from minivllm.utils.tensors import make_tensor
from minivllm.worker.cuda_graph_runner import CUDAGraphRunner, GraphRecorder
from minivllm.worker.draft_model import DraftModelProposer
from minivllm.worker.input_batch import InputBatch
from minivllm.worker.model_input import ModelInput


class ModelRunner:
    """Runs the model on one device, a step at a time.

    Args:
        model: the decoder, on its device.
        kv_cache: the tensors behind the block ids.
        host_kv_cache: those behind the ids of host blocks.
        block_size: positions per block.
        attention: how the layers write and read the cache.
        draft_model: guesses what comes next, if there is one.
        lora_manager: adapters, if requests may have any.
    """

    def __init__(
        self,
        model: DecoderModel,
        kv_cache: KVCache,
        host_kv_cache: KVCache,
        block_size: int,
        attention: AttentionBackend,
        draft_model: DraftModelProposer | None = None,
        lora_manager: WorkerLoRAManager | None = None,
    ):
        self.model = model
        self.pooler = model.pooler  # of a model that samples nothing
        self.draft_model = draft_model
        self.lora_manager = lora_manager
        self.kv_cache = kv_cache
        self.host_kv_cache = host_kv_cache
        self.block_size = block_size
        self.attention = attention
        self.device = kv_cache.data.device
        self.input_batch = InputBatch()
        self.sampler = Sampler()
        self.cuda_graph_runner: CUDAGraphRunner | None = None

    @torch.inference_mode()
    def capture_decodes(
        self, sizes: list[int], max_model_len: int, recorder: GraphRecorder
    ) -> None:
        """Capture CUDA graphs, to be replayed for batches of decodes; see ``CUDAGraphRunner``."""
        self.cuda_graph_runner = CUDAGraphRunner(
            self._forward, sizes, max_model_len, self.block_size, self.device, recorder
        )

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute one step. A chunk that ends before the last known token samples nothing."""
        self.input_batch.update(scheduler_output)
        plan = scheduler_output
        if plan.swaps_out or plan.swaps_in or plan.kv_cache_block_copies:
            self._move_blocks(plan)
        if not scheduler_output.num_scheduled_tokens:
            return ModelRunnerOutput()
        if self.lora_manager is not None:
            self.lora_manager.prepare(scheduler_output, self.input_batch.states)
        token_ids, positions, metadata = self.prepare_inputs(scheduler_output)
        graphs, forward = self.cuda_graph_runner, self._forward
        if graphs is not None and graphs.has(metadata) and not self._has_adapters:
            forward = graphs.replay
        hidden = forward(token_ids, positions, metadata)
        if self.pooler is not None:
            return ModelRunnerOutput(pooler_output=self._pool(scheduler_output, hidden))
        output = ModelRunnerOutput()
        if self.input_batch.num_prompt_logprobs:
            output.prompt_logprobs = self._prompt_logprobs(scheduler_output, hidden)
        seq_ids, rows = self._rows_to_sample(scheduler_output)
        if rows:
            if scheduler_output.forks:
                self.input_batch.fork(scheduler_output.forks)
            index = make_tensor(rows, "int64", self.device)
            logits = self.model.compute_logits(hidden.index_select(0, index))
            self._sample(seq_ids, logits, scheduler_output, output)
        if self.draft_model is not None:
            output.draft_token_ids = self.draft_model.propose(
                scheduler_output, self.input_batch, output.sampled_token_ids
            )
        return output

    def _pool(
        self, scheduler_output: SchedulerOutput, hidden: torch.Tensor
    ) -> dict[str, np.ndarray]:
        """The pooler's numbers of the sequences whose prompt is complete."""
        pooled = self.pooler(hidden, self.input_batch.pooling_metadata(scheduler_output))
        return {
            seq_id: numbers.float().cpu().numpy()
            for seq_id, numbers in zip(scheduler_output.num_scheduled_tokens, pooled, strict=True)
            if numbers is not None
        }

    @property
    def _has_adapters(self) -> bool:
        """True if rows of the step have adapters: no graph has recorded which."""
        return self.lora_manager is not None and self.lora_manager.model.rows.metadata is not None

    def _sample(
        self,
        seq_ids: list[str],
        logits: torch.Tensor,
        scheduler_output: SchedulerOutput,
        output: ModelRunnerOutput,
    ) -> None:
        drafts = scheduler_output.scheduled_spec_decode_tokens
        if scheduler_output.grammar_output is not None:
            row_ids = [s for s in seq_ids for _ in range(1 + len(drafts.get(s, ())))]
            apply_grammar_bitmask(logits, row_ids, scheduler_output.grammar_output)
        sampling = self.input_batch.sampling_metadata(seq_ids, logits, drafts)
        chosen = self.sampler(logits, sampling)
        if drafts:
            self._verify(seq_ids, drafts, chosen, output)
            return
        sampled = sampling.append(chosen.token_ids)
        for row in chosen.invalid_rows:
            sampled[row] = [NO_TOKEN]
        output.sampled_token_ids = dict(zip(seq_ids, sampled, strict=True))
        output.logprobs = {seq_ids[row]: [found] for row, found in chosen.logprobs.items()}

    def _verify(
        self,
        seq_ids: list[str],
        drafts: dict[str, list[int]],
        chosen: SamplerOutput,
        output: ModelRunnerOutput,
    ) -> None:
        """Verify drafts: keep the tokens that count."""
        token_ids, end = chosen.token_ids.tolist(), 0
        for row in chosen.invalid_rows:
            token_ids[row] = NO_TOKEN
        for seq_id in seq_ids:
            mine = drafts.get(seq_id, [])
            row, end = end, end + 1 + len(mine)
            sampled = token_ids[row:end]
            del sampled[num_tokens_that_count(sampled, mine) :]
            self.input_batch[seq_id].token_ids += [i for i in sampled if i != NO_TOKEN]
            output.sampled_token_ids[seq_id] = sampled
            if row in chosen.logprobs:
                rows = range(row, row + len(sampled))
                output.logprobs[seq_id] = [chosen.logprobs[i] for i in rows]

    def _forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        return self.model(token_ids, positions, self.kv_cache, metadata, self.attention)

    def _move_blocks(self, scheduler_output: SchedulerOutput) -> None:
        """Swaps and copies, in this order: each may reuse a block that the one before has left."""
        device, host = self.kv_cache, self.host_kv_cache
        for moves, copy in (
            (scheduler_output.swaps_out, partial(host.copy_from, device)),
            (scheduler_output.swaps_in, partial(device.copy_from, host)),
            (scheduler_output.kv_cache_block_copies, partial(self.attention.copy_blocks, device)),
        ):
            if moves:
                sources = [move.src_block_id for move in moves]
                copy(sources, [move.dst_block_id for move in moves])

    def prepare_inputs(
        self, scheduler_output: SchedulerOutput
    ) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
        """Lay all scheduled tokens side by side in one flat batch.

        Returns:
            Token ids and positions, int64 ``[num_tokens]``, and the metadata that cuts them apart.
        """
        model_input = ModelInput()
        for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
            state = self.input_batch[seq_id]
            start = scheduler_output.num_computed_tokens[seq_id]
            token_ids = state.token_ids[start : start + num_new]
            token_ids += scheduler_output.scheduled_spec_decode_tokens.get(seq_id, ())
            if state.first_of_type_1 is not None:  # its prompt comes whole
                token_ids = encode_token_type_ids(token_ids, state.first_of_type_1)
            model_input.add(token_ids, start, state.block_ids, self.block_size)
        if self.cuda_graph_runner is not None:
            model_input.pad(self.cuda_graph_runner.size_for(model_input.query_lens))
        return model_input.to_tensors(self.device)

    def _prompt_logprobs(
        self, scheduler_output: SchedulerOutput, hidden: torch.Tensor
    ) -> dict[str, dict[int, TokenLogprobs]]:
        """Prompt logprobs of this batch's positions, as asked for; see ``ModelRunnerOutput``."""
        found, end = {}, 0
        for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
            row, end = end, end + num_new
            state = self.input_batch[seq_id]
            num_top = self.input_batch.num_prompt_logprobs.get(seq_id)
            if num_top is None or len(state.token_ids) > state.num_prompt_tokens:
                continue  # not asked for, or known: the request comes back from a preemption
            # the row of position p says how likely the token at p + 1 was
            start = scheduler_output.num_computed_tokens[seq_id] + 1
            token_ids = state.token_ids[start : start + num_new]
            logprobs = prompt_logprobs(
                self.model.compute_logits, hidden[row : row + len(token_ids)], token_ids, num_top
            )
            found[seq_id] = dict(enumerate(logprobs, start=start))
        return found

    def _rows_to_sample(self, scheduler_output: SchedulerOutput) -> tuple[list[str], list[int]]:
        """Rows to sample from: sequences whose last known token is in the batch, and its flat row.

        Behind it are the rows of its drafts. Where a prompt is complete and forks, its row serves
        all the siblings.
        """
        seq_ids, rows, end = [], [], 0
        for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
            end += num_new
            stop = scheduler_output.num_computed_tokens[seq_id] + num_new
            num_drafts = stop - len(self.input_batch[seq_id].token_ids)
            if num_drafts >= 0:
                siblings = scheduler_output.forks.get(seq_id, [])
                seq_ids += [seq_id, *siblings]
                rows += [*range(end - 1 - num_drafts, end), *[end - 1] * len(siblings)]
        return seq_ids, rows
