"""The small worlds a lab is graded in: from one request in a roomy pool to everything at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.exercises.requests import ask
from minivllm.lab.sim.loop import make_scheduler
from minivllm.request import Request
from minivllm.scheduling.scheduler import Scheduler

BLOCK_SIZE = 4


@dataclass(frozen=True)
class World:
    """Requests and limits, made anew for every run.

    Attributes:
        name: what a report calls it.
        requests: makes them.
        settings: where they differ from a large pool without caching.
    """

    name: str
    requests: Callable[[], list[Request]]
    settings: dict[str, Any] = field(default_factory=dict)

    def scheduler(self, manager_cls: type[KVCacheManager]) -> Scheduler:
        """A scheduler with a manager of this class; the requests have not arrived yet."""
        settings = {
            "num_blocks": 40, "enable_prefix_caching": False, "num_host_blocks": 0,
            "max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 48,
            "preemption_mode": None, **self.settings,
        }  # fmt: skip
        manager = manager_cls(
            settings["num_blocks"],
            BLOCK_SIZE,
            settings["enable_prefix_caching"],
            settings["num_host_blocks"],
        )
        limits = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "preemption_mode")
        return make_scheduler(manager, **{name: settings[name] for name in limits})


CACHING = {"enable_prefix_caching": True}
TABLE = [7] * 9


def worlds() -> list[World]:
    """The simplest ones first, so that the first difference is a simple one."""
    return [
        World("one request", lambda: [ask("A", 6, 5)]),
        World("two requests", lambda: [ask("A", 6, 7), ask("B", 5, 6, 1)]),
        World("a prompt in chunks", lambda: [ask("A", 13, 4)], {"max_num_batched_tokens": 5}),
        World(
            "too few blocks",
            lambda: [ask("A", 6, 9), ask("B", 7, 8), ask("C", 5, 6)],
            {"num_blocks": 7, "max_model_len": 20},
        ),
        World("two samples", lambda: [ask("A", 6, 7, n=2)]),
        World("three samples of a full block", lambda: [ask("A", 8, 5, n=3)]),
        World(
            "the same prompt again",
            lambda: [ask("A", list(range(10)), 3), ask("B", list(range(12)), 3, 4)],
            CACHING,
        ),
        World(
            "a prompt of full blocks again",
            lambda: [ask("A", list(range(12)), 3), ask("B", list(range(12)), 3, 4)],
            CACHING,
        ),
        World(
            "two of one step share",
            lambda: [ask("A", TABLE, 3), ask("B", [*TABLE, 8, 8], 3)],
            CACHING,
        ),
        World(
            "equal blocks behind different ones",
            lambda: [ask("A", [1] * 4 + [7] * 5, 2), ask("B", [2] * 4 + [7] * 5, 2, 3)],
            CACHING,
        ),
        World(
            "salts keep strangers apart",
            lambda: [ask("A", TABLE, 2), ask("B", TABLE, 2, 2, cache_salt="b")],
            CACHING,
        ),
        World(
            "a copy, and no free block",
            lambda: [ask("A", list(range(6)), 4, n=2), ask("B", [9] * 10, 2)],
            {"num_blocks": 6, "max_model_len": 16, **CACHING},
        ),
        World(
            "eviction",
            lambda: [ask(name, [i % 3] * 10, 3, 4 * i) for i, name in enumerate("ABCDEF")],
            {"num_blocks": 7, "max_model_len": 16, **CACHING},
        ),
        World(
            "samples, and too few blocks",
            lambda: [ask("A", 4, 14), ask("B", [9] * 6, 5, n=3)],
            {"num_blocks": 8, "max_model_len": 20, **CACHING},
        ),
        *(_random_world(seed) for seed in range(16)),
    ]


def _random_world(seed: int) -> World:
    rng = Random(f"lab {seed}")
    specs = [
        (name, [rng.randint(1, 2)] * rng.randint(1, 9) + [3] * rng.randint(0, 4),
         rng.randint(1, 10), rng.randint(0, 6), rng.choice([1, 1, 2, 3]))
        for name in "ABCDEF"
    ]  # fmt: skip
    settings = {
        "num_blocks": rng.randint(19, 26),
        "max_num_batched_tokens": rng.choice([6, 12, 64]),
        "max_model_len": 24,
        "enable_prefix_caching": rng.random() < 0.7,
        "num_host_blocks": rng.choice([0, 30]),
        "preemption_mode": rng.choice([None, "recompute", "swap"]),
    }
    return World(
        f"drawn world {seed}",
        lambda: [ask(name, prompt, out, step, n=n) for name, prompt, out, step, n in specs],
        settings,
    )
