"""Lab of notebook 05: the scheduler's plan of one step, held to vLLM's own steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from minivllm.course.asking.answers import is_whole
from minivllm.course.grading.drawn_steps import drawn_steps
from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.recorded_steps import RecordedStep, recorded_steps
from minivllm.course.grading.run import Fault
from minivllm.lab.translation import translated
from minivllm.utils.math_utils import cdiv


def my_schedule(running, waiting, token_budget, max_num_seqs, num_free_blocks, block_size):
    """Plan one step: how many tokens of each request it computes.

    Args:
        running: by name (tokens, computed tokens), in order of admission. Nothing is preempted: for
            what these need in this step there are blocks enough.
        waiting: by name the number of tokens, in the order of the queue; none is computed.
        token_budget: the most tokens that the step may compute.
        max_num_seqs: the most requests that may run.
        num_free_blocks: free blocks, each of block_size tokens.

    Running requests come first and want all that is not computed yet. Then waiting ones, while
    there is budget: a request is admitted if all of its tokens would fit into the free blocks, and
    takes blocks only for what this step computes of it. None overtakes one that does not fit.

    Returns: tokens by name, in this order; requests that get none are left out.
    """
    raise NotImplementedError


def schedule(running, waiting, token_budget, max_num_seqs, num_free_blocks, block_size):
    def num_blocks(num_tokens):
        return -(-num_tokens // block_size)

    plan = {}
    for name, (num_tokens, num_computed) in running.items():
        num_new = min(num_tokens - num_computed, token_budget)
        if num_new > 0:
            plan[name] = num_new
            token_budget -= num_new
            num_free_blocks -= num_blocks(num_computed + num_new) - num_blocks(num_computed)
    num_running = len(running)
    for name, num_tokens in waiting.items():
        fits = num_blocks(num_tokens) <= num_free_blocks
        if token_budget == 0 or num_running == max_num_seqs or not fits:
            break
        plan[name] = min(num_tokens, token_budget)
        token_budget -= plan[name]
        num_free_blocks -= num_blocks(plan[name])
        num_running += 1
    return plan


def check_schedule(function: Callable, seed: int) -> str:
    number = 0
    for step in _steps(seed):
        _check_step(function, step)
        number += 1
    if seed:
        return f"equal to the engine's own plan in {number} drawn steps"
    return f"equal to vLLM's own plan in {number} recorded steps"


def _steps(seed: int) -> Iterator[RecordedStep]:
    if seed:
        return drawn_steps(seed, with_threshold=False)
    return recorded_steps(
        enable_prefix_caching=False, enable_chunked_prefill=True, long_prefill_token_threshold=0
    )


def _check_step(function: Callable, step: RecordedStep) -> None:
    limits = {
        "token_budget": step.config["max_num_batched_tokens"],
        "max_num_seqs": step.config["max_num_seqs"],
        "num_free_blocks": step.num_free_blocks,
        "block_size": step.config["block_size"],
    }
    got = call(function, dict(step.running), dict(step.waiting), **limits)
    if not isinstance(got, dict) or not all(map(is_whole, got.values())):
        raise Fault("return a dict of whole numbers, tokens by name")
    _compare_plans(step, got)


def _compare_plans(step: RecordedStep, got: dict) -> None:
    """Walk through the requests in order, with the budget and the blocks that are left."""
    size = step.config["block_size"]
    where = _state(step)
    budget = step.config["max_num_batched_tokens"]
    free = step.num_free_blocks
    takers = []
    for name in (*step.running, *step.waiting):
        num_tokens, num_computed = step.running.get(name) or (step.waiting[name], 0)
        right = step.plan.get(name, 0)
        mine = got.get(name, 0)
        if mine != right or (not right and name in got):
            why = f"{name} lacks {num_tokens - num_computed} tokens, and {budget} are left"
            if name in step.waiting and not right and budget:
                need = cdiv(num_tokens, size)
                why = f"{name} needs {need} blocks for all of its tokens, and {free} are free"
                if takers:
                    why += f": of {step.num_free_blocks}, {', '.join(takers)}"
                if sum(map(bool, step.plan.values())) >= step.config["max_num_seqs"]:
                    why = f"{step.config['max_num_seqs']} requests run already"
                elif need <= free:
                    why = f"{name} may not overtake a request that does not fit"
            raise WrongEntry(f"{where}: {name} does not get {mine}. {why}", f"{step.plan}")
        budget -= right
        num_taken = cdiv(num_computed + right, size) - cdiv(num_computed, size)
        free -= num_taken
        if num_taken:
            takers.append(f"{name} takes {num_taken}")
    if list(got) != list(step.plan):
        raise WrongEntry(f"{where}: the order is another one", f"{list(step.plan)}")


def _state(step: RecordedStep) -> str:
    """Return everything that the plan of a step is made from, a line for each."""
    config = step.config
    none = translated("none")
    return (
        f"{step.name}\n"
        f"    running   {step.running or none}, of at most {config['max_num_seqs']}\n"
        f"    waiting   {step.waiting or none}\n"
        f"    free      {step.num_free_blocks} blocks of {config['block_size']}\n"
        f"    budget    {config['max_num_batched_tokens']}\n"
        "    "
    )


LAB = FunctionLab(
    "05",
    "Write the scheduler's plan of one step.",
    "Blocks of a running request: those for all tokens after the step, less those it has already.",
    difficulty=3, minutes=30, stub=my_schedule, check=check_schedule,
    steps=_steps, check_step=_check_step,
)  # fmt: skip
