"""StubRunner: a model runner without a model, which knows its tokens before the scheduler does."""

from __future__ import annotations

from minivllm.lab.sim.loop import fake_tokens, num_accepted
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
        sampled: dict[str, list[int]] = {}
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            known = self.token_ids[seq_id]
            if plan.num_computed_tokens[seq_id] + num_new < len(known):
                continue  # a chunk: the prompt goes on in a later step
            drafts = plan.scheduled_spec_decode_tokens.get(seq_id, [])
            tokens = fake_tokens(known, len(drafts) + 1)
            for sibling_id in (seq_id, *plan.forks.get(seq_id, ())):
                sampled[sibling_id] = tokens[: 1 + num_accepted(drafts, tokens)]
                self.token_ids[sibling_id] = [*known, *sampled[sibling_id]]
        return ModelRunnerOutput(sampled)
