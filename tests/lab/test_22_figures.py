"""Figures of notebooks 21 and 22: lanes of several runs, the knee, buckets."""

import re
import xml.etree.ElementTree as ET

import pytest

from minivllm.course.asking.requests import make_request
from minivllm.lab.sim.workloads import alpaca_like
from minivllm.sim import dry_run, simulate
from minivllm.viz import buckets, knee, lanes


def four():
    return [
        make_request(name, 4, tokens) for name, tokens in zip("ABCD", (3, 5, 2, 4), strict=True)
    ]


def test_lanes_of_several_runs_have_one_axis():
    world = {"num_blocks": 40, "block_size": 4}
    runs = {
        "one": dry_run(four(), max_num_seqs=1, **world),
        "all": dry_run(four(), max_num_seqs=4, **world),
    }
    figure = lanes(runs)
    lines = figure.text.splitlines()
    assert "one: 14 steps, TTFT 1, 4, 9, 11" in lines
    assert "all: 5 steps, TTFT 1, 1, 1, 1" in lines
    bars = [line[16:] for line in lines if re.match(r"[A-D] {15}", line)]
    assert bars[:4] == ["█••|", "░░░█••••|", "░░░░░░░░█•|", "░░░░░░░░░░█•••|"]
    assert bars[4:] == ["█••|", "█••••|", "█•|", "█•••|"]
    assert "one: 14 steps" in figure.alt
    drawn = ET.fromstring(figure.svg)
    waits = [e for e in drawn.iter() if (e.text or "").endswith(": waits")]
    assert [e.text for e in waits] == [
        "B, steps 0 to 2: waits", "C, steps 0 to 7: waits", "D, steps 0 to 9: waits",
    ]  # fmt: skip


def test_a_lane_shows_who_came_later_and_who_was_preempted():
    requests = [make_request("A", 6, 9), make_request("B", 6, 8, 2)]
    trace = dry_run(requests, num_blocks=7, block_size=4)
    text = lanes({"tight": trace}).text
    first, second = (line[16:] for line in text.splitlines() if re.match(r"[AB] {15}", line))
    assert first.count("█") == 1
    assert second.startswith("  █"), "nothing is drawn before it came"
    assert re.search("•░+█•", second), "a preempted request waits again, and is computed again"
    earlier = lanes({"tight": trace}, {"B": 0}).text
    assert "B               ░░█" in earlier


def test_lanes_refuse_what_they_cannot_show():
    with pytest.raises(ValueError, match="runs"):
        lanes({})
    crowd = [make_request(f"r{i}", 2, 1) for i in range(25)]
    with pytest.raises(ValueError, match=r"runs\['crowd'\].*1 to 24 requests"):
        lanes({"crowd": dry_run(crowd, num_blocks=99, block_size=4)})


@pytest.mark.slow
def test_the_knee_is_sorted_and_says_its_numbers():
    runs = {rate: simulate(alpaca_like(60, rate=rate), max_num_seqs=4) for rate in (20, 2)}
    plot = knee(runs)
    head, first, second = plot.text.splitlines()
    assert head.split()[:4] == ["rate", "came/s", "done/s", "TTFT"]
    assert float(first.split()[2]) > 0.9 * float(first.split()[1]), "it keeps up"
    assert float(second.split()[2]) < 0.7 * float(second.split()[1]), "it does not"
    assert (first.split()[0], second.split()[0]) == ("2", "20")
    assert float(second.split()[-1]) > 10 * float(first.split()[-1])
    assert plot.png.startswith(b"\x89PNG")
    assert "at 20" in plot.alt
    for wrong in ({2: runs[2]}, {0: runs[2], 1: runs[2]}):
        with pytest.raises(ValueError):
            knee(wrong)


def test_buckets_show_the_one_that_holds_the_quantile():
    filled = {"0.1": 0, "0.25": 6, "0.5": 9, "1.0": 9, "2.5": 10, "5.0": 10, "+Inf": 10}
    figure = buckets(filled, 0.8, "TTFT")
    assert "10 observations · rank 8 is in the bucket up to 0.5" in figure.text
    assert re.findall(r"^le +(\S+) +(\d+)  \(\+(\d+)\)", figure.text, re.MULTILINE) == [
        ("0.25", "6", "6"), ("0.5", "9", "3"), ("1.0", "9", "0"), ("2.5", "10", "1"),
    ]  # fmt: skip
    marked = next(line for line in figure.text.splitlines() if "here" in line)
    assert marked.startswith("le     0.5")
    ET.fromstring(figure.svg)
    for wrong, q in (({"+Inf": 0}, 0.5), ({"1.0": 3, "+Inf": 2}, 0.5), (filled, 0), (filled, 1.5)):
        with pytest.raises(ValueError):
            buckets(wrong, q)
