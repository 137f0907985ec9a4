"""Exercises of notebook 00: blocks at the end, reading a timeline, a pool for chats."""

from __future__ import annotations

import re
from random import Random

from minivllm.course.asking.answers import compare, whole_number, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.requests import make_request
from minivllm.lab.sim import dry_run
from minivllm.lab.viz import Figure, timeline
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


# -- stretch: reading a timeline ---------------------------------------------------------------


@seeded(difficulty=2, minutes=4)
def reading(rng: Random) -> Exercise:
    """How long is a prompt, when does its first token come, and how long is the answer?"""
    budget = rng.randint(6, 9)
    a = make_request("A", rng.randint(3, budget - 1), rng.randint(4, 7))
    b = make_request("B", rng.randint(budget + 4, 2 * budget + 4), rng.randint(4, 7))
    trace = dry_run([a, b], num_blocks=33, block_size=4, max_num_batched_tokens=budget)
    return Exercise(
        _check_reading,
        "The step that computes the last tokens of a prompt also gives the first token of the "
        "answer. Each later step of the request gives one more.",
        _solve_reading,
        "This is a timeline as text: a number says how many tokens of a prompt a step computes, "
        "a dot that it computes the token that the step before gave. A step has a budget, so a "
        "prompt may take several. How many tokens does the prompt of B have? In which step does B "
        "get its first token? How many tokens does it get in all? Answer with a triple (prompt "
        "tokens, step, output tokens).",
        {"timeline": timeline(trace)},
    )


def _row_of_b(timeline: Figure) -> list[str]:
    """B's cells, from step 0 on: a number for prompt tokens, a dot for a decode."""
    row = next(line for line in str(timeline).splitlines() if line.startswith("B "))
    return re.findall(r"\d+|•", row)


def _check_reading(answer, timeline) -> str:
    row = _row_of_b(timeline)
    chunks = [int(cell) for cell in row if cell != "•"]
    decodes = row.count("•")
    prompt, step, output = whole_numbers(answer, ("prompt tokens", "step", "output tokens"))
    mistakes = {
        f"prompt tokens: {chunks[0]} is only B's first chunk; add the chunks that follow.": (
            chunks[0]
        ),
        "prompt tokens: a dot is a token of the answer.": sum(chunks) + decodes,
    }
    compare(prompt, sum(chunks), mistakes, "prompt tokens: add the numbers in B's row.")
    last = len(chunks) - 1
    mistakes = {
        f"step: the dot in step {last + 1} computes B's first token. Which step gave it?": last + 1,
        "step: only a part of B's prompt is computed in step 0, so no token comes of it.": 0,
    }
    wrong = "step: it is the step that computes the last tokens of B's prompt."
    compare(step, last, mistakes, wrong)
    mistakes = {
        "output tokens: you counted the dots. The step before the first gave a token, too.": (
            decodes
        ),
        "output tokens: a chunk that is not the prompt's last gives none.": len(row),
    }
    wrong = "output tokens: B gets one in the step of its last chunk, and one with each dot."
    compare(output, decodes + 1, mistakes, wrong)
    return f"{len(chunks)} chunks and {decodes} decodes; the last chunk gives a token, too."


def _solve_reading(timeline) -> tuple[int, int, int]:
    row = _row_of_b(timeline)
    chunks = [int(cell) for cell in row if cell != "•"]  # numbers: prompt tokens
    first_token = len(chunks) - 1  # steps count from 0
    return sum(chunks), first_token, len(row) - first_token  # one in each step from then on


# -- design: a pool for chats ------------------------------------------------------------------


@seeded(difficulty=2, minutes=4)
def pool(rng: Random) -> Exercise:
    """How large must a pool be that holds some chats at once?"""
    block_size = rng.choice([8, 16, 32])
    num_output = rng.randint(20, 90)
    # one more than a multiple, such that the last token must not be counted
    num_prompt = rng.randint(6, 30) * block_size - num_output + 1
    return Exercise(
        _check_pool,
        "First count the blocks of one chat. No two chats share a block here.",
        _solve_pool,
        "A server should hold num_chats chats at once, each of num_prompt prompt and num_output "
        "output tokens, up to their last steps. How many blocks must its pool have at least "
        "(num_gpu_blocks_override)? Block 0 is one of them.",
        {
            "num_chats": rng.randint(8, 40),
            "num_prompt": num_prompt,
            "num_output": num_output,
            "block_size": block_size,
        },
    )


def _check_pool(answer, num_chats, num_prompt, num_output, block_size) -> str:
    answer = whole_number(answer)
    right = _solve_pool(num_chats, num_prompt, num_output, block_size)
    each = (right - 1) // num_chats
    mistakes = {
        "no block 0: it is in the pool, and no request ever gets it.": right - 1,
        f"a chat writes {num_prompt + num_output - 1} positions: its last token is never "
        "computed.": num_chats * (each + 1) + 1,
        "these are a chat's blocks and block 0; num_chats chats are there at once.": each + 1,
        "these are blocks for the prompts alone; the answers need some, too.": (
            num_chats * cdiv(num_prompt, block_size) + 1
        ),
        "no two chats share a block: round up for each of them.": (
            cdiv(num_chats * (num_prompt + num_output - 1), block_size) + 1
        ),
    }
    wrong = f"{answer} blocks are too {'few' if answer < right else 'many'}: a chat takes {each}."
    compare(answer, right, mistakes, wrong)
    return f"{num_chats} chats of {each} blocks, and block 0."


def _solve_pool(num_chats, num_prompt, num_output, block_size) -> int:
    positions = num_prompt + num_output - 1  # the last token is sampled, never computed
    return num_chats * -(-positions // block_size) + 1  # block 0 is never given out
