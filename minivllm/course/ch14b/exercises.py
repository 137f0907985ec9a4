"""Exercises of notebook 14b: what EAGLE sees, what a draft costs, which proposer to take."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, is_whole
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: the pairs that EAGLE sees -----------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def inputs(rng: Random) -> Exercise:
    """The state and the token from which EAGLE guesses each draft."""
    tokens = rng.sample(range(10, 100), 8)
    num_tokens = rng.randint(4, 5)
    return Exercise(
        _check_inputs,
        "Its first draft comes from a state of the target and the token that was drawn from it. "
        "Then both move on by one.",
        _solve_inputs,
        "The target has just drawn the last of these tokens; positions count from 0. EAGLE guesses "
        "drafts, one after the other. From which pairs does it guess them? Answer with a list: for "
        "each draft the position of the state that goes in, true or guessed, and the token.",
        {"token_ids": tokens[:num_tokens], "drafts": tokens[num_tokens : num_tokens + 3]},
    )


def _solve_inputs(token_ids, drafts):
    position = len(token_ids) - 2  # of the state from which the newest token was drawn
    tokens = [token_ids[-1], *drafts[:-1]]
    return [(position + i, token) for i, token in enumerate(tokens)]


def _check_inputs(answer, token_ids, drafts) -> str:
    right = _solve_inputs(token_ids, drafts)
    ok = isinstance(answer, (list, tuple)) and len(answer) == len(right)
    if not ok or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in answer):
        raise NotYet(f"give a list of {len(right)} pairs, one for each draft.")
    if not all(is_whole(number) for pair in answer for number in pair):
        raise NotYet("give pairs of whole numbers: a position and a token.")
    mine = [tuple(pair) for pair in answer]
    positions, tokens = zip(*mine, strict=True)
    last = len(token_ids) - 1
    if tokens == tuple(drafts):
        raise NotYet("a draft is what comes out. The first pair has the newest token of the text.")
    if positions[0] == last:
        raise NotYet(
            f"the newest token has no state yet: position {last} is what is guessed first."
        )
    if len(set(positions)) == 1:
        raise NotYet("one state for all drafts is Medusa. EAGLE goes on from what it has guessed.")
    if tokens[0] == token_ids[-2]:
        raise NotYet("a state goes with the token drawn from it, not with the token that it is of.")
    if len(set(tokens)) == 1:
        raise NotYet("the second draft needs to know the first one: it goes in as the token.")
    for number, (pair, wanted) in enumerate(zip(mine, right, strict=True), start=1):
        for what, got, value in zip(("position", "token"), pair, wanted, strict=True):
            if got != value:
                wrong = f"draft {number}: its {what} is not {got}"
                raise NotYet(f"{wrong}.", f"{wrong}, but {value}.")
    return "one true state; from then on guesses from guesses."


# -- stretch: what a run has gained ------------------------------------------------------------


@seeded(difficulty=2, minutes=8)
def speedup(rng: Random) -> Exercise:
    """Speed-up of a run, from its acceptance and the cost of a draft."""
    return FunctionExercise(
        "rights says for each draft position in which share of the steps all drafts up to it were "
        "right (Acceptance.first_right). A draft costs this share of a step of the target. One "
        "sequence is decoded. How many times as fast is it as without drafts? Write "
        "speedup(rights, cost), which returns a number rounded to two places.",
        "Tokens that a step gains on average, divided by what the step costs, drafts included.",
        _solve_speedup,
        calls=[_run(rng) for _ in range(12)],
        learnt="a step gains one token, and each draft position adds its share.",
        mistakes={
            "the target's own token counts, too: a step gains one even if no draft is right.": (
                lambda rights, cost: round(sum(rights) / (1 + len(rights) * cost), 2)
            ),
            "each of the drafts costs, not one of them only.": (
                lambda rights, cost: round((1 + sum(rights)) / (1 + cost), 2)
            ),
            "the step of the target costs, too: 1, and then the drafts.": (
                lambda rights, cost: round((1 + sum(rights)) / (len(rights) * cost), 2)
            ),
            "the drafts cost something: divide by the price of the step.": (
                lambda rights, cost: round(1 + sum(rights), 2)
            ),
            "these shares are measured: use each of them, not powers of the first.": (
                lambda rights, cost: round(
                    sum(rights[0] ** i for i in range(len(rights) + 1)) / (1 + len(rights) * cost),
                    2,
                )
            ),
            "a share is already that of all drafts up to the place: do not multiply them.": (
                lambda rights, cost: round(_multiplied(rights) / (1 + len(rights) * cost), 2)
            ),
        },
    )


def _run(rng: Random) -> tuple[list[float], float]:
    """Shares that fall from place to place, and a cost; the second one is not the first squared."""
    while True:
        shares = sorted(rng.sample(range(20, 96), rng.randint(2, 5)), reverse=True)
        rights = [share / 100 for share in shares]
        if abs(rights[1] - rights[0] ** 2) > 0.03:
            return rights, rng.randint(5, 40) / 100


def _multiplied(rights: list[float]) -> float:
    gained = 1.0
    product = 1.0
    for share in rights:
        product *= share
        gained += product
    return gained


def _solve_speedup():
    def speedup(rights, cost):
        gained = 1 + sum(rights)
        return round(gained / (1 + len(rights) * cost), 2)

    return speedup


# -- design: which proposer --------------------------------------------------------------------

KS = range(1, 9)


@seeded(difficulty=3, minutes=12)
def choose(rng: Random) -> Exercise:
    """The proposer, and its number of drafts, that make one sequence fastest."""
    return FunctionExercise(
        "proposers says of each by its name how often a draft is right, and what a draft costs as "
        "a share of a step of the target. Each draft is right that often, whatever came before. "
        "Which proposer with how many drafts, from 1 to 8, makes one sequence fastest? Write "
        "choose(proposers), which returns a pair: the name and the number of drafts; (None, 0) if "
        "none is faster than no drafts.",
        "Write down the speed-up for one proposer and one number of drafts. Then try all.",
        _solve_choose,
        calls=[(_offer(rng, i),) for i in range(12)],
        learnt="the number of drafts follows from the proposer: being right allows long drafts, "
        "being cheap does, too.",
        mistakes={
            "being right most often is not enough: divide by the price of the step.": (
                lambda offer: _best(offer, lambda a, cost, k: _gained(a, k))
            ),
            "the cheapest proposer may be wrong too often.": (
                lambda offer: _best(offer, lambda a, cost, k: _rate(a, cost, k) - 100 * cost)
            ),
            "if no speed-up is above 1, drafts are a loss: say (None, 0).": (
                lambda offer: _best(offer, _rate)
            ),
            "a step gains the target's token and the drafts that are right, not k times a.": (
                lambda offer: _above_one(offer, lambda a, cost, k: (1 + k * a) / (1 + k * cost))
            ),
            "each draft costs: with k of them the step costs 1 + k * cost.": (
                lambda offer: _above_one(offer, lambda a, cost, k: _gained(a, k) / (1 + cost))
            ),
        },
    )


def _gained(a: float, k: int) -> float:
    return sum(a**i for i in range(k + 1))


def _rate(a: float, cost: float, k: int) -> float:
    return _gained(a, k) / (1 + k * cost)


def _best(offer: dict, rate) -> tuple[str, int]:
    pairs = [(name, k) for name in offer for k in KS]
    return max(pairs, key=lambda pair: rate(*offer[pair[0]], pair[1]))


def _above_one(offer: dict, rate) -> tuple[str | None, int]:
    name, k = _best(offer, rate)
    return (name, k) if rate(*offer[name], k) > 1 else (None, 0)


def _offer(rng: Random, number: int) -> dict[str, tuple[float, float]]:
    """Proposers with a clear best choice; in every fourth call none is worth its price."""
    while True:
        low, high = (15, 40) if number % 4 == 3 else (35, 92)
        names = rng.sample(["draft model", "Medusa", "EAGLE", "MTP"], 3)
        offer = {name: (rng.randint(low, high) / 100, rng.randint(4, 60) / 100) for name in names}
        rates = sorted(_rate(*offer[name], k) for name in names for k in KS)
        clear = rates[-1] / rates[-2] > 1.005 and abs(rates[-1] - 1) > 0.02
        if clear and (rates[-1] < 1) == (number % 4 == 3):
            return offer


def _solve_choose():
    def choose(proposers):
        best, fastest = (None, 0), 1.0
        for name, (right, cost) in proposers.items():
            for k in range(1, 9):
                gained = sum(right**i for i in range(k + 1))
                if gained / (1 + k * cost) > fastest:
                    best, fastest = (name, k), gained / (1 + k * cost)
        return best

    return choose
