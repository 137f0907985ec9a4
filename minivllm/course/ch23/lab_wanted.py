"""Lab of notebook 23, milestone 1: what a plan wants behind tokens that are on their way."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.course.asking.answers import is_whole
from minivllm.course.ch23.recorded_calls import compare_calls, compare_drawn
from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault
from minivllm.request import Sequence
from minivllm.scheduling.async_scheduler import AsyncScheduler
from minivllm.scheduling.output import SchedulerOutput


def my_wanted(num_known, num_placeholders, num_computed, num_most):
    """Tokens that the next plan should compute of a running sequence; the budget is not asked.

    Args:
        num_known: tokens that it has, prompt included.
        num_placeholders: tokens on their way behind these: plans in flight will give them.
        num_computed: tokens whose K and V are there when all plans in flight are over.
        num_most: tokens with which its length limit ends it.

    A token that is on its way can be computed by the next plan as if it were known. The last token
    of an answer needs no K and V. Returns 0 for a sequence that is to be passed over.
    """
    raise NotImplementedError


def wanted(num_known, num_placeholders, num_computed, num_most):
    num_tokens = num_known + num_placeholders
    if num_tokens >= num_most:
        return 0
    return num_tokens - num_computed


def check_wanted(function: Callable, seed: int) -> str:
    scheduler_cls = type("Planned", (_Planned,), {"wanted": staticmethod(function)})
    if seed:
        return f"right in {compare_drawn(scheduler_cls, seed)} drawn requests"
    num_calls, num_recordings = compare_calls(scheduler_cls)
    return f"equal to vLLM's own plans in {num_calls} calls of {num_recordings} recordings"


class _Planned(AsyncScheduler):
    """AsyncScheduler that asks the reader's function, and says where it is wrong."""

    wanted: Callable[..., int]

    def _num_new_tokens(self, seq: Sequence, output: SchedulerOutput) -> int:
        known = seq.num_tokens
        placeholders = seq.num_output_placeholders
        computed = seq.num_computed_tokens
        most = seq.num_prompt_tokens + seq.request.sampling_params.max_tokens
        got = call(self.wanted, known, placeholders, computed, most)
        if not is_whole(got):
            raise Fault("return a whole number")
        right = wanted(known, placeholders, computed, most)
        if got != right:
            asked = f"my_wanted({known}, {placeholders}, {computed}, {most})"
            why = ""
            if known + placeholders >= most:
                why = ": its last token is known or on its way, and behind it nothing is needed"
            elif got == known - computed:
                why = ": a token on its way can be computed, too; the device need not wait for it"
            elif got == known + placeholders:
                why = ": some of its tokens are computed already"
            raise WrongEntry(f"{asked} is not {got}{why}", f"{right}")
        return min(got, self.longest - computed)


LAB = FunctionLab(
    "23",
    "Milestone 1: write what a plan wants of a sequence whose tokens are on their way.",
    "How many tokens will it have when all plans in flight are over, and how many of them are "
    "computed then?",
    difficulty=2, minutes=15, stub=my_wanted, check=check_wanted,
)  # fmt: skip
