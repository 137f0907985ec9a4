"""Lab of notebook 23, milestone 2: a token has come, and a placeholder is no longer needed."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.course.asking.answers import is_whole
from minivllm.course.ch23.recorded_calls import compare_calls, compare_drawn
from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault
from minivllm.request import Sequence
from minivllm.scheduling.async_scheduler import AsyncScheduler


def my_take_over(num_placeholders, num_computed, block_size):
    """A token of a sequence has come: what is on its way now, and which blocks may have a name?

    Args:
        num_placeholders: tokens on their way before this one was taken over. 0 for a sequence that
            was preempted meanwhile: nothing waits for its token, which is appended all the same.
        num_computed: tokens whose K and V are there when all plans in flight are over. 0 for one
            that was preempted: it has no blocks any more.
        block_size: tokens of a block.

    A block may have a name in the prefix cache when it is full of tokens that are known. The token
    that has just come is known, but its own K and V are computed by a later plan only.

    Returns: the tokens still on their way, and the number of blocks, from the first on, that may
    have a name.
    """
    raise NotImplementedError


def take_over(num_placeholders, num_computed, block_size):
    left = max(0, num_placeholders - 1)
    return left, (num_computed - left) // block_size


def check_take_over(function: Callable, seed: int) -> str:
    scheduler_cls = type("TakingOver", (_TakingOver,), {"take_over": staticmethod(function)})
    if seed:
        return f"right in {compare_drawn(scheduler_cls, seed)} drawn requests"
    num_calls, num_recordings = compare_calls(scheduler_cls)
    return f"equal to vLLM in {num_calls} calls of {num_recordings} recordings, names included"


class _TakingOver(AsyncScheduler):
    """AsyncScheduler that asks the reader's function, and says where it is wrong."""

    take_over: Callable[..., tuple[int, int]]

    def _append_sampled(self, seq: Sequence, token_ids: list[int]) -> None:
        size = self.kv_manager.block_size
        placeholders = seq.num_output_placeholders
        computed = seq.num_computed_tokens
        got = call(self.take_over, placeholders, computed, size)
        ok = isinstance(got, (tuple, list)) and len(got) == 2 and all(map(is_whole, got))
        if not ok:
            raise Fault("return two whole numbers: tokens on their way, and blocks")
        right = take_over(placeholders, computed, size)
        if tuple(got) != right:
            asked = f"my_take_over({placeholders}, {computed}, {size})"
            why = "more blocks are full of tokens that are known"
            if got[0] < 0:
                why = "no placeholder stood for this token, so there is none to take away"
            elif got[0] != right[0]:
                why = "one token that was on its way has come"
            elif got[1] == computed // size:
                why = "a token on its way is not known: a block that ends with it has no name yet"
            elif got[1] > right[1]:
                why = "these blocks are not full of known tokens"
            raise WrongEntry(f"{asked} is not {tuple(got)}: {why}", f"{right}")
        super()._append_sampled(seq, token_ids)


LAB = FunctionLab(
    "23",
    "Milestone 2: write what changes when a token comes that a placeholder stood for.",
    "Of the computed tokens the last ones are those that are still on their way.",
    difficulty=3, minutes=20, stub=my_take_over, check=check_take_over,
)  # fmt: skip
