"""Exercises of notebook 00: blocks at the end, steps under a budget, a pool of the right size."""

from __future__ import annotations

from minivllm.lab.exercises.answers import NotYet, whole_number
from minivllm.lab.exercises.exercise import Exercise
from minivllm.lab.sim import dry_run
from minivllm.records import Preempted

PROMPT, OUTPUT, BLOCK_SIZE = 37, 12, 16
CROWD = [(30, 5)] * 4
CROWD_BUDGET = 16
CHATS = [(30, 20), (12, 40), (25, 25), (8, 8), (40, 10), (16, 16)]


def _check_blocks(answer) -> str:
    answer = whole_number(answer)
    cached = PROMPT + OUTPUT - 1
    if answer == -(-(cached + 1) // BLOCK_SIZE):
        raise NotYet(
            "you counted the last token, too. It is sampled in the last step, so its K and V "
            "are never computed."
        )
    right = -(-cached // BLOCK_SIZE)
    if answer != right:
        raise NotYet(f"{answer} blocks hold {answer * BLOCK_SIZE} positions; count what is needed.")
    return f"{cached} positions are written, {right} blocks hold them."


def _solve_blocks() -> int:
    positions = PROMPT + OUTPUT - 1  # the last token is sampled, never computed
    return -(-positions // BLOCK_SIZE)


def _crowd_trace():
    return dry_run(CROWD, num_blocks=64, max_num_batched_tokens=CROWD_BUDGET)


def _check_steps(answer) -> str:
    answer = whole_number(answer)
    right = _crowd_trace().num_steps
    if answer == -(-sum(prompt for prompt, _ in CROWD) // CROWD_BUDGET) + 4:
        raise NotYet("almost: a decode takes a token of the budget, too, so the last prompt waits.")
    if answer != right:
        raise NotYet(f"{answer} is too {'few' if answer < right else 'many'}; draw the timeline.")
    return f"the scheduler needs {right} steps."


def _solve_steps() -> int:
    return dry_run(CROWD, num_blocks=64, max_num_batched_tokens=CROWD_BUDGET).num_steps


def _preemptions(num_blocks: int) -> int:
    trace = dry_run(CHATS, num_blocks=num_blocks, block_size=4, max_model_len=64)
    return sum(1 for _ in trace.of(Preempted))


def _check_pool(answer) -> str:
    if whole_number(answer) < 17:
        raise NotYet("a pool must hold at least one sequence of 64 tokens: 16 blocks and block 0.")
    count = _preemptions(answer)
    if count:
        raise NotYet(f"with {answer} blocks the engine preempts {count} times.")
    if not _preemptions(answer - 1):
        raise NotYet(f"nothing is preempted, but {answer - 1} blocks would do, too.")
    return f"{answer} blocks are enough, {answer - 1} are not."


def _solve_pool() -> int:
    num_blocks = 17
    while _preemptions(num_blocks):
        num_blocks += 1
    return num_blocks


blocks = Exercise(
    _check_blocks,
    "Which token of a finished sequence has never been an input of the model?",
    _solve_blocks,
    f"A request has {PROMPT} prompt tokens and generates {OUTPUT}. Blocks hold {BLOCK_SIZE} "
    "positions. How many blocks does it hold in its last step?",
)
steps = Exercise(
    _check_steps,
    "The first step computes 16 tokens of the first prompt. Once that prompt is done, its decode "
    "takes one token of every step's budget.",
    _solve_steps,
    f"{len(CROWD)} requests of {CROWD[0][0]} prompt tokens and {CROWD[0][1]} output tokens arrive "
    f"together; a step may compute {CROWD_BUDGET} tokens. How many steps until the last token?",
)
pool = Exercise(
    _check_pool,
    "Requests finish at different times, so the sum of all lengths is too careful.",
    _solve_pool,
    f"Six chats of these (prompt, output) tokens: {CHATS}, in blocks of 4, none longer than 64 "
    "tokens. What is the smallest pool, block 0 included, in which no request is preempted (loses "
    "its blocks because there are too few, and is computed again later)? To see it, draw "
    "timeline(dry_run(ch00.CHATS, num_blocks=30, block_size=4, max_model_len=64)) from "
    "minivllm.sim and change the 30; a cross marks where a request loses its blocks.",
)
