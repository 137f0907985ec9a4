"""Exercises of notebook 14: what n-grams draft, what a step leaves behind, how many to draft."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, is_whole
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.spec_decode.ngram import propose
from minivllm.utils.math_utils import cdiv

# -- core: the rule of the n-gram proposer -----------------------------------------------------


@seeded(difficulty=2, minutes=5)
def lookup(rng: Random) -> Exercise:
    """Drafts of an n-gram proposer."""
    given = {"min_n": 1, "max_n": 3, "k": rng.randint(2, 4)}
    kinds = [_is_long, _is_early, _is_plain, _is_none]
    rng.shuffle(kinds)
    return Exercise(
        _check_lookup,
        "Try the last max_n tokens first, then fewer; of several places the first one counts.",
        _solve_lookup,
        "These are texts as token ids. What does an n-gram proposer with windows from min_n to "
        "max_n draft for each, at most k tokens? Answer with a list of lists; an empty list where "
        "nothing is found.",
        {"texts": [_text_like(rng, kind, **given) for kind in kinds], **given},
    )


def _text_like(rng: Random, is_like, min_n: int, max_n: int, k: int) -> list[int]:
    while True:
        text = [rng.randint(1, 6) for _ in range(rng.randint(9, 12))]
        if is_like(text, min_n, max_n, k):
            return text


def _is_long(text, min_n, max_n, k) -> bool:
    """A shorter n-gram would draft something else."""
    answer = propose(text, min_n, max_n, k, 99)
    return len(answer) == k and answer != propose(text, min_n, min_n, k, 99)


def _is_early(text, min_n, max_n, k) -> bool:
    """The last occurrence would, too."""
    answer = propose(text, min_n, max_n, k, 99)
    return len(answer) == k and answer != _from_last_place(text, min_n, max_n, k)


def _is_plain(text, min_n, max_n, k) -> bool:
    """The end of the text cuts the draft."""
    return 0 < len(propose(text, min_n, max_n, k, 99)) < k


def _is_none(text, min_n, max_n, k) -> bool:
    return not propose(text, min_n, max_n, k, 99)


def _from_last_place(text, min_n, max_n, k) -> list[int]:
    """The mistake of taking the last occurrence."""
    for n in range(max_n, min_n - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[-n:]:
                return text[start + n : start + n + k]
    return []


def _solve_lookup(texts, min_n, max_n, k):
    def draft(text):
        for n in range(max_n, min_n - 1, -1):
            for start in range(len(text) - n):
                if text[start : start + n] == text[-n:]:
                    return text[start + n : start + n + k]
        return []

    return [draft(text) for text in texts]


def _check_lookup(answer, texts, min_n, max_n, k) -> str:
    ok = isinstance(answer, (list, tuple)) and len(answer) == len(texts)
    if not ok or not all(isinstance(part, (list, tuple)) for part in answer):
        raise NotYet(f"give {len(texts)} lists, one for each text.")
    for number, (text, part) in enumerate(zip(texts, answer, strict=True), start=1):
        mine = list(part)
        right = propose(text, min_n, max_n, k, 99)
        if mine == right:
            continue
        if not all(map(is_whole, mine)):
            raise NotYet(f"text {number}: give token ids.")
        if not right:
            raise NotYet(f"text {number}: its last token, {text[-1]}, has not occurred before.")
        if len(mine) > k:
            raise NotYet(f"text {number}: {len(mine)} drafts, and k is {k}.")
        if mine == _from_last_place(text, min_n, max_n, k):
            raise NotYet(f"text {number}: of several places the first one counts, not the last.")
        for n in range(min_n, max_n):
            if mine == propose(text, min_n, n, k, 99):
                raise NotYet(f"text {number}: more than {n} of its last tokens occurred before.")
        if mine[: len(right)] == right:
            raise NotYet(f"text {number}: the text ends before, so there is less to copy.")
        if not mine:
            raise NotYet(f"text {number}: its last token, {text[-1]}, occurred before.")
        if mine == text[-len(mine) :]:
            raise NotYet(f"text {number}: drafts are what followed at the earlier place.")
        if len(mine) > 1 and mine[1:] == right[: len(mine) - 1]:
            raise NotYet(f"text {number}: copy what follows the earlier place, not the place.")
        if mine == right[: len(mine)]:
            raise NotYet(f"text {number}: more can be copied.")
        wrong = f"text {number}: {mine} does not follow the first place of its last tokens"
        raise NotYet(f"{wrong}.", f"{wrong}; {right} does.")
    return "the longest n-gram, its first place, and what followed it there."


# -- stretch: what a verified step leaves ------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def verify(rng: Random) -> Exercise:
    """Tokens, computed tokens and blocks after a step with drafts."""
    block_size = 4
    num_drafts = rng.randint(4, 6)
    num_accepted = rng.randint(1, num_drafts - 2)
    # the accepted ones end in a block before the one that the last draft needs
    num_tokens = rng.randint(5, 9) * block_size - num_accepted - 1
    target = [rng.randint(10, 99) for _ in range(num_drafts + 1)]
    drafts = target[:num_drafts]
    drafts[num_accepted] = target[num_accepted] + 100  # those after it look right, and are not
    return Exercise(
        _check_verify,
        "The step writes K and V of the last token and of all drafts. Which rows of the target "
        "saw only right tokens? The last token drawn has no K and V yet.",
        _solve_verify,
        "Before a step a sequence has num_tokens tokens; all but the last are computed. The step "
        "verifies these drafts, and target is what the target model draws: in place of each draft, "
        "and after the last one. After the step: which tokens are new, how many tokens are "
        "computed, and how many blocks does the sequence hold? Answer with a triple, the first "
        "a list.",
        {"num_tokens": num_tokens, "block_size": block_size, "drafts": drafts, "target": target},
    )


def _solve_verify(num_tokens, block_size, drafts, target):
    right = 0
    while right < len(drafts) and drafts[right] == target[right]:
        right += 1
    blocks = -(-(num_tokens + len(drafts)) // block_size)  # rounded up
    return target[: right + 1], num_tokens + right, blocks


def _check_verify(answer, num_tokens, block_size, drafts, target) -> str:
    ok = isinstance(answer, (list, tuple)) and len(answer) == 3
    if not ok or not isinstance(answer[0], (list, tuple)) or not all(map(is_whole, answer[1:])):
        raise NotYet("give a triple: a list of tokens, computed tokens, blocks.")
    new, computed, blocks = _solve_verify(num_tokens, block_size, drafts, target)
    mine = list(answer[0])
    my_computed = answer[1]
    my_blocks = answer[2]
    if mine == new[:-1]:
        raise NotYet("new tokens: in place of the first wrong draft the target's token counts.")
    if len(mine) > len(new) and mine[: len(new)] == new:
        raise NotYet("new tokens: after a wrong draft the target saw a text that is not there.")
    if mine == drafts[: len(mine)] and mine != new:
        raise NotYet("new tokens: they are the target's, not the drafts.")
    if mine != new:
        raise NotYet("new tokens: compare drafts and target place by place, up to a difference.")
    if is_whole(my_computed) and my_computed == num_tokens - 1:
        raise NotYet("computed: this is as before the step; its last token is computed now, too.")
    mistakes = {
        "computed: these are the tokens before the step; accepted drafts are computed, too.": (
            num_tokens
        ),
        "computed: the token drawn last has not been through the model yet.": num_tokens + len(new),
        "computed: the K and V of rejected drafts do not count.": num_tokens + len(drafts),
    }
    wrong = "computed: the last token before the step, and the accepted drafts, are now."
    compare(my_computed, computed, mistakes, wrong)
    mistakes = {
        "blocks: they were needed for all drafts, and none is given back.": (
            cdiv(computed, block_size)
        ),
        "blocks: a block that is partly filled is held, too: round up.": (
            (num_tokens + len(drafts)) // block_size
        ),
    }
    wrong = f"blocks: the step wrote up to position {num_tokens + len(drafts) - 1}."
    compare(my_blocks, blocks, mistakes, wrong)
    return f"{len(new)} tokens gained; {my_blocks - cdiv(computed, block_size)} block waits."


# -- design: how many drafts -------------------------------------------------------------------

KS = (0, 1, 3, 5)


@seeded(difficulty=3, minutes=10)
def best_k(rng: Random) -> Exercise:
    """The number of drafts that a batch can afford."""
    return FunctionExercise(
        "With k drafts a sequence gains tokens_per_step[k] tokens in a step, and a step lasts "
        "step_ms[batch][k] milliseconds. Which k gives the most tokens a second, for each batch "
        "size? Write best_k(tokens_per_step, step_ms); it returns a dict from batch size to k.",
        "Divide: tokens that a sequence gains in a step, by the milliseconds of that step.",
        _solve_best_k,
        calls=[_speeds(rng) for _ in range(12)],
        learnt="the fuller the batch, the fewer drafts: they are free only while the weights are "
        "read.",
        mistakes={
            "the most tokens a step are not the most tokens a second.": lambda gained, times: (
                dict.fromkeys(times, max(gained, key=gained.get))
            ),
            "a longer step may still give more tokens a second.": lambda gained, times: {
                batch: min(of_k, key=of_k.get) for batch, of_k in times.items()
            },
            "the smallest batch does not decide for the others.": lambda gained, times: (
                dict.fromkeys(times, _solve_best_k()(gained, times)[min(times)])
            ),
            "tokens are divided by time, not time by tokens.": lambda gained, times: {
                batch: max(of_k, key=lambda k: of_k[k] / gained[k]) for batch, of_k in times.items()
            },
            "compare speeds, not what a draft adds to the one before.": lambda gained, times: {
                batch: max(of_k, key=lambda k: gained[k] - of_k[k]) for batch, of_k in times.items()
            },
        },
    )


def _speeds(rng: Random) -> tuple[dict, dict]:
    """Tokens and milliseconds of a step, where batch sizes differ in their best k, and clearly."""
    while True:
        a = rng.randint(50, 85) / 100
        gained = {k: round(sum(a**i for i in range(k + 1)), 2) for k in KS}
        per_token = rng.randint(6, 14) / 100
        weights = rng.randint(6, 12)
        milliseconds = {
            batch: {k: round(1 + max(weights, per_token * batch * (1 + k)), 1) for k in KS}
            for batch in sorted([1, *rng.sample([8, 12, 16, 24, 32, 48, 64, 128, 256], 3)])
        }
        best = _solve_best_k()(gained, milliseconds)
        if len({*best.values()}) >= 3 and _lead(gained, milliseconds) > 0.03:
            return gained, milliseconds


def _solve_best_k():
    def best_k(tokens_per_step, step_ms):
        return {
            batch: max(times, key=lambda k: tokens_per_step[k] / times[k])
            for batch, times in step_ms.items()
        }

    return best_k


def _lead(tokens_per_step, step_ms) -> float:
    """Smallest lead of a best k over the next one."""
    rates = [sorted(tokens_per_step[k] / t for k, t in times.items()) for times in step_ms.values()]
    return min(best / second - 1 for *_, second, best in rates)
