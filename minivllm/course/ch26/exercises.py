"""Exercises of notebook 26: tokens computed again, and the cause of a wait."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.utils.math_utils import cdiv

# -- core: what a preemption costs ---------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def again(rng: Random) -> Exercise:
    """Tokens that a preempted request computes again, and its steps until the next token."""
    block_size = rng.choice([16, 32])
    return Exercise(
        _check_again,
        "Write down how many tokens the request has, how many of them were computed, and how many "
        "are in blocks that are found.",
        _solve_again,
        "A request has prompt_len + num_output tokens when it is preempted. All were computed but "
        "the last one, which had just been sampled. When it resumes, its first num_found_blocks "
        "blocks are still in the prefix cache, and no other request is there. (1) How many tokens "
        "does it compute again, that is, for the second time? (2) How many steps does it take "
        "until it has its next token? Answer with a pair.",
        {
            "prompt_len": rng.choice([200, 300, 470]),
            "num_output": rng.choice([30, 45, 70]),
            "block_size": block_size,
            "num_found_blocks": rng.choice([2, 3, 5]),
            "max_num_batched_tokens": rng.choice([48, 64, 96]),
        },
    )


def _solve_again(prompt_len, num_output, block_size, num_found_blocks, max_num_batched_tokens):
    missing = prompt_len + num_output - num_found_blocks * block_size
    return missing - 1, cdiv(missing, max_num_batched_tokens)


def _check_again(
    answer, prompt_len, num_output, block_size, num_found_blocks, max_num_batched_tokens
) -> str:
    tokens, steps = whole_numbers(answer, ("tokens", "steps"))
    right, most = _solve_again(
        prompt_len, num_output, block_size, num_found_blocks, max_num_batched_tokens
    )
    compare(
        tokens,
        right,
        {
            "tokens: the last token was never computed before.": right + 1,
            "tokens: those in blocks that are found are not computed again.": (
                prompt_len + num_output - 1
            ),
            "tokens: the output is computed again, too.": (
                prompt_len - num_found_blocks * block_size
            ),
            "tokens: these are the ones that are found.": num_found_blocks * block_size,
        },
        f"tokens: not {tokens}. The request has {prompt_len + num_output} tokens.",
        f"tokens: it is {right}.",
    )
    compare(
        steps,
        most,
        {
            "steps: without what is found.": cdiv(prompt_len + num_output, max_num_batched_tokens),
            "steps: the last chunk gives the token; no decode comes behind it.": most + 1,
            "steps: the last step is not full, and it is a step, too.": most - 1,
        },
        f"steps: not {steps}. A step has at most {max_num_batched_tokens} tokens.",
        f"steps: it is {most}.",
    )
    return f"{right} tokens for nothing: that is the price of this preemption."


# -- stretch: why does it wait? ------------------------------------------------------------------


@seeded(difficulty=3, minutes=12)
def cause(rng: Random) -> FunctionExercise:
    """The limit that keeps the request at the head of the queue waiting."""
    some = rng.randint(1, 40)
    calls: list[tuple] = [(4, 4, 64, 64, 0), (2, 4, 64, 64, 1), (rng.randint(1, 3), 4, some, 64, 0)]
    while len(calls) < 60:
        most = rng.choice([4, 8])
        budget = rng.choice([32, 64])
        running = rng.choice([most, most, rng.randint(1, most)])
        num_tokens = rng.choice([budget, rng.randint(1, budget)])
        calls.append((running, most, num_tokens, budget, rng.choice([0, 0, 1, 2])))
    return FunctionExercise(
        "A step has been planned, and a request still waits at the head of the queue. Write "
        "cause(num_running, max_num_seqs, num_tokens, max_num_batched_tokens, num_preempted) from "
        "the plan: 'blocks', 'max_num_seqs' or 'budget'. A plan that preempts admits no request. "
        "Otherwise the scheduler looks at its limits in this order: place, budget, blocks.",
        "Which of the limits can be seen to be reached? What is left is blocks.",
        _solve_cause,
        calls=calls,
        learnt="that is `Walk._cause_at_head` of minivllm/xray/waits.py.",
        mistakes={
            "a plan that preempts lacks blocks, whatever else is full.": _causes(preempts=False),
            "a place is looked for before the budget.": _causes(budget_first=True),
            "the budget is used up when its last token is.": _causes(slack=1),
            "neither place nor budget is missing: so blocks are.": _causes(last="budget"),
        },
    )


def _solve_cause():
    return _causes()


def _causes(
    preempts: bool = True, budget_first: bool = False, slack: int = 0, last: str = "blocks"
):
    """Make a ``cause``, perhaps with a mistake."""

    def cause(num_running, max_num_seqs, num_tokens, max_num_batched_tokens, num_preempted):
        limits = {
            "max_num_seqs": num_running >= max_num_seqs,
            "budget": num_tokens >= max_num_batched_tokens + slack,
        }
        if preempts and num_preempted:
            return "blocks"
        for name in sorted(limits, reverse=not budget_first):
            if limits[name]:
                return name
        return last

    return cause
