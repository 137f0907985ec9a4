"""AsyncScheduler: plans a step while the one before it runs, with placeholders for its tokens.

A plan counts tokens and blocks; it does not need to know what a token is. So the next step of a
sequence can be planned while its last token is being computed: a placeholder takes its place until
it is known. The end of an answer is seen one step late.

(vLLM: vllm/v1/core/sched/async_scheduler.py)
"""

from __future__ import annotations

from typing import Any

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace


class AsyncScheduler(Scheduler):
    """A scheduler whose sequences go on behind tokens that are still on their way.

    A sequence waits for its token where the next plan depends on it: before samples fork, in a
    beam search, and with a grammar.

    Args:
        num_stages: of a pipeline: a sequence that samples in one plan is next in the plan that
            reaches the first stage when that token has left the last one.
    """

    def __init__(self, *args: Any, num_stages: int = 1, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.num_stages = num_stages
        self._num_plans = 0
        self._next_plan: dict[str, int] = {}  # with stages: the first plan that may have it again

    def schedule(self) -> SchedulerOutput:
        """Plan one step, behind the tokens of those in flight."""
        self._num_plans += 1
        due = self._num_plans
        self._next_plan = {name: plan for name, plan in self._next_plan.items() if plan > due}
        return super().schedule()

    def _num_new_tokens(self, seq: Sequence, output: SchedulerOutput) -> int:
        num_placeholders = seq.num_output_placeholders
        if seq.seq_id in self._next_plan:
            return 0
        if num_placeholders == 0:
            return super()._num_new_tokens(seq, output)
        # Tokens there are when those on their way have come. Behind the last one nothing is needed:
        # a length limit wastes no token.
        num_tokens = seq.num_tokens + num_placeholders
        if num_tokens >= seq.num_prompt_tokens + seq.request.sampling_params.max_tokens:
            return 0
        return min(num_tokens, self.longest) - seq.num_computed_tokens

    def _complete(self, output: SchedulerOutput) -> None:
        """Complete a plan, and leave a placeholder for each token that it samples."""
        super()._complete(output)
        for seq_id in output.num_scheduled_tokens:
            seq = self.sequences[seq_id]
            if seq.num_computed_tokens == seq.num_tokens + seq.num_output_placeholders:
                if _may_have_placeholder(seq):
                    seq.num_output_placeholders += 1
                if self.num_stages > 1:
                    self._next_plan[seq_id] = self._num_plans + self.num_stages

    def _preempt(self, request: Request, output: SchedulerOutput) -> None:
        super()._preempt(request, output)
        for seq in request.unfinished_seqs:
            # Tokens on their way will be appended, but nothing waits for them behind them.
            seq.num_output_placeholders = 0

    def _append_sampled(self, seq: Sequence, token_ids: list[int]) -> None:
        """Append the token that a placeholder stood for; what it completes can be found by others.

        A sequence that was preempted meanwhile has no placeholder: its token is only appended.
        """
        if seq.num_output_placeholders > 0:
            seq.num_output_placeholders -= 1
        if seq.status == RequestStatus.RUNNING:
            num_known = seq.num_computed_tokens - seq.num_output_placeholders
            self.kv_manager.cache_blocks(seq, num_known)
        super()._append_sampled(seq, token_ids)


def _may_have_placeholder(seq: Sequence) -> bool:
    """True unless a plan behind a sequence's next token depends on which token it is.

    So it is where samples fork, beams are compared, or a grammar says what may come next. A pooling
    request gets no token.
    """
    request = seq.request
    return request.may_draft and seq.grammar is None and request.pooling_params is None


def make_scheduler(
    config: SchedulerConfig,
    kv_manager: KVCacheManager,
    trace: Trace | None = None,
    num_stages: int = 1,
) -> Scheduler:
    """Make the scheduler that a config asks for; arguments are those of the two classes."""
    if config.async_scheduling:
        return AsyncScheduler(config, kv_manager, trace, num_stages=num_stages)
    return Scheduler(config, kv_manager, trace)
