"""Settings of the page: the requests, and one or two engines that serve them. Checked here alone.

Names of the engine's settings are vLLM's. What is wrong is said in one sentence, with the range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any, TypeVar

from minivllm.lab.sim.make import make_request
from minivllm.request import Request
from minivllm.scheduling.policies import POLICIES
from minivllm.utils.validation import check, check_names, is_int, is_one_of

YOURS = "yours"  # the policy that the reader wrote
ARRIVALS = ("together", "evenly", "randomly")
NUM_PRIORITIES = 3
RANGES = {
    "num_requests": (1, 60),
    "gap": (0, 1000),
    "min_prompt": (1, 4000),
    "max_prompt": (1, 4000),
    "min_output": (1, 200),
    "max_output": (1, 200),
    "shared_prefix": (0, 4000),
    "long_prompt": (0, 8000),
    "seed": (0, 9999),
    "num_blocks": (2, 1000),
    "block_size": (1, 128),
    "max_num_batched_tokens": (1, 16384),
    "max_num_seqs": (1, 256),
    "sliding_window": (0, 4000),
    "prefix_cache_retention_interval": (0, 4000),
}
CHOICES = {
    "arrivals": ARRIVALS,
    "policy": (*POLICIES, YOURS),
    "preemption_mode": ("recompute", "swap"),
}
FLAGS = ("enable_chunked_prefill", "enable_prefix_caching")
T = TypeVar("T")


@dataclass(frozen=True)
class Workload:
    """Requests to be made. Lengths are in tokens, and drawn evenly between the two ends.

    Attributes:
        num_requests: all of them.
        arrivals: "together", "evenly" or "randomly" (a Poisson process).
        gap: milliseconds between two arrivals, or their mean.
        min_prompt, max_prompt: of each request's own part of the prompt.
        min_output, max_output: of the output.
        shared_prefix: what all prompts begin with.
        long_prompt: of one request in the first third, instead of its own part; 0: there is none.
        seed: of everything that is drawn.
    """

    num_requests: int = 12
    arrivals: str = "evenly"
    gap: int = 20
    min_prompt: int = 20
    max_prompt: int = 120
    min_output: int = 10
    max_output: int = 40
    shared_prefix: int = 0
    long_prompt: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for kind in ("prompt", "output"):
            low = getattr(self, f"min_{kind}")
            high = getattr(self, f"max_{kind}")
            check(low <= high, f"min_{kind}", low, f"at most max_{kind}={high}")

    def requests(self, with_priorities: bool) -> list[Request]:
        """Requests, with arrival times in seconds; the same ones on every call."""
        rng = Random(self.seed)
        made = []
        now = 0.0
        for index in range(self.num_requests):
            own = rng.randint(self.min_prompt, self.max_prompt)
            num_output = rng.randint(self.min_output, self.max_output)
            priority = rng.randrange(NUM_PRIORITIES)
            pause = rng.expovariate(1.0)
            if self.long_prompt and index == self.num_requests // 3:
                own = self.long_prompt
            tokens = [0] * self.shared_prefix + [index + 1] * own
            request = make_request(
                str(index),
                tokens,
                num_output,
                arrival_time=now,
                priority=priority if with_priorities else 0,
            )
            made.append(request)
            each = {"together": 0.0, "evenly": 1.0, "randomly": pause}[self.arrivals]
            now += each * self.gap / 1000
        return made


@dataclass(frozen=True)
class EngineSettings:
    """Settings of a scheduler and a block manager, named and meant as those of ``LLM``.

    With a ``sliding_window``, half of the model's layers see only that many tokens: they are a KV
    cache group of their own, and a block has the K and V of half the layers. 0: there is none.
    """

    num_blocks: int = 120
    block_size: int = 16
    max_num_batched_tokens: int = 256
    max_num_seqs: int = 16
    policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    preemption_mode: str = "recompute"
    sliding_window: int = 0
    prefix_cache_retention_interval: int = 0

    def check_retention(self, what: str) -> None:
        """Raise ``ValueError`` for an interval that has no effect, or at which no hit can end."""
        name = f"{what}'s prefix_cache_retention_interval"
        interval = self.prefix_cache_retention_interval
        ok = not interval or self.sliding_window
        check(ok, name, interval, "0 without a sliding window: then every full block is kept")
        ok = interval % self.block_size == 0
        check(ok, name, interval, f"a multiple of block_size={self.block_size}")


def read(cls: type[T], given: Any, what: str) -> T:
    """The settings of a mapping, which errors call ``what``; what it lacks is as the class has it.

    Raises:
        ValueError: for an unknown name, or a value that is out of range.
    """
    check(isinstance(given, Mapping), what, given, "an object with settings by name")
    check_names(what, given, [field.name for field in fields(cls)])
    for name, value in given.items():
        said = name if cls is Workload else f"{what}'s {name}"
        if name in CHOICES:
            check(is_one_of(value, CHOICES[name]), said, value, " or ".join(CHOICES[name]))
        elif name in FLAGS:
            check(isinstance(value, bool), said, value, "true or false")
        else:
            low, high = RANGES[name]
            ok = is_int(value, low) and value <= high
            check(ok, said, value, f"a whole number from {low} to {high:,}")
    settings = cls(**given)
    if isinstance(settings, EngineSettings):
        settings.check_retention(what)
    return settings
