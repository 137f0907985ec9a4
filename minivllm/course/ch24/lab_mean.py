"""Lab of notebook 24: MEAN of prompts that come in chunks, which the engine refuses."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose
from random import Random
from typing import Any

from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault

SIZE = 3


def my_mean_rows(hidden, names, query_lens, num_computed, prompt_lens, sums):
    """Mean of each prompt's rows, also of prompts that come in chunks.

    Args:
        hidden: the rows of a step, lists of numbers, prompt after prompt.
        names: of the prompts in the step.
        query_lens: how many rows of the step each prompt has.
        num_computed: how many rows earlier steps have computed of each.
        prompt_lens: how many rows each has in all.
        sums: a dict that is kept from step to step, empty at first. Leave in it, by name, what is
            needed of the prompts that are not complete, and nothing of the others. A prompt whose
            num_computed is 0 begins: it may have been preempted, and all its rows come again.

    Returns: a list with the mean of each prompt that is complete, None for each other.
    """
    raise NotImplementedError


def mean_rows(hidden, names, query_lens, num_computed, prompt_lens, sums):
    found, start = [], 0
    for name, new, before, length in zip(names, query_lens, num_computed, prompt_lens, strict=True):
        kept = sums.pop(name, [])
        total = kept if before else [0.0] * len(hidden[0])
        for row in hidden[start : start + new]:
            total = [a + b for a, b in zip(total, row, strict=True)]
        start += new
        if before + new == length:
            found.append([number / length for number in total])
        else:
            sums[name] = total
            found.append(None)
    return found


def check_mean_rows(function: Callable, seed: int) -> str:
    """Runs of a few prompts in chunks; some are preempted and begin again."""
    rng = Random(f"lab mean_rows {seed}")
    runs = 40
    for number in range(runs):
        _check_run(rng, function, may_preempt=number > 10)
    return f"{runs} runs: the means of whole prompts, in chunks and after preemptions"


def _check_run(rng: Random, function: Callable, may_preempt: bool) -> None:
    lengths = {name: rng.randint(1, 9) for name in "ABC"[: rng.randint(1, 3)]}
    rows = {
        name: [[rng.randint(-9, 9) for _ in range(SIZE)] for _ in range(length)]
        for name, length in lengths.items()
    }
    computed = dict.fromkeys(lengths, 0)
    sums = {}
    preempted = False
    while lengths:
        names = rng.sample(sorted(lengths), rng.randint(1, len(lengths)))
        new = [rng.randint(1, lengths[name] - computed[name]) for name in names]
        hidden = [
            row
            for name, num in zip(names, new, strict=True)
            for row in rows[name][computed[name] : computed[name] + num]
        ]
        before = [computed[name] for name in names]
        whole = [lengths[name] for name in names]
        rows_of_step = [list(row) for row in hidden]
        got = call(function, rows_of_step, list(names), list(new), before, whole, sums)
        _check_step(got, names, new, before=before, whole=whole, rows=rows, preempted=preempted)
        for name, num in zip(names, new, strict=True):
            computed[name] += num
            if computed[name] == lengths[name]:
                del lengths[name], computed[name]
                if name in sums:
                    raise Fault(f"{name} is complete, and sums still has it: nothing frees it")
        if may_preempt and lengths and rng.random() < 0.2:
            preempted = True
            computed[rng.choice(sorted(lengths))] = 0


def _check_step(got: Any, names, new, before, whole, rows, preempted: bool) -> None:
    if not isinstance(got, (list, tuple)) or len(got) != len(names):
        raise Fault(f"return a list with an entry for each of {' '.join(names)}")
    for mean, name, num, start, length in zip(got, names, new, before, whole, strict=True):
        where = f"{name}, rows {start} to {start + num - 1} of {length}"
        if start + num < length:
            if mean is not None:
                raise Fault(f"{where}: None, since the prompt is not complete")
            continue
        right = [sum(column) / length for column in zip(*rows[name], strict=True)]
        if not isinstance(mean, (list, tuple)) or len(mean) != SIZE:
            raise Fault(f"{where}: a list of {SIZE} numbers, since the prompt is complete")
        if not all(map(_near, mean, right)):
            why = _explain(mean, rows[name], start, num, preempted)
            raise WrongEntry(f"{where}: the mean is not {_short(mean)}{why}", f"{_short(right)}")


def _near(a: Any, b: float) -> bool:
    return isinstance(a, (int, float)) and isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def _explain(mean, rows, start: int, num: int, preempted: bool) -> str:
    """Return what a wrong mean forgets."""
    chunk = rows[start : start + num]
    length = len(rows)
    sums = [sum(column) for column in zip(*chunk, strict=True)]
    whole = [sum(column) for column in zip(*rows, strict=True)]
    for why, numbers in (
        ("that is the mean of this step's rows", [number / num for number in sums]),
        ("the rows of earlier steps are missing", [number / length for number in sums]),
        ("that is the sum", whole),
        ("divide by the prompt's length, not by this step's rows", [n / num for n in whole]),
    ):
        if all(map(_near, mean, numbers)):
            return f": {why}"
    return ": a prompt that begins again has no sum yet" if preempted else ""


def _short(numbers) -> list:
    return [round(n, 3) if isinstance(n, float) else n for n in numbers]


LAB = FunctionLab(
    "24",
    "Write MEAN for prompts that come in chunks.",
    "A mean is a sum and a count; the sum is what must be kept from one step to the next.",
    difficulty=3, minutes=15, stub=my_mean_rows, check=check_mean_rows,
)  # fmt: skip
