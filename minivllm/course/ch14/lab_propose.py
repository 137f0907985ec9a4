"""Lab of notebook 14: a proposer, held to texts that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from minivllm.course.asking.answers import is_whole
from minivllm.course.grading.function_lab import FunctionLab, call
from minivllm.course.grading.run import Fault
from minivllm.spec_decode.ngram import propose as by_ngrams


def my_propose(token_ids, k):
    """A proposer: guess how a text goes on.

    Args:
        token_ids: prompt and output so far, a list.
        k: the most drafts.

    The texts are logs: line after line about a few things, each with its state, which changes now
    and then. Guess well enough to need fewer steps than n-grams of one to three tokens at their
    first place, and do not guess at random: what is wrong costs work.

    Returns: at most k token ids; none where you have no guess.
    """
    raise NotImplementedError


def propose(token_ids, k):
    for n in (3, 2):  # a single token says too little
        # what followed the last time is newer than what followed the first time
        for start in range(len(token_ids) - n - 1, -1, -1):
            if token_ids[start : start + n] == token_ids[-n:]:
                return token_ids[start + n : start + n + k]
    return []


K = 4
MOST_STEPS = 0.93  # of those that n-grams of one to three tokens need, on texts of any seed
MOST_WASTE = 0.4  # of all drafts


def check_propose(function: Callable, seed: int) -> str:
    texts = list(hidden_texts(seed))
    steps, wasted, drafted = _decode_all(texts, lambda token_ids: _asked(function, token_ids))
    usual, _, _ = _decode_all(texts, lambda token_ids: by_ngrams(token_ids, 1, 3, K, 10**6))
    told = f"{steps} steps, n-grams need {usual}"
    if steps > MOST_STEPS * usual:
        raise Fault(f"{told}; at most {int(MOST_STEPS * usual)} are asked for")
    share = wasted / max(1, drafted)
    if share > MOST_WASTE:
        raise Fault(f"{told}, but {share:.0%} of the drafts are wrong; at most {MOST_WASTE:.0%}")
    return f"{told}; {share:.0%} of {drafted} drafts were wrong"


def hidden_texts(seed: int) -> Iterator[tuple[list[int], int]]:
    """Logs: lines about things whose state changes now and then; and where the answer begins."""
    for number in range(6 * seed, 6 * seed + 6):
        rng = Random(f"labs.propose {number}")
        things = list(range(100, 106))
        state = {thing: _state(rng) for thing in things}
        text: list[int] = []
        for _ in range(60):
            thing = rng.choice(things)
            if rng.random() < 0.15:
                state[thing] = _state(rng)
            text += [1, 2, thing, 3, *state[thing]]
        yield text, len(text) // 2


def _state(rng: Random) -> list[int]:
    return [rng.randrange(200, 208) for _ in range(6)]


def _decode_all(
    texts: list[tuple[list[int], int]], propose: Callable[[list[int]], list[int]]
) -> tuple[int, int, int]:
    """Steps, wrong drafts and all drafts, over all texts."""
    steps = 0
    wasted = 0
    drafted = 0
    for text, num_known in texts:
        while num_known < len(text):
            drafts = propose(text[:num_known])
            right = 0
            coming = text[num_known:]
            while right < min(len(drafts), len(coming)) and drafts[right] == coming[right]:
                right += 1
            steps += 1
            wasted += len(drafts) - right
            drafted += len(drafts)
            num_known += right + 1
    return steps, wasted, drafted


def _asked(function: Callable, token_ids: list[int]) -> list[int]:
    got = call(function, list(token_ids), K)
    if not isinstance(got, (list, tuple)) or not all(map(is_whole, got)):
        raise Fault("return a list of token ids, or an empty one")
    if len(got) > K:
        raise Fault(f"at most k = {K} drafts, not {len(got)}")
    return list(got)


LAB = FunctionLab(
    "14",
    "Write a proposer for speculative decoding.",
    "The last line about a thing is newer than the first; and a single token says little.",
    difficulty=3, minutes=30, stub=my_propose, check=check_propose,
)  # fmt: skip
