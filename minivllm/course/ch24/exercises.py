"""Exercises of notebook 24: steps, the row that LAST takes, the place of an instruction."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.utils.math_utils import cdiv

# -- core: steps ---------------------------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def steps(rng: Random) -> Exercise:
    """Steps of a batch of prompts that are embedded, and that are answered."""
    return Exercise(
        _check_steps,
        "A step computes up to max_num_batched_tokens prompt tokens. The token that the last chunk "
        "of a prompt gives is its first output token.",
        _solve_steps,
        "Prompts of this length all arrive at once; chunked prefill is on, nothing is cached, and "
        "memory and max_num_seqs are enough. (1) How many steps does an engine take that embeds "
        "them? (2) Alone in a generating engine, one of these prompts is answered with num_output "
        "tokens. How many steps does that take? Answer with a pair.",
        {
            "num_prompts": rng.choice([12, 20, 30, 50]),
            "prompt_len": rng.choice([150, 170, 200, 300]),
            "max_num_batched_tokens": rng.choice([64, 128]),
            "num_output": rng.choice([10, 20, 40]),
        },
    )


def _solve_steps(num_prompts, prompt_len, max_num_batched_tokens, num_output):
    embed = cdiv(num_prompts * prompt_len, max_num_batched_tokens)
    return embed, cdiv(prompt_len, max_num_batched_tokens) + num_output - 1


def _check_steps(answer, num_prompts, prompt_len, max_num_batched_tokens, num_output) -> str:
    embed, generate = whole_numbers(answer, ("embed", "generate"))
    right, other = _solve_steps(num_prompts, prompt_len, max_num_batched_tokens, num_output)
    chunks = cdiv(prompt_len, max_num_batched_tokens)
    compare(
        embed,
        right,
        {
            "embed: a step is filled with the next prompt's tokens; no prompt begins a new one.": (
                num_prompts * chunks
            ),
            "embed: the last step is not full, and it is a step, too.": (
                num_prompts * prompt_len // max_num_batched_tokens
            ),
            "embed: nothing is sampled afterwards: no step comes behind the last chunk.": right + 1,
            "embed: that is one prompt.": chunks,
        },
        f"embed: not {embed} steps. All prompts together have {num_prompts * prompt_len} tokens.",
        f"embed: it is {right} steps.",
    )
    compare(
        generate,
        other,
        {
            "generate: the step of the last chunk gives the first output token.": other + 1,
            "generate: these are the decodes; the prompt takes steps as well.": num_output,
            "generate: that is the prompt alone.": chunks,
            "generate: of one prompt, not of all.": right + num_output - 1,
        },
        f"generate: not {generate} steps. The prompt is {chunks} chunks.",
        f"generate: it is {other} steps.",
    )
    return f"{num_prompts} vectors in {right} steps, one answer in {other}."


# -- stretch: the row that LAST takes ------------------------------------------------------------


@seeded(difficulty=2, minutes=8)
def rows(rng: Random) -> FunctionExercise:
    """The row of a step that LAST takes of each prompt."""
    calls: list[tuple] = []
    while len(calls) < 40:
        num = rng.randint(2, 4)
        new = [rng.randint(1, 6) for _ in range(num)]
        computed = [rng.choice([0, 0, rng.randint(1, 8)]) for _ in range(num)]
        left = [rng.choice([0, 0, rng.randint(1, 6)]) for _ in range(num)]
        lengths = [a + b + c for a, b, c in zip(computed, new, left, strict=True)]
        if len(calls) >= 3 or (any(left) and any(computed) and not all(left)):
            calls.append((new, computed, lengths))
    return FunctionExercise(
        "A step computes query_lens[i] tokens of prompt i, behind num_computed[i] that earlier "
        "steps computed; the prompt has prompt_lens[i]. All rows of the step are in one flat "
        "batch, prompt after prompt. Write last_rows(query_lens, num_computed, prompt_lens): a "
        "list with the row, counted in the batch, that LAST takes of each prompt; None for a "
        "prompt that is not complete.",
        "Where prompt i ends in the batch is the sum of query_lens up to i.",
        _solve_rows,
        calls=calls,
        learnt="that is `last` of minivllm/pooling/methods.py.",
        mistakes={
            "a prompt whose end is not in this step has no vector yet: None.": _rows(waits=False),
            "rows are counted from the batch's first; earlier steps' rows are not in it.": _rows(
                position=True
            ),
            "that is a place within the prompt's own rows; those before it count, too.": _rows(
                flat=False
            ),
            "that is one row too far: it belongs to the next prompt.": _rows(shift=1),
            "that is the first row of each prompt, as CLS takes it.": _rows(first=True),
            "a prompt that is in chunks is complete in the end: add num_computed.": _rows(
                forgets=True
            ),
        },
    )


def _solve_rows():
    def last_rows(query_lens, num_computed, prompt_lens):
        found, end = [], 0
        for new, before, length in zip(query_lens, num_computed, prompt_lens, strict=True):
            end += new
            found.append(end - 1 if before + new == length else None)
        return found

    return last_rows


def _rows(
    waits: bool = True, position: bool = False, flat: bool = True, shift: int = 0,
    first: bool = False, forgets: bool = False,
):  # fmt: skip
    """Make a ``last_rows`` with a mistake."""

    def last_rows(query_lens, num_computed, prompt_lens):
        found = []
        end = 0
        for new, before, length in zip(query_lens, num_computed, prompt_lens, strict=True):
            end += new
            row = (end if flat else new) - 1 + shift + before * position
            complete = (0 if forgets else before) + new == length
            found.append((end - new if first else row) if complete or not waits else None)
        return found

    return last_rows


# -- design: the place of the instruction --------------------------------------------------------


@seeded(difficulty=4, minutes=10)
def cached(rng: Random) -> Exercise:
    """Tokens that a classifier computes, with its instruction in front or behind."""
    block_size = rng.choice([16, 32])
    return Exercise(
        _check_cached,
        "A block is found again only if all tokens up to its end are those of an earlier request.",
        _solve_cached,
        "A classifier reads an instruction with each of num_requests requests, which come one "
        "after the other and differ from their first token on. Nothing else is in the prefix "
        "cache, and memory is enough. How many tokens does the engine compute in all (1) with the "
        "instruction in front of each request and the task classify, (2) with the instruction "
        "behind each request, (3) with the instruction in front and the task token_classify? "
        "Answer with a triple.",
        {
            "instruction_len": block_size * rng.randint(3, 9) + rng.randint(1, block_size - 1),
            "request_len": rng.randint(8, 40),
            "num_requests": rng.randint(5, 60),
            "block_size": block_size,
        },
    )


def _solve_cached(instruction_len, request_len, num_requests, block_size):
    every = num_requests * (instruction_len + request_len)
    found = instruction_len // block_size * block_size  # by each request but the first
    return every - (num_requests - 1) * found, every, every


def _check_cached(answer, instruction_len, request_len, num_requests, block_size) -> str:
    front, behind, tokens = whole_numbers(answer, ("in front", "behind", "token_classify"))
    right, every, _ = _solve_cached(instruction_len, request_len, num_requests, block_size)
    found = instruction_len // block_size * block_size
    compare(
        front,
        right,
        {
            "in front: only full blocks are found.": (every - (num_requests - 1) * instruction_len),
            "in front: the first request finds nothing.": every - num_requests * found,
            "in front: the full blocks of the instruction are found by all but the first.": every,
            "in front: that is one request.": instruction_len + request_len,
        },
        f"in front: not {front:,}. {found} tokens of the instruction are in full blocks.",
        f"in front: it is {right:,}.",
    )
    compare(
        behind,
        every,
        {
            "behind: the requests differ from their first token on, so no block is found.": right,
            "behind: a block's hash is of all tokens before it, too; none is found.": (
                behind if behind < every else None
            ),
        },
        f"behind: not {behind:,}; the engine has {every:,} tokens in all.",
        f"behind: it is {every:,}.",
    )
    compare(
        tokens,
        every,
        {
            "token_classify: it wants the state of each token, and only K and V are cached.": (
                tokens if tokens < every else None
            ),
        },
        f"token_classify: not {tokens:,}; the engine has {every:,} tokens in all.",
        f"token_classify: it is {every:,}.",
    )
    return f"in front {right / every:.0%} of the tokens are computed: what all share comes first."
