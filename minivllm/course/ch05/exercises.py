"""Exercises of notebook 05: one step's budget, static against continuous batching, a policy."""

from __future__ import annotations

import math
from functools import partial
from random import Random

from minivllm.course.asking.answers import NotYet, compare, numbers_by_name, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.puzzle import Puzzle, measure
from minivllm.course.asking.requests import make_request
from minivllm.lab.sim import dry_run
from minivllm.lab.translation import translated
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.trace import Trace
from minivllm.trace.records import Scheduled
from minivllm.utils.math_utils import cdiv

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
        "Each request wants num_tokens - num_computed_tokens. Running ones come first, in their "
        "order; when the budget is nearly spent, a request gets what is left of it.",
        _solve_budget,
        "Before a step, running has (tokens, computed tokens) of each running sequence, in order "
        "of admission, and waiting has the prompt of each waiting one. There are blocks enough. "
        "How many tokens of each does the step compute? Answer with a dict; requests that get "
        "none may be left out.",
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
    total = sum(got.values())
    left = max_num_batched_tokens
    if total > left:
        raise NotYet(f"that is {total} tokens together, and the budget is {left}.")
    for name in (*running, *waiting):
        mine = got.get(name, 0)
        theirs = right.get(name, 0)
        if mine == theirs:
            left -= theirs
            continue
        num_tokens, num_computed = running.get(name) or (waiting[name], 0)
        wants = num_tokens - num_computed
        if theirs == 0 and left > 0:
            why = f"{len(right)} sequences run already, and max_num_seqs is {max_num_seqs}"
        else:
            why = f"it wants {num_tokens} - {num_computed} = {wants}, and {left} are left"
        has = f"{name} has {num_tokens} tokens and {num_computed} computed: it wants {wants}"
        mistakes = {
            f"{has}, and the budget allows them.": 1 if theirs == wants > 1 else None,
            f"{has}; what is computed is not computed again.": num_tokens,
            f"{has}, not what it has computed.": num_computed or None,
            f"a running sequence comes before all waiting ones. {has}.": (
                0 if theirs and name in running else None
            ),
            f"no phase is for decodes only: a prompt may join this step. {has}, and {left} are "
            "left.": 0 if theirs else None,
            f"{len(right)} sequences run already, and max_num_seqs is {max_num_seqs}.": (
                mine if mine and not theirs and left else None
            ),
            f"only {left} of the budget are left for it.": (mine if mine > left else None),
            f"{has} and gets less: {left} are left of the budget.": wants,
        }
        compare(
            mine,
            theirs,
            mistakes,
            f"{has}, and {left} of the budget are left.",
            f"{name} gets {theirs} tokens, not {mine}: {why}.",
            at=f"{name} does not get {mine}: ",
        )
    return "prompts and decodes share one batch; there are no phases."


# -- stretch: static against continuous --------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def batching(rng: Random) -> Exercise:
    """How many steps until all are served, with each way of batching?"""
    return Exercise(
        _check_batching,
        "A static batch lasts as long as its longest member. With continuous batching a place is "
        "taken again in the step after it was left.",
        _solve_batching,
        "These requests arrive together, with a short prompt each (its step gives the first "
        "token); outputs has their output tokens. At most max_num_seqs run at once. How many "
        "steps does static batching take until all are served, and how many continuous batching? "
        "Answer with a pair (static, continuous).",
        {
            "outputs": [rng.choice([1, 2, 3, 4, 9, 12, 15]) for _ in range(rng.randint(6, 8))],
            "max_num_seqs": rng.randint(2, 3),
        },
    )


def _solve_batching(outputs, max_num_seqs):
    batches = range(0, len(outputs), max_num_seqs)
    static = sum(max(outputs[i : i + max_num_seqs]) for i in batches)
    places = [0] * max_num_seqs  # the step in which each is free again
    for num_steps in outputs:
        first = places.index(min(places))
        places[first] += num_steps
    return static, max(places)


def _static_mistakes(outputs: list[int], places: int) -> tuple[str, dict[str, int]]:
    """The rule of static batching, and by explanation the steps that a mistake leads to."""
    static, continuous = _solve_batching(outputs, places)
    first = max(outputs[:places])
    total = sum(outputs)
    rule = f"A batch begins together and lasts as long as its longest: the first one {first} steps."
    return rule, {
        f"that is one request after another; a batch runs {places} at once.": total,
        f"a prompt's step gives the first token, too. {rule}": static + cdiv(len(outputs), places),
        f"these are the steps without waiting for the longest. {rule}": cdiv(total, places),
        f"you changed the two over. {rule}": continuous,
        "that is the first batch; the others come after it.": first,
    }


def _continuous_mistakes(outputs: list[int], places: int) -> tuple[str, dict[str, int]]:
    """The same of continuous batching."""
    static, continuous = _solve_batching(outputs, places)
    rule = f"Keep for each of the {places} places the step in which it is free."
    return rule, {
        f"that is one request after another; {places} run at once.": sum(outputs),
        f"that is all tokens divided by the places; at the end a place is empty. {rule}": (
            cdiv(sum(outputs), places)
        ),
        f"with continuous batching no request waits for a whole batch. {rule}": static,
        f"the next request takes the place that is free first, in the step after. {rule}": (
            continuous + 1
        ),
    }


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
        wrong = f"{name}: {mine} steps are too {'few' if mine < trace.num_steps else 'many'}"
        at = translated("{}: ").format(wrong)
        near, mistakes = _static_mistakes(outputs, max_num_seqs)
        if policy == "fcfs":
            near, mistakes = _continuous_mistakes(outputs, max_num_seqs)
        compare(
            mine,
            trace.num_steps,
            mistakes,
            at + near,
            f"{wrong}. It takes {trace.num_steps}; by their index, the requests begin like this: "
            f"{begin}.",
            at=at,
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
        "Two places (max_num_seqs), and requests, (prompt, output) tokens, that arrive together. "
        "Write a "
        "SchedulingPolicy that keeps the mean number of steps until a request is done, "
        "mean_finish, at most as large as the target; and all of them may not take more steps "
        "than the target.",
        "Which request should run first to keep the mean finishing time low? (A real server does "
        "not know how long an answer will be; here max_tokens tells.)",
        _solve_puzzle,
        workload=workload,
        settings=settings,
        may_set=("policy",),
        missed={
            "mean_finish": "requests that wait behind a long one wait for all of it",
            "steps": "a place was empty while requests waited",
        },
        targets={"mean_finish": math.ceil(10 * best["mean_finish"]) / 10, "steps": best["steps"]},
    )


def _solve_puzzle(**_) -> SchedulingPolicy:
    class ShortestJobFirst(SchedulingPolicy):
        def key(self, request):
            return request.sampling_params.max_tokens

    return ShortestJobFirst()
