"""Run: a workload, sent to replicas in simulated time, and what is measured."""

from __future__ import annotations

import functools
import operator
from array import array
from collections.abc import Sequence as AnySequence

from minivllm.lab.sim.loop import Arrivals, LimitedArrivals
from minivllm.lab.sim.make import make_entry
from minivllm.lab.sim.replica import Replica
from minivllm.lab.sim.result import RequestTimes, SimulationResult
from minivllm.lab.sim.workloads import SimRequest, check_entry
from minivllm.request import Request, Sequence
from minivllm.scheduling.load_balancer import LoadBalancer
from minivllm.scheduling.stats import make_stats


class Run:
    """One simulation: a workload, replicas, and what is measured.

    Args:
        workload: what is asked.
        replicas: without requests; each has a clock of its own.
        max_concurrency: the most requests that the client has under way; None: any number.
    """

    def __init__(
        self,
        workload: AnySequence[SimRequest],
        replicas: AnySequence[Replica],
        max_concurrency: int | None = None,
    ):
        self.workload = workload
        self.replicas = replicas
        self.balancer = LoadBalancer(len(replicas))
        self.requests: dict[str, Request] = {}  # by the ids of their sequences
        self.under_way: set[str] = set()
        self.last_token_times: dict[str, float] = {}  # by the ids of sequences
        self.inter_token_times = array("d")
        self.arrivals = Arrivals()
        if max_concurrency is not None:
            self.arrivals = LimitedArrivals(self.under_way, max_concurrency)
        self.now = 0.0  # the end of the last step
        self.followers: dict[str, list[int]] = {}  # by request id: who comes after its end
        for index, entry in enumerate(workload):
            check_entry(entry, index)
            if entry.after is None:
                self._let_come(index, entry.arrival_time)
            else:
                self.followers.setdefault(str(entry.after), []).append(index)

    def until_all_is_done(self) -> None:
        """Let the replica whose time is first make a step, until no request is left or to come."""
        several = len(self.replicas) > 1
        while (replica := self._next()) is not None:
            if several:
                self._hear(replica.now)
            updated = replica.step(self._next_arrival())
            self.now = replica.now
            self._note_tokens(updated, replica.told)
            for seq_id in replica.scheduler.next_output.finished_req_ids:
                self._finish(self.requests[seq_id], replica)

    def _next_arrival(self) -> float | None:
        """The time of the next request; None if no other will be sent.

        A full client sends none before one ends, and where nothing runs none does.
        """
        if not self.arrivals:
            return None
        may_come = self.arrivals.has_room or any(replica.is_busy for replica in self.replicas)
        return self.arrivals.next_time if may_come else None

    def _let_come(self, index: int, arrival_time: float) -> None:
        request = make_entry(self.workload[index], str(index), arrival_time)
        self.arrivals.push(request, index)
        self.requests |= dict.fromkeys(request.seq_ids, request)

    def _next(self) -> Replica | None:
        """The replica that has work and the earliest time, after all have come until then."""
        now = self.now
        while True:
            replica = None
            for one in self.replicas:
                if one.has_work and (replica is None or one.now < replica.now):
                    replica = one
            if replica is None and not self.arrivals:
                return None
            now = max(now, self.arrivals.next_time) if replica is None else replica.now
            if self._send_until(now):
                continue  # it may have woken a replica whose time is earlier
            if replica is not None:
                return replica
            # the client holds all back until a request ends
            now = min(told for one in self.replicas for told in one.ended.values())

    def _send_until(self, now: float) -> int:
        """Send requests whose time has come. Returns how many.

        Where there is a choice, only those of the first moment: before the next one, a replica that
        they have woken may make a step.
        """
        if len(self.replicas) == 1:
            return self._send_at(now)
        if not self.arrivals or self.arrivals.next_time > now:
            return 0
        return self._send_at(self.arrivals.next_time) or self._send_at(now)

    def _send_at(self, moment: float) -> int:
        """Send those that come at a moment, each to the replica with the least load known then."""
        self._hear(moment)
        num_sent = 0
        for request in self.arrivals.pop_until(moment):
            self.under_way.add(request.request_id)
            self.replicas[self.balancer.choose(request.request_id)].send(request)
            num_sent += 1
        return num_sent

    def _hear(self, moment: float) -> None:
        """Hear what has ended, and of replicas that are between two steps what load they have."""
        for index, replica in enumerate(self.replicas):
            if heard := [name for name, told in replica.ended.items() if told <= moment]:
                self.under_way.difference_update(heard)
                self.balancer.finish(heard)
                for name in heard:
                    del replica.ended[name]
            if replica.now <= moment and len(self.replicas) > 1:
                self.balancer.update(index, make_stats(replica.scheduler))

    def _note_tokens(self, updated: list[Sequence], now: float) -> None:
        """Record the time of a new token of each of these sequences."""
        last_token_times = self.last_token_times
        gaps = self.inter_token_times
        for seq in updated:
            seq_id = seq.seq_id
            before = last_token_times.get(seq_id)
            if before is not None:
                gaps.append(now - before)
            elif seq.request.metrics.first_token_time is None:
                seq.request.metrics.first_token_time = now
            last_token_times[seq_id] = now

    def _finish(self, request: Request, replica: Replica) -> None:
        """Record that a sequence finished; after a request's last one, let its followers arrive."""
        request.metrics.last_token_time = replica.told
        if request.request_id in replica.scheduler.requests:
            return
        replica.ended[request.request_id] = replica.told
        for seq_id in request.seq_ids:
            self.last_token_times.pop(seq_id, None)
        for follower in self.followers.pop(request.request_id, ()):
            pause = self.workload[follower].arrival_time
            self._let_come(follower, replica.told + pause)

    def result(self, wall_seconds: float) -> SimulationResult:
        """The numbers of a run that is done."""
        schedulers = [replica.scheduler for replica in self.replicas]
        memory = functools.reduce(operator.add, (replica.memory for replica in self.replicas))
        caches = [s.kv_manager.prefix_cache for s in schedulers]
        stats = [cache.stats for cache in caches if cache is not None]
        queried = sum(s.queries for s in stats)
        return SimulationResult(
            requests=tuple(_times(self.requests[str(i)]) for i in range(len(self.workload))),
            inter_token_times=self.inter_token_times,
            seconds=max(max(replica.now, replica.told) for replica in self.replicas),
            num_steps=sum(replica.num_steps for replica in self.replicas),
            num_preemptions=sum(s.num_preemptions for s in schedulers),
            num_blocks=schedulers[0].kv_manager.block_pool.num_usable_blocks,
            block_size=schedulers[0].kv_manager.block_size,
            prefix_hit_rate=sum(s.hits for s in stats) / queried if queried else 0.0,
            memory=memory.all_steps.shares,
            memory_under_load=memory.under_load.shares,
            tokens_in_held=memory.all_steps.tokens_in_held,
            saved_by_sharing=memory.saved_by_sharing,
            wall_seconds=wall_seconds,
            num_wasted_tokens=sum(replica.num_wasted_tokens for replica in self.replicas),
            traces=tuple(s.trace for s in schedulers if s.trace is not None),
        )


def _times(request: Request) -> RequestTimes:
    metrics = request.metrics
    seq = request.seqs[0]
    return RequestTimes(
        request_id=request.request_id,
        arrival_time=metrics.arrival_time,
        first_token_time=metrics.first_token_time,
        finished_time=metrics.last_token_time,
        num_prompt_tokens=seq.num_prompt_tokens,
        num_output_tokens=seq.num_output_tokens,
        num_samples=len(request.seqs),
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
    )
