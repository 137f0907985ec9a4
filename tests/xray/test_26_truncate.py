"""A bounded X-ray file: wherever it is cut, what follows is what the whole file says."""

import gzip
import json
import random
import zlib
from collections import Counter
from concurrent.futures import Future
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import settings

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import fake_execute
from minivllm.lab.sim.make import make_scheduler
from minivllm.request import Request, RequestStatus
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.trace import Trace
from minivllm.trace.records import Finished, RequestAdded, StepEnded, StepStarted
from minivllm.xray import load_xray, report
from minivllm.xray.format import header_line, read_header, row_of, step_line, without_text
from minivllm.xray.truncate import drop_oldest

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(
    [*(ROOT / "minivllm/xray/runs").glob("*.gz"), *(ROOT / "tests/data/xray").glob("*.gz")]
)
EVERY = 1 if settings.default.max_examples > 100 else 40  # all places in the nightly profile
LIMITS = {"max_num_batched_tokens": 32, "max_num_seqs": 6, "max_model_len": 128}


def lines_of(trace):
    """Lines as the recorder hands them on: a step's, or those of what came between two steps."""
    records = trace.records
    cuts = {0, len(records)}
    for place, record in enumerate(records):
        if isinstance(record, (StepStarted, StepEnded)):
            cuts.add(place + isinstance(record, StepEnded))
    for first, last in pairwise(sorted(cuts)):
        some = records[first:last]
        asked = {r.request_id: {"max_tokens": 9} for r in some if isinstance(r, RequestAdded)}
        yield step_line(some[0].step, map(row_of, some), asked)


def run_with_aborts(num_plans):
    """A run of ours with aborts, resets of the prefix cache and so many plans in flight."""
    rng = random.Random(num_plans)
    trace = Trace(20, 4, LIMITS["max_num_batched_tokens"])
    scheduler = make_scheduler(KVCacheManager(20, 4, True, trace=trace), trace, **LIMITS)

    def execute(plan):
        future = Future()
        future.set_result(fake_execute(scheduler, plan))
        return future

    queue, names = BatchQueue(scheduler, num_plans), iter(range(40))
    while queue.has_work or trace.num_steps < 60:
        for name in (next(names, None) for _ in range(rng.choice([0, 0, 1, 3]))):
            if name is not None:
                prompt = [7] * rng.choice([0, 8, 16]) + [rng.randrange(5, 99)] * rng.randint(1, 9)
                params = SamplingParams(max_tokens=rng.randint(1, 30), ignore_eos=True)
                scheduler.add_request(Request(f"{name}", prompt, params))
        if scheduler.requests and rng.random() < 0.2:
            name = rng.choice(list(scheduler.requests))
            scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        if rng.random() < 0.1:
            scheduler.kv_manager.reset_prefix_cache()
        if (oldest := queue.advance(execute)) is not None:
            scheduler.update_from_output(*oldest)
    assert sum(r.reason == "abort" for r in trace.of(Finished)) > 5
    sizes = {"num_blocks": 20, "block_size": 4}
    head = header_line(vllm_version="ours", model="none", settings=LIMITS, text=True, **sizes)
    return [head, *lines_of(trace)]


def text_left_out(lines):
    """The same lines as a tracer writes them that keeps no token ids."""
    head, *steps = lines
    yield head.replace('"text":true', '"text":false')
    for line in steps:
        content = json.loads(line)
        for name, asked in content["requests"].items():
            number = zlib.crc32(name.encode())
            asked["block_hashes"] = [f"{number % 3:016x}", f"{number << 20:016x}"]
        rows = [without_text(tuple(row)) for row in content["records"]]
        yield step_line(content["step"], rows, content["requests"])


def shipped(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)


WHOLE = {path.name.split(".")[0]: lambda path=path: shipped(path) for path in SHIPPED}
WHOLE |= {"no text": lambda: list(text_left_out(shipped(SHIPPED[-1])))}
WHOLE |= {f"aborts, {n} in flight": lambda n=n: run_with_aborts(n) for n in (1, 3)}


def as_written(path):
    """The run under its own ids: what a reused one is called depends on where a file begins."""
    with open(path, encoding="utf-8") as file:
        xray = read_header(next(file))
        for line in file:
            xray.read_line(line)
    return xray


def states_of(trace):
    """The state behind each step, without what is over, by the step's number; and at the end."""
    state, found = trace.beginning(), {}
    for record in trace.records:
        state.apply(record)
        if isinstance(record, StepEnded):
            state.step = record.step
            copied = found[record.step] = deepcopy(state)
            copied.forget_finished()
    state.forget_finished()
    return found | {"end": state}


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_is_cut_anywhere_goes_on_as_the_whole_one(tmp_path, name):
    lines = WHOLE[name]()
    path = tmp_path / "whole.jsonl"
    path.write_text("".join(lines))
    whole = as_written(path)
    states = states_of(whole.trace)
    counts = Counter(record.request_id for record in whole.trace.of(RequestAdded))
    used_again = {name for name, count in counts.items() if count > 1}
    places = [i for i, line in enumerate(lines) if '["StepStarted"' in line and i > 1]
    for place in (*places[::EVERY], places[-1]):
        cut = tmp_path / "cut.jsonl"
        cut.write_text("".join(lines))
        drop_oldest(str(cut), sum(map(len, lines[place:])))
        assert cut.read_text().splitlines(keepends=True)[2:] == lines[place:]
        xray = as_written(cut)
        assert xray.trace.records == whole.trace.records[-len(xray.trace.records) :]
        later = states_of(xray.trace)
        assert later == {step: states[step] for step in later}
        used_once = xray.requests.keys() - used_again
        assert all(whole.requests[name] == xray.requests[name] for name in used_once)
        alive = {seq.request_id for seq in xray.trace.beginning().sequences.values()}
        assert xray.requests.keys() == alive | {*xray.trace.request_ids}
        assert str(report(load_xray(cut)))


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_is_cut_again_and_again_ends_as_the_whole_one(tmp_path, name):
    head, *lines = WHOLE[name]()
    path, whole = tmp_path / "cut.jsonl", tmp_path / "whole.jsonl"
    path.write_text(head)
    whole.write_text("".join([head, *lines]))
    bound = len("".join(lines)) // 12
    num_drops = size = 0
    for line in lines:
        with open(path, "a") as file:
            size += file.write(line)
        if size > bound:
            drop_oldest(str(path), bound // 2)
            num_drops, size = num_drops + 1, path.stat().st_size
    assert num_drops > 5
    later, states = states_of(as_written(path).trace), states_of(as_written(whole).trace)
    assert later == {step: states[step] for step in later}
    assert str(report(load_xray(path)))
