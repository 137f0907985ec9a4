"""The capstone: milestones in their order, and a score that never falls."""

import inspect
import sys

import pytest

from minivllm.course import assembly
from minivllm.course.grading import scoreboard
from minivllm.course.grading.verdicts import Verdict
from minivllm.exercises import labs
from minivllm.lab.sim.recordings import GOLDEN
from minivllm.lab.sim.replay import replay_steps

STUBS = {
    "pool": labs.allocate_slots.stub,
    "table": labs.copy_on_write.stub,
    "plan": labs.schedule.stub,
    "cache": labs.find_longest_cache_hit.stub,
    "kernel": None,
}


def spoilt(solution, *changes):
    """A solution with changes, each of one place."""
    source = inspect.getsource(solution)
    names = dict(vars(sys.modules[solution.__module__]))
    for right, wrong in changes:
        assert source.count(right) == 1, right
        source = source.replace(right, wrong)
    exec(source, names)
    return names[solution.__name__]


NO_COPY = ("shared = table.must_copy(begin)", "shared = False")
NO_CACHE = ("if self.prefix_cache is not None:", "if False:")
POINTS_1_3 = spoilt(labs.allocate_slots.solution, NO_COPY, NO_CACHE)
POINTS_1_2_3 = spoilt(labs.allocate_slots.solution, NO_CACHE)
POOL = labs.allocate_slots.solution
TABLE = labs.copy_on_write.solution
PLAN = labs.schedule.solution
CACHE = labs.find_longest_cache_hit.solution
HALF_TABLE = spoilt(
    TABLE, ("return self.blocks[position // self.block_size]", "return 0 * self.blocks[-1]")
)
HALF_PLAN = spoilt(
    PLAN, ("for name, num_tokens in waiting.items():", "for name, num_tokens in ():")
)
HALF_CACHE = spoilt(
    CACHE, ("return found[: found.index(None)] if None in found else found", "return []")
)
NEVER_ENDS = spoilt(
    CACHE, ("(seq.num_tokens - 1) // self.block_size", "seq.num_tokens // self.block_size")
)

ORDERS = {
    "milestone by milestone": [
        {"pool": POINTS_1_3}, {"pool": POINTS_1_2_3}, {"table": TABLE}, {"plan": PLAN},
        {"cache": CACHE}, {"pool": POOL},
    ],
    "with half solutions": [
        {"pool": POINTS_1_3}, {"table": HALF_TABLE}, {"table": TABLE}, {"plan": HALF_PLAN},
        {"plan": PLAN}, {"cache": HALF_CACHE}, {"cache": NEVER_ENDS}, {"cache": CACHE},
        {"pool": POOL},
    ],
    "in another order": [{"cache": CACHE}, {"pool": POINTS_1_3}, {"plan": PLAN}, {"pool": POOL}],
}  # fmt: skip


def begun(pieces):
    """Verdicts as the scoreboard reads them: None for what is not begun."""
    found = dict(zip(STUBS, assembly.MILESTONES, strict=True))
    passed = Verdict("", "passed", "")
    return {found[n]: None if pieces[n] is STUBS[n] else passed for n in STUBS}


def engine_of(pieces):
    def make_engine(*names):
        manager_cls = assembly._with(pieces, *names)
        return manager_cls, pieces["plan"] if "plan" in names else None

    return make_engine


@pytest.mark.parametrize("order", ORDERS)
def test_the_score_never_falls(order, monkeypatch):
    monkeypatch.setattr(scoreboard, "GOLDEN", GOLDEN[::10])
    pieces, last = dict(STUBS), (0, 0, 0)
    for step in ORDERS[order]:
        pieces |= step
        deciding = [name for name in pieces if pieces[name] is not STUBS[name]]
        score = scoreboard.score(deciding, engine_of(pieces))
        equal = (score.equal_recordings, score.equal_steps, score.equal_with.total())
        assert score.equal_recordings >= last[0], step
        assert score.equal_steps >= last[1], step
        last = equal
    assert score.equal_recordings == score.recordings == 6
    assert score.mine == score.vllm


def test_the_score_says_whose_pieces_have_run(monkeypatch):
    monkeypatch.setattr(scoreboard, "GOLDEN", GOLDEN[::4])
    nothing = assembly.scoreboard(STUBS, begun(STUBS))
    assert nothing.startswith("pool, table, plan, cache, kernel: ours. 0 of 15 recordings")
    pieces = {**STUBS, "pool": POOL}
    text = assembly.scoreboard(pieces, begun(pieces))
    assert text.startswith("pool: yours; table, plan, cache, kernel: ours. 15 of 15 recordings")
    assert text.endswith("; equal are your pool in 15")
    pieces = {**STUBS, "pool": POINTS_1_3, "plan": PLAN}
    text = assembly.scoreboard(pieces, begun(pieces))
    assert text.startswith("pool, plan: yours; table, cache, kernel: ours. 10 of 15 recordings")
    assert "equal are your pool in 10, your plan in 10; your plan decided 942 steps" in text


def test_a_plan_of_the_readers_takes_the_schedulers_place():
    recording = scoreboard.load_recording(GOLDEN[0])
    asked = []

    def planner(running, waiting, **limits):
        asked.append(limits)
        return PLAN(running, waiting, **limits)

    scheduler_cls = type("Mine", (scoreboard.PlannedScheduler,), {"planner": staticmethod(planner)})
    steps = list(replay_steps(recording, scheduler_cls=scheduler_cls))
    assert steps == [{key: step[key] for key in step} for step in replay_steps(recording)]
    assert len(asked) > 50
    for plan, told in (
        ({}, "nothing|Nothing|no "), (3, "return a dict"), ({"r9": 10**6}, "r9 lacks"),
    ):  # fmt: skip
        planner_cls = {"planner": staticmethod(lambda *_, plan=plan, **__: plan)}
        wrong = type("Wrong", (scoreboard.PlannedScheduler,), planner_cls)
        with pytest.raises(Exception, match=told):
            list(replay_steps(recording, scheduler_cls=wrong))


# -- milestones ------------------------------------------------------------------------------------


def test_points_1_and_3_are_the_first_milestone():
    pieces = {**STUBS, "pool": POINTS_1_3}
    verdict = labs.milestone("1 pool", **pieces)
    assert verdict.outcome == "passed"
    assert verdict.text.endswith("and equal to 15 recordings of vLLM without a cache")
    for name in ("2 copy-on-write", "3 schedule", "4 prefix cache", "5 decode kernel", "together"):
        assert labs.milestone(name, **pieces) is None, name


@pytest.mark.slow
def test_the_points_that_are_lacking_come_with_their_own_milestones():
    pieces = {**STUBS, "pool": POINTS_1_3, "table": TABLE, "cache": CACHE}
    copies = labs.milestone("2 copy-on-write", **pieces)
    assert copies.outcome == "FAILED"
    assert "which A/1 still reads: it must be copied first." in copies.text
    assert copies.text.endswith("look at point 2.")
    cache = labs.milestone("4 prefix cache", **pieces)
    assert "cannot be found: it is not in the prefix cache." in cache.text
    assert cache.text.endswith("look at point 4.")
    pieces["pool"] = POINTS_1_2_3
    assert labs.milestone("2 copy-on-write", **pieces).outcome == "passed"
    pieces["pool"] = POOL
    assert labs.milestone("4 prefix cache", **pieces).outcome == "passed"


FIRST_MISTAKES = {
    "num_new_tokens // size": "A has 1 blocks for 6 positions; it needs 2.",
    "-(-num_new_tokens // size)": "step 1: A has 3 blocks for 7 positions; 2 will do.",
}


@pytest.mark.parametrize("wrong", FIRST_MISTAKES)
def test_the_best_words_come_first(wrong):
    right = "(end + size - 1) // size - len(table.blocks)"
    cls = spoilt(POOL, (right, wrong))
    assert labs.milestone("1 pool", **{**STUBS, "pool": cls}).text.endswith(FIRST_MISTAKES[wrong])
    first, *others = (each for each in labs.verdicts(cls) if each.outcome != "passed")
    assert first.check == "decisions"
    assert first.text.endswith(FIRST_MISTAKES[wrong])
    assert [verdict.outcome for verdict in others] == ["not run", "not run"]


def test_what_is_no_milestone_is_refused():
    with pytest.raises(ValueError, match="name must be one of 1 pool, 2 copy-on-write, 3 sch"):
        labs.milestone("6", **STUBS)
    with pytest.raises(ValueError, match="pool must be a class that extends KVCacheManager"):
        labs.milestone("1 pool", **{**STUBS, "pool": int})
