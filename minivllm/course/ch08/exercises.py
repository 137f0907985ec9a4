"""Exercises of notebook 08: the hits of a sequence of prompts, what eviction leaves, an order."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, number_list
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.puzzle import Puzzle, measure
from minivllm.course.asking.requests import make_request
from minivllm.lab.sim import dry_run
from minivllm.lab.sim.prefix_hits import prefix_hits
from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.wording import sentence
from minivllm.scheduling.policies import SchedulingPolicy

# -- core: what is found -----------------------------------------------------------------------


@seeded(difficulty=2, minutes=8)
def hits(rng: Random) -> Exercise:
    """How many tokens of each prompt are in the cache already?"""
    block_size = rng.choice([3, 4])
    table = [rng.randint(1, 9) for _ in range(3 * block_size)]
    other = rng.randrange(2 * block_size)
    changed = [*table[:other], 0, *table[other + 1 :]]

    def question() -> list[int]:
        return [rng.randint(1, 9) for _ in range(rng.randint(1, block_size + 1))]

    first = table + question()
    rest = [
        table + question(),
        table,  # nothing but what is known
        changed + question(),
        first,  # word for word again
        first + question(),
    ]
    rng.shuffle(rest)
    return Exercise(
        _check_hits,
        "Whole blocks only, from the beginning, without a gap, and never the last token.",
        _solve_hits,
        "These prompts are served one after the other, each with one output token, in a pool that "
        "is large enough. How many tokens of each prompt are found in the prefix cache? Answer "
        "with a list of numbers.",
        {"block_size": block_size, "prompts": [first, *rest]},
    )


def ordinal(index: int) -> str:
    """The word for a place in a list."""
    return translated(
        ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")[index],
    )


def num_common(one: list[int], other: list[int]) -> int:
    """Number of tokens that two prompts have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _solve_hits(block_size, prompts):
    known, answer = set(), []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        prefixes = [tuple(prompt[:end]) for end in ends]
        hit = 0
        for prefix in prefixes[: (len(prompt) - 1) // block_size]:
            if prefix not in known:
                break
            hit += block_size
        answer.append(hit)
        known.update(prefixes)
    return answer


def tokens_found(
    prompts: list[list[int]],
    block_size: int,
    num_blocks: int,
    salts: list[str | None] | None = None,
) -> list[int]:
    """Hits of the engine, where each prompt is done before the next one arrives."""
    workload = [
        make_request(str(i), prompt, 1, i, cache_salt=salts[i] if salts else None)
        for i, prompt in enumerate(prompts)
    ]
    trace = dry_run(
        workload, num_blocks=num_blocks, block_size=block_size, enable_prefix_caching=True
    )
    return list(prefix_hits(trace).values())


def _check_hits(answer, block_size, prompts) -> str:
    got = number_list(answer, "the tokens found of each prompt")
    right = tokens_found(prompts, block_size, 200)
    if len(got) != len(right):
        raise NotYet(f"give {len(right)} numbers, one per prompt; you have {len(got)}.")
    for i, (mine, theirs) in enumerate(zip(got, right, strict=True)):
        if mine == theirs:
            continue
        where = f"the {ordinal(i)} prompt ({len(prompts[i])} tokens)"
        if mine % block_size:
            raise NotYet(f"{where}: {mine} is no multiple of {block_size}; only full blocks count.")
        if mine == len(prompts[i]):
            raise NotYet(
                f"{where}: even of a known prompt one token must be computed to have logits.",
                f"{where}: even of a known prompt one token must be computed to have logits; the "
                f"hit is {theirs} tokens.",
            )
        if mine > theirs and not i:
            raise NotYet(f"{where}: the cache is empty at first.")
        if mine > theirs:
            most = max(num_common(prompts[i], earlier) for earlier in prompts[:i])
            why = f"only the first {most} tokens begin a prompt that came before"
            if most == len(prompts[i]):
                why = "one token is always computed, and only full blocks count"
            raise NotYet(
                f"{where}: fewer than {mine} are found: {why}. Nothing after the first unknown "
                "block counts.",
                f"{where}: tokens {theirs} to {theirs + block_size - 1} are not a block that "
                f"followed the same tokens before, and nothing after it counts; {theirs}, not "
                f"{mine}.",
            )
        other = "" if mine else ": an earlier prompt begins with the same tokens"
        raise NotYet(
            f"{where}: more than {mine} of its tokens are known, in full blocks{other}.",
            f"{where}: {theirs} of its tokens are known, in full blocks, not {mine}.",
        )
    return f"{sum(right)} of {sum(map(len, prompts))} tokens are not computed again."


# -- stretch: what eviction leaves -------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def eviction(rng: Random) -> Exercise:
    """The same in a pool that cannot keep everything."""
    block_size = 2
    while True:
        tables = [[user] * rng.randint(3, 6) for user in (1, 2, 3)]
        order = rng.choices(range(3), k=7)
        prompts = [[*tables[user], 10 + i] for i, user in enumerate(order)]
        num_blocks = rng.randint(6, 8)
        found = tokens_found(prompts, block_size, num_blocks)
        lost = [a != b for a, b in zip(found, tokens_found(prompts, 2, 99), strict=True)]
        if any(lost) and any(found):
            break
    return Exercise(
        _check_eviction,
        "A block keeps what it holds until it is handed out again. Partly filled ones are handed "
        "out first; then the one that was given back longest ago, of one prompt its last one.",
        _solve_eviction,
        "These prompts are served one after the other, each with one output token, in a pool of "
        "num_blocks blocks, of which block 0 is not usable. How many tokens of each are found in "
        "the prefix cache? Answer with a list of numbers.",
        {"block_size": block_size, "num_blocks": num_blocks, "prompts": prompts},
    )


def _solve_eviction(block_size, num_blocks, prompts):
    queue = [None] * (num_blocks - 1)  # what each free block holds; the first one is taken next
    answer = []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        prefixes = [tuple(prompt[:end]) for end in ends]
        num_hit = 0
        while num_hit < (len(prompt) - 1) // block_size and prefixes[num_hit] in queue:
            num_hit += 1
        for prefix in prefixes[:num_hit]:
            queue.remove(prefix)
        partly = len(prompt) % block_size > 0
        del queue[: len(prefixes) + partly - num_hit]
        queue = [None] * partly + queue + prefixes[::-1]
        answer.append(num_hit * block_size)
    return answer


def _check_eviction(answer, block_size, num_blocks, prompts) -> str:
    got = number_list(answer, "the tokens found of each prompt")
    right, kept = (tokens_found(prompts, block_size, n) for n in (num_blocks, 999))
    if len(got) != len(right):
        raise NotYet(f"give {len(right)} numbers, one per prompt; you have {len(got)}.")
    for i, (mine, theirs) in enumerate(zip(got, right, strict=True)):
        if mine == theirs:
            continue
        if mine == kept[i]:
            taken = (
                f"the {ordinal(i)} prompt: {mine} tokens were known, but the pool has "
                f"{num_blocks - 1} usable blocks, and what came since took some of them"
            )
            raise NotYet(sentence(taken), f"{taken}: {theirs} are left.")
        where = f"the {ordinal(i)} prompt: "
        mistakes = {
            "only full blocks are found, of block_size tokens.": mine
            if mine % block_size
            else None,
            "one token is always computed.": len(prompts[i]),
            "a block keeps what it holds until it is handed out again.": 0 if theirs else None,
            "a prompt loses its last blocks first; its beginning is still there.": (
                mine if mine < theirs else None
            ),
            "no prompt with this beginning came before.": mine if not kept[i] else None,
            "blocks that were handed out since are lost, and all after the first lost one.": (
                mine if mine > theirs else None
            ),
        }
        compare(
            mine, theirs, mistakes, f"{where}not {mine} of its tokens are still there.",
            f"{where}{theirs} of its tokens are still there, not {mine}.", at=where,
        )  # fmt: skip
    return f"{sum(right)} tokens found; a pool without end would have found {sum(kept)}."


# -- design: an order --------------------------------------------------------------------------


@seeded(difficulty=4, minutes=20)
def puzzle(rng: Random) -> Exercise:
    """An order that keeps the cache warm."""
    block_size = 2
    while True:
        length = rng.randint(8, 12)
        tables = [1, 2] * 4 if rng.random() < 0.5 else [1, 2, 3] * 3
        rng.shuffle(tables)
        workload = {
            name: ([table] * length + [10 + i], 3)
            for i, (name, table) in enumerate(zip("ABCDEFGHI", tables, strict=False))
        }
        settings = {
            "num_blocks": (length + 3) // block_size + 3, "block_size": block_size,
            "max_num_seqs": 1, "enable_prefix_caching": True,
        }  # fmt: skip
        usual = measure(workload, **settings)["computed_tokens"]
        best = measure(workload, **settings, policy=_solve_puzzle())["computed_tokens"]
        if usual > 1.5 * best:
            break
    return Puzzle(
        "Long tables (tokens 1, tokens 2, ...), questions about them in turn, and a pool that "
        "cannot keep all tables. Each request is (prompt, output tokens). Write a SchedulingPolicy "
        "with which no more tokens are computed than the target.",
        "A key may look at the prompt. Which request finds its table in the cache, if the "
        "one before asked about another table?",
        _solve_puzzle,
        workload=workload,
        settings=settings,
        may_set=("policy",),
        missed={
            "computed_tokens": "a table is computed again if another took its blocks in between"
        },
        targets={"computed_tokens": best},
    )


def _solve_puzzle(**_) -> SchedulingPolicy:
    class SamePrefixTogether(SchedulingPolicy):
        def key(self, request):
            return (request.prompt_token_ids[0], request.arrival_index)

    return SamePrefixTogether()
