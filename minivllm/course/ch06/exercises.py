"""Exercises of notebook 06: the victim, a policy that loses less, settings that avoid it."""

from __future__ import annotations

from functools import partial
from random import Random

from minivllm.course.asking.answers import NotYet
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.puzzle import Puzzle, measure
from minivllm.course.asking.requests import make_request
from minivllm.lab.sim import dry_run
from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.wording import sentence
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.trace import Trace
from minivllm.trace.records import Preempted

# -- core: the victim --------------------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def victim(rng: Random) -> Exercise:
    """Victims of a step, in order."""
    policy = rng.choice(["fcfs", "priority"])
    names = rng.sample("ABCD", 4)
    while True:
        block_size = rng.choice([2, 3, 4])
        priorities = {name: rng.randint(0, 3) * (policy == "priority") for name in names}
        workload = [
            make_request(name, rng.randint(3, 12), rng.randint(5, 15), priority=priorities[name])
            for name in names
        ]
        num_blocks = rng.randint(12, 16)
        longest = max(len(r.prompt_token_ids) + r.sampling_params.max_tokens for r in workload)
        if longest - 1 > block_size * (num_blocks - 1):
            continue  # it would be refused: it could not run alone
        trace = dry_run(
            workload,
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=30,
            policy=policy,
        )
        first = next(trace.of(Preempted), None)
        if first is not None and len(trace.state_at(first.step - 1).running) > 2:
            return _victim_of_step(trace, first.step, policy, priorities)


def _victim_of_step(trace: Trace, step: int, policy: str, priorities: dict) -> Exercise:
    state = trace.state_at(step - 1)
    running = {}
    for name in state.running:
        seq = state.sequences[name]
        running[name] = (seq.num_computed_tokens, len(seq.block_ids))
        if policy == "priority":
            running[name] += (priorities[name],)
    right = [r.seq_id for r in trace.at(step) if isinstance(r, Preempted)]
    more = ""
    ties = ""
    if policy == "priority":
        more = ", priority"
        ties = "Priority 0 is the most important; of equals, the first in the list is chosen. "
    return Exercise(
        partial(_check_victim, right=right),
        "Go through the running list: whose next token needs a block? If none is free, a "
        "sequence gives all of its blocks back. Under fcfs that is the one admitted last.",
        _solve_victim,
        f"Before a step, every running sequence has (computed tokens, blocks{more}), in order of "
        f"admission, and each has one more token to compute. Nothing is shared. {ties}Which "
        "are preempted in this step? Answer with a list of names, in the order of preemption.",
        {
            "policy": policy,
            "block_size": trace.block_size,
            "num_free_blocks": state.num_free_blocks,
            "running": running,
        },
    )


def _solve_victim(policy, block_size, num_free_blocks, running):
    running, victims = dict(running), []
    for name in list(running):
        if name in victims:
            continue
        num_computed, num_blocks = running[name][:2]
        while num_computed == num_blocks * block_size and num_free_blocks == 0:
            if policy == "fcfs":
                loser = list(running)[-1]
            else:  # the least important one; of equals, the first in the list
                loser = max(running, key=lambda n: running[n][2])
            num_free_blocks += running.pop(loser)[1]
            victims.append(loser)
            if loser == name:
                break
        if name in running and num_computed == num_blocks * block_size:
            num_free_blocks -= 1
            running[name] = (num_computed + 1, num_blocks + 1, *running[name][2:])
    return victims


def _check_victim(answer, right, policy, block_size, num_free_blocks, running) -> str:
    got = [answer] if isinstance(answer, str) else answer
    if not isinstance(got, (list, tuple)) or not all(isinstance(name, str) for name in got):
        raise NotYet("give a list of names.")
    for name in got:
        if name not in running:
            raise NotYet(f"{name!r} does not run; {', '.join(running)} do.")
    needs = [n for n, (computed, blocks, *_) in running.items() if computed == blocks * block_size]
    if list(got) != right:
        if policy == "fcfs":
            rule = f"the one admitted last is {list(running)[-1]}"
        else:
            worst = max(priority for *_, priority in running.values())
            rule = f"the least important have priority {worst}; the first of them is chosen"
        if len(got) != len(right):
            rule += f"; {len(right)} must go, and you name {len(got)}"
        chosen = _named_victim(list(got), right, policy, running)
        full = f"the blocks of {', '.join(needs)} are full and {num_free_blocks} are free"
        told = translated("; ").join([chosen + full, rule])
        raise NotYet(sentence(told))
    return f"it computes {running[right[0]][0]} tokens again when it comes back."


def _named_victim(got: list[str], right: list[str], policy: str, running) -> str:
    """Return which rule was taken for the right one, or nothing."""
    if sorted(got) == sorted(right):
        return "the right ones in another order: "
    first = got[:1]
    names = list(running)
    if not got:
        return "one must be preempted: "
    if first == names[:1] and policy == "fcfs":
        return f"{first[0]} came first, so it keeps its place: "
    most = max(names, key=lambda name: running[name][0])
    least = min(names, key=lambda name: running[name][0])
    if policy == "priority":
        best = min(priority for *_, priority in running.values())
        if first != right[:1] and running[first[0]][2] == best:
            return "a small number is a high priority: "
        if first != right[:1] and first == names[-1:]:
            return "priority decides here, not the order of admission: "
    if first != right[:1] and first in ([most], [least]):
        return "how much a sequence has computed is not asked: "
    return ""


# -- design: a cheaper preemption, and a smaller pool ------------------------------------------


@seeded(difficulty=4, minutes=15)
def puzzle(rng: Random) -> Exercise:
    """Policy that preempts such that less is computed again."""
    settings = {"num_blocks": 10, "block_size": 4, "max_model_len": 28}
    while True:
        workload = {
            name: (rng.randint(3, 13), rng.randint(6, 14), rng.randint(0, 1)) for name in "ABCDE"
        }
        usual = measure(workload, **settings)
        best = measure(workload, **settings, policy=_solve_puzzle())
        fewer_tokens = 1.2 * best["computed_tokens"] < usual["computed_tokens"]
        if fewer_tokens and best["steps"] <= usual["steps"]:
            break
    return Puzzle(
        "The pool is too small for these requests, (prompt, output tokens, step of arrival), and "
        "a preempted request computes everything again. Write a SchedulingPolicy with which all "
        "requests together compute no more tokens, and take no more steps, than the targets say.",
        "A policy is asked for a victim(running). Each of them says what it would lose.",
        _solve_puzzle,
        workload=workload,
        settings=settings,
        may_set=("policy",),
        missed={
            "computed_tokens": "a victim that had computed much computes all of it again",
            "steps": "requests that come back late end late",
        },
        targets={
            "computed_tokens": int(1.1 * best["computed_tokens"]),
            "steps": usual["steps"],
        },
    )


def _solve_puzzle(**_) -> SchedulingPolicy:
    class LeastComputed(SchedulingPolicy):
        def victim(self, running):
            return min(running, key=lambda seq: seq.num_computed_tokens)

    return LeastComputed()


@seeded(difficulty=4, minutes=15)
def fit(rng: Random) -> Exercise:
    """Which policy serves a workload in a small pool, and in time?"""
    settings = {"num_blocks": 40, "block_size": 4, "max_model_len": 28, "max_num_seqs": 6}
    while True:
        workload = {
            name: (rng.randint(2, 9), rng.randint(4, 12), rng.choice([0, 0, 1]))
            for name in "ABCDEF"
        }
        peak_blocks = rng.randint(8, 10)
        chosen = _solve_fit(targets={"peak_blocks": peak_blocks})
        steps = measure(workload, **{**settings, **chosen})["steps"]
        if not _fits_as_it_is(workload, settings, peak_blocks, steps):
            break
    return Puzzle(
        "Serve these requests, (prompt, output tokens, step of arrival), within the targets: "
        "steps, and blocks at the highest point (peak_blocks). The policy, the size of the pool "
        "and max_num_seqs are yours to choose.",
        "In a small pool a request that is admitted late is preempted often. Which should be "
        "admitted last?",
        _solve_fit,
        workload=workload,
        settings=settings,
        may_set=("policy", "num_blocks", "max_num_seqs"),
        missed={
            "peak_blocks": "the pool, less block 0, is the most that can be held",
            "steps": "places are empty, or preempted requests compute their tokens again",
        },
        targets={"steps": steps, "peak_blocks": peak_blocks},
    )


def _fits_as_it_is(workload, settings, peak_blocks: int, steps: int) -> bool:
    """True if the usual policy does it, too, with some pool and some number of places."""
    for num_blocks in (peak_blocks + 1, settings["num_blocks"]):
        for places in range(1, len(workload) + 1):
            chosen = {"num_blocks": num_blocks, "max_num_seqs": places}
            found = measure(workload, **{**settings, **chosen})
            if found["peak_blocks"] <= peak_blocks and found["steps"] <= steps:
                return True
    return False


def _solve_fit(targets, **_) -> dict:
    class ShortestJobFirst(SchedulingPolicy):
        def key(self, request):
            return request.sampling_params.max_tokens

    num_blocks = targets["peak_blocks"] + 1  # block 0 is not usable
    return {"policy": ShortestJobFirst(), "num_blocks": num_blocks}
