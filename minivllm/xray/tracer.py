"""TracingScheduler: vLLM's own scheduler, which also records what it decides.

``LLM(..., scheduler_cls="minivllm.xray.TracingScheduler")``, or ``vllm serve ...
--scheduler-cls minivllm.xray.TracingScheduler``. Each hook lets vLLM decide first, and then appends
rows of what has changed; it costs only for sequences that are scheduled and blocks that are new.
"""

from __future__ import annotations

import multiprocessing
import time

from vllm import __version__
from vllm.v1.core.kv_cache_utils import get_group_id
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler

from minivllm import envs
from minivllm.logger import init_logger
from minivllm.xray.checker import Checker, what_vllm_has
from minivllm.xray.live import LiveTrace
from minivllm.xray.recorder import Recorder
from minivllm.xray.vllm_version import asked_by, check_needs, header_of, why_skipped
from minivllm.xray.watch import group_of, watch_manager, watch_pool

logger = init_logger(__name__)

_traces: list[LiveTrace] = []


def traces() -> list[LiveTrace]:
    """The traces of all schedulers of vLLM in this process, the oldest first."""
    return list(_traces)


class TracingScheduler(Scheduler):
    """vLLM's scheduler, recording what it decides.

    Raises:
        RuntimeError: when it is made, if this vLLM lacks what the hooks need.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        check_needs(self, Scheduler, __version__)
        in_main_process = multiprocessing.parent_process() is None
        self.header = header_of(self, __version__, envs.xray_text())
        self.header["settings"]["async_scheduling"] = isinstance(self, AsyncScheduler)
        checker = None
        if envs.xray_check():
            checker = Checker(self.header, lambda: what_vllm_has(self))
        self.recorder = Recorder(self.header, in_main_process, checker)
        if self.recorder.trace is not None:
            _traces.append(self.recorder.trace)
        elif not envs.xray_path():
            logger.warning("nothing can read the X-ray of this process: set MINIVLLM_XRAY=FILE.")
        managers = self.kv_cache_manager.coordinator.single_type_managers
        for group, manager in enumerate(managers):
            watch_manager(manager, self.recorder, group)
        watch_pool(managers[0].block_pool, self.recorder)
        self._steps: dict[int, int] = {}  # of plans in flight, by identity: the step that made it

    def add_request(self, request) -> None:
        super().add_request(request)
        with (recorder := self.recorder):
            name = request.request_id
            lora = request.lora_request
            text = self.header["text"]
            started = self.header["started"]
            drift = time.time() - started - recorder.now()
            recorder.requests[name] = asked_by(request, started, text, drift=drift)
            prompt = request.prompt_token_ids or [0] * request.num_prompt_tokens
            lora_name = None if lora is None else lora.lora_name
            index = self._queue_index(request)
            recorder.rows.append(("RequestAdded", name, prompt, index, recorder.now(), lora_name))

    def schedule(self, *args, **kwargs):
        with self.recorder:
            self.recorder.start_step()
        output = super().schedule(*args, **kwargs)
        with self.recorder:
            self._record_plan(output)
        return output

    def update_from_output(self, scheduler_output, model_runner_output):
        with self.recorder:
            self._before_update(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        with self.recorder:
            self.recorder.end_step()
        return outputs

    def reset_prefix_cache(self, *args, **kwargs) -> bool:
        blocks = self.kv_cache_manager.block_pool.blocks
        cached = [(block, block.block_hash) for block in blocks if block.block_hash is not None]
        done = super().reset_prefix_cache(*args, **kwargs)
        with self.recorder:
            self.recorder.rows += [
                ("BlockForgotten", block.block_id, *group_of(get_group_id(block_hash)))
                for block, block_hash in cached
                if block.block_hash is None
            ]
        return done

    def shutdown(self) -> None:
        super().shutdown()
        with self.recorder:
            self.recorder.close()

    # -- inside of vLLM's step -------------------------------------------------------------------

    def _preempt_request(self, request, *args, **kwargs) -> None:
        super()._preempt_request(request, *args, **kwargs)
        with self.recorder:
            row = ("Preempted", request.request_id, self._queue_index(request))
            self.recorder.rows.append(row)

    def _handle_blocked_waiting_request(self, request, *args, **kwargs) -> bool:
        ready = super()._handle_blocked_waiting_request(request, *args, **kwargs)
        if not ready:
            with self.recorder:
                self.recorder.rows.append(why_skipped(request))
        return ready

    def _free_request(self, request, *args, **kwargs):
        parameters = super()._free_request(request, *args, **kwargs)
        with self.recorder:
            row = ("Finished", request.request_id, str(request.get_finished_reason()))
            self.recorder.rows.append(row)
        return parameters

    def _update_request_with_output(self, request, new_token_ids, is_stale=False):
        rows = self.recorder.rows
        place = len(rows)
        updated = super()._update_request_with_output(request, new_token_ids, is_stale)
        # A block that is cached with a token comes behind it. What goes beyond a stop is cut off.
        tokens = updated[0]
        name = request.request_id
        if len(tokens) == 1:  # in nearly all steps, so without a list
            rows.insert(place, ("Sampled", name, tokens[0]))
        else:
            rows[place:place] = [("Sampled", name, token_id) for token_id in tokens]
        return updated

    # -- what the hooks say ----------------------------------------------------------------------

    def _record_plan(self, output) -> None:
        recorder = self.recorder
        rows = self.recorder.rows
        scheduled = output.num_scheduled_tokens
        if self.waiting:
            rows += self._skipped_in_plan(output.total_num_scheduled_tokens)
        if not scheduled and all(row[0] == "RequestSkipped" for row in rows[1:]):
            recorder.cancel_step()  # vLLM also asks for a plan to say what has finished
            return
        kinds = dict.fromkeys(output.scheduled_cached_reqs.resumed_req_ids, "resumed")
        for new in output.scheduled_new_reqs:  # the second model runner gets resumed ones here, too
            preempted = self.requests[new.req_id].num_preemptions
            kinds[new.req_id] = "resumed" if preempted else "new"
        requests = self.requests
        kind_of = kinds.get
        rows += [  # a plan's tokens count as computed now
            (
                "Scheduled", name, kind_of(name, "running"),
                (request := requests[name]).num_computed_tokens - num_tokens, num_tokens,
                not request.is_prefill_chunk,
            )
            for name, num_tokens in scheduled.items()
        ]  # fmt: skip
        recorder.plan_step()
        self._steps[id(output)] = recorder.step

    def _before_update(self, scheduler_output, model_runner_output) -> None:
        recorder, requests = self.recorder, self.requests
        plan = self._steps.pop(id(scheduler_output), None)  # None: it was empty, and made no step
        if plan is not None and not recorder.is_open:
            recorder.start_step()  # asynchronous: the last plans come back without a new one
            recorder.plan_step()
        recorder.ending = plan
        if plan is None:
            return
        places, drawn = model_runner_output.req_id_to_index, model_runner_output.sampled_token_ids
        if plan != recorder.step:
            for name in scheduler_output.num_scheduled_tokens:
                is_over = name not in requests or requests[name].is_finished()
                if is_over and drawn and (tokens := drawn[places[name]]):
                    recorder.rows.append(("TokensWasted", name, plan, len(tokens)))
        for name, drafts in scheduler_output.scheduled_spec_decode_tokens.items():
            request = requests.get(name)
            if request is None or request.is_finished() or request.num_stale_output_tokens:
                continue
            if tokens := drawn[places[name]]:
                recorder.rows.append(("Verified", name, list(drafts), len(tokens) - 1))

    def _skipped_in_plan(self, num_tokens: int) -> list[tuple]:
        """Rows of requests that vLLM steps over for a pause, an adapter or tokens on their way.

        Of those before the first that meets a limit: behind it none is looked at.
        """
        if self.pause_state:
            head = next(iter(self.waiting))
            return [("RequestSkipped", head.request_id, "paused")]
        is_full = len(self.running) >= self.max_num_active_reqs
        if is_full or num_tokens >= self.max_num_scheduled_tokens:
            return []
        if any(row[0] == "Preempted" for row in self.recorder.rows):
            return []
        rows = []
        told = {row[1] for row in self.recorder.rows if row[0] == "RequestSkipped"}
        adapters = {r.lora_request.lora_int_id for r in self.running if r.lora_request}
        most = self.lora_config.max_loras if self.lora_config else 0
        for request in self.waiting:
            lora = request.lora_request
            if request.request_id in told:
                continue
            if request.num_stale_output_tokens and not request.drop_stale_output:
                rows.append(("RequestSkipped", request.request_id, "in_flight"))
            elif lora and lora.lora_int_id not in adapters and len(adapters) >= most:
                rows.append(("RequestSkipped", request.request_id, "adapter"))
            else:
                break
        return rows

    def _queue_index(self, request) -> int:
        """Return how many requests wait before this one, which waits."""
        if type(self.waiting) is FCFSRequestQueue:
            return 0 if self.waiting[0] is request else len(self.waiting) - 1
        return sum(waiting < request for waiting in self.waiting._heap)


class AsyncTracingScheduler(TracingScheduler, AsyncScheduler):
    """The same for asynchronous scheduling: a step makes a plan, and ends an earlier one's."""
