"""Exercises of notebook 00: blocks at the end, steps under a budget, a pool of the right size."""

from __future__ import annotations

from random import Random

from minivllm.lab.exercises.answers import NotYet, compare, whole_number
from minivllm.lab.exercises.exercise import Exercise, seeded
from minivllm.lab.sim import dry_run
from minivllm.trace.records import Preempted
from minivllm.utils.math_utils import cdiv

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
        "A request has num_prompt prompt tokens and generates num_output tokens. How many blocks "
        "does it hold in its last step?",
        {"num_prompt": num_prompt, "num_output": num_output, "block_size": block_size},
    )


def _check_blocks(answer, num_prompt, num_output, block_size) -> str:
    answer = whole_number(answer)
    written = num_prompt + num_output - 1
    right = -(-written // block_size)
    mistakes = {
        "you counted the last token, too. It is sampled in the last step, so its K and V "
        "are never computed.": right + 1,
        "these are blocks for the prompt alone; the answer needs some, too.": (
            cdiv(num_prompt, block_size)
        ),
        "these are blocks for the answer alone; the prompt needs some, too.": (
            cdiv(num_output, block_size)
        ),
        "these are positions; a block holds block_size of them.": written,
        "the last token takes no position, and the answer begins in the prompt's last block.": (
            cdiv(num_prompt, block_size) + cdiv(num_output, block_size)
        ),
    }
    wrong = f"{answer} blocks hold {answer * block_size} positions; count what is needed."
    compare(answer, right, mistakes, wrong)
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
        "num_requests requests arrive together, each with num_prompt prompt tokens, and each "
        "generates num_output tokens. A step computes at most budget tokens. How many steps until "
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
    prompts, decodes = num_requests * num_prompt, num_requests * (num_output - 1)
    draw = (
        f"To see it: timeline(dry_run([({num_prompt}, {num_output})] * {num_requests}, "
        f"num_blocks=64, max_num_batched_tokens={budget}))."
    )
    alone = cdiv(prompts, budget)
    mistakes = {
        f"the prompts alone need {alone} steps, and the last request then has tokens to write. "
        f"{draw}": alone,
        "almost: a decode takes a token of the budget, too, so the last prompt waits. "
        f"{draw}": right - 1,
        "all tokens divided by the budget: but the last steps are not full, because a request "
        f"decodes one token a step. {draw}": cdiv(prompts + decodes, budget),
        "that is one request after another; two share a step as soon as there is budget. "
        f"{draw}": num_requests * (cdiv(num_prompt, budget) + num_output - 1),
        "a step does not end with a prompt: the next prompt gets what is left of its budget. "
        f"{draw}": num_requests * cdiv(num_prompt, budget) + num_output - 1,
        "you let each answer wait for all prompts; a request decodes as soon as its own prompt "
        f"is done. {draw}": alone + num_requests * (num_output - 1),
    }
    few = f"it is more than {answer}: the prompts alone need {alone} steps, decodes take a part of "
    few += f"each budget, and the last request still has its answer to write. {draw}"
    many = f"it is less than {answer}: {prompts} prompt tokens and {decodes} decodes, {budget} a "
    many += f"step, and requests share the steps. {draw}"
    compare(answer, right, mistakes, few if answer < right else many)
    return (
        f"{right} steps: {prompts} prompt tokens and {decodes} decodes share {budget} a step, and "
        "the last prompt waits."
    )


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
        "Chats of these (prompt, output) tokens arrive together, none longer than max_model_len. "
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
    answer = whole_number(answer)
    if answer < least:
        raise NotYet(
            f"a pool must hold at least one sequence of {max_model_len} tokens: {least - 1} "
            "blocks and block 0."
        )
    if answer > 1000:
        raise NotYet("a thousand blocks would do, too.")
    count = _preemptions(answer, chats, block_size, max_model_len)
    if count:
        null = " Block 0 is one of them and holds no token."
        one_short = not _preemptions(answer + 1, chats, block_size, max_model_len)
        raise NotYet(f"with {answer} blocks the engine preempts {count} times.{null * one_short}")
    lengths = [cdiv(prompt + output - 1, block_size) for prompt, output in chats]
    if answer in (sum(lengths), sum(lengths) + 1):
        raise NotYet(
            f"{answer} blocks hold all chats at their full length; those that end early return "
            "their blocks before the others have grown, so fewer do."
        )
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
