"""Grading: a class is held to what our own code is: integrity, decisions, recordings, oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from minivllm.course.grading.differences import difference
from minivllm.course.grading.run import Fault, describe_error, run
from minivllm.course.grading.scenarios import Scenario, scenarios
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.recordings import GOLDEN, load_recording
from minivllm.lab.sim.replay import replay_steps
from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.wording import pad, sentence


@dataclass(frozen=True)
class Verdict:
    """Result of one check: passed, failed or not run, and why; drawn, if there is a figure."""

    check: str
    outcome: str
    text: str
    figure: Any = None

    def __str__(self) -> str:
        outcome = pad(translated(self.outcome), 8)
        return f"{outcome} {self.check:<10} {self.text}"


def verdicts(manager_cls: type[KVCacheManager], seed: int = 0) -> Iterator[Verdict]:
    """Run every check in turn; after a failure in a small one, the long ones are left out.

    Args:
        manager_cls: the class under test.
        seed: draws the scenarios and the oracle's requests; the recordings stay what they are.

    Raises:
        NotImplementedError: if nothing is written yet.
    """
    failed = first_fault(manager_cls, scenarios(seed))
    if failed is not None and failed.check != "integrity":
        with suppress(Fault):  # it may hold all the same
            yield Verdict("integrity", "passed", _check_integrity(manager_cls, seed))
    if failed is not None:
        yield failed
    for name, check in CHECKS.items():
        if failed is None:
            try:
                yield Verdict(name, "passed", check(manager_cls, seed))
            except Fault as fault:
                failed = Verdict(name, "FAILED", sentence(fault))
                yield failed
        elif name not in SMALL:
            yield Verdict(name, "not run", f"first mend what {failed.check!r} found")


def _check_integrity(manager_cls: type[KVCacheManager], seed: int) -> str:
    served = scenarios(seed)
    steps = 0
    for scenario in served:
        try:
            steps += sum(1 for _ in run(scenario, manager_cls, check_integrity=True))
        except Fault as fault:
            raise Fault(f"{scenario.name!r}, {fault}") from fault
    return f"check_integrity() holds after each of {steps} steps in {len(served)} small scenarios"


def first_step(manager_cls: type[KVCacheManager]) -> Verdict:
    """Verdict on the simplest scenarios: no sample shares a block, and nothing is cached."""
    simple = [scenario for scenario in scenarios(0) if scenario.is_simple]
    if failed := first_fault(manager_cls, simple):
        return replace(failed, check="first step")
    text = f"right in {len(simple)} small scenarios without samples and without a cache"
    return Verdict("first step", "passed", text)


def _check_decisions(manager_cls: type[KVCacheManager], seed: int) -> str:
    if failed := first_fault(manager_cls, scenarios(seed)):
        raise Fault(failed.text.rstrip(".。"))
    return "every block, copy, hit and preemption is the engine's"


def first_fault(manager_cls: type[KVCacheManager], served: list[Scenario]) -> Verdict | None:
    """First fault in the first scenario that has one: of a step, a decision before what it broke.

    Args:
        manager_cls: the class under test.
        served: the scenarios, the simplest ones first.
    """
    for scenario in served:
        right = run(scenario, KVCacheManager, check_integrity=False)
        mine = run(scenario, manager_cls, check_integrity=True)
        check = "integrity"
        try:
            for theirs, ours in zip(right, mine, strict=True):
                different = difference(ours, theirs)
                if different:
                    check = "decisions"
                    raise Fault(different)
        except Fault as fault:
            return Verdict(check, "FAILED", translated("{!r}, {}.").format(scenario.name, fault))
    return None


def _check_golden(manager_cls: type[KVCacheManager], seed: int) -> str:
    num_equal = compare_recordings(manager_cls)
    return f"equal to {num_equal} recordings of vLLM's own scheduler, block ids included"


def compare_recordings(manager_cls: type[KVCacheManager], with_cache: bool = True) -> int:
    """Compare every step of the recordings, or of those without a prefix cache only.

    Returns: how many recordings are equal.

    Raises:
        Fault: for the first difference.
    """
    num_equal = 0
    for path in GOLDEN:
        recording = load_recording(path)
        if recording["config"]["enable_prefix_caching"] and not with_cache:
            continue
        name = path.name.split(".")[0]
        steps = zip(recording["steps"], replay_steps(recording, manager_cls), strict=True)
        try:
            for want, got in steps:
                different = first_difference(want, got)
                if different:
                    raise Fault(f"recording {name}, step {want['step']}: {different}")
        except (Fault, NotImplementedError):
            raise
        except Exception as error:
            raise Fault(f"recording {name}: {describe_error(error)}") from error
        num_equal += 1
    return num_equal


def first_difference(want: dict[str, Any], got: dict[str, Any]) -> str | None:
    """Smallest difference of our step from that of a recording; None if there is none."""
    for key in want:
        if key == "scheduled" and key in got:
            for theirs, ours in zip(want[key], got[key], strict=False):
                different = first_difference(theirs, ours)
                if different:
                    return f"request {theirs['id']}: {different}"
            scheduled = [[entry["id"] for entry in step[key]] for step in (got, want)]
            if scheduled[0] != scheduled[1]:
                return f"scheduled are {scheduled[0]}, vLLM has {scheduled[1]}"
        elif got.get(key) != want[key]:
            return f"{key} is {got.get(key)}, vLLM has {want[key]}"
    return None


def _check_oracle(manager_cls: type[KVCacheManager], seed: int) -> str:
    # imported only to grade: the rest of this package runs without torch
    from minivllm.course.grading.oracle_check import first_wrong_token

    try:
        wrong = first_wrong_token(manager_cls, seed)
    except Exception as error:
        raise Fault(describe_error(error)) from error
    if wrong:
        raise Fault(wrong)
    return "every token of a random model is the one that recomputing everything gives"


SMALL = ("integrity", "decisions")
CHECKS: dict[str, Callable[[type[KVCacheManager], int], str]] = {
    "integrity": _check_integrity,
    "decisions": _check_decisions,
    "golden": _check_golden,
    "oracle": _check_oracle,
}
