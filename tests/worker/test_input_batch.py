"""Tests of the runner's copy of block tables: a list of blocks for each KV cache group."""

from helpers import sequence

from minivllm.config import SchedulerConfig
from minivllm.kv.block_table import KVCacheBlockCopy
from minivllm.kv.manager import KVCacheManager
from minivllm.scheduling.output import BeamMove, NewRequestData, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.worker.input_batch import InputBatch


def new(name):
    """Data of a sequence of six tokens."""
    return NewRequestData.from_sequence(sequence(name, 6))


def batch_of(**tables):
    """Batch of sequences with these block ids, a list a group."""
    batch = InputBatch()
    plan = SchedulerOutput(new_block_ids=tables, scheduled_new_reqs=[new(name) for name in tables])
    batch.update(plan)
    return batch


def test_each_group_has_a_table_of_its_own():
    batch = batch_of(a=([1, 2], [3]))
    batch.update(SchedulerOutput(new_block_ids={"a": ([], [4])}))
    batch.update(SchedulerOutput(new_block_ids={"a": ([5], [6, 7])}))
    assert batch.states["a"].block_ids == ([1, 2, 5], [3, 4, 6, 7])


def test_the_plan_keeps_its_lists():
    plan = SchedulerOutput(new_block_ids={"a": ([1], [2])}, scheduled_new_reqs=[new("a")])
    batch = InputBatch()
    batch.update(plan)
    batch.update(SchedulerOutput(new_block_ids={"a": ([3], [4])}))
    assert plan.new_block_ids == {"a": ([1], [2])}


def test_a_copy_takes_the_last_place_in_the_table_of_its_group():
    batch = batch_of(a=([1, 2], [3]))
    copy = KVCacheBlockCopy("a", 3, 9, group=1)
    batch.update(SchedulerOutput(kv_cache_block_copies=[copy], new_block_ids={"a": ([4], [])}))
    assert batch.states["a"].block_ids == ([1, 2, 4], [9])


def test_a_resumed_sequence_gets_whole_tables():
    batch = batch_of(a=([1, 2], [3]))
    batch.update(SchedulerOutput(preempted_req_ids=["a"]))
    batch.update(SchedulerOutput(resumed_req_ids=["a"], new_block_ids={"a": ([4], [5, 6])}))
    assert batch.states["a"].block_ids == ([4], [5, 6])


def test_forks_and_beams_share_no_list():
    batch = batch_of(a=([1], [2]))
    batch.fork({"a": ["a/1"]})
    batch.update(SchedulerOutput(beam_moves=[BeamMove("a/2", "a", 5)]))
    batch.update(SchedulerOutput(new_block_ids={"a": ([3], [4])}))
    assert batch.states["a"].block_ids == ([1, 3], [2, 4])
    assert batch.states["a/1"].block_ids == batch.states["a/2"].block_ids == ([1], [2])


def test_a_manager_says_which_lists_the_plan_has():
    """Those of ``allocate_slots`` and of a whole table alike; a manager returns what it likes."""

    class TwoGroups(KVCacheManager):
        def ids_by_group(self, block_ids):
            return block_ids, [-block_id for block_id in block_ids]

    scheduler = Scheduler(SchedulerConfig(max_model_len=64), TwoGroups(20, 4))
    scheduler.add_request(sequence("a", 6).request)
    plan = scheduler.schedule()
    assert plan.new_block_ids == {"a": ([1, 2], [-1, -2])}
