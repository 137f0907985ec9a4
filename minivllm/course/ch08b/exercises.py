"""Exercises of notebook 08b: hits under salts, what a preempted request finds, guesses."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from minivllm.course.asking.answers import (
    NotYet,
    compare,
    number_list,
    whole_numbers,
)
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.course.asking.requests import make_request
from minivllm.course.ch08.exercises import num_common, ordinal, tokens_found
from minivllm.lab.sim import dry_run
from minivllm.lab.translation import translated
from minivllm.trace.records import Finished, Preempted, Scheduled

# -- core: which requests share -----------------------------------------------------------------


@seeded(difficulty=2, minutes=8)
def shared(rng: Random) -> Exercise:
    """How many tokens does each prompt find under its salt?"""
    block_size = rng.choice([3, 4])
    table = [rng.randint(1, 9) for _ in range(2 * block_size)]

    def more() -> list[int]:
        return [rng.randint(1, 9) for _ in range(rng.randint(1, block_size))]

    while True:
        prompts = [table + more() for _ in range(6)]
        for i in rng.sample(range(1, 6), 3):  # these go on where an earlier one ended
            prompts[i] = prompts[rng.randrange(i)] + more()
        salts = rng.choices([None, "a", "b"], k=6)
        found = tokens_found(prompts, block_size, 200, salts)
        unsalted = tokens_found(prompts, block_size, 200)
        less = [0 < mine < most for mine, most in zip(found, unsalted, strict=True)]
        if len(set(salts)) == 3 and max(found) > len(table) and any(less):
            break
    return Exercise(
        _check_shared,
        "Keep a list of the prompts so far for each salt; None is a salt like the others. A prompt "
        "finds the longest beginning, in full blocks, that is in its own list.",
        _solve_shared,
        "These prompts are served one after the other, each with one output token, in a pool that "
        "is large enough. Each has a salt; None is no salt. How many tokens of each prompt are "
        "found in the prefix cache? Answer with a list of numbers.",
        {"block_size": block_size, "prompts": prompts, "salts": salts},
    )


def _solve_shared(block_size, prompts, salts):
    known, answer = set(), []
    for prompt, salt in zip(prompts, salts, strict=True):
        prefixes = [(salt, *prompt[:end]) for end in range(block_size, len(prompt) + 1, block_size)]
        hit = 0
        for prefix in prefixes[: (len(prompt) - 1) // block_size]:
            if prefix not in known:
                break
            hit += block_size
        answer.append(hit)
        known.update(prefixes)
    return answer


def _check_shared(answer, block_size, prompts, salts) -> str:
    got = number_list(answer, "the tokens found of each prompt")
    right = tokens_found(prompts, block_size, 200, salts)
    unsalted = tokens_found(prompts, block_size, 200)
    if len(got) != len(right):
        raise NotYet(f"give {len(right)} numbers, one per prompt; you have {len(got)}.")
    for i, (mine, theirs) in enumerate(zip(got, right, strict=True)):
        if mine == theirs:
            continue
        salt = "without a salt" if salts[i] is None else f"with the salt {salts[i]!r}"
        where = f"the {ordinal(i)} prompt, {salt}"
        earlier = [p for p, s in zip(prompts[:i], salts, strict=False) if s == salts[i]]
        most = max((num_common(prompts[i], other) for other in earlier), default=0)
        mistakes = {
            f"{mine} is no multiple of {block_size}; only full blocks count.": (
                mine if mine % block_size else None
            ),
            "the cache is empty at first.": None if i else mine,
            f"no earlier prompt came {salt}.": None if earlier else mine,
            "it would be so if all salts were equal; others' blocks have other hashes.": (
                unsalted[i] if mine > theirs else None
            ),
            f"only its first {most} tokens begin an earlier prompt {salt}.": (
                mine if mine > most else None
            ),
            "one token is always computed, and only full blocks count.": (
                mine if mine > theirs else None
            ),
            f"an earlier prompt {salt} begins with the same tokens.": (0 if not mine else None),
        }
        compare(
            mine, theirs, mistakes, f"{where}: more than {mine} of its tokens are known.",
            f"{where}: {theirs} of its tokens are known, in full blocks, not {mine}.",
            at=translated("{}: ").format(where),
        )  # fmt: skip
    return f"{sum(right)} tokens are found; without salts it would be {sum(unsalted)}."


# -- stretch: what a preempted request finds ----------------------------------------------------


@seeded(difficulty=3, minutes=10)
def back(rng: Random) -> Exercise:
    """Tokens that a preempted request finds when it comes back, and those that it computes."""
    while True:
        block_size = rng.choice([3, 4, 5])
        num_blocks = rng.randint(8, 14)
        lengths = {name: (rng.randint(6, 20), rng.randint(8, 30)) for name in "AB"}
        prompts = {"A": list(range(lengths["A"][0])), "B": list(range(50, 50 + lengths["B"][0]))}
        usable = (num_blocks - 1) * block_size
        if max(map(sum, lengths.values())) > usable:
            continue
        trace = dry_run(
            [make_request(name, prompts[name], lengths[name][1]) for name in "AB"],
            num_blocks=num_blocks,
            block_size=block_size,
            enable_prefix_caching=True,
        )
        preempted = list(trace.of(Preempted))
        if [record.seq_id for record in preempted] != ["B"]:
            continue
        (returned,) = (r for r in trace.of(Scheduled) if r.kind == "resumed")
        done = next(r.step for r in trace.of(Finished) if r.seq_id == "A")
        state = trace.state_at(preempted[0].step - 1, "update")
        num_tokens = len(state.sequences["B"].token_ids)
        full = (num_tokens - 1) // block_size * block_size
        if done < returned.step and 0 < returned.num_computed_tokens < full:
            break
    return Exercise(
        _check_back,
        "B's full blocks wait at the tail of the free queue, the last one before the others. How "
        "many blocks has A at its end, and how many are left for B's?",
        _solve_back,
        "A and B run in a pool with a prefix cache; A and B have nothing in common. B is preempted "
        "when it has b_tokens tokens, all computed but the last, which was just sampled. It comes "
        "back when A is done. How many tokens does it find then, and how many must be computed? "
        "Block 0 of num_blocks is not usable. Answer with a pair (found, computed).",
        {
            "block_size": block_size,
            "num_blocks": num_blocks,
            "a_prompt_tokens": lengths["A"][0],
            "a_output_tokens": lengths["A"][1],
            "b_tokens": num_tokens,
        },
    )


def _solve_back(block_size, num_blocks, a_prompt_tokens, a_output_tokens, b_tokens):
    full = (b_tokens - 1) // block_size
    a_blocks = -(-(a_prompt_tokens + a_output_tokens - 1) // block_size)
    found = min(full, num_blocks - 1 - a_blocks) * block_size
    return found, b_tokens - found


def _check_back(answer, **given) -> str:
    found, computed = whole_numbers(answer, ("found", "computed"))
    block_size = given["block_size"]
    b_tokens = given["b_tokens"]
    right, rest = _solve_back(**given)
    full = (b_tokens - 1) // block_size * block_size
    a_tokens = given["a_prompt_tokens"] + given["a_output_tokens"] - 1
    a_blocks = -(-a_tokens // block_size)
    compare(
        found,
        right,
        {
            "found: its full blocks keep their hashes, and the first of them are taken last.": 0,
            "found: A grew while B waited, and took some of B's blocks.": full,
            "found: a block that is not full has no hash, and A grew while B waited.": b_tokens - 1,
            "found: you counted block 0, which is not usable.": right + block_size,
        },
        f"found: not {found}. Count A's blocks at its end; what is left are B's first ones.",
        f"found: A ends with {a_tokens} tokens that have K and V, in {a_blocks} blocks; "
        f"{given['num_blocks'] - 1 - a_blocks} of B's are left, so {right} tokens, not {found}.",
    )
    compare(
        computed,
        rest,
        {"computed: the last token was sampled, but never computed: it counts, too.": rest - 1},
        f"computed: of {b_tokens} tokens {right} are found.",
    )
    return f"without a prefix cache all {b_tokens} would be computed."


# -- design: guesses ----------------------------------------------------------------------------

SIZES = (1, 2, 4, 8, 16)


@seeded(difficulty=3, minutes=12)
def guesses(rng: Random) -> FunctionExercise:
    """The smallest block size with which guessing a secret takes too long."""
    right = _solve_guesses()
    calls = []
    while len(calls) < 40:
        num_values = rng.choice([10, 16, 26, 36, 62])
        secret_tokens = rng.choice([16, 32, 48])
        per_second = rng.choice([5, 10, 20, 50])
        hours = rng.choice([1, 8, 24, 168, 720])
        found = right(num_values, secret_tokens, per_second, hours)
        if SIZES[0] < (found or 0) < SIZES[-1]:
            calls.append((num_values, secret_tokens, per_second, hours))
    return FunctionExercise(
        "A server has a prefix cache and no salts. A stranger knows all of a prompt but a secret "
        "of secret_tokens tokens, each one of num_values; it begins where a block begins. For each "
        "guess the stranger sees from the first token's time whether one block more was found, "
        "and so goes on block by block. Write guesses(num_values, secret_tokens, "
        f"guesses_per_second, hours): the smallest of the block sizes {SIZES} with which finding "
        "all of the secret may take more than these hours.",
        "With blocks of b tokens there are num_values ** b guesses for each block, and a block "
        "that is found need not be guessed again.",
        _solve_guesses,
        calls=calls,
        learnt="a longer block only takes longer. A salt makes all guesses useless.",
        mistakes={
            "a block that is found need not be guessed again: the guesses of blocks add up.": (
                lambda values, tokens, rate, hours: SIZES[0]
            ),
            "there are several blocks, and each takes its own guesses.": (
                lambda values, tokens, rate, hours: _first_above(
                    lambda size: values**size / rate, hours
                )
            ),
            "an hour has 3,600 seconds.": lambda values, tokens, rate, hours: _first_above(
                lambda size: tokens // size * values**size / rate, hours / 3600
            ),
            "it may be the last guess that is right: count all of them.": (
                lambda values, tokens, rate, hours: _first_above(
                    lambda size: tokens // size * values**size / rate / 2, hours
                )
            ),
            "a smaller block size is enough, too.": lambda *_: SIZES[-1],
        },
    )


def _first_above(seconds: Callable[[int], float], hours: float) -> int | None:
    return next((size for size in SIZES if seconds(size) > 3600 * hours), None)


def _solve_guesses():
    def guesses(num_values, secret_tokens, guesses_per_second, hours):
        for block_size in (1, 2, 4, 8, 16):
            num_guesses = secret_tokens // block_size * num_values**block_size
            if num_guesses / guesses_per_second > hours * 3600:
                return block_size

    return guesses
