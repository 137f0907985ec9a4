"""Notebook 00b: its exercises and its figure. The notebook itself holds each line to the model."""

import math

import pytest

from minivllm.course.asking.answers import NotYet
from minivllm.exercises import ch00b
from minivllm.viz import share_grid


@pytest.mark.parametrize("seed", range(8))
def test_a_token_never_looks_behind_itself(seed):
    exercise = ch00b.looks(seed=seed)
    query, keys, token = exercise.given.values()
    right, score = exercise.solve()
    scores = [sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    assert right <= token
    assert score == scores[right]
    assert all(scores[right] > score for j, score in enumerate(scores[: token + 1]) if j != right)
    later = scores.index(max(scores))
    assert later > token
    with pytest.raises(NotYet, match=f"token: {token} cannot see {later}, which"):
        exercise.check((later, max(scores)))


def test_attention_in_python_is_what_torch_says():
    torch = pytest.importorskip("torch")
    exercise = ch00b.attend(seed=3)
    attend = exercise.solve()
    for query, keys, values in exercise.calls:
        q, k, v = map(torch.tensor, (query, keys, values))
        right = torch.nn.functional.scaled_dot_product_attention(q[None], k, v)[0]
        assert attend(query, keys, values) == pytest.approx(right.tolist(), abs=6e-4)


@pytest.mark.parametrize("seed", range(8))
def test_the_widest_layer_fits_and_the_next_one_does_not(seed):
    exercise = ch00b.width(seed=seed)
    hidden, most = exercise.given.values()
    right = exercise.solve()
    assert right % 64 == 0
    assert 4 * hidden**2 + 3 * hidden * right <= most < 4 * hidden**2 + 3 * hidden * (right + 64)
    with pytest.raises(NotYet, match="would fit, too"):
        exercise.check(right - 64)
    with pytest.raises(NotYet, match=r"weights, and .* are allowed"):
        exercise.check(right + 64)


def test_the_largest_share_of_a_row_is_framed_and_told():
    figure = share_grid([[0.25, 0.75], [1, 0]], ["one", "two"], ["A", "B"], mark=[(0, 1, "!")])
    assert "The largest of each row: one: B; two: A." in figure.alt
    assert "[0.75]" in figure.text
    assert "[1.00]" in figure.text
    assert figure.text.endswith("0 1: !")


@pytest.mark.parametrize("shares", [[], [[0.5]], [[0.5, 2]], [[-0.5, 0.5]], [[math.nan, 0]]])
def test_what_are_no_shares_is_refused(shares):
    with pytest.raises(ValueError, match="shares must be "):
        share_grid(shares, ["one"], ["A", "B"])
