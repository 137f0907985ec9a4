"""Notebook 14b's exercises: pairs, speed-ups and choices; what they ask has one answer."""

import pytest

from minivllm.course.asking.answers import NotYet
from minivllm.exercises import ch14b

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pair_is_a_state_and_the_token_drawn_from_it(seed):
    exercise = ch14b.inputs(seed)
    tokens, drafts = exercise.given["token_ids"], exercise.given["drafts"]
    text = tokens + drafts
    for position, token in exercise.solve():
        assert text[position + 1] == token  # no two tokens are the same
    (first, _), *_ = exercise.solve()
    assert first + 1 == len(tokens) - 1
    own = [(position, text[position]) for position, _ in exercise.solve()]
    with pytest.raises(NotYet, match="not with the token that it is of"):
        exercise.check(own)


@pytest.mark.parametrize("seed", SEEDS)
def test_measured_shares_are_no_powers(seed):
    """So that what the arithmetic would say is told apart from what was measured."""
    for rights, cost in ch14b.speedup(seed).calls:
        assert rights == sorted(rights, reverse=True)
        assert 0 < cost < 1
        assert rights[1] != pytest.approx(rights[0] ** 2, abs=0.03)


@pytest.mark.parametrize("seed", SEEDS)
def test_some_offers_are_worth_nothing_and_the_best_is_clear(seed):
    exercise = ch14b.choose(seed)
    choose = exercise.solve()
    chosen = [choose(*call) for call in exercise.calls]
    assert [pair == (None, 0) for pair in chosen] == 3 * [False, False, False, True]
    assert len(set(chosen)) >= 5
    for (offer,), (name, k) in zip(exercise.calls, chosen, strict=True):
        if name is not None:
            right, cost = offer[name]
            again = {name: (right, cost * 1.001)}  # the choice does not hang on a rounding
            assert choose(offer | again) == (name, k)
