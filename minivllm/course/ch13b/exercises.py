"""Exercises of notebook 13b: what a replay saves, what padding costs, which sizes to capture."""

from __future__ import annotations

from itertools import combinations
from random import Random

from minivllm.course.asking.answers import NotYet, compare, number_list, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.lab.sim.launches import launch_each, launch_graph

# -- core: time ----------------------------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def replay(rng: Random) -> Exercise:
    """Time of a step, launched kernel by kernel and replayed."""
    return Exercise(
        _check_replay,
        "A kernel begins when it is started and the one before it has ended. Which of the two does "
        "it wait for here?",
        _solve_replay,
        "A step runs num_kernels kernels of kernel_us each, one after the other; the CPU needs "
        "launch_us to start one, and to start a graph. When is the last kernel done, counted from "
        "the first launch, without a graph and with one? Answer with a pair of µs.",
        {
            "num_kernels": rng.randrange(100, 900, 20),
            "kernel_us": rng.choice([2, 3, 9, 12]),
            "launch_us": rng.choice([5, 6, 8]),
        },
    )


def _solve_replay(num_kernels, kernel_us, launch_us):
    slower = max(kernel_us, launch_us)
    eager = num_kernels * slower + min(kernel_us, launch_us)
    return eager, launch_us + num_kernels * kernel_us


def _check_replay(answer, num_kernels, kernel_us, launch_us) -> str:
    eager, graph = whole_numbers(answer, ("without", "with"))
    kernels = [kernel_us] * num_kernels
    right = [int(run(kernels, launch_us)[-1].gpu[1]) for run in (launch_each, launch_graph)]
    compare(
        eager,
        right[0],
        {
            "the CPU does not wait for a kernel's end: launches and kernels overlap.": num_kernels
            * (kernel_us + launch_us),
            "the last kernel still runs when the last launch is done.": num_kernels * launch_us,
            "the first kernel waits for its launch.": num_kernels * kernel_us,
        },
        f"without a graph it is not {eager} µs.",
        f"without a graph it is {right[0]} µs.",
    )
    compare(
        graph,
        right[1],
        {
            "the graph is started once, and that takes time, too.": num_kernels * kernel_us,
            "a replay has one launch, not one a kernel.": right[0],
        },
        f"with a graph it is not {graph} µs.",
        f"with a graph it is {right[1]} µs.",
    )
    bound = "launches" if launch_us > kernel_us else "the GPU"
    return (
        f"this step is bound by {bound}; a graph makes it {right[0] / right[1]:.2f} times faster."
    )


# -- stretch: write the lookup ---------------------------------------------------------------------


@seeded(difficulty=2, minutes=8)
def rows(rng: Random) -> Exercise:
    """The rows that a batch has once it is padded to a captured size."""
    sizes = [1, 2, 4, *range(8, 8 * rng.randint(3, 6), 8)]
    calls = [
        (sizes, [1] * (sizes[-1] - rng.randint(1, 5))),
        (sizes, [1, 1, rng.randint(2, 40)]),
        (sizes, [1] * rng.randint(1, 4)),
        (sizes, [1] * (sizes[-1] + rng.randint(1, 9))),
        *((sizes, [1] * rng.randint(1, sizes[-1])) for _ in range(6)),
        (sizes, [1] * sizes[-1]),
        (sizes, [rng.randint(2, 9)]),
    ]
    return FunctionExercise(
        "Write my_rows(sizes, query_lens): how many sequences has a batch once it is padded? sizes "
        "are captured, in ascending order; query_lens are the tokens that each sequence computes "
        "in this step. A batch with a prefill, or larger than all sizes, is not padded.",
        "A decode computes one token. bisect.bisect_left finds the first size that is not smaller.",
        _solve_rows,
        calls=calls,
        learnt="that is CUDAGraphRunner.size_for: steps without a graph are launched as they are.",
        explain=_explain_rows,
    )


def _solve_rows():
    from bisect import bisect_left

    def my_rows(sizes, query_lens):
        if max(query_lens) > 1 or len(query_lens) > sizes[-1]:
            return len(query_lens)
        return sizes[bisect_left(sizes, len(query_lens))]

    return my_rows


def _explain_rows(arguments, got, right) -> None:
    sizes, query_lens = arguments
    if max(query_lens) > 1 and got in sizes:
        raise NotYet(f"{query_lens} has a prefill; only batches of decodes were captured.")
    if len(query_lens) > sizes[-1]:
        raise NotYet(f"{len(query_lens)} sequences are more than the largest size, {sizes[-1]}.")
    if got is not None and got < len(query_lens):
        raise NotYet(f"a graph of {got} rows has no room for {len(query_lens)} sequences.")
    if got == len(query_lens):
        raise NotYet(f"a captured size holds these {got} decodes, so the batch is padded to it.")
    if got in sizes:
        raise NotYet(f"{got} rows are enough, but a smaller captured size is, too.")


# -- design: choose the sizes ----------------------------------------------------------------------


@seeded(difficulty=4, minutes=15)
def sizes(rng: Random) -> Exercise:
    """Sizes to capture, so that little is padded."""
    batches = sorted(rng.sample(range(1, 65), 9))
    steps = {size: rng.choice([10, 20, 50, 100]) for size in batches}
    return Exercise(
        _check_sizes,
        "One of the sizes must be the largest batch. Then move one of the others at a time.",
        _solve_sizes,
        "A server ran this many steps of each batch size. Each captured size takes memory, so at "
        "most num_sizes are captured, and every batch must fit into one. Which sizes let the "
        "fewest rows be padded in all? Answer with a list.",
        {"steps": steps, "num_sizes": 3},
    )


def padded_rows(steps: dict[int, int], chosen: list[int]) -> int:
    """Rows that are padded in all, if each batch takes the smallest size that holds it."""
    return sum(n * (min(s for s in chosen if s >= size) - size) for size, n in steps.items())


def _solve_sizes(steps, num_sizes):
    largest = max(steps)
    others = combinations([size for size in steps if size < largest], num_sizes - 1)
    return min(([*some, largest] for some in others), key=lambda some: padded_rows(steps, some))


def _check_sizes(answer, steps, num_sizes) -> str:
    chosen = number_list(answer, "sizes to capture")
    if len(chosen) > num_sizes:
        raise NotYet(f"these are {len(chosen)} sizes; memory is for {num_sizes}.")
    if not chosen or max(chosen) < max(steps):
        raise NotYet(f"a batch of {max(steps)} fits into none of them.")
    got = padded_rows(steps, chosen)
    best = padded_rows(steps, _solve_sizes(steps, num_sizes))
    if got > best:
        unused = [size for size in chosen if size not in steps]
        why = "sizes of frequent batches pad nothing"
        if unused:
            why = f"no batch has {unused[0]} rows, so the next smaller batch size pads less"
        raise NotYet(f"{got:,} rows are padded, {best:,} are possible: {why}.")
    share = got / sum(size * n for size, n in steps.items())
    return f"{got:,} rows are padded, {share:.0%} of the real ones; no three sizes do better."
