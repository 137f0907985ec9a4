"""Lab of notebook 07: the rule that cuts prompts into chunks, held to vLLM's own steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from minivllm.course.asking.answers import is_whole
from minivllm.course.grading.drawn_steps import drawn_steps
from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.recorded_steps import RecordedStep, recorded_steps
from minivllm.course.grading.run import Fault


def my_cap(num_new, token_budget, long_prefill_token_threshold, num_requests):
    """How many of the num_new missing tokens of a request may this step compute?

    Never more than token_budget, which is what is left of it. And no more than the threshold, if it
    is above 0 and other requests are there, running or waiting: num_requests counts all of them.
    """
    raise NotImplementedError


def cap(num_new, token_budget, long_prefill_token_threshold, num_requests):
    if 0 < long_prefill_token_threshold < num_new and num_requests > 1:
        num_new = long_prefill_token_threshold
    return min(num_new, token_budget)


def check_cap(function: Callable, seed: int) -> str:
    calls = 0
    for step in _steps(seed):
        _check_step(function, step)
        calls += len(step.plan)
    alone = {"long_prefill_token_threshold": 4, "num_requests": 1}
    _check_number(function, 9, 20, alone, 9)
    _check_number(function, 9, 20, {"long_prefill_token_threshold": 0, "num_requests": 5}, 9)
    who = "the engine" if seed else "vLLM"
    return f"equal to what {who} scheduled {calls} times under a threshold"


def _steps(seed: int) -> Iterator[RecordedStep]:
    if seed:
        return drawn_steps(seed, with_threshold=True)
    return recorded_steps(long_prefill_token_threshold=lambda value: value > 0)


def _check_step(function: Callable, step: RecordedStep) -> None:
    budget = step.config["max_num_batched_tokens"]
    given = {
        "long_prefill_token_threshold": step.config["long_prefill_token_threshold"],
        "num_requests": len(step.running) + len(step.waiting),
    }
    for name, right in step.plan.items():
        _check_number(function, step.missing[name], budget, given, right)
        budget -= right


def _check_number(function: Callable, num_new: int, budget: int, given: dict, right: int) -> None:
    got = call(function, num_new, budget, **given)
    if got == right:
        return
    if not is_whole(got):
        raise Fault(f"return a whole number, not {got!r}")
    threshold = given["long_prefill_token_threshold"]
    num_requests = given["num_requests"]
    rules = {
        "no more than token_budget is left": got > budget,
        "only num_new tokens are missing": got > num_new,
        f"the threshold is {threshold}, and {num_requests} requests are there": (
            num_requests > 1 and 0 < threshold < got
        ),
        "the threshold counts only while other requests are there": num_requests == 1,
        "a threshold of 0 is none": not threshold,
        "it may compute more: the smallest of the limits decides": True,
    }
    why = next(rule for rule, broken in rules.items() if broken)
    where = f"num_new={num_new}, token_budget={budget}, "
    where += ", ".join(f"{name}={value}" for name, value in given.items())
    raise WrongEntry(f"{where}: not {got!r}, {why}", str(right))


LAB = FunctionLab(
    "07",
    "Write the rule that cuts prompts into chunks.",
    "Two limits; the second one holds only while other requests are there.",
    difficulty=1, minutes=10, stub=my_cap, check=check_cap,
    steps=_steps, check_step=_check_step,
)  # fmt: skip
