"""Causes of waits and stalls: runs that are made to have one, or two after each other."""

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.lab.viz.model.timeline_model import read_history
from minivllm.trace import Trace
from minivllm.trace.records import (
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    Finished,
    Preempted,
    RequestAdded,
    RequestSkipped,
    Sampled,
    Scheduled,
)
from minivllm.xray import load_xray, report
from minivllm.xray.format import XRay

ROOT = Path(__file__).parents[2]
WAITS = ROOT / "minivllm/xray/runs/waits.jsonl.gz"
RUNS = sorted([WAITS, *(ROOT / "tests/data/xray").rglob("*.jsonl.gz")])
BUDGET, SEQS, BLOCKS, SIZE = 32, 8, 15, 4
SKIPS = {
    "adapter": "a slot of its adapter", "grammar": "a grammar that compiles",
    "remote_kv": "remote K and V", "in_flight": "its own tokens on their way",
    "input": "more input from its client", "paused": "the end of a pause",
}  # fmt: skip
CAUSES = {
    "blocks": "blocks", "budget": "budget", "seqs": "max_num_seqs", "unknown": "unknown",
    "preemption": "blocks", "long": "a prompt of 30 tokens ahead", **SKIPS,
}  # fmt: skip


class Story:
    """A run in which "first" decodes, others are idle, and each step has what it is told to have.

    ``own`` says how long a step takes, ``pause`` how long the time before it is.
    """

    def __init__(self, **settings):
        self.now, self.free, self.tables = 0.0, list(range(1, BLOCKS + 1)), {}
        self.trace = Trace(BLOCKS + 1, SIZE, BUDGET, clock=lambda: self.now)
        limits = {"max_num_batched_tokens": BUDGET, "max_num_seqs": SEQS, "max_model_len": 512}
        header = {"vllm_version": "x", "model": "m", "num_blocks": BLOCKS + 1, "block_size": SIZE,
                  "settings": limits | settings, "text": True}  # fmt: skip
        self.xray = XRay(header, self.trace, {})
        self.idle = ["idle0", "idle1", "idle2"]
        self.length = 3
        for index, name in enumerate(("first", *self.idle)):
            self.add(name, 3 if name == "first" else 2, index)
        self.step({name: 3 if name == "first" else 2 for name in ("first", *self.idle)})

    def add(self, name, num_tokens, index=0):
        prompt = tuple(sum(map(ord, name)) + i for i in range(num_tokens))
        self.trace.record(RequestAdded, name, prompt, index, self.now)

    def take(self, name, num_tokens):
        table = self.tables.setdefault(name, [])
        new = [self.free.pop(0) for _ in range(-(-num_tokens // SIZE) - len(table))]
        table += new
        if new:
            self.trace.record(BlocksAllocated, name, tuple(new))

    def give_back(self, name):
        table = self.tables.pop(name)
        self.trace.record(BlocksFreed, name, tuple(table))
        self.free = [*table, *self.free]

    def step(self, new=None, skipped=(), preempted="", own=1.0, pause=0.0, decodes=True):
        """A step that computes these new prompts, and a token of "first"."""
        new, record = new or {}, self.trace.record
        self.now += pause
        self.trace.start_step()
        for name, reason in skipped:
            record(RequestSkipped, name, reason)
        if preempted:
            self.give_back(preempted)
            record(Preempted, preempted, 0)
        if "first" not in new and decodes:
            self.take("first", self.length)
            record(Scheduled, "first", "running", self.length - 1, 1, True)
        for name, num_tokens in new.items():
            self.take(name, num_tokens)
            record(Scheduled, name, "new", 0, num_tokens, True)
        self.trace.plan_step()
        self.now += own
        for name in ("first", *new):
            if name != "first" or decodes:
                record(Sampled, name, 7)
                self.length += name == "first"
        self.trace.end_step()

    def wait(self, cause, num_steps):
        """Steps in which "late" waits for this; what causes it comes and goes in each."""
        for _ in range(num_steps):
            number = self.trace.num_steps
            running = 1 + len(self.idle)
            sizes = {"seqs": [1] * (SEQS - running), "blocks": [29], "budget": [10, 10, 11],
                     "long": [30, 1]}.get(cause, [])  # fmt: skip
            new = {f"{number}-{i}": size for i, size in enumerate(sizes)}
            for index, (name, size) in enumerate(new.items()):
                self.add(name, size, index)
            skipped = [("late", cause)] if cause in SKIPS else []
            victim = self.idle.pop() if cause == "preemption" else ""
            self.step(new, skipped, victim)
            for name in new:
                self.give_back(name)
                self.trace.record(Finished, name, "abort")
            if victim:
                self.trace.record(Finished, victim, "abort")


def wait_of(story):
    (wait,) = [wait for wait in report(story.xray).walk.waits if wait.request_id == "late"]
    return wait


@pytest.mark.parametrize("cause", CAUSES)
def test_a_wait_has_its_cause(cause):
    story = Story()
    story.add("late", 20)
    story.wait(cause, 2)
    found = wait_of(story)
    assert found.causes == {CAUSES[cause]: 2}
    assert found.cause == CAUSES[cause]
    assert f"{CAUSES[cause]} 2" in str(report(story.xray))


PAIRS = [pair for pair in itertools.permutations(CAUSES, 2) if CAUSES[pair[0]] != CAUSES[pair[1]]]


@pytest.mark.parametrize("causes", PAIRS, ids="-".join)
def test_a_wait_has_both_causes(causes):
    story = Story()
    story.add("late", 20)
    story.wait(causes[0], 2)
    story.wait(causes[1], 3)
    found = wait_of(story)
    assert found.causes == {CAUSES[causes[0]]: 2, CAUSES[causes[1]]: 3}
    assert found.cause == CAUSES[causes[1]]


def test_who_is_behind_the_head_waits_for_what_it_waits_for_and_who_was_skipped_for_its_own():
    story = Story()
    for index, name in enumerate(("skipped", "head", "late")):
        story.add(name, 2 if name == "late" else 80, index)
    story.step(skipped=[("skipped", "grammar")])
    causes = {wait.request_id: wait.cause for wait in report(story.xray).walk.waits[-3:]}
    assert causes == {"skipped": CAUSES["grammar"], "head": "blocks", "late": "blocks"}


def test_blocks_are_not_blamed_where_a_prefix_is_shared():
    """A request of nine blocks, of which seven are in use and in the cache; two are free."""
    story = Story()
    prompt = tuple(range(40))
    story.trace.record(RequestAdded, "long", prompt, 0, story.now)
    story.step({"long": 31})  # a chunk
    story.trace.record(BlocksCached, "long", tuple(story.tables["long"][:7]), (b"",) * 7)
    story.trace.record(RequestAdded, "late", prompt[:36], 0, story.now)
    story.step()
    assert len(story.free) < 10
    assert wait_of(story).cause == "unknown"
    story.xray.header["settings"]["enable_prefix_caching"] = False
    assert wait_of(story).cause == "blocks"


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({}, "unknown"),
        ({"watermark_blocks": 9}, "blocks"),
        ({"num_lookahead_tokens": 40}, "blocks"),
    ],
)
def test_settings_that_keep_blocks_free_are_known(settings, cause):
    story = Story(**settings)
    story.add("late", 20)
    story.step()
    assert wait_of(story).cause == cause


def test_a_wait_between_two_plans_has_its_cause_too():
    story = Story()
    story.add("late", 4)
    story.trace.record(RequestSkipped, "late", "grammar")  # empty plans are no steps
    story.now += 2
    story.step({"late": 4})
    assert wait_of(story).cause == CAUSES["grammar"]
    assert wait_of(story).seconds[CAUSES["grammar"]] == 2


def stalls_of(story, seq_id="first"):
    return [stall for stall in report(story.xray).walk.stalls if stall.seq_id == seq_id]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"own": 1.0}, "the step itself"),
        ({"own": 0.01, "pause": 1.0}, "time between two steps"),
        ({"new": {"p": 20}, "own": 0.2}, "a prompt of 20 tokens in the same step"),
        ({"new": {"p": 20}, "own": 0.1, "pause": 0.3}, "time between two steps"),
        ({"new": {"p": 4}, "own": 5.0}, "the step itself"),  # others with as many take 0.1 s
    ],
    ids=["step", "pause", "prompt", "pause before a prompt", "slow with a prompt"],
)
def test_a_stall_has_the_cause_that_took_its_time(change, cause):
    story = Story()
    for number in range(5):
        story.add(f"{number}", 4)
        story.step({f"{number}": 4}, own=0.1)
        story.give_back(f"{number}")
        story.trace.record(Finished, f"{number}", "abort")
    if "new" in change:
        story.add("p", change["new"]["p"])
    story.step(**change)
    assert stalls_of(story)[-1].cause == cause


def test_a_stall_of_one_that_is_not_planned():
    story = Story()
    story.step(decodes=False, own=3.0)
    story.step()
    assert stalls_of(story)[-1].cause == "unknown"  # there was budget left
    story.add("p", 32)
    story.step({"p": 32}, decodes=False, own=3.0)
    story.give_back("p")
    story.trace.record(Finished, "p", "abort")
    story.step()
    assert stalls_of(story)[-1].cause == "budget"


def test_a_reset_of_the_prefix_cache_is_no_lack_of_blocks():
    story = Story()
    story.give_back("first")
    story.trace.record(Preempted, "first", 0)  # between two steps
    story.step({"first": story.length}, own=2.0)
    assert stalls_of(story)[-1].cause == "preempted by a reset of the cache"


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.split(".")[0])
def test_in_runs_of_vllm_no_cause_is_unknown(path):
    walk = report(load_xray(path)).walk
    assert "unknown" not in {cause for wait in walk.waits for cause in wait.causes}


def test_page_terminal_and_json_say_the_same(tmp_path):
    done = CliRunner().invoke(app, ["xray", str(WAITS)])
    assert "5; 178 tokens dropped, 82 of them computed again" in done.output
    done = CliRunner().invoke(app, ["xray", str(WAITS), "--json", "-o", str(tmp_path)])
    said = json.loads(done.stdout)
    assert said["numbers"]["tokens dropped"] == 178
    assert said["numbers"]["tokens computed again"] == 82
    assert said["steps waited"]["blocks"] == 783
    page = (tmp_path / "xray.html").read_text()
    for name, number in (("tokens dropped", 178), ("tokens computed again", 82)):
        assert f"<dt>{name}</dt><dd>{number}</dd>" in page.replace("\n", "")


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.split(".")[0])
def test_the_page_counts_what_the_report_counts(path):
    xray = load_xray(path)
    history, walk = read_history(xray.trace), report(xray).walk
    counted = history.num_discarded, history.num_recomputed
    assert counted == (walk.num_dropped_tokens, walk.num_recomputed_tokens)
