"""Exercises of notebook 07: the chunks of a long prompt, a budget for an SLO, a threshold."""

from __future__ import annotations

import math
from random import Random

from minivllm.course.asking.answers import NotYet, compare, number_list, whole_number
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.puzzle import Puzzle, measure
from minivllm.course.asking.requests import make_request
from minivllm.lab.sim import dry_run, simulate
from minivllm.lab.sim.result import SimulationResult
from minivllm.lab.sim.workloads import SimRequest
from minivllm.lab.translation import translated
from minivllm.trace.records import Scheduled

# -- core: the chunks of a prompt --------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def chunks(rng: Random) -> Exercise:
    """In which pieces is a long prompt computed?"""
    budget = rng.randint(12, 24)
    return Exercise(
        _check_chunks,
        "A decode takes one token of the budget, and running requests come first. The threshold "
        "is a limit of its own, for each step.",
        _solve_chunks,
        "num_decoding sequences decode when a prompt of num_prompt tokens arrives; no other "
        "request comes, and none leaves meanwhile. A long_prefill_token_threshold of 0 is none. "
        "How many tokens of the prompt does each step compute, until all of it is done? Answer "
        "with a list.",
        {
            "num_decoding": rng.randint(1, 6),
            "num_prompt": rng.randint(40, 80),
            "max_num_batched_tokens": budget,
            "long_prefill_token_threshold": rng.choice([0, 0, rng.randint(7, budget)]),
        },
    )


def _solve_chunks(num_decoding, num_prompt, **limits):
    most = limits["max_num_batched_tokens"] - num_decoding
    if limits["long_prefill_token_threshold"]:
        most = min(most, limits["long_prefill_token_threshold"])
    answer = []
    while num_prompt:
        answer.append(min(most, num_prompt))
        num_prompt -= answer[-1]
    return answer


def _check_chunks(answer, num_decoding, num_prompt, **limits) -> str:
    got = number_list(answer, "the chunks of the prompt")
    decoding = [make_request(f"D{i}", 1, 20) for i in range(num_decoding)]
    trace = dry_run([*decoding, make_request("long", num_prompt, 1, 1)], num_blocks=999, **limits)
    right = [r.num_tokens for r in trace.of(Scheduled) if r.seq_id == "long"]
    budget = limits["max_num_batched_tokens"]
    threshold = limits["long_prefill_token_threshold"]
    for step, (mine, theirs) in enumerate(zip(got, right, strict=False)):
        if mine == theirs:
            continue
        left = num_prompt - sum(right[:step])
        limit = f", the threshold is {threshold}" if threshold else ""
        mistakes = {
            f"{num_decoding} decode first and take {num_decoding} of the {budget}.": budget,
            f"the threshold is {threshold}: a prompt gets no more in one step.": (
                min(budget - num_decoding, left) if threshold else None
            ),
            f"a threshold of 0 is none: the chunk is {budget} - {num_decoding}.": (
                0 if not threshold else None
            ),
            "the threshold is no sum with the decodes: it limits the prompt alone.": (
                threshold - num_decoding
            ),
            f"only {left} tokens are left of the prompt.": mine if mine > left else None,
            f"all of the prompt does not fit into one step of {budget}.": num_prompt,
            "one token for each decode, not for all together.": budget - 1,
            "the budget is the same in every step, and so is the number of decodes.": (
                theirs - num_decoding
            ),
        }
        compare(
            mine,
            theirs,
            mistakes,
            f"chunk {step} is not {mine} tokens: {left} are left of the prompt, and {num_decoding} "
            f"requests decode in the same step.",
            f"chunk {step} is {theirs} tokens, not {mine}: {left} are left of the prompt, and "
            f"{budget} - {num_decoding} = {budget - num_decoding} of the budget{limit}.",
            at=f"chunk {step} is not {mine} tokens: ",
        )
    if len(got) != len(right):
        raise NotYet(
            f"{len(got)} chunks are {sum(got)} of the {num_prompt} tokens of the prompt.",
            f"it takes {len(right)} steps, and you have {len(got)} chunks: together they must be "
            f"the {num_prompt} tokens of the prompt.",
        )
    return f"{len(right)} steps, and in none of them a decode had to wait."


# -- stretch: a budget for an SLO --------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def slo(rng: Random) -> Exercise:
    """A token budget that keeps two promises."""
    while True:
        now = 0.0
        workload = []
        for _ in range(7):
            workload.append((round(now, 3), rng.randint(200, 2000), rng.randint(10, 25)))
            now += rng.expovariate(12)
        budget = rng.randrange(112, 257, 16)
        served = serve(workload, budget)
        promise = {
            "ttft_p90_ms": round(served.ttft["p90"] * 1050),
            "itl_p99_ms": round(served.itl["p99"] * 1050, 1),
        }
        too_small = serve(workload, budget // 3)
        too_large = serve(workload, 3 * budget)
        if _missed(too_small, **promise) and _missed(too_large, **promise):
            break
    return Exercise(
        _check_slo,
        "The largest step is what a decode may have to wait for: it sets the ITL. Small steps read "
        "all weights for a few tokens: prompts get through slowly, and the TTFT grows.",
        _solve_slo,
        "An A100 serves an 8B model; requests are (arrival in seconds, prompt, output tokens). "
        "Choose max_num_batched_tokens such that 90 % of the requests have their first token "
        "within ttft_p90_ms, and 99 % of the gaps between two tokens are at most itl_p99_ms. The "
        "simulator is the judge: ch07.serve(workload, budget) shows you what it will see.",
        {"workload": workload, **promise},
    )


def serve(workload: list[tuple[float, int, int]], budget: int) -> SimulationResult:
    """The workload in simulated time, with this budget per step."""
    requests = [
        SimRequest(arrival, [user] * num_prompt, num_output)
        for user, (arrival, num_prompt, num_output) in enumerate(workload)
    ]
    return simulate(
        requests,
        hardware="a100",
        model="llama-8b",
        num_blocks=1024,  # enough for all, and quicker to set up than a whole A100
        max_num_batched_tokens=budget,
        enable_prefix_caching=False,
    )


def _missed(served: SimulationResult, ttft_p90_ms: float, itl_p99_ms: float) -> list[str]:
    ttft = served.ttft["p90"] * 1e3
    itl = served.itl["p99"] * 1e3
    missed = []
    if ttft > ttft_p90_ms:
        missed.append(
            f"TTFT p90 is {ttft:.0f} ms, {ttft_p90_ms} ms are promised: larger steps help"
        )
    if itl > itl_p99_ms:
        missed.append(f"ITL p99 is {itl:.1f} ms, {itl_p99_ms} ms are promised: smaller steps help")
    return missed


def _solve_slo(workload, ttft_p90_ms, itl_p99_ms):
    def keeps_both(budget):
        served = serve(workload, budget)
        ttft, itl = served.ttft["p90"] * 1000, served.itl["p99"] * 1000
        return ttft <= ttft_p90_ms and itl <= itl_p99_ms

    return next(budget for budget in range(96, 512, 16) if keeps_both(budget))


def _check_slo(answer, workload, **promise) -> str:
    answer = whole_number(answer)
    if not 1 <= answer <= 100_000:
        raise NotYet("a budget is at least 1 token, and at most 100,000.")
    served = serve(workload, answer)
    missed = _missed(served, **promise)
    if missed:
        told = translated("; the ").join(missed)
        raise NotYet(f"with {answer} tokens per step the {told}.")
    ttft = served.ttft["p90"] * 1e3
    itl = served.itl["p99"] * 1e3
    return f"TTFT p90 {ttft:.0f} ms, ITL p99 {itl:.1f} ms, with {answer} tokens per step."


# -- design: room for the short ones -----------------------------------------------------------


@seeded(difficulty=4, minutes=15)
def puzzle(rng: Random) -> Exercise:
    """Two limits that keep a document out of the way of others."""
    settings = {"num_blocks": 200, "block_size": 4, "max_num_batched_tokens": 128}
    while True:
        comes = rng.randint(2, 5)
        workload = {
            "A": (rng.randint(3, 6), 30),
            "B": (rng.randint(3, 6), 30),
            "C": (8 * rng.randint(9, 13), 6, comes),
            "D": (rng.randint(4, 9), 6, comes + 1),
            "E": (rng.randint(4, 9), 6, comes + rng.randint(1, 2)),
        }
        targets = {"busiest_decode_step": rng.randint(22, 32)}
        best = measure(workload, **{**settings, **_solve_puzzle(workload, targets)})
        targets["slowest_first_token"] = best["slowest_first_token"]
        targets["mean_finish"] = math.ceil(10 * best["mean_finish"]) / 10
        budget = {"max_num_batched_tokens": targets["busiest_decode_step"]}
        alone = measure(workload, **{**settings, **budget})
        if alone["mean_finish"] > targets["mean_finish"]:
            break
    return Puzzle(
        "A and B chat when a long document C arrives, and right after it two short questions D "
        "and E, (prompt, output tokens, step of arrival). No step with a decode may "
        "be larger than busiest_decode_step; no request may wait longer for the first token than "
        "slowest_first_token steps; and the mean time to the end must not suffer. Choose "
        "max_num_batched_tokens and long_prefill_token_threshold.",
        "With a small budget alone, C takes all of it and D and E wait for C. What is the "
        "threshold for?",
        _solve_puzzle,
        workload=workload,
        settings=settings,
        may_set=("max_num_batched_tokens", "long_prefill_token_threshold"),
        missed={
            "busiest_decode_step": "max_num_batched_tokens is the largest step that can be",
            "slowest_first_token": "the document leaves a question no room in its step",
            "mean_finish": "a small threshold slows the document, a large one the questions",
        },
        targets=targets,
    )


def _solve_puzzle(workload, targets, **_) -> dict:
    budget = targets["busiest_decode_step"]
    question = max(workload["D"][0], workload["E"][0])
    left = budget - question - 3  # room for a question, and for three that decode
    return {"max_num_batched_tokens": budget, "long_prefill_token_threshold": left}
