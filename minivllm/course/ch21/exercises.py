"""Exercises of notebook 21: coroutines in one loop, who waits how long, what a hang-up frees."""

from __future__ import annotations

from itertools import accumulate
from random import Random

from minivllm.course.asking.answers import NotYet, compare, number_list, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.utils.math_utils import cdiv

# -- core: coroutines in one event loop ----------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def event_loop(rng: Random) -> Exercise:
    """When does each coroutine end?"""
    while True:
        coroutines = {
            name: [rng.randint(1, 9) for _ in range(3)] for name in ("ada", "ben", "cleo")
        }
        undisturbed = _undisturbed_ends(coroutines)
        timers = {
            end - last for end, (_, _, last) in zip(undisturbed, coroutines.values(), strict=True)
        }
        if len(timers) == 3 and _solve_event_loop(coroutines) != undisturbed:
            break
    return Exercise(
        _check_event_loop,
        "The first parts run one after the other. Then the loop takes the one whose timer is over "
        "first; if it is busy until later, the coroutine begins later.",
        _solve_event_loop,
        "Three coroutines start at the same moment, in this order, in one event loop. Each one "
        "computes for a number of milliseconds, awaits a timer, and computes again: [computes, "
        "timer, computes]. After how many milliseconds does each end? Answer with a list.",
        {"coroutines": coroutines},
    )


def _undisturbed_ends(coroutines) -> list[int]:
    """End of each, if the loop were free as soon as its timer is over."""
    before = accumulate((first for first, _, _ in coroutines.values()), initial=0)
    return [begin + sum(parts) for begin, parts in zip(before, coroutines.values(), strict=False)]


def _solve_event_loop(coroutines):
    now, wakes = 0, []
    for name, (first, timer, _) in coroutines.items():
        now += first  # the loop is busy with one at a time
        wakes.append((now + timer, name))
    ends = {}
    for wake, name in sorted(wakes):
        now = ends[name] = max(now, wake) + coroutines[name][2]
    return [ends[name] for name in coroutines]


def _check_event_loop(answer, coroutines) -> str:
    right = _solve_event_loop(coroutines)
    undisturbed = _undisturbed_ends(coroutines)
    in_a_row = list(accumulate(map(sum, coroutines.values())))
    mine = number_list(answer, "one for each coroutine")
    if len(mine) != len(right):
        raise NotYet(f"give {len(right)} numbers, one for each coroutine.")
    for index, (name, parts) in enumerate(coroutines.items()):
        got = mine[index]
        end = right[index]
        mistakes = {
            f"{name}: that is its own time, and others compute in the same loop.": sum(parts),
            f"{name}: the loop was busy when its timer was over.": undisturbed[index],
            f"{name}: while a timer runs, the loop runs others.": in_a_row[index],
        }
        value = f"{name} ends after {end} ms, not {got}."
        compare(got, end, mistakes, f"{name} does not end after {got} ms.", value)
    computed = sum(first + last for first, _, last in coroutines.values())
    return f"of {max(right)} ms the loop computed for {computed}; timers run beside each other."


# -- stretch: one at a time, or together ---------------------------------------------------------


@seeded(difficulty=2, minutes=8)
def first_tokens(rng: Random) -> Exercise:
    """When does each client get its first token, with a lock and with two places?"""
    while True:
        outputs = [rng.randint(2, 9) for _ in range(4)]
        together = _first_tokens(outputs, 2)
        if len(set(outputs)) == 4 and together[3] != together[2]:
            break
    return Exercise(
        _check_first_tokens,
        "A place is free in the step after its request's last token. With one place, each request "
        "waits for all tokens of those before it.",
        _solve_first_tokens,
        "Four requests come at the same moment, in this order; each step computes a whole prompt "
        "or one token for each running request, and a prompt's step gives the first token. After "
        "how many steps does each get its first token if a lock lets one request in at a time, and "
        "after how many with continuous batching and two places (max_num_seqs=2)? Answer with two "
        "lists.",
        {"output_tokens": outputs},
    )


def _first_tokens(outputs: list[int], places: int) -> list[int]:
    """The step, counted from 1, in which each request gets its first token."""
    free = [0] * places  # the last step in which a place was taken
    found = []
    for tokens in outputs:
        place = free.index(min(free))
        found.append(free[place] + 1)
        free[place] += tokens
    return found


def _solve_first_tokens(output_tokens):
    locked = [1 + sum(output_tokens[:i]) for i in range(4)]
    left, together = [0, 0], []  # the steps after which each place is free
    for tokens in output_tokens:
        left.sort()
        together.append(left[0] + 1)
        left[0] += tokens
    return [locked, together]


def _check_first_tokens(answer, output_tokens) -> str:
    if not isinstance(answer, (list, tuple)) or len(answer) != 2:
        raise NotYet("give two lists: with the lock, and with two places.")
    for places, given, rule in zip((1, 2), answer, ("the lock", "two places"), strict=True):
        mine = number_list(given, "one for each request")
        if len(mine) != 4:
            raise NotYet(f"with {rule}: give four numbers, one for each request.")
        for index, (got, right) in enumerate(
            zip(mine, _first_tokens(output_tokens, places), strict=True)
        ):
            where = f"with {rule}, request {index}"
            free = "a place is free in the step after its request's last token"
            mistakes = {
                "its own prompt is a step, too.": right - 1,
                f"{free}, and one is free sooner.": _first_tokens(output_tokens, 1)[index],
                f"{free}; there is only one place.": _first_tokens(output_tokens, 2)[index],
                "it has its first token in the step of its prompt.": right + 1,
                "it must wait until a place is free.": 1,
                f"{free}, and each request before it needs a step for each of its tokens.": (
                    index + 1
                ),
                "this is when its last token comes.": right + output_tokens[index] - 1,
            }
            if (got, places) == (_first_tokens(output_tokens, places)[index - 1], 2):
                mistakes["the two places are taken when it comes: it has to wait."] = got
            compare(
                got,
                right,
                mistakes,
                f"{where}: not after {got} steps. {free[0].upper()}{free[1:]}.",
                f"{where}: after {right} steps, not {got}.",
                at=f"{where}: ",
            )
    last = [_first_tokens(output_tokens, places)[3] for places in (1, 2)]
    return f"the last one waits for {last[1]} steps in place of {last[0]}, with one place more."


# -- design: what a hang-up frees ----------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def hang_up(rng: Random) -> Exercise:
    """Which blocks come back, and how many are left when the next request has come in?"""
    while True:
        block_size = rng.choice([4, 8, 16])
        prompts = {name: rng.randint(3 * block_size, 7 * block_size) for name in "AB"}
        steps = rng.randint(2, 2 * block_size)
        gone = rng.choice("AB")
        held = {name: _held(prompts[name], steps, block_size) for name in "AB"}
        waiting = rng.randint(block_size, (held[gone] - 1) * block_size)
        usable = held["A"] + held["B"] + rng.randint(0, 3)
        free_at_first = usable - sum(_held(prompts[name], 1, block_size) for name in "AB")
        if free_at_first < cdiv(waiting, block_size):  # C has to wait from the beginning
            break
    return Exercise(
        _check_hang_up,
        "After s steps, the prompt and s - 1 tokens have K and V; the last token has none yet.",
        _solve_hang_up,
        "A and B have begun together and have run for a number of steps; the first computed both "
        "prompts. C waits, because its prompt does not fit. Now one client hangs up, and in the "
        "next step C's whole prompt is computed, and one token of the other. How many blocks does "
        "the hang-up free, and how many are free after that next step's schedule()?",
        {
            "block_size": block_size,
            "usable_blocks": usable,
            "prompt_tokens": {**prompts, "C": waiting},
            "steps": steps,
            "hangs_up": gone,
        },
    )


def _held(prompt: int, steps: int, block_size: int) -> int:
    """Blocks of a request after some steps, of which the first computed its prompt."""
    return cdiv(prompt + steps - 1, block_size)


def _solve_hang_up(block_size, usable_blocks, prompt_tokens, steps, hangs_up):
    def blocks(tokens):
        return -(-tokens // block_size)

    other = "B" if hangs_up == "A" else "A"
    freed = blocks(prompt_tokens[hangs_up] + steps - 1)
    in_use = blocks(prompt_tokens[other] + steps) + blocks(prompt_tokens["C"])
    return [freed, usable_blocks - in_use]


def _check_hang_up(answer, block_size, usable_blocks, prompt_tokens, steps, hangs_up) -> str:
    freed, left = whole_numbers(answer, ("freed", "free after the next schedule()"))
    right = _solve_hang_up(block_size, usable_blocks, prompt_tokens, steps, hangs_up)
    prompt = prompt_tokens[hangs_up]
    mistakes = {
        "Its last token was sampled, but has no K and V, so no slot yet.": (
            cdiv(prompt + steps, block_size)
        ),
        "Its answer has K and V in the cache, too.": cdiv(prompt, block_size),
    }
    at = (
        f"{hangs_up} has {prompt} + {steps - 1} tokens with K and V, in blocks of {block_size}: "
        f"not {freed}. "
    )
    mistakes |= {
        "A block that is partly filled comes back, too.": (prompt + steps - 1) // block_size,
        "Only the blocks of the one that hangs up come back.": right[0]
        + _held(prompt_tokens["B" if hangs_up == "A" else "A"], steps, block_size),
        "That is the other one.": _held(
            prompt_tokens["B" if hangs_up == "A" else "A"], steps, block_size
        ),
    }
    wrong = f"{at}Count the blocks that hold them."
    value = f"the hang-up frees {right[0]} blocks, not {freed}."
    compare(freed, right[0], mistakes, wrong, value, at=at)
    stays = "B" if hangs_up == "A" else "A"
    unused = usable_blocks - _held(prompt_tokens[stays], steps, block_size)
    mistakes = {
        "C takes blocks for its whole prompt.": unused,
        f"{stays} goes on, and its next token begins a block.": (
            unused - cdiv(prompt_tokens["C"], block_size)
        ),
        "C has not come in yet in this count, nor has the other one gone on.": freed,
        f"the blocks of {stays} are still in use.": (
            usable_blocks - cdiv(prompt_tokens["C"], block_size)
        ),
        "blocks that were free before count, too.": (freed - cdiv(prompt_tokens["C"], block_size)),
    }
    wrong = (
        f"after that schedule() not {left} blocks are free: of {usable_blocks}, {stays} uses those "
        f"of {prompt_tokens[stays]} + {steps} tokens and C those of {prompt_tokens['C']}."
    )
    value = f"after that schedule() {right[1]} blocks are free, not {left}."
    compare(left, right[1], mistakes, wrong, value)
    return f"{freed} blocks come back between two steps, and C no longer waits."
