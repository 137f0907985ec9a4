"""Exercises of notebook 22: a report from timestamps, a quantile from buckets, Little's law."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from minivllm.course.asking.answers import NotYet, compare
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.utils.math_utils import cdiv
from minivllm.utils.validation import is_number


def _numbers(answer: Any, names: tuple[str, ...]) -> list[float]:
    """One number for each name."""
    ok = isinstance(answer, (list, tuple)) and len(answer) == len(names)
    if not ok or not all(map(is_number, answer)):
        raise NotYet(f"give {len(names)} numbers: {', '.join(names)}.")
    return [float(number) for number in answer]


def _near(got: float, right: float) -> bool:
    return abs(got - right) <= 0.005 * max(1.0, abs(right))


# -- core: a report from timestamps --------------------------------------------------------------


@seeded(difficulty=2, minutes=8)
def report(rng: Random) -> Exercise:
    """Mean TTFT, TPOT and ITL of two requests."""
    requests = {}
    for name, count in zip("AB", (rng.randint(2, 3), rng.randint(5, 7)), strict=True):
        sent = rng.randrange(0, 50, 5)
        times = []
        now = sent + rng.randrange(20, 200, 10)
        for _ in range(count):
            times.append(now)
            now += rng.randrange(10, 60, 5)
        requests[name] = {"sent": sent, "tokens_at": times}
    return Exercise(
        _check_report,
        "TPOT is one number a request, and each request counts once; ITL is one number a gap.",
        _solve_report,
        "When two requests were sent and when each of their tokens came, in milliseconds; each "
        "event held one token. What are the mean TTFT, the mean TPOT and the mean ITL, as vLLM's "
        "benchmark reports them? Answer with three numbers.",
        {"requests": requests},
    )


RULES = {
    "TTFT": "the first token's time less the time of sending, one number for each request.",
    "TPOT": "first one number for each request, (last - first) / (tokens - 1), then the mean.",
    "ITL": "all gaps of both requests in one list, then the mean.",
}


def _solve_report(requests):
    ttft = [r["tokens_at"][0] - r["sent"] for r in requests.values()]
    gaps = [[b - a for a, b in zip(r["tokens_at"], r["tokens_at"][1:], strict=False)]
            for r in requests.values()]  # fmt: skip
    tpot = [sum(of_one) / len(of_one) for of_one in gaps]
    itl = [gap for of_one in gaps for gap in of_one]
    return [sum(values) / len(values) for values in (ttft, tpot, itl)]


def _check_report(answer, requests) -> str:
    ttft, tpot, itl = _numbers(answer, ("TTFT", "TPOT", "ITL"))
    right = _solve_report(requests)
    sent = [r["sent"] for r in requests.values()]
    gaps = [sum(b - a for a, b in pairwise(r["tokens_at"])) for r in requests.values()]
    per_token = [gap / len(r["tokens_at"]) for gap, r in zip(gaps, requests.values(), strict=True)]
    first, last = ([r["tokens_at"][i] for r in requests.values()] for i in (0, -1))
    with_first = [(r["tokens_at"][-1] - r["sent"]) / len(r["tokens_at"]) for r in requests.values()]
    mistakes = {
        "TTFT": {
            "TTFT counts from when that request was sent.": sum(first) / 2,
            "TTFT ends with the first token, not with the last.": right[0] + sum(gaps) / 2,
            "the mean of two: divide by 2.": 2 * right[0],
            "TTFT is of both requests.": first[0] - sent[0],
        },
        "TPOT": {
            "TPOT leaves out the first token, and the time to it.": sum(with_first) / 2,
            "you averaged the gaps; TPOT is first one number for each request.": right[2],
            "n tokens have n - 1 gaps: divide by the gaps.": sum(per_token) / 2,
            "the mean of two: divide by 2.": 2 * right[1],
            "that is A alone; first one number for each request, then the mean.": gaps[0]
            / (len(requests["A"]["tokens_at"]) - 1),
            "that is the whole answer; TPOT is for each token after the first.": sum(gaps) / 2,
        },
        "ITL": {
            "in ITL each gap counts once, so the long answer weighs more.": right[1],
            "n tokens have n - 1 gaps: divide by the gaps.": (
                sum(gaps) / sum(len(r["tokens_at"]) for r in requests.values())
            ),
            "the first gap is between the first and the second token; the time to the first is "
            "TTFT.": (sum(last) - sum(sent)) / sum(len(r["tokens_at"]) for r in requests.values()),
        },
    }
    for (name, told), got, mean in zip(mistakes.items(), (ttft, tpot, itl), right, strict=True):
        at = f"the mean {name} is not {got:g}: "
        value = f"the mean {name} is {mean:g}, not {got:g}."
        compare(got, mean, told, wrong=f"{at}{RULES[name]}", value=value, same=_near, at=at)
    return f"TPOT {tpot:.1f} and ITL {itl:.1f} ms: the same gaps, weighed differently."


# -- stretch: a quantile from buckets ------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def quantile(rng: Random) -> Exercise:
    """Quantile as Prometheus computes it."""
    bounds = [0.1, 0.25, 0.5, 1.0, 2.5]
    while True:
        cumulative, total = {}, 0
        for bound in bounds:
            total += rng.randint(2, 40)
            cumulative[str(bound)] = total
        cumulative["+Inf"] = total
        q = rng.choice([0.5, 0.9, 0.95])
        at = next(i for i, count in enumerate(cumulative.values()) if count >= q * total)
        if 0 < at < len(bounds) and list(cumulative.values())[at] != q * total:
            break
    return Exercise(
        _check_quantile,
        "Find the first bucket that reaches the rank, then go as far into it as the rank does.",
        _solve_quantile,
        "The buckets of a histogram of seconds, as /metrics has them: each counts all at most as "
        "large as its bound. What does histogram_quantile(q, ...) give, to the millisecond? Within "
        "a bucket it takes observations to be spread evenly.",
        {"buckets": cumulative, "q": q},
    )


def _solve_quantile(buckets, q):
    rank, low, below = q * buckets["+Inf"], 0.0, 0
    for bound, count in buckets.items():
        if count >= rank:
            return low + (float(bound) - low) * (rank - below) / (count - below)
        low, below = float(bound), count


def _check_quantile(answer, buckets, q) -> str:
    if not is_number(answer):
        raise NotYet("give a number of seconds.")
    right = _solve_quantile(buckets, q)
    rank = q * buckets["+Inf"]
    bounds = list(buckets)
    at = next(i for i, count in enumerate(buckets.values()) if count >= rank)
    low, high = float(bounds[at - 1]), float(bounds[at])
    if not low <= answer <= high:
        raise NotYet(
            f"{rank:g} of {buckets['+Inf']} must be at or below it, and buckets are cumulative: "
            "another bucket."
        )
    if abs(answer - right) > 0.002:
        if answer in (low, high):
            raise NotYet("that is a bound of the right bucket; say how far into it the rank is.")
        below, count = ([0, *buckets.values()][i] for i in (at, at + 1))
        mistakes = {
            "that is the middle of the bucket; say how far into it the rank is.": (low + high) / 2,
            "that is as far as the rank is from the end of the bucket.": low + high - right,
            "that goes into the bucket by the share of all counts, not of this bucket's.": (
                low + (high - low) * rank / buckets["+Inf"]
            ),
            "begin at the lower bound of the bucket.": right - low,
            "count from the bucket before: it holds those below.": (
                low + (high - low) * rank / count
            ),
            "that is from the lowest bound to this one; spread only this bucket.": (
                high * rank / count
            ),
            "divide by the bucket's own count.": low + (high - low) * (rank - below) / count,
        }
        for explanation, mistaken in mistakes.items():
            if abs(answer - mistaken) <= 0.002:
                raise NotYet(explanation)
        raise NotYet(
            f"the right bucket, from {low} to {high}, but another place in it.",
            f"in the bucket from {low} to {high} it is {right:.3f}, not {answer:g}.",
        )
    return f"the true value may be anywhere from {low} to {high} s: buckets know no more."


# -- design: Little's law ------------------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def plan(rng: Random) -> Exercise:
    """How many requests are there at once, and how many blocks do they hold?"""
    calls = [
        (
            rng.randint(2, 30),
            rng.randrange(50, 500, 50),
            rng.randrange(10, 60, 5),
            rng.randrange(100, 2000, 50),
            rng.randrange(51, 500, 50),
            16,
        )
        for _ in range(30)
    ]
    return FunctionExercise(
        "A server that keeps up: rate requests arrive a second, with mean TTFT and TPOT in "
        "milliseconds and mean lengths. How many requests are in it on average, rounded up, and "
        "how many blocks do they hold, each with its prompt and half of its answer, rounded down? "
        "(A block that is begun counts whole.) Write plan(rate, ttft_ms, tpot_ms, prompt_tokens, "
        "output_tokens, block_size); it returns a pair (requests, blocks).",
        "L = rate * time in the system. Each request holds blocks for the context it has on "
        "average: half of its answer.",
        _solve_plan,
        calls=calls,
        learnt="max_num_seqs must be well above it: loads come in bursts, and means do not.",
        mistakes={
            "the first token is in the TTFT already: TPOT counts the others.": (
                lambda rate, ttft, tpot, prompt, output, size: (
                    cdiv(rate * (ttft + output * tpot), 1000),
                    cdiv(rate * (ttft + output * tpot), 1000) * cdiv(prompt + output // 2, size),
                )
            ),
            "the time to the first token is spent in the server, too.": lambda rate, _, *rest: (
                _solve_plan()(rate, 0, *rest)
            ),
            "round up.": lambda *given: (
                _solve_plan()(*given)[0] - 1,
                (_solve_plan()(*given)[0] - 1) * cdiv(given[3] + given[4] // 2, given[5]),
            ),
            "on average a request has written only half of its answer.": lambda *given: (
                _solve_plan()(*given)[0],
                _solve_plan()(*given)[0] * cdiv(given[3] + given[4], given[5]),
            ),
            "the answer's tokens take blocks, too.": lambda *given: (
                _solve_plan()(*given)[0],
                _solve_plan()(*given)[0] * cdiv(given[3], given[5]),
            ),
            "round up the blocks of each request: none shares its last block.": lambda *given: (
                _solve_plan()(*given)[0],
                cdiv(_solve_plan()(*given)[0] * (given[3] + given[4] // 2), given[5]),
            ),
            "a second has 1000 milliseconds.": lambda rate, ttft, tpot, prompt, output, size: (
                rate * (ttft + (output - 1) * tpot),
                rate * (ttft + (output - 1) * tpot) * cdiv(prompt + output // 2, size),
            ),
        },
    )


def _solve_plan():
    def plan(rate, ttft_ms, tpot_ms, prompt_tokens, output_tokens, block_size):
        milliseconds = ttft_ms + (output_tokens - 1) * tpot_ms  # in the system
        at_once = -(-rate * milliseconds // 1000)
        context = prompt_tokens + output_tokens // 2
        return at_once, at_once * -(-context // block_size)

    return plan
