"""Exercises of notebook 17: bytes, the admitted requests, a bug to find, enough slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from random import Random
from typing import Any

from minivllm.course.asking.answers import NotYet, compare, is_whole, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: bytes ---------------------------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def size(rng: Random) -> Exercise:
    """Bytes of an adapter, and of the matrices that it changes."""
    hidden = rng.choice([1024, 2048, 3072, 4096])
    layers = {"q_proj": (hidden, hidden), "v_proj": (hidden // rng.choice([4, 8]), hidden)}
    if rng.random() < 0.5:
        layers["down_proj"] = (hidden, rng.choice([3, 4]) * hidden)
    return Exercise(
        _check_size,
        "A has rank rows and as many columns as its layer has inputs; B has as many rows as the "
        "layer has outputs, and rank columns.",
        _solve_size,
        "A model has num_layers layers. An adapter of this rank changes these matrices of each "
        "layer, given as (rows, columns), that is (outputs, inputs). A number takes 2 bytes. How "
        "many bytes has the adapter, and how many have the matrices that it changes? Answer with "
        "a pair.",
        {"num_layers": rng.choice([16, 24, 32]), "rank": rng.choice([8, 16, 32]), "layers": layers},
    )


def _solve_size(num_layers, rank, layers):
    adapter = sum(rank * (outputs + inputs) for outputs, inputs in layers.values())
    changed = sum(outputs * inputs for outputs, inputs in layers.values())
    return 2 * num_layers * adapter, 2 * num_layers * changed


def _check_size(answer, num_layers, rank, layers) -> str:
    adapter, changed = whole_numbers(answer, ("adapter", "matrices"))
    right, whole = _solve_size(num_layers, rank, layers)
    outputs = sum(shape[0] for shape in layers.values())
    inputs = sum(shape[1] for shape in layers.values())
    compare(
        adapter,
        right,
        {
            "adapter: these are numbers; each takes 2 bytes.": right // 2,
            "adapter: that is one layer.": right // num_layers,
            "adapter: you counted A alone; B counts, too.": 2 * num_layers * rank * inputs,
            "adapter: you counted B alone; A counts, too.": 2 * num_layers * rank * outputs,
            "adapter: A is rank times inputs, and B outputs times rank: add them, do not multiply "
            "them.": 2 * num_layers * sum(rank * a * rank * b for a, b in layers.values()),
            "adapter: B A has the shape of W, but what is stored is A and B.": whole,
        },
        f"adapter: not {adapter:,} bytes. Each matrix costs rank * (outputs + inputs) numbers.",
        f"adapter: it is {right:,} bytes.",
    )
    compare(
        changed,
        whole,
        {
            "matrices: these are numbers; each takes 2 bytes.": whole // 2,
            "matrices: that is one layer.": whole // num_layers,
        },
        f"matrices: not {changed:,} bytes.",
        f"matrices: it is {whole:,} bytes.",
    )
    return f"the adapter is {right / whole:.1%} of what it changes."


# -- stretch: which are admitted ------------------------------------------------------------------


@seeded(difficulty=3, minutes=12)
def admit(rng: Random) -> FunctionExercise:
    """Requests that one step admits, with a limit on adapters."""
    solution = _solve_admit()
    calls = []
    while len(calls) < 40:
        max_loras = rng.randint(1, 3)
        names = ["a", "b", "c", "d"]
        active = rng.sample(names, max_loras)
        running = [rng.choice([None, *active]) for _ in range(rng.randint(0, 3))]
        waiting = [rng.choice([None, *names]) for _ in range(rng.randint(3, 6))]
        max_num_seqs = len(running) + rng.randint(2, 5)
        right = solution(running, waiting, max_loras, max_num_seqs)
        results = [
            wrong(running, waiting, max_loras, max_num_seqs) for wrong in _ADMIT_MISTAKES.values()
        ]
        # Of the calls that are shown, each tells several mistakes from the solution.
        least = 3 if len(calls) < 3 else 1
        if sum(str(result) != str(right) for result in results) >= least:
            calls.append((running, waiting, max_loras, max_num_seqs))
    return FunctionExercise(
        "Write admit(running, waiting, max_loras, max_num_seqs): the places in the queue, from 0, "
        "of those that one step admits. running and waiting hold the adapter of each request, or "
        "None for the base model; waiting is in the queue's order. Memory and budget are enough "
        "for all. A step holds at most max_loras adapters and max_num_seqs requests.",
        "Begin with the set of the running requests' adapters. A request whose adapter would be "
        "one too many is passed over; those behind it are still looked at.",
        _solve_admit,
        calls=calls,
        learnt="that is Scheduler._admit_waiting: a skipped request keeps its place in the queue.",
        mistakes=_ADMIT_MISTAKES,
        otherwise=_why_not_admitted,
    )


def _why_not_admitted(arguments: tuple, got: Any, right: list[int]) -> str:
    """The first place in the queue that is wrongly admitted, or wrongly passed over."""
    running, waiting, max_loras, max_num_seqs = arguments
    if not isinstance(got, list) or not all(map(is_whole, got)):
        return "give a list of places."
    if strange := [place for place in got if not 0 <= place < len(waiting)]:
        return f"the queue has no place {strange[0]}."
    if sorted(set(got)) != got:
        return "each place is there once, in the order of the queue."
    place = min(set(got) ^ set(right))
    before = [waiting[p] for p in right if p < place]
    active = list(dict.fromkeys(a for a in [*running, *before] if a is not None))
    if place in right:
        if waiting[place] is None:
            return f"place {place} has no adapter, and needs no slot."
        if waiting[place] in active:
            return f"the adapter of place {place} has a slot already."
        return f"place {place} is admitted: {len(active)} of {max_loras} slots are taken before it."
    if len(running) + len(before) == max_num_seqs:
        return f"before place {place} there are {max_num_seqs} requests, and no more may run."
    return f"place {place} is passed over: {' and '.join(active)} have all slots."


def _solve_admit():
    def admit(running, waiting, max_loras, max_num_seqs):
        active = {adapter for adapter in running if adapter is not None}
        admitted = []
        for place, adapter in enumerate(waiting):
            if len(running) + len(admitted) == max_num_seqs:
                break
            if adapter is not None and adapter not in active:
                if len(active) == max_loras:
                    continue
                active.add(adapter)
            admitted.append(place)
        return admitted

    return admit


def _admit_wrongly(
    blocks: bool = False, base_counts: bool = False, running_counts: bool = True,
    shares: bool = True, limited: bool = True,
) -> Callable:  # fmt: skip
    """Make an ``admit`` with a mistake."""

    def admit(running, waiting, max_loras, max_num_seqs):
        active = [a for a in running if base_counts or a is not None] if running_counts else []
        active = list(dict.fromkeys(active))
        admitted: list[int] = []
        for place, adapter in enumerate(waiting):
            if limited and len(running) + len(admitted) == max_num_seqs:
                break
            if (adapter is not None or base_counts) and not (shares and adapter in active):
                if len(active) >= max_loras and blocks:
                    break
                if len(active) >= max_loras:
                    continue
                active.append(adapter)
            admitted.append(place)
        return admitted

    return admit


_ADMIT_MISTAKES = {
    "a request that is skipped does not block those behind it.": _admit_wrongly(blocks=True),
    "the base model needs no slot.": _admit_wrongly(base_counts=True),
    "the running requests' adapters have slots already.": _admit_wrongly(running_counts=False),
    "requests of one adapter share its slot.": _admit_wrongly(shares=False),
    "at most max_num_seqs requests run.": _admit_wrongly(limited=False),
    "these are all that wait; some have no slot.": lambda running, waiting, *_: list(
        range(len(waiting))
    ),
}

# -- stretch: a bug to find ----------------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def bug(rng: Random) -> FunctionExercise:
    """A product with adapters whose tests passed, and that is wrong."""
    right = _solve_bug()
    calls = []
    while len(calls) < 30:
        slots = rng.randint(1, 3)
        a, b = ([rng.randint(1, 5) for _ in range(slots)] for _ in "ab")
        rows = rng.randint(2, 4)
        which = [rng.randint(-1, slots - 1) for _ in range(rows)]
        call = ([rng.randint(1, 9) for _ in range(rows)], which, rng.randint(1, 4), a, b)
        if -1 in which or len(calls) % 4 == 3:
            calls.append(call)
    return FunctionExercise(
        "Our layer has one input and one output, and rank 1: w, and a number a and a number b for "
        "each slot. def product(x, slots, w, a, b): return [w * x[i] + b[s] * a[s] * x[i] for i, "
        "s in enumerate(slots)]. Its tests, in which each row had an adapter, passed. In use some "
        "answers were wrong. slots holds -1 for a row without adapter. Write a product that is "
        "right.",
        "What is a[-1] in Python? Try it with one row that has no adapter.",
        _solve_bug,
        calls=calls,
        learnt="test the row that is different: one without adapter, beside others that have one.",
        mistakes={
            "a row without adapter gets the last slot's: a[-1] is its last number.": (
                lambda x, slots, w, a, b: [
                    w * x[i] + b[s] * a[s] * x[i] for i, s in enumerate(slots)
                ]
            ),
            "a row without adapter still has its product with w.": lambda x, slots, w, a, b: [
                (s >= 0) * (w + b[s] * a[s]) * x[i] for i, s in enumerate(slots)
            ],
            "slot 0 is an adapter's, too.": lambda x, slots, w, a, b: [
                w * x[i] + (s > 0) * b[s] * a[s] * x[i] for i, s in enumerate(slots)
            ],
            "a row without adapter gets slot 0's.": lambda x, slots, w, a, b: [
                w * x[i] + b[max(s, 0)] * a[max(s, 0)] * x[i] for i, s in enumerate(slots)
            ],
            "rows with an adapter need what it adds.": lambda x, slots, w, a, b: [
                w * row for row in x
            ],
            "a row is left out; each has a result, in the order of x.": (
                lambda x, slots, w, a, b: [
                    result
                    for result, s in zip(right(x, slots, w, a, b), slots, strict=True)
                    if s >= 0
                ]
            ),
        },
    )


def _solve_bug():
    def product(x, slots, w, a, b):
        y = []
        for row, slot in zip(x, slots, strict=True):
            change = b[slot] * (a[slot] * row) if slot >= 0 else 0
            y.append(w * row + change)
        return y

    return product


# -- design: slots -------------------------------------------------------------------------------


@seeded(difficulty=4, minutes=12)
def slots(rng: Random) -> Exercise:
    """The fewest slots with which adapters are seldom copied."""
    while True:
        names = ["pirate", "sql", "poet", "legal", "haiku"]
        weights = [4, 3, 2, 1, 1]
        used = rng.choices(names, weights, k=14)
        loads = [num_loads(used, n) for n in range(1, 6)]
        most_loads = loads[rng.choice([1, 2])]
        right = 1 + next(i for i, number in enumerate(loads) if number <= most_loads)
        oldest = [num_loads(used, n, touch=False) for n in range(1, 6)]
        if 1 < right < len(set(used)) and oldest != loads and len(set(loads)) == 5:
            break
    return Exercise(
        _check_slots,
        "Play it for 1, 2, 3, ... slots: keep a list of what is on the device, the least recently "
        "used first. What is used again moves to the end.",
        _solve_slots,
        "A server runs one request at a time; used says whose adapter each one has. An adapter "
        "that is in no slot is copied into one: a free one, or else that of the least recently "
        "used. A slot takes memory that blocks could have. What is the smallest max_loras with "
        "which at most most_loads copies are made, and how many are made with it? Answer with a "
        "pair (max_loras, copies).",
        {"used": used, "most_loads": most_loads},
    )


def num_loads(used: list[str], max_loras: int, touch: bool = True) -> int:
    """Adapters that are copied into a slot, if the least recently used gives way.

    Without ``touch`` it is the one that was loaded first.
    """
    present: OrderedDict[str, None] = OrderedDict()
    loads = 0
    for name in used:
        if name not in present:
            loads += 1
            if len(present) == max_loras:
                present.popitem(last=False)
            present[name] = None
        elif touch:
            present.move_to_end(name)
    return loads


def _why_not_copied(used: list[str], max_loras: int, copies: int) -> str:
    """A use that shows why there are more copies than that, or fewer."""
    present: list[str] = []
    again = kept = ""
    for place, name in enumerate(used):
        if name in present:
            kept = kept or f"{name}, use {place + 1}, is in a slot and is not copied"
            present.remove(name)
        elif name in used[:place]:
            again = again or f"{name}, use {place + 1}, gave way before and is copied again"
        present = [*present, name][-max_loras:]
    found = again if copies < num_loads(used, max_loras) else kept
    return found or "count the uses of an adapter that is in no slot"


def _solve_slots(used, most_loads):
    for max_loras in range(1, len(used) + 1):
        on_device, loads = [], 0  # the least recently used first
        for name in used:
            if name in on_device:
                on_device.remove(name)
            else:
                loads += 1
                if len(on_device) == max_loras:
                    on_device.pop(0)
            on_device.append(name)
        if loads <= most_loads:
            return max_loras, loads


def _check_slots(answer, used, most_loads) -> str:
    got, copies = whole_numbers(answer, ("max_loras", "copies"))
    right, right_loads = _solve_slots(used, most_loads)
    if not 1 <= got <= len(used):
        raise NotYet(f"there is at least one slot, and {len(used)} are too many in any case.")
    loads = num_loads(used, got)
    if loads > most_loads:
        raise NotYet(f"with {got} of them {loads} copies are made, and {most_loads} are allowed.")
    if got > right:
        every = "one for each adapter is more than needed" if got >= len(set(used)) else "fewer do"
        raise NotYet(f"{loads} copies are few enough, but {every}.")
    compare(
        copies,
        right_loads,
        {
            "copies: the first time an adapter is used, it is copied, too.": loads - len(set(used)),
            "copies: what is used again moves to the end of those that give way.": num_loads(
                used, got, touch=False
            ),
            "copies: a free slot does not save the copy.": loads - got,
            "copies: that is each use; an adapter that is in a slot is not copied.": len(used),
            "copies: one that gave way is copied again when it comes back.": len(set(used)),
        },
        f"copies: with {got} slots it is not {copies}: {_why_not_copied(used, got, copies)}.",
        f"copies: with {got} slots it is {right_loads}, not {copies}.",
    )
    return f"{loads} copies; with {len(set(used))} slots it would be {len(set(used))}."
