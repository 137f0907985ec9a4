"""Lab of notebook 05: the scheduler's plan of one step, held to vLLM's own steps."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.lab.exercises.answers import is_whole
from minivllm.lab.exercises.labs.drawn_steps import drawn_steps
from minivllm.lab.exercises.labs.function_lab import FunctionLab, WrongEntry, call
from minivllm.lab.exercises.labs.recorded_steps import recorded_steps
from minivllm.lab.exercises.labs.run import Fault


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
    recorded = recorded_steps(
        enable_prefix_caching=False, enable_chunked_prefill=True, long_prefill_token_threshold=0
    )
    steps = 0
    for step in drawn_steps(seed, with_threshold=False) if seed else recorded:
        limits = {
            "token_budget": step.config["max_num_batched_tokens"],
            "max_num_seqs": step.config["max_num_seqs"],
            "num_free_blocks": step.num_free_blocks,
            "block_size": step.config["block_size"],
        }
        got = call(function, dict(step.running), dict(step.waiting), **limits)
        if not isinstance(got, dict) or not all(map(is_whole, got.values())):
            raise Fault("return a dict of whole numbers, tokens by name")
        _compare_plans(f"{step.name}, {limits}", got, step.plan)
        steps += 1
    if seed:
        return f"equal to the engine's own plan in {steps} drawn steps"
    return f"equal to vLLM's own plan in {steps} recorded steps"


def _compare_plans(where: str, got: dict, right: dict) -> None:
    for name, num_tokens in right.items():
        if got.get(name) != num_tokens:
            what = (
                "gets tokens in this step" if name not in got else "gets another number of tokens"
            )
            raise WrongEntry(f"{where}: {name} {what}", f"{name}: {num_tokens}")
    for name in got:
        if name not in right:
            raise WrongEntry(f"{where}: {name} gets no tokens in this step", f"{right}")
    if list(got) != list(right):
        raise WrongEntry(f"{where}: the order is another one", f"{list(right)}")


LAB = FunctionLab(
    "05",
    "Write the scheduler's plan of one step.",
    "Blocks of a running request: those for all tokens after the step, less those it has already.",
    3, 30, my_schedule, check_schedule,
)  # fmt: skip
