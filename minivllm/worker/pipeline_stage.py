"""Pipeline stages: model runners that pass hidden states on, from the first to the last.

Only the last stage samples. Earlier ones learn its tokens from later plans (``new_token_ids``).
(vLLM: ``IntermediateTensors`` in vllm/sequence.py, and the model runner's reading of pp groups)
"""

from __future__ import annotations

from typing import Any

import torch

from minivllm.attention.metadata import AttentionMetadata
from minivllm.distributed.group import Group
from minivllm.models.decoder import DecoderModel
from minivllm.models.multimodal import MultiModalEncoder
from minivllm.scheduling.output import NO_TOKEN, ModelRunnerOutput, SchedulerOutput
from minivllm.worker.encoder_runner import EncoderRunner
from minivllm.worker.model_runner import ModelRunner
from minivllm.worker.multimodal_runner import MultiModalRunner
from minivllm.worker.pooling_runner import PoolingRunner


class PipelineStage(ModelRunner):
    """The last stage of a pipeline, and what all stages do.

    Whatever fails in a stage, it receives and sends once in every step that computes anything. So
    no other stage waits for it, and a step that failed can be computed again. That is why hidden
    states travel through an attribute: a stage whose model has failed has none to return, but it
    must send something of their shape all the same.

    Args:
        group: the stages, of which this is one.
        args: those of ``ModelRunner``, by name.
    """

    def __init__(self, group: Group, **args: Any):
        super().__init__(**args)
        self.group = group
        self._hidden_states = torch.empty(0)  # of this step; see ``StageModel.forward``

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Receive, compute a step, send. Earlier stages have an empty ModelRunnerOutput."""
        num_tokens = scheduler_output.total_num_scheduled_tokens
        self._receive(num_tokens)
        try:
            return self._compute(scheduler_output)
        finally:
            self._send(num_tokens)

    def _receive(self, num_tokens: int) -> None:
        """Wait for the stage before; the first stage has zeros, which it does not read."""
        size = 2, num_tokens, self.model.config.hidden_size
        dtype = self.model.config.dtype
        self._hidden_states = torch.zeros(size, dtype=dtype, device=self.device)
        if num_tokens and self.group.rank > 0:
            self.group.recv([self._hidden_states], src=self.group.rank - 1)

    def _send(self, num_tokens: int) -> None:
        """Give the next stage what this one has made; after an error, what it has received."""
        if num_tokens and self.group.rank < self.group.size - 1:
            self.group.send([self._hidden_states], dst=self.group.rank + 1)

    def _compute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        return super().execute_model(scheduler_output)

    def _forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        metadata: list[AttentionMetadata],
        **inputs: torch.Tensor,
    ) -> torch.Tensor:
        hidden_states = self._hidden_states
        return super()._forward(token_ids, positions, metadata, hidden_states=hidden_states)


class EarlierStage(PipelineStage):
    """A stage that has a later one."""

    def _compute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        self.input_batch.update(scheduler_output)
        for seq_id, token_ids in scheduler_output.new_token_ids.items():
            start = scheduler_output.num_computed_tokens[seq_id]
            self.input_batch.states[seq_id].token_ids[start:] = token_ids
        self._move_blocks(scheduler_output)
        if scheduler_output.num_scheduled_tokens:
            ids, positions, metadata = self.prepare_inputs(scheduler_output)
            self._hidden_states = self._forward(ids, positions, metadata)
            self._expect_tokens(scheduler_output)
        return ModelRunnerOutput()

    def _expect_tokens(self, scheduler_output: SchedulerOutput) -> None:
        """Fork as the last stage does, and keep places for the tokens that it samples."""
        seq_ids, _ = self._rows_to_sample(scheduler_output)
        self.input_batch.fork(scheduler_output.forks)
        for seq_id in seq_ids:
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(seq_id, ())
            self.input_batch.states[seq_id].token_ids += [*drafts, NO_TOKEN]


def make_runner(
    group: Group, model: DecoderModel, encoder: MultiModalEncoder | None, **args: Any
) -> ModelRunner:
    """Make the model runner of a stage, or of a model in one piece: it samples, or it pools.

    Args:
        group: the stages.
        model: the part of the model that this stage has.
        encoder: towers for pictures or sound; None: of a text model.
        args: the other arguments of ``ModelRunner``, by name.
    """
    if group.size > 1:
        stage_class = PipelineStage if group.rank == group.size - 1 else EarlierStage
        return stage_class(group, model=model, **args)
    if encoder is not None:
        runner = EncoderRunner(encoder, args["attention"])
        return MultiModalRunner(runner, model=model, **args)
    runner_class = ModelRunner if model.pooler is None else PoolingRunner
    return runner_class(model=model, **args)
