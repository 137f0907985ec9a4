"""StubRunner: a model runner without a model, which knows its tokens before the scheduler does."""

from __future__ import annotations

from minivllm.lab.sim.loop import fake_samples
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput


class StubRunner:
    """Executes plans with made-up tokens, and keeps them as a real runner does.

    Needed where plans are made before the tokens of others are known: a runner that asks the
    scheduler for a sequence's tokens would find placeholders.
    """

    def __init__(self) -> None:
        self.token_ids: dict[str, list[int]] = {}

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Sample ``fake_tokens`` for every sequence whose last known token is computed."""
        if plan.reset:
            self.token_ids.clear()
        for seq_id in plan.finished_req_ids:
            self.token_ids.pop(seq_id, None)
        for new in plan.scheduled_new_reqs:
            self.token_ids[new.seq_id] = list(new.token_ids)
        sampled = fake_samples(plan, self.token_ids)
        for parent_id, child_ids in plan.forks.items():
            for child_id in child_ids:
                self.token_ids[child_id] = list(self.token_ids[parent_id])
        for seq_id, token_ids in sampled.items():
            self.token_ids[seq_id] += token_ids
        return ModelRunnerOutput(sampled)
