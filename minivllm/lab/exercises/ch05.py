"""Exercises of notebook 05: one step's budget, static against continuous batching, a policy."""

from __future__ import annotations

import math
from functools import partial
from random import Random

from minivllm.lab.exercises.answers import NotYet, numbers_by_name, whole_numbers
from minivllm.lab.exercises.exercise import Exercise, seeded
from minivllm.lab.exercises.puzzle import Puzzle, measure
from minivllm.lab.exercises.requests import make_request
from minivllm.lab.sim import dry_run
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.trace import Trace
from minivllm.trace.records import Scheduled

# -- core: the budget of one step --------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def budget(rng: Random) -> Exercise:
    """Tokens that each request gets in the next step."""
    while True:
        limits = {
            "max_num_batched_tokens": rng.randint(6, 12),
            "max_num_seqs": rng.randint(3, 4),
        }
        workload = [make_request(name, rng.randint(3, 24), rng.randint(2, 8)) for name in "ABCDE"]
        trace = dry_run(workload, num_blocks=100, **limits)
        for step in range(1, trace.num_steps):
            plan = [r for r in trace.at(step) if isinstance(r, Scheduled)]
            state = trace.state_at(step - 1)
            if state.waiting and len(plan) > 1 and any(r.num_tokens > 1 for r in plan):
                return _budget_of_step(trace, step, limits)


def _budget_of_step(trace: Trace, step: int, limits: dict[str, int]) -> Exercise:
    state = trace.state_at(step - 1)
    plan = [r for r in trace.at(step) if isinstance(r, Scheduled)]
    num_tokens = {name: len(seq.token_ids) for name, seq in state.sequences.items()}
    computed = {name: seq.num_computed_tokens for name, seq in state.sequences.items()}
    return Exercise(
        partial(_check_budget, right={r.seq_id: r.num_tokens for r in plan}),
        "Everyone wants num_tokens - num_computed_tokens. Running ones come first, in their order; "
        "who comes when the budget is nearly spent gets what is left of it.",
        _solve_budget,
        "This is how things stand before a step: (tokens, computed tokens) of each running "
        "sequence, in order of admission, and the prompt of each waiting one. There are blocks "
        "enough. How many tokens of each does the step compute? Answer with a dict; who gets none "
        "may be left out.",
        {
            **limits,
            "running": {name: (num_tokens[name], computed[name]) for name in state.running},
            "waiting": {name: num_tokens[name] for name in state.waiting},
        },
    )


def _solve_budget(max_num_batched_tokens, max_num_seqs, running, waiting):
    left, plan = max_num_batched_tokens, {}
    for name, (num_tokens, num_computed) in running.items():
        plan[name] = min(num_tokens - num_computed, left)
        left -= plan[name]
    for name, num_tokens in list(waiting.items())[: max_num_seqs - len(running)]:
        plan[name] = min(num_tokens, left)
        left -= plan[name]
    return plan


def _check_budget(answer, right, max_num_batched_tokens, max_num_seqs, running, waiting) -> str:
    got = numbers_by_name(answer, [*running, *waiting], "tokens of each in this step")
    total, left = sum(got.values()), max_num_batched_tokens
    if total > left:
        raise NotYet(f"that is {total} tokens together, and the budget is {left}.")
    for name in (*running, *waiting):
        mine, theirs = got.get(name, 0), right.get(name, 0)
        if mine == theirs:
            left -= theirs
            continue
        num_tokens, num_computed = running.get(name) or (waiting[name], 0)
        wants = num_tokens - num_computed
        if theirs == 0 and left > 0:
            why = f"{len(right)} sequences run already, and max_num_seqs is {max_num_seqs}"
        else:
            why = f"it wants {num_tokens} - {num_computed} = {wants}, and {left} are left"
        raise NotYet(
            f"{name} does not get {mine} tokens.",
            f"{name} gets {theirs} tokens, not {mine}: {why}.",
        )
    return "prompts and decodes share one batch; there are no phases."


# -- stretch: static against continuous --------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def batching(rng: Random) -> Exercise:
    """How many steps until all are served, with each way of batching?"""
    return Exercise(
        _check_batching,
        "A static batch lasts as long as its longest member. With continuous batching a seat is "
        "taken again in the step after it was left.",
        _solve_batching,
        "These requests arrive together, with a short prompt each (its step gives the first token) "
        "and outputs of so many tokens. At most max_num_seqs run at once. How many steps does "
        "static batching take until all are served, and how many continuous batching? Answer with "
        "a pair (static, continuous).",
        {
            "outputs": [rng.choice([1, 2, 3, 4, 9, 12, 15]) for _ in range(rng.randint(6, 8))],
            "max_num_seqs": rng.randint(2, 3),
        },
    )


def _solve_batching(outputs, max_num_seqs):
    batches = range(0, len(outputs), max_num_seqs)
    static = sum(max(outputs[i : i + max_num_seqs]) for i in batches)
    seats = [0] * max_num_seqs  # the step in which each is free again
    for num_steps in outputs:
        first = seats.index(min(seats))
        seats[first] += num_steps
    return static, max(seats)


def _check_batching(answer, outputs, max_num_seqs) -> str:
    got = whole_numbers(answer, ("static", "continuous"))
    for mine, policy in zip(got, ("static", "fcfs"), strict=True):
        trace = dry_run(
            [(4, output) for output in outputs],
            num_blocks=100,
            max_num_seqs=max_num_seqs,
            policy=policy,
        )
        if mine == trace.num_steps:
            continue
        starts = {r.seq_id: r.step for r in trace.of(Scheduled) if r.kind == "new"}
        begin = ", ".join(f"{i} in step {step}" for i, step in starts.items())
        name = "static" if policy == "static" else "continuous"
        wrong = f"{name}: {mine} steps are too {'few' if mine < trace.num_steps else 'many'}."
        raise NotYet(
            wrong,
            f"{wrong} It takes {trace.num_steps}; by their index, the requests begin like this: "
            f"{begin}.",
        )
    return f"{got[0] - got[1]} of {got[0]} steps saved, with the same hardware."


# -- design: a policy --------------------------------------------------------------------------


@seeded(difficulty=4, minutes=15)
def puzzle(rng: Random) -> Exercise:
    """Policy with which all wait less in the mean."""
    settings = {"num_blocks": 100, "block_size": 4, "max_num_seqs": 2}
    while True:
        outputs = [rng.randint(12, 24), rng.randint(12, 24), *(rng.randint(2, 5) for _ in range(4))]
        rng.shuffle(outputs)
        workload = {name: (6, output) for name, output in zip("ABCDEF", outputs, strict=True)}
        usual = measure(workload, **settings)
        best = measure(workload, **settings, policy=_solve_puzzle())
        if usual["mean_finish"] > 1.3 * best["mean_finish"]:
            break
    return Puzzle(
        "Two seats, and requests, (prompt, output) tokens, that are all there at once. Write a "
        "SchedulingPolicy that keeps the mean number of steps until a request is done, "
        "mean_finish, at most as large as the target; and all of them may not take more steps "
        "than the target.",
        "Who should sit down first, if everybody else's time counts, too? (A real server does not "
        "know how long an answer will be; here max_tokens tells.)",
        _solve_puzzle,
        workload=workload,
        settings=settings,
        may_set=("policy",),
        targets={"mean_finish": math.ceil(10 * best["mean_finish"]) / 10, "steps": best["steps"]},
    )


def _solve_puzzle(**_) -> SchedulingPolicy:
    class ShortestJobFirst(SchedulingPolicy):
        def key(self, request):
            return request.sampling_params.max_tokens

    return ShortestJobFirst()
