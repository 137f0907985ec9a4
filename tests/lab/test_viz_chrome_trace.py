"""The file for Perfetto: valid by the Trace Event Format, and true to the trace.

The format is Google's "Trace Event Format" (its document is linked from ui.perfetto.dev's docs).
"""

import json
from collections import defaultdict

import pytest
from jsonschema import Draft202012Validator
from test_20_figures import exchanged

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import run_steps
from minivllm.lab.sim.make import make_scheduler
from minivllm.request import Request, RequestStatus
from minivllm.sampling_params import SamplingParams
from minivllm.trace import Trace
from minivllm.trace.records import (
    Communicated,
    Preempted,
    RankWorked,
    RequestAdded,
    Scheduled,
    SwappedOut,
)
from minivllm.viz import save_chrome_trace

NUMBER = {"type": "number", "minimum": 0}


def phase(letter, required=(), **properties):
    return {
        "if": {"properties": {"ph": {"const": letter}}},
        "then": {"required": list(required), "properties": properties},
    }


SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "ph", "pid", "tid"],
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "cat": {"type": "string"},
                    "ph": {"enum": ["X", "C", "M", "s", "f"]},
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer"},
                    "ts": NUMBER,
                    "dur": NUMBER,
                    "args": {"type": "object"},
                },
                "allOf": [
                    phase("X", ["ts", "dur"]),
                    phase("s", ["ts", "id", "cat"], id={"type": "integer"}),
                    phase("f", ["ts", "id", "cat", "bp"], bp={"const": "e"}),
                    phase(
                        "C", ["ts", "args"],
                        args={"minProperties": 1, "additionalProperties": NUMBER},
                    ),
                    phase(
                        "M", ["args"],
                        name={"enum": ["process_name", "process_sort_index", "thread_name",
                                       "thread_sort_index"]},
                    ),
                ],
            },
        },
    },
}  # fmt: skip


def run(mode="recompute", n=1, abort=(), clock=None):
    """Five requests in a pool too small for them; some of them are aborted at a step."""
    options = {} if clock is None else {"clock": clock}
    trace = Trace(15, 4, 12, **options)
    manager = KVCacheManager(15, 4, num_host_blocks=30, trace=trace)
    scheduler = make_scheduler(
        manager, max_num_batched_tokens=12, max_num_seqs=8, max_model_len=64,
        preemption_mode=mode, trace=trace,
    )  # fmt: skip
    abort = dict(abort)
    params = SamplingParams(max_tokens=12, n=n, ignore_eos=True, seed=0)
    requests = [Request(f"r{index}", [index] * (5 + index), params) for index in range(5)]
    for _ in run_steps(scheduler, requests):
        if trace.step in abort:
            scheduler.finish_requests([abort[trace.step]], RequestStatus.FINISHED_ABORTED)
    return trace


def ticking():
    """A clock that moves by itself, a little each time someone looks."""
    now = [0.0]

    def clock():
        now[0] += 0.00137
        return now[0]

    return clock


WORLDS = {
    "recompute": lambda: run(),
    "swap": lambda: run("swap"),
    "siblings": lambda: run(None, n=2),
    "aborts": lambda: run(abort=[(2, "r2"), (9, "r4"), (14, "r3")]),
    "ticking": lambda: run(clock=ticking()),
}


def load(trace, tmp_path, **options):
    save_chrome_trace(trace, tmp_path / "run.json", **options)
    return json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))


def by_track(events, *phases):
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] in phases:
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["steps", "seconds"])
@pytest.mark.parametrize("world", [*WORLDS, "ranks"])
def test_the_file_is_valid(world, clock, tmp_path):
    trace = exchanged() if world == "ranks" else WORLDS[world]()
    document = load(trace, tmp_path, clock=clock)
    Draft202012Validator.check_schema(SCHEMA)
    errors = [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]
    assert not errors
    events = document["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    slices = by_track(events, "X")
    assert slices.keys() <= named
    assert {e["pid"] for e in events} == processes
    for track in slices.values():  # each is inside the one before it, or after it
        stack = []
        for event in sorted(track, key=lambda e: (e["ts"], -e["dur"])):
            while stack and stack[-1] <= event["ts"] + 1e-3:
                stack.pop()
            end = event["ts"] + event["dur"]
            assert not stack or end <= stack[-1] + 1e-3, event
            stack.append(end)
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append(event["ts"])
            assert list(event["args"]) == ["value"]
    assert all(len(at) == trace.num_steps + 1 and at == sorted(at) for at in counters.values())
    assert {"free blocks", "token budget used", "running", "waiting"} <= counters.keys()


@pytest.mark.parametrize("world", WORLDS)
def test_a_slice_for_every_chunk(world, tmp_path):
    trace = WORLDS[world]()
    events = load(trace, tmp_path, clock="steps")["traceEvents"]
    tids = {}
    for event in events:
        if event["name"] == "thread_name" and event["pid"] == 2:
            tids[event["args"]["name"].split()[-1]] = event["tid"]
    arrived = {r.request_id for r in trace.of(RequestAdded)}
    assert arrived <= tids.keys()
    chunks = {(e["tid"], e["args"]["step"]): e for e in events
              if e["ph"] == "X" and "tokens" in e.get("args", {}) and e["pid"] == 2}  # fmt: skip
    scheduled = list(trace.of(Scheduled))
    assert len(chunks) == len(scheduled) > 20
    for r in scheduled:
        chunk = chunks[tids[r.seq_id], r.step]
        assert (chunk["args"]["tokens"], chunk["args"]["from position"]) == (
            r.num_tokens, r.num_computed_tokens,
        )  # fmt: skip
        assert (chunk["ts"], chunk["dur"]) == (1000 * r.step, 1000)
        if chunk["name"] == "decode":
            assert r.num_tokens == 1
        else:
            assert chunk["name"].startswith(f"prefill {r.num_tokens} token")


@pytest.mark.parametrize("world", WORLDS)
def test_arrows_lead_from_each_preemption_to_the_return(world, tmp_path):
    trace = WORLDS[world]()
    events = load(trace, tmp_path, clock="steps")["traceEvents"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == sum(e["ph"] == "s" for e in events)
    assert starts.keys() == ends.keys()
    given_way = sorted(r.step for r in trace.of(Preempted, SwappedOut))
    away = [e for e in events if e["name"] in ("preempted", "swapped out") and e["ph"] == "X"]
    assert sorted(e["ts"] / 1000 for e in away) == given_way
    assert len(given_way) > 0
    if world != "aborts":  # there one never returns
        assert len(starts) == len(given_way)
    slices = by_track(events, "X")
    for index, start in starts.items():
        end = ends[index]
        assert (start["pid"], start["tid"]) == (end["pid"], end["tid"])
        track = slices[start["pid"], start["tid"]]
        chunks = [e for e in track if "tokens" in e.get("args", {})]
        (back,) = [e for e in chunks if e["ts"] == end["ts"]]
        (away,) = [e for e in track if e["name"] in ("preempted", "swapped out")
                   and start["ts"] <= e["ts"] < back["ts"]]  # fmt: skip
        earlier = chunks[: chunks.index(back)]  # a sibling may have none of its own
        assert start["ts"] == (earlier[-1] if earlier else away)["ts"]
        assert away["ts"] + away["dur"] == back["ts"]


def test_counters_are_those_of_the_trace(tmp_path):
    trace = run()
    events = load(trace, tmp_path, clock="steps")["traceEvents"]
    values = {(e["name"], e["ts"]): e["args"]["value"] for e in events if e["ph"] == "C"}
    for step in range(trace.num_steps):
        state = trace.state_at(step, "schedule")
        assert values["free blocks", 1000 * step] == state.num_free_blocks
        assert values["token budget used", 1000 * step] == state.num_scheduled_tokens
        assert values["running", 1000 * step] == len(state.running)
        assert values["waiting", 1000 * step] == len(state.waiting)
    assert values["free blocks", 1000 * trace.num_steps] == 14
    assert values["running", 1000 * trace.num_steps] == 0


def test_seconds_are_microseconds_of_the_traces_clock(tmp_path):
    trace = run(clock=ticking())
    document = load(trace, tmp_path)
    assert document["otherData"]["clock"] == "seconds"
    events = document["traceEvents"]
    last = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert last == pytest.approx(trace.records[-1].time * 1e6)
    schedules = [e for e in events if e["name"] == "schedule"]
    assert len(schedules) == trace.num_steps
    waits = [e for e in events if e["name"] == "waiting" and e["ph"] == "X"]
    arrivals = sorted(r.time * 1e6 for r in trace.of(RequestAdded))
    assert sorted(e["ts"] for e in waits) == pytest.approx(arrivals)


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one step"):
        save_chrome_trace(Trace(8, 4, 64), tmp_path / "run.json")
    with pytest.raises(ValueError, match="clock must be 'steps' or 'seconds', got 'beats'"):
        save_chrome_trace(run(), tmp_path / "run.json", clock="beats")
    assert not (tmp_path / "run.json").exists()


def test_ranks_are_processes_and_sends_are_arrows(tmp_path):
    """Stages have two ranks each: rank 0 sends to rank 2, and rank 1 to rank 3."""
    trace = exchanged()
    events = load(trace, tmp_path)["traceEvents"]
    pids = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert list(pids)[2:] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    for rank in range(4):
        slices = [e for e in events if e["ph"] == "X" and e["pid"] == pids[f"rank {rank}"]]
        plans = [e["name"] for e in slices if e["name"].startswith("plan ")]
        assert plans == [f"plan {r.plan}" for r in trace.of(RankWorked) if r.rank == rank]
        done = [(e["name"], e["args"]["bytes"]) for e in slices if "args" in e]
        wanted = [(r.op, r.num_bytes) for r in trace.of(Communicated) if r.rank == rank]
        assert done == wanted
    arrows = defaultdict(list)
    for event in events:
        if event.get("cat") == "send":
            arrows[event["id"]].append(event)
    assert len(arrows) == sum(r.op == "send" for r in trace.of(Communicated)) > 0
    for start, end in arrows.values():
        assert (start["ph"], end["ph"], end["pid"] - start["pid"]) == ("s", "f", 2)
        assert start["ts"] <= end["ts"]
    assert not any(e["pid"] > 2 for e in load(trace, tmp_path, clock="steps")["traceEvents"])
