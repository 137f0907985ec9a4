"""Exercises of notebook 00: blocks at the end, steps under a budget, a pool of the right size."""

from __future__ import annotations

from random import Random

from minivllm.lab.exercises.answers import NotYet, compare, whole_number
from minivllm.lab.exercises.exercise import Exercise, seeded
from minivllm.lab.sim import dry_run
from minivllm.trace.records import Preempted

# -- core: blocks at the end -------------------------------------------------------------------


@seeded(difficulty=1, minutes=3)
def blocks(rng: Random) -> Exercise:
    """How many blocks does a request hold in its last step?"""
    block_size = rng.choice([4, 8, 16, 32])
    num_output = rng.randint(5, 31)
    # such that the last token, which is never computed, would take one block more
    num_prompt = rng.randint(5, 60) * block_size - num_output + 1
    return Exercise(
        _check_blocks,
        "Which token of a finished sequence has never been an input of the model?",
        _solve_blocks,
        "A request has so many prompt tokens and generates so many output tokens. How many blocks "
        "does it hold in its last step?",
        {"num_prompt": num_prompt, "num_output": num_output, "block_size": block_size},
    )


def _check_blocks(answer, num_prompt, num_output, block_size) -> str:
    answer = whole_number(answer)
    written = num_prompt + num_output - 1
    right = -(-written // block_size)
    last_counted = (
        "you counted the last token, too. It is sampled in the last step, so its K and V "
        "are never computed."
    )
    wrong = f"{answer} blocks hold {answer * block_size} positions; count what is needed."
    compare(answer, right, {last_counted: right + 1}, wrong)
    return f"{written} positions are written, {right} blocks hold them."


def _solve_blocks(num_prompt, num_output, block_size) -> int:
    positions = num_prompt + num_output - 1  # the last token is sampled, never computed
    return -(-positions // block_size)


# -- stretch: steps under a budget -------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def steps(rng: Random) -> Exercise:
    """How many steps does a crowd take under a token budget?"""
    num_requests, budget = rng.randint(3, 6), rng.randint(12, 24)
    num_prompt = rng.randint(budget + 4, 2 * budget - 2)
    return Exercise(
        _check_steps,
        "The first step computes a part of the first prompt, as much as the budget allows. Once "
        "that prompt is done, its decode takes one token of every step's budget.",
        _solve_steps,
        "These requests arrive together; a step may compute so many tokens. How many steps until "
        "the last token?",
        {
            "num_requests": num_requests,
            "num_prompt": num_prompt,
            "num_output": rng.randint(4, 7),
            "budget": budget,
        },
    )


def _check_steps(answer, num_requests, num_prompt, num_output, budget) -> str:
    answer = whole_number(answer)
    right = _solve_steps(num_requests, num_prompt, num_output, budget)
    almost = "almost: a decode takes a token of the budget, too, so the last prompt waits."
    wrong = f"{answer} is too {'few' if answer < right else 'many'}; draw the timeline."
    compare(answer, right, {almost: right - 1}, wrong)
    return f"the scheduler needs {right} steps."


def _solve_steps(num_requests, num_prompt, num_output, budget) -> int:
    crowd = [(num_prompt, num_output)] * num_requests
    return dry_run(crowd, num_blocks=64, max_num_batched_tokens=budget).num_steps


# -- design: a pool of the right size ----------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def pool(rng: Random) -> Exercise:
    """Smallest pool in which no request is preempted."""
    chats = [(rng.randint(8, 40), rng.randint(8, 24)) for _ in range(6)]
    return Exercise(
        _check_pool,
        "Requests finish at different times, so the sum of all lengths is too careful.",
        _solve_pool,
        "Chats of these (prompt, output) tokens come together, none longer than max_model_len. "
        "What is the smallest pool, block 0 included, in which no request is preempted (loses its "
        "blocks because there are too few, and is computed again later)? To see it, draw "
        "timeline(dry_run(chats, num_blocks=30, block_size=4, max_model_len=64)) from minivllm.sim "
        "and change the 30; a cross marks where a request loses its blocks.",
        {"chats": chats, "block_size": 4, "max_model_len": 64},
    )


def _preemptions(num_blocks: int, chats, block_size, max_model_len) -> int:
    trace = dry_run(
        chats, num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len
    )
    return sum(1 for _ in trace.of(Preempted))


def _check_pool(answer, chats, block_size, max_model_len) -> str:
    least = max_model_len // block_size + 1
    if whole_number(answer) < least:
        raise NotYet(
            f"a pool must hold at least one sequence of {max_model_len} tokens: {least - 1} "
            "blocks and block 0."
        )
    if answer > 1000:
        raise NotYet("a thousand blocks would do, too.")
    count = _preemptions(answer, chats, block_size, max_model_len)
    if count:
        raise NotYet(f"with {answer} blocks the engine preempts {count} times.")
    if not _preemptions(answer - 1, chats, block_size, max_model_len):
        raise NotYet(
            f"nothing is preempted with {answer} blocks, nor with one less.",
            f"nothing is preempted; {_solve_pool(chats, block_size, max_model_len)} blocks do.",
        )
    return f"{answer} blocks are enough, {answer - 1} are not."


def _solve_pool(chats, block_size, max_model_len) -> int:
    num_blocks = max_model_len // block_size + 1
    while _preemptions(num_blocks, chats, block_size, max_model_len):
        num_blocks += 1
    return num_blocks
