"""TracedWorker: a worker that reports what its rank did in a step, for the trace."""

from __future__ import annotations

import time
from dataclasses import replace

from minivllm.config import VllmConfig
from minivllm.distributed.group import Group, ParallelState
from minivllm.distributed.recorded import RecordedGroup
from minivllm.logger import init_logger
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.trace.rank_work import Operation, RankWork
from minivllm.worker.worker import Worker

logger = init_logger(__name__)


class TracedWorker(Worker):
    """A rank of an engine that writes a trace."""

    def __init__(self, config: VllmConfig, parallel_state: ParallelState):
        self._operations: list[Operation] = []

        def recorded(group: Group, name: str) -> Group:
            return RecordedGroup(group, name, self._operations) if group.size > 1 else group

        tp = recorded(parallel_state.tp, "tp")
        pp = recorded(parallel_state.pp, "pp")
        super().__init__(config, replace(parallel_state, tp=tp, pp=pp))

    def compile_or_warm_up_model(self) -> None:
        if self.device.type == "cpu" or self.config.parallel_config.world_size == 1:
            return super().compile_or_warm_up_model()
        logger.info("No CUDA graphs: a trace notes every operation between ranks.")

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute one step. Its output has this rank's work."""
        self._operations.clear()
        start = time.time()
        output = super().execute_model(scheduler_output)
        operations = list(self._operations)  # the next step clears them
        output.rank_work = [
            RankWork(self.parallel_state.rank, start, time.time(), operations=operations)
        ]
        return output


def make_worker(config: VllmConfig, parallel_state: ParallelState) -> Worker:
    """Make the worker of a rank that computes beside other ranks, or beside the scheduler."""
    kind = TracedWorker if config.observability_config.trace else Worker
    return kind(config, parallel_state)
