"""Scenarios: the small workloads and limits that a lab is graded with, the simplest ones first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from minivllm.course.asking.requests import make_request
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.make import make_scheduler
from minivllm.request import Request
from minivllm.scheduling.scheduler import Scheduler

BLOCK_SIZE = 4


@dataclass(frozen=True)
class Scenario:
    """Requests and limits, made anew for every run.

    Attributes:
        name: what a report calls it.
        requests: makes them.
        settings: where they differ from a large pool without caching.
    """

    name: str
    requests: Callable[[], list[Request]]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_simple(self) -> bool:
        """True if no block is shared, cached or swapped."""
        return not (self.shares or self.caches or self.settings.get("num_host_blocks"))

    @property
    def shares(self) -> bool:
        """True if samples of a prompt share its blocks."""
        return any(request.sampling_params.n > 1 for request in self.requests())

    @property
    def caches(self) -> bool:
        """True if full blocks can be found again."""
        return bool(self.settings.get("enable_prefix_caching"))

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


def scenarios(seed: int) -> list[Scenario]:
    """The simplest ones first, so that the first difference is a simple one; the last are drawn."""
    return [
        Scenario("one request", lambda: [make_request("A", 6, 5)]),
        Scenario("two requests", lambda: [make_request("A", 6, 7), make_request("B", 5, 6, 1)]),
        Scenario(
            "a prompt in chunks", lambda: [make_request("A", 13, 4)], {"max_num_batched_tokens": 5}
        ),
        Scenario(
            "too few blocks",
            lambda: [make_request("A", 6, 9), make_request("B", 7, 8), make_request("C", 5, 6)],
            {"num_blocks": 7, "max_model_len": 20},
        ),
        Scenario("two samples", lambda: [make_request("A", 6, 7, n=2)]),
        Scenario("three samples of a full block", lambda: [make_request("A", 8, 5, n=3)]),
        Scenario(
            "the same prompt again",
            lambda: [
                make_request("A", list(range(10)), 3),
                make_request("B", list(range(12)), 3, 4),
            ],
            CACHING,
        ),
        Scenario(
            "a prompt of full blocks again",
            lambda: [
                make_request("A", list(range(12)), 3),
                make_request("B", list(range(12)), 3, 4),
            ],
            CACHING,
        ),
        Scenario(
            "two of one step share",
            lambda: [make_request("A", TABLE, 3), make_request("B", [*TABLE, 8, 8], 3)],
            CACHING,
        ),
        Scenario(
            "equal blocks behind different ones",
            lambda: [
                make_request("A", [1] * 4 + [7] * 5, 2),
                make_request("B", [2] * 4 + [7] * 5, 2, 3),
            ],
            CACHING,
        ),
        Scenario(
            "salts keep strangers apart",
            lambda: [make_request("A", TABLE, 2), make_request("B", TABLE, 2, 2, cache_salt="b")],
            CACHING,
        ),
        Scenario(
            "a copy, and no free block",
            lambda: [make_request("A", list(range(6)), 4, n=2), make_request("B", [9] * 10, 2)],
            {"num_blocks": 6, "max_model_len": 16, **CACHING},
        ),
        Scenario(
            "eviction",
            lambda: [make_request(name, [i % 3] * 10, 3, 4 * i) for i, name in enumerate("ABCDEF")],
            {"num_blocks": 7, "max_model_len": 16, **CACHING},
        ),
        Scenario(
            "samples, and too few blocks",
            lambda: [make_request("A", 4, 14), make_request("B", [9] * 6, 5, n=3)],
            {"num_blocks": 8, "max_model_len": 20, **CACHING},
        ),
        Scenario(
            "out to the host, and back",
            lambda: [make_request("A", 4, 14), make_request("B", 6, 9, n=2)],
            {"num_blocks": 9, "max_model_len": 20, "num_host_blocks": 30},
        ),
        *(_random_scenario(number) for number in range(16 * seed, 16 * seed + 16)),
    ]


def _random_scenario(number: int) -> Scenario:
    rng = Random(f"lab {number}")
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
    return Scenario(
        f"drawn scenario {number}",
        lambda: [
            make_request(name, prompt, out, step, n=n) for name, prompt, out, step, n in specs
        ],
        settings,
    )
