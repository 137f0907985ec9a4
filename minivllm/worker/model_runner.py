"""ModelRunner: scheduled tokens become tensors, tensors logits, logits the next tokens.

(vLLM: vllm/v1/worker/gpu/model_runner.py)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.kv_cache import KVCache
from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.step import StepAttention
from minivllm.models.decoder import DecoderModel
from minivllm.sampling.grammar_bitmask import apply_grammar_bitmask
from minivllm.sampling.rejection_sampler import keep_verified
from minivllm.sampling.sampler import Sampler
from minivllm.scheduling.output import NO_TOKEN, ModelRunnerOutput, SchedulerOutput
from minivllm.utils.tensors import make_tensor
from minivllm.worker.cuda_graph_runner import CUDAGraphRunner, GraphRecorder
from minivllm.worker.draft_model import DraftModelProposer
from minivllm.worker.input_batch import InputBatch
from minivllm.worker.lora_manager import WorkerLoRAManager
from minivllm.worker.model_input import BatchTensors, ModelInput
from minivllm.worker.prompt_logprobs import prompt_logprobs_of


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

    input_batch_class = InputBatch

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
        self.draft_model = draft_model
        self.lora_manager = lora_manager
        self.kv_cache = kv_cache
        self.host_kv_cache = host_kv_cache
        self.block_size = block_size
        self.attention = attention
        self.device = kv_cache.data.device
        self.input_batch = self.input_batch_class()
        self.sampler = Sampler()
        self.cuda_graph_runner: CUDAGraphRunner | None = None

    @torch.inference_mode()
    def capture_decodes(
        self, sizes: list[int], max_model_len: int, recorder: GraphRecorder
    ) -> None:
        """Capture CUDA graphs, to be replayed for batches of decodes; see ``CUDAGraphRunner``."""
        self.cuda_graph_runner = CUDAGraphRunner(
            self._forward, sizes, max_model_len, self.block_size,
            device=self.device, recorder=recorder, num_groups=self.kv_cache.num_groups,
        )  # fmt: skip

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute one step. A chunk that ends before the last known token samples nothing."""
        # 1. What has changed since the last step?
        plan = scheduler_output
        self.input_batch.update(plan)
        # 2. Blocks that move come first: their places may be written in this step.
        if plan.swaps_out or plan.swaps_in or plan.kv_cache_block_copies:
            self._move_blocks(plan)
        if not plan.num_scheduled_tokens:
            return ModelRunnerOutput()
        if self.lora_manager is not None:
            self.lora_manager.prepare(plan, self.input_batch.states)
        # 3. One flat batch.
        token_ids, positions, metadata = self.prepare_inputs(plan)
        # 4. The model, or a recording of it.
        forward: Callable[..., torch.Tensor] = self._forward
        graphs = self.cuda_graph_runner
        if graphs is not None and graphs.has(metadata) and not self.is_unlike_recordings:
            forward = graphs.replay
        hidden = forward(token_ids, positions, metadata)
        # 5. The next tokens; a subclass makes something else of hidden states.
        return self.make_output(plan, hidden)

    def make_output(self, plan: SchedulerOutput, hidden: torch.Tensor) -> ModelRunnerOutput:
        """Sample the next token of each sequence whose last known token is in the batch."""
        output = ModelRunnerOutput()
        # 1. What some have asked about the prompt's own tokens.
        if self.input_batch.num_prompt_logprobs:
            output.prompt_logprobs = prompt_logprobs_of(
                plan, self.input_batch, hidden, self.model.compute_logits
            )
        # 2. The next tokens; siblings begin with theirs, from the row that ends their prompt.
        seq_ids, rows = self._rows_to_sample(plan)
        if rows:
            if plan.forks:
                self.input_batch.fork(plan.forks)
            index = make_tensor(rows, "int64", self.device)
            logits = self.model.compute_logits(hidden.index_select(0, index))
            self._sample(seq_ids, logits, plan, output)
        # 3. Guesses at what comes behind them, which the next step verifies.
        if self.draft_model is not None:
            output.draft_token_ids = self.draft_model.propose(
                plan, self.input_batch, output.sampled_token_ids
            )
        return output

    @property
    def is_unlike_recordings(self) -> bool:
        """True if rows of the step have adapters: no graph has recorded which."""
        return self.lora_manager is not None and self.lora_manager.model.rows.metadata is not None

    def _sample(
        self,
        seq_ids: list[str],
        logits: torch.Tensor,
        plan: SchedulerOutput,
        output: ModelRunnerOutput,
    ) -> None:
        """Sample from each row of logits, and append what counts."""
        # 1. A grammar rules tokens out, in a row for each token that may come.
        drafts = plan.scheduled_spec_decode_tokens
        if plan.grammar_output is not None:
            row_ids = [s for s in seq_ids for _ in range(1 + len(drafts.get(s, ())))]
            apply_grammar_bitmask(logits, row_ids, plan.grammar_output)
        # 2. A token for each row.
        sampling = self.input_batch.sampling_metadata(seq_ids, logits, drafts)
        chosen = self.sampler(logits, sampling)
        token_ids = chosen.token_ids.tolist()
        for row in chosen.invalid_rows:
            token_ids[row] = NO_TOKEN
        # 3. Behind the first draft that was not drawn no row counts.
        if drafts:
            kept = keep_verified(seq_ids, drafts, token_ids, chosen.logprobs)
            output.sampled_token_ids, output.logprobs = kept
        else:
            sampling.count(chosen.token_ids)
            output.sampled_token_ids = {
                seq_id: [token_id] for seq_id, token_id in zip(seq_ids, token_ids, strict=True)
            }
            output.logprobs = {seq_ids[row]: [found] for row, found in chosen.logprobs.items()}
        self.input_batch.append(output.sampled_token_ids)

    def _forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        metadata: list[AttentionMetadata],
        **inputs: torch.Tensor,
    ) -> torch.Tensor:
        """The model's hidden states; a subclass may give it further inputs."""
        of_layers = [metadata[group] for group in self.kv_cache.layer_groups]
        attention = StepAttention(self.attention, self.kv_cache, of_layers)
        return self.model(token_ids, positions, attention, **inputs)

    def _move_blocks(self, scheduler_output: SchedulerOutput) -> None:
        """Swaps and copies, in this order: each may reuse a block that the one before has left."""
        device = self.kv_cache
        host = self.host_kv_cache
        for moves, copy in (
            (scheduler_output.swaps_out, partial(host.copy_from, device)),
            (scheduler_output.swaps_in, partial(device.copy_from, host)),
            (scheduler_output.kv_cache_block_copies, partial(self.attention.copy_blocks, device)),
        ):
            if moves:
                sources = [move.src_block_id for move in moves]
                copy(sources, [move.dst_block_id for move in moves])

    def prepare_inputs(self, scheduler_output: SchedulerOutput) -> BatchTensors:
        """Lay all scheduled tokens side by side in one flat batch.

        Returns:
            Token ids and positions, int64 ``[num_tokens]``, and the metadata that cuts them apart,
            of each KV cache group.
        """
        groups = range(self.kv_cache.num_groups)
        model_input = ModelInput(slots=[[] for _ in groups], block_tables=[[] for _ in groups])
        for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
            state = self.input_batch.states[seq_id]
            start = scheduler_output.num_computed_tokens[seq_id]
            token_ids = state.token_ids[start : start + num_new]
            # drafts are guesses, and so not among the state's tokens
            token_ids += scheduler_output.scheduled_spec_decode_tokens.get(seq_id, ())
            places = state.positions
            positions = None if places is None else places.of(start, len(token_ids))
            model_input.add(token_ids, start, state.block_ids, self.block_size, positions)
        if self.cuda_graph_runner is not None:
            model_input.pad(self.cuda_graph_runner.size_for(model_input.query_lens))
        return model_input.to_tensors(self.device)

    def _rows_to_sample(self, scheduler_output: SchedulerOutput) -> tuple[list[str], list[int]]:
        """Rows to sample from: sequences whose last known token is in the batch, and its flat row.

        Behind it are the rows of its drafts. Where a prompt is complete and forks, its row serves
        all the siblings.
        """
        seq_ids: list[str] = []
        rows: list[int] = []
        end = 0
        for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
            end += num_new
            stop = scheduler_output.num_computed_tokens[seq_id] + num_new
            num_drafts = stop - len(self.input_batch.states[seq_id].token_ids)
            if num_drafts >= 0:  # else a chunk: the prompt goes on in a later step
                siblings = scheduler_output.forks.get(seq_id, [])
                seq_ids += [seq_id, *siblings]
                rows += [*range(end - 1 - num_drafts, end), *[end - 1] * len(siblings)]
        return seq_ids, rows
