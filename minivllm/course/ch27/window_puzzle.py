"""Puzzle of notebook 27: an order and a retention interval for prompts that share beginnings."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.puzzle import Puzzle, measure
from minivllm.scheduling.policies import FCFSPolicy, SchedulingPolicy

INTERVALS = (0, 2, 4, 8, 16)


@seeded(difficulty=4, minutes=20)
def puzzle(rng: Random) -> Exercise:
    """An order and an interval with which little is computed twice."""
    while True:
        length = rng.randrange(12, 23, 2)
        beginnings = rng.choice([[1, 2] * 3, [1, 2, 3] * 2])
        rng.shuffle(beginnings)
        workload = {
            name: ([beginning] * length + [10 + i] * rng.randint(1, 3), 2)
            for i, (name, beginning) in enumerate(zip("ABCDEF", beginnings, strict=True))
        }
        settings = {
            "num_blocks": length + rng.randint(7, 10), "block_size": 2,
            "max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 64,
            "enable_prefix_caching": True, "sliding_windows": (None, rng.randint(3, 7)),
        }  # fmt: skip

        def computed(
            policy: SchedulingPolicy, interval: int, workload=workload, settings=settings
        ) -> float:
            chosen = {"policy": policy, "prefix_cache_retention_interval": interval}
            return measure(workload, **settings, **chosen)["computed_tokens"]

        target = computed(**_named(_solve_puzzle()))
        as_they_come = min(computed(FCFSPolicy(), interval) for interval in INTERVALS)
        together = [computed(_solve_puzzle()["policy"], interval) for interval in INTERVALS]
        if target == min(together) < as_they_come and together[0] > target < max(together[1:]):
            break
    return Puzzle(
        "Long beginnings (tokens 1, tokens 2, ...), and questions behind them. Each request is "
        "(prompt, output tokens). The model has a group of full attention and one of windows. Give "
        "a dict with a SchedulingPolicy as 'policy' and a 'prefix_cache_retention_interval', a "
        "multiple of block_size, with which no more tokens are computed than the target.",
        "Which request comes next, if the one before had another beginning? And with interval 0, "
        "what do the windows keep of the first request of a kind, and what of the second?",
        _solve_puzzle,
        workload=workload,
        settings=settings,
        may_set=("policy", "prefix_cache_retention_interval"),
        missed={
            "computed_tokens": "a beginning is computed again if others took its blocks in "
            "between, or if no block is kept where it ends"
        },
        targets={"computed_tokens": target},
    )


def _named(answer: dict) -> dict:
    return {"policy": answer["policy"], "interval": answer["prefix_cache_retention_interval"]}


def _solve_puzzle(**_):
    class SameBeginningTogether(SchedulingPolicy):
        def key(self, request):
            return (request.prompt_token_ids[0], request.arrival_index)

    return {"policy": SameBeginningTogether(), "prefix_cache_retention_interval": 2}
