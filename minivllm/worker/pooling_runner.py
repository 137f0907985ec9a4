"""PoolingRunner: runs a model whose hidden states are the answer. Nothing is sampled.

(vLLM: ``_pool`` of vllm/v1/worker/gpu/model_runner.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from minivllm.models.token_types import encode_token_type_1
from minivllm.pooling.metadata import PoolingMetadata, PoolingStates
from minivllm.pooling_params import PoolingParams
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.worker.input_batch import InputBatch
from minivllm.worker.model_input import BatchTensors
from minivllm.worker.model_runner import ModelRunner


@dataclass
class PooledRequest:
    """Pooling parameters of a sequence, and what its prompt's chunks have left so far."""

    params: PoolingParams
    states: PoolingStates = field(default_factory=PoolingStates)


class PoolingInputBatch(InputBatch):
    """The sequences of a pooling model."""

    def __init__(self):
        super().__init__()
        self.pooled: dict[str, PooledRequest] = {}

    def update(self, scheduler_output: SchedulerOutput) -> None:
        """Apply a SchedulerOutput, as ``InputBatch`` does."""
        super().update(scheduler_output)
        for new in scheduler_output.scheduled_new_reqs:
            assert new.pooling_params is not None, "a pooling model samples nothing"
            self.pooled[new.seq_id] = PooledRequest(new.pooling_params)
        for seq_id in self.pooled.keys() - self.states.keys():
            del self.pooled[seq_id]

    def pooling_metadata(self, scheduler_output: SchedulerOutput) -> PoolingMetadata:
        """Make the PoolingMetadata of a step; a prompt that begins again keeps nothing."""
        starts = scheduler_output.num_computed_tokens
        query_lens = scheduler_output.num_scheduled_tokens
        requests = [self.pooled[seq_id] for seq_id in query_lens]
        for seq_id, request in zip(query_lens, requests, strict=True):
            if starts[seq_id] == 0:
                request.states = PoolingStates()
        return PoolingMetadata(
            pooling_params=[request.params for request in requests],
            prompt_token_ids=[self.states[seq_id].token_ids for seq_id in query_lens],
            query_lens=list(query_lens.values()),
            num_computed_tokens=[starts[seq_id] for seq_id in query_lens],
            states=[request.states for request in requests],
        )


class PoolingRunner(ModelRunner):
    """Runs a model with a pooler. Arguments as of ``ModelRunner``."""

    input_batch_class = PoolingInputBatch
    input_batch: PoolingInputBatch

    def prepare_inputs(self, scheduler_output: SchedulerOutput) -> BatchTensors:
        """Lay all scheduled tokens side by side; ids carry the types of their tokens."""
        token_ids, positions, metadata = super().prepare_inputs(scheduler_output)
        end = 0
        for seq_id, num_new in scheduler_output.num_scheduled_tokens.items():
            start = end
            end += num_new
            first_of_type_1 = self.input_batch.pooled[seq_id].params.first_of_type_1
            if first_of_type_1 is not None:  # the prompt of an encoder comes whole
                encode_token_type_1(token_ids[start + first_of_type_1 : end])
        return token_ids, positions, metadata

    def make_output(self, plan: SchedulerOutput, hidden: torch.Tensor) -> ModelRunnerOutput:
        """Make the pooler's numbers of the sequences whose prompt is complete."""
        pooled = self.model.pooler(hidden, self.input_batch.pooling_metadata(plan))
        return ModelRunnerOutput(
            pooler_output={
                seq_id: numbers.float().cpu().numpy()
                for seq_id, numbers in zip(plan.num_scheduled_tokens, pooled, strict=True)
                if numbers is not None
            }
        )
