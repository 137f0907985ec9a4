"""Exercises of notebook 06: who gives way, what that costs, a policy and settings that avoid it."""

from __future__ import annotations

from functools import partial
from random import Random

from minivllm.lab.exercises.answers import NotYet, whole_numbers
from minivllm.lab.exercises.exercise import Exercise, seeded
from minivllm.lab.exercises.puzzle import Puzzle
from minivllm.lab.exercises.requests import make_request
from minivllm.lab.sim import dry_run
from minivllm.records import Preempted, Scheduled, SwappedIn, SwappedOut
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.trace import Trace

# -- core: the victim --------------------------------------------------------------------------


@seeded
def victim(rng: Random) -> Exercise:
    """Who gives its blocks back?"""
    policy = rng.choice(["fcfs", "priority"])
    names = rng.sample("ABCD", 4)
    while True:
        block_size = rng.choice([2, 3, 4])
        priorities = {name: rng.randint(0, 3) * (policy == "priority") for name in names}
        workload = [
            make_request(name, rng.randint(3, 12), rng.randint(5, 15), priority=priorities[name])
            for name in names
        ]
        trace = dry_run(
            workload,
            num_blocks=rng.randint(12, 16),
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
    more = ", and its priority (0 is the most important one)" if policy == "priority" else ""
    return Exercise(
        partial(_check_victim, right=right),
        "Go through the running list: whose next token needs a block? If none is free, somebody "
        "gives all of its blocks back. Under fcfs that is the one admitted last.",
        _solve_victim,
        f"Before a step, every running sequence has (computed tokens, blocks{more}), in order of "
        "admission, and each has one more token to compute. Nothing is shared. Who is preempted in "
        "this step? Answer with a list of names, in the order in which they give way.",
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
            rule = f"the least important have priority {worst}"
        if len(got) != len(right):
            rule += f"; {len(right)} must go, and you name {len(got)}"
        full = f"the blocks of {', '.join(needs)} are full and {num_free_blocks} are free"
        raise NotYet(f"{full}; {rule}.")
    return f"it computes {running[right[0]][0]} tokens again when it comes back."


# -- stretch: what it costs --------------------------------------------------------------------


@seeded
def cost(rng: Random) -> Exercise:
    """The same preemptions, paid for by computing again or by copying."""
    while True:
        lengths = [(name, rng.randint(4, 16), rng.randint(6, 20)) for name in "ABC"]
        num_blocks, block_size = rng.randint(12, 15), rng.choice([3, 4, 5])
        again, swapped = (
            dry_run(
                [make_request(*length) for length in lengths],
                num_blocks=num_blocks,
                block_size=block_size,
                max_model_len=33,
                preemption_mode=mode,
                num_host_blocks=50,
            )
            for mode in ("recompute", "swap")
        )
        preempted = _preempted(again)
        if preempted and preempted == _preempted(swapped):
            return Exercise(
                partial(_check_cost, again=again, swapped=swapped),
                "The token that was sampled last has no K and V yet. A swapped block crosses to "
                "the host, and back.",
                _solve_cost,
                "In a run these requests were preempted; (prompt tokens, tokens generated by then) "
                "of each. How many tokens are computed a second time if they are recomputed "
                "(nothing is cached), and how many blocks are copied, out and back, if they are "
                "swapped? Answer with a pair (tokens, blocks).",
                {"block_size": block_size, "preempted": preempted},
            )


def _preempted(trace: Trace) -> list[tuple[str, int, int]]:
    """Who gave way, in order, with the prompt and the number of tokens generated by then."""
    victims = []
    for record in trace.of(Preempted, SwappedOut):
        seq = trace.state_at(record.step - 1).sequences[record.seq_id]
        victims.append(
            (seq.seq_id, seq.num_prompt_tokens, len(seq.token_ids) - seq.num_prompt_tokens)
        )
    return victims


def _solve_cost(block_size, preempted):
    computed = [prompt + generated - 1 for _, prompt, generated in preempted]
    blocks = sum(-(-num_tokens // block_size) for num_tokens in computed)
    return sum(computed), 2 * blocks


def _check_cost(answer, again, swapped, block_size, preempted) -> str:
    tokens, blocks = whole_numbers(answer, ("tokens", "blocks"))
    right_tokens = _num_computed(again) - _num_computed(swapped)
    right_blocks = sum(len(r.block_ids) for r in swapped.of(SwappedOut, SwappedIn))
    if tokens == right_tokens + len(preempted):
        raise NotYet("tokens: the last one of each was sampled, but not computed before it left.")
    if tokens != right_tokens:
        parts = [f"{name} had computed {p + g - 1}" for name, p, g in preempted]
        raise NotYet(f"tokens: {', '.join(parts)}; you say {tokens}.")
    if blocks * 2 == right_blocks:
        raise NotYet("blocks: that is one way; what was copied out must come back, too.")
    if blocks != right_blocks:
        raise NotYet(
            f"blocks: not {blocks}; those that hold tokens with K and V cross twice.",
            f"blocks: {right_blocks // 2} hold tokens with K and V and cross twice, so "
            f"{right_blocks} copies, not {blocks}.",
        )
    return "which is cheaper depends on how fast the device computes and how fast the bus copies."


def _num_computed(trace: Trace) -> int:
    return sum(record.num_tokens for record in trace.of(Scheduled))


# -- design: without a preemption, and with a cheaper one --------------------------------------


def _solve_puzzle() -> SchedulingPolicy:
    class LeastComputed(SchedulingPolicy):
        def victim(self, running):
            return min(running, key=lambda seq: seq.num_computed_tokens)

    return LeastComputed()


puzzle = Puzzle(
    "The pool is too small for these requests, (prompt, output tokens, step of arrival), and who "
    "is preempted computes everything again. Write a SchedulingPolicy with which all requests "
    "together compute no more tokens, and take no more steps, than the targets say.",
    "A policy is asked for a victim(running). Each of them says what it would lose.",
    _solve_puzzle,
    workload={
        "A": (12, 6, 1), "B": (13, 8, 1), "C": (3, 14), "D": (7, 8), "E": (13, 11),
    },
    settings={"num_blocks": 10, "block_size": 4, "max_model_len": 28},
    may_set=("policy",),
    targets={"computed_tokens": 100, "steps": 25},
)  # fmt: skip


def _solve_fit() -> dict:
    class ShortestJobFirst(SchedulingPolicy):
        def key(self, request):
            return request.sampling_params.max_tokens

    return {"policy": ShortestJobFirst, "num_blocks": 10}  # block 0 is not usable


fit = Puzzle(
    "Serve these requests, (prompt, output tokens, step of arrival), in at most 14 steps with at "
    "most 9 blocks. The policy, the size of the pool and the number of seats are yours to choose.",
    "In a small pool who sits down late is preempted often. Who should be the last to sit down?",
    _solve_fit,
    workload={
        "A": (7, 4), "B": (7, 7), "C": (2, 9), "D": (9, 7), "E": (7, 8, 1), "F": (2, 5),
    },
    settings={"num_blocks": 40, "block_size": 4, "max_model_len": 28, "max_num_seqs": 6},
    may_set=("policy", "num_blocks", "max_num_seqs"),
    targets={"steps": 14, "peak_blocks": 9},
)  # fmt: skip
