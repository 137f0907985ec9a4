"""Exercises of notebook A3: how long sums wait, a weight in panels, a tile of registers."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.utils.math_utils import cdiv

# -- core: sums that wait --------------------------------------------------------------------------


def cycles(products: int, lanes: int, sums: int, latency: int, per_cycle: int) -> int:
    """Cycles of this number of products, added up in ``sums`` sums of ``lanes`` lanes each."""
    instructions = cdiv(products, lanes)
    by_rate = cdiv(instructions, per_cycle)  # as fast as they can be started
    by_waiting = cdiv(instructions, sums) * latency  # each waits for the sum before
    return max(by_rate, by_waiting)


@seeded(difficulty=2, minutes=8)
def waiting(rng: Random) -> Exercise:
    """Cycles of a product with one sum, and the fewest sums with which none waits."""
    return Exercise(
        _check_waiting,
        "One sum: each instruction waits until the one before is done. How many instructions can "
        "be started in that time?",
        _solve_waiting,
        "An instruction multiplies lanes pairs of numbers and adds the products to a sum of lanes "
        "lanes. It is done after latency cycles; per_cycle of them can be started in a cycle. How "
        "many cycles do products take if all go into one sum, and how many sums are needed so that "
        "no instruction waits for a sum? Answer with a pair (cycles, sums).",
        {
            "products": 64 * rng.randint(4, 12),
            "lanes": rng.choice([4, 8, 16]),
            "latency": rng.choice([3, 4, 5]),
            "per_cycle": rng.choice([1, 2]),
        },
    )


def _solve_waiting(products, lanes, latency, per_cycle):
    return cycles(products, lanes, 1, latency, per_cycle), latency * per_cycle


def _check_waiting(answer, products, lanes, latency, per_cycle) -> str:
    one, sums = whole_numbers(answer, ("cycles", "sums"))
    right = _solve_waiting(products, lanes, latency, per_cycle)
    compare(
        one,
        right[0],
        {
            "an instruction multiplies a vector of lanes numbers, not one.": products * latency,
            "with one sum each instruction waits for the one before.": right[0]
            // latency
            // per_cycle,
            "those are the instructions; with one sum each takes latency cycles.": right[0]
            // latency,
            "with one sum only one instruction is under way, however many could start.": right[0]
            // per_cycle,
        },
        f"with one sum it is not {one} cycles.",
        f"with one sum it is {right[0]} cycles.",
    )
    compare(
        sums,
        right[1],
        {
            "per_cycle instructions start in each cycle, so that many more sums.": latency,
            "while a sum is busy, per_cycle instructions start in each of latency cycles.": (
                per_cycle
            ),
            "lanes are within a vector; these sums are whole vectors.": latency * lanes,
        },
        f"{sums} is not the number of sums.",
        f"{right[1]} sums are needed.",
    )
    return f"{right[1]} sums at once hide that each takes {latency} cycles."


# -- stretch: a weight in panels -------------------------------------------------------------------


@seeded(difficulty=3, minutes=15)
def pack(rng: Random) -> Exercise:
    """A weight in the order in which a tile reads it."""
    calls = []
    for _ in range(12):
        outputs = rng.randint(1, 9)
        inputs = rng.randint(1, 4)
        numbers = iter(rng.sample(range(100), outputs * inputs))
        weight = [[next(numbers) for _ in range(inputs)] for _ in range(outputs)]
        calls.append((weight, rng.choice([2, 3, 4])))
    calls.sort(key=lambda call: len(call[0]) * len(call[0][0]))
    return FunctionExercise(
        "Write pack(weight, lanes): the numbers of a weight in the order in which a tile reads "
        "them, as one list. The weight is a list of rows, one for each output. A panel has lanes "
        "outputs, the last one perhaps fewer; panels follow one another, and in a panel the "
        "numbers of the first input come first, for each of its outputs, then those of the second.",
        "Three loops: panels, inputs, outputs of the panel. Which is the outermost?",
        _solve_pack,
        calls=calls,
        learnt="a tile reads its panel from one end to the other.",
        mistakes={
            "row by row, as it was; a panel goes input by input.": lambda weight, lanes: [
                number for row in weight for number in row
            ],
            "the whole weight transposed is one panel of all outputs.": lambda weight, lanes: [
                row[i] for i in range(len(weight[0])) for row in weight
            ],
            "the last panel is narrower, and is there, too.": lambda weight, lanes: _solve_pack()(
                weight[: len(weight) // lanes * lanes] or [[]], lanes
            ),
            "the lanes are outputs; you took lanes inputs.": lambda weight, lanes: [
                row[i]
                for first in range(0, len(weight[0]), lanes)
                for row in weight
                for i in range(first, min(first + lanes, len(row)))
            ],
        },
    )


def _solve_pack():
    def pack(weight, lanes):
        return [
            row[i]
            for first in range(0, len(weight), lanes)
            for i in range(len(weight[0]))
            for row in weight[first : first + lanes]
        ]

    return pack


# -- design: a tile of registers -------------------------------------------------------------------


@seeded(difficulty=4, minutes=15)
def tile(rng: Random) -> Exercise:
    """The tile that fits into the registers and loads the least for each product."""
    return Exercise(
        _check_tile,
        "A tile of 1 row and 1 vector loads twice for one instruction. What about 2 by 2? Then "
        "try all that fit.",
        _solve_tile,
        "A micro-kernel keeps a tile of rows * vectors sums in registers, and beside it vectors "
        "registers for a row of the right matrix and one for a number of the left one. For each k "
        "it loads vectors vectors and rows numbers, and runs rows * vectors instructions. To hide "
        "their latency it needs at least min_sums sums. Which tile of at most num_registers "
        "registers loads the least for each instruction? Answer with a pair (rows, vectors).",
        {"num_registers": rng.randint(12, 32), "min_sums": rng.randint(5, 10)},
    )


def _registers(rows: int, vectors: int) -> int:
    return rows * vectors + vectors + 1


def _solve_tile(num_registers, min_sums):
    fits = [
        (rows, vectors)
        for rows in range(1, num_registers)
        for vectors in range(1, num_registers)
        if _registers(rows, vectors) <= num_registers and rows * vectors >= min_sums
    ]
    return min(fits, key=lambda it: (sum(it) / (it[0] * it[1]), it[1]))


def _check_tile(answer, num_registers, min_sums) -> str:
    rows, vectors = whole_numbers(answer, ("rows", "vectors"))
    if min(rows, vectors) < 1:
        raise NotYet("a tile has at least one row and one vector.")
    if (needed := _registers(rows, vectors)) > num_registers:
        sums = rows * vectors
        raise NotYet(
            f"{rows} by {vectors} needs {needed} registers: {sums} sums, {vectors} for the right "
            f"matrix and 1 for the left; there are {num_registers}."
        )
    if rows * vectors < min_sums:
        raise NotYet(f"{rows} by {vectors} are {rows * vectors} sums; fewer than {min_sums} wait.")
    best = _solve_tile(num_registers, min_sums)
    loads, least = ((r + v) / (r * v) for r, v in ((rows, vectors), best))
    if loads > least:
        raise NotYet(
            f"{rows} by {vectors} loads {loads:.2f} for each instruction; another tile loads "
            "less. Squarer is better.",
            f"{best[0]} by {best[1]} loads {least:.2f}, yours {loads:.2f}.",
        )
    return f"{loads:.2f} loads for each instruction; 1 by 1 would have 2."
