"""StubRunner: a model runner without a model, which knows its tokens before the scheduler does."""

from __future__ import annotations

from minivllm.lab.sim.loop import fake_samples
from minivllm.multimodal.inputs import MultiModalFeatureSpec
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput


class StubRunner:
    """Executes plans with made-up tokens, and keeps them as a real runner does.

    Needed where plans are made before the tokens of others are known: a runner that asks the
    scheduler for a sequence's tokens would find placeholders. It also has an encoder cache, of
    which it keeps what it is told to keep.
    """

    def __init__(self) -> None:
        self.token_ids: dict[str, list[int]] = {}
        self.mm_features: dict[str, list[MultiModalFeatureSpec]] = {}
        self.encoder_cache: set[str] = set()  # identifiers
        self.num_encoded = 0  # items so far

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Sample ``fake_tokens`` for every sequence whose last known token is computed.

        Raises:
            RuntimeError: if a placeholder is to be computed whose item has no encoder output.
        """
        if plan.reset:
            self.token_ids.clear()
            self.mm_features.clear()
            self.encoder_cache.clear()
        for seq_id in plan.finished_req_ids:
            self.token_ids.pop(seq_id, None)
            self.mm_features.pop(seq_id, None)
        for new in plan.scheduled_new_reqs:
            self.token_ids[new.seq_id] = list(new.token_ids)
            self.mm_features[new.seq_id] = new.mm_features
        self._encode(plan)
        sampled = fake_samples(plan, self.token_ids)
        for parent_id, child_ids in plan.forks.items():
            for child_id in child_ids:
                self.token_ids[child_id] = list(self.token_ids[parent_id])
                self.mm_features[child_id] = self.mm_features[parent_id]
        for seq_id, token_ids in sampled.items():
            self.token_ids[seq_id] += token_ids
        return ModelRunnerOutput(sampled)

    def _encode(self, plan: SchedulerOutput) -> None:
        """Forget and encode items, and look up what the plan's chunks need."""
        self.encoder_cache.difference_update(plan.free_encoder_mm_hashes)
        for seq_id, indices in plan.scheduled_encoder_inputs.items():
            features = self.mm_features[seq_id]
            self.encoder_cache.update(features[index].identifier for index in indices)
            self.num_encoded += len(indices)
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            start = plan.num_computed_tokens[seq_id]
            for feature in self.mm_features[seq_id]:
                needed = feature.mm_position.embeds_in(start, start + num_new)
                if needed and feature.identifier not in self.encoder_cache:
                    raise RuntimeError(
                        f"encoder cache miss: {feature.identifier!r} of {seq_id!r} is not encoded."
                    )
