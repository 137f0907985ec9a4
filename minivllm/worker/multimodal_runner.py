"""MultiModalRunner: runs a decoder on prompts with pictures or sound in them.

Placeholders are tokens whose embeddings come from elsewhere. All that is known of tokens (chunks,
blocks, slots, preemption) holds for them; a step without any of them is that of a text model.
(vLLM: ``_gather_mm_embeddings`` in vllm/v1/worker/gpu/model_runner.py)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from minivllm.attention.metadata import AttentionMetadata
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.utils.tensors import make_tensor
from minivllm.worker.encoder_runner import EncoderRunner, Placeholders
from minivllm.worker.model_input import BatchTensors
from minivllm.worker.model_runner import ModelRunner


class MultiModalRunner(ModelRunner):
    """A model runner with towers.

    Args:
        encoder_runner: of this rank; each has all of it.
        args: those of ``ModelRunner``, by name.
    """

    def __init__(self, encoder_runner: EncoderRunner, **args: Any):
        super().__init__(**args)
        self.encoder_runner = encoder_runner
        self._placeholders: Placeholders | None = None  # of this step

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute one step: see ``ModelRunner.execute_model``."""
        self.encoder_runner.forget(scheduler_output)
        try:
            return super().execute_model(scheduler_output)
        finally:
            self._placeholders = None

    def prepare_inputs(self, scheduler_output: SchedulerOutput) -> BatchTensors:
        """Encode the plan's items, and lay all scheduled tokens side by side."""
        states = self.input_batch.states
        for new in scheduler_output.scheduled_new_reqs:
            positions = self.encoder_runner.encoder.positions
            states[new.seq_id].positions = positions(new.mm_features, new.num_prompt_tokens)
        self.encoder_runner.encode(scheduler_output, states)
        self._placeholders = self.encoder_runner.gather(scheduler_output, states)
        return super().prepare_inputs(scheduler_output)

    @property
    def is_unlike_recordings(self) -> bool:
        """True if rows have adapters or are placeholders: a chunk of one looks like a decode."""
        return super().is_unlike_recordings or self._placeholders is not None

    def _forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        metadata: list[AttentionMetadata],
        **inputs: torch.Tensor,
    ) -> torch.Tensor:
        if self._placeholders is not None:
            rows = make_tensor(self._placeholders.rows, "int64", self.device)
            # made anew in each step, since the layers write into it
            inputs_embeds = self.model.model.embed_tokens(token_ids)
            inputs["inputs_embeds"] = inputs_embeds.index_copy_(
                0, rows, self._placeholders.embeddings
            )
            if self._placeholders.axes:
                axes = torch.from_numpy(np.concatenate(self._placeholders.axes, axis=1))
                positions = positions.repeat(3, 1).index_copy_(1, rows, axes.to(self.device))
        return super()._forward(token_ids, positions, metadata, **inputs)
