"""Exercises of notebook 22: a report from timestamps, a quantile from buckets, Little's law."""

from __future__ import annotations

from random import Random
from typing import Any

from minivllm.lab.exercises.answers import NotYet, compare, whole_numbers
from minivllm.lab.exercises.exercise import Exercise, seeded
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
        times, now = [], sent + rng.randrange(20, 200, 10)
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
    with_first = [(r["tokens_at"][-1] - r["sent"]) / len(r["tokens_at"]) for r in requests.values()]
    mistakes = {
        "TTFT": {"TTFT counts from when that request was sent.": right[0] + sum(sent) / len(sent)},
        "TPOT": {
            "TPOT leaves out the first token, and the time to it.": sum(with_first) / 2,
            "in TPOT each request counts once, however long its answer is.": right[2],
        },
        "ITL": {"in ITL each gap counts once, so the long answer weighs more.": right[1]},
    }
    for (name, told), got, mean in zip(mistakes.items(), (ttft, tpot, itl), right, strict=True):
        value = f"the mean {name} is {mean:g}, not {got:g}."
        compare(got, mean, told, f"the mean {name} is not {got:g}.", value, _near)
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
    right, rank = _solve_quantile(buckets, q), q * buckets["+Inf"]
    bounds = list(buckets)
    at = next(i for i, count in enumerate(buckets.values()) if count >= rank)
    low, high = float(bounds[at - 1]), float(bounds[at])
    if not low <= answer <= high:
        raise NotYet(f"{rank:g} of {buckets['+Inf']} must lie at or below it: another bucket.")
    if abs(answer - right) > 0.002:
        if answer in (low, high):
            raise NotYet("that is a bound of the right bucket; say how far into it the rank lies.")
        raise NotYet(
            f"the right bucket, from {low} to {high}, but another place in it.",
            f"in the bucket from {low} to {high} it is {right:.3f}, not {answer:g}.",
        )
    return f"the true value may lie anywhere from {low} to {high} s: buckets know no more."


# -- design: Little's law ------------------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def plan(rng: Random) -> Exercise:
    """How many requests are there at once, and how many blocks do they hold?"""
    return Exercise(
        _check_plan,
        "L = rate * time in the system. Each request holds blocks for the context it has on "
        "average: half of its answer.",
        _solve_plan,
        "A server that keeps up: requests a second, mean TTFT and TPOT, mean lengths. How many "
        "requests are in it on average, rounded up, and how many blocks do they hold, each with "
        "its prompt and half of its answer, rounded down? (A block that is begun counts whole.)",
        {
            "rate": rng.randint(2, 30),
            "ttft_ms": rng.randrange(50, 500, 50),
            "tpot_ms": rng.randrange(10, 60, 5),
            "prompt_tokens": rng.randrange(100, 2000, 50),
            "output_tokens": rng.randrange(51, 500, 50),
            "block_size": 16,
        },
    )


def _solve_plan(rate, ttft_ms, tpot_ms, prompt_tokens, output_tokens, block_size):
    milliseconds = ttft_ms + (output_tokens - 1) * tpot_ms  # in the system
    at_once = -(-rate * milliseconds // 1000)
    context = prompt_tokens + output_tokens // 2
    return [at_once, at_once * -(-context // block_size)]


def _check_plan(answer, rate, ttft_ms, tpot_ms, prompt_tokens, output_tokens, block_size) -> str:
    at_once, blocks = whole_numbers(answer, ("requests at once", "blocks"))
    right = _solve_plan(rate, ttft_ms, tpot_ms, prompt_tokens, output_tokens, block_size)
    twice = "the first token is in the TTFT already: TPOT counts the others."
    compare(
        at_once,
        right[0],
        {
            twice: cdiv(rate * (ttft_ms + output_tokens * tpot_ms), 1000),
            "round up.": right[0] - 1,
        },
        f"on average there are not {at_once} requests in the server.",
        f"on average there are {right[0]} requests in the server, not {at_once}.",
    )
    half = "on average a request has written only half of its answer."
    compare(
        blocks,
        right[1],
        {half: at_once * cdiv(prompt_tokens + output_tokens, block_size)},
        f"{at_once} requests do not hold {blocks} blocks.",
        f"{at_once} requests hold {right[1]} blocks, not {blocks}.",
    )
    return f"max_num_seqs must be well above {at_once}: loads come in bursts, and means do not."
