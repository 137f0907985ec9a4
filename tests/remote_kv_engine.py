"""An engine without a model, whose requests get K and V from elsewhere, or send theirs."""

from concurrent.futures import Future

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.kv_transfer.base import KVConnectorOutput
from minivllm.lab.sim.loop import fake_tokens
from minivllm.lab.sim.make import make_request
from minivllm.lab.sim.replay_kv import ScriptedConnector
from minivllm.lab.sim.stub_runner import StubRunner
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.livelock import check_progress
from minivllm.scheduling.remote_kvs import connect
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace


class FailingConnector(ScriptedConnector):
    """A connector that does not bring what it has promised for some requests."""

    def __init__(self, failing=(), beside=True):
        super().__init__()
        self.failing = set(failing)
        self.beside = beside

    def get_num_new_matched_tokens(self, seq, num_computed_tokens):
        count, _ = super().get_num_new_matched_tokens(seq, num_computed_tokens)
        return count, self.beside

    def update_state_after_alloc(self, seq, block_ids, num_external_tokens):
        super().update_state_after_alloc(seq, block_ids, num_external_tokens)
        if not self.beside:
            self._receiving.clear()

    def transfers_ended(self):
        ended = super().transfers_ended()
        failed = ended.finished_recving & self.failing
        return KVConnectorOutput(
            ended.finished_sending,
            ended.finished_recving - failed,
            dict.fromkeys(failed, "it was cut off"),
        )


class Engine:
    """A scheduler with a connector, and a runner without a model."""

    def __init__(self, connector=None, recomputes=True, num_blocks=40, caching=True, **limits):
        self.trace = Trace(num_blocks, 4, 64)
        manager = KVCacheManager(num_blocks, 4, caching, num_host_blocks=20, trace=self.trace)
        config = SchedulerConfig(
            **{"max_num_seqs": 6, "max_model_len": 64, "max_num_batched_tokens": 64} | limits
        )
        self.scheduler = Scheduler(config, manager, self.trace)
        self.connector = connector or ScriptedConnector()
        connect(self.scheduler, self.connector, recomputes)
        self.remote = self.scheduler.remote_kvs
        self.queue = BatchQueue(self.scheduler, 1)
        self.runner = StubRunner()
        self.plans = []

    def step(self):
        """One call; returns the sequences that have an output."""
        self.connector.call += 1
        found = self.queue.advance(self._execute)
        updated = [] if found is None else self.scheduler.update_from_output(*found)
        self.scheduler.check_integrity()
        state = self.trace.state_at(self.trace.step)
        assert state.waiting == [request.request_id for request in self.scheduler.waiting]
        assert state.num_free_blocks == self.scheduler.kv_manager.block_pool.num_free_blocks
        return updated

    def _execute(self, plan):
        check_progress(self.scheduler, plan, more_to_come=True)
        self.plans.append(dict(plan.num_scheduled_tokens))
        output = self.runner.execute(plan)
        output.kv_connector_output = self.connector.transfers_ended()
        future = Future()
        future.set_result(output)
        return future

    def run(self, limit=400):
        while self.queue.has_work:
            self.step()
            limit -= 1
            assert limit, "it goes on for ever"
        pool = self.scheduler.kv_manager.block_pool
        assert pool.num_free_blocks == pool.num_usable_blocks

    def tokens_of(self, name):
        """Tokens of a request that all steps have computed."""
        return sum(plan.get(name, 0) for plan in self.plans)


def fetching(name, num_tokens=12, max_tokens=3, delay=3, first=5, **kwargs):
    params = {"do_remote_prefill": True, "delay": delay}
    prompt = list(range(first, first + num_tokens))
    return make_request(name, prompt, max_tokens, kv_transfer_params=params, **kwargs)


def sending(name, num_tokens=12, delay=3, **kwargs):
    params = {"do_remote_decode": True, "delay": delay}
    return make_request(name, [7] * num_tokens, 1, kv_transfer_params=params, **kwargs)


def is_right(seq):
    """True if each token is what the made-up model says behind those before it."""
    known = seq.token_ids[: seq.num_prompt_tokens]
    return seq.output_token_ids == fake_tokens(known, seq.num_output_tokens)
