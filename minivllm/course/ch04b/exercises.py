"""Exercises of notebook 04b: the copies of beams, a language that a narrow search gets wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import count
from random import Random
from typing import Any

from minivllm.course.asking.answers import NotYet, compare, number_list
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.requests import make_request
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import CacheHit
from minivllm.request import Sequence

# -- core: the copies of beams --------------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def copies(rng: Random) -> Exercise:
    """Beams fork and die; when must a block be copied?"""
    num_beams = rng.choice([2, 3, 4])
    return Exercise(
        _check_copies,
        "After a write each beam has a last block of its own. Which share one again, and is the "
        "next position in the middle of a block?",
        _solve_copies,
        "A prompt is computed, and beams 0, 1, ... begin with all of its blocks. In each step each "
        "beam first writes K and V of one token; then beam i becomes a fork of beam parents[i], "
        "and beams without a fork are freed. How many blocks does each step copy? Answer "
        "with a list of numbers, one for each list of parents.",
        {
            "num_prompt": rng.randint(5, 12),
            "block_size": rng.choice([3, 4]),
            "parents": [sorted(rng.choices(range(num_beams), k=num_beams)) for _ in range(6)],
        },
    )


def _solve_copies(num_prompt, block_size, parents):
    answer = []
    same_parent = [0] * len(parents[0])  # all come from the prompt
    for step, new_parents in enumerate(parents):
        in_the_middle = (num_prompt + step) % block_size > 0
        sharers = Counter(same_parent).values()
        answer.append(sum(k - 1 for k in sharers) if in_the_middle else 0)
        same_parent = new_parents
    return answer


def _count_copies(num_prompt: int, block_size: int, parents: list[list[int]]) -> list[list]:
    """The copies of each step, as the real manager makes them."""
    manager = KVCacheManager(200, block_size)
    ids = count(1)
    request = make_request("beam", num_prompt, 99)
    root = request.seqs[0]
    manager.allocate_new_computed_blocks(root, CacheHit())
    manager.allocate_slots(root, num_prompt, [])
    root.num_computed_tokens = num_prompt

    def fork(parent: Sequence) -> Sequence:
        child = parent.fork(next(ids))
        manager.fork(parent, child)
        return child

    beams = [fork(root) for _ in parents[0]]
    manager.free(root)
    steps = []
    for new_parents in parents:
        made = []
        for beam in beams:
            manager.allocate_slots(beam, 1, made)
            beam.num_computed_tokens += 1
        steps.append(made)
        children = [fork(beams[parent]) for parent in new_parents]
        for beam in beams:
            manager.free(beam)
        beams = children
        manager.check_integrity()
    return steps


def _check_copies(answer, num_prompt, block_size, parents) -> str:
    got = number_list(answer, "the copies of each step")
    right = [len(made) for made in _count_copies(num_prompt, block_size, parents)]
    if len(got) != len(right):
        raise NotYet(f"give {len(right)} numbers, one per step; you have {len(got)}.")
    for step, (mine, theirs) in enumerate(zip(got, right, strict=True)):
        offset = (num_prompt + step) % block_size
        before = parents[step - 1] if step else [0] * len(parents[0])
        sizes = [k for k in Counter(before).values() if k > 1]
        groups = [f"{k} beams" for k in sizes]
        if mine != theirs and offset == 0:
            raise NotYet(
                f"step {step} writes position {num_prompt + step}, the first of a block; it does "
                f"not copy {mine}: each beam takes a new block.",
                f"step {step} writes position {num_prompt + step}, the first of a block: each beam "
                f"takes a new one and nothing is copied, not {mine}.",
            )
        if mine != theirs:
            sharers = " and by ".join(groups) or "no beams"
            shared = f"of a block that is shared by {sharers}"
            next_groups = Counter(parents[step]).values()
            mistakes = {
                "of k beams that share a block, the last finds itself alone and writes in place.": (
                    sum(sizes)
                ),
                "the forks of this step come after its writes: they count in the next step.": (
                    sum(k - 1 for k in next_groups)
                ),
                "one copy is made for each group; but each sharer needs a block of its own.": (
                    len(sizes)
                ),
                "the block is partly filled, and others read it, so it is copied first.": 0,
            }
            compare(
                mine,
                theirs,
                mistakes,
                f"step {step} writes at offset {offset} {shared}: not {mine} copies.",
                f"step {step} writes at offset {offset} {shared}; of k sharers, k - 1 copy: "
                f"{theirs} copies, not {mine}.",
                at=f"step {step} writes at offset {offset} {shared}, and does not copy {mine}: ",
            )
    return f"{sum(right)} blocks are copied; copying whole beams would be far more."


# -- stretch: a language that a narrow search gets wrong ---------------------------------------

WORDS = "abcd"
Language = dict[str, dict[str, float]]


@seeded(difficulty=3, minutes=10)
def narrow(rng: Random) -> Exercise:
    """Which probabilities hide the likeliest text from two beams, and not from three?"""
    while True:
        rows = {word: _row(rng) for word in WORDS}
        given = {"rows": rows, "open_word": rng.choice(WORDS[1:]), "length": rng.randint(4, 6)}
        rows.pop(given["open_word"])
        if _solve_narrow(**given) is not None:
            break
    return Exercise(
        _check_narrow,
        "Two beams lose a beginning that is only the third best. How could a word that comes after "
        "the open one make it the best in the end? Or try many rows: the search is quick.",
        _solve_narrow,
        "A language has the words a, b, c and d; rows says how probable each is after another. The "
        "row of open_word is yours. A text begins with a and goes on for length words. Choose the "
        "row such that a beam search of width 2 misses the likeliest text, and one of width 3 "
        "finds it. Answer with a dict of four probabilities.",
        given,
    )


def _row(rng: Random) -> dict[str, float]:
    cuts = sorted(rng.sample(range(1, 20), 3))
    parts = [b - a for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]
    return {word: part / 20 for word, part in zip(WORDS, parts, strict=True)}


def beams(language: Language, length: int, width: int) -> list[tuple[float, str]]:
    """Beams at the end of a search of this width, after an a: (probability, text), best first."""
    kept = [(1.0, "a")]
    for _ in range(length):
        candidates = [
            (probability * language[text[-1]][word], text + word)
            for probability, text in kept
            for word in WORDS
        ]
        kept = sorted(candidates, key=lambda candidate: -candidate[0])[:width]
    return kept


def _likeliest(language: Language, length: int) -> tuple[float, str]:
    """The best of all texts: of those that end with the same word, only the best can go on."""
    best = {"a": (1.0, "a")}
    for _ in range(length):
        best = {
            word: max((p * language[end][word], text + word) for end, (p, text) in best.items())
            for word in WORDS
        }
    return max(best.values())


def _misses(language: Language, length: int, width: int) -> bool:
    return beams(language, length, width)[0][0] < 0.999 * _likeliest(language, length)[0]


def _solve_narrow(rows, open_word, length):
    for a in range(1, 18):
        for b in range(1, 19 - a):
            for c in range(1, 20 - a - b):
                numbers = (a, b, c, 20 - a - b - c)
                row = {word: n / 20 for word, n in zip("abcd", numbers, strict=True)}
                language = {**rows, open_word: row}
                if _misses(language, length, 2) and not _misses(language, length, 3):
                    return row
    return None


def _check_narrow(answer, rows, open_word, length) -> str:
    row = _read_row(answer)
    language = {**rows, open_word: row}
    probability, text = _likeliest(language, length)
    for width in (2, 3):
        found, mine = beams(language, length, width)[0]
        if width == 2 and not _misses(language, length, 2):
            lost = "" if open_word in text[1:] else f" It does not use {open_word} at all."
            raise NotYet(f"width 2 finds {mine} ({found:.4f}), and no text is likelier.{lost}")
        if width == 3 and _misses(language, length, 3):
            raise NotYet(
                f"width 3 misses the likeliest text, too: it finds {mine} ({found:.4f}).",
                f"width 3 finds {mine} ({found:.4f}), but {text} has {probability:.4f}.",
            )
    return f"the likeliest text is {text}; one beam more, and its beginning is kept."


def _read_row(answer: Any) -> dict[str, float]:
    if not isinstance(answer, Mapping) or set(answer) != set(WORDS):
        raise NotYet("give a dict of four probabilities: of a, b, c and d.")
    row = {}
    for word in WORDS:
        number = answer[word]
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 1:
            raise NotYet(f"{word}: a probability is a number from 0 to 1.")
        row[word] = number
    if not math.isclose(sum(row.values()), 1, abs_tol=1e-6):
        raise NotYet(f"the four are {sum(row.values()):.4g} together; they must be 1.")
    return row
