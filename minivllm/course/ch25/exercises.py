"""Exercises of notebook 25: chunks, the order of a prompt's parts, a cache for an album."""

from __future__ import annotations

from itertools import permutations
from random import Random

from minivllm.course.asking.answers import NotYet, compare, number_list, whole_number
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.lab.sim.dry_run import dry_run
from minivllm.lab.sim.make import picture_request
from minivllm.request import Request
from minivllm.trace.records import ItemEncoded, Scheduled

# -- core: chunks --------------------------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def chunks(rng: Random) -> Exercise:
    """Tokens of a prompt with two pictures that each step computes."""
    while True:
        picture = rng.choice([20, 30, 40])
        given = {
            "num_text": rng.choice([5, 8, 12]),
            "picture": picture,
            "max_num_batched_tokens": rng.choice([32, 48, 64, 80]),
            "max_num_encoder_input_tokens": picture + rng.choice([4, 8, 12]),
        }
        answers = [_solve_chunks(**given), _by_tokens(**given)]
        if answers[0] != answers[1] and len(answers[0]) <= 5:
            break
    return Exercise(
        _check_chunks,
        "A picture is encoded whole, in the first step that needs one of its embeddings. What does "
        "the budget have left for the second picture then?",
        _solve_chunks,
        "A prompt has num_text tokens, a picture of `picture` placeholders, num_text tokens, "
        "another picture of as many, and num_text tokens. It is alone, and the encoder cache is "
        "large. How many of its tokens does each step compute? Answer with a list.",
        given,
    )


def _prompt(num_text: int, picture: int) -> Request:
    text = [9] * num_text
    parts = [text, ("one", picture), text, ("two", picture), text]
    return picture_request("a", parts, num_output=1)


def _solve_chunks(num_text, picture, max_num_batched_tokens, max_num_encoder_input_tokens):
    trace = dry_run(
        [_prompt(num_text, picture)],
        num_blocks=99,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_encoder_input_tokens=max_num_encoder_input_tokens,
        encoder_cache_size=1000,
    )
    return [record.num_tokens for record in trace.of(Scheduled)]


def _by_tokens(num_text, picture, max_num_batched_tokens, max_num_encoder_input_tokens):
    """Chunks of a step's tokens alone."""
    total, found = 3 * num_text + 2 * picture, []
    while total > 0:
        found.append(min(total, max_num_batched_tokens))
        total -= found[-1]
    return found


def _check_chunks(answer, **given) -> str:
    numbers = number_list(answer, "the tokens of each step")
    right = _solve_chunks(**given)
    total = 3 * given["num_text"] + 2 * given["picture"]
    compare(
        numbers,
        right,
        {
            "both pictures cannot be encoded in one step.": _by_tokens(**given),
            "a chunk goes on behind a picture, up to the next one.": _by_pictures(**given),
        },
        f"not {numbers}. All of it are {total} tokens.",
        f"it is {right}.",
    )
    return f"{len(right)} steps; a picture that cannot be encoded ends a chunk."


def _by_pictures(num_text, picture, max_num_batched_tokens, max_num_encoder_input_tokens):
    """Chunks that end behind each picture."""
    return [num_text + picture, num_text + picture, num_text]


# -- stretch: the order of a prompt's parts ------------------------------------------------------


PARTS = ("rules", "picture", "question")


@seeded(difficulty=3, minutes=8)
def order(rng: Random) -> Exercise:
    """The order of a prompt's parts with which most tokens are found in the prefix cache."""
    while True:
        given = {
            "num_rules": rng.choice([1, 2, 4]),
            "num_pictures": rng.choice([1, 2, 4]),
            "num_questions": rng.choice([1, 2, 4]),
            "lengths": [rng.choice([24, 40, 64]), rng.choice([32, 64]), rng.choice([16, 24])],
        }
        hits = sorted(_hits(given, names) for names in permutations(PARTS))
        if hits[-1] > hits[-2] and hits[-1] > hits[0] + 40:
            break
    return Exercise(
        _check_order,
        "A block can be found only if everything before it is the same. Which part is the same in "
        "most requests?",
        _solve_order,
        "Eight requests come one by one. Request i has rules number i % num_rules, picture "
        "number i % num_pictures, and question number i % num_questions, of these lengths (rules, "
        "picture, question), with blocks of 8 tokens. The three parts may come in any order, the "
        "same in each request. (1) In which order are most tokens found in the prefix cache? A "
        "tuple of the three names. (2) How many tokens are found, of all requests together? Answer "
        "with a pair.",
        given,
    )


def _hits(given: dict, names) -> int:
    """Tokens found in the prefix cache, with the parts in this order."""
    rules, picture, question = given["lengths"]
    requests = []
    for i in range(8):
        numbers = i % given["num_rules"], i % given["num_pictures"], i % given["num_questions"]
        parts = {
            "rules": [100 + numbers[0]] * rules,
            "picture": (f"picture {numbers[1]}", picture),
            "question": [200 + numbers[2]] * question,
        }
        requests.append(picture_request(str(i), [parts[name] for name in names], 1, 2 * i))
    trace = dry_run(
        requests,
        num_blocks=200,
        block_size=8,
        enable_prefix_caching=True,
        max_num_encoder_input_tokens=100,
        encoder_cache_size=1000,
    )
    return sum(record.num_computed_tokens for record in trace.of(Scheduled))


def _solve_order(**given):
    best = max(permutations(PARTS), key=lambda names: _hits(given, names))
    return best, _hits(given, best)


def _check_order(answer, **given) -> str:
    ok = isinstance(answer, (tuple, list)) and len(answer) == 2
    names = answer[0] if ok and isinstance(answer[0], (tuple, list)) else ()
    if len(names) != 3 or not all(part in names for part in PARTS):
        raise NotYet(f"give a pair: a tuple of {', '.join(PARTS)}, and a number of tokens.")
    names = tuple(names)
    tokens = whole_number(answer[1])
    best, most = _solve_order(**given)
    found = _hits(given, names)
    if names != best:
        first = {"rules": "num_rules", "picture": "num_pictures", "question": "num_questions"}
        raise NotYet(
            f"with that order {found} tokens are found, and others find more: there are "
            f"{given[first[names[0]]]} different beginnings.",
            f"the best order is {best}.",
        )
    total = 8 * sum(given["lengths"])
    compare(
        tokens,
        most,
        {
            "these are all; the first request of each kind finds nothing.": total,
            "the first request finds nothing, and others differ from it, too.": total * 7 // 8,
        },
        f"not {tokens} tokens. All prompts have {total}.",
        f"it is {most} tokens.",
    )
    return f"{most} of {total} tokens are found."


# -- design: a cache for an album ----------------------------------------------------------------


@seeded(difficulty=4, minutes=12)
def album(rng: Random) -> Exercise:
    """The smallest encoder cache with which each picture of an album is encoded once."""
    while True:
        sizes = {name: rng.choice([4, 6, 8, 10, 12]) for name in "abcde"}
        asked = [rng.choice("abcde") for _ in range(9)]
        given = {"sizes": sizes, "asked": asked}
        right = _solve_album(**given)
        used = sum(sizes[name] for name in set(asked))
        if set(asked) == set(sizes) and max(sizes.values()) < right < used:
            break
    return Exercise(
        _check_album,
        "Between two requests with the same picture others take room. A picture that no request "
        "refers to is evicted when its room is needed, the one that was dropped first, first.",
        _solve_album,
        "Requests come one after the other, each with one picture and an answer of one token: "
        "`asked` has their pictures in order, `sizes` the embeddings of each. The prefix cache is "
        "off. What is the smallest encoder_cache_size with which each picture is encoded only "
        "once?",
        given,
    )


def _num_encoded(sizes: dict, asked: list, cache: int) -> int:
    requests = [
        picture_request(str(i), [[9], (name, sizes[name])], 1, i) for i, name in enumerate(asked)
    ]
    trace = dry_run(
        requests,
        num_blocks=50,
        max_num_encoder_input_tokens=max(sizes.values()),
        encoder_cache_size=cache,
    )
    return len(list(trace.of(ItemEncoded)))


def _solve_album(sizes, asked):
    caches = range(max(sizes.values()), sum(sizes.values()) + 1)
    return next(cache for cache in caches if _num_encoded(sizes, asked, cache) == len(set(asked)))


def _check_album(answer, sizes, asked) -> str:
    cache = whole_number(answer)
    right = _solve_album(sizes, asked)
    largest = max(sizes.values())
    if cache < largest:
        raise NotYet(f"a picture has {largest} embeddings, and must fit.")
    compare(
        cache,
        right,
        {"that has room for all; some are not asked for again.": sum(sizes.values())},
        f"with {cache}, {_num_encoded(sizes, asked, cache)} pictures are encoded for "
        f"{len(set(asked))} different ones{'' if cache < right else ', but less will do'}.",
        f"it is {right}.",
    )
    return f"{right} embeddings: {len(set(asked))} pictures are encoded for {len(asked)} requests."
