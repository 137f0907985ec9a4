"""ModelRunner: a plan becomes tensors, tensors become logits, logits become tokens.

(vLLM: vllm/v1/worker/gpu_model_runner.py)
"""

from __future__ import annotations

from functools import partial

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.kv_storage import KVStorage
from minivllm.attention.metadata import AttentionMetadata
from minivllm.kv.block_table import slots_of
from minivllm.models.decoder import DecoderForCausalLM
from minivllm.sampling.logprobs import prompt_logprobs
from minivllm.sampling.sampler import Sampler
from minivllm.scheduling.output import NO_TOKEN, ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from minivllm.tensors import make_tensor
from minivllm.worker.decode_graphs import DecodeGraphs, Recorder
from minivllm.worker.input_batch import InputBatch


class ModelRunner:
    """Runs plans on one device.

    Args:
        model: the decoder, on its device.
        kv_storage: the tensors behind the plan's block ids.
        host_storage: those behind the ids of host blocks.
        block_size: positions per block.
        attention: how the layers write and read the cache.
    """

    def __init__(
        self,
        model: DecoderForCausalLM,
        kv_storage: KVStorage,
        host_storage: KVStorage,
        block_size: int,
        attention: AttentionBackend,
    ):
        self.model = model
        self.kv_storage = kv_storage
        self.host_storage = host_storage
        self.block_size = block_size
        self.attention = attention
        self.device = kv_storage.data.device
        self.input_batch = InputBatch()
        self.sampler = Sampler()
        self.decode_graphs: DecodeGraphs | None = None

    @torch.inference_mode()
    def capture_decodes(self, sizes: list[int], max_model_len: int, recorder: Recorder) -> None:
        """From now on batches of decodes are replayed; see ``DecodeGraphs``."""
        self.decode_graphs = DecodeGraphs(
            self._forward, sizes, max_model_len, self.block_size, self.device, recorder
        )

    @torch.inference_mode()
    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Compute a plan's tokens. A chunk that stops short of its last has nothing to say yet."""
        self.input_batch.update(plan)
        self._move_blocks(plan)
        if not plan.num_scheduled_tokens:
            return ModelRunnerOutput()
        token_ids, positions, metadata = self.prepare_inputs(plan)
        graphs = self.decode_graphs
        recorded = graphs is not None and graphs.has(metadata)
        hidden = (graphs.replay if recorded else self._forward)(token_ids, positions, metadata)
        output = ModelRunnerOutput(prompt_logprobs=self._prompt_logprobs(plan, hidden))
        seq_ids, rows = self._caught_up(plan)
        if rows:
            index = make_tensor(rows, "int64", self.device)
            logits = self.model.compute_logits(hidden[index])
            metadata = self.input_batch.sampling_metadata(seq_ids, logits)
            chosen = self.sampler(logits, metadata)
            output.sampled = dict(zip(seq_ids, metadata.append(chosen.token_ids), strict=True))
            output.sampled |= {seq_ids[row]: NO_TOKEN for row in chosen.hopeless_rows}
            output.logprobs = {seq_ids[row]: one for row, one in chosen.logprobs.items()}
        return output

    def _forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        return self.model(token_ids, positions, self.kv_storage, metadata, self.attention)

    def _move_blocks(self, plan: SchedulerOutput) -> None:
        """Swaps and copies, in this order: each may reuse a block that the one before has left."""
        device, host = self.kv_storage, self.host_storage
        for moves, copy in (
            (plan.swaps_out, partial(host.copy_from, device)),
            (plan.swaps_in, partial(device.copy_from, host)),
            (plan.block_copies, partial(self.attention.copy_blocks, device)),
        ):
            if moves:
                copy([m.src for m in moves], [m.dst for m in moves])

    def prepare_inputs(
        self, plan: SchedulerOutput
    ) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
        """Lay all scheduled tokens side by side in one flat batch.

        A batch of decodes is filled up to the next size that ``decode_graphs`` has.

        Returns:
            Token ids and positions, int64 ``[num_tokens]``, and the metadata that cuts them apart.
        """
        token_ids, positions, slots, query_lens, seq_lens, block_tables = [], [], [], [], [], []
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            state = self.input_batch[seq_id]
            start = plan.num_computed_tokens[seq_id]
            stop = start + num_new
            token_ids += state.token_ids[start:stop]
            positions += range(start, stop)
            slots += slots_of(state.block_ids, start, stop, self.block_size)
            query_lens.append(num_new)
            seq_lens.append(stop)
            block_tables.append(state.block_ids)
        if self.decode_graphs is not None and max(query_lens) == 1:
            self.decode_graphs.pad(token_ids, positions, slots, query_lens, seq_lens, block_tables)
        metadata = AttentionMetadata.build(query_lens, seq_lens, block_tables, slots, self.device)
        return (
            make_tensor(token_ids, "int64", self.device),
            make_tensor(positions, "int64", self.device),
            metadata,
        )

    def _prompt_logprobs(
        self, plan: SchedulerOutput, hidden: torch.Tensor
    ) -> dict[str, dict[int, TokenLogprobs]]:
        """Of the prompt positions in this batch, for who asked; see ``ModelRunnerOutput``."""
        found, end = {}, 0
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            row, end = end, end + num_new
            state = self.input_batch[seq_id]
            num_top = state.sampling_params.prompt_logprobs
            if num_top is None or len(state.token_ids) > state.num_prompt_tokens:
                continue  # nobody asked, or they are known: this one comes back from a preemption
            # the row of position p says how likely the token at p + 1 was
            start = plan.num_computed_tokens[seq_id] + 1
            token_ids = state.token_ids[start : start + num_new]
            logprobs = prompt_logprobs(
                self.model.compute_logits, hidden[row : row + len(token_ids)], token_ids, num_top
            )
            found[seq_id] = dict(enumerate(logprobs, start=start))
        return found

    def _caught_up(self, plan: SchedulerOutput) -> tuple[list[str], list[int]]:
        """The sequences whose last known token is in the batch, and the flat row it is in.

        Where a prompt is complete and forks, its row serves all the siblings.
        """
        seq_ids, rows, end = [], [], 0
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            end += num_new
            stop = plan.num_computed_tokens[seq_id] + num_new
            if stop == len(self.input_batch[seq_id].token_ids):
                siblings = plan.forks.get(seq_id, [])
                self.input_batch.fork(seq_id, siblings)
                seq_ids += [seq_id, *siblings]
                rows += [end - 1] * (1 + len(siblings))
        return seq_ids, rows
