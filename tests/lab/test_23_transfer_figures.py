"""Transfers of K and V where runs are drawn and told: a state of their own, in every picture."""

from itertools import pairwise

import pytest
from remote_kv_engine import Engine, FailingConnector, fetching, sending

from minivllm.lab.sim.make import make_request
from minivllm.lab.viz.figures.lanes import lanes
from minivllm.lab.viz.figures.stepper import stepper
from minivllm.lab.viz.figures.timeline import timeline
from minivllm.lab.viz.model.frames import frames
from minivllm.lab.viz.model.live import LiveRun
from minivllm.lab.viz.page.chrome_trace import chrome_trace
from minivllm.lab.viz.page.live import picture
from minivllm.lab.viz.page.page import run_to_json
from minivllm.request import RequestStatus


@pytest.fixture
def trace():
    """A gets K and V for four steps, B is sent for two, and C computes beside them."""
    engine = Engine(num_blocks=30)
    engine.scheduler.add_request(fetching("a", delay=3))
    engine.scheduler.add_request(sending("s", delay=2))
    engine.step()
    engine.scheduler.add_request(make_request("b", [1] * 6, 5))
    engine.run()
    return engine.trace


def row(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return line.removeprefix(name).split()


def test_a_timeline_shows_what_comes_and_what_is_sent(trace):
    figure = timeline(trace)
    assert row(figure.text, "A a") == ["↓", "↓", "↓", "↓", "1", "•", "•|"]
    assert row(figure.text, "B s") == ["12|", "↑", "↑"]
    assert "↓ K and V come  ↑ K and V are sent" in figure.text
    assert figure.svg.count("K and V come from elsewhere") == 4  # cells
    assert "↓ receives K and V" in figure.svg  # legend
    many = timeline(trace, clock="seconds")
    assert "↑ sends K and V" in many.svg


def test_lanes_show_what_comes(trace):
    assert row(lanes({"one": trace}).text, "A a") == ["↓↓↓↓█••|"]


def test_a_track_of_perfetto_has_a_slice_for_each_way(trace):
    events = chrome_trace(trace, "steps")["traceEvents"]
    slices = {(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert {("K and V come", 0, 4000), ("K and V are sent", 1000, 2000)} <= slices
    counts = [
        e["args"]["value"] for e in events if e["name"] == "K and V are sent" and e["ph"] == "C"
    ]
    assert counts == [0, 1, 1, 0, 0, 0, 0, 0, 0]
    alone = Engine()
    alone.scheduler.add_request(make_request("b", [1] * 6, 2))
    alone.run()
    assert "K and V" not in str(chrome_trace(alone.trace, "steps"))


def test_one_that_waits_before_and_after_its_transfer_has_three_slices():
    engine = Engine(max_num_seqs=1)
    engine.scheduler.add_request(make_request("first", [1] * 6, 3))
    engine.scheduler.add_request(fetching("a", delay=1))
    for index in range(2):
        engine.step()
        engine.scheduler.add_request(make_request(f"other{index}", [1] * 6, 3))
    engine.run()
    events = chrome_trace(engine.trace, "steps")["traceEvents"]
    (track,) = {e["tid"] for e in events if e["name"] == "K and V come" and e["ph"] == "X"}
    mine = [e for e in events if e["ph"] == "X" and e["tid"] == track and e["pid"] == 2]
    mine.sort(key=lambda event: event["ts"])
    assert [event["name"] for event in mine[1:4]] == ["waiting", "K and V come", "waiting"]
    for one, other in pairwise(mine[1:]):
        assert one["ts"] + one["dur"] == other["ts"]


def test_words_say_who_waits_for_what(trace):
    told = list(frames(trace))
    assert [(f.receiving, f.sending) for f in told[:5]] == [
        (("a",), ()), (("a",), ("s",)), (("a",), ("s",)), (("a",), ()), ((), ()),
    ]  # fmt: skip
    assert "K and V of 12 tokens of A come from elsewhere" in told[0].words
    assert told[2].result == "K and V of B are sent; B gives back blocks 4 to 6."
    found = stepper(trace)
    found.slider.value = 1
    assert "K and V come: A. K and V are sent: B." in found.words.value


def test_pages_list_both(trace):
    queues = [frame["queues"] for frame in run_to_json(trace)["frames"]]
    assert queues[0] == [[1], 0, 0, [0], 0]
    assert queues[1] == [[2], 0, 0, 0, [1]]
    run = LiveRun(trace.num_blocks, trace.block_size, trace.max_num_batched_tokens)
    run.update([record for record in trace.records if record.step < 1])
    shown = picture(run)
    assert shown["run"]["transfers"]
    assert shown["numbers"]["waiting"] == 2
    assert shown["frame"]["queues"][3:] == [[0], [1]]


@pytest.mark.parametrize("recomputes", [True, False])
def test_one_that_fails_is_told(recomputes):
    engine = Engine(FailingConnector({"a"}), recomputes)
    engine.scheduler.add_request(fetching("a", delay=1))
    engine.scheduler.add_request(fetching("x", delay=1, first=40))
    engine.step()
    engine.scheduler.finish_requests(["x"], RequestStatus.FINISHED_ABORTED)
    engine.run()
    words = next(f.words for f in frames(engine.trace) if "do not come" in f.words)
    assert "K and V of B are there; B gives back blocks 4 to 6" in words
    end = "; it gives back" if recomputes else "; A finishes (error) and gives back"
    assert f"K and V of A do not come{end} blocks 1 to 3." in words


def test_after_a_failed_step_it_waits_like_all_others():
    engine = Engine()
    engine.scheduler.add_request(fetching("a", delay=9))
    engine.step()
    engine.scheduler.reset()
    state = engine.trace.beginning()
    for record in engine.trace.records:
        state.apply(record)
    seq = state.sequences["a"]
    assert (seq.status, seq.transfer, state.waiting) == ("waiting", "", ["a"])
