"""X-ray of a vLLM with KV cache groups: what is recorded, what is refused, and how it is read."""

import asyncio
import gzip
import json
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest

from minivllm.trace.groups import TableGroup
from minivllm.trace.records import BlocksCached, BlocksSkipped
from minivllm.viz import block_table, timeline
from minivllm.xray import load_xray, report, verify, what_if
from minivllm.xray.checker import Checker, what_vllm_has
from minivllm.xray.file_run import AttachedRun
from minivllm.xray.recorder import Recorder
from minivllm.xray.vllm_version import check_needs, header_of
from minivllm.xray.watch import watch_manager, watch_pool

ROOT = Path(__file__).parents[2]
GROUPS = ROOT / "tests/data/xray/groups.jsonl.gz"
RETAINED = ROOT / "tests/data/xray/decisions/retained.jsonl.gz"
LINES = gzip.decompress(GROUPS.read_bytes()).decode().splitlines(keepends=True)
HEADER = json.loads(LINES[0])
KINDS = (TableGroup(32, 64), TableGroup(32, 64), TableGroup(32))  # of a random Gemma 3


def written(path, change=None, lines=LINES):
    """The recorded run in a file, with another header."""
    header = deepcopy(HEADER)
    if change is not None:
        change(header)
    path.write_text(json.dumps(header) + "\n" + "".join(lines[1:]))
    return path


# -- a recorded run --------------------------------------------------------------------------------


def test_a_run_of_vllm_with_groups_is_decided_so_here_too():
    for path, interval in ((GROUPS, 0), (RETAINED, 64)):
        xray = load_xray(path)
        assert xray.trace.groups == KINDS
        assert xray.header["settings"]["prefix_cache_retention_interval"] == interval
        assert any(xray.trace.of(BlocksSkipped))
        found = verify(xray)
        assert found, str(found)


def test_another_window_or_retention_decides_otherwise(tmp_path):
    def narrower(header):
        for group in header["groups"][:2]:
            group["sliding_window"] = 60

    def dense(header):
        header["settings"]["prefix_cache_retention_interval"] = None

    found = verify(load_xray(written(tmp_path / "x.jsonl", narrower)))
    assert found.difference.kind == "BlocksSkipped"
    found = verify(load_xray(written(tmp_path / "x.jsonl", dense)))
    assert found.difference.kind == "BlocksCached"
    assert "window 64 w1 [" in str(found)
    assert "full [" in str(found)
    assert "svg" in found._repr_html_()


def test_a_window_keeps_some_of_the_blocks_that_full_attention_keeps():
    trace = load_xray(GROUPS).trace
    kept = [sum(len(r.block_ids) for r in trace.of(BlocksCached) if r.group == g) for g in range(3)]
    assert 0 < kept[0] == kept[1] < kept[2]


def test_the_report_says_what_a_window_keeps_and_what_requests_waited_for():
    text = str(report(load_xray(GROUPS)))
    assert "(windows keep only the ends of prompts: prefix_cache_retention_interval=0)" in text
    waited = report(load_xray(GROUPS)).steps_waited
    assert waited["blocks"] > 0
    assert "unknown" not in waited
    assert "windows keep" not in str(report(load_xray(RETAINED)))
    assert "windows keep" not in str(report(load_xray(ROOT / "tests/data/xray/tight.jsonl.gz")))


def test_what_if_goes_on_with_the_groups():
    found = what_if(load_xray(GROUPS), {"num_blocks": "x2"})
    same, more = found.cases[1:]
    assert same.num_preemptions >= more.num_preemptions == 0


def test_figures_of_a_recorded_run_have_its_groups():
    trace = load_xray(GROUPS).trace
    assert "window 64" in timeline(trace).text
    assert "window 64 w2" in block_table(trace, trace.num_steps // 2).text


def test_a_run_that_is_attached_has_its_groups(tmp_path):
    run = AttachedRun(written(tmp_path / "x.jsonl"))
    (state,) = run.following.read(LINES[0])[:1]
    assert state.groups == KINDS
    assert run.kv_cache_config.groups == ()  # the page takes them from the state
    run.close()


@pytest.mark.parametrize(
    ("path", "note"),
    [(GROUPS, "windows keep only the ends of prompts"), (RETAINED, "")],
    ids=["nothing retained", "an interval"],
)
def test_the_page_behind_glass_says_what_a_window_keeps(tmp_path, path, note):
    pytest.importorskip("httpx")
    from minivllm.xray.file_run import make_app

    plain = tmp_path / "run.jsonl"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    last = load_xray(path).trace.num_steps - 1

    async def main():
        run = AttachedRun(plain)
        app = make_app(run)
        pictures = app.state.glass.watch()
        content = {}
        while content.get("frame", {}).get("step") != last:
            event = await asyncio.wait_for(anext(pictures), 30)
            content = json.loads(event.removeprefix(b"data: "))
        app.state.glass.close()
        run.close()
        return content

    content = asyncio.run(main())
    names = ["window 64 w1", "window 64 w2", "full"]
    assert [group["name"] for group in content["run"]["groups"]] == names
    assert content["numbers"]["note"] == note
    assert "window 64" in [name for name, *_ in content["timeline"]["lanes"]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda h: h.update(groups={}), "groups must be a list of at most 1000"),
        (lambda h: h.update(groups=[7]), r"groups\[0\] must be an object"),
        (lambda h: h["groups"][0].update(kind="mamba"), "kind must be 'full' or 'sliding'"),
        (lambda h: h["groups"][1].update(block_size=0), r"groups\[1\].block_size must be"),
        (lambda h: h["groups"][0].pop("sliding_window"), r"sliding_window must be an integer"),
        (lambda h: h["groups"][2].update(sliding_window=4), "sliding_window must be not there"),
        (lambda h: h["settings"].update(max_concurrent_batches=0), "max_concurrent_batches must"),
        (
            lambda h: h["settings"].update(prefix_cache_retention_interval="all"),
            "prefix_cache_retention_interval must be",
        ),
    ],
)
def test_groups_with_nonsense_are_one_sentence(tmp_path, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_xray(written(tmp_path / "x.jsonl", change))


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (["BlocksSkipped", "0", [2]], "a window leaves the first blocks of its table behind"),
        (["BlocksSkipped", "0", []], "a window leaves the first blocks of its table behind"),
        (["BlocksSkipped", "0", [1], 1], "a window leaves the first blocks of its table behind"),
        (["BlocksSkipped", "9", [1]], "request '9' is not there"),
        (["BlocksSkipped", "0", [0]], "blocks are numbered 1 to 53"),
        (["BlocksShared", "0", [1, 0]], "blocks are numbered 1 to 53"),
        (["BlocksAllocated", "0", [4], 3], "there are 3 KV cache groups"),
    ],
)
def test_a_record_that_cannot_be_is_one_sentence(tmp_path, row, sentence):
    rows = [["StepStarted", 6.0], ["BlocksAllocated", "0", [1, 2]], row]
    lines = [LINES[0], LINES[1], json.dumps({"step": 0, "records": rows}) + "\n"]
    with pytest.raises(ValueError, match=sentence):
        report(load_xray(written(tmp_path / "x.jsonl", lines=lines)))


# -- the tracer, with vLLM's objects made up -------------------------------------------------------


class Manager:
    """A manager of vLLM's: what the hooks ask of it."""

    block_size = 4

    def __init__(self, pool):
        self.block_pool = pool
        self.req_to_blocks = {}

    def allocate_new_blocks(self, request_id, num_tokens):
        return []

    def add_local_computed_blocks(self, request_id, new_computed_blocks):
        self.req_to_blocks[request_id] = list(new_computed_blocks)

    def free(self, request_id):
        self.req_to_blocks.pop(request_id, None)


class FullAttentionManager(Manager):
    pass


class SlidingWindowManager(Manager):
    sliding_window = 5
    extra_retained_tokens = 0

    def get_num_skipped_tokens(self, num_computed_tokens):
        return max(0, num_computed_tokens - self.sliding_window + 1)

    def remove_skipped_blocks(self, request_id, processed_computed_tokens, num_prompt_tokens=None):
        blocks = self.req_to_blocks.get(request_id, [])
        num_skipped = self.get_num_skipped_tokens(processed_computed_tokens) // self.block_size
        for i in range(min(num_skipped, len(blocks))):
            blocks[i] = block(0)


class MambaManager(Manager):
    pass


class Pool:
    def cache_full_blocks(
        self, request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id
    ):
        for one in blocks[num_cached_blocks:num_full_blocks]:
            one.block_hash = None if one.is_null or one.block_id % 2 else b"%08d" % one.block_id

    def get_num_free_blocks(self):
        return 7


def block(block_id):
    return SimpleNamespace(block_id=block_id, is_null=block_id == 0, block_hash=None)


class Theirs:
    """vLLM's scheduler, of which the hooks use these methods."""

    def add_request(self, request):
        pass

    def schedule(self):
        pass

    def update_from_output(self, scheduler_output, model_runner_output):
        pass

    def reset_prefix_cache(self):
        pass

    def shutdown(self):
        pass

    def _preempt_request(self, request):
        pass

    def _handle_blocked_waiting_request(self, request):
        pass

    def _free_request(self, request):
        pass

    def _update_request_with_output(self, request, new_token_ids, is_stale):
        pass


def scheduler_with(*managers, hash_block_size=4):
    coordinator = SimpleNamespace(single_type_managers=managers, retention_interval=0)
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(
            policy="fcfs", enable_chunked_prefill=True, long_prefill_token_threshold=0,
            async_scheduling=False, scheduler_reserve_full_isl=True,
            long_prefill_token_threshold_adaptive=False,
        ),
        model_config=SimpleNamespace(model="m", max_model_len=64),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        parallel_config=SimpleNamespace(data_parallel_index=0, data_parallel_size=1),
        num_speculative_tokens=0,
        max_concurrent_batches=2,
    )  # fmt: skip
    return SimpleNamespace(
        requests={}, running=[], waiting=[], max_num_scheduled_tokens=16, max_num_active_reqs=2,
        kv_cache_config=SimpleNamespace(num_blocks=9), pause_state=0, lora_config=None,
        connector=None, hash_block_size=hash_block_size, block_size=4, num_lookahead_tokens=0,
        kv_cache_manager=SimpleNamespace(coordinator=coordinator, watermark_blocks=0),
        vllm_config=config,
    )  # fmt: skip


def test_groups_of_both_kinds_are_followed_and_others_are_named():
    pool = Pool()
    window, full = SlidingWindowManager(pool), FullAttentionManager(pool)
    check_needs(scheduler_with(window, full), Theirs, "0.32.0")
    header = header_of(scheduler_with(window, full), "0.32.0", text=True)
    assert header["groups"] == [
        {"kind": "sliding", "block_size": 4, "sliding_window": 5},
        {"kind": "full", "block_size": 4},
    ]
    assert header["settings"]["prefix_cache_retention_interval"] == 0
    assert header["settings"]["max_concurrent_batches"] == 2
    alone = header_of(scheduler_with(full), "0.32.0", text=True)
    assert "groups" not in alone
    assert "prefix_cache_retention_interval" not in alone["settings"]
    with pytest.raises(RuntimeError, match=r"group 1 of vLLM's 2 has a MambaManager\."):
        check_needs(scheduler_with(full, MambaManager(pool)), Theirs, "0.32.0")
    with pytest.raises(RuntimeError, match="group 0 of vLLM's 1 has blocks of 4, and hashes of 2"):
        check_needs(scheduler_with(full, hash_block_size=2), Theirs, "0.32.0")
    window.extra_retained_tokens = 3
    with pytest.raises(RuntimeError, match="has 3 tokens kept behind its window"):
        check_needs(scheduler_with(window), Theirs, "0.32.0")


def test_what_a_window_leaves_behind_is_recorded_once_and_with_its_group():
    pool = Pool()
    managers = FullAttentionManager(pool), SlidingWindowManager(pool)
    header = header_of(scheduler_with(*managers), "0.32.0", text=True)
    recorder = Recorder(header, keep=True)
    for group, manager in enumerate(managers):
        watch_manager(manager, recorder, group)
    watch_pool(pool, recorder)
    full, window = managers
    full.add_local_computed_blocks("a", [block(i) for i in (1, 2, 3, 4)])
    blocks = [block(i) for i in (5, 6, 7, 8)]
    window.add_local_computed_blocks("a", blocks)
    for processed in (4, 9, 9, 13):  # nothing; one block; nothing new; one more
        window.remove_skipped_blocks("a", processed)
    window.remove_skipped_blocks("b", 99)  # which has no table
    request = SimpleNamespace(request_id="a")
    pool.cache_full_blocks(request, blocks, 0, 4, 4, kv_cache_group_id=1)
    full.free("a")
    window.free("a")
    assert recorder.rows == [
        ("BlocksShared", "a", [1, 2, 3, 4]),
        ("BlocksShared", "a", [5, 6, 7, 8], 1),
        ("BlocksSkipped", "a", [5], 1),
        ("BlocksSkipped", "a", [6], 1),
        ("BlocksCached", "a", [6, 8], [(b"%08d" % i).hex() for i in (6, 8)], 1),
        ("BlocksFreed", "a", [1, 2, 3, 4]),
        ("BlocksFreed", "a", [7, 8], 1),
    ]


def test_the_checker_compares_the_tables_of_all_groups(caplog):
    header = deepcopy(HEADER)
    tables = {("a", 0): [1], ("a", 1): [2], ("a", 2): [3]}
    theirs = {"block tables": dict(tables)}
    checker = Checker(header, lambda: theirs)
    rows = [("RequestAdded", "a", [5], 0, 0.0, None)]
    checker.check((-1, rows, {"a": {}}))
    steps = [("StepStarted", 0.0), *(("BlocksAllocated", "a", [1 + g], g) for g in range(3))]
    steps += [("Scheduled", "a", "new", 0, 1, True), ("StepPlanned", 0.1), ("StepEnded", 0.2)]
    checker.check((0, steps, {}))
    assert checker.mismatches == []
    theirs["block tables"]["a", 1] = [9]
    checker.check((1, [("StepStarted", 0.3), ("StepPlanned", 0.4), ("StepEnded", 0.5)], {}))
    assert checker.mismatches == ["block tables"]


def test_what_vllm_has_is_read_from_all_managers():
    pool = Pool()
    pool.blocks = [block(i) for i in range(3)]
    pool.free_block_queue = SimpleNamespace(get_all_free_blocks=list)
    managers = FullAttentionManager(pool), SlidingWindowManager(pool)
    managers[0].req_to_blocks = {"a": [block(1)], "b": []}
    managers[1].req_to_blocks = {"a": [block(0), block(2)]}
    found = what_vllm_has(scheduler_with(*managers))
    assert found["block tables"] == {("a", 0): [1], ("a", 1): [0, 2]}
