"""Replay of recordings with several plans in flight: modes "async", "pp" and "pp_async".

A step of such a recording is a call of the engine: it may make a plan, and may process the output
of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from minivllm.lab.sim.replay_encoder import EncoderCacheRecorder
from minivllm.lab.sim.stub_runner import StubRunner
from minivllm.logger import silenced
from minivllm.request import Request, RequestStatus
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler


class CallRecorder:
    """Calls of an engine with a queue of plans, described as a recording does.

    Args:
        scheduler: without requests.
        requests: join at the call that ``arrival_time`` counts.
        abort_steps: ids of those that are aborted at the beginning of a call.
        size: plans that may be in flight.
        describe: the plan's scheduled sequences as entries of the recording.
        encoder: describes items.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        requests: list[Request],
        abort_steps: dict[str, int],
        size: int,
        describe: Callable[[SchedulerOutput], list[dict[str, Any]]],
        encoder: EncoderCacheRecorder,
    ):
        self.scheduler = scheduler
        self.describe = describe
        self.encoder = encoder
        self.requests = requests
        self.abort_steps = abort_steps
        self.queue = BatchQueue(scheduler, size)
        self.number = -1
        self._described: dict[str, Any] = {}
        self.runner = StubRunner()
        # of each plan in flight, by identity: the call that made it, and who gets a token
        self._made: dict[int, tuple[int, list[str]]] = {}

    def calls(self) -> Iterator[dict[str, Any]]:
        """Yield every call until no request is left or to come."""
        to_come = sorted(self.requests, key=lambda request: request.arrival_time)
        while to_come or self.queue.has_work:
            self.number += 1
            self._described = {"step": self.number}
            while to_come and to_come[0].arrival_time <= self.number:
                self.scheduler.add_request(to_come.pop(0))
            self._abort()
            with silenced("minivllm.scheduling.preemption"):
                if self.queue.has_work:
                    self._update(self.queue.advance(self._execute))
                else:
                    self._described["idle"] = True
            yield self._described

    def _abort(self) -> None:
        due = [name for name, step in self.abort_steps.items() if step == self.number]
        if aborted := [name for name in due if name in self.scheduler.requests]:
            self.scheduler.finish_requests(aborted, RequestStatus.FINISHED_ABORTED)
            self._described["aborted"] = aborted

    def _execute(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Describe a plan, and compute it at once."""
        scheduler = self.scheduler
        self._described |= {
            "scheduled": self.describe(plan),
            "total": plan.total_num_scheduled_tokens,
            "preempted": plan.preempted_req_ids,
            "running": [seq.seq_id for seq in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "free_blocks": scheduler.kv_manager.block_pool.num_free_blocks,
            **self.encoder.after_schedule(plan),
        }
        future: Future[ModelRunnerOutput] = Future()
        output = self.runner.execute(plan)
        self._made[id(plan)] = self.number, list(output.sampled_token_ids)
        future.set_result(output)
        return future

    def _update(self, oldest: tuple[SchedulerOutput, ModelRunnerOutput] | None) -> None:
        if oldest is None:
            return
        plan, output = oldest
        scheduler = self.scheduler
        number, computed = self._made.pop(id(plan))
        sampled = {name: ids[0] for name, ids in output.sampled_token_ids.items()}
        told = len(scheduler.next_output.finished_req_ids)
        scheduler.update_from_output(plan, output)
        finished = scheduler.next_output.finished_req_ids[told:]
        self._described |= {
            "updated": number,
            "sampled": sampled,
            "discarded": [name for name in computed if name not in sampled],
            "finished": [r.request_id for r in self.requests if r.request_id in finished],
            "free_blocks_after": scheduler.kv_manager.block_pool.num_free_blocks,
            **self.encoder.after_update(),
        }
