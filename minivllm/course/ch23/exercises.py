"""Exercises of notebook 23: lanes by hand, send or compute, how many engines of each kind."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from random import Random

from minivllm.course.asking.answers import compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.course.ch23.ahead import run_ahead, wrong_answers
from minivllm.course.ch23.goodput import goodput_by_limit, serve_pools, share_in_time
from minivllm.course.ch23.steady_connector import SteadyConnector
from minivllm.course.ch23.two_engines import Asked, make_engine, serve

__all__ = [  # and what the notebook runs
    "Asked", "SteadyConnector", "fetch", "goodput_by_limit", "lanes", "make_engine", "pools",
    "run_ahead", "serve", "serve_pools", "share_in_time", "wrong_answers",
]  # fmt: skip

# -- core: lanes by hand -------------------------------------------------------------------------


@seeded(difficulty=3, minutes=15)
def lanes(rng: Random) -> FunctionExercise:
    """Milliseconds of a run whose steps are planned one at a time, or one ahead."""
    calls: list[tuple] = []
    while len(calls) < 40:
        before = rng.randint(1, 9)
        after = rng.randint(1, 9)
        device = rng.choice([rng.randint(1, 8), rng.randint(10, 40)])
        ahead = len(calls) != 0
        calls.append((before, device, after, rng.randint(2, 9), ahead))
    return FunctionExercise(
        "Each step takes the CPU before ms (its plan), then the device ms, then the CPU after ms "
        "(its tokens are taken over). Write finish_ms(before, device, after, num_steps, ahead): "
        "the milliseconds until the tokens of all num_steps steps are taken over. With ahead "
        "False a step is planned when the one before is over. With ahead True there are two "
        "plans in flight: the CPU makes plan n + 1, then waits for step n and takes its tokens "
        "over, then makes plan n + 2, and so on.",
        "Keep two clocks, the time at which the CPU is free and the time at which the device is. "
        "The lane that needs the other one waits until the later of both.",
        _solve_lanes,
        calls=calls,
        learnt="a long run takes the longer of both lanes, not their sum.",
        mistakes=_LANE_MISTAKES,
    )


def _solve_lanes():
    def finish_ms(before, device, after, num_steps, ahead):
        cpu = 0
        ends = []  # of the device's steps
        for step in range(num_steps):
            oldest = step - 2 if ahead else step - 1
            if oldest >= 0:
                cpu = max(cpu, ends[oldest]) + after
            cpu += before
            ends.append(max(cpu, ends[-1] if ends else 0) + device)
        for end in ends[-2 if ahead else -1 :]:
            cpu = max(cpu, end) + after
        return cpu

    return finish_ms


def _longer_lane(before, device, after, num_steps, ahead):
    """A long run's time: neither its begin nor its end counts."""
    each = max(device, before + after) if ahead else before + device + after
    return num_steps * each


def _device_alone(before, device, after, num_steps, ahead):
    """The device is never waited with."""
    if not ahead:
        return num_steps * (before + device + after)
    return before + num_steps * device + after


_LANE_MISTAKES: dict[str, Callable] = {
    "with ahead=False nothing overlaps: the three parts of a step add up.": (
        lambda before, device, after, num_steps, ahead: _solve_lanes()(
            before, device, after, num_steps, True
        )
    ),
    "with ahead=True the device computes a step while the CPU works on others.": (
        lambda before, device, after, num_steps, ahead: _solve_lanes()(
            before, device, after, num_steps, False
        )
    ),
    "before the first step the device waits for its plan, and behind the last one its tokens are "
    "taken over.": _longer_lane,
    "the device may wait, too: a step cannot begin before its plan is made.": _device_alone,
    "the device works on one step after the other.": (
        lambda before, device, after, num_steps, ahead: num_steps * (before + after) + device
    ),
}


# -- stretch: send or compute --------------------------------------------------------------------


@seeded(difficulty=3, minutes=12)
def fetch(rng: Random) -> FunctionExercise:
    """The shortest prompt whose K and V are fetched in less time than they are computed."""
    calls: list[tuple] = []
    while len(calls) < 40:
        per_token = rng.randint(20, 200)
        is_slow = len(calls) > 2 and rng.random() < 0.2
        sent = per_token + rng.randint(0, 30) if is_slow else rng.randint(1, per_token - 1)
        base = rng.choice([0, 2000, 18_000])
        calls.append((base, per_token, rng.choice([5, 50, 5000]), sent, rng.randint(9, 30) * 1000))
        if len(calls) == 2:
            calls.append((2000, 100, 50, 130, 20_000))
    return FunctionExercise(
        "All times are in µs. To compute a prompt of n tokens takes base + n * per_token. To fetch "
        "its K and V takes latency + n * sent, and behind it a step, since the last token of the "
        "prompt is computed again. Write shortest(base, per_token, latency, sent, step): the "
        "smallest n of at least 1 for which fetching takes less time, or None if there is none.",
        "Both are straight lines in n. Which one is steeper, and which one begins higher?",
        _solve_fetch,
        calls=calls,
        learnt="a link is fast or slow beside the device: what counts is its time for a token.",
        mistakes=_FETCH_MISTAKES,
    )


def _solve_fetch():
    def shortest(base, per_token, latency, sent, step):
        if latency + sent + step < base + per_token:
            return 1
        if sent >= per_token:
            return None
        return (latency + step - base) // (per_token - sent) + 1

    return shortest


def _fetch_wrongly(latency_counts: bool = True, step_counts: bool = True) -> Callable:
    """Make a ``shortest`` that forgets a part."""

    def shortest(base, per_token, latency, sent, step):
        solve = _solve_fetch()
        return solve(base, per_token, latency * latency_counts, sent, step * step_counts)

    return shortest


def _at_a_tie(base, per_token, latency, sent, step):
    found = _solve_fetch()(base, per_token, latency, sent, step)
    if not found or found == 1:
        return found
    return -(-(latency + step - base) // (per_token - sent))


def _below_one(base, per_token, latency, sent, step):
    if sent >= per_token:
        return None
    return (latency + step - base) // (per_token - sent) + 1


_FETCH_MISTAKES: dict[str, Callable] = {
    "the last token of the prompt is computed again, which takes a step.": _fetch_wrongly(
        step_counts=False
    ),
    "a transfer also takes the link's latency.": _fetch_wrongly(latency_counts=False),
    "the device has a base, too: what it takes for a prompt of no tokens.": (
        lambda base, per_token, latency, sent, step: _solve_fetch()(
            0, per_token, latency, sent, step
        )
    ),
    "for this n both take the same time.": _at_a_tie,
    "n is at least 1, and a slow link may be quicker for short prompts.": _below_one,
}


# -- design: how many engines of each kind -------------------------------------------------------


@seeded(difficulty=4, minutes=15)
def pools(rng: Random) -> Exercise:
    """The fewest prefill and decode engines for a load."""
    while True:
        given = {
            "rate": rng.choice([4, 6, 10, 15, 20]),
            "prefill_ms": rng.choice([60, 75, 120, 240]),
            "num_output": rng.choice([32, 64, 200, 400]),
            "step_ms": rng.choice([20, 25, 40]),
            "most_running": rng.choice([20, 40, 60]),
        }
        prefill, decode = _solve_pools(**given)
        busy = ceil(given["rate"] * given["prefill_ms"] / 1000)
        if prefill != decode and busy != prefill <= 6 and 1 < decode <= 8:
            break
    return Exercise(
        _check_pools,
        "How many ms of prefill come in each second? How long does one answer decode, and how many "
        "have come in that time?",
        _solve_pools,
        "Each second `rate` requests come, at random. A prompt keeps a prefill engine busy for "
        "prefill_ms, alone; so that requests do not queue up, a prefill engine may be busy for at "
        "most 80 % of the time. An answer has num_output tokens, and each is a step of step_ms in "
        "a decode engine, which keeps this pace with at most most_running answers at once. What "
        "is the least number of prefill engines, and of decode engines? Answer with a pair.",
        given,
    )


def _solve_pools(rate, prefill_ms, num_output, step_ms, most_running):
    prefill = ceil(rate * prefill_ms / 800)
    running = rate * num_output * step_ms / 1000  # answers under way, on average
    return prefill, ceil(running / most_running)


def _check_pools(answer, rate, prefill_ms, num_output, step_ms, most_running) -> str:
    prefill, decode = whole_numbers(answer, ("prefill engines", "decode engines"))
    right = _solve_pools(rate, prefill_ms, num_output, step_ms, most_running)
    busy = rate * prefill_ms
    compare(
        prefill,
        right[0],
        {
            "prefill: these would be busy all the time; at most 80 % is allowed.": (
                ceil(busy / 1000)
            ),
            "prefill: that is the number of decode engines.": right[1],
        },
        f"prefill: not {prefill}. In each second {busy} ms of prefill come.",
        f"prefill: it is {right[0]}.",
    )
    running = rate * num_output * step_ms / 1000
    compare(
        decode,
        right[1],
        {
            "decode: an answer stays for all of its steps, not for one second.": (
                ceil(rate / most_running)
            ),
            "decode: that many tokens a second are asked for; an engine does many in each step.": (
                ceil(rate * num_output * step_ms / 1000)
            ),
            "decode: 80 % is for prefill engines only.": ceil(running / 0.8 / most_running),
        },
        f"decode: not {decode}. An answer takes {num_output * step_ms} ms, and {rate} more come "
        "each second.",
        f"decode: it is {right[1]}.",
    )
    return f"{right[0]} and {right[1]}; about {running:g} answers are under way at a time."
